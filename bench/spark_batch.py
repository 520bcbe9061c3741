"""Batch resequence and audit on Spark, each beside the least that any answer must do. ``bench.spark`` measures them.

The limit of a resequence is to read, repartition by key and sort; that of an audit to read with a hash of the payload,
repartition and sort.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from seriatim.spark import audit, ordered, resequence

Work = Callable[[DataFrame], DataFrame]


def resequence_limit(trace: DataFrame) -> DataFrame:
    return trace.repartition("device").sortWithinPartitions("device", "seq", "arrived")


def resequenced(trace: DataFrame) -> DataFrame:
    return ordered(trace.transform(resequence(key="device", sequence="seq", arrival="arrived")))


def audit_limit(trace: DataFrame) -> DataFrame:
    hashed = trace.select("device", "seq", "arrived", F.xxhash64("payload").alias("digest"))
    return hashed.repartition("device").sortWithinPartitions("device", "arrived")


def audited(trace: DataFrame) -> DataFrame:
    return trace.transform(audit(key="device", sequence="seq", arrival="arrived", payload="payload"))
