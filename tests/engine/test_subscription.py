"""A subscription by itself, in virtual time: what it notes, what it reports, and what becomes of it when something fails."""

from __future__ import annotations

import asyncio
import threading

import pytest

from seriatim.core.lanes.types import OnExhausted, RetryMode, RetryPolicy
from seriatim.engine.broker import Outgoing, SubscriptionInfo
from seriatim.engine.committer import RETRY_PAUSE_S
from seriatim.engine.consumer import TURN
from seriatim.engine.deliveries import SLICE
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import DamagedStore, StoreFailed
from seriatim.store.base import Record, TroubleRow
from tests.engine.conftest import ORDERED, Collector, prepare, publish, reads_held_up, settle_down, work_off

PIPELINED = SubscriptionOptions(message_ordering=True, window=2, retry=RetryPolicy.immediate(max_attempts=5))


def forget_recent(engine, *offsets: int) -> None:
    """What is in memory no more has to be read."""
    engine.get_topic("t")._forget(offsets)


def test_a_subscription_says_what_it_is(run_memory):
    async def scenario(engine):
        subscription = await prepare(engine)
        assert subscription.info() == SubscriptionInfo("s", "t", ORDERED)
        assert len(subscription.deliveries) == 0

    run_memory(scenario)


def test_a_new_subscription_repeats_no_token_of_an_earlier_opening_of_the_store(run_memory):
    async def scenario(engine):
        subscription = await prepare(engine)
        assert subscription.lanes.next_token == engine.first_token() > 1

    run_memory(scenario)


def test_without_ordering_a_delayed_message_holds_up_nothing_of_its_key(run_memory):
    async def scenario(engine):
        await prepare(engine, SubscriptionOptions())
        got = Collector()
        engine.attach("s", got.consumer)
        await engine.publish("t", [Outgoing("k", b"later", None, 30), Outgoing("k", b"now")])
        assert [one.record.data for one in await got.wait(1)] == [b"now"]

    run_memory(scenario)


def test_what_a_consumer_gives_back_is_delivered_again_and_was_no_attempt(run_memory):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "1")
        got.consumer.give_back([(await got.wait(1))[0].lease])
        assert [one.lease.attempt for one in await got.wait(2)] == [1, 1]

    run_memory(scenario)


