"""What publishing costs with a ``dedup_id``, beside without, and which steps cost it; and how long an awaited publish takes.

    python -m bench.publishing [--messages 50000] [--keys 100] [--rounds 9] [--record]

One program publishes the same messages to a SQLite file and waits for all of them: as usual, and with ids. Both have a turn in
each round, and in each round the other one comes first; ratios are taken within a round, and figures are medians. Time is that
of the processor, too: on a shared machine the clock says little.

In each round, it publishes with ids once more, with a watch in each step that only messages with ids take. A watch reads the
time of the processor once per call, not per message. The rest of the difference is the check of each id when it is published,
garbage collection, and memory: with ids, more of what every step touches has left the processor's cache.

A program that awaits each message before it publishes the next one waits for the timer of its batch, too, unless
``max_milliseconds`` is 0: the median of two hundred such publishes, in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, thread_time
from typing import Any
from unittest import mock
from uuid import UUID

from bench.record import Recorder
from seriatim import Batching, PublishOptions, PubSub
from seriatim.core.publishing.dedup import IdWindow
from seriatim.engine import engine
from seriatim.store.sql.write_operations import SqlTransaction

PAYLOAD = b"." * 100
CLOCK, CPU = "the clock", "the processor"
USUAL, WITH_IDS = "as usual", "with a dedup_id"
DIGEST, LOOK_UP, REMEMBER, WRITE = "digest of key and data", "look up", "remember", "write"
AWAITED = 200
WAITS = {f"awaited, max_milliseconds={delay}": delay for delay in (10, 0)}
STEPS = {
    DIGEST: (engine, "claims_of"),
    LOOK_UP: (IdWindow, "claim"),
    REMEMBER: (IdWindow, "add"),
    WRITE: (SqlTransaction, "finish"),
}


async def publish(messages: int, keys: int, *, with_ids: bool) -> dict[str, float]:
    """The seconds of both clocks."""
    with TemporaryDirectory(prefix="publishing-") as folder:
        async with PubSub(f"sqlite:///{Path(folder) / 'store.db'}") as pubsub:
            topic = await pubsub.topic("events").create()
            names = [f"key-{number}" for number in range(keys)]
            ids = [str(UUID(int=number)) for number in range(messages)]  # in both cases, so that memory is the same
            gc.collect()
            began, spent = perf_counter(), process_time()
            for number, dedup_id in enumerate(ids):
                topic.publish(PAYLOAD, ordering_key=names[number % keys], dedup_id=dedup_id if with_ids else None)
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            await topic.flush()
            return {CLOCK: perf_counter() - began, CPU: process_time() - spent}


async def microseconds_to_wait(max_milliseconds: float) -> float:
    """How long a publish takes that is awaited before the next one."""
    with TemporaryDirectory(prefix="publishing-") as folder:
        async with PubSub(f"sqlite:///{Path(folder) / 'store.db'}") as pubsub:
            topic = await pubsub.topic("events").create()
            topic.set_publish_options(PublishOptions(Batching(max_milliseconds=max_milliseconds)))
            taken = []
            for _ in range(AWAITED):
                began = perf_counter()
                await topic.publish(PAYLOAD, ordering_key="key")
                taken.append((perf_counter() - began) * 1e6)
    return median(taken)


def watch_steps(messages: int, keys: int) -> dict[str, float]:
    """The seconds of the processor of each step."""
    seconds = dict.fromkeys(STEPS, 0.0)

    def watched(step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*arguments: Any) -> Any:
            began = thread_time()
            try:
                return work(*arguments)
            finally:
                seconds[step] += thread_time() - began

        return watch

    with ExitStack() as stack:
        for step, (owner, name) in STEPS.items():
            stack.enter_context(mock.patch.object(owner, name, watched(step, getattr(owner, name))))
        asyncio.run(publish(messages, keys, with_ids=True))
    seconds[WRITE] -= seconds[REMEMBER]  # which is called by it
    return seconds


def measure(given: argparse.Namespace) -> dict[str, list[float]]:
    """The microseconds a message, round by round."""
    names = [f"{name}, {clock}" for clock in (CLOCK, CPU) for name in (USUAL, WITH_IDS)]
    readings: dict[str, list[float]] = {name: [] for name in (*names, *STEPS, *WAITS)}
    order = [USUAL, WITH_IDS]
    for _ in range(given.rounds):
        for name in order:
            took = asyncio.run(publish(given.messages, given.keys, with_ids=name == WITH_IDS))
            for clock, seconds in took.items():
                readings[f"{name}, {clock}"].append(seconds / given.messages * 1e6)
        for step, seconds in watch_steps(given.messages, given.keys).items():
            readings[step].append(seconds / given.messages * 1e6)
        for name, delay in WAITS.items():
            readings[name].append(asyncio.run(microseconds_to_wait(delay)))
        order.append(order.pop(0))
    return readings


def rows_of(readings: dict[str, list[float]]) -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = []

    def add(work: str, microseconds: float, beside: str, goal: str = "") -> None:
        rows.append({"work": work, "µs a message": round(microseconds, 2), "beside": beside, "goal": goal})

    for clock in (CLOCK, CPU):
        usual, with_ids = readings[f"{USUAL}, {clock}"], readings[f"{WITH_IDS}, {clock}"]
        ratio = median(a / b for a, b in zip(usual, with_ids, strict=True))
        add(f"{USUAL}, by {clock}", median(usual), f"{1e6 / median(usual):,.0f} messages a second")
        add(f"{WITH_IDS}, by {clock}", median(with_ids), f"{ratio:.2f} × the rate {USUAL}", "≥ 0.8")
    more = median(a - b for a, b in zip(readings[f"{WITH_IDS}, {CPU}"], readings[f"{USUAL}, {CPU}"], strict=True))
    steps = {step: median(readings[step]) for step in STEPS}
    for step, took in (*steps.items(), ("the rest", more - sum(steps.values()))):
        add(f"ids, by {CPU}: {step}", took, f"{took / more:.0%} of the difference")
    for name in WAITS:
        add(name, median(readings[name]), f"{median(readings[name]) / 1000:.1f} ms")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publishing", description=__doc__)
    for name, default in (("messages", 50_000), ("keys", 100), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--record", action="store_true", help="also write a record for the docs, in docs/benchmarks")
    given = parser.parse_args()
    recorder = Recorder("publishing")
    readings = measure(given)
    rows = rows_of(readings)
    for row in rows:
        print(" · ".join(filter(None, map(str, row.values()))))
    if given.record:
        recorder.write(rows, readings)


if __name__ == "__main__":
    main()
