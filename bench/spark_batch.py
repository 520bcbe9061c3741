"""Batch resequence and audit on Spark, each beside the least that any answer must do. ``bench.spark`` measures them.

The limit of a resequence is to read, repartition by key and sort; that of an audit to read with a hash of the payload,
repartition and sort. Between the limit and ours is the least of anybody who goes the same way: an SQL that looks at the row
before, and a task in Python that takes the rows of the audit and returns none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from seriatim.spark import audit, ordered, resequence

Work = Callable[[DataFrame], DataFrame]


def resequence_limit(trace: DataFrame) -> DataFrame:
    return trace.repartition("device").sortWithinPartitions("device", "seq", "arrived")


def with_row_before(trace: DataFrame) -> DataFrame:
    rows = trace.repartition("device").withColumn("hash", F.xxhash64("device"))
    rows = rows.sortWithinPartitions("hash", "device", "seq", "arrived", "payload")
    before = Window.partitionBy("hash", "device").orderBy("seq")
    return rows.select("*", F.lag("seq").over(before).alias("before"), F.dense_rank().over(before).alias("place"))


def resequenced(trace: DataFrame) -> DataFrame:
    return ordered(trace.transform(resequence(key="device", sequence="seq", arrival="arrived")))


def audit_limit(trace: DataFrame) -> DataFrame:
    return _narrow(trace).repartition("device").sortWithinPartitions("device", "arrived")


def taken_by_python(trace: DataFrame) -> DataFrame:
    rows = _narrow(trace).repartition("device").withColumn("hash", F.xxhash64("device"))
    return rows.sortWithinPartitions("hash").mapInArrow(nothing, "device string")


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 0).select(["device"])


def _narrow(trace: DataFrame) -> DataFrame:
    return trace.select("device", "seq", "arrived", F.xxhash64("payload").alias("digest"))


def audited(trace: DataFrame) -> DataFrame:
    return trace.transform(audit(key="device", sequence="seq", arrival="arrived", payload="payload"))


RESEQUENCE: tuple[Work, ...] = (resequence_limit, with_row_before, resequenced)
AUDIT: tuple[Work, ...] = (audit_limit, taken_by_python, audited)
"""The limit, the least of anybody who goes the same way, and ours."""
