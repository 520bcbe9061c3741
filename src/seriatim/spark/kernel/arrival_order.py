"""Sorts the rows of a task by arrival, deterministically.

A shuffle returns rows in any order. This implements the rule of ``tie_breaking.py`` in numpy; only rows that are equal in every
column may be in either order. Each step processes only rows that the previous one left undecided: unique arrivals cost one sort
of nearly sorted numbers. (Spark could sort them, but does not support that within a stream.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.spark.kernel.arrays import Ints, arange, flat
from seriatim.spark.kernel.keys import hash_keys

Values: TypeAlias = Callable[[Ints], npt.NDArray[Any]]
"""What some rows are compared by."""


LOWEST_INT = -(2**63)


@dataclass(frozen=True, slots=True)
class ArrivalOrder:
    """The columns by which rows are compared: first ``numbers``, one after another, then ``others`` of any type.

    In between, rows are separated by key, which avoids comparing their other columns.
    """

    numbers: tuple[str, ...]
    key: str
    others: tuple[str, ...]


def by_arrival(table: pa.Table, criteria: ArrivalOrder) -> Ints:
    """The indexes of the rows, sorted. Without a column of arrival they arrived together, and the sequence decides."""
    order, places, runs = arange(table.num_rows), arange(table.num_rows), np.zeros(table.num_rows, np.int64)
    for values in _criteria(table, criteria):
        if not places.size:
            break
        rows = order[places]
        sort_key = values(rows)
        sorting = np.argsort(sort_key, kind="stable") if runs[0] == runs[-1] else np.lexsort((sort_key, runs))
        order[places] = rows[sorting]
        places, runs = _undecided(places, runs[sorting], sort_key[sorting])
    return order


def _undecided(places: Ints, runs: Ints, sort_key: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """The indexes of rows that equal a neighbour, and the runs of equal rows."""
    equal = (runs[1:] == runs[:-1]) & (sort_key[1:] == sort_key[:-1])
    begins = np.append(True, ~equal)
    alone = begins & np.append(~equal, True)
    return places[~alone], np.cumsum(begins)[~alone]


def _criteria(table: pa.Table, criteria: ArrivalOrder) -> Iterator[Values]:
    for name in criteria.numbers:
        yield _numbers(table[name]).__getitem__
        if pa.types.is_decimal(table[name].type):  # decimals may differ by less than floats can represent
            yield _SortKeys(table[name])
    yield lambda rows: _hashes(flat(table[criteria.key]).take(pa.array(rows)))
    # Nulls must still be separated from the lowest number, and keys from others with the same hash.
    for name in (*criteria.numbers, criteria.key, *criteria.others):
        yield _SortKeys(table[name])


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers that rise with the values; nulls come before all of them."""
    is_whole = pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)
    column = column.cast(pa.int64() if is_whole else pa.float64())
    numbers: npt.NDArray[Any] = pc.fill_null(column, LOWEST_INT if is_whole else -inf).to_numpy()
    return numbers if is_whole else np.nan_to_num(numbers, nan=inf, posinf=inf, neginf=-inf)


def _hashes(keys: pa.Array) -> npt.NDArray[Any]:
    hashes = np.zeros(len(keys), np.uint64)
    valid = keys.is_valid()
    hashes[valid.to_numpy(zero_copy_only=False)] = hash_keys(keys.filter(valid))
    return hashes


# -- values of any type ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SortKeys:
    """The sort keys of a column of any type."""

    column: pa.ChunkedArray

    def __call__(self, rows: Ints) -> Ints:
        return ranks(_sort_keys(self.column.take(pa.array(rows))))


def ranks(sort_keys: Sequence[Any]) -> Ints:
    """The rank of each value among all of them; equal values have equal ranks."""
    found, rank, before = np.zeros(len(sort_keys), np.int64), 0, None
    for place in sorted(range(len(sort_keys)), key=sort_keys.__getitem__):
        rank += before is not None and sort_keys[place] != before
        found[place], before = rank, sort_keys[place]
    return found


def row_sort_keys(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The sort keys of whole rows, in these columns."""
    columns = [_sort_keys(rows[name]) for name in names]
    return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def _sort_keys(values: pa.ChunkedArray) -> list[Any]:
    """Keys that Python sorts as Spark sorts the values of a column (``tie_breaking.comparable``)."""
    if pa.types.is_temporal(values.type) and not pa.types.is_interval(values.type):
        # Python's dates support fewer years.
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return [_sort_key(value, values.type) for value in values.to_pylist()]


def _sort_key(value: Any, kind: pa.DataType) -> Any:
    """Null comes first, NaN after all numbers, and a map is the list of its entries, sorted by key."""
    if value is None:
        return ()
    if pa.types.is_map(kind):
        return (sorted((_sort_key(key, kind.key_type), _sort_key(item, kind.item_type)) for key, item in value),)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ([_sort_key(item, kind.value_type) for item in value],)
    if pa.types.is_struct(kind):
        return ([_sort_key(value[field.name], field.type) for field in kind],)
    if isinstance(value, float):
        return (isnan(value), 0.0 if isnan(value) else value)
    return (value,)
