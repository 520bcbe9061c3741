"""A loop with virtual time: it jumps over what nobody does anything in, and never over work in a thread."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.errors import FailedPrecondition
from seriatim.store.memory import MemoryStore
from seriatim.testing import VirtualTimeLoop, run_in_virtual_time

WEEK = 7 * 24 * 3600.0


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_week_of_sleep_takes_a_moment_and_is_exactly_a_week():
    async def main() -> float:
        await asyncio.sleep(WEEK)
        return now()

    begun = time.monotonic()
    assert run_in_virtual_time(main(), start=5.0) == 5.0 + WEEK
    assert time.monotonic() - begun < WEEK / 1000


@pytest.mark.parametrize("start", [0.0, 2.0**24, 1.8e9, 1e12])
def test_timers_are_called_however_late_it_is(start):
    async def main() -> float:
        for seconds in (1.0, 0.1, 200 * 24 * 3600.0, 0.1):
            await asyncio.sleep(seconds)
        return now()

    assert run_in_virtual_time(main(), start) == pytest.approx(start + 200 * 24 * 3600 + 1.2)


def test_timers_are_called_in_order_each_at_its_own_time():
    seen: list[tuple[str, float]] = []

    async def nap(name: str, *naps: float) -> None:
        for seconds in naps:
            await asyncio.sleep(seconds)
            seen.append((name, now()))

    async def main() -> None:
        await asyncio.gather(nap("a", 1, 1, 1), nap("b", 1.5, 1))

    run_in_virtual_time(main())
    assert seen == [("a", 1), ("b", 1.5), ("a", 2), ("b", 2.5), ("a", 3)]


def test_time_stands_still_while_a_thread_is_at_work():
    async def main() -> tuple[float, bool]:
        release = threading.Event()
        timer = asyncio.get_running_loop().call_later(10, release.set)
        call = asyncio.get_running_loop().run_in_executor(None, release.wait, 0.05)
        await call
        at_end = now()
        timer.cancel()
        return at_end, call.result()

    # Had the clock jumped to the timer, the thread would have seen the event.
    assert run_in_virtual_time(main()) == (0, False)


def test_time_stands_still_while_a_commit_is_under_way():
    class SlowStore(MemoryStore):
        def transaction(self):
            time.sleep(0.05)
            return super().transaction()

    async def main() -> None:
        engine = Engine(SlowStore())
        await engine.start()
        await engine.create_topic("t")
        async with asyncio.timeout(0.001):
            await engine.publish("t", [Outgoing("k", b"1")])
        assert now() == 0
        await engine.close()
        assert now() == 0

    run_in_virtual_time(main())


def test_what_would_hang_raises_and_says_why():
    async def main() -> None:
        await asyncio.Event().wait()

    loop = VirtualTimeLoop()
    task = loop.create_task(main())
    with pytest.raises(FailedPrecondition, match="deadlock: every task waits"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_sockets_are_waited_for_when_no_timer_is_set():
    async def main() -> bytes:
        async def answer(reader, writer) -> None:
            writer.write(await reader.readexactly(4))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"ping")
        got = await reader.read()
        writer.close()
        server.close()
        return got

    assert run_in_virtual_time(main()) == b"ping"
