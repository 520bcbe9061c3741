"""Local delivery is absolutely ordered, and workers may process in another order."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.core.guarantees import DeliveryMode, Guarantee, Level
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.pipes import InProcess, ordered_map
from seriatim.testing import run_in_virtual_time
from tests.pipes.chains import received_through, verdict_on


def test_local_delivery_is_absolutely_ordered():
    assert received_through(InProcess(), 5_000) == list(range(1, 5_001))
    assert InProcess().explain().level is Level.ABSOLUTE
    assert (InProcess.order, InProcess.mode) == (Guarantee.ABSOLUTE, DeliveryMode.EXACTLY_ONCE)


def test_several_local_deliveries_one_after_another_are_too():
    chain = InProcess("a") | InProcess("b") | InProcess("c")
    assert received_through(chain, 500) == list(range(1, 501))


def test_however_slow_the_output_is_nothing_overtakes():
    async def scenario() -> list[int]:
        received: list[int] = []

        async def slow(message: bytes) -> None:
            await asyncio.sleep(1 / (1 + int(message) % 3))
            received.append(int(message))

        async with InProcess().run(slow) as inlet:
            for number in range(50):
                await inlet.send(b"%d" % number)
        return received

    assert run_in_virtual_time(scenario()) == list(range(50))


def test_what_is_sent_before_anybody_listens_waits():
    async def scenario() -> list[bytes]:
        route, received = InProcess(), list[bytes]()
        sender = await route.open_sender(lambda _: None)
        sender.send(b"early")
        await asyncio.sleep(0)
        receiver = await route.open_receiver(received.append)
        await asyncio.sleep(0)
        await receiver.close()
        await sender.close()
        return received

    assert asyncio.run(scenario()) == [b"early"]


def test_an_end_that_is_open_is_not_opened_twice():
    async def scenario() -> None:
        route = InProcess()
        await route.open_receiver(lambda _: None)
        with pytest.raises(FailedPrecondition, match="already open"):
            await route.open_receiver(lambda _: None)

    asyncio.run(scenario())


def test_a_message_that_is_too_large_for_a_route_is_refused():
    async def scenario() -> None:
        async def nobody(_: bytes) -> None: ...

        async with InProcess().run(nobody) as inlet:
            with pytest.raises(InvalidArgument, match="a message of 60,001 bytes is too large for in process"):
                await inlet.send(b"x" * 60_001)

    asyncio.run(scenario())


def test_however_workers_may_process_messages_in_different_order():
    async def worker(message: bytes) -> bytes:
        await asyncio.sleep(1 / int(message))
        return message

    disordered = InProcess() | ordered_map(worker, concurrency=10, level="none")
    verdict = verdict_on(disordered, 50)
    assert verdict.guarantee == Guarantee.NO_DUPLICATE | Guarantee.NO_LOSS
    assert disordered.explain().guarantee == verdict.guarantee
