"""Puts a stream in order: a shuffle, a sort and the kernel, with its state beside the query.

Rules
-----
1. The rows of a key always go to the same partition, and the number of partitions is fixed. It is stored with the state, and
   every row has its partition: a task that gets rows of another partition fails.
2. A task reads the state of the previous batch, decides, writes the state of its own batch, and only then returns the first
   row. Spark provides its query, batch and partition.
3. In processing time all rows of a batch arrive at the batch's time in Spark's own offset log, so a repeated batch decides the
   same. Ticks (``ticks.py``) trigger batches while gaps are open, even without rows. In event time the times are those of the
   rows, and a partition without rows does not advance. A row whose time is more than ``max_ahead`` later than that of its
   batch in Spark's log is invalid, also when the batch is repeated.
4. The last row of a task has its metrics (``tagged.METRICS``). Their sums are an observed metric of the query, and the row is
   removed. Only a declared pipeline gets it: there it says where a task has put rows that it does not return to Spark.

Theory of operation
-------------------
The shuffle sends a row to the partition that a column names. The count is explicit, so adaptive execution, which merges
small partitions, does not change it. But if a shuffle turns out to be empty, ours or an earlier one, adaptive execution
replaces it and every projection, filter and shuffle on top of it by an empty relation without tasks: the batch would leave no
state for the next one. It stops at generators. So one (``stack``) adds the last column, right before our shuffle, and nothing
is between the shuffle and the kernel.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.utils import is_remote

from seriatim.core.validation import require_whole
from seriatim.errors import FailedPrecondition, StateMismatch
from seriatim.spark.compatibility import shuffle_to
from seriatim.spark.frames.columns import column
from seriatim.spark.frames.preparation import BEGAN, PARTITION, TICK, TIME, Preparation, batches_of, table_of
from seriatim.spark.frames.resequence import StreamOptions
from seriatim.spark.frames.ticks import read_ticks
from seriatim.spark.identity import BatchIdentity, TaskIdentity, task_identity
from seriatim.spark.kernel.arrival_order import ArrivalOrder, by_arrival
from seriatim.spark.kernel.interfaces import MACHINE, BatchOutcome, PartitionKernel
from seriatim.spark.state.batch_versions import PartitionKinds, StateFolder, require_continuable
from seriatim.spark.state.binding import PAYLOAD, ZONE, read_binding
from seriatim.spark.state.files import files_at, location_for_tasks
from seriatim.spark.tagged import METRICS, Tag

RETAINED = "spark.sql.streaming.minBatchesToRetain"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
MIN_TICK_S, MAX_TICK_S = 0.1, 10.0
HOST_PROBES = 64
"""How many tasks are asked where they run: several for each executor of a small cluster."""
OBSERVED = "seriatim"
"""How the name of the observed metric begins; the folder of the state follows, because a query may have several."""


class Delivery(Protocol):
    """Writes the ordered rows of a task to their destination, instead of Spark."""

    def __call__(self, task: TaskIdentity, rows: pa.Table) -> Any:
        """Put the rows there, and return what the driver has to know, as JSON has it."""


def put_stream_in_order(
    preparation: Preparation, kernel: PartitionKernel, streaming: StreamOptions, batch: BatchIdentity | None = None
) -> DataFrame:
    """The tagged stream, or one ``batch`` of it."""
    tagged = with_metrics(preparation, kernel, streaming, batch)
    return (tagged if batch else observed(tagged, streaming)).filter(F.col("_tag") != METRICS)


def observed(tagged: DataFrame, streaming: StreamOptions) -> DataFrame:
    """The tagged stream, which reports its metrics to listeners."""
    settings = tagged.sparkSession.conf
    root = files_at(location_for_tasks(streaming.folder, lambda name: settings.get(name, None))).root
    return tagged.observe(f"{OBSERVED}:{root}", summed_metrics())


def summed_metrics() -> Column:
    """The sums of all tasks' metrics, as one map."""
    figures = F.when(
        F.col("_tag") == METRICS, F.from_json(F.get_json_object("_detail", "$.figures"), "map<string,bigint>")
    )
    nothing = F.from_json(F.lit("{}"), "map<string,bigint>")

    def added(some: Column, more: Column) -> Column:
        return F.map_zip_with(some, more, lambda _, one, other: F.coalesce(one, F.lit(0)) + F.coalesce(other, F.lit(0)))

    return F.aggregate(F.collect_list(figures), nothing, added).alias(METRICS)


