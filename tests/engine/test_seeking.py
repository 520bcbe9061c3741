"""Seeks and snapshots: a subscription stands where it was told, and nothing is lost or doubled on the way."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.engine.seeking import first_published
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, StaleLease, StoreFailed
from seriatim.store import open_store
from seriatim.store.base import Record
from seriatim.store.memory import MemoryStore, MemoryTransaction
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import Collector, work_off

ORDERED = SubscriptionOptions(message_ordering=True)
FOR_EVER = TopicOptions(retain_settled=None)


async def prepare(engine, options=ORDERED, topic=FOR_EVER):
    await engine.create_topic("t", topic)
    await engine.create_subscription("t", "s", options)
    return engine.get_subscription("s")


def publish(engine, *data: str, key: str | None = "k"):
    return engine.publish("t", [Outgoing(key, one.encode()) for one in data])


# -- to an offset ---------------------------------------------------------------------------------------------------------


def test_a_seek_back_delivers_settled_messages_again_in_order(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "a", "b", "c", "d")
        await work_off(engine, 4)
        await engine.clean_up()
        await engine.seek_to_message("s", "1")
        assert await work_off(engine, 3) == [b"b", b"c", b"d"]

    run(scenario)


def test_a_seek_forward_settles_what_is_passed(run):
    async def scenario(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "a", "b", "c", "d")
        await engine.seek_to_message("s", "3")
        assert await work_off(engine, 1) == [b"d"]
        await engine.clean_up()
        assert (await engine.list_topics())[0].earliest == 4

    run(scenario)


def test_what_was_published_before_the_first_subscription_stays_and_can_be_replayed(run):
    async def scenario(engine):
        await engine.create_topic("t")
        await publish(engine, "a", "b")
        await engine.create_subscription("t", "s", ORDERED)
        await engine.clean_up()
        assert (await engine.describe_topic("t")).earliest == 0
        await publish(engine, "c")
        assert await work_off(engine, 1) == [b"c"]
        await engine.clean_up()
        await engine.seek_to_message("s", "0")
        assert await work_off(engine, 2) == [b"a", b"b"]
        await engine.clean_up()
        assert (await engine.describe_topic("t")).earliest == 0  # a replay does not shorten it either

    run(scenario)


def test_a_seek_survives_a_restart(run_with_restarts):
    async def before(engine):
        await prepare(engine)
        await publish(engine, "a", "b", "c")
        await work_off(engine, 3)
        await engine.seek_to_message("s", "1")

    async def after(engine):
        assert await work_off(engine, 2) == [b"b", b"c"]

    run_with_restarts(before, after)


def test_a_seek_before_what_is_kept_is_refused_and_names_the_earliest_offset(run):
    async def scenario(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "a", "b", "c")
        await work_off(engine, 3)
        await engine.clean_up()
        await publish(engine, "d")
        with pytest.raises(FailedPrecondition, match="from offset 2 on are no longer kept: the earliest offset is 3"):
            await engine.seek_to_message("s", "2")
        assert await work_off(engine, 1) == [b"d"], "it stands where it stood"

    run(scenario)


@pytest.mark.parametrize("message_id", ["-1", "1.0", True, 1, "", "٣", "9" * 19, "1" * 9999])
def test_an_id_that_can_be_none_is_refused(run, message_id):
    async def scenario(engine):
        await prepare(engine)
        with pytest.raises(InvalidArgument, match="is not the id of a message"):
            await engine.seek_to_message("s", message_id)

    run(scenario)


def test_an_offset_that_no_message_has_yet_is_refused_because_it_would_settle_what_comes(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "a")
        await engine.seek_to_message("s", "1")
        with pytest.raises(InvalidArgument, match="offset 2 was not given to any message yet: the next one is 1"):
            await engine.seek_to_message("s", "2")

    run(scenario)


# -- leases, attempts, dead letters, paused keys --------------------------------------------------------------------------


def test_a_seek_fences_every_lease_and_its_consumer_is_told(run):
    async def scenario(engine):
        await prepare(engine, SubscriptionOptions(message_ordering=True, window=3))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "a1", "a2", "a3", key="a")
        await publish(engine, "b1", key="b")
        leases = [one.lease for one in await got.wait(4)]
        refused: list[BaseException | None] = []
        second = next(one.lease for one in got.got if one.record.data == b"a2")
        attachment.ack(second, refused.append)  # provisional: a1 is still out
        await engine.seek_to_message("s", "0")
        assert sorted(got.fenced) == [0, 2, 3], "the one that was acked is with nobody"
        assert [type(error) for error in refused] == [StaleLease]
        for lease in leases:
            with pytest.raises(StaleLease):
                attachment.ack(lease)
        again = (await got.wait(8))[4:]
        assert sorted(one.record.data for one in again) == [b"a1", b"a2", b"a3", b"b1"]
        assert {one.lease.attempt for one in again} == {1}

    run(scenario)


def test_a_seek_forgets_failed_attempts_and_delays(run):
    async def scenario(engine):
        await prepare(
            engine,
            SubscriptionOptions(
                message_ordering=True, retry=RetryPolicy(min_backoff=600, max_backoff=600, max_attempts=2)
            ),
        )
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "a")
        attachment.nack((await got.wait(1))[0].lease, error="no")
        await engine.seek_to_message("s", "0")
        again = (await got.wait(2))[1]
        assert again.lease.attempt == 1
        attachment.nack(again.lease)
        await engine.drain()
        assert engine._store.dead_letters(engine.get_subscription("s").id) == []

    run(scenario)


def test_dead_letters_and_paused_keys_stay_through_a_seek(run):
    async def scenario(engine):
        subscription = await prepare(
            engine, SubscriptionOptions(message_ordering=True, retry=RetryPolicy.immediate(max_attempts=1))
        )
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "dead", "next")
        attachment.nack((await got.wait(1))[0].lease, error="hopeless")
        attachment.ack((await got.wait(2))[1].lease)
        await publish(engine, "waits", key="p")
        attachment.ack((await got.wait(3))[2].lease)
        subscription.lanes.pause("p")
        engine.commit().oblige(lambda work: work.pause_key(subscription.id, "p", "why not"), lambda: None)
        await engine.seek_to_message("s", "0")
        assert (await got.wait(4))[3].record.data == b"next"
        assert [row.offset for row in engine._store.dead_letters(subscription.id)] == [0]
        assert subscription.lanes.view("p").state == "paused"

    run(scenario)


def test_acks_under_way_are_written_before_the_seek_overrules_them(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "a", "b")
        acked: list[BaseException | None] = []
        store.watch()
        store.gate.clear()
        attachment.ack((await got.wait(1))[0].lease, acked.append)
        await store.until_writing()
        seek = asyncio.create_task(engine.seek_to_message("s", "0"))
        await asyncio.sleep(0)
        assert (acked, got.fenced) == ([], [])
        store.gate.set()
        await seek
        assert acked == [None], "it was durable before"
        assert (await got.wait(2))[1].record.data == b"a", "and overruled after"

    run_watched(scenario)


def test_what_is_published_during_a_seek_is_neither_lost_nor_doubled(run):
    async def scenario(engine):
        await prepare(engine)
        published = [publish(engine, "before")]
        seeks = []
        for number in range(20):
            seeks.append(asyncio.create_task(engine.seek_to_message("s", "0")))
            published.append(publish(engine, str(number)))
            if number % 3 == 0:
                await asyncio.sleep(0.001)
        await asyncio.gather(*published, *seeks)
        assert await work_off(engine, 21) == [b"before", *(b"%d" % number for number in range(20))]

    run(scenario)


def test_a_seek_is_finished_when_nobody_waits_for_it_any_more(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        await publish(engine, "a", "b")
        await work_off(engine, 2)
        store.watch()
        store.gate.clear()
        seek = asyncio.create_task(engine.seek_to_message("s", "1"))
        await store.until_writing()
        seek.cancel()
        await asyncio.wait([seek])
        store.gate.set()
        assert await work_off(engine, 1) == [b"b"]

    run_watched(scenario)


def test_when_a_seek_can_not_be_written_the_subscription_goes_on_as_it_was(monkeypatch):
    def fail(*_) -> None:
        raise StoreFailed("not now")

    async def scenario():
        engine = Engine(MemoryStore())
        await engine.start()
        await prepare(engine)
        await publish(engine, "a", "b", "c")
        with monkeypatch.context() as patch:
            patch.setattr(MemoryTransaction, "seek", fail)
            with pytest.raises(StoreFailed, match="not now"):
                await engine.seek_to_message("s", "2")
        await publish(engine, "d")
        assert await work_off(engine, 4) == [b"a", b"b", b"c", b"d"]
        await engine.close()

    asyncio.run(scenario())


# -- to a time ------------------------------------------------------------------------------------------------------------


def test_a_seek_to_a_time_begins_with_the_first_message_published_at_or_after_it(run):
    async def scenario(engine):
        await prepare(engine)
        times: list[float] = []
        for data in "abcd":
            await publish(engine, data)
            times.append(engine._store.read(engine.get_topic("t").id, len(times), 1)[0].published)
            await asyncio.sleep(0.002)
        await work_off(engine, 4)
        await engine.seek_to_time("s", times[2])
        assert await work_off(engine, 2) == [b"c", b"d"]
        await engine.seek_to_time("s", (times[0] + times[1]) / 2)
        assert await work_off(engine, 3) == [b"b", b"c", b"d"]

    run(scenario)


def test_a_time_before_what_is_kept_means_from_the_earliest_and_one_in_the_future_from_now_on(run):
    async def scenario(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "gone")
        await work_off(engine, 1)
        await engine.clean_up()
        await publish(engine, "a", "b")
        await engine.seek_to_time("s", 0)
        assert await work_off(engine, 2) == [b"a", b"b"]
        await publish(engine, "c")
        await engine.seek_to_time("s", engine.now() + 3600)
        await publish(engine, "d")
        assert await work_off(engine, 1) == [b"d"]

    run(scenario)


@pytest.mark.parametrize("time", [-1, float("nan"), "now", True])
def test_a_time_that_is_none_is_refused(run, time):
    async def scenario(engine):
        await prepare(engine)
        with pytest.raises(InvalidArgument, match="time must be a finite number"):
            await engine.seek_to_time("s", time)

    run(scenario)


def test_a_time_is_found_without_reading_everything():
    class CountingStore(MemoryStore):
        reads = 0

        def read(self, topic_id, first, limit):
            self.reads += limit
            return super().read(topic_id, first, limit)

    store = CountingStore()
    with store.transaction() as work:
        topic = work.create_topic("t", {}).id
        # two messages a second, and only every third offset is there
        work.append(topic, [Record(offset, None, b"", None, offset / 6) for offset in range(0, 60_000, 3)])
    for time in (0, 0.1, 0.5, 777.3, 9999.5, 20_000):
        expected = next((offset for offset in range(0, 60_000, 3) if offset / 6 >= time), 60_000)
        store.reads = 0
        found = first_published(store, topic, time, 60_000)
        assert [record.offset for record in store.read(topic, found, 1)] == [expected][: expected < 60_000]
        assert store.reads < 20


# -- snapshots ------------------------------------------------------------------------------------------------------------


def test_a_snapshot_brings_back_what_was_not_settled_then_and_nothing_else(run):
    async def scenario(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "a1", "a2", key="a")
        await publish(engine, "b1", "b2", key="b")
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        first = next(one for one in await got.wait(2) if one.record.key == "b")
        attachment.ack(first.lease)
        taken = await engine.create_snapshot("s", "before-deploy", lasts=60)
        assert (taken.name, taken.topic) == ("before-deploy", "t")
        attachment.detach()
        assert sorted(await work_off(engine, 3)) == [b"a1", b"a2", b"b2"]
        await publish(engine, "a3", key="a")
        await engine.clean_up()
        await engine.seek_to_snapshot("s", "before-deploy")
        again = await work_off(engine, 4)
        assert [data for data in again if data.startswith(b"a")] == [b"a1", b"a2", b"a3"]
        assert [data for data in again if data.startswith(b"b")] == [b"b2"]

    run(scenario)


def test_a_snapshot_serves_another_subscription_of_its_topic_but_not_one_of_another_topic(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "a")
        await engine.create_snapshot("s", "snap")
        await engine.create_subscription("t", "s2", ORDERED)
        await engine.seek_to_snapshot("s2", "snap")
        assert await work_off(engine, 1, "s2") == [b"a"]
        await engine.create_topic("other")
        await engine.create_subscription("other", "s3", ORDERED)
        with pytest.raises(InvalidArgument, match="snapshot 'snap' belongs to another topic"):
            await engine.seek_to_snapshot("s3", "snap")

    run(scenario)


def test_a_snapshot_pins_its_messages_until_it_is_deleted(run):
    async def scenario(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "a", "b")
        await engine.create_snapshot("s", "snap")
        await work_off(engine, 2)
        await engine.clean_up()
        assert (await engine.list_topics())[0].earliest == 0
        await engine.delete_snapshot("snap")
        await engine.clean_up()
        assert (await engine.list_topics())[0].earliest == 2
        with pytest.raises(NotFound, match="snapshot 'snap' does not exist"):
            await engine.seek_to_snapshot("s", "snap")
        with pytest.raises(NotFound, match="snapshot 'snap' does not exist"):
            await engine.delete_snapshot("snap")

    run(scenario)


def test_an_expired_snapshot_is_gone_and_its_name_is_free(run):
    async def scenario(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "a")
        await engine.create_snapshot("s", "short", lasts=0)
        assert await engine.list_snapshots() == []
        with pytest.raises(NotFound, match="does not exist, or has expired"):
            await engine.seek_to_snapshot("s", "short")
        long = await engine.create_snapshot("s", "short", lasts=60)
        assert await engine.list_snapshots() == [long]

    run(scenario)


def test_a_snapshot_name_is_given_once_also_at_the_same_time(run):
    async def scenario(engine):
        await prepare(engine)
        taken = [asyncio.create_task(engine.create_snapshot("s", "snap")) for _ in range(2)]
        await asyncio.wait(taken)
        assert [type(task.exception()) for task in taken] == [type(None), AlreadyExists]
        with pytest.raises(AlreadyExists, match="snapshot 'snap' already exists"):
            await engine.create_snapshot("s", "snap")

    run(scenario)


def test_snapshots_survive_a_restart(run_with_restarts):
    async def before(engine):
        await prepare(engine, topic=TopicOptions())
        await publish(engine, "a", "b")
        await engine.create_snapshot("s", "snap")
        await work_off(engine, 2)
        await engine.clean_up()

    async def after(engine):
        assert [each.name for each in await engine.list_snapshots()] == ["snap"]
        await engine.seek_to_snapshot("s", "snap")
        assert await work_off(engine, 2) == [b"a", b"b"]

    run_with_restarts(before, after)


def test_what_was_on_its_way_when_a_subscription_went_past_it_is_not_delivered(run_watched):
    async def scenario(engine, store) -> None:
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", SubscriptionOptions(message_ordering=True))
        store.watch()
        store.gate.clear()
        publishing = engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        await store.until_writing()
        seeking = asyncio.ensure_future(engine.seek_to_time("s", engine.now() + 10))
        await asyncio.sleep(0)
        store.gate.set()
        await publishing
        await seeking
        assert (await engine.stats("s")).total == 0
        await engine.publish("t", [Outgoing("k", b"2")])
        assert await work_off(engine, 1) == [b"2"]

    run_watched(scenario)


def test_a_message_that_a_seek_passed_while_it_was_read_may_be_gone(monkeypatch):
    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)  # what is delivered is read

    async def scenario():
        engine, got = Engine(open_store("memory://")), Collector()
        await engine.start()
        topic = (await prepare(engine, topic=TopicOptions())).topic
        await publish(engine, "a", "b")
        fetch, go_on = engine.fetch, asyncio.Event()

        async def fetch_late(*asked):
            await go_on.wait()
            return await fetch(*asked)

        monkeypatch.setattr(engine, "fetch", fetch_late)
        engine.attach("s", got.consumer)
        await asyncio.sleep(1)
        await engine.seek_to_message("s", "1")
        await asyncio.sleep(3600)
        assert await engine.load(lambda store: store.earliest(topic.id)) == 1
        go_on.set()
        await got.wait(1)
        assert (got.data, got.failures) == ([b"b"], [])
        await engine.close()

    run_in_virtual_time(scenario())