def test_messages_are_handed_out_in_slices_so_that_acks_are_written_in_between(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        await publish(engine, *map(str, range(SLICE + 10)), key=None)
        engine.attach("s", got.consumer)
        subscription.deliveries.hand_out()
        assert len(got.got) == SLICE
        await got.wait(SLICE + 10)

    run_memory(scenario)


def test_what_happens_to_messages_is_counted(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "0", "1", "2", key=None)
        for one in await got.wait(3):
            attachment.nack(one.lease, 0)
        first, second, _ = (await got.wait(6))[3:]
        attachment.ack(first.lease)
        attachment.ack(second.lease)
        got.patience = 60
        await got.wait(7)  # the lease of the third expires
        await got.wait(8)  # twice
        counts = subscription.counts
        assert (counts.delivered, counts.redelivered) == (8, 5)
        assert (counts.acked, counts.nacked, counts.expired) == (2, 3, 2)

    run_memory(scenario)


def test_a_new_message_is_not_counted_as_delivered_again_while_another_is_in_trouble(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "failing")
        attachment.nack((await got.wait(1))[0].lease, 60)
        await publish(engine, "new", key="another")
        await got.wait(2)
        assert (subscription.counts.delivered, subscription.counts.redelivered) == (2, 0)

    run_memory(scenario)


# -- consumers ----------------------------------------------------------------------------------------------------------


def test_when_handing_out_fails_that_is_logged_and_it_is_tried_again_after_a_pause(run_memory, caplog):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1")
        began, got, room = asyncio.get_running_loop().time(), Collector(), Collector().consumer.room
        failures = [ValueError("not now")]

        def fail_once() -> int:
            if failures:
                raise failures[0]
            return room()

        got.consumer.room = fail_once  # type: ignore[method-assign]
        engine.attach("s", got.consumer)
        await settle_down(engine)
        (record,) = caplog.records
        assert record.getMessage() == "handing out messages failed, and is tried again: ValueError('not now')"
        assert record.exc_info
        assert record.exc_info[1] is failures.pop()
        await got.wait(1)
        assert asyncio.get_running_loop().time() - began == pytest.approx(RETRY_PAUSE_S)

    run_memory(scenario)


def test_every_consumer_has_its_turn_although_the_first_has_room_for_everything(run_memory):
    async def scenario(engine):
        await prepare(engine)
        consumers = [Collector(), Collector()]
        for one in consumers:
            engine.attach("s", one.consumer)
        await publish(engine, *map(str, range(2 * TURN)), key=None)
        await settle_down(engine)
        assert [len(one.got) for one in consumers] == [TURN] * 2

    run_memory(scenario)


def test_messages_that_nobody_takes_wait_in_silence(run_memory, caplog):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1")
        await settle_down(engine)
        assert caplog.messages == []
        assert await work_off(engine, 1) == [b"1"]

    run_memory(scenario)


def test_a_consumer_finds_its_own_leases_and_no_others(run_memory):
    async def scenario(engine):
        await prepare(engine)
        first, second = Collector(), Collector()
        engine.attach("s", first.consumer)
        await publish(engine, "1")
        lease = (await first.wait(1))[0].lease
        engine.attach("s", second.consumer)
        assert first.consumer.lease(lease.token) == lease
        assert second.consumer.lease(lease.token) is None
        assert first.consumer.lease(lease.token + 1) is None

    run_memory(scenario)


# -- until it is empty --------------------------------------------------------------------------------------------------


def test_a_subscription_is_empty_when_the_last_ack_is_durable(run_memory):
    async def scenario(engine):
        subscription = await prepare(engine)
        await subscription.deliveries.until_empty()
        await publish(engine, "1", "2")
        waiting = asyncio.ensure_future(subscription.deliveries.until_empty())
        got = Collector(max_messages=1)
        attachment = engine.attach("s", got.consumer)
        attachment.ack((await got.wait(1))[0].lease)
        await got.wait(2)
        assert not waiting.done()
        attachment.ack(got.got[1].lease)
        assert not waiting.done()
        await waiting
        assert engine._store.cursor(subscription.id).has(1)

    run_memory(scenario)


class SlowLoad:
    """Lets a subscription load its lanes only when the test says so, and then fails or not."""

    def __init__(self, monkeypatch, subscription, failure: StoreFailed | None = None) -> None:
        self._load, self._failure = subscription.placement.load, failure
        self.go_on = threading.Event()
        monkeypatch.setattr(subscription.placement, "load", self._load_slowly)

    def _load_slowly(self, store, options):
        assert self.go_on.wait(10)
        if self._failure is not None:
            raise self._failure
        return self._load(store, options)


def test_a_subscription_whose_lanes_are_exchanged_is_not_called_empty_before_what_came_meanwhile_is_there(
    run_memory, monkeypatch
):
    async def scenario(engine):
        subscription = await prepare(engine)
        loading = SlowLoad(monkeypatch, subscription)
        changing = asyncio.ensure_future(engine.update_subscription("s", PIPELINED))
        await settle_down(engine)
        waiting = asyncio.ensure_future(subscription.deliveries.until_empty())
        await publish(engine, "1")
        assert not waiting.done()
        loading.go_on.set()
        await changing
        await settle_down(engine)
        assert not waiting.done()
        assert await work_off(engine, 1) == [b"1"]
        await waiting

    run_memory(scenario)


def test_what_came_while_an_exchange_of_lanes_failed_is_delivered(run_memory, monkeypatch):
    async def scenario(engine):
        subscription = await prepare(engine)
        loading = SlowLoad(monkeypatch, subscription, StoreFailed("not now"))
        changing = asyncio.ensure_future(engine.update_subscription("s", PIPELINED))
        await settle_down(engine)
        await publish(engine, "1")
        await publish(engine, "2")
        loading.go_on.set()
        with pytest.raises(StoreFailed, match="not now"):
            await changing
        assert await work_off(engine, 2) == [b"1", b"2"]

    run_memory(scenario)


def test_a_delayed_message_holds_up_its_own_key_until_its_time_has_come(run_memory):
    async def scenario(engine):
        await prepare(engine)
        got, began = Collector(), asyncio.get_running_loop().time()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "later", delay=30)
        await publish(engine, "behind")
        await publish(engine, "other", key="another")
        attachment.ack((await got.wait(1))[0].lease)
        got.patience = 60
        await got.wait(2)
        assert asyncio.get_running_loop().time() - began == pytest.approx(30)
        attachment.ack(got.got[1].lease)
        assert [one.record.data for one in await got.wait(3)] == [b"other", b"later", b"behind"]

    run_memory(scenario)


# -- reads --------------------------------------------------------------------------------------------------------------


def test_messages_that_are_in_memory_are_not_read(run_memory):
    async def scenario(engine):
        subscription = await prepare(engine)
        await publish(engine, "1", "2")
        with reads_held_up(engine):
            records = await asyncio.wait_for(subscription.records([1, 0]), 1)
        assert [records[offset].data for offset in (0, 1)] == [b"1", b"2"]

    run_memory(scenario)


