"""A stream, put in order: a shuffle, a sort and the kernel, with its state beside the query.

Rules
-----
1. The rows of a key always go to the same partition of the same number of partitions. The count is kept with the state, and
   every row says to which partition it belongs: a task that gets another's rows fails.
2. A task reads the state that the batch before it left, decides, writes the state of its own batch, and only then gives
   out the first row. Which query, batch and partition it is, Spark tells it.
3. In processing time all rows of a batch arrive at the time that Spark's own log of offsets has for the batch: one that is run
   again decides the same. Ticks (``ticks.py``) bring batches while gaps are open, also when no row comes. In event time
   the times are those of the rows, and a partition that gets none stays where it is. A row whose time is more than
   ``max_ahead`` later than that of its batch in Spark's log is invalid, again whenever it is run.

Theory of operation
-------------------
``repartitionById`` sends a row to the partition that a column names. The count is explicit, so adaptive execution, which
makes few partitions of many small ones, leaves it alone. One of its rules has to be switched off: where not a single row
reaches the shuffle, it would run no task at all, and the batch would leave no state for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.options import require_whole
from seriatim.errors import StateMismatch
from seriatim.spark.frames.columns import column
from seriatim.spark.frames.options import StreamOptions
from seriatim.spark.frames.preparation import BEGAN, PARTITION, TICK, TIME, Preparation, batches_of, table_of
from seriatim.spark.frames.ticks import read_ticks
from seriatim.spark.identity import task_identity
from seriatim.spark.kernel.arrival_order import ArrivalOrder, by_arrival
from seriatim.spark.kernel.interfaces import MACHINE, PartitionKernel
from seriatim.spark.state.binding import PAYLOAD, ZONE, read_binding
from seriatim.spark.state.files import files_at
from seriatim.spark.state.versions import PartitionKinds, StateFolder, require_continuable

EXCLUDED_RULES = "spark.sql.adaptive.optimizer.excludedRules"
EMPTY_RELATIONS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
MIN_TICK_S, MAX_TICK_S = 0.1, 10.0


def put_stream_in_order(preparation: Preparation, kernel: PartitionKernel, streaming: StreamOptions) -> DataFrame:
    """The tagged stream."""
    spark, output = preparation.frame.sparkSession, preparation.output_schema()
    state = files_at(streaming.folder).root
    count = partition_count(spark, state, streaming.partitions)
    schema, meaning = preparation.arrow_schema(), meaning_of(preparation, kernel)
    require_continuable(state, meaning, schema, preparation.roles.key, kinds_of(kernel, meaning))
    task = PartitionTask(
        kernel=kernel,
        order=preparation.arrival_order,
        schema=schema,
        output=output.names,
        state=state,
        partitions=count,
        meaning=meaning,
        in_processing_time=preparation.in_processing_time,
        max_ahead=inf if streaming.max_ahead is None else streaming.max_ahead,
        keep=max(2, int(spark.conf.get(RETAINED) or 0)),
    )
    run_empty_batches(spark)
    rows = _with_partitions(preparation, count)
    if preparation.in_processing_time:
        tick = default_tick(kernel.timeout) if streaming.tick is None else streaming.tick
        rows = _with_ticks(rows, read_ticks(spark, state, count, tick))
    rows = rows.repartitionById(count, F.col(PARTITION))
    # Behind the shuffle, which need not carry what is the same for all.
    began = TIME if preparation.in_processing_time else BEGAN
    rows = rows.withColumn(began, F.current_timestamp().cast("double"))
    return rows.mapInArrow(task.run, output)


def _with_partitions(preparation: Preparation, count: int) -> DataFrame:
    belongs_to = partition_of(column(preparation.roles.key), count)
    return preparation.frame.select("*", *preparation.columns(), belongs_to.alias(PARTITION))


def _with_ticks(rows: DataFrame, ticks: DataFrame) -> DataFrame:
    """A tick has nothing of a row but the number of its partition."""
    marked = ticks.withColumn(TICK, F.lit(True))
    return rows.withColumn(TICK, F.lit(False)).unionByName(marked, allowMissingColumns=True)


def meaning_of(preparation: Preparation, kernel: PartitionKernel) -> dict[str, str]:
    """What keys, numbers and times are. State that was made with others would be taken for something that it is not."""
    roles = preparation.roles
    columns = {"key": roles.key, "sequence": roles.sequence, "arrival": roles.arrival, "epoch": roles.epoch}
    return {
        **{name: repr(value) for name, value in columns.items()},
        **kernel.meaning(),
        "time": "'processing'" if preparation.in_processing_time else "'event'",
        **({PAYLOAD: repr(list(roles.payload))} if preparation.compares_payloads else {}),
        **({ZONE: repr(preparation.zone)} if preparation.reads_local_times else {}),
    }


def kinds_of(kernel: PartitionKernel, meaning: dict[str, str]) -> PartitionKinds:
    """What a state of this meaning consists of."""
    return {meaning.get(MACHINE): kernel.partition_type}


def default_tick(timeout: float | None) -> float:
    """Soon enough that a timeout is not felt to be longer than it is, and no busier than needed."""
    return MAX_TICK_S if timeout is None else min(max(timeout / 4, MIN_TICK_S), MAX_TICK_S)


def partition_of(key: Column, count: int) -> Column:
    """The number of the partition that a key belongs to."""
    return F.pmod(F.hash(key), F.lit(count))


def partition_count(spark: SparkSession, state: str, given: int | None) -> int:
    """How many partitions the state has; if there is none yet, as many as are given, or as the session's shuffles have."""
    if given is not None:
        require_whole("partitions", given, 1)
    bound = read_binding(files_at(state))
    if bound is None:
        return given or int(spark.conf.get(SHUFFLE_PARTITIONS) or 1)
    if given not in (None, bound.partitions):
        raise StateMismatch(
            f"the state in {state} has {bound.partitions} partitions, and partitions={given} was given: leave it out, or stop "
            f"the query and run 'seriatim state repartition {state} --partitions {given}'"
        )
    return bound.partitions


