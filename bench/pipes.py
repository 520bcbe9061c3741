"""What pipes cost: messages per second through each, beside the bare route in the same run: ``python -m bench.pipes``.

Both ends are in one process and one event loop, the messages have 100 bytes, and each is sent and taken one at a time.
A second is one of CPU, the system's included, so that other programs do not count. Figures are the best of several
rounds, with the deliveries interleaved so that a noisy moment of the machine hits all of them. Only the ratio to the
bare route means anything on another machine. A pipe may be faster than its route: it puts many messages into one frame.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import process_time

from bench.record import Recorder
from bench.report import add_record_option
from seriatim.pipes import Element, InProcess, Pipe, Udp, indexed, resend, sequential

MESSAGE = b"x" * 100
ROUNDS = 5
GOALS = {"in process": 0.5, "udp": 0.7}


@dataclass(frozen=True)
class Figure:
    route: str
    delivery: str
    per_second: int
    ratio: float
    lost: int
    readings: tuple[float, ...]
    """Messages a second in each round."""


@dataclass(frozen=True)
class Work:
    """A way to deliver messages, and how many of them are sent in a round."""

    name: str
    make: Callable[[], Element]
    messages: int


def works(scale: int) -> dict[str, list[Work]]:
    def small_frames(route: Callable[[], InProcess | Udp]) -> Pipe:
        return indexed(route(), frame_messages=1)

    def of(route: Callable[[], InProcess | Udp], bare: int) -> list[Work]:
        return [
            Work("bare route", route, bare),
            Work("indexed pipe", lambda: indexed(route()), 3 * scale),
            Work("indexed pipe, strict", lambda: indexed(route(), level="strict"), 3 * scale),
            Work("indexed pipe, a frame for each message", lambda: small_frames(route), scale // 2),
            Work("resend pipe", lambda: resend(route()), scale),
            Work("sequential pipe", lambda: sequential(route()), scale // 10),
        ]

    return {"in process": of(InProcess, 3 * scale), "udp": of(Udp, scale)}


async def deliver_all(element: Element, count: int) -> tuple[float, int]:
    """Messages per second, and how many never came."""
    taken = 0

    async def take(_: bytes) -> None:
        nonlocal taken
        taken += 1

    begin = process_time()
    async with element.run(take) as inlet:
        for _ in range(count):
            await inlet.send(MESSAGE)
        await inlet.drain()
        for _ in range(200):  # a bare route can't know when everything is through
            if taken < count:
                await asyncio.sleep(0)
    return taken / (process_time() - begin), count - taken


def measure(route: str, deliveries: list[Work], rounds: int) -> list[Figure]:
    readings: dict[Work, list[float]] = {work: [] for work in deliveries}
    lost = dict.fromkeys(deliveries, 0)
    gc.collect()
    for _ in range(rounds):
        for work in deliveries:
            speed, missing = asyncio.run(deliver_all(work.make(), work.messages))
            readings[work].append(speed)
            lost[work] += missing
    best = {work: max(speeds) for work, speeds in readings.items()}
    bare = best[deliveries[0]]
    return [
        Figure(route, work.name, round(best[work]), best[work] / bare, lost[work], tuple(readings[work]))
        for work in deliveries
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_record_option(parser)
    arguments = parser.parse_args()
    recorder = Recorder("pipes")
    scale, rounds = (500, 1) if arguments.quick else (10_000, ROUNDS)
    figures = [figure for route, each in works(scale).items() for figure in measure(route, each, rounds)]
    if arguments.record:
        rows = [asdict(figure) for figure in figures]
        readings = {f"{row['route']}, {row['delivery']}": row.pop("readings") for row in rows}
        recorder.write(rows, readings)
    if arguments.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
        return
    for figure in figures:
        below = figure.delivery == "indexed pipe" and figure.ratio < GOALS[figure.route]
        verdict = f"  below the goal of {GOALS[figure.route]}" if below else ""
        lost = f"  {figure.lost:,} lost" if figure.lost else ""
        print(f"{figure.route:12} {figure.delivery:40} {figure.per_second:>9,}/s {figure.ratio:6.2f}x{lost}{verdict}")


if __name__ == "__main__":
    main()