def with_metrics(
    preparation: Preparation,
    kernel: PartitionKernel,
    streaming: StreamOptions,
    batch: BatchIdentity | None = None,
    deliver: Delivery | None = None,
) -> DataFrame:
    """The tagged stream with the metrics of its tasks. With a delivery it has no ordered rows."""
    spark, output = preparation.frame.sparkSession, preparation.output_schema()
    state = location_for_tasks(streaming.folder, lambda name: spark.conf.get(name, None))
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
        batch=batch,
        host=only_host(spark, streaming.folder, is_new=batch is None),
        deliver=deliver,
    )
    belongs_to = partition_of(column(preparation.roles.key), count).alias(PARTITION)
    rows = preparation.frame.select("*", *preparation.columns(), belongs_to)
    if preparation.in_processing_time:
        # Soon enough that a timeout is not felt to be longer than it is, and no busier than needed.
        tick = MAX_TICK_S if kernel.timeout is None else min(max(kernel.timeout / 4, MIN_TICK_S), MAX_TICK_S)
        ticks = read_ticks(spark, state, count, tick if streaming.tick is None else streaming.tick, kernel.waits)
        # A tick has nothing of a row but the number of its partition.
        ticks = ticks.withColumn(TICK, F.lit(True))
        rows = rows.withColumn(TICK, F.lit(False)).unionByName(ticks, allowMissingColumns=True)
    began = TIME if preparation.in_processing_time else BEGAN
    rows = rows.select("*", F.stack(F.lit(1), F.current_timestamp().cast("double")).alias(began))
    return shuffle_to(rows, count, PARTITION).mapInArrow(task.run, output)


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


def partition_of(key: Column, count: int) -> Column:
    return F.pmod(F.hash(key), F.lit(count))


def partition_count(spark: SparkSession, state: str, given: int | None) -> int:
    """How many partitions the state has; if there is none yet, as many as are given, or as the session's shuffles have."""
    if given is not None:
        require_whole("partitions", given, 1)
    files = files_at(state)
    bound = read_binding(files)
    if bound is None:
        return given or int(spark.conf.get(SHUFFLE_PARTITIONS) or 1)
    if given not in (None, bound.partitions):
        raise StateMismatch(
            f"the state in {files.root} has {bound.partitions} partitions, and partitions={given} was given: leave it out, or "
            f"stop the query and run 'seriatim pipeline state repartition {files.root} --partitions {given}'"
        )
    return bound.partitions


def only_host(spark: SparkSession, folder: str, *, is_new: bool) -> str | None:
    """The only machine that has the state; None where all have it, and on Spark Connect, where this is not the driver.

    A new query of a cluster first asks tasks where they run: otherwise those that run here would have written state before
    one elsewhere refuses.
    """
    if is_remote() or "://" in folder:
        return None
    here = socket.gethostname()
    if is_new and not str(spark.sparkContext.master).startswith("local"):
        asked = spark.sparkContext.parallelize(range(HOST_PROBES), HOST_PROBES).map(_host_of_task)
        for there in set(asked.collect()):
            _require_host(str(Path(folder).absolute()), here, there)
    return here


def _host_of_task(_: int) -> str:
    return socket.gethostname()


def _require_host(state: str, host: str | None, here: str) -> None:
    """Under the same path another machine has another folder."""
    if host not in (None, here):
        raise FailedPrecondition(
            f"the state is in {state} on {host}, and a task runs on {here}: keep it in an object store or in a folder that "
            f"every machine sees, which is named with file://, such as state='file://{state}'"
        )


