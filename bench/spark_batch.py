"""Batch resequence and audit on Spark, each against the least that any answer must do, side by side.

Run ``python -m bench.spark_batch [rows]``. The limit of a resequence is to read, repartition by key and sort; that of an audit
to read with a hash of the payload, repartition and sort. Ratios count: 1.0 means that nothing was added.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from seriatim.spark import audit, ordered, resequence
from seriatim.spark.session import local_session

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


def seconds(work: Work, trace: DataFrame) -> float:
    begin = time.perf_counter()
    work(trace).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def compare(name: str, limit: Work, ours: Work, trace: DataFrame, keys: int, rows: int) -> None:
    """Take turns, so that whatever else the machine does befalls both."""
    times = [(seconds(limit, trace), seconds(ours, trace)) for _ in range(ROUNDS + 1)][1:]
    ratio = statistics.median(floor / taken for floor, taken in times)
    floor, taken = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"{name:12} {keys:>7,} keys: limit {floor:6.2f} s, ours {taken:6.2f} s ({rows / taken:>9,.0f} rows/s), {ratio:.2f}×"
    )


def main(rows: int) -> None:
    spark = local_session("bench", settings={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as folder:
        for keys in KEYS:
            path = Path(folder) / str(keys)
            make_trace(spark, rows, keys, path)
            trace = spark.read.parquet(str(path))
            compare("resequence", resequence_limit, resequenced, trace, keys, rows)
            compare("audit", audit_limit, audited, trace, keys, rows)
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
