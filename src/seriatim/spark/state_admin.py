"""Operations on the state of a stream: show and count held rows, change the partition count.

Reading is safe while the query runs, because versions are complete. The partition count can be changed only while the query is
stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seriatim.errors import FailedPrecondition, StateMismatch
from seriatim.spark.edge_nodes.state import EDGE_NODES, NodePartition
from seriatim.spark.kernel.arrays import Ints
from seriatim.spark.kernel.partition_state import Partition
from seriatim.spark.state.batch_versions import PartitionKinds, StateFolder, bound_folder
from seriatim.spark.state.binding import Binding
from seriatim.spark.state.files import location_for_tasks
from seriatim.spark.state.repartition import cut, put_together, repartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


KINDS: PartitionKinds = {None: Partition, EDGE_NODES: NodePartition}


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The size of one partition. ``due`` is infinite if no deadline is set."""

    partition: int
    keys: int
    held: int
    gaps: int
    due: float


@dataclass(frozen=True, slots=True)
class StateInfo:
    """The state after ``batch``, the last one that all partitions have."""

    location: str
    query: str
    batch: int
    versions: int
    partitions: tuple[PartitionInfo, ...]


def inspect_state(state: str) -> StateInfo:
    """The size of a state, partition by partition. Only headers are read."""
    folder = bound_folder(state, KINDS)
    batches = _complete(folder)
    parts = []
    for number in range(folder.binding.partitions):
        tally, due = folder.tally(number, batches[-1])
        parts.append(PartitionInfo(number, tally.keys, tally.held, tally.gaps, due))
    return StateInfo(folder.files.root, folder.binding.query, batches[-1], len(batches), tuple(parts))


def count_held(state: str) -> int:
    """The number of held rows. Only headers are read."""
    return bound_folder(state, KINDS).count_held()


def _complete(folder: StateFolder) -> list[int]:
    batches = folder.complete_batches()
    if not batches:
        raise StateMismatch(
            f"no batch of the state in {folder.files.root} is there for all partitions: its first one is not done yet"
        )
    return batches


# -- what waits ---------------------------------------------------------------------------------------------------------


def held_rows(state: str) -> Iterator[pa.Table]:
    """The held rows, partition by partition."""
    folder = bound_folder(state, KINDS)
    batch = _complete(folder)[-1]
    for number in range(folder.binding.partitions):
        yield folder.read(number, batch).partition.waiting()


def _location_in(spark: SparkSession, state: str) -> str:
    return location_for_tasks(state, lambda name: spark.conf.get(name, None))


def held(spark: SparkSession, state: str) -> DataFrame:
    """The rows of a stream that wait, as they were after its last batch: their columns, and ``partition.WAITING``."""
    from pyspark.sql.pandas.types import from_arrow_schema

    location = _location_in(spark, state)
    folder = bound_folder(location, KINDS)
    batch, count = _complete(folder)[-1], folder.binding.partitions
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
    location = _location_in(spark, state)
    query = bound_folder(location).binding.query
    if query in {active.id for active in spark.streams.active}:
        raise FailedPrecondition(f"query {query} is running: stop it, and then repartition its state")
    return repartition(location, partitions, partial(_rewrite, spark, location), KINDS)


def _rewrite(spark: SparkSession, location: str, old: StateFolder, new: StateFolder, batches: list[int]) -> None:
    """A task for each old partition gives out its keys, is told by the hash of the shuffle itself to which partition each of
    them belongs now, and cuts the partition. After a shuffle a task for each new partition puts it together."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    from seriatim.spark.compatibility import shuffle_to
    from seriatim.spark.frames.stream import partition_of

    work = _Repartitioning(location, batches, new.binding)
    key_type = old.read(0, batches[-1]).partition.key_type
    keyed = from_arrow_schema(pa.schema({"number": pa.int64(), "batch": pa.int64(), "key": key_type}))
    before, after = old.binding.partitions, new.binding.partitions
    keys = spark.range(0, before, 1, before).mapInArrow(work.give_out_keys, keyed)
    assigned = keys.select("number", "batch", partition_of(F.col("key"), after).alias("target"))
    pieces = assigned.mapInArrow(work.cut_partitions, "target int, batch bigint, piece binary")
    written = shuffle_to(pieces, after, "target").mapInArrow(work.put_together, "target int")
    if written.count() != after * len(batches):
        raise FailedPrecondition(f"not every partition of the state in {old.files.root} was written: try again")


@dataclass(frozen=True)
class _Repartitioning:
    """The work of tasks that change a partition count."""

    location: str = field(repr=False)
    batches: list[int]
    binding: Binding

    def give_out_keys(self, numbered: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Before the keys of a partition comes a null, because a partition without keys has something to say, too."""
        folder = bound_folder(self.location, KINDS)
        for number in (number for rows in numbered for number in rows["id"].to_pylist()):
            for batch in self.batches:
                keys = folder.read(number, batch).partition.keys
                keys = pa.concat_arrays([pa.nulls(1, keys.type), keys])
                place = [pa.array(np.full(len(keys), value, np.int64)) for value in (number, batch)]
                yield pa.RecordBatch.from_arrays([*place, keys], ["number", "batch", "key"])

    def cut_partitions(self, assigned: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        targets: dict[tuple[int, int], list[Ints]] = {}
        for rows in assigned:
            number, batch, target = (column.to_numpy() for column in rows.columns)
            for place in dict.fromkeys(zip(number.tolist(), batch.tolist(), strict=True)):
                targets.setdefault(place, []).append(target[(number == place[0]) & (batch == place[1])])
        folder, count = bound_folder(self.location, KINDS), self.binding.partitions
        for (of, at), parts in targets.items():
            pieces = cut(folder.read(of, at).partition, np.concatenate(parts)[1:], count)
            columns = [pa.array(range(count), pa.int32()), pa.array([at] * count), pa.array(pieces, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["target", "batch", "piece"])

    def put_together(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces: dict[tuple[int, int], list[bytes]] = {}
        for rows in given:
            for target, batch, piece in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                pieces.setdefault((target, batch), []).append(piece)
        own = self.binding
        folder = StateFolder(
            self.location, query=own.query, partitions=own.partitions, meaning=own.meaning, kinds=KINDS
        )
        for (target, batch), parts in pieces.items():
            put_together(folder, target, batch, parts)
            yield pa.RecordBatch.from_arrays([pa.array([target], pa.int32())], ["target"])
