"""A consumer that fails holds up nobody else, and one takes as much as it has room for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from seriatim.core.lanes.types import Lease
from seriatim.engine.consumer import TURN, Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.errors import InvalidArgument, NotFound, OutcomeUnknown
from seriatim.store import open_store
from seriatim.store.base import Record
from tests.engine.conftest import ORDERED, Collector, prepare, publish

ANYTHING = [ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt]


def run_in_memory(scenario) -> None:
    async def main() -> None:
        engine = Engine(open_store("memory://"))
        await engine.start()
        await prepare(engine)
        await engine.create_subscription("t", "other", ORDERED)
        try:
            await scenario(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def fail(kind: type[BaseException], *_: object) -> None:
    raise kind


@pytest.mark.parametrize("kind", ANYTHING)
def test_other_consumers_get_their_messages_when_one_raises(kind):
    async def scenario(engine):
        other = Collector()
        engine.attach("s", Consumer(partial(fail, kind)))
        engine.attach("other", other.consumer)
        await publish(engine, "1")
        await other.wait(1)
        await publish(engine, "2", key="another")
        await other.wait(2)

    run_in_memory(scenario)


@pytest.mark.parametrize("kind", ANYTHING)
def test_every_consumer_hears_that_the_store_failed_and_that_a_lease_is_lost(kind):
    async def scenario(engine):
        first, other = Collector(), Collector()
        bad = Consumer(first._take, fenced=partial(fail, kind), failed=partial(fail, kind))
        engine.attach("s", bad)
        engine.attach("other", other.consumer)
        await publish(engine, "1")
        await first.wait(1)
        await other.wait(1)
        engine.recovery.failed(OutcomeUnknown("the disk is gone"))
        await asyncio.sleep(0)
        assert [str(error) for error in other.failures] == ["the disk is gone"]
        assert other.fenced == [0]

    run_in_memory(scenario)


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_a_subscription_that_cannot_hand_out_just_now_is_tried_again_and_others_go_on(kind):
    class Moody(Consumer):
        moods = 2

        def room(self) -> int:
            if self.moods:
                self.moods -= 1
                raise kind
            return super().room()

    async def scenario(engine):
        got, other = Collector(), Collector()
        engine.attach("s", Moody(got._take))
        engine.attach("other", other.consumer)
        await publish(engine, "1")
        await other.wait(1)
        await got.wait(1)

    run_in_memory(scenario)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_interrupt_has_its_way_and_others_have_their_turn_afterwards(kind):
    class Interrupted(Consumer):
        is_interrupted = False

        def room(self) -> int:
            if not self.is_interrupted:
                self.is_interrupted = True
                raise kind
            return super().room()

    async def opened() -> Engine:
        engine = Engine(open_store("memory://"))
        await engine.start()
        await prepare(engine)
        await engine.create_subscription("t", "other", ORDERED)
        await publish(engine, "1")
        return engine

    async def attach() -> None:
        engine.attach("s", Interrupted(Collector()._take))
        engine.attach("other", other.consumer)
        await asyncio.sleep(1)

    with asyncio.Runner() as runner:
        engine, other = runner.run(opened()), Collector()
        with pytest.raises(kind):
            runner.run(attach())
        runner.run(asyncio.wait_for(other.wait(1), 10))
        runner.run(engine.close())


# -- how much a consumer takes ------------------------------------------------------------------------------------------


def delivered(*sizes: int) -> list[Delivered]:
    leases = [Lease(at, "k", at, 1, 60.0) for at in range(len(sizes))]
    return [Delivered.of(lease, b"x" * size, None, 0.0) for lease, size in zip(leases, sizes, strict=True)]


def test_a_delivered_message_from_elsewhere_has_the_key_and_the_offset_of_its_lease():
    lease = Lease(7, "k", 3, 1, 60.0)
    assert Delivered.of(lease, b"data", {"a": "b"}, 5.0) == (lease, Record(3, "k", b"data", {"a": "b"}, 5.0))


def test_a_consumer_that_stopped_takes_nothing_more():
    consumer = Consumer(print)
    assert consumer.room() == TURN
    consumer.stop()
    assert consumer.room() == 0


def test_as_long_as_no_size_is_known_a_consumer_with_a_limit_takes_one_message():
    assert Consumer(print, max_bytes=1000).room() == 1


@pytest.mark.parametrize(("sizes", "room"), [([10, 5, 10], 7), ([80], 1), ([1], TURN), ([100], 0), ([40, 60], 0)])
def test_a_consumer_takes_as_many_as_fit_if_they_are_as_large_as_the_largest_before(sizes, room):
    consumer = Consumer(print, max_bytes=1000 if sizes == [1] else 100)
    assert consumer.weigh(delivered(*sizes)) == len(sizes)
    assert consumer.room() == room


@pytest.mark.parametrize(("sizes", "taken"), [([50, 50, 50], 2), ([50, 51, 1], 2), ([200, 1], 1), ([50, 49, 9, 1], 3)])
def test_a_consumer_takes_messages_until_its_limit_is_reached(sizes, taken):
    assert Consumer(print, max_bytes=100).weigh(delivered(*sizes)) == taken


def test_a_consumer_has_room_again_for_what_it_let_go():
    consumer, given = Consumer(print, max_messages=4, max_bytes=20), delivered(10, 5, 5)
    consumer.outstanding = len(given)
    consumer.weigh(given)
    assert consumer.room() == 0
    consumer.let_go(given[1].lease)
    assert consumer.room() == 1
    consumer.let_go(given[0].lease)
    consumer.let_go(given[2].lease)
    assert consumer.room() == 2


def test_a_lease_that_is_lost_before_its_message_was_weighed_frees_no_bytes():
    consumer, given = Consumer(print, max_bytes=20), delivered(20, 5)
    consumer.outstanding = len(given)
    consumer.weigh(given[:1])
    consumer.let_go(given[1].lease)
    assert consumer.room() == 0


def test_a_consumer_takes_no_more_messages_than_it_may_have_outstanding():
    consumer = Consumer(print, max_messages=3)
    consumer.outstanding = 2
    assert consumer.room() == 1
    assert Consumer(print, max_messages=0).room() == 0
    assert Consumer(print).max_messages == 1000


def test_a_consumer_may_have_leases_of_its_own_length():
    assert Consumer(print, ack_deadline=30).ack_deadline == 30


def test_a_limit_that_is_none_is_named():
    with pytest.raises(InvalidArgument, match=r"^max_bytes must be a number above 0, not -5$"):
        Consumer(print, max_bytes=-5)


def test_a_consumer_with_the_smallest_limit_gets_its_first_message():
    assert Consumer(print, max_bytes=1).room() == 1


def test_a_consumer_that_is_attached_to_nothing_can_be_woken_and_give_back(caplog):
    consumer = Consumer(print)
    consumer.wake()
    consumer.give_back([])
    assert caplog.messages == []


def test_what_a_consumer_raises_is_logged(caplog):
    Consumer(partial(fail, ValueError)).deliver([])
    (record,) = caplog.records
    assert record.getMessage() == "a consumer failed: ValueError()"
    assert record.exc_info  # with where it was raised


@pytest.mark.parametrize("ending", ["expired", "taken back"])
def test_a_lease_that_is_lost_makes_room_for_as_many_bytes_as_its_message_had(run_memory, ending):
    async def scenario(engine):
        await prepare(engine, replace(ORDERED, ack_deadline=0.1 if ending == "expired" else 60.0))
        got = Collector(max_bytes=1)
        engine.attach("s", got.consumer)
        await publish(engine, "1")
        await publish(engine, "2", key="another")
        await got.wait(1)
        if ending == "taken back":
            await engine.dead_letter("s", "k")
        assert (await got.wait(2))[1].record.data == b"2"

    run_memory(scenario)


def test_whoever_begins_to_wait_for_a_subscription_that_has_ended_is_told(run):
    async def scenario(engine) -> None:
        subscription = await prepare(engine)
        await publish(engine, "1")
        await engine.delete_subscription("s")
        async with asyncio.timeout(10):
            with pytest.raises(NotFound):
                await subscription.deliveries.until_empty()

    run(scenario)
