"""Puts a static frame in order with the kernel, for options that depend on the order of arrival.

The rows of a key are adjacent, so a task needs no state: it processes chunks of complete keys. At the end of the table all
remaining deadlines fire, so held rows are released or given up. Memory is bounded by a chunk and the largest key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from seriatim.spark.frames.columns import column
from seriatim.spark.frames.preparation import Preparation, batches_of, table_of
from seriatim.spark.kernel.arrays import Ints, flat
from seriatim.spark.kernel.interfaces import PartitionKernel

FOREVER = 1e200
"""A time in which every row of a table arrives."""
END_OF_TIME = 1e300
"""Later than any deadline, even one that is ``FOREVER`` away."""
CHUNK_ROWS = 200_000


def put_table_in_order(preparation: Preparation, kernel: PartitionKernel) -> DataFrame:
    frame, roles = preparation.frame, preparation.roles
    output = preparation.output_schema()
    work = TableTask(kernel, preparation.arrow_schema(), output.names)
    rows = frame.select("*", *preparation.columns()).repartition(column(roles.key))
    return rows.sortWithinPartitions(*preparation.order()).mapInArrow(work.run, output)


@dataclass(frozen=True)
class TableTask:
    kernel: PartitionKernel
    schema: pa.Schema
    output: list[str]
    chunk_rows: int = CHUNK_ROWS

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in self._chunks(batches):
            tagged = self.kernel.run(self.kernel.new_partition(self.schema), chunk, END_OF_TIME).table
            yield from batches_of(_without_endless_times(tagged), self.output)

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Tables of whole keys, of ``chunk_rows`` rows or as many as one key has."""
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            waiting.append(batch)
            count += batch.num_rows
            if count >= self.chunk_rows:
                table = table_of(waiting, self.schema)
                cut = self._last_key_begins(table)
                if cut:
                    yield table.slice(0, cut)
                waiting, count = table.slice(cut).to_batches(), table.num_rows - cut
        if waiting:
            yield table_of(waiting, self.schema)

    def _last_key_begins(self, table: pa.Table) -> int:
        key = flat(table[self.kernel.roles.key])
        others: Ints = np.flatnonzero(pc.fill_null(pc.not_equal(key, key[len(key) - 1]), True))
        return int(others[-1]) + 1 if others.size else 0


def _without_endless_times(tagged: pa.Table) -> pa.Table:
    """What nothing but the end of the table decided has no time."""
    time = tagged["_time"]
    place = tagged.schema.get_field_index("_time")
    known = pc.if_else(pc.less(time, FOREVER), time, pa.scalar(None, pa.float64()))
    return tagged.set_column(place, tagged.schema.field(place), known)