def test_a_read_that_fails_is_reported_and_tried_again_after_a_pause(run_memory, monkeypatch):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1")
        forget_recent(engine, 0)
        failures, fetch = [StoreFailed("not now")], engine.fetch

        async def fail_once(*asked):
            if failures:
                raise failures.pop()
            return await fetch(*asked)

        monkeypatch.setattr(engine, "fetch", fail_once)
        began, got = asyncio.get_running_loop().time(), Collector()
        engine.attach("s", got.consumer)
        (one,) = await got.wait(1)
        assert [str(failure) for failure in got.failures] == ["not now"]
        assert asyncio.get_running_loop().time() - began == pytest.approx(RETRY_PAUSE_S)
        assert (one.record.data, one.lease.attempt) == (b"1", 1)

    run_memory(scenario)


def test_a_message_that_is_taken_out_while_it_is_read_holds_up_none_of_those_read_with_it(run_memory):
    async def scenario(engine):
        await prepare(engine)
        for key in ("a", "b"):
            await publish(engine, key, key=key)
        forget_recent(engine, 0, 1)
        got = Collector()
        with reads_held_up(engine):
            engine.attach("s", got.consumer)
            await settle_down(engine)
            await engine.skip("s", "a")
        (one,) = await got.wait(1)
        assert one.record.data == b"b"
        assert got.fenced == [0]

    run_memory(scenario)


def test_a_message_that_is_missing_in_its_log_is_reported(run_memory, monkeypatch):
    async def nothing(*_: object) -> list[object]:
        return []

    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1")
        forget_recent(engine, 0)
        monkeypatch.setattr(engine, "fetch", nothing)
        got = Collector()
        engine.attach("s", got.consumer)
        await settle_down(engine)
        (failure,) = got.failures
        assert isinstance(failure, DamagedStore)
        assert str(failure) == "message 0 of topic 't' is not in its log"

    run_memory(scenario)


def test_whatever_work_in_the_background_raises_is_reported_and_what_is_cancelled_is_not(run_memory):
    async def fail() -> None:
        raise DamagedStore("half a pack")

    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        engine.attach("s", got.consumer)
        subscription.run(fail())
        subscription.run(asyncio.sleep(0))
        await settle_down(engine)
        assert [str(failure) for failure in got.failures] == ["half a pack"]
        assert not subscription._tasks
        subscription.run(asyncio.sleep(1e6))
        await asyncio.sleep(0)
        await engine.delete_subscription("s")
        await asyncio.sleep(0)
        assert not subscription._tasks
        assert len(got.failures) == 2  # and that it was deleted

    run_memory(scenario)


# -- what is noted ------------------------------------------------------------------------------------------------------


def test_a_delivery_that_is_fenced_by_the_failure_of_one_before_it_is_no_attempt(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine, PIPELINED), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "0", "1")
        _, second = await got.wait(2)
        attachment.nack(second.lease, 0, "failed once")
        again = (await got.wait(3))[2]
        assert (again.lease.offset, again.lease.attempt) == (1, 2)
        now = engine.now()
        attachment.nack(got.got[0].lease, 60, "the first")
        assert got.fenced == [1]
        await engine.drain()
        assert engine._store.troubles(subscription.id) == [
            TroubleRow(0, 1, now + 60, "the first", False),
            TroubleRow(1, 1, 0.0, "failed once", False),
        ]

    run_memory(scenario)


def test_with_a_limit_of_attempts_a_delivery_is_noted_when_it_begins(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine, PIPELINED), Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "0")
        await got.wait(1)
        await engine.drain()
        noted = TroubleRow(0, 1, 0.0, "the process ended during delivery", False)
        assert engine._store.troubles(subscription.id) == [noted]

    run_memory(scenario)


def test_without_a_limit_of_attempts_nothing_is_noted_of_a_delivery_that_is_fenced(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine, SubscriptionOptions(message_ordering=True, window=2)), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "0", "1")
        attachment.nack((await got.wait(2))[0].lease, 60, "the first")
        await engine.drain()
        assert got.fenced == [1]
        assert [row.offset for row in engine._store.troubles(subscription.id)] == [0]

    run_memory(scenario)


def test_a_failed_message_without_a_key_is_passed_by_others_also_after_it_is_loaded(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "0", key=None)
        attachment.nack((await got.wait(1))[0].lease, 60, "why")
        await engine.drain()
        assert [row.steps_aside for row in engine._store.troubles(subscription.id)] == [True]

    run_memory(scenario)


