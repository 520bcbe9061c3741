"""What an engine counts, and the rates between two snapshots."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.metrics import BOUNDS, CommitTimes, DeliveryCounts, Metrics, TopicCounts
from seriatim.errors import InvalidArgument, StoreFull
from tests.engine.conftest import ORDERED, Collector, prepare, publish, reads_held_up, settle_down


def test_what_happens_to_messages_is_counted(run):
    async def scenario(engine):
        await prepare(engine, replace(ORDERED, ack_deadline=0.05, retry=RetryPolicy.immediate(max_attempts=3)))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "abc", "de")
        attachment.nack((await got.wait(1))[0].lease)
        await got.wait(2)  # and its lease expires
        attachment.nack((await got.wait(3))[2].lease)  # which was its last attempt
        attachment.ack((await got.wait(4))[3].lease)
        await settle_down(engine)
        metrics = await engine.metrics()
        assert metrics.topics == {"t": TopicCounts(published=2, bytes=5)}
        assert metrics.subscriptions == {
            "s": DeliveryCounts(delivered=4, redelivered=2, acked=1, nacked=2, expired=1, dead_lettered=1)
        }
        assert metrics.stats["s"] == replace(await engine.stats("s"))
        commits = metrics.commits
        assert commits.count == sum(commits.buckets) >= 4
        assert 0 < commits.longest <= commits.seconds
        assert commits.failed == 0

    run(scenario)


def test_a_snapshot_does_not_change_any_more_and_failed_commits_are_counted(monkeypatch, run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        before = await engine.metrics()
        copy = replace(before.commits, buckets=list(before.commits.buckets))
        store.failures.append(StoreFull("no room"))
        with pytest.raises(StoreFull):
            await publish(engine, "1")
        await publish(engine, "2")
        later = await engine.metrics()
        assert before.commits == copy
        assert (later.commits.failed, later.topics["t"].published) == (1, 1)

    run_watched(scenario)


def test_a_commit_is_sorted_into_the_first_bucket_that_is_large_enough():
    times = CommitTimes()
    for seconds in (BOUNDS[0], BOUNDS[0] * 1.5, 99.0):
        times.observe(seconds)
    assert (times.buckets[0], times.buckets[1], times.buckets[-1]) == (1, 1, 1)
    assert (times.count, times.longest, times.seconds) == (3, 99.0, BOUNDS[0] * 2.5 + 99.0)


def snapshot(time: float, published: int, acked: int, commits: CommitTimes, *others: str) -> Metrics:
    topics = {"t": TopicCounts(published, published * 10)}
    subscriptions = {name: DeliveryCounts(acked=acked) for name in ("s", *others)}
    return Metrics(time, topics, subscriptions, commits, {})


def test_rates_are_what_two_snapshots_differ_by_in_a_second():
    earlier = snapshot(100.0, 10, 4, CommitTimes(count=2, seconds=0.5))
    later = snapshot(110.0, 110, 54, CommitTimes(count=12, seconds=1.5), "new")
    rates = later.since(earlier)
    assert (rates.seconds, rates.commits, rates.commit_seconds) == (10.0, 1.0, 0.1)
    assert rates.topics == {"t": {"published": 10.0, "bytes": 100.0}}
    assert (rates.subscriptions["s"]["acked"], rates.subscriptions["new"]["acked"]) == (5.0, 5.4)
    assert (rates.totals["acked"], rates.totals["published"]) == (10.4, 10.0)
    assert rates.messages_per_commit == pytest.approx(20.4)
    with pytest.raises(InvalidArgument, match="of which the other one is earlier"):
        earlier.since(later)


def test_without_commits_there_is_nothing_to_average():
    rates = snapshot(2.0, 0, 0, CommitTimes()).since(snapshot(1.0, 0, 0, CommitTimes()))
    assert (rates.commits, rates.commit_seconds, rates.messages_per_commit) == (0.0, None, None)


@pytest.mark.parametrize(
    "delete", [lambda engine: engine.delete_topic("t"), lambda engine: engine.delete_subscription("u")]
)
def test_what_is_deleted_while_metrics_are_taken_is_left_out(run, monkeypatch, delete):
    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)  # the age of a message is asked of the store

    async def scenario(engine):
        await prepare(engine)
        await engine.create_subscription("t", "u", ORDERED)
        await publish(engine, "a")
        await engine.create_topic("other")
        await engine.create_subscription("other", "v", ORDERED)
        with reads_held_up(engine):
            taking = asyncio.create_task(engine.metrics())
            await asyncio.sleep(0)
            await delete(engine)
        metrics = await taking
        left = {info.name for info in await engine.list_subscriptions()}
        assert metrics.stats.keys() == metrics.subscriptions.keys() == left

    run(scenario)
