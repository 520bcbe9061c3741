"""Columns of numpy arrays that belong together, and a few operations on runs of them that numpy lacks.

Rows of one key are adjacent. A *run* is given by ``starts`` and ``ends``, one entry per key; runs may be empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Objects: TypeAlias = npt.NDArray[np.object_]

DTYPES: dict[Any, type] = {"Ints": np.int64, "Floats": np.float64, "Bools": np.bool_, "Objects": np.object_}
WIDTHS = (np.int8, np.int16, np.int32, np.int64)

C = TypeVar("C", bound="Columns")
Pool = TypeVar("Pool", bound="Owned")
Number = TypeVar("Number", np.int64, np.float64)


@dataclass
class Columns:
    """A small table: every field is an array, and all have the same length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self: C, index: Ints | Bools | slice) -> C:
        """The rows selected by an index, a mask or a slice."""
        return type(self)(*(array[index] for array in self.arrays()))

    def put(self: C, index: Ints, other: C) -> None:
        for mine, new in zip(self.arrays(), other.arrays(), strict=True):
            mine[index] = new

    def arrays(self) -> list[npt.NDArray[Any]]:
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def from_rows(cls: type[C], rows: Sequence[tuple[Any, ...]]) -> C:
        columns = zip(*rows, strict=True) if rows else [()] * len(fields(cls))
        return cls(*map(_array_of, columns, fields(cls)))

    @classmethod
    def empty(cls: type[C]) -> C:
        return cls.from_rows(())

    @classmethod
    def concat(cls: type[C], parts: Sequence[C]) -> C:
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.arrays() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def to_arrow(self) -> pa.Table:
        """Integers use the narrowest type: most are small, and what is not stored need not be compressed."""
        return pa.table({field.name: narrow(getattr(self, field.name)) for field in fields(self)})

    @classmethod
    def from_arrow(cls: type[C], table: pa.Table) -> C:
        """A copy, because Arrow's buffers are read-only."""
        return cls(*(np.array(table[field.name].to_numpy(), DTYPES[field.type]) for field in fields(cls)))


@dataclass
class Owned(Columns):
    """A table with several rows per key; ``owner`` is the number of the key."""

    owner: Ints

    @property
    def numbers(self) -> Ints:
        """The column by which the rows of an owner are sorted: the one after the owner."""
        return self.arrays()[1]

    def renumbered(self: Pool, numbers: Ints) -> Pool:
        """The same rows, where ``numbers`` maps each owner to its new number."""
        return replace(self, owner=numbers[self.owner])


def _array_of(values: Sequence[Any], field: Field[Any]) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.empty(len(values), DTYPES[field.type])
    array[:] = values
    return array


def narrow(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype != np.int64:
        return array
    lowest, highest = int(array.min(initial=0)), int(array.max(initial=0))
    kind = next(kind for kind in WIDTHS if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max)
    return array.astype(kind, copy=False)


def arange(count: int) -> Ints:
    return np.arange(count, dtype=np.int64)


def stable_order(numbers: Ints) -> Ints:
    """The stable sorting order of non-negative numbers.

    If a number and its index fit into 64 bits they are sorted as one: numpy sorts plain numbers many times faster than
    it computes an order, and nearly sorted ones another ten times faster.
    """
    bits = len(numbers).bit_length()
    if int(numbers.max(initial=0)) >> (63 - bits):
        return np.argsort(numbers, kind="stable")
    packed = numbers << bits
    packed |= arange(len(numbers))
    packed.sort(kind="stable")
    packed &= (1 << bits) - 1
    return packed


def counting_order(numbers: Ints) -> Ints:
    """The same for unsorted numbers, below 2**32: for 16 bits, numpy uses a radix sort, without comparisons."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if int(numbers.max(initial=0)) >> 16:
        order = order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def filled(count: int, value: object) -> Objects:
    array = np.empty(count, np.object_)
    array[:] = value
    return array


def flat(column: pa.ChunkedArray) -> pa.Array:
    """A column as one chunk, without a copy if it already is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def owners(starts: Ints, ends: Ints) -> Ints:
    """The number of the run that contains each row."""
    return np.repeat(arange(len(starts)), ends - starts)


def run_bounds(owner: Ints, count: int) -> tuple[Ints, Ints]:
    """Where the runs of owners 0 to ``count - 1`` start and end in the sorted array ``owner``."""
    edges = np.searchsorted(owner, arange(count + 1))
    return edges[:-1], edges[1:]


def first_of_each(owner: Ints) -> Bools:
    """Marks the first row of each owner, in a sorted array."""
    first = np.ones(len(owner), dtype=np.bool_)
    np.not_equal(owner[1:], owner[:-1], out=first[1:])
    return first


def last_of_each(owner: Ints) -> Ints:
    """The index of the last row of each owner, in a sorted array."""
    return np.append(np.flatnonzero(owner[1:] != owner[:-1]), arange(len(owner))[-1:])


def reduce_runs(
    ufunc: np.ufunc, values: npt.NDArray[Number], starts: Ints, ends: Ints, into: npt.NDArray[Number]
) -> None:
    """Fold each run of ``values`` into its entry of ``into``; empty runs leave it alone."""
    some = starts < ends
    if some.any():
        into[some] = ufunc(into[some], ufunc.reduceat(values, starts[some]))


def first_at_least(values: npt.NDArray[Number], lo: Ints, hi: Ints, targets: npt.NDArray[Number]) -> Ints:
    """For each target the first index from ``lo`` on whose value is not below it, or ``hi``; values rise."""
    lo, hi = lo.copy(), hi.copy()
    while (searching := np.flatnonzero(lo < hi)).size:
        middle = (lo[searching] + hi[searching]) // 2
        below = values[middle] < targets[searching]
        lo[searching[below]] = middle[below] + 1
        hi[searching[~below]] = middle[~below]
    return lo


def rising(values: Floats, starts: Ints, ends: Ints, floors: Floats) -> Floats:
    """The running maximum of each run, at least the floor of its run."""
    values = values.copy()
    some = starts < ends
    first = starts[some]
    values[first] = np.maximum(values[first], floors[some])
    falls = values[1:] < values[:-1]
    falls[first[1:] - 1] = False
    if not falls.any():
        return values
    # Floats of different runs can't share a line exactly, but their ranks can.
    levels, rank = np.unique(values, return_inverse=True)
    line = owners(starts, ends) * np.int64(len(levels)) + rank
    found: Floats = levels[np.maximum.accumulate(line) % len(levels)]
    return found