@pytest.mark.parametrize("mode", RetryMode)
def test_a_key_that_used_up_its_attempts_is_paused_with_its_reason(run_memory, mode):
    retry = RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.PAUSE, mode=mode)

    async def scenario(engine):
        subscription, got = await prepare(engine, SubscriptionOptions(message_ordering=True, retry=retry)), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "0")
        attachment.nack((await got.wait(1))[0].lease, None, "why")
        await engine.drain()
        reason = "1 delivery attempts failed"
        assert subscription.pause_reasons == {"k": reason}
        assert [(row.key, row.reason) for row in engine._store.paused_keys(subscription.id)] == [("k", reason)]

    run_memory(scenario)


def test_what_is_settled_behind_a_dead_letter_takes_the_places_of_earlier_ones(run_memory):
    retry = RetryPolicy.immediate(max_attempts=1, mode=RetryMode.OVERTAKE)

    async def scenario(engine):
        options = SubscriptionOptions(message_ordering=True, window=2, retry=retry)
        subscription, got = await prepare(engine, options), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "0", "1", "2")
        attachment.nack((await got.wait(2))[0].lease, None, "why")
        await settle_down(engine)
        first, second = got.got[-2:]
        assert (first.lease.offset, second.lease.offset) == (1, 2)
        attachment.ack(second.lease)  # provisional, as the one before it is not settled
        attachment.nack(first.lease, None, "why")
        await settle_down(engine)
        rows = engine._store.dead_letters(subscription.id)
        assert [(row.offset, row.overtaken) for row in rows] == [(0, True), (1, True)]

    run_memory(scenario)


def test_with_a_window_only_the_first_of_the_leases_that_expire_is_an_attempt(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine, PIPELINED), Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "0", "1")
        await got.wait(2)
        got.patience = 60
        again = (await got.wait(4))[2:]
        assert [(one.lease.offset, one.lease.attempt) for one in again] == [(0, 2), (1, 1)]
        assert subscription.counts.expired == 1

    run_memory(scenario)


def test_a_promise_is_kept_with_the_messages_that_belong_to_it_or_says_why_not(run_memory):
    async def scenario(engine):
        subscription, topic = await prepare(engine), engine.get_topic("t")
        await subscription.outcomes.write(lambda _: None, {topic: [Record(topic.reserve(1), "k", b"copy")]})
        assert await work_off(engine, 1) == [b"copy"]
        with pytest.raises(ValueError, match="not this"):
            await subscription.outcomes.write(raise_value_error)

    run_memory(scenario)


# -- what the store refuses ---------------------------------------------------------------------------------------------


def test_what_the_store_will_never_take_is_logged_and_reported(run_memory, caplog):
    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        engine.attach("s", got.consumer)
        error = ValueError("not this")
        subscription.outcomes.refused([3, 4], error)
        assert caplog.messages == [
            "subscription 's': what became of the messages 3, 4 can't be stored; they are delivered again when the store is "  # noqa: ISC004
            "opened again, and their keys wait until then: not this"
        ]
        fields = vars(caplog.records[0])
        assert (fields["subscription"], fields["message_ids"]) == ("s", ["3", "4"])
        assert got.failures == [error]

    run_memory(scenario)


def test_an_operator_hears_that_a_redrive_is_refused(run_memory, monkeypatch):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1")
        await engine.dead_letter("s", "k", "why")
        monkeypatch.setattr("seriatim.store.memory.MemoryTransaction.unbury", raise_value_error)
        with pytest.raises(ValueError, match="not this"):
            await engine.redrive("s", "0")

    run_memory(scenario)


def raise_value_error(*_: object) -> None:
    raise ValueError("not this")


def test_whoever_takes_from_a_subscription_that_is_detached_hears_of_it(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine), Collector()
        engine.attach("s", got.consumer)
        await subscription.placement.detach()
        expected = "subscription 's' is detached: it receives no more messages"
        assert [str(failure) for failure in got.failures] == [expected]
        assert subscription.info().problem is None

    run_memory(scenario)


def test_seeks_that_wait_for_their_turn_when_the_subscription_ends_are_told_why(run_memory):
    async def scenario(engine):
        subscription, got = await prepare(engine, SubscriptionOptions(message_ordering=True, window=2)), Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1")
        attachment.ack((await got.wait(1))[0].lease)  # its commit is still to come, so the lanes are not quiet
        seeks = [asyncio.ensure_future(engine.seek_to_message("s", "0")) for _ in range(2)]
        await asyncio.sleep(0)
        subscription.close(StoreFailed("ended"))
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*seeks, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["ended", "ended"]

    run_memory(scenario)
