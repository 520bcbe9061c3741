"""The command line, and what is measured."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from statistics import median

from bench.ordered_drain import redis_streams
from bench.ordered_drain.workload import Workload, uniform, zipf
from bench.wire import __doc__ as about
from bench.wire import official, raw, servers

STREAMS = (1, 4)
Works = dict[str, Callable[[], float]]


def our_works(even: Workload, hot: Workload, few: Workload, few_hot: Workload) -> Works:
    return {
        "publish, batches of 100": lambda: _ours(lambda at: raw.publish_rate(at, even)),
        "deliver and ack, uniform": lambda: max(
            _ours(lambda at, n=streams: raw.drain_rate(at, even, n, strict=True)) for streams in STREAMS
        ),
        "deliver and ack, Zipf": lambda: _ours(lambda at: raw.drain_rate(at, hot, 1, strict=True)),
        "deliver and ack, Zipf, window 16": lambda: _ours(lambda at: raw.drain_rate(at, hot, 1, strict=True), 16),
        "official client, uniform": lambda: _official(servers.ours(), few),
        "official client, Zipf, window 16": lambda: _official(servers.ours(16), few_hot),
        "publish and consume at once, uniform": lambda: _ours(lambda at: raw.both_rate(at, even)),
    }


def emulator_works(even: Workload, hot: Workload, few: Workload, few_hot: Workload) -> Works:
    """The same names; where ours has a window, the emulator does what it always does."""
    drain_hot = lambda: _emulator(lambda at: raw.drain_rate(at, hot, 1, strict=False))  # noqa: E731
    return {
        "publish, batches of 100": lambda: _emulator(lambda at: raw.publish_rate(at, even)),
        "deliver and ack, uniform": lambda: max(
            _emulator(lambda at, n=streams: raw.drain_rate(at, even, n, strict=False)) for streams in STREAMS
        ),
        "deliver and ack, Zipf": drain_hot,
        "deliver and ack, Zipf, window 16": drain_hot,
        "official client, uniform": lambda: _official(servers.emulator(), few),
        "official client, Zipf, window 16": lambda: _official(servers.emulator(), few_hot),
    }


def _ours(work: Callable[[str], object], window: int = 1) -> float:
    with servers.ours(window) as address:
        return asyncio.run(work(address))  # type: ignore[arg-type, return-value]


def _emulator(work: Callable[[str], object]) -> float:
    with servers.emulator() as address:
        return asyncio.run(work(address))  # type: ignore[arg-type, return-value]


def _official(server: object, workload: Workload) -> float:
    with server as address:  # type: ignore[attr-defined]
        return official.drain_rate(address, workload)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.wire", description=about)
    parser.add_argument("--messages", type=int, default=50_000, help="for the bare client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only rows that contain this")
    options = parser.parse_args()
    sizes = options.messages, options.messages // 5
    loads = uniform(sizes[0]), zipf(sizes[1]), uniform(sizes[1]), zipf(sizes[1] // 5)
    peers = {"emulator": emulator_works(*loads), "Redis": {}}
    if missing := servers.why_no_emulator():
        print(f"the emulator is left out: {missing}", file=sys.stderr)
        peers["emulator"] = {}
    if missing := redis_streams.is_missing():
        print(f"Redis is left out: {missing}", file=sys.stderr)
    else:
        peers["Redis"] = {"publish and consume at once, uniform": lambda: redis_streams.rate(loads[0])}
    for name, work in our_works(*loads).items():
        if options.only in name:
            _measure(name, work, {peer: works[name] for peer, works in peers.items() if name in works}, options.rounds)


def _measure(name: str, work: Callable[[], float], peers: Works, rounds: int) -> None:
    """Everybody has a turn in each round. A ratio is taken within a round, between neighbours in time, and then the median."""
    rates: dict[str, list[float]] = {who: [] for who in ("ours", *peers)}
    for _ in range(rounds):
        for who, measure in {"ours": work, **peers}.items():
            rates[who].append(measure())
    beside = [
        f"{median(theirs):,.0f}/s {who} ({median(a / b for a, b in zip(rates['ours'], theirs, strict=True)):.1f}x)"
        for who, theirs in rates.items()
        if who != "ours"
    ]
    print(f"{name:40} {median(rates['ours']):>9,.0f}/s  {'  '.join(beside)}", flush=True)


if __name__ == "__main__":
    main()
