"""The state of a stream, for those who look after it: what waits, how much there is, and another partition count.

Nothing here is needed while a query runs. Looking is harmless beside one: a version is read whole or not at all. The
partition count can be changed only while the query is stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seriatim.errors import FailedPrecondition, StateMismatch
from seriatim.spark.arrays import Ints, arange
from seriatim.spark.files import files_at
from seriatim.spark.partition import Partition
from seriatim.spark.state import StateFolder, bound_folder, repartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDED = "__seriatim_"
"""How the names of the columns begin that were added for the kernel."""
WAITING = (
    pa.field("_since", pa.float64()),
    pa.field("_first", pa.int64()),
    pa.field("_last", pa.int64()),
    pa.field("_due", pa.float64()),
)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What one partition knows. ``due`` is infinite when nothing will fall due by itself."""

    partition: int
    keys: int
    held: int
    gaps: int
    due: float


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A state as it was after ``batch``, the last that all partitions have."""

    location: str
    query: str
    batch: int
    versions: int
    partitions: tuple[PartitionInfo, ...]


def inspect_state(state: str) -> StateInfo:
    """How much there is in a state."""
    folder = bound_folder(state)
    batches = _complete(folder)
    parts = [folder.read(number, batches[-1]).partition for number in range(folder.binding.partitions)]
    return StateInfo(
        location=folder.files.root,
        query=folder.binding.query,
        batch=batches[-1],
        versions=len(batches),
        partitions=tuple(
            PartitionInfo(number, len(part), len(part.held), len(part.gaps), part.next_due())
            for number, part in enumerate(parts)
        ),
    )


def _complete(folder: StateFolder) -> list[int]:
    batches = folder.complete_batches()
    if not batches:
        raise StateMismatch(
            f"no batch of the state in {folder.files.root} is there for all partitions: its first one is not done yet"
        )
    return batches


# -- what waits ---------------------------------------------------------------------------------------------------------


def held_rows(state: str) -> Iterator[pa.Table]:
    """The rows that wait, partition by partition."""
    folder = bound_folder(state)
    batch = _complete(folder)[-1]
    for number in range(folder.binding.partitions):
        yield waiting_in(folder.read(number, batch).partition)


def waiting_in(partition: Partition) -> pa.Table:
    """The rows that wait in a partition, by key and number, with the first gap of their key.

    ``_since`` is when a row came; ``_first`` to ``_last`` are the numbers that its key waits for, counted on without end
    where the source's numbers wrap, and ``_due`` is when they will be given up. A key that gathers its first rows waits
    for no number.
    """
    order = np.lexsort((partition.held.number, partition.held.owner))
    held = partition.held.take(order)
    names = [name for name in partition.rows.schema.names if not name.startswith(ADDED)]
    table = partition.rows.take(pa.array(held.row)).select(names)
    columns = [pa.array(held.arrival), *_waits_of(partition, held.owner)]
    for field, values in zip(WAITING, columns, strict=True):
        table = table.append_column(field, values)
    return table


def _waits_of(partition: Partition, owner: Ints) -> tuple[pa.Array, pa.Array, pa.Array]:
    """For each held message what its key waits for, and until when."""
    gaps = partition.gaps.take(np.lexsort((partition.gaps.first, partition.gaps.owner)))
    head = np.searchsorted(gaps.owner, owner)
    has_gap = head < len(gaps)
    has_gap[has_gap] = gaps.owner[head[has_gap]] == owner[has_gap]
    head = np.where(has_gap, head, 0)
    due = np.array(partition.facts.start_deadline[owner])
    due[has_gap] = gaps.deadline[head[has_gap]]

    def of_gap(values: Ints) -> pa.Array:
        return pa.array(values[head] if len(values) else arange(len(owner)), mask=~has_gap)

    return of_gap(gaps.first), of_gap(gaps.last), pa.array(due, mask=~np.isfinite(due))


def held(spark: SparkSession, state: str) -> DataFrame:
    """The rows of a stream that wait behind a gap, as they were after its last batch: their columns, and ``WAITING``'s."""
    from pyspark.sql.pandas.types import from_arrow_schema

    folder = bound_folder(state)
    batch, count, location = _complete(folder)[-1], folder.binding.partitions, folder.files.root
    schema = from_arrow_schema(waiting_in(folder.read(0, batch).partition).schema)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbered in numbers:
            for number in numbered["id"].to_pylist():
                yield from waiting_in(bound_folder(location).read(number, batch).partition).to_batches()

    return spark.range(0, count, 1, count).mapInArrow(read, schema)


# -- another partition count --------------------------------------------------------------------------------------------


def repartition_state(spark: SparkSession, state: str, partitions: int) -> list[int]:
    """Divide the state of a stopped query anew. Start it again with the new count, or without naming one.

    Gives the batches that can be gone on from. If it is interrupted, either the old count or the new one holds.
    """
    query = bound_folder(state).binding.query
    if query in {active.id for active in spark.streams.active}:
        raise FailedPrecondition(f"query {query} is running: stop it, and then repartition its state")
    return repartition(files_at(state), partitions, lambda keys: _assigned(spark, keys, partitions))


def _assigned(spark: SparkSession, keys: pa.Array, count: int) -> Ints:
    """The partition of each key, by the hash of the shuffle itself."""
    from pyspark.sql import functions as F  # noqa: N812

    from seriatim.spark.streaming import partition_of

    numbered = spark.createDataFrame(pa.table({"key": keys, "number": arange(len(keys))}))
    found = numbered.select("number", partition_of(F.col("key"), count).alias("partition")).toArrow()
    assigned = np.empty(len(keys), np.int64)
    assigned[found["number"].to_numpy()] = found["partition"].to_numpy()
    return assigned
