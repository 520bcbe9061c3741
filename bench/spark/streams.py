"""A trace as a stream, a file a batch, and what is done with it. Everybody writes to Spark's ``noop`` sink."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from bench.spark.peer import OUTPUT, Resequencer
from bench.spark.trace import SCHEMA, Trace
from seriatim.spark import resequence
from seriatim.spark.compatibility import shuffle_to
from seriatim.spark.frames.dispatch import prepared_stream
from seriatim.spark.frames.preparation import BEGAN, PARTITION, TIME
from seriatim.spark.frames.resequence import Choices
from seriatim.spark.frames.stream import partition_of, with_metrics
from seriatim.spark.tagged import LEDGER, METRICS, POSITION, Tag

Work = Callable[[DataFrame, Trace, str], DataFrame]
"""What is done with a stream; the text is a folder of its own."""
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]
STORE = "spark.sql.streaming.stateStore"
PEER_SETTINGS = {
    f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
CORES = os.cpu_count() or 1


def limit(stream: DataFrame, _trace: Trace, _folder: str) -> DataFrame:
    """The least that anybody has to do."""
    return stream.repartition("device")


def through_python(stream: DataFrame, trace: Trace, folder: str) -> DataFrame:
    """The least that anybody has to do who decides in Python: every row goes there, and comes back."""
    return limit(stream, trace, folder).mapInArrow(unchanged, SCHEMA)


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def resequenced(stream: DataFrame, trace: Trace, folder: str) -> DataFrame:
    return stream.transform(rules(trace, folder))


def rules(trace: Trace, folder: str) -> Choices:
    return resequence(
        key="device",
        sequence="seq",
        arrival="arrived",
        start=0,
        gap_timeout=trace.gap_timeout,
        state=f"{folder}/state",
        partitions=CORES,
    )


# -- step by step -------------------------------------------------------------------------------------------------------


def with_partition_and_time(stream: DataFrame, _trace: Trace, _folder: str) -> DataFrame:
    return _to_its_partition(_with_columns(stream))


def with_time_of_batch(stream: DataFrame, _trace: Trace, _folder: str) -> DataFrame:
    """By the generator that adaptive execution does not remove."""
    return _to_its_partition(_with_columns(stream).select("*", _time_of_batch()))


def _time_of_batch() -> Column:
    return F.stack(F.lit(1), F.current_timestamp().cast("double")).alias(BEGAN)


def with_columns_of_output(stream: DataFrame, trace: Trace, folder: str) -> DataFrame:
    """Each row comes back as an ordered one, with the columns that a ledger entry would have."""
    output = prepared_stream(stream, rules(trace, folder))[0].output_schema()
    return _to_its_partition(_with_columns(stream).select("*", _time_of_batch()), as_if_ordered, output)


def as_if_ordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        added = {"_tag": pa.repeat(str(Tag.ORDERED), len(batch)), POSITION.name: pa.array(range(len(batch)))}
        added |= {field.name: pa.nulls(len(batch), field.type) for field in LEDGER}
        columns = {"_tag": added.pop("_tag"), **dict(zip(COLUMNS, batch.select(COLUMNS).columns, strict=True)), **added}
        yield pa.RecordBatch.from_pydict(columns)


def _with_columns(stream: DataFrame) -> DataFrame:
    partition = partition_of(F.col("device"), CORES).alias(PARTITION)
    return stream.select("*", F.col("arrived").alias(TIME), partition)


def _to_its_partition(rows: DataFrame, task: Task = unchanged, output: StructType | None = None) -> DataFrame:
    return shuffle_to(rows, CORES, PARTITION).mapInArrow(task, output or rows.schema)


def unobserved(stream: DataFrame, trace: Trace, folder: str) -> DataFrame:
    """In order, without figures for listeners."""
    return with_metrics(*prepared_stream(stream, rules(trace, folder))).filter(F.col("_tag") != METRICS)


STEPS: dict[str, Work] = {
    "read and shuffle": limit,
    "to Python and back": through_python,
    "partition and time of each row": with_partition_and_time,
    "time of the batch": with_time_of_batch,
    "columns of the output": with_columns_of_output,
    "kernel and state": unobserved,
    "figures for listeners": resequenced,
}
"""Each does one thing more than the one before; the last is all of it."""


def by_spark_state(stream: DataFrame, trace: Trace, _folder: str) -> DataFrame:
    """The same with Spark's own state for Python, kept in the faster of the two ways that there are."""
    for name, value in PEER_SETTINGS.items():
        stream.sparkSession.conf.set(name, value)
    return stream.groupBy("device").transformWithStateInPandas(
        Resequencer(trace.gap_timeout), OUTPUT, outputMode="Append", timeMode="None"
    )


class Ran(NamedTuple):
    """What all batches of a query took together, in seconds: from trigger to commit, and of that in the kernel and for
    the state, added up over tasks."""

    seconds: float
    kernel: float
    state: float


def run(spark: SparkSession, work: Work, trace: Trace) -> Ran:
    """Starting the query does not count."""
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
    figures = [row[METRICS] for batch in batches for row in batch.observedMetrics.values()]
    return Ran(
        sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000,
        *(sum(figure[name] for figure in figures) / 1000 for name in ("kernel_ms", "state_ms")),
    )
