"""The command line, and what is measured."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, NamedTuple

from bench.ordered_drain import redis_streams
from bench.ordered_drain.workload import Workload, in_turn, uniform, zipf
from bench.record import Cell, Recorder
from bench.report import add_record_option
from bench.wire import __doc__ as about
from bench.wire import official, own, raw, servers, shards
from bench.wire.meter import Reading
from bench.wire.servers import Served

STREAMS = (1, 4)
GOALS = {
    "publish, batches of 100": "≥ 2.5x emulator",
    "deliver and ack, uniform": "≥ 12x emulator, ≥ 1x Redis",
    "deliver and ack, Zipf": "1x the bound",
    "our asyncio client, uniform": "≥ 3x the official client",
    "publish and consume at once, uniform": "≥ 0.8x Redis",
}
Works = dict[str, Callable[[], Reading]]
Work = Callable[[Served], Coroutine[Any, Any, Reading]]


class Loads(NamedTuple):
    even: Workload
    hot: Workload
    few: Workload
    few_hot: Workload
    one_key: Workload

    @classmethod
    def of(cls, messages: int) -> Loads:
        less = messages // 5
        return cls(uniform(messages), zipf(less), uniform(less), zipf(less // 5), in_turn(less // 5, 1))


def our_works(loads: Loads) -> Works:
    return {
        "publish, batches of 100": lambda: _ours(lambda at: raw.publish(at, loads.even)),
        "deliver and ack, uniform": lambda: max(_ours(_drain(loads.even, streams)) for streams in STREAMS),
        "deliver and ack, Zipf": lambda: _ours(_drain(loads.hot)),
        "deliver and ack, Zipf, window 16": lambda: _ours(_drain(loads.hot), 16),
        "official client, uniform": lambda: _official(servers.ours(), loads.few),
        "official client, Zipf, window 16": lambda: _official(servers.ours(16), loads.few_hot),
        "our asyncio client, uniform": lambda: _ours(lambda at: own.drain(at, loads.few)),
        "publish and consume at once, uniform": lambda: _ours(lambda at: raw.publish_and_drain(at, loads.even)),
        "publish and consume at once, two owners": lambda: shards.rate(2, loads.even.messages),
    }


def other_works(loads: Loads) -> dict[str, Works]:
    """Ours once more, in another way."""
    return {
        "the bound": bound_works(loads),
        "the official client": {"our asyncio client, uniform": lambda: _official(servers.ours(), loads.few)},
        "one owner": {"publish and consume at once, two owners": lambda: shards.rate(1, loads.even.messages)},
    }


def bound_works(loads: Loads) -> Works:
    """What strict order allows: the hot key's messages go out one after another, a round trip and a commit for each."""
    return {"deliver and ack, Zipf": lambda: Reading(_round_trips(loads.one_key) / loads.hot.hottest_share)}


def emulator_works(loads: Loads) -> Works:
    """The same names; where ours has a window, the emulator does what it always does."""
    drain_hot = lambda: _emulator(_drain(loads.hot, strict=False))  # noqa: E731
    return {
        "publish, batches of 100": lambda: _emulator(lambda at: raw.publish(at, loads.even)),
        "deliver and ack, uniform": lambda: max(
            _emulator(_drain(loads.even, streams, strict=False)) for streams in STREAMS
        ),
        "deliver and ack, Zipf": drain_hot,
        "deliver and ack, Zipf, window 16": drain_hot,
        "official client, uniform": lambda: _official(servers.emulator(), loads.few),
        "official client, Zipf, window 16": lambda: _official(servers.emulator(), loads.few_hot),
    }


def redis_works(loads: Loads) -> Works:
    return {
        "deliver and ack, uniform": lambda: Reading(redis_streams.drain_rate(loads.even)),
        "publish and consume at once, uniform": lambda: Reading(redis_streams.rate(loads.even)),
    }


def _drain(workload: Workload, streams: int = 1, *, strict: bool = True) -> Work:
    return lambda server: raw.drain(server, workload, streams, strict=strict)


def _round_trips(one_key: Workload) -> float:
    """A second, on one stream: a message of the key is delivered when the ack of the one before is durable."""
    return _ours(_drain(one_key)).rate


def _ours(work: Work, window: int = 1) -> Reading:
    with servers.ours(window) as server:
        return asyncio.run(work(server))


def _emulator(work: Work) -> Reading:
    with servers.emulator() as server:
        return asyncio.run(work(server))


def _official(served: AbstractContextManager[Served], workload: Workload) -> Reading:
    with served as server:
        return official.drain(server, workload)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.wire", description=about)
    parser.add_argument("--messages", type=int, default=40_000, help="for the bare client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few messages, to see that it runs")
    parser.add_argument("--only", default="", help="only rows that contain this")
    add_record_option(parser)
    options = parser.parse_args()
    recorder = Recorder("wire")
    if options.quick:
        options.messages, options.rounds = 2_500, 1
    loads = Loads.of(options.messages)
    peers = other_works(loads)
    for who, missing, works in (
        ("emulator", servers.why_no_emulator(), emulator_works(loads)),
        ("Redis", redis_streams.is_missing(), redis_works(loads)),
    ):
        if missing:
            print(f"{who} is left out: {missing}", file=sys.stderr)
        else:
            peers[who] = works
    rows: list[dict[str, Cell]] = []
    readings: dict[str, list[float]] = {}
    for name, work in our_works(loads).items():
        if options.only in name:
            beside = {peer: works[name] for peer, works in peers.items() if name in works}
            rows.append(_measure(name, work, beside, options.rounds, readings))
    if options.record:
        recorder.write(rows, readings)


def _measure(
    name: str, work: Callable[[], Reading], peers: Works, rounds: int, every_reading: dict[str, list[float]]
) -> dict[str, Cell]:
    """Everybody has a turn in each round. A ratio is taken within a round, between neighbours in time, and then the median."""
    readings: dict[str, list[Reading]] = {who: [] for who in ("ours", *peers)}
    for _ in range(rounds):
        for who, measure in {"ours": work, **peers}.items():
            readings[who].append(measure())
    every_reading |= {f"{name}, {who}": [one.rate for one in theirs] for who, theirs in readings.items()}
    ours = readings.pop("ours")
    beside = [f"{_rate(theirs):,.0f}/s {who} ({_ratio(ours, theirs):.2f}x)" for who, theirs in readings.items()]
    typical = sorted(ours)[len(ours) // 2]
    goal = GOALS.get(name, "")
    print(f"{name:40} {_rate(ours):>9,.0f}/s  {'  '.join(beside)}  {goal}".rstrip())
    print(f"{'':40} processors, busy + waited for: server {typical.server}, client {typical.client}", flush=True)
    return {
        "work": name,
        "rate": f"{_rate(ours):,.0f}/s",
        "beside": ", ".join(beside),
        "goal": goal,
        "server": str(typical.server),
        "client": str(typical.client),
    }


def _rate(readings: list[Reading]) -> float:
    return median(one.rate for one in readings)


def _ratio(ours: list[Reading], theirs: list[Reading]) -> float:
    return median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