@dataclass(frozen=True)
class PartitionTask:
    kernel: PartitionKernel
    order: ArrivalOrder
    schema: pa.Schema
    output: list[str]
    state: str = field(repr=False)
    partitions: int
    meaning: dict[str, str]
    keep: int
    in_processing_time: bool = False
    max_ahead: float = inf
    batch: BatchIdentity | None = None
    host: str | None = None
    """The only machine that has the state; None where all have it."""
    deliver: Delivery | None = field(default=None, repr=False)  # it may hold a secret, too

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _require_host(self.state, self.host, socket.gethostname())
        task = task_identity(self.batch)
        received = list(batches)
        for rows in received:
            self._require_own(rows[PARTITION], task.partition)
        began = perf_counter()
        now = max((_latest(rows[TIME]) for rows in received), default=-inf) if self.in_processing_time else None
        # Ticks have done what they are for when the time was read from them.
        rows_only = [rows.filter(pc.invert(rows[TICK])) if TICK in rows.schema.names else rows for rows in received]
        table = table_of(rows_only, self.schema)
        folder = StateFolder(
            self.state,
            query=task.query,
            partitions=self.partitions,
            meaning=self.meaning,
            kinds=kinds_of(self.kernel, self.meaning),
            keep=self.keep,
            waits=self.kernel.waits,
        )
        opening = perf_counter()
        known = folder.open(task.partition, task.batch, lambda: self.kernel.new_partition(self.schema))
        known.partition.adopt(self.schema)
        opened = perf_counter()
        outcome = self.kernel.run(known.partition, table, now, by_arrival(table, self.order), self._limit(received))
        decided = perf_counter()
        is_ordered = pc.equal(outcome.table["_tag"], str(Tag.ORDERED))
        figures = figures_of(table.num_rows, outcome, is_ordered)
        tagged, delivered = outcome.table.select(self.output), None
        with ThreadPoolExecutor(1) as beside:
            written = beside.submit(folder.commit, known, task.partition, task.batch, outcome)
            if self.deliver is not None:  # this gives no row to Spark yet, and need not wait for the state
                delivered = self.deliver(task, tagged.slice(0, figures[Tag.ORDERED]))
                tagged = tagged.slice(figures[Tag.ORDERED])
            written.result()
        figures |= {
            **asdict(known.partition.tally),
            "kernel_ms": round(1000 * (decided - opened + opening - began)),
            "state_ms": round(1000 * (perf_counter() - decided + opened - opening)),
        }
        yield from batches_of(tagged, self.output)
        report = {"_tag": METRICS, "_detail": json.dumps({"figures": figures, "delivered": delivered})}
        fields = [outcome.table.schema.field(name) for name in self.output]
        yield pa.RecordBatch.from_pylist([report], pa.schema(fields))

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


def figures_of(rows: int, outcome: BatchOutcome, is_ordered: pa.ChunkedArray) -> dict[str, int]:
    """How many rows came and left by tag, what each reason of the ledger is about, and why keys took the slow path."""
    counters = outcome.counters
    figures = Counter(rows=rows, slow_keys=counters.slow_keys, slow_rows=counters.slow_rows)
    figures.update({f"slow/{cause}": keys for cause, keys in counters.causes.items()})
    figures[Tag.ORDERED] = pc.sum(is_ordered).as_py() or 0
    others = outcome.table.select(["_tag", "_reason", "_size"]).filter(pc.invert(is_ordered))
    # An entry about a key that expired is about no message.
    sizes = pc.max_element_wise(others["_size"], 1)
    counted = (
        others.set_column(2, "_size", sizes)
        .group_by(["_tag", "_reason"], use_threads=False)
        .aggregate([("_size", "count"), ("_size", "sum")])
    )
    for tag, reason, rows_of_it, size in zip(*(values.to_pylist() for values in counted.columns), strict=True):
        figures[tag] += rows_of_it
        if tag == Tag.LEDGER:
            figures[f"{Tag.LEDGER}/{reason}"] += size
    return dict(figures)
