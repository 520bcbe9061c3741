"""The command line, and what is measured."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from pyspark.sql import SparkSession

from bench import spark_batch, spark_io
from bench.record import Recorder
from bench.report import Found, Report, options
from bench.spark import __doc__ as about
from bench.spark import streams
from bench.spark.pipeline import PipelineBench, start_up
from bench.spark.processes import MEGABYTE, Peaks, Spent, processor_ticks, spent_since
from bench.spark.streams import CORES, STEPS, Ran, by_spark_state, limit, resequenced, through_python
from bench.spark.trace import PAYLOAD_BYTES, Trace, trace_in
from seriatim.spark.local.session import local_session
from seriatim.spark.topics.source import ROWS_PER_BATCH

TABLE = ("pipeline", "start", "streaming", "steps", "batch", "payloads", "io", "backlog")
"""What users wait for, where the time goes, and how much memory that needs: the parts that are measured by default."""
PARTS = (*TABLE, "peer", "keys")
SETTINGS = {"spark.driver.memory": "2g"}


@dataclass(frozen=True)
class Size:
    """How much is done. ``few``, ``many`` and ``most`` are numbers of keys."""

    rows: int
    batch: int
    few: int
    many: int
    most: int
    peer_rows: int
    io_rows: int
    rounds: int
    backlog: int
    payload_bytes: int
    """How many bytes all large payloads have together."""


FULL = Size(
    2_000_000,
    500_000,
    1_000,
    100_000,
    1_000_000,
    peer_rows=100_000,
    io_rows=1_000_000,
    rounds=3,
    backlog=10_000_000,
    payload_bytes=200_000_000,
)
QUICK = Size(
    20_000,
    10_000,
    100,
    1_000,
    5_000,
    peer_rows=2_000,
    io_rows=10_000,
    rounds=1,
    backlog=20_000,
    payload_bytes=1_000_000,
)


@dataclass(frozen=True)
class Work:
    """So many rows, and what is done with them; it says how many seconds that took."""

    rows: int
    run: Callable[[], float]


@dataclass(frozen=True)
class Compared:
    """Rows a second, and rows for each second of a processor."""

    rates: Found
    by_processor: Found

    def rate(self, name: str) -> str:
        return f"{self.rates.of(name):,.0f} rows/s"

    def beside(self, name: str, other: str, called: str) -> str:
        """The median ratio and between which values it was, and that of the processor times."""
        ratios, processor = self.rates.ratios(name, other), self.by_processor.ratio(name, other)
        between = f"{min(ratios):.2f}-{max(ratios):.2f}"
        return f"{self.rates.ratio(name, other):.2f}x {called} ({between}), processor {processor:.2f}x"


class Bench(Report):
    """The parts, one after another, in one session."""

    def __init__(self, spark: SparkSession, size: Size, rounds: int, cache: Path) -> None:
        super().__init__(rounds)
        self.spark, self.size, self.cache = spark, size, cache

    def trace(self, keys: int, rows: int | None = None, payload: int = PAYLOAD_BYTES) -> Trace:
        rows = rows or self.size.rows
        return trace_in(self.cache, keys, rows, min(self.size.batch, rows), payload)

    def stream(self, work: streams.Work, trace: Trace) -> Work:
        return Work(trace.rows, lambda: streams.run(self.spark, work, trace).seconds)

    def compare(self, works: dict[str, Work]) -> Compared:
        """Everybody has a first turn that does not count: it compiles, and starts Python."""
        for name, work in works.items():
            self.say(f"{name}, to warm up")
            work.run()
        by_processor = Found(works)

        def turn(name: str) -> float:
            before = processor_ticks()
            rate = works[name].rows / works[name].run()
            by_processor.values[name].append(works[name].rows / sum(spent_since(before)))
            return rate

        return Compared(self.rounds({name: partial(turn, name) for name in works}), by_processor)

    # -- the parts ------------------------------------------------------------------------------------------------------

    def pipeline(self) -> None:
        """A declared pipeline from topic to topic with a ledger, beside the same without putting anything in order."""
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            trace = self.trace(self.size.few, self.size.io_rows)
            bench = PipelineBench(self.spark, trace, Path(folder))
            name = f"pipeline, topic to topic and ledger, {trace.rows:,} JSON messages"
            runs = {f"limit of {name}": bench.plainly, f"{name}, rows through Spark": bench.in_order_through_spark}
            runs[name] = bench.in_order
            self._beside_limit({one: Work(trace.rows, run) for one, run in runs.items()}, "≥ 0.7x")

    def start(self) -> None:
        """Whole processes, until the first small batch is done."""
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            trace = self.trace(self.size.few, self.size.peer_rows)
            url = PipelineBench(self.spark, trace, Path(folder)).url
            works = start_up(trace, url, Path(folder))
            found = self.rounds(works)
        before: list[str] = []
        for name in works:
            beside = ", ".join(f"{found.ratio(name, other):.2f}x {other}" for other in before)
            goal = "≤ 1.3x bare session" if name == "seriatim pipeline run" else ""
            self.add(f"{name}, start to first batch", f"{found.of(name):.1f} s", beside, goal)
            before.append(name)

    def payloads(self) -> None:
        """Streams with larger payloads, as many bytes as fit the time."""
        for payload in (1_000, 10_000):
            trace = self.trace(self.size.few, self.size.payload_bytes // payload, payload)
            self._stream_beside_limit(
                f"streaming resequence, payloads of {payload:,} bytes", trace, "not below 100 bytes"
            )

    def backlog(self) -> None:
        """The memory that a topic's backlog takes, with as many rows in a batch as by default."""
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            trace = self.trace(self.size.many, self.size.backlog)
            bench = PipelineBench(self.spark, trace, Path(folder))
            self.say(f"a backlog of {trace.rows:,} messages")
            with Peaks() as peaks:
                seconds = bench.in_order()
            in_batch = min(trace.rows, ROWS_PER_BATCH)
            share = in_batch * bench.row_bytes() / MEGABYTE
        name = f"backlog of {trace.rows:,} messages"
        self.add(name, f"{trace.rows / seconds:,.0f} rows/s")
        self.readings[name] = [trace.rows / seconds]
        self._memory(
            peaks, name, f"{peaks.workers / share:.1f}x the rows of a batch ({in_batch:,} rows, {share:,.1f} MB)"
        )

    def batch(self) -> None:
        """Tables: put in order, and audited."""
        for keys in (self.size.few, self.size.many):
            trace = self.trace(keys)
            for what, goal, between, (least, same_way, ours) in (
                ("resequence", "≥ 0.92x", "with a window", spark_batch.RESEQUENCE),
                ("audit", "≥ 0.95x", "rows to Python", spark_batch.AUDIT),
            ):
                name = f"batch {what}, {keys:,} keys"
                works = {f"limit of {name}": least, f"limit of {name}, {between}": same_way, name: ours}
                self._beside_limit({one: self._table(work, trace) for one, work in works.items()}, goal)

    def _table(self, work: spark_batch.Work, trace: Trace) -> Work:
        def run() -> float:
            began = perf_counter()
            work(self.spark.read.parquet(str(trace.folder))).write.format("noop").mode("overwrite").save()
            return perf_counter() - began

        return Work(trace.rows, run)

    def _beside_limit(self, works: dict[str, Work], goal: str) -> None:
        """The first is the limit, and the last is ours. One between them goes the same way as ours, or another one."""
        found = self.compare(works)
        limited, *others = works
        self.add(limited, found.rate(limited))
        for name in others:
            self.add(name, found.rate(name), found.beside(name, limited, "limit"), goal if name == others[-1] else "")

    def streaming(self) -> None:
        """Beside the limit, with few keys and with many."""
        for keys in (self.size.few, self.size.many):
            trace = self.trace(keys)
            with Peaks() as peaks:
                name = f"streaming resequence, {keys:,} keys"
                self._stream_beside_limit(name, trace, "≥ 0.75x" if keys == self.size.few else "≥ 0.72x")
            self._memory(peaks, name)

    def _stream_beside_limit(self, name: str, trace: Trace, goal: str) -> None:
        works = {f"limit of {name}": limit, f"limit of {name}, to Python and back": through_python, name: resequenced}
        self._beside_limit({one: self.stream(work, trace) for one, work in works.items()}, goal)

    def steps(self) -> None:
        """Where the processor time of a stream goes."""
        trace = self.trace(self.size.many)
        spent: dict[str, list[Spent]] = {name: [] for name in STEPS}
        ran: dict[str, list[Ran]] = {name: [] for name in STEPS}

        def turn(name: str) -> float:
            before = processor_ticks()
            ran[name].append(streams.run(self.spark, STEPS[name], trace))
            spent[name].append(spent_since(before))
            return sum(spent[name][-1])

        for name in STEPS:
            self.say(f"step: {name}, to warm up")
            turn(name)
        self.rounds({f"step: {name}": partial(turn, name) for name in STEPS})
        for name in STEPS:
            java, python = (median(seconds) for seconds in zip(*spent[name][1:], strict=True))
            _, kernel, state = (median(seconds) for seconds in zip(*ran[name][1:], strict=True))
            within = f"kernel {kernel:.1f} s and state {state:.1f} s by the clock of its tasks" if kernel else ""
            self.add(f"step: {name}", f"{java:.1f} s Java, {python:.1f} s Python", within)
            self.readings[f"step: {name}, Java"] = [one.java for one in spent[name][1:]]

    def _memory(self, peaks: Peaks, what: str, times: str = "") -> None:
        figure, java = f"{peaks.workers:,.0f} MB in {CORES} workers", f"{peaks.java:,.0f} MB in Java"
        self.add(f"memory, at most, {what}", figure, ", ".join(filter(None, (times, java))))

    def peer(self) -> None:
        """Beside Spark's own state for Python, which gets fewer rows of as many fewer keys: a key has as many in a batch."""
        for keys in (self.size.few, self.size.many):
            fewer = self.trace(max(1, keys * self.size.peer_rows // self.size.batch), self.size.peer_rows)
            theirs = f"transformWithStateInPandas, {fewer.rows:,} rows of {fewer.keys:,} keys"
            ours = f"streaming resequence, {keys:,} keys"
            found = self.compare(
                {theirs: self.stream(by_spark_state, fewer), ours: self.stream(resequenced, self.trace(keys))}
            )
            self.add(theirs, found.rate(theirs))
            self.add(ours, found.rate(ours), found.beside(ours, theirs, "peer"), "≥ 15x")

    def keys(self) -> None:
        """More keys, the same rows."""
        works = {
            f"streaming resequence over {keys:,} keys": self.stream(resequenced, self.trace(keys))
            for keys in (self.size.few, self.size.many, self.size.most)
        }
        with Peaks() as peaks:
            found = self.compare(works)
        first = next(iter(works))
        for name in works:
            self.add(name, found.rate(name), found.beside(name, first, "fewest"), "≥ 1/1.3x")
        self._memory(peaks, f"streaming resequence over up to {self.size.most:,} keys")

    def io(self) -> None:
        """Topics, read and written."""
        goals = {"source": "≥ 0.6x", "sink": "≥ 0.25x"}
        for found in spark_io.compare_both(self.spark, self.size.io_rows):
            name = {"source": "topic into noop", "sink": "rows into a topic"}[found.name]
            figure = f"{found.rows / found.by_spark:,.0f} rows/s"
            self.add(name, figure, f"{found.ratio:.2f}x plain loop", goals[found.name])
            self.readings |= {f"{name}, best, s": [found.by_spark], f"{name}, plain loop, best, s": [found.by_loop]}


def main() -> None:
    parser = options("bench.spark", about, PARTS)
    parser.add_argument("--rounds", type=int, help="how often everybody has a turn")
    parser.add_argument("--cache", type=Path, help="keep the rows in this folder for the next run")
    arguments = parser.parse_args()
    recorder = Recorder("spark")
    with tempfile.TemporaryDirectory() as folder:
        bench = _run(arguments, QUICK if arguments.quick else FULL, arguments.cache or Path(folder))
    if arguments.record:
        recorder.write([asdict(row) for row in bench.rows], bench.readings)


def _run(arguments: argparse.Namespace, size: Size, cache: Path) -> Bench:
    spark = local_session("bench", settings=SETTINGS)
    try:
        bench = Bench(spark, size, arguments.rounds or size.rounds, cache)
        for part in arguments.only or TABLE:
            getattr(bench, part)()
    finally:
        spark.stop()
    bench.show(as_json=arguments.json)
    return bench


if __name__ == "__main__":
    main()
