"""Latest wins: of the messages of a key that wait only the newest is delivered, in every mode, and after a restart too."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random

import pytest

from seriatim.core.lanes.types import Keep, RetryPolicy
from seriatim.engine.broker import SUPERSEDED
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument
from tests.engine.conftest import ORDERED, Collector, prepare, publish, settle_down

LATEST = SubscriptionOptions(message_ordering=True, keep=Keep.LATEST)


def test_a_message_that_waits_is_superseded_by_the_next_and_a_lease_is_left_alone(run) -> None:
    async def scenario(engine) -> None:
        subscription, got = await prepare(engine, LATEST), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1")
        await got.wait(1)
        await engine.describe_key("s", "k")  # from now on its events are remembered
        await publish(engine, "2", "3")
        await publish(engine, "other", key="another")
        await publish(engine, "4")
        await got.wait(2)
        attachment.ack(got.got[0].lease)
        await got.wait(3)
        assert got.data == [b"1", b"other", b"4"]
        assert (await engine.metrics()).subscriptions["s"].superseded == 2
        events = (await engine.describe_key("s", "k")).events
        named = [(one.id, one.detail) for one in reversed(events) if one.event == "superseded"]
        assert named == [("1", "by message 2"), ("2", "by message 4")]
        assert (await engine.stats("s")).total == 2
        attachment.ack(got.got[1].lease)
        attachment.ack(got.got[2].lease)
        await engine.wait_until_empty("s")
        await engine.clean_up()
        assert subscription.counts.dead_lettered == 0

    run(scenario)


def test_what_was_superseded_is_named_without_being_asked_to_and_in_bounded_memory(run_linked) -> None:
    async def scenario(link, client) -> None:
        await publish(link.engine, *"abc")
        await publish(link.engine, "d", "e", key="other")
        named = [(one.id, one.ordering_key, one.by) for one in await client.superseded("s")]
        assert named == [("3", "other", "4"), ("1", "k", "2"), ("0", "k", "1")]
        (last,) = await client.superseded("s", "k", 1)
        (newest,) = await client.peek("s", "k")
        assert (last.id, newest.id) == ("1", "2")
        assert last.time >= newest.publish_time
        with pytest.raises(InvalidArgument):
            await client.superseded("s", limit=-1)
        await publish(link.engine, *"x" * (SUPERSEDED + 10))
        kept = await client.superseded("s", limit=2 * SUPERSEDED)
        assert (len(kept), kept[-1].ordering_key) == (SUPERSEDED, "k")
        assert int(kept[0].id) - int(kept[-1].id) == SUPERSEDED - 1
        assert (await link.engine.metrics()).subscriptions["s"].superseded == SUPERSEDED + 13

    run_linked(scenario, LATEST)


def test_what_is_superseded_is_settled_in_the_store_and_not_kept_in_memory(run_memory) -> None:
    async def scenario(engine) -> None:
        subscription = await prepare(engine, LATEST)
        await publish(engine, *"abc")
        await settle_down(engine)
        cursor = await engine.read(lambda store: store.cursor(subscription.id))
        assert cursor.floor == 2
        assert [subscription.topic.recent(offset) is None for offset in range(3)] == [True, True, False]

    run_memory(scenario)


def test_that_a_superseded_message_can_not_be_settled_is_logged_and_reported(run_memory, caplog, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not this")

    async def scenario(engine) -> None:
        await prepare(engine, LATEST)
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "a")
        await got.wait(1)
        await publish(engine, "b")
        with monkeypatch.context() as refusing:
            refusing.setattr("seriatim.store.memory.encode_offsets", refuse)
            await publish(engine, "c")
            await settle_down(engine)
        assert [str(failure) for failure in got.failures] == ["not this"]
        assert "what became of the messages 1 can't be stored" in caplog.text

    run_memory(scenario)


def test_a_restart_brings_nothing_up_that_was_superseded(run_with_restarts) -> None:
    async def first(engine) -> None:
        await prepare(engine, LATEST)
        await publish(engine, *"abc")
        got = Collector()
        engine.attach("s", got.consumer).ack((await got.wait(1))[0].lease)
        await publish(engine, *"def")

    async def then(engine) -> None:
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        attachment.ack((await got.wait(1))[0].lease)
        await engine.wait_until_empty("s")
        assert got.data == [b"f"]

    run_with_restarts(first, then)


def test_an_option_that_is_turned_on_later_supersedes_what_waits(run) -> None:
    async def scenario(engine) -> None:
        await prepare(engine)
        await publish(engine, *"abc")
        await engine.update_subscription("s", replace(ORDERED, keep=Keep.LATEST), ["keep"])
        got = Collector()
        engine.attach("s", got.consumer).ack((await got.wait(1))[0].lease)
        await engine.wait_until_empty("s")
        assert got.data == [b"c"]
        assert (await engine.describe_subscription("s")).options.keep is Keep.LATEST

    run(scenario)


def test_a_failed_message_with_a_successor_is_superseded_and_a_delayed_one_supersedes_when_due(
    run_memory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "seriatim")

    async def scenario(engine) -> None:
        subscription = await prepare(engine, replace(LATEST, retry=RetryPolicy(min_backoff=60, max_attempts=1)))
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "fails")
        await got.wait(1)
        await publish(engine, "next")
        attachment.nack(got.got[0].lease, error="no use")
        attachment.ack((await got.wait(2))[1].lease)  # at once: nobody waits for a retry, and nothing is dead-lettered
        await settle_down(engine)
        await engine.pause_key("s", "k")
        await publish(engine, "soon")
        await publish(engine, "later", delay=30)
        assert len(subscription.lanes) == 2
        await asyncio.sleep(31)
        await engine.resume_key("s", "k")
        attachment.ack((await got.wait(3))[2].lease)
        await engine.wait_until_empty("s")
        assert got.data == [b"fails", b"next", b"later"]
        assert (subscription.counts.superseded, subscription.counts.dead_lettered) == (2, 0)

    run_memory(scenario)
    assert "subscription 's', key 'k': message 0 is superseded by message 1" in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_newest_is_handled_last_and_nothing_older_after_it(run_memory, seed: int) -> None:
    """On virtual time, with several keys, delays, failures, expired leases and any window: what is handled of a key one by one
    rises, and the newest message is handled."""
    random = Random(seed)
    retry = RetryPolicy(min_backoff=random.choice([0, 2]), max_attempts=random.choice([None, 2]))

    async def scenario(engine) -> None:
        options = replace(LATEST, retry=retry, window=random.choice([1, 1, 3]))
        await prepare(engine, options)
        handled, published = dict[str, list[int]](), dict[str, int]()
        got = Collector()
        attachment = engine.attach("s", got.consumer)

        async def handle(one) -> None:
            await asyncio.sleep(random.choice([0, 1, 5]))
            if attachment.holds(one.lease):
                if random.random() < 0.2 and (retry.max_attempts is None or one.lease.attempt < 2):
                    attachment.nack(one.lease)
                elif random.random() < 0.9 or one.lease.attempt > 1:
                    attachment.ack(one.lease)
                    handled.setdefault(one.record.key, []).append(int(one.record.data))

        tasks, seen = [], 0
        for number in range(60):
            key = random.choice("ab")
            published[key] = number
            await publish(engine, str(number), key=key, delay=random.choice([0, 0, 0, 3]) if number < 50 else 0)
            await asyncio.sleep(random.choice([0, 0, 1]))
            tasks += [asyncio.ensure_future(handle(one)) for one in got.got[seen:]]
            seen = len(got.got)
        for _ in range(400):
            await asyncio.sleep(1)
            tasks += [asyncio.ensure_future(handle(one)) for one in got.got[seen:]]
            seen = len(got.got)
        await asyncio.gather(*tasks)
        await engine.wait_until_empty("s")
        for key, numbers in handled.items():
            if options.window == 1:
                assert numbers == sorted(set(numbers))
            assert max(numbers) == published[key]
        assert (await engine.metrics()).subscriptions["s"].superseded > 5

    run_memory(scenario)


def test_other_processes_see_the_same(run_linked) -> None:
    async def scenario(link, client) -> None:
        await client.publish("t", [])
        got = Collector()
        await publish(link.engine, *"abc")
        attachment = client.attach("s", got.consumer)
        attachment.ack((await got.wait(1))[0].lease)
        await client.wait_until_empty("s")
        assert got.data == [b"c"]
        assert (await client.metrics()).subscriptions["s"].superseded == 2

    run_linked(scenario, LATEST)
