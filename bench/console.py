"""What the console costs: ``python -m bench.console``.

1. How long the data of each page takes on a store with 1,000,000 keys in one subscription and 10,000 other subscriptions, while
   messages are published and consumed beside it; for how long nothing is delivered meanwhile; how much memory the pages take.
2. What an open page costs delivery: messages a second through one process, the time of the processor that each takes, and the
   longest time without a delivery, with and without a browser's requests (the event stream, and the page again at each tick),
   in turns: the overview of 10,000 subscriptions, a page of a subscription that is kept empty, and one with 100,000 waiting
   keys, whose list costs most.

It takes about six minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from bench.record import Recorder
from bench.report import Report
from seriatim.console import ConsoleServer
from seriatim.console.security import LoggedChange
from seriatim.engine.broker import Outgoing
from seriatim.engine.connect import open_engine
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.reported_status import (
    MAX_BATCHES,
    MAX_DEVICES,
    MAX_GAP_KEYS,
    MAX_GAPS,
    MAX_HELD_KEYS,
    MAX_NODES,
    BatchStatus,
    HeldKey,
    HostStatus,
    KeyGaps,
    MissingNumbers,
    NodeStatus,
    PipelineStatus,
    leave_status,
)

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
    "pipelines": "/pipelines",
    "Sparkplug": "/sparkplug",
    "changes": "/changes",
}
OPEN_PAGES = {"the overview": "/", "worker": "/subscription?name=worker", "many": "/subscription?name=many"}
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
        self._last = self._longest = 0.0

    async def prepare(self) -> None:
        await self._engine.create_topic("load")
        await self._engine.create_subscription("load", "worker", ORDERED)
        self._attachment = self._engine.attach("worker", Consumer(self._handle))

    def _handle(self, delivered: Sequence[Delivered]) -> None:
        for lease, _ in delivered:
            self._attachment.ack(lease)
        self.handled += len(delivered)
        now = time.monotonic()
        self._last, self._longest = now, max(self._longest, now - self._last)

    def longest_gap(self) -> float:
        """The longest time without a delivery since this was asked last, in milliseconds."""
        longest, self._longest = self._longest, 0.0
        return longest * 1000

    async def run(self, seconds: float, pause: float = 0.0) -> float:
        """Messages a second."""
        before, begun = self.handled, time.monotonic()
        end, self._last, self._longest = begun + seconds, begun, 0.0
        data = [Outgoing(f"load-{n}", b"x" * 100) for n in range(200)]
        while time.monotonic() < end:
            await self._engine.publish("load", data)
            await asyncio.sleep(pause)
        await self._engine.wait_until_empty("worker")
        return (self.handled - before) / (time.monotonic() - begun)

    async def measured(self, seconds: float) -> tuple[float, float, float]:
        """Messages a second, what each of them takes of the processor, in microseconds, and the longest time without one."""
        gc.collect()  # or what was built up front may be looked through in any of the measurements
        before, begun = self.handled, time.process_time()
        rate = await self.run(seconds)
        return rate, (time.process_time() - begun) / (self.handled - before) * 1e6, self.longest_gap()


def ask(address: str, token: str, path: str) -> float:
    """How long a page takes, in milliseconds."""
    begun = time.perf_counter()
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        answer.read()
    return (time.perf_counter() - begun) * 1000


async def add_keys(engine: Engine, keys: int) -> None:
    await engine.create_topic("keys")
    await engine.create_subscription("keys", "many", ORDERED)
    for first in range(0, keys, 10_000):
        await engine.publish("keys", [Outgoing(f"key-{n:07}", b"x") for n in range(first, first + 10_000)])


async def add_subscriptions(engine: Engine, others: int) -> None:
    await engine.create_topic("empty")
    for first in range(0, others, 500):
        made = (engine.create_subscription("empty", f"other-{n:05}") for n in range(first, min(first + 500, others)))
        await asyncio.gather(*made)


async def leave_all_statuses(engine: Engine) -> None:
    """Pipelines and a host with as much to show as a status can have."""
    now, waiting = datetime.now(UTC), HeldKey("key", 10, 5, 9, datetime.now(UTC))
    batches = [BatchStatus(n, now, 1000, n % 7, n % 5, n % 3, 1) for n in range(MAX_BATCHES)]
    gaps = [KeyGaps(f"key-{n}", 9, 8, 7, 6, batches[-MAX_BATCHES // 4 :]) for n in range(MAX_GAP_KEYS)]
    for n in range(3):
        held = [replace(waiting, key=f"key-{n}") for n in range(MAX_HELD_KEYS)]
        await leave_status(engine, PipelineStatus(f"pipeline-{n}", now, batches, {"gap": 9}, gaps, 500, held))
    missing = [MissingNumbers(n, n) for n in range(MAX_GAPS)]
    devices = {f"device-{n}": "online" for n in range(MAX_DEVICES)}
    nodes = [
        NodeStatus(f"group-{n % 10}/node-{n}", "online", now, 20, False, devices, True, missing)
        for n in range(MAX_NODES)
    ]
    await leave_status(engine, HostStatus("plant", "keys", now, True, nodes, MAX_NODES))


async def pages(engine: Engine, report: Report, keys: int, others: int) -> None:
    report.say(f"pages with {keys:,} keys and {others:,} subscriptions")
    await add_keys(engine, keys)
    await add_subscriptions(engine, others)
    await asyncio.gather(
        *(engine.pause_key("many", f"key-{n:07}", "a look") for n in range(0, keys, max(1, keys // 5000)))
    )
    for n in range(1, 500):
        await engine.dead_letter("many", f"key-{n:07}", f"failure {n}")
    await leave_all_statuses(engine)
    load = Load(engine)
    await load.prepare()
    server = ConsoleServer(engine, port=0)
    await server.start()
    assert server.token is not None
    changes = server.console.gate.changes
    changes.extend([LoggedChange(datetime.now(UTC), "ops", "keys/retry", {"key": "k"}, "done")] * (changes.maxlen or 0))
    gc.collect()
    beside = asyncio.create_task(load.run(3600, 0.02))
    await asyncio.sleep(1)
    load.longest_gap()
    alone = []
    for _ in range(report.round_count):
        await asyncio.sleep(1)
        alone.append(load.longest_gap())
    before, gaps = peak_memory(reset=True), dict[str, list[float]]()
    for name, path in PAGES.items():
        took, gaps[name] = list[float](), list[float]()
        for _ in range(report.round_count):
            server.console.looks.clear()  # or an answer would serve for several rounds
            load.longest_gap()
            took.append(await asyncio.to_thread(ask, server.address, server.token, path))
            gaps[name].append(load.longest_gap())
        report.readings[name] = took
        report.add(
            f"{name}, with messages beside it", f"{median(took):.0f} ms", f"at most {max(took):.0f} ms", "200 ms"
        )
    report.readings |= {"longest gap, no page": alone} | {f"longest gap, {name}": took for name, took in gaps.items()}
    worst = max(gaps, key=lambda name: max(gaps[name]))
    report.add(
        "longest time without a delivery while these pages are read",
        f"{max(gaps[worst]):.0f} ms",
        f"on the page {worst}; {max(alone):.0f} ms without a page",
    )
    grown = peak_memory() - before
    report.add("memory that all of these pages take", f"{grown:.0f} MiB", f"beside {before:,.0f} MiB of the process")
    beside.cancel()
    await server.stop()


def peak_memory(*, reset: bool = False) -> float:
    """The most memory that was resident since the last reset, in MiB."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def delivery(engine: Engine, report: Report, seconds: float, keys: int, others: int) -> None:
    load = Load(engine)
    await load.prepare()
    await add_keys(engine, keys)
    await add_subscriptions(engine, others)
    server = ConsoleServer(engine, port=0)
    await server.start()
    assert server.token is not None
    await load.run(seconds)
    for page, path in OPEN_PAGES.items():
        report.say(f"delivery with and without an open page of {page}")
        alone, watched = list[tuple[float, ...]](), list[tuple[float, ...]]()
        for _ in range(2 * report.round_count):  # in some windows delivery takes a fifth more, with a page and without
            alone.append(await load.measured(seconds))
            command = [sys.executable, "-c", BROWSER, server.address, server.token, path]
            browser = await asyncio.create_subprocess_exec(*command)
            await asyncio.sleep(min(seconds, 2.0))  # its start is not a page
            watched.append(await load.measured(seconds))
            browser.kill()
            await browser.wait()
        for number, what in enumerate(("messages/s", "µs of the processor per message", "longest gap")):
            with_it, without = [one[number] for one in watched], [one[number] for one in alone]
            report.readings |= {f"{page}, alone, {what}": without, f"{page}, page open, {what}": with_it}
            if what == "longest gap":
                name, beside = f"longest time without a delivery, page of {page} open", f"{max(without):.0f} ms alone"
                report.add(name, f"{max(with_it):.0f} ms", beside)
                continue
            ratio = median(with_it) / median(without)
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
                    sizes = (10_000, 100) if quick else (100_000, 10_000)
                    await delivery(engine, report, 0.5 if quick else 6.0, *sizes)
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
