"""What the console costs: ``python -m bench.console``.

1. How long the data of each page takes on a store with 1,000,000 keys in one subscription and 10,000 other subscriptions, while
   messages are published and consumed beside it, and how much memory all of these pages take.
2. What an open page costs delivery: messages a second through one process, and the time of the processor that each takes, with
   and without a browser's requests (the event stream, and the page again at each tick), in turns: a page of a subscription that
   is kept empty, and one with 100,000 waiting keys, whose list costs most.

It takes about five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.record import Recorder
from bench.report import Report
from seriatim.console import ConsoleServer
from seriatim.engine.broker import Outgoing
from seriatim.engine.connect import open_engine
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions

ORDERED = SubscriptionOptions(message_ordering=True)
PAGES = {
    "overview": "/",
    "subscription": "/subscription?name=many",
    "subscription, oldest first": "/subscription?name=many&order=oldest",
    "subscription, deepest first": "/subscription?name=many&order=deepest",
    "subscription, paused keys": "/subscription?name=many&state=paused",
    "subscription, search": "/subscription?name=many&search=-0999999",
    "key": "/key?subscription=many&key=key-0500000",
    "dead letters": "/dead-letters?subscription=many",
    "topic": "/topic?name=keys",
    "topics": "/topics",
}
BROWSER = """
import sys, urllib.request
address, token, path = sys.argv[1:]
def ask(where):
    return urllib.request.urlopen(urllib.request.Request(address + where, headers={"Authorization": "Bearer " + token}))
for line in ask("/api/v1/events"):
    if line.startswith(b"data:"):
        ask(path).read()
"""
"""What an open page asks for."""


class Load:
    """Messages that are published and consumed for as long as it runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.handled = 0

    async def prepare(self) -> None:
        await self._engine.create_topic("load")
        await self._engine.create_subscription("load", "worker", ORDERED)
        self._attachment = self._engine.attach("worker", Consumer(self._handle))

    def _handle(self, delivered: Sequence[Delivered]) -> None:
        for lease, _ in delivered:
            self._attachment.ack(lease)
        self.handled += len(delivered)

    async def run(self, seconds: float, pause: float = 0.0) -> float:
        """Messages a second."""
        end, before, begun = time.monotonic() + seconds, self.handled, time.monotonic()
        data = [Outgoing(f"load-{n}", b"x" * 100) for n in range(200)]
        while time.monotonic() < end:
            await self._engine.publish("load", data)
            await asyncio.sleep(pause)
        await self._engine.wait_until_empty("worker")
        return (self.handled - before) / (time.monotonic() - begun)

    async def measured(self, seconds: float) -> tuple[float, float]:
        """Messages a second, and what each of them takes of the processor, in microseconds."""
        before, begun = self.handled, time.process_time()
        rate = await self.run(seconds)
        return rate, (time.process_time() - begun) / (self.handled - before) * 1e6


def ask(address: str, token: str, path: str) -> float:
    """How long a page takes, in milliseconds."""
    begun = time.perf_counter()
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        answer.read()
    return (time.perf_counter() - begun) * 1000


async def pages(engine: Engine, report: Report, keys: int, others: int) -> None:
    report.say(f"pages with {keys:,} keys and {others:,} subscriptions")
    await engine.create_topic("keys")
    await engine.create_subscription("keys", "many", ORDERED)
    await engine.create_topic("empty")
    for first in range(0, others, 500):
        made = (engine.create_subscription("empty", f"other-{n:05}") for n in range(first, min(first + 500, others)))
        await asyncio.gather(*made)
    for first in range(0, keys, 10_000):
        await engine.publish("keys", [Outgoing(f"key-{n:07}", b"x") for n in range(first, first + 10_000)])
    await asyncio.gather(
        *(engine.pause_key("many", f"key-{n:07}", "a look") for n in range(0, keys, max(1, keys // 5000)))
    )
    for n in range(1, 500):
        await engine.dead_letter("many", f"key-{n:07}", f"failure {n}")
    load = Load(engine)
    await load.prepare()
    server = ConsoleServer(engine, port=0)
    await server.start()
    assert server.token is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    beside = asyncio.create_task(load.run(3600, 0.02))
    for name, path in PAGES.items():
        took = []
        for _ in range(report.round_count):
            server.console.looks.clear()  # or an answer would serve for several rounds
            took.append(await asyncio.to_thread(ask, server.address, server.token, path))
        report.readings[name] = took
        report.add(
            f"{name}, with messages beside it", f"{median(took):.0f} ms", f"at most {max(took):.0f} ms", "200 ms"
        )
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    report.add("memory that all of these pages take", f"{grown:.0f} MiB")
    beside.cancel()
    await server.stop()


async def delivery(engine: Engine, report: Report, seconds: float, keys: int) -> None:
    load = Load(engine)
    await load.prepare()
    await engine.create_topic("keys")
    await engine.create_subscription("keys", "many", ORDERED)
    for first in range(0, keys, 10_000):
        await engine.publish("keys", [Outgoing(f"key-{n:07}", b"x") for n in range(first, first + 10_000)])
    server = ConsoleServer(engine, port=0)
    await server.start()
    assert server.token is not None
    await load.run(seconds)
    for page in ("worker", "many"):
        report.say(f"delivery with and without an open page of {page}")
        alone, watched = list[tuple[float, float]](), list[tuple[float, float]]()
        for _ in range(report.round_count):
            alone.append(await load.measured(seconds))
            command = [sys.executable, "-c", BROWSER, server.address, server.token, f"/subscription?name={page}"]
            browser = await asyncio.create_subprocess_exec(*command)
            await asyncio.sleep(min(seconds, 2.0))  # its start is not a page
            watched.append(await load.measured(seconds))
            browser.kill()
            await browser.wait()
        for number, what in enumerate(("messages/s", "µs of the processor per message")):
            with_it, without = [one[number] for one in watched], [one[number] for one in alone]
            report.readings |= {f"{page}, alone, {what}": without, f"{page}, page open, {what}": with_it}
            ratio = median(a / b for a, b in zip(with_it, without, strict=True))
            cost = 100 * (1 - ratio if number == 0 else ratio - 1)
            shown = f"{median(without):,.1f} {what} alone"
            report.add(f"an open page of {page} costs delivery", f"{cost:.1f} %", shown, "3 %")
    await server.stop()


async def measure(report: Report, *, quick: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, work in enumerate((pages, delivery)):
            engine = await open_engine(f"sqlite:///{Path(folder) / f'{number}.db'}")
            try:
                if work is pages:
                    await pages(engine, report, 20_000 if quick else 1_000_000, 100 if quick else 10_000)
                else:
                    await delivery(engine, report, 0.5 if quick else 6.0, 10_000 if quick else 100_000)
            finally:
                await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small store: only to see that it runs")
    parser.add_argument("--record", action="store_true", help="write the figures to docs/benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    recorder, report = Recorder("console"), Report(arguments.rounds)
    asyncio.run(measure(report, quick=arguments.quick))
    rows = [{"work": row.work, "figure": row.figure, "beside": row.beside, "goal": row.goal} for row in report.rows]
    if arguments.record:
        recorder.write(rows, report.readings)
    else:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
