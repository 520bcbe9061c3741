"""A trace as a stream, a file a batch, and what is done with it. Everybody writes to Spark's ``noop`` sink."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from bench.spark.peer import OUTPUT, Resequencer
from bench.spark.trace import SCHEMA, Trace
from seriatim.spark import resequence

Work = Callable[[DataFrame, Trace, str], DataFrame]
"""What is done with a stream; the text is a folder of its own."""
STORE = "spark.sql.streaming.stateStore"
PEER_SETTINGS = {
    f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
CORES = os.cpu_count() or 1


def limit(stream: DataFrame, _trace: Trace, _folder: str) -> DataFrame:
    """The least that anybody has to do."""
    return stream.repartition("device")


def resequenced(stream: DataFrame, trace: Trace, folder: str) -> DataFrame:
    return stream.transform(
        resequence(
            key="device",
            sequence="seq",
            arrival="arrived",
            start=0,
            gap_timeout=trace.gap_timeout,
            state=f"{folder}/state",
            partitions=CORES,
        )
    )


def by_spark_state(stream: DataFrame, trace: Trace, _folder: str) -> DataFrame:
    """The same with Spark's own state for Python, kept in the faster of the two ways that there are."""
    for name, value in PEER_SETTINGS.items():
        stream.sparkSession.conf.set(name, value)
    return stream.groupBy("device").transformWithStateInPandas(
        Resequencer(trace.gap_timeout), OUTPUT, outputMode="Append", timeMode="None"
    )


def seconds(spark: SparkSession, work: Work, trace: Trace) -> float:
    """What all batches took together, from trigger to commit. Starting the query does not count."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(trace.folder))
    with tempfile.TemporaryDirectory() as folder:
        writer = (
            work(stream, trace, folder).writeStream.format("noop").option("checkpointLocation", f"{folder}/offsets")
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    if sum(batch["numInputRows"] for batch in batches) != trace.rows:
        raise RuntimeError(f"not all of {trace.rows} rows were read")
    return float(sum(batch["durationMs"]["triggerExecution"] for batch in batches)) / 1000