def run_empty_batches(spark: SparkSession) -> None:
    """Let every batch run its tasks, also where no row reaches them."""
    excluded = [name for name in (spark.conf.get(EXCLUDED_RULES, "") or "").split(",") if name]
    if EMPTY_RELATIONS not in excluded:
        spark.conf.set(EXCLUDED_RULES, ",".join([*excluded, EMPTY_RELATIONS]))


@dataclass(frozen=True)
class PartitionTask:
    """What a task does with the rows of its partition."""

    kernel: PartitionKernel
    order: ArrivalOrder
    schema: pa.Schema
    output: list[str]
    state: str
    partitions: int
    meaning: dict[str, str]
    keep: int
    in_processing_time: bool = False
    max_ahead: float = inf

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query, batch, partition = task_identity()
        received = list(batches)
        for rows in received:
            self._require_own(rows[PARTITION], partition)
        now = max((_latest(rows[TIME]) for rows in received), default=-inf) if self.in_processing_time else None
        table = table_of(_without_ticks(received), self.schema)
        folder = StateFolder(
            self.state,
            query=query,
            partitions=self.partitions,
            meaning=self.meaning,
            kinds=kinds_of(self.kernel, self.meaning),
            keep=self.keep,
        )
        known = folder.open(partition, batch, lambda: self.kernel.new_partition(self.schema))
        known.partition.adopt(self.schema)
        outcome = self.kernel.run(known.partition, table, now, by_arrival(table, self.order), self._limit(received))
        folder.commit(known, partition, batch, outcome)
        yield from batches_of(outcome.table, self.output)

    def _limit(self, received: list[pa.RecordBatch]) -> float:
        """The latest time that a row of this batch may have; for rows with the time of the batch there is none."""
        began = [rows[BEGAN][0].as_py() for rows in received if rows.num_rows and BEGAN in rows.schema.names]
        return began[0] + self.max_ahead if began else inf

    def _require_own(self, belongs_to: pa.Array, partition: int) -> None:
        strangers = pc.sum(pc.not_equal(belongs_to, partition)).as_py()
        if strangers:
            raise StateMismatch(
                f"partition {partition} of {self.partitions} got {strangers} rows of other partitions: the shuffle was "
                "changed on its way, by adaptive execution or by an operation between it and the kernel"
            )


def _latest(time: pa.Array) -> float:
    """The latest time of some rows; before all times when none has one, which leaves the clock where it is."""
    times = time.to_numpy(zero_copy_only=False)
    return float(np.max(times, where=np.isfinite(times), initial=-inf))


def _without_ticks(received: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows that are rows. Ticks have done what they are for when the time was read from them."""
    return [rows.filter(pc.invert(rows[TICK])) if TICK in rows.schema.names else rows for rows in received]
