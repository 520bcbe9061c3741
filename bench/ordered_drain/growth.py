"""What must not grow: the cost of a message behind a blocked backlog, its memory, and the time to open a store again.

That the number of keys does not matter is measured with the drain itself (``in_turn``: every message meets another key).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.ordered_drain.embedded import DURABLE, consume, opened, outgoing
from bench.ordered_drain.workload import PAYLOAD, Workload, uniform
from seriatim.engine import topic as topic_module
from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine

BLOCKED = "blocked"
AT_ONCE = 50


def rate_beside_blocked(messages: int, blocked: int) -> float:
    """Messages per second of a thousand keys while another key holds a lease, with ``blocked`` messages behind it."""

    async def run(url: str) -> float:
        async with opened(url, DURABLE) as engine:
            await _block(engine)
            await fill(engine, Workload(BLOCKED, [BLOCKED] * blocked))
            seconds, _ = await consume(engine, uniform(messages))
            return messages / seconds

    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        return asyncio.run(run(f"sqlite:///{Path(folder) / 'store.db'}"))


def bytes_per_key(keys: int) -> float:
    """The memory of a key with one message that waits."""
    return _in_new_process(keys, "key-{}")


def bytes_behind_blocked(messages: int) -> float:
    """The memory of a message that waits behind others of its key."""
    return _in_new_process(messages, BLOCKED)


def _in_new_process(messages: int, key: str) -> float:
    """What was freed before would be used again, and not be counted."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_bytes_each, messages, key).result()


def _bytes_each(messages: int, key: str) -> float:
    """Queue messages: the bytes by which the process grows. Messages are made when they are published, so that nothing but
    what the engine keeps is counted. Payloads are kept up to a bound, and are not what grows."""

    async def run(url: str) -> float:
        async with opened(url, DURABLE) as engine:
            await _publish(engine, key, range(1_000))  # what is needed once
            before = _resident()
            await _publish(engine, key, range(1_000, 1_000 + messages))
            return (_resident() - before) / messages

    topic_module.CACHED_BYTES = 0
    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        return asyncio.run(run(f"sqlite:///{Path(folder) / 'store.db'}"))


async def _publish(engine: Engine, key: str, numbers: range) -> None:
    for start in range(numbers.start, numbers.stop, 1_000):
        part = range(start, min(start + 1_000, numbers.stop))
        await engine.publish("events", [Outgoing(key.format(number), b"." * PAYLOAD) for number in part])


def seconds_to_reopen(messages: int) -> float:
    """Queue messages, close the store, and open it: the seconds until the first message is delivered."""

    async def queue(url: str) -> None:
        async with opened(url, DURABLE) as engine:
            await fill(engine, uniform(messages))

    async def reopen(url: str) -> float:
        begin, delivered = perf_counter(), asyncio.Event()
        engine = await Engine.open(url)
        engine.get_subscription("worker").deliveries.attach(Consumer(lambda _: delivered.set(), max_messages=1))
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

    engine.get_subscription("worker").deliveries.attach(Consumer(keep, max_messages=1))
    await fill(engine, Workload(BLOCKED, [BLOCKED]))
    await taken.wait()


def _resident() -> int:
    """The memory of this process, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
