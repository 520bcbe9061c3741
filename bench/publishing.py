"""What publishing costs besides: with a ``dedup_id``, beside without.

    python -m bench.publishing [--messages 50000] [--keys 100] [--rounds 9] [--record]

One program publishes the same messages to a SQLite file and waits for all of them: as usual, and with ids. Both have a turn in
each round, and in each round the other one comes first; ratios are taken within a round, and figures are medians. Time is that
of the processor, too: on a shared machine the clock says little.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from uuid import UUID

from bench.record import Recorder
from seriatim import PubSub

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


USUAL, WITH_IDS = "as usual", "with a dedup_id"
VARIANTS = {USUAL: False, WITH_IDS: True}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publishing", description=__doc__)
    for name, default in (("messages", 50_000), ("keys", 100), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--record", action="store_true", help="write what was found to docs/benchmarks")
    given = parser.parse_args()
    recorder = Recorder("publishing")
    readings: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in VARIANTS} for clock in ("clock", "CPU")}
    order = list(VARIANTS)
    for _ in range(given.rounds):
        for name in order:
            found = asyncio.run(publish(given.messages, given.keys, with_ids=VARIANTS[name]))
            for clock, rate in zip(readings, found, strict=True):
                readings[clock][name].append(rate)
        order.append(order.pop(0))
    rows = []
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
    for row in rows:
        print(" · ".join(filter(None, map(str, row.values()))))
    if given.record:
        recorder.write(
            rows, {f"{name}, {clock}": rates for clock, by in readings.items() for name, rates in by.items()}
        )


if __name__ == "__main__":
    main()
