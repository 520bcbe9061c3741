"""Ends that survive a crash: an outbox before the sender, a topic behind the receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from seriatim.core.guarantees import Guarantee, Level
from seriatim.core.pipes.protocol import DeliveredRun
from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.engine import Engine
from seriatim.errors import DamagedStore, FailedPrecondition, InvalidArgument, OutcomeUnknown, StoreFailed
from seriatim.pipes import (
    ClockEpochs,
    FileEpochs,
    InProcess,
    Outbox,
    Pipe,
    StoreEpochs,
    TopicOutput,
    TopicRoute,
    resend,
)
from seriatim.store import open_store
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import WatchedStore
from tests.pipes.chains import bad_route, pass_through


@asynccontextmanager
async def broker(store=None):
    engine = Engine(store or open_store("memory://"))
    await engine.start()
    try:
        yield cast(Broker, engine)
    finally:
        await engine.close()


def run(scenario: Callable[[Broker], Awaitable[None]], store=None) -> None:
    async def bounded() -> None:
        async with broker(store) as opened:
            await scenario(opened)

    run_in_virtual_time(bounded())


async def written(engine: Broker, topic: str = "out") -> list[int]:
    log = cast(Engine, engine)
    records = await log.load(lambda store: store.read(log.get_topic(topic).id, 0, 10_000))
    return [int(record.data) for record in records]


def durable_pipe(engine: Broker, *routes, **choices) -> Pipe:
    return Pipe(*routes, outbox=Outbox(engine, "outbox"), output=TopicOutput(engine, "out", key="k"), **choices)


def test_an_outbox_and_a_topic_make_a_pipe_absolute_across_crashes():
    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, bad_route())
        assert pipe.explain(crashes=True).level is Level.ABSOLUTE
        assert Pipe(bad_route(), outbox=Outbox(engine, "o")).explain(crashes=True).guarantee == Guarantee.NO_LOSS
        assert Pipe(bad_route(), output=TopicOutput(engine, "o")).explain(crashes=True).level is Level.STRICT

    run(scenario)


def test_what_is_sent_goes_through_the_outbox_into_the_topic():
    async def scenario(engine: Broker) -> None:
        seen: list[int] = []

        async def told(message: bytes) -> None:
            seen.append(int(message))

        async with durable_pipe(engine, bad_route()).run(told, require=Level.ABSOLUTE, crashes=True) as inlet:
            await asyncio.gather(*(inlet.send(b"%d" % number) for number in range(200)))
        assert await written(engine) == seen == list(range(200))
        await engine.wait_until_empty("pipe-pipe")

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_either_end_may_crash_and_restart_any_number_of_times(seed):
    """A crash is an end that is dropped without a word: its leases come back, its memory is gone."""

    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, bad_route(seed, drop=0.1), window=16, queue=32, timeout=0.05)
        sent = 0
        for life in range(8):
            async with pipe.receiving(), pipe.sending() as out:
                for _ in range(25):
                    await out.send(b"%d" % sent)
                    sent += 1
                await asyncio.sleep(0.01 * life)
        async with pipe.receiving(), pipe.sending() as out:
            await out.drain()
        assert await written(engine) == list(range(sent))

    run(scenario)


def test_a_sender_goes_on_with_what_waits_in_its_outbox():
    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, InProcess())
        async with pipe.sending() as out:  # nobody receives
            for number in range(10):
                await out.send(b"%d" % number)
        async with pipe.sending() as out, pipe.receiving():
            await out.send(b"10")
            await out.drain()
        assert await written(engine) == list(range(11))

    run(scenario)


def test_a_drained_outbox_remembers_how_far_it_was():
    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, InProcess())
        for number in range(3):
            async with pipe.receiving(), pipe.sending() as out:
                await out.send(b"%d" % number)
                await out.drain()
        assert await written(engine) == [0, 1, 2]

    run(scenario)


def test_what_a_restarted_receiver_gets_again_is_not_reported_as_given_up(caplog):
    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, InProcess())
        async with pipe.sending() as out:
            for number in range(10):
                await out.send(b"%d" % number)
        writer = await TopicOutput(engine, "out", key="k").begin("pipe", None)
        await writer.take(DeliveredRun(0, tuple(b"%d" % number for number in range(5))), lambda _: None)
        async with pipe.receiving(), pipe.sending() as out:  # of the first five the sender has not heard
            await out.drain()
        assert await written(engine) == list(range(10))

    run(scenario)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_receiver_that_was_overtaken_by_another_writes_nothing():
    async def scenario(engine: Broker) -> None:
        output = TopicOutput(engine, "out")
        first, second = await output.begin("p", None), await output.begin("p", None)
        await second.take(DeliveredRun(0, (b"0",)), lambda _: None)
        with pytest.raises(FailedPrecondition, match="another program writes under this name"):
            await first.take(DeliveredRun(0, (b"0", b"1")), lambda _: None)
        assert await written(engine) == [0]

    run(scenario)


def test_a_write_with_unknown_outcome_is_looked_up_and_not_repeated():
    class Forgetful:
        """A broker that writes, and then does not know it."""

        def __init__(self, engine: Broker, loses: bool) -> None:
            self._engine, self._loses, self.position_of = engine, loses, engine.position_of
            self.asked = 0

        async def publish_once(self, *arguments) -> Sequence[str]:
            self.asked += 1
            if self.asked == 1 and self._loses:
                raise OutcomeUnknown("the disk was pulled out")
            result = await self._engine.publish_once(*arguments)
            if self.asked == 1:
                raise OutcomeUnknown("the answer was lost")
            return result

    async def scenario(engine: Broker) -> None:
        from seriatim.pipes.durable import _write

        await engine.create_topic("out")
        for number, loses in enumerate([False, True]):
            forgetful = Forgetful(engine, loses)
            message = [Outgoing(None, b"%d" % number)]
            await _write(cast(Broker, forgetful), "out", "w", number, number + 1, message)
            assert forgetful.asked == 1 + loses
        assert await written(engine) == [0, 1]

    run(scenario)


def test_a_message_that_could_not_be_written_to_the_outbox_was_not_taken_in_and_leaves_no_hole():
    store = WatchedStore()

    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, InProcess())
        async with pipe.receiving(), pipe.sending() as out:
            await out.send(b"0")
            await out.drain()
            await asyncio.sleep(1)
            store.failures.append(StoreFailed("no"))
            with pytest.raises(StoreFailed):
                await out.send(b"lost")
            await out.send(b"1")
            await out.drain()
        assert await written(engine) == [0, 1]

    run(scenario, store)


def test_a_hole_in_the_outbox_is_noticed_and_said():
    async def scenario(engine: Broker) -> None:
        pipe = durable_pipe(engine, InProcess())
        async with pipe.sending() as out:
            for number in range(3):
                await out.send(b"%d" % number)
        await engine.remove("pipe-pipe", "1")
        async with pipe.receiving(), pipe.sending() as out:
            with pytest.raises(FailedPrecondition, match="message 1 of pipe 'pipe' is missing from its outbox"):
                await out.drain()

    run(scenario)


def test_an_end_whose_epoch_does_not_rise_is_not_listened_to_and_that_is_logged(caplog):
    class Stuck:
        def __init__(self, epoch: int) -> None:
            self.epoch = epoch

        async def next(self) -> int:
            return self.epoch

    async def scenario() -> list[bytes]:
        route, got = InProcess(), list[bytes]()

        async def deliver(message: bytes) -> None:
            got.append(message)

        async with Pipe(route).receiving(deliver):
            for epoch, message in ((7, b"first"), (6, b"second")):
                async with Pipe(route, sender_epochs=Stuck(epoch)).sending() as out:
                    await out.send(message)
                    await asyncio.sleep(10)
        return got

    assert run_in_virtual_time(scenario()) == [b"first"]
    assert "a pipe received a frame from an earlier session of its sender" in caplog.text


def test_a_resend_pipe_has_no_place_that_a_topic_could_keep():
    async def scenario(engine: Broker) -> None:
        with pytest.raises(InvalidArgument, match="put an indexed pipe around it"):
            resend(InProcess(), output=TopicOutput(engine, "out"))
        pipe = durable_pipe(engine, InProcess())
        with pytest.raises(InvalidArgument, match="leave out deliver"):
            async with pipe.receiving(lambda _: asyncio.sleep(0)):
                pass

    run(scenario)


# --- topics as routes -------------------------------------------------------------------------------------------------


def test_a_topic_as_a_bare_route_is_continuous():
    async def scenario(engine: Broker) -> None:
        route = TopicRoute(engine, "t")
        assert route.explain().level is route.explain(crashes=True).level is Level.CONTINUOUS
        assert TopicRoute(engine, "t", enable_message_ordering=False).explain().guarantee == Guarantee.NO_LOSS
        assert await pass_through(route, 100) == list(range(1, 101))

    run(scenario)


def test_a_message_of_a_topic_route_that_was_not_taken_comes_again_in_its_place():
    async def scenario(engine: Broker) -> None:
        received: list[int] = []

        async def crashes_at_three(message: bytes) -> None:
            received.append(int(message))
            if message == b"3" and received.count(3) == 1:
                await asyncio.Event().wait()

        route = TopicRoute(engine, "t")
        inlet = await route.open(crashes_at_three)
        for number in range(1, 6):
            await inlet.send(b"%d" % number)
        await asyncio.sleep(1)
        await inlet.close()
        inlet = await route.open(crashes_at_three)
        await inlet.drain()
        await inlet.close()
        assert received == [1, 2, 3, 3, 4, 5]

    run(scenario)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_pipe_over_a_topic(ordered):
    async def scenario(engine: Broker) -> None:
        pipe = Pipe(TopicRoute(engine, "t", enable_message_ordering=ordered), frame_messages=5)
        assert await pass_through(pipe, 200) == list(range(1, 201))

    run(scenario)


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_the_epoch_of_a_file_is_higher_after_every_restart(tmp_path):
    path = tmp_path / "epoch"
    assert [asyncio.run(FileEpochs(path).next()) for _ in range(3)] == [1, 2, 3]
    assert [found.name for found in tmp_path.iterdir()] == ["epoch"]
    path.write_text("not a number")
    with pytest.raises(DamagedStore, match="contains no epoch"):
        asyncio.run(FileEpochs(path).next())


def test_the_epoch_of_a_store_is_higher_after_every_restart_and_never_given_twice():
    async def scenario(engine: Broker) -> None:
        await engine.create_topic("t")
        epochs = await asyncio.gather(*(StoreEpochs(engine, "t", "end").next() for _ in range(10)))
        assert sorted(epochs) == list(range(1, 11))
        assert await StoreEpochs(engine, "t", "other end").next() == 1

    run(scenario)


def test_the_clock_gives_a_higher_epoch_each_time():
    async def scenario() -> list[int]:
        return [await ClockEpochs().next() for _ in range(2)]

    first, second = asyncio.run(scenario())
    assert second >= first > 1 << 50
