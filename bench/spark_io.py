"""Topics on Spark beside a plain loop: the same rows read from, and written to, the same store.

    python -m bench.spark_io [ROWS]

The loop reads or appends 1,000 messages at a time through the store, in one process, and does nothing else with them. Spark
reads the topic into its ``noop`` sink, and writes rows that it makes itself. Both are timed in turn, the best of three counts;
only the ratio means something on a machine that is busy otherwise.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seriatim.spark import register
from seriatim.spark.local.session import local_session
from seriatim.store import open_store
from seriatim.store.base import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
AT_A_TIME = 1000
KEYS = 1000
ROUNDS = 3
PAYLOAD = b"x" * 100


class Bench:
    """One store, its topics, and one session."""

    def __init__(self, folder: Path, rows: int, spark: SparkSession) -> None:
        self.url = f"sqlite:///{folder}/store.db"
        self.rows = rows
        self.spark = spark
        self._names = map("topic-{}".format, count())
        self.raw = self.new_topic()
        self.write_in_a_loop()

    def new_topic(self) -> str:
        """A topic that is not written to yet: a log does not grow slower, but nobody should have to believe that."""
        self.topic = next(self._names)
        with closing(open_store(self.url)) as store, store.transaction() as work:
            self.topic_id = work.create_topic(self.topic, {}).id
        return self.topic

    def options(self, topic: str) -> dict[str, str]:
        return {"url": self.url, "topic": topic}

    def read_in_a_loop(self) -> None:
        found = 0
        with closing(open_store(self.url, read_only=True)) as store:
            (topic,) = [row.id for row in store.catalog().topics if row.name == self.raw]
            while records := store.read(topic, found, AT_A_TIME):
                for _ in records:
                    found += 1
        assert found == self.rows

    def read_with_spark(self) -> None:
        frame = self.spark.read.format("seriatim").options(**self.options(self.raw)).load()
        frame.write.format("noop").mode("overwrite").save()

    def write_in_a_loop(self) -> None:
        with closing(open_store(self.url)) as store:
            for first in range(0, self.rows, AT_A_TIME):
                now = time.time()
                numbers = range(first, min(first + AT_A_TIME, self.rows))
                with store.transaction() as work:
                    work.append(self.topic_id, [Record(n, f"key-{n % KEYS}", PAYLOAD, None, now) for n in numbers])

    def write_with_spark(self) -> None:
        key, data = f"concat('key-', id % {KEYS}) AS key", f"cast('{PAYLOAD.decode()}' AS binary) AS data"
        frame = self.spark.range(self.rows).selectExpr(key, data)
        frame.write.format("seriatim").options(**self.options(self.topic)).mode("append").save()


Work = Callable[[], None]


def seconds(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Comparison(NamedTuple):
    """The best times of the loop and of Spark, in seconds."""

    name: str
    rows: int
    by_loop: float
    by_spark: float

    @property
    def ratio(self) -> float:
        """How fast Spark is, where the loop is 1."""
        return self.by_loop / self.by_spark

    def __str__(self) -> str:
        loop, spark = self.rows / self.by_loop, self.rows / self.by_spark
        return f"{self.name:<8} {loop:>12,.0f} rows/s in a loop {spark:>12,.0f} rows/s with Spark {self.ratio:>6.2f}×"


def compare(bench: Bench, name: str, loop: Work, spark: Work, *, writes: bool) -> Comparison:
    times: dict[Work, list[float]] = {loop: [], spark: []}
    for _ in range(ROUNDS + 1):  # the first round starts Spark's Python processes
        for work, taken in times.items():
            if writes:
                bench.new_topic()
            taken.append(seconds(work))
    by_loop, by_spark = (min(taken[1:]) for taken in times.values())
    return Comparison(name, bench.rows, by_loop, by_spark)


def compare_both(spark: SparkSession, rows: int = ROWS) -> Iterator[Comparison]:
    """Source and sink in a session that is there."""
    register(spark)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), rows, spark)
        yield compare(bench, "source", bench.read_in_a_loop, bench.read_with_spark, writes=False)
        yield compare(bench, "sink", bench.write_in_a_loop, bench.write_with_spark, writes=True)


def main(rows: int = ROWS) -> None:
    spark = local_session("bench")
    for comparison in compare_both(spark, rows):
        print(comparison, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
