"""Latency at half load: from the moment at which a message was meant to be sent until it is delivered.

The load is open: messages are due at fixed times, whether or not the ones before have come through, and a message that is sent
late because the program was busy is late all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from bench.ordered_drain.embedded import DURABLE, opened, outgoing
from bench.ordered_drain.workload import Workload
from seriatim.engine.consumer import Consumer, Delivered

TICK = 0.001
WARM_UP = 0.2
"""The first part of all messages is not counted: files grow and caches fill."""


class Latency(NamedTuple):
    """In seconds."""

    median: float
    p99: float
    p999: float
    worst: float


def at_rate(workload: Workload, per_second: float) -> Latency:
    """Publish at a fixed rate, in whatever is due at each tick of a millisecond."""
    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        waits = asyncio.run(_run(f"sqlite:///{Path(folder) / 'store.db'}", workload, per_second))
    counted = sorted(waits[int(len(waits) * WARM_UP) :])
    return Latency(*(counted[min(int(len(counted) * share), len(counted) - 1)] for share in (0.5, 0.99, 0.999, 1)))


async def _run(url: str, workload: Workload, per_second: float) -> list[float]:
    """How long each message took, in the order of publishing."""
    waits = [0.0] * workload.messages
    missing, done = workload.messages, asyncio.Event()
    async with opened(url, DURABLE) as engine:
        subscription = engine.get_subscription("worker")

        def deliver(delivered: Sequence[Delivered]) -> None:
            nonlocal missing
            now = perf_counter() - begin
            for lease, record in delivered:
                number = int(record.data[:10])
                waits[number] = now - number / per_second
                subscription.outcomes.ack(lease)
            missing -= len(delivered)
            if not missing:
                done.set()

        subscription.deliveries.attach(Consumer(deliver))
        messages = [message for batch in workload.batches() for message in batch]
        sent, begin = 0, perf_counter()
        while sent < len(messages):
            due = min(int((perf_counter() - begin) * per_second) + 1, len(messages))
            if due > sent:
                engine.publish("events", outgoing(messages[sent:due]))
                sent = due
            await asyncio.sleep(TICK)
        await done.wait()
    return waits
