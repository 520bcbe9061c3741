"""Ticks: a source that brings a batch when time alone has something to decide.

An idle stream runs no batch, so no timeout would ever fire. This source is read beside the stream. Every ``tick`` seconds it
looks into the state, and when something is due there it has news: one row for each partition, so that each of them
hears the time of the batch. Otherwise it has none, and costs nothing but the look.

Its offset is the number of ticks so far. What a tick decides comes from the time that Spark logs for its batch, so a batch
that is run again decides the same, whatever the state says then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import IntegerType, StructField, StructType

from seriatim.errors import StateMismatch
from seriatim.spark.frames.preparation import PARTITION
from seriatim.spark.state.versions import bound_folder

FORMAT = "seriatim-ticks"


def read_ticks(spark: SparkSession, state: str, partitions: int, tick: float) -> DataFrame:
    """A stream of one row for each partition, whenever something is due in the state."""
    spark.dataSource.register(TickDataSource)
    reader = spark.readStream.format(FORMAT).option("state", state)
    return reader.option("partitions", partitions).option("tick", tick).load()


class TickDataSource(DataSource):
    """What Spark asks first."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType([StructField(PARTITION, IntegerType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's own name
        return TickReader(self.options)


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asked by the driver whether there is news, and by a task for the rows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._state, self._partitions, self._tick = options["state"], int(options["partitions"]), float(options["tick"])
        self._next_look = 0.0
        self._is_last_look = False

    def initialOffset(self) -> dict[str, int]:
        return {"ticks": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is due when such a run begins is decided in it, and nothing later: it has to end."""
        self._is_last_look = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002
        if time.monotonic() < self._next_look:
            return start
        self._next_look = float("inf") if self._is_last_look else time.monotonic() + self._tick
        return {"ticks": start["ticks"] + 1} if self._is_something_due() else start

    def _is_something_due(self) -> bool:
        try:
            # The time of a batch is in whole milliseconds, and is read after this.
            return bound_folder(self._state).due_by(int(time.time() * 1000) / 1000)
        except StateMismatch:  # before the first batch there is no state; that one is missing, its own tasks will say
            return False

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["ticks"])] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.record_batch({PARTITION: pa.array(range(self._partitions), pa.int32())})
