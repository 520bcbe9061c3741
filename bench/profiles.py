"""Where the time of the processor goes when a program publishes and consumes: by layer, now and at an earlier commit.

    python -m bench.profiles [--before COMMIT] [--messages 20000] [--rounds 5] [--quick] [--record]

The public API on a new SQLite file publishes messages one by one (200 bytes, 1,000 keys, uniform or Zipf) and a handler acks
each; the order is checked. A timer of processor time takes a sample each millisecond: which layer the event loop's thread is
in, or, while that waits, the writer's. Each run is a process of its own, and the commits take turns within a round. Figures are
medians of the rounds, in microseconds of processor time for a message: other programs on the machine disturb them little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from types import FrameType

from bench.ordered_drain.workload import BACKLOG, BATCH, Workload, check_order, uniform, zipf
from bench.ordering.__main__ import checked_out
from bench.record import ROOT, Cell, Recorder
from bench.report import add_record_option

WORKLOADS = {"uniform": uniform, "Zipf": zipf}
LAYERS = ("client", "core", "engine", "store", "asyncio", "the benchmark", "other")
SAMPLE_S = 0.001
TIMEOUT_S = 120

Profile = dict[str, float]
"""Microseconds for a message, by layer."""


def layer_of(frame: FrameType | None) -> str | None:
    """The layer that a thread is in. None: it waits."""
    place = frame.f_code.co_filename if frame is not None else ""
    if frame is None or place.endswith(("selectors.py", "threading.py", "queue.py")) or _is_waiting(frame):
        return None
    while frame is not None:
        place = frame.f_code.co_filename.replace(os.sep, "/")
        if "/seriatim/" in place:
            folder = place.rpartition("/seriatim/")[2].partition("/")[0]
            return folder if folder in LAYERS else "other"
        if "/asyncio/" in place:
            return "asyncio"
        if "/bench/" in place:
            return "the benchmark"
        frame = frame.f_back
    return "other"


def _is_waiting(frame: FrameType) -> bool:
    """Whether a thread of a pool waits for work."""
    return frame.f_code.co_filename.endswith("concurrent/futures/thread.py") and frame.f_code.co_name == "_worker"


class Sampler:
    """Counts, while it is entered, which layer the process is in whenever it has used the processor for a millisecond."""

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self.seconds = 0.0
        self._main = threading.main_thread().ident

    def __enter__(self) -> Sampler:
        self.seconds = -process_time()
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.seconds += process_time()

    def _take(self, _: int, frame: FrameType | None) -> None:
        if (found := layer_of(frame)) is None:
            others = (layer_of(other) for ident, other in sys._current_frames().items() if ident != self._main)  # noqa: SLF001
            found = next(filter(None, others), "other")
        self.samples[found] += 1


async def drain(url: str, workload: Workload, sampler: Sampler) -> list[int]:
    """Publish and consume at once. Only what every version of the public API has."""
    from seriatim import Batching, Message, PublishOptions, PubSub

    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("events").create()
        topic.set_publish_options(PublishOptions(Batching(max_messages=BATCH, max_milliseconds=10)))
        subscription = await topic.subscription("worker").create(enable_message_ordering=True)
        numbers, changed = list[int](), asyncio.Event()

        def handle(message: Message) -> None:
            numbers.append(int(message.data[:10]))
            message.ack()
            changed.set()

        subscription.on("message", handle)
        subscription.open()
        published = 0
        with sampler:
            for batch in workload.batches():
                for key, data in batch:
                    topic.publish(data, ordering_key=key)
                published += len(batch)
                await asyncio.sleep(0)
                while published - len(numbers) > BACKLOG - BATCH:
                    changed.clear()
                    await changed.wait()
            await topic.flush()
            await subscription.wait_until_empty()
    return numbers


def work(name: str, messages: int) -> None:
    """One run, in a process of its own."""
    workload, sampler = WORKLOADS[name](messages), Sampler()
    with TemporaryDirectory(prefix="profiles-") as folder:
        numbers = asyncio.run(drain(f"sqlite:///{Path(folder) / 'store.db'}", workload, sampler))
    check_order(workload, numbers)
    each = sampler.seconds / messages / sampler.samples.total() * 1e6
    json.dump({layer: count * each for layer, count in sampler.samples.items()}, sys.stdout)


def measured(source: Path, name: str, messages: int) -> Profile:
    command = [sys.executable, "-m", "bench.profiles", "--worker", name, "--messages", str(messages)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if run.returncode:
        raise SystemExit(f"a run failed: {run.stderr.strip()}")
    profile: Profile = json.loads(run.stdout)
    return profile


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profiles", description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="also measure an earlier commit")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few messages, to see that it runs")
    parser.add_argument("--worker", choices=WORKLOADS, help=argparse.SUPPRESS)
    add_record_option(parser)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.messages)
        return
    recorder = Recorder("profiles")
    if given.quick:
        given.messages, given.rounds = 2_000, 1
    found: dict[str, list[Profile]] = {}
    with checked_out(given.before) as before:
        sources = {"before": before, "now": ROOT / "src"} if before else {"now": ROOT / "src"}
        for number in range(given.rounds):
            for name in WORKLOADS:
                for when, source in sources.items():
                    print(f"{name}, {when}, round {number + 1} of {given.rounds} ...", file=sys.stderr, flush=True)
                    found.setdefault(f"{name}, {when}", []).append(measured(source, name, given.messages))
    rows: list[dict[str, Cell]] = [
        {"layer": layer} | {run: median(profile.get(layer, 0.0) for profile in each) for run, each in found.items()}
        for layer in LAYERS
    ]
    rows.append({"layer": "all"} | {run: median(sum(one.values()) for one in each) for run, each in found.items()})
    for row in rows:
        print(" · ".join(cell if isinstance(cell, str) else f"{cell:.2f}" for cell in row.values()))
    if given.record:
        recorder.write(rows, {run: [sum(profile.values()) for profile in each] for run, each in found.items()})


if __name__ == "__main__":
    main()
