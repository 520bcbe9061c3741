"""What the core costs, and that it does not cost more with more keys or a longer backlog: ``make bench``.

Every figure is the best of several rounds, with the sizes interleaved so that a noisy moment of the machine hits all of them.
Costs are given in microseconds of CPU for one message through the whole cycle, and as a ratio to the smallest size: only the
ratio means anything on another machine. The cycles of the garbage collector are part of the cost.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import process_time

from bench.record import Cell, Recorder
from bench.report import add_record_option
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, RetryPolicy
from seriatim.core.resequencing.options import ResequenceOptions, Start
from seriatim.core.resequencing.pool import ResequencerPool

KEYS = (1_000, 100_000, 1_000_000)
BACKLOG = 1_000_000
CYCLES = 100_000
ROUNDS = 3
BATCH = 100
LEASE_TIME = 10.0
GOAL = 1.3


@dataclass(frozen=True)
class Figure:
    work: str
    size: str
    microseconds: float
    per_second: int
    ratio: float
    readings: tuple[float, ...]
    """Microseconds in each round."""


@dataclass(frozen=True)
class Memory:
    what: str
    bytes_each: float


class LaneCycle:
    """push, take, settle, confirm: one message of each key in turn, while every key holds one message."""

    delivery = Delivery()

    def __init__(self, keys: int, blocked: int = 0) -> None:
        self.names = [f"key-{number}" for number in range(keys)]
        self.lanes = Lanes(self.delivery)
        self.offset = 0
        for _ in range(blocked):
            self.push("blocked")
        if blocked:
            self.lanes.take(0.0, 1e9)
        for name in self.names:
            self.push(name)

    def push(self, key: str) -> None:
        self.lanes.push(key, self.offset, 0.0)
        self.offset += 1

    def run(self, messages: int) -> None:
        lanes, names, count = self.lanes, self.names, len(self.names)
        for _ in range(messages // BATCH):
            for lease in lanes.take(0.0, LEASE_TIME, BATCH):
                for settled in lanes.settle(lease.token):
                    lanes.confirm(settled.offset)
            for _ in range(BATCH):
                self.push(names[self.offset % count])


class LaneTrouble(LaneCycle):
    """push, take, nack with a delay, fall due, take again, settle, confirm."""

    delivery = Delivery(RetryPolicy(min_backoff=1))
    now = 0.0

    def run(self, messages: int) -> None:
        lanes, names, count = self.lanes, self.names, len(self.names)
        for _ in range(messages // BATCH):
            for lease in lanes.take(self.now, LEASE_TIME, BATCH):
                lanes.give_back(lease.token, self.now, error="no")
            self.now += 1
            lanes.advance(self.now)
            for lease in lanes.take(self.now, LEASE_TIME, BATCH):
                for settled in lanes.settle(lease.token):
                    lanes.confirm(settled.offset)
            for _ in range(BATCH):
                self.push(names[self.offset % count])


class InOrder:
    """push of the expected message, key by key."""

    def __init__(self, keys: int, blocked: int = 0) -> None:
        self.names = [f"key-{number}" for number in range(keys)]
        self.order: ResequencerPool[int] = ResequencerPool(
            ResequenceOptions(start=Start.at(0), gap_timeout=5.0, capacity=2 * BACKLOG)
        )
        for sequence in range(blocked):
            self.order.push("blocked", sequence + 1, sequence, 0.0)
        for name in self.names:
            self.order.push(name, 0, 0, 0.0)
        self.sequences = dict.fromkeys(self.names, 0)
        self.at = 0

    def next_key(self) -> str:
        self.at = self.at + 1 if self.at + 1 < len(self.names) else 0
        return self.names[self.at]

    def run(self, messages: int) -> None:
        for _ in range(messages):
            key = self.next_key()
            self.sequences[key] += 1
            self.order.push(key, self.sequences[key], 0, 0.0)


class Disordered(InOrder):
    """Pairs swapped, and every tenth message lost and given up at its deadline."""

    def __init__(self, keys: int, blocked: int = 0) -> None:
        super().__init__(keys)
        self.now = 0.0
        for sequence in range(blocked):
            self.order.push("blocked", sequence + 1, sequence, 1e12)

    def run(self, messages: int) -> None:
        for number in range(messages // 2):
            key, order = self.next_key(), self.order
            sequence = self.sequences[key]
            self.sequences[key] = sequence + 2
            self.now += 0.001
            order.push(key, sequence + 2, 0, self.now)
            if number % 5:
                order.push(key, sequence + 1, 0, self.now)
            order.advance(self.now)


Work = type[LaneCycle] | type[InOrder]
WORKS: dict[str, Work] = {
    "lanes: push, take, settle, confirm": LaneCycle,
    "lanes: the same with one nack, backoff and redelivery": LaneTrouble,
    "resequencers: in order": InOrder,
    "resequencers: half swapped, a tenth lost": Disordered,
}


def measure(work: str, sizes: dict[str, Callable[[], LaneCycle | InOrder]], cycles: int, rounds: int) -> list[Figure]:
    machines = {size: make() for size, make in sizes.items()}
    readings: dict[str, list[float]] = {size: [] for size in machines}
    gc.collect()
    gc.freeze()  # what was built up front is not what a cycle costs
    for _ in range(rounds):
        for size, machine in machines.items():
            begin = process_time()
            machine.run(cycles)
            readings[size].append((process_time() - begin) / cycles * 1e6)
    gc.unfreeze()
    best = {size: min(values) for size, values in readings.items()}
    smallest = next(iter(best.values()))
    return [
        Figure(work, size, each, round(1e6 / each), each / smallest, tuple(readings[size]))
        for size, each in best.items()
    ]


def sizes_of(work: Work, keys: tuple[int, ...], backlog: int) -> dict[str, Callable[[], LaneCycle | InOrder]]:
    sizes: dict[str, Callable[[], LaneCycle | InOrder]] = {
        f"{count:,} keys": (lambda count=count: work(count)) for count in keys
    }
    sizes[f"{keys[0]:,} keys, {backlog:,} behind one blocked key"] = lambda: work(keys[0], backlog)
    return sizes


def allocated(build: Callable[[], object]) -> tuple[int, object]:
    gc.collect()
    tracemalloc.start()
    built = build()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size, built


def memory(keys: int, backlog: int) -> list[Memory]:
    names = [f"key-{number}" for number in range(keys)]

    def lanes(count: int) -> Lanes:
        built = Lanes()
        for offset in range(count):
            built.push(names[offset], offset, 0.0)
        return built

    def blocked(count: int) -> Lanes:
        built = Lanes()
        for offset in range(count):
            built.push("blocked", offset, 0.0)
        return built

    def flowing(count: int) -> ResequencerPool[None]:
        built: ResequencerPool[None] = ResequencerPool()
        for name in names[:count]:
            built.push(name, 0, None, 0.0)
        return built

    def held(count: int) -> ResequencerPool[None]:
        built: ResequencerPool[None] = ResequencerPool(ResequenceOptions(start=Start.at(0), capacity=count))
        for sequence in range(count):
            built.push("blocked", sequence + 1, None, 0.0)
        return built

    return [
        Memory(f"a lane with one message ({keys:,})", allocated(lambda: lanes(keys))[0] / keys),
        Memory(f"a message behind a blocked lane ({backlog:,})", allocated(lambda: blocked(backlog))[0] / backlog),
        Memory(f"a key that flows through a resequencer ({keys:,})", allocated(lambda: flowing(keys))[0] / keys),
        Memory(f"a message held behind one gap ({backlog:,})", allocated(lambda: held(backlog))[0] / backlog),
    ]


def recorded(figures: list[Figure], memories: list[Memory]) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = [
        {"work": one.work, "size": one.size, "µs": one.microseconds, "per second": one.per_second, "ratio": one.ratio}
        for one in figures
    ]
    empty = {"µs": "", "per second": "", "ratio": ""}
    return rows + [{"work": one.what, "size": f"{one.bytes_each:.1f} bytes each", **empty} for one in memories]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_record_option(parser)
    arguments = parser.parse_args()
    recorder = Recorder("core")
    keys, backlog, cycles, rounds = (KEYS, BACKLOG, CYCLES, ROUNDS)
    if arguments.quick:
        keys, backlog, cycles, rounds = (BATCH, 2 * BATCH, 1_000), 1_000, 1_000, 1
    figures: list[Figure] = []
    for work, kind in WORKS.items():
        print(f"measuring {work} ...", file=sys.stderr)
        figures += measure(work, sizes_of(kind, keys, backlog), cycles, rounds)
    memories = memory(keys[1], backlog)
    if arguments.record:
        recorder.write(recorded(figures, memories), {f"{one.work}, {one.size}": one.readings for one in figures})
    if arguments.json:
        print(json.dumps({"figures": [asdict(f) for f in figures], "memory": [asdict(m) for m in memories]}, indent=1))
        return
    for figure in figures:
        verdict = "" if figure.ratio < GOAL else f"  above the goal of {GOAL}"
        print(
            f"{figure.work:55} {figure.size:45} {figure.microseconds:7.2f} µs {figure.per_second:>9,}/s "
            f"{figure.ratio:5.2f}x{verdict}"
        )
    for entry in memories:
        print(f"{entry.what:70} {entry.bytes_each:7.1f} bytes each")


if __name__ == "__main__":
    main()
