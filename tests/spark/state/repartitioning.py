"""State repartitioned in this process, by a function of the test: users have Spark do it (``state_admin``)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from seriatim.spark.kernel.arrays import Ints
from seriatim.spark.state.batch_versions import StateFolder
from seriatim.spark.state.repartition import cut, put_together


def by_function(assign: Callable[[pa.Array], Ints]) -> Callable[[StateFolder, StateFolder, list[int]], None]:
    """For ``repartition``: ``assign`` gives the number of the partition of each key."""

    def rewrite(old: StateFolder, new: StateFolder, batches: list[int]) -> None:
        for batch in batches:
            cuts = []
            for number in range(old.binding.partitions):
                state = old.read(number, batch).partition
                cuts.append(cut(state, assign(state.keys), new.binding.partitions))
            for number, pieces in enumerate(zip(*cuts, strict=True)):
                put_together(new, number, batch, pieces)

    return rewrite
