"""What publishing costs besides: with a ``dedup_id``, beside without; and how long a publish takes that is waited for.

    python -m bench.publishing [--messages 50000] [--keys 100] [--rounds 9] [--record]

One program publishes the same messages to a SQLite file and waits for all of them: as usual, and with ids. Both have a turn in
each round, and in each round the other one comes first; ratios are taken within a round, and figures are medians. Time is that
of the processor, too: on a shared machine the clock says little.

A program that waits for each message before it publishes the next one waits for the timer of its batch, too, unless
``max_milliseconds`` is 0: the median of two hundred such publishes, in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from uuid import UUID

from bench.record import Cell, Recorder
from seriatim import Batching, PublishOptions, PubSub

PAYLOAD = b"." * 100


async def publish(messages: int, keys: int, *, with_ids: bool = False) -> tuple[float, float]:
    """Messages per second, by the clock and by the time of the processor."""
    with TemporaryDirectory(prefix="publishing-") as folder:
        async with PubSub(f"sqlite:///{Path(folder) / 'store.db'}") as pubsub:
            topic = await pubsub.topic("events").create()
            names = [f"key-{number}" for number in range(keys)]
            ids = [str(UUID(int=number)) if with_ids else None for number in range(messages)]
            gc.collect()
            began, spent = perf_counter(), process_time()
            for number, dedup_id in enumerate(ids):
                topic.publish(PAYLOAD, ordering_key=names[number % keys], dedup_id=dedup_id)
                if number % 1000 == 0:
                    await asyncio.sleep(0)
            await topic.flush()
            return messages / (perf_counter() - began), messages / (process_time() - spent)


AWAITED = 200


async def milliseconds_to_wait(max_milliseconds: float) -> float:
    """How long a publish takes that is waited for before the next one."""
    with TemporaryDirectory(prefix="publishing-") as folder:
        async with PubSub(f"sqlite:///{Path(folder) / 'store.db'}") as pubsub:
            topic = await pubsub.topic("events").create()
            topic.set_publish_options(PublishOptions(Batching(max_milliseconds=max_milliseconds)))
            taken = []
            for _ in range(AWAITED):
                began = perf_counter()
                await topic.publish(PAYLOAD, ordering_key="key")
                taken.append((perf_counter() - began) * 1000)
    return median(taken)


USUAL, WITH_IDS = "as usual", "with a dedup_id"
VARIANTS = {USUAL: False, WITH_IDS: True}


def rows_of(
    readings: Mapping[str, Mapping[str, list[float]]], waits: Mapping[float, list[float]]
) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for clock, found_by in readings.items():
        for name, goal in ((USUAL, ""), (WITH_IDS, "≥ 0.8")):
            ratio = median(a / b for a, b in zip(found_by[name], found_by[USUAL], strict=True))
            rows.append(
                {
                    "work": f"{name}, messages a second of the {clock}",
                    "rate": round(median(found_by[name])),
                    "beside": f"{ratio:.2f} × {USUAL}",
                    "goal": goal,
                }
            )
    for delay, taken in waits.items():
        work = f"a publish that is waited for, max_milliseconds={delay:.0f}"
        rows.append({"work": work, "rate": f"{median(taken):.2f} ms", "beside": "", "goal": ""})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publishing", description=__doc__)
    for name, default in (("messages", 50_000), ("keys", 100), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--record", action="store_true", help="write what was found to docs/benchmarks")
    given = parser.parse_args()
    recorder = Recorder("publishing")
    readings: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in VARIANTS} for clock in ("clock", "CPU")}
    waits: dict[float, list[float]] = {10.0: [], 0.0: []}
    order = list(VARIANTS)
    for _ in range(given.rounds):
        for name in order:
            found = asyncio.run(publish(given.messages, given.keys, with_ids=VARIANTS[name]))
            for clock, rate in zip(readings, found, strict=True):
                readings[clock][name].append(rate)
        order.append(order.pop(0))
        for delay, taken in waits.items():
            taken.append(asyncio.run(milliseconds_to_wait(delay)))
    rows = rows_of(readings, waits)
    for row in rows:
        print(" · ".join(filter(None, map(str, row.values()))))
    if given.record:
        found = {f"{name}, {clock}": rates for clock, by in readings.items() for name, rates in by.items()}
        found |= {f"milliseconds of a publish, max_milliseconds={delay:.0f}": taken for delay, taken in waits.items()}
        recorder.write(rows, found)


if __name__ == "__main__":
    main()
