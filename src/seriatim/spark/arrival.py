"""The rows of a task in the order of their arrival, the same for every attempt.

Rows come out of a shuffle in any order. They are sorted by arrival; where that is equal by epoch, number and key, and at last
by all their columns, so that only rows that nothing tells apart may go either way. Each step looks only at rows that
the one before left undecided: unique arrivals cost one sort of numbers that are nearly sorted. (Spark could sort them,
but refuses to within a stream.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.spark.arrays import Ints, arange, flat
from seriatim.spark.keyindex import hash_keys

Values: TypeAlias = Callable[[Ints], npt.NDArray[Any]]
"""What some rows are compared by."""


def by_arrival(table: pa.Table, *, arrival: str | None, epoch: str | None, sequence: str, key: str) -> Ints:
    """The numbers of the rows, in order. Without a column of arrival they arrived together, and the sequence decides."""
    order, places, runs = arange(table.num_rows), arange(table.num_rows), np.zeros(table.num_rows, np.int64)
    for values in _criteria(table, [name for name in (arrival, epoch, sequence) if name is not None], key):
        if not places.size:
            break
        rows = order[places]
        worth = values(rows)
        sorting = np.argsort(worth, kind="stable") if runs[0] == runs[-1] else np.lexsort((worth, runs))
        order[places] = rows[sorting]
        places, runs = _undecided(places, runs[sorting], worth[sorting])
    return order


def _undecided(places: Ints, runs: Ints, worth: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """The places of rows that equal a neighbour, and the runs of equals that they form."""
    equal = (runs[1:] == runs[:-1]) & (worth[1:] == worth[:-1])
    begins = np.append(True, ~equal)
    alone = begins & np.append(~equal, True)
    return places[~alone], np.cumsum(begins)[~alone]


def _criteria(table: pa.Table, numbers: list[str], key: str) -> Iterator[Values]:
    for name in numbers:
        yield _numbers(table[name]).__getitem__
    yield lambda rows: _hashes(flat(table[key]).take(pa.array(rows)))
    yield lambda rows: _texts(table.take(pa.array(rows)))


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers that rise with the values. Which stands for no value does not matter, as long as it is always the same."""
    is_whole = pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)
    column = column.cast(pa.int64() if is_whole else pa.float64())
    numbers: npt.NDArray[Any] = pc.fill_null(column, 0).to_numpy()
    return numbers if is_whole else np.nan_to_num(numbers, nan=inf, posinf=inf, neginf=-inf)


def _hashes(keys: pa.Array) -> npt.NDArray[Any]:
    hashes = np.zeros(len(keys), np.uint64)
    valid = keys.is_valid()
    hashes[valid.to_numpy(zero_copy_only=False)] = hash_keys(keys.filter(valid))
    return hashes


def _texts(rows: pa.Table) -> npt.NDArray[Any]:
    return np.unique([repr(row) for row in rows.to_pylist()], return_inverse=True)[1]
