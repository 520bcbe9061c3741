"""What an engine remembers of keys: trouble always, deliveries and acks of keys that are watched, and all of it bounded."""

from __future__ import annotations

from dataclasses import replace

from seriatim.core.lanes.types import Lease, RetryPolicy
from seriatim.engine import operator_actions
from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Delivered
from seriatim.engine.key_history import MAX_LEASED, WATCHED_EVENTS, WATCHED_KEYS, WATCHED_S, WatchedKeys
from seriatim.engine.options import TopicOptions
from seriatim.store.base import MessageHeader
from seriatim.store.pack import PackHead
from tests.engine.conftest import ORDERED, Collector, prepare, publish, work_off

AT_ONCE = replace(ORDERED, retry=RetryPolicy(min_backoff=0, max_backoff=0))


async def happened(engine, key):
    return [(event.event, event.id, event.detail) for event in (await engine.describe_key("s", key)).events]


def test_of_a_key_that_somebody_looks_at_deliveries_and_acks_are_remembered(run):
    async def scenario(engine):
        await prepare(engine)
        assert await happened(engine, "seen") == []
        await publish(engine, "1", "2", key="seen")
        await publish(engine, "3", key="unseen")
        await work_off(engine, 3)
        assert await happened(engine, "seen") == [
            ("acked", "1", None),
            ("delivered", "1", None),
            ("acked", "0", None),
            ("delivered", "0", None),
            ("published", "1", None),
            ("published", "0", None),
        ]
        assert await happened(engine, "unseen") == [("published", "2", None)], "nobody looked, and nothing failed"

    run(scenario)


def test_a_key_that_fails_is_watched_and_what_failed_was_not_acked(run):
    async def scenario(engine):
        await prepare(engine, AT_ONCE)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1")
        attachment.nack((await got.wait(1))[0].lease, error="broken")
        again = (await got.wait(2))[1]
        assert await happened(engine, "k") == [
            ("delivered", "0", "attempt 2"),
            ("returned", "0", "attempt 1: broken"),
            ("published", "0", None),
        ]
        attachment.ack(again.lease)
        await engine.wait_until_empty("s")
        assert (await happened(engine, "k"))[0] == ("acked", "0", None)

    run(scenario)


def test_a_key_that_failed_on_one_subscription_has_no_trouble_in_the_past_of_another(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_subscription("t", "other", ORDERED)
        await publish(engine, "1")
        await engine.skip("other", "k")
        assert await happened(engine, "k") == [("published", "0", None)]

    run(scenario)


def test_the_past_of_a_key_is_found_behind_many_messages_of_others(run):
    async def scenario(engine):
        await prepare_kept(engine)
        await publish(engine, "1", key="seldom")
        for _ in range(3):
            await engine.publish("t", [Outgoing(f"key-{n}", b"x") for n in range(2_000)])
        await publish(engine, "2", key="seldom")
        await engine.skip("s", "seldom")
        found = await engine.describe_key("s", "seldom")
        assert [(one.id, one.state) for one in found.positions] == [("0", "settled"), ("6001", "waiting")]
        assert found.searched_from is None

    run(scenario)


def test_the_past_of_a_key_is_found_without_unpacking_what_comes_after_it(run, monkeypatch):
    monkeypatch.setattr(operator_actions, "LOOK_BACK_FIRST", 100)
    monkeypatch.setattr(operator_actions, "LOOK_BACK", 300)
    unpacked: list[PackHead] = []
    headers = PackHead.headers

    def count(pack: PackHead) -> list[MessageHeader]:
        unpacked.append(pack)
        return headers(pack)

    async def scenario(engine):
        await prepare_kept(engine)
        for batch in range(30):
            await engine.publish("t", [Outgoing(f"key-{batch}-{n}", b"x") for n in range(100)])
        monkeypatch.setattr(PackHead, "headers", count)
        await engine.describe_key("s", "key-5-50")
        assert len(unpacked) <= 10, "of 30 packs"

    run(scenario)


def test_how_far_back_the_past_of_a_key_was_searched_is_said(run_memory, monkeypatch):
    monkeypatch.setattr(operator_actions, "LOOK_BACK", 6)
    monkeypatch.setattr(operator_actions, "LOOK_BACK_FIRST", 4)

    async def scenario(engine):
        async def past(limit=50):
            found = await engine.describe_key("s", "k", limit)
            return [one.id for one in found.positions], found.searched_from

        await prepare_kept(engine)
        await publish(engine, "0", "1", key="k")
        await publish(engine, *"234567", key="other")
        await publish(engine, "8", key="k")
        for _ in range(2):
            await engine.skip("s", "k")
        assert await past() == (["8"], "2")
        monkeypatch.setattr(operator_actions, "LOOK_BACK", 7)
        assert await past() == (["1", "8"], "1")
        monkeypatch.setattr(operator_actions, "LOOK_BACK", 8)
        assert await past() == (["0", "1", "8"], None)
        assert await past(1) == (["1", "8"], "1"), "no more than were asked for"

    run_memory(scenario)


async def prepare_kept(engine):
    """A subscription of a topic that keeps what is settled."""
    await engine.create_topic("t", TopicOptions(retain_settled=3600.0))
    await engine.create_subscription("t", "s", ORDERED)


def test_a_message_that_an_operator_skips_was_not_acked(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.describe_key("s", "k")
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "1")
        await got.wait(1)
        await engine.skip("s", "k")
        await engine.wait_until_empty("s")
        assert ("skipped", "0", None) in await happened(engine, "k")
        assert "acked" not in {event for event, _, _ in await happened(engine, "k")}

    run(scenario)


def delivery(key: str, offset: int) -> Delivered:
    return Delivered.of(Lease(offset, key, offset, 1, 60.0), b"", None, 0.0)


def test_what_is_remembered_is_bounded():
    watched = WatchedKeys(1)
    watched.delivered(0.0, [delivery("never named", 0)])
    assert not watched.is_active
    for number in range(2 * WATCHED_KEYS):
        watched.watch(0.0, f"key-{number}")
    last = f"key-{2 * WATCHED_KEYS - 1}"
    watched.delivered(1.0, [delivery(key, n) for n in range(MAX_LEASED) for key in ("key-0", last)])
    assert not watched.of("key-0"), "it made room"
    assert len(list(watched.of(last))) == WATCHED_EVENTS
    assert len(watched.leased) <= MAX_LEASED


def test_watching_ends_and_what_was_remembered_stays():
    watched = WatchedKeys(1)
    watched.watch(0.0, "k")
    watched.delivered(WATCHED_S, [delivery("k", 1)])
    assert watched.is_active
    watched.delivered(WATCHED_S + 1, [delivery("k", 2)])
    assert (watched.is_active, watched.leased) == (False, {})
    assert [event.offset for event in watched.of("k")] == [1, 2]
