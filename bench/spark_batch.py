"""Batch resequence and audit on Spark, each against the least that any answer must do, side by side.

Run ``python -m bench.spark_batch [rows]``. The limit of a resequence is to read, repartition by key and sort; that of an audit
to read with a hash of the payload, repartition and sort. Ratios count: 1.0 means that nothing was added. That of processor time
is told too, because a machine with something else to do spoils the other. The last line is the most memory that Java had.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from seriatim.spark import audit, ordered, resequence
from seriatim.spark.local.session import local_session

ROWS = 2_000_000
KEYS = (1_000, 100_000)
ROUNDS = 3

Work = Callable[[DataFrame], DataFrame]


def make_trace(spark: SparkSession, rows: int, keys: int, path: Path) -> None:
    """A trace with 100 bytes of payload: 10 % displaced, 2 % twice, 0.5 % missing. Seeded: the same on every run."""
    number = F.col("id")
    chance = F.pmod(F.xxhash64(number, F.lit(1)), F.lit(1_000))
    far = F.pmod(F.xxhash64(number, F.lit(2)), F.lit(50 * keys))
    sent = spark.range(rows, numPartitions=4).where(chance >= 5)
    arrival = number * 2 + F.when(chance < 105, 2 * far).otherwise(0)
    arrived = sent.select(
        F.concat(F.lit("device-"), (number % keys).cast("string")).alias("device"),
        F.floor(number / keys).cast("bigint").alias("seq"),
        F.explode(
            F.when((chance >= 105) & (chance < 125), F.array(arrival, arrival + 7 * keys)).otherwise(F.array(arrival))
        ).alias("arrived"),
        F.substring(F.concat(F.sha2(number.cast("string"), 256), F.sha2(number.cast("string"), 256)), 1, 100).alias(
            "payload"
        ),
    )
    arrived.repartitionByRange(4, "arrived").sortWithinPartitions("arrived").write.parquet(str(path))


def resequence_limit(trace: DataFrame) -> DataFrame:
    return trace.repartition("device").sortWithinPartitions("device", "seq", "arrived")


def resequenced(trace: DataFrame) -> DataFrame:
    return ordered(trace.transform(resequence(key="device", sequence="seq", arrival="arrived")))


def audit_limit(trace: DataFrame) -> DataFrame:
    hashed = trace.select("device", "seq", "arrived", F.xxhash64("payload").alias("digest"))
    return hashed.repartition("device").sortWithinPartitions("device", "arrived")


def audited(trace: DataFrame) -> DataFrame:
    return trace.transform(audit(key="device", sequence="seq", arrival="arrived", payload="payload"))


class Cost(NamedTuple):
    seconds: float
    processor_seconds: float


def cost(work: Work, trace: DataFrame) -> Cost:
    java = Path(f"/proc/{java_process(trace.sparkSession)}")
    begin, begin_processor = time.perf_counter(), processor_seconds(java)
    work(trace).write.format("noop").mode("overwrite").save()
    return Cost(time.perf_counter() - begin, processor_seconds(java) - begin_processor)


def java_process(spark: SparkSession) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]  # noqa: SLF001


def processor_seconds(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def most_memory(process: Path) -> str:
    (line,) = (line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return f"{int(line.split()[1]) / 1024:,.0f} MiB"


def compare(name: str, goal: float, limit: Work, ours: Work, trace: DataFrame, keys: int, rows: int) -> None:
    """Take turns, so that whatever else the machine does befalls both. The first turn only warms up."""
    turns = [(cost(limit, trace), cost(ours, trace)) for _ in range(ROUNDS + 1)][1:]
    floor, taken = (statistics.median(one.seconds for one in side) for side in zip(*turns, strict=True))
    ratio, processor = (
        statistics.median(least[at] / most[at] for least, most in turns) for at in range(len(Cost._fields))
    )
    print(
        f"{name:10} {keys:>7,} keys: limit {floor:5.2f} s, ours {taken:5.2f} s ({rows / taken:>9,.0f} rows/s), "
        f"{ratio:.2f}× (goal {goal}×), processor {processor:.2f}×",
        flush=True,
    )


def main(rows: int) -> None:
    spark = local_session("bench", settings={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as folder:
        for keys in KEYS:
            path = Path(folder) / str(keys)
            make_trace(spark, rows, keys, path)
            trace = spark.read.parquet(str(path))
            compare("resequence", 0.95, resequence_limit, resequenced, trace, keys, rows)
            compare("audit", 0.8, audit_limit, audited, trace, keys, rows)
    print(f"most memory of Java: {most_memory(Path(f'/proc/{java_process(spark)}'))}")
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
