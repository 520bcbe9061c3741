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
from seriatim.spark.edge_nodes.state import EDGE_NODES, NodePartition
from seriatim.spark.kernel.arrays import Ints, arange
from seriatim.spark.kernel.partition import Partition
from seriatim.spark.state.files import files_at
from seriatim.spark.state.repartition import repartition
from seriatim.spark.state.versions import PartitionKinds, StateFolder, bound_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


KINDS: PartitionKinds = {None: Partition, EDGE_NODES: NodePartition}


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
    folder = bound_folder(state, KINDS)
    batches = _complete(folder)
    parts = [folder.read(number, batches[-1]).partition for number in range(folder.binding.partitions)]
    return StateInfo(
        location=folder.files.root,
        query=folder.binding.query,
        batch=batches[-1],
        versions=len(batches),
        partitions=tuple(
            PartitionInfo(number, len(part), part.held_count, part.gap_count, part.next_due())
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
    folder = bound_folder(state, KINDS)
    batch = _complete(folder)[-1]
    for number in range(folder.binding.partitions):
        yield folder.read(number, batch).partition.waiting()


def held(spark: SparkSession, state: str) -> DataFrame:
    """The rows of a stream that wait, as they were after its last batch: their columns, and ``partition.WAITING``."""
    from pyspark.sql.pandas.types import from_arrow_schema

    folder = bound_folder(state, KINDS)
    batch, count, location = _complete(folder)[-1], folder.binding.partitions, folder.files.root
    schema = from_arrow_schema(folder.read(0, batch).partition.waiting().schema)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbered in numbers:
            for number in numbered["id"].to_pylist():
                yield from bound_folder(location, KINDS).read(number, batch).partition.waiting().to_batches()

    return spark.range(0, count, 1, count).mapInArrow(read, schema)


# -- another partition count --------------------------------------------------------------------------------------------


def repartition_state(spark: SparkSession, state: str, partitions: int) -> list[int]:
    """Change the partition count of a stopped query's state. Start the query again with the new count, or without naming one.

    Returns the batches that the query can continue from. If it is interrupted, either the old count or the new one holds.
    """
    query = bound_folder(state).binding.query
    if query in {active.id for active in spark.streams.active}:
        raise FailedPrecondition(f"query {query} is running: stop it, and then repartition its state")
    return repartition(files_at(state), partitions, lambda keys: _assigned(spark, keys, partitions), KINDS)


def _assigned(spark: SparkSession, keys: pa.Array, count: int) -> Ints:
    """The partition of each key, by the hash of the shuffle itself."""
    from pyspark.sql import functions as F  # noqa: N812

    from seriatim.spark.frames.stream import partition_of

    numbered = spark.createDataFrame(pa.table({"key": keys, "number": arange(len(keys))}))
    found = numbered.select("number", partition_of(F.col("key"), count).alias("partition")).toArrow()
    assigned = np.empty(len(keys), np.int64)
    assigned[found["number"].to_numpy()] = found["partition"].to_numpy()
    return assigned
