"""The world itself: processes that are stopped, continued and killed, disks that fail, programs that are shrunk."""

from __future__ import annotations

import asyncio
from contextvars import Context

import pytest

from seriatim.errors import OutcomeUnknown, StoreBroken, StoreOwned
from tests.simulation import shrink as shrink_module
from tests.simulation.disk import Disk
from tests.simulation.loop import Process, SimulatedLoop, Stuck
from tests.simulation.network import Network
from tests.simulation.run import Result, draw
from tests.simulation.shrink import replay_command, shrink


def in_world(scenario) -> None:
    loop = SimulatedLoop(lambda: 0.0)
    try:
        loop.run_until_complete(loop.create_task(scenario(loop), context=Context()))
    finally:
        loop.close()


def test_a_stopped_process_does_nothing_and_goes_on_where_it_was() -> None:
    seen: list[float] = []

    async def count(loop: SimulatedLoop) -> None:
        for _ in range(5):
            await asyncio.sleep(1)
            seen.append(loop.now)

    async def scenario(loop: SimulatedLoop) -> None:
        process = Process(loop, "a")
        counting = process.run(count(loop))
        await asyncio.sleep(2.5)
        process.stop()
        await asyncio.sleep(10)
        process.go_on()
        await counting

    in_world(scenario)
    assert seen == [1, 2, 12.5, 13.5, 14.5]


def test_a_killed_process_never_runs_again_not_even_to_clean_up() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("cleaned up")

    async def scenario(loop: SimulatedLoop) -> None:
        process = Process(loop, "a")
        task = process.run(work())
        await asyncio.sleep(0.5)
        process.die()
        task.cancel()
        await asyncio.sleep(10)
        assert seen == []
        process.forget()

    in_world(scenario)


def test_waiting_for_what_can_never_happen_is_noticed() -> None:
    async def scenario(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        in_world(scenario)


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def test_a_stopped_process_reads_all_at_once_what_came_meanwhile_and_hears_of_a_cut() -> None:
    async def serve(network: Network, path, protocol: Recorder) -> None:
        end, _ = await network.listen(path).accept()
        await end.connect_to(protocol)

    async def call(network: Network, path) -> None:
        end, _ = await network.connect(path).connect_to(Recorder())
        for word in (b"one", b"two", b"three"):
            end.write(word)
            await asyncio.sleep(0.1)

    async def scenario(loop: SimulatedLoop) -> None:
        network, heard = Network(loop, lambda: 0.01, high=1e9), Recorder()
        owner, other = Process(loop, "a"), Process(loop, "b")
        serving = owner.run(serve(network, "path", heard))
        await asyncio.sleep(0)
        calling = other.run(call(network, "path"))
        await serving
        await asyncio.sleep(0.05)
        owner.stop()
        await calling
        assert heard.got == [b"one"]
        owner.go_on()
        await asyncio.sleep(0.05)
        assert heard.got == [b"one", b"twothree"]
        network.links[0].cut((0.0, 5.0))
        await asyncio.sleep(4)
        assert heard.lost == []
        await asyncio.sleep(2)
        assert len(heard.lost) == 1

    in_world(scenario)


@pytest.mark.parametrize(("fault", "is_there"), [("unknown, written", True), ("unknown, not written", False)])
def test_a_commit_of_unknown_outcome_is_on_the_disk_or_not_and_its_handle_is_broken(fault: str, is_there: bool) -> None:
    async def work(disk: Disk) -> None:
        store = disk.open()
        with pytest.raises(StoreOwned):
            disk.open()
        disk.faults.append(fault)
        with pytest.raises(OutcomeUnknown), store.transaction() as transaction:
            transaction.create_topic("t", {})
        with pytest.raises(StoreBroken):
            store.catalog()
        store.close()
        assert [row.name for row in disk.open().catalog().topics] == (["t"] if is_there else [])

    async def scenario(loop: SimulatedLoop) -> None:
        await Process(loop, "a").run(work(Disk()))

    in_world(scenario)


def test_a_program_is_shrunk_to_the_steps_and_cancellations_that_matter(monkeypatch) -> None:
    program = draw(3)
    cancelled = [step.number for step in program.steps if step.cancel is not None]
    guilty = {2, program.steps[-1].number, cancelled[0]}

    def run(candidate) -> Result:
        has_all = guilty <= {step.number for step in candidate.steps}
        is_cancelled = any(step.number == cancelled[0] and step.cancel for step in candidate.steps)
        return Result("", ["planted: it"] if has_all and is_cancelled else [], {}, 0.0, [])  # type: ignore[arg-type]

    monkeypatch.setattr(shrink_module, "run", run)
    short = shrink(program, "planted")
    assert {step.number for step in short.steps} == guilty
    assert "--seed 3 --keep " in replay_command(short, program)
