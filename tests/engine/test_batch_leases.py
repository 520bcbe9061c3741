"""Batches of a key: one lease, in every mode, and after a restart. What they mean is said in ``core/lanes``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import pytest

import seriatim.engine.link.server as link_server
from seriatim.core.lanes.types import Lease, RetryPolicy
from seriatim.engine.consumer import Delivered, whole_leases
from seriatim.errors import FailedPrecondition, StaleLease
from tests.engine.conftest import ORDERED, Collector, prepare, publish, settle_down

POISON_AFTER_2 = replace(ORDERED, retry=RetryPolicy.immediate(max_attempts=2))


def batches(delivered: list[Delivered]) -> list[str]:
    """What came under each lease."""
    grouped = groupby(delivered, key=lambda one: one.lease.token)
    return [b"".join(one.record.data for one in batch).decode() for _, batch in grouped]


def last_lease(got: Collector) -> Lease:
    """The whole lease of the last batch."""
    return whole_leases(got.got)[-1]


async def a_batch_to_its_end(broker, engine) -> None:
    """A batch fails without saying where; then a message fails alone, is dead-lettered, and the rest is a batch again."""
    await publish(engine, *"12x45")
    got = Collector(batch=10)
    attachment = broker.attach("s", got.consumer)
    await got.wait(5)
    attachment.nack(last_lease(got), error="somewhere")
    for count in (6, 7):
        await got.wait(count)
        attachment.ack(got.got[-1].lease)
    for count in (8, 9):
        await got.wait(count)
        attachment.nack(last_lease(got), error="poison")
    await got.wait(11)
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    attachment.ack(got.got[-1].lease, lambda error: durable.set_result(None) if error is None else None)
    await durable
    assert batches(got.got) == ["12x45", "1", "2", "x", "x", "45"]
    (letter,) = await broker.dead_letters("s")
    assert (letter.attempts, letter.error) == (2, "poison")
    assert got.consumer.outstanding == 0
    attachment.detach()


def test_a_poison_message_in_the_middle_costs_only_itself(run) -> None:
    async def scenario(engine) -> None:
        await prepare(engine, POISON_AFTER_2)
        await a_batch_to_its_end(engine, engine)

    run(scenario)


def test_from_another_process(run_linked) -> None:
    async def scenario(link, client) -> None:
        await a_batch_to_its_end(client, link.engine)
        assert not len(link.engine.get_subscription("s").lanes)

    run_linked(scenario, POISON_AFTER_2)


async def a_prefix_and_its_rest(broker, engine) -> None:
    await publish(engine, *"12345")
    got = Collector(batch=4)
    attachment = broker.attach("s", got.consumer)
    first, second, third, fourth = [one.lease for one in await got.wait(4)]
    attachment.extend(last_lease(got), 60)
    attachment.ack(second)
    for settled in (first, second):
        with pytest.raises(StaleLease):
            attachment.ack(settled)
    assert attachment.holds(third)
    attachment.extend(last_lease(got), 60)
    attachment.nack(fourth, error="that one")
    with pytest.raises(StaleLease):
        attachment.ack(third)
    for count in (5, 6, 7):
        await got.wait(count)
        attachment.ack(got.got[-1].lease)
    assert batches(got.got) == ["1234", "3", "4", "5"]
    attachment.detach()


def test_an_ack_settles_a_prefix(run) -> None:
    async def scenario(engine) -> None:
        await prepare(engine, POISON_AFTER_2)
        await a_prefix_and_its_rest(engine, engine)

    run(scenario)


def test_an_ack_of_another_process_settles_a_prefix(run_linked) -> None:
    async def scenario(link, client) -> None:
        await a_prefix_and_its_rest(client, link.engine)

    run_linked(scenario, POISON_AFTER_2)


@pytest.mark.parametrize(("ending", "again"), [("expired", ["123", "1"]), ("taken back", ["123", "23"])])
def test_a_consumer_that_lost_a_batch_has_room_for_as_many_again(run_memory, ending: str, again: list[str]) -> None:
    async def scenario(engine) -> None:
        await prepare(engine)
        got = Collector(batch=3, max_messages=3)
        await publish(engine, *"123")
        attachment = engine.attach("s", got.consumer)
        await got.wait(3)
        assert got.consumer.outstanding == 3
        if ending == "expired":
            attachment.extend(last_lease(got), 0.01)
        else:
            await engine.skip("s", "k")
        await got.wait(3 + len(again[1]))
        assert (batches(got.got), got.consumer.outstanding) == (again, len(again[1]))

    run_memory(scenario)


def test_a_client_is_told_that_it_lost_the_rest_of_a_batch(run_linked) -> None:
    async def scenario(link, client) -> None:
        await publish(link.engine, *"123")
        got = Collector(batch=3)
        attachment = client.attach("s", got.consumer)
        await got.wait(3)
        attachment.ack(got.got[0].lease)
        await client.stats("s")  # the owner has heard of it
        await link.engine.skip("s", "k")
        await got.wait(4)
        assert got.fenced == [1]
        assert not attachment.holds(got.got[2].lease)
        assert batches(got.got) == ["123", "3"]

    run_linked(scenario)


def test_a_batch_that_does_not_fit_into_one_frame_comes_as_one(run_linked, monkeypatch) -> None:
    monkeypatch.setattr(link_server, "MAX_DELIVERY_BYTES", 3)

    async def scenario(link, client) -> None:
        await publish(link.engine, *"123456789")
        await publish(link.engine, *"ab", key="other")
        deliveries: list[str] = []
        got = Collector(batch=8)
        deliver = got.consumer.deliver

        def note(delivered: Sequence[Delivered]) -> None:
            deliveries.append(",".join(batches(list(delivered))))
            deliver(delivered)

        got.consumer.deliver = note
        attachment = client.attach("s", got.consumer)
        await got.wait(10)
        assert ",".join(deliveries) == "12345678,ab"
        attachment.ack(last_lease(got))

    run_linked(scenario)


def test_what_a_crash_ends_goes_one_at_a_time_and_counts_for_nobody(run_with_restarts) -> None:
    options = replace(ORDERED, retry=RetryPolicy.immediate(max_attempts=1))

    async def first(engine) -> None:
        await prepare(engine, options)
        await publish(engine, *"123")
        got = Collector(batch=2)
        engine.attach("s", got.consumer)
        await got.wait(2)
        await settle_down(engine)
        engine.get_subscription(
            "s"
        ).deliveries._consumers.clear()  # as if the process ended here: nothing is given back

    async def second(engine) -> None:
        got = Collector(batch=5)
        attachment = engine.attach("s", got.consumer)
        for count in (1, 2, 3):
            await got.wait(count)
            attachment.ack(got.got[-1].lease)
        assert batches(got.got) == ["1", "2", "3"]
        assert not await engine.dead_letters("s")

    run_with_restarts(first, second)


def test_options_that_rule_batches_out_are_refused_and_later_ones_make_batches_of_one(run) -> None:
    async def scenario(engine) -> None:
        await prepare(engine)
        await publish(engine, *"12")
        got = Collector(batch=5)
        attachment = engine.attach("s", got.consumer)
        await got.wait(2)
        attachment.ack(last_lease(got))
        await engine.update_subscription("s", replace(ORDERED, window=3), ["window"])
        await publish(engine, *"34")
        await got.wait(4)
        assert batches(got.got) == ["12", "3", "4"]
        with pytest.raises(FailedPrecondition, match=r"^subscription 's' has a window of 3"):
            engine.attach("s", Collector(batch=5).consumer)

    run(scenario)
