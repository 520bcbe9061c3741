"""Ticks: a source that triggers a batch when only time has something to decide.

An idle stream runs no batch, so no timeout would ever fire. This source is read beside the stream. Every ``tick`` seconds it
checks the state, and when something is due there it returns one row for each partition, so that each of them gets the time of
the batch. Otherwise it has no rows, and costs only the check.

Its offset is the number of ticks so far. What a tick decides comes from the time that Spark logs for its batch, so a batch
that is run again decides the same, whatever the state says then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from seriatim.errors import StateMismatch
from seriatim.spark.compatibility import (
    ReadLimit,
    SupportsTriggerAvailableNow,
    refuse_available_now_wrapper,
    with_position,
)
from seriatim.spark.frames.preparation import PARTITION
from seriatim.spark.state.batch_versions import StateFolder, bound_folder

FORMAT = "seriatim-ticks"
STATE = "stateUrl"
"""The option that names the state. Spark shows no value of an option with such a name."""


def read_ticks(spark: SparkSession, state: str, partitions: int, tick: float, waits: str) -> DataFrame:
    """A stream of one row for each partition, whenever something is due in the state, or waits there under other options."""
    refuse_available_now_wrapper(spark)
    spark.dataSource.register(TickDataSource)
    reader = spark.readStream.format(FORMAT).option(STATE, state)
    return reader.option("partitions", partitions).option("tick", tick).option("waits", waits).load()


class TickDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType([StructField(PARTITION, IntegerType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's own name
        return TickReader(self.options)


@with_position
class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver asks it whether something is due, and a task asks it for the rows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._location, self._waits = options[STATE], options["waits"]
        self._partitions, self._tick = int(options["partitions"]), float(options["tick"])
        self._state: StateFolder | None = None
        self._next_check = 0.0
        self._is_last_check = False

    def initialOffset(self) -> dict[str, int]:
        return {"ticks": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is due when such a run begins is decided in it, and nothing later: it has to end."""
        self._is_last_check = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002
        if time.monotonic() < self._next_check:
            return start
        self._next_check = float("inf") if self._is_last_check else time.monotonic() + self._tick
        return {"ticks": start["ticks"] + 1} if self._is_something_due() else start

    def _is_something_due(self) -> bool:
        try:
            self._state = self._state or bound_folder(self._location, waits=self._waits)
            # The time of a batch is in whole milliseconds, and is read after this.
            return self._state.due_by(int(time.time() * 1000) / 1000)
        except StateMismatch:  # before the first batch there is no state; that one is missing, its own tasks will say
            return False

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["ticks"])] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.record_batch({PARTITION: pa.array(range(self._partitions), pa.int32())})
