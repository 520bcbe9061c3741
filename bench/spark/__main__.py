"""The command line, and what is measured."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench import spark_batch, spark_io
from bench.report import Found, Report, options
from bench.spark import __doc__ as about
from bench.spark.memory import Peaks
from bench.spark.streams import CORES, Work, by_spark_state, limit, rate, resequenced
from bench.spark.trace import Trace, trace_in
from seriatim.spark.session import local_session

PARTS = ("batch", "streaming", "peer", "keys", "io")


@dataclass(frozen=True)
class Size:
    """How much is done."""

    rows: int
    batch: int
    few: int
    many: int
    most: int
    """Numbers of keys."""
    peer_rows: int
    io_rows: int
    rounds: int


FULL = Size(2_000_000, 500_000, 1_000, 100_000, 1_000_000, peer_rows=500_000, io_rows=1_000_000, rounds=3)
QUICK = Size(20_000, 10_000, 100, 1_000, 5_000, peer_rows=2_000, io_rows=10_000, rounds=1)

SETTINGS = {"spark.driver.memory": "2g"}


class Bench(Report):
    """The parts, one after another, in one session."""

    def __init__(self, spark: SparkSession, size: Size, rounds: int, cache: Path) -> None:
        super().__init__(rounds)
        self.spark, self.size, self.cache = spark, size, cache

    def trace(self, keys: int, rows: int | None = None) -> Trace:
        return trace_in(self.cache, keys, rows or self.size.rows, min(self.size.batch, rows or self.size.rows))

    def works(self, works: dict[str, tuple[Work, Trace]]) -> Found:
        """Rates, after one turn for each that does not count: it compiles, and starts Python."""
        turns: dict[str, Callable[[], float]] = {
            name: lambda work=work, trace=trace: rate(self.spark, work, trace) for name, (work, trace) in works.items()
        }
        for name, turn in turns.items():
            self.say(f"{name}, to warm up")
            turn()
        return self.rounds(turns)

    # -- the parts ------------------------------------------------------------------------------------------------------

    def streaming(self) -> None:
        """Beside the limit, with few keys and with many."""
        for keys in (self.size.few, self.size.many):
            trace = self.trace(keys)
            least, ours = f"streaming limit, {keys:,} keys", f"streaming resequence, {keys:,} keys"
            with Peaks() as peaks:
                found = self.works({least: (limit, trace), ours: (resequenced, trace)})
            self.add(least, _rows(found.of(least)))
            self.add(ours, _rows(found.of(ours)), _beside(found, ours, least, "limit"), "≥ 0.75x")
            self._memory(peaks, keys)

    def _memory(self, peaks: Peaks, keys: int) -> None:
        figure = f"{peaks.workers:,.0f} MB in {CORES} workers"
        self.add(f"memory, at most, {keys:,} keys", figure, f"{peaks.java:,.0f} MB in Java")

    def peer(self) -> None:
        """Beside Spark's own state for Python, which gets fewer rows."""
        for keys in (self.size.few, self.size.many):
            theirs = f"transformWithStateInPandas, {keys:,} keys, {self.size.peer_rows:,} rows"
            ours = f"streaming resequence, {keys:,} keys"
            fewer = self.trace(keys, self.size.peer_rows)
            found = self.works({theirs: (by_spark_state, fewer), ours: (resequenced, self.trace(keys))})
            self.add(theirs, _rows(found.of(theirs)))
            self.add(ours, _rows(found.of(ours)), _beside(found, ours, theirs, "peer"), "≥ 15x")

    def keys(self) -> None:
        """More keys, the same rows."""
        works = {
            f"streaming resequence over {keys:,} keys": (resequenced, self.trace(keys))
            for keys in (self.size.few, self.size.many, self.size.most)
        }
        with Peaks() as peaks:
            found = self.works(works)
        first = next(iter(works))
        for name in works:
            self.add(name, _rows(found.of(name)), f"1/{found.ratio(first, name):.2f}", "≥ 1/1.3")
        self._memory(peaks, self.size.most)

    def batch(self) -> None:
        """Tables: put in order, and audited."""
        for keys in (self.size.few, self.size.many):
            for row in spark_batch.compare_both(self.spark, self.size.rows, keys):
                self.add(*row)

    def io(self) -> None:
        """Topics, read and written."""
        goals = {"source": "≥ 0.6x", "sink": "≥ 0.25x"}
        for found in spark_io.compare_both(self.spark, self.size.io_rows):
            figure = _rows(found.rows / found.by_spark)
            self.add(f"broker {found.name}", figure, f"{found.ratio:.2f}x plain loop", goals[found.name])


def _rows(per_second: float) -> str:
    return f"{per_second:,.0f} rows/s"


def _beside(found: Found, name: str, other: str, called: str) -> str:
    """The median ratio, and between which values it was."""
    ratios = found.ratios(name, other)
    return f"{found.ratio(name, other):.2f}x {called} ({min(ratios):.2f}-{max(ratios):.2f})"


def main() -> None:
    parser = options("bench.spark", about, PARTS)
    parser.add_argument("--rounds", type=int, help="how often everybody has a turn")
    parser.add_argument("--cache", type=Path, help="keep the rows in this folder for the next run")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        _run(arguments, size, arguments.cache or Path(folder))


def _run(arguments: argparse.Namespace, size: Size, cache: Path) -> None:
    spark = local_session("bench", settings=SETTINGS)
    try:
        bench = Bench(spark, size, arguments.rounds or size.rounds, cache)
        for part in arguments.only or PARTS:
            getattr(bench, part)()
    finally:
        spark.stop()
    bench.show(as_json=arguments.json)


if __name__ == "__main__":
    main()
