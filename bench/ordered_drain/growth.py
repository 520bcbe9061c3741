"""What must not grow: the cost of a message behind a blocked backlog, its memory, and the time to open a store again.

That the number of keys does not matter is measured with the drain itself (``in_turn``: every message meets another key).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from bench.ordered_drain.embedded import DURABLE, consume, opened, outgoing
from bench.ordered_drain.workload import Workload, uniform
from seriatim.engine import topic as topic_module
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine

BLOCKED = "blocked"
AT_ONCE = 50


class Behind(NamedTuple):
    """Messages per second of the other keys, and the memory of one message that waits."""

    rate: float
    bytes_each: float


def behind_one_blocked(messages: int, blocked: int) -> Behind:
    """Drain a thousand keys while one key holds a lease, and so many messages behind it."""

    async def run(url: str) -> Behind:
        async with opened(url, DURABLE) as engine:
            await _block(engine)
            waiting = await _memory_of(engine, Workload(BLOCKED, [BLOCKED] * blocked))
            seconds, _ = await consume(engine, uniform(messages))
            return Behind(messages / seconds, waiting / max(blocked, 1))

    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        return asyncio.run(run(f"sqlite:///{Path(folder) / 'store.db'}"))


async def _memory_of(engine: Engine, workload: Workload) -> int:
    """Queue messages: the bytes by which the program grows. Payloads are kept up to a bound, and are not what grows."""
    cached, topic_module.CACHED_BYTES = topic_module.CACHED_BYTES, 0
    before = _resident()
    await fill(engine, workload)
    topic_module.CACHED_BYTES = cached
    return _resident() - before


def seconds_to_reopen(messages: int) -> float:
    """Queue messages, close the store, and open it: the seconds until the first message is delivered."""

    async def queue(url: str) -> None:
        async with opened(url, DURABLE) as engine:
            await fill(engine, uniform(messages))

    async def reopen(url: str) -> float:
        begin, delivered = perf_counter(), asyncio.Event()
        engine = await Engine.open(url)
        engine.get_subscription("worker").attach(Consumer(lambda _: delivered.set(), max_messages=1))
        await delivered.wait()
        seconds = perf_counter() - begin
        await engine.close()
        return seconds

    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        asyncio.run(queue(url))
        gc.collect()
        return asyncio.run(reopen(url))


async def fill(engine: Engine, workload: Workload) -> None:
    """Publish everything, and let nobody consume it."""
    batches = workload.batches()
    for start in range(0, len(batches), AT_ONCE):
        await asyncio.gather(*(engine.publish("events", outgoing(batch)) for batch in batches[start : start + AT_ONCE]))


async def _block(engine: Engine) -> None:
    """Let somebody take a message of one key and keep it."""
    taken = asyncio.Event()

    def keep(_: Sequence[Delivered]) -> None:
        taken.set()

    engine.get_subscription("worker").attach(Consumer(keep, max_messages=1))
    await fill(engine, Workload(BLOCKED, [BLOCKED]))
    await taken.wait()


def _resident() -> int:
    """The memory of this process, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
