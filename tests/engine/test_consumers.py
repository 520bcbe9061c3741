"""A consumer that fails holds up nobody else."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from seriatim.engine.consumer import Consumer
from seriatim.engine.engine import Engine
from seriatim.errors import OutcomeUnknown
from seriatim.store import open_store
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
        engine.failed(OutcomeUnknown("the disk is gone"))
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
