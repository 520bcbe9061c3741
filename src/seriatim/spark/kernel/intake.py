"""The kernel's input: splits an Arrow table into valid and invalid rows.

A row is invalid if it has no key, no number, no time or no epoch (if there is an epoch column), or if its number is outside the
sequence space. An invalid row is otherwise ignored and moves no clock: it gets a ledger entry, or the batch fails, depending on
``OnInvalid``. A row whose time is later than the limit of its batch is invalid, too: a single timestamp from the far future
would otherwise move the clock of all keys of the partition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidArgument, InvalidSequence
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.arrays import (
    Bools,
    Floats,
    Ints,
    Objects,
    arange,
    counting_order,
    filled,
    first_of_each,
    flat,
)
from seriatim.spark.kernel.batch import Rows
from seriatim.spark.kernel.keys import check_key_type, hash_keys

MAX_NUMBER = 2**61
"""Numbers beyond this are invalid: sums and differences of two numbers must fit in 64 bits."""


NOT_FINITE = "its time is not a finite number"
TOO_FAR_AHEAD = "its time is further ahead of the time of its batch than max_ahead allows"


class OnInvalid(StrEnum):
    """What happens to an invalid row: a ledger entry, or an error."""

    LEDGER = "ledger"
    RAISE = "raise"


def check_columns(roles: ColumnRoles, schema: pa.Schema) -> None:
    """Refuse a table that lacks a column, or has one of an unsuitable type."""
    for role in ("key", "sequence", "time", "epoch", "digest"):
        name = getattr(roles, role)
        if name is not None and schema.get_field_index(name) < 0:
            raise InvalidArgument(f"there is no column {name!r} for the {role}; there are {', '.join(schema.names)}")
    check_key_type(schema.field(roles.key).type)
    for name in filter(None, (roles.sequence, roles.epoch)):
        kind = schema.field(name).type
        if not pa.types.is_integer(kind) or kind == pa.uint64():
            raise InvalidArgument(f"column {name!r} must hold whole numbers of at most 64 bits with a sign, not {kind}")
    kind = schema.field(roles.time).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InvalidArgument(f"column {roles.time!r} must hold numbers, not {kind}: turn timestamps into seconds")


@dataclass
class Intake:
    """The valid rows of a table, grouped by key; ``starts`` is where each of ``keys`` begins."""

    keys: pa.Array
    starts: Ints
    ends: Ints
    rows: Rows
    invalid: Ints
    complaints: Objects


def take_in(
    table: pa.Table, roles: ColumnRoles, space: SequenceSpace, order: Ints | None = None, latest: float = inf
) -> Intake:
    """``order`` is the order in which the rows arrived; by default that of the table. ``latest`` limits their times."""
    columns = _Numbers.read(table, roles)
    faults = _faults(table[roles.key], columns, roles, space, latest)
    order = arange(table.num_rows) if order is None else order
    bad = np.logical_or.reduce([mask for mask, _ in faults])[order]
    invalid, order = order[bad], order[~bad]
    keys, starts, order = _group(flat(table[roles.key]), order)
    rows = Rows(columns.sequence[order], columns.epoch[order], columns.time[order], order)
    complaints = filled(len(invalid), None)
    for mask, complaint in reversed(faults):  # the first that applies is reported
        complaints[mask[invalid]] = complaint
    return Intake(keys, starts, np.append(starts, len(rows))[1:], rows, invalid, complaints)


@dataclass
class _Numbers:
    """The numeric columns; nulls are 0, and marked in ``lacking``."""

    sequence: Ints
    epoch: Ints
    time: Floats
    lacking: dict[str, Bools]

    @classmethod
    def read(cls, table: pa.Table, roles: ColumnRoles) -> _Numbers:
        lacking: dict[str, Bools] = {}

        def numbers(name: str, kind: pa.DataType) -> npt.NDArray[Any]:
            column = table[name]
            if column.null_count:
                lacking[name] = pc.is_null(column).to_numpy()
                column = pc.fill_null(column, 0)
            array: npt.NDArray[Any] = column.cast(kind).to_numpy()
            return array

        sequence = numbers(roles.sequence, pa.int64())
        epoch = np.zeros(len(sequence), np.int64) if roles.epoch is None else numbers(roles.epoch, pa.int64())
        return cls(sequence, epoch, numbers(roles.time, pa.float64()), lacking)


def _faults(
    key: pa.ChunkedArray, columns: _Numbers, roles: ColumnRoles, space: SequenceSpace, latest: float
) -> list[tuple[Bools, str]]:
    """The possible faults of a row, and the rows that have them."""
    lowest, highest = (-MAX_NUMBER, MAX_NUMBER) if space.modulus is None else (0, space.modulus - 1)
    outside = (columns.sequence < lowest) | (columns.sequence > highest)
    faults = [(outside, f"its number is outside {lowest} to {highest}")]
    timeless = ~np.isfinite(columns.time)
    faults.append((timeless, NOT_FINITE))
    if latest < inf:
        faults.append((columns.time > latest, TOO_FAR_AHEAD))
    for name, role in ((roles.epoch, "epoch"), (roles.time, "time"), (roles.sequence, "number")):
        if name in columns.lacking:
            faults.insert(0, (columns.lacking[name], f"it has no {role}"))
    if key.null_count:
        faults.insert(0, (pc.is_null(key).to_numpy(), "it has no key"))
    return faults


def refuse(invalid: Ints, complaints: Objects, table: pa.Table, roles: ColumnRoles) -> None:
    if invalid.size:
        row = table.slice(int(invalid[0]), 1)
        key, sequence = row[roles.key][0].as_py(), row[roles.sequence][0].as_py()
        raise InvalidSequence(
            f"{invalid.size} of {table.num_rows} rows are invalid, first message {sequence} of key {key!r}: "
            f"{complaints[0]}; repair the source, or choose the policy that puts such rows into the ledger"
        )


def _group(column: pa.Array, order: Ints) -> tuple[pa.Array, Ints, Ints]:
    """Distinct keys, where the rows of each start, and the order that groups the rows by key.

    Sorted rows stay as they are. Otherwise keys are ordered by their hashes, regardless of the order of the rows.
    """
    encoded = column.dictionary_encode()
    known = encoded.dictionary
    key = encoded.indices.fill_null(0).to_numpy()[order]  # excludes rows without a key
    starts = np.flatnonzero(first_of_each(key))
    if len(starts) <= len(known):
        keys = _taken(known, key[starts])
        if len(keys) < 2 or pc.all(pc.less_equal(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py():
            return keys, starts, order
    counts = np.bincount(key, minlength=len(known))
    present = np.flatnonzero(counts)
    hashes = (hash_keys(_taken(known, present)) >> np.uint64(len(key).bit_length() + 1)).astype(np.int64)
    sorting = np.argsort(hashes, kind="stable")
    if not first_of_each(hashes[sorting]).all():  # different keys share a hash: order them by arrival
        first = np.empty(len(known), np.int64)
        first[key[::-1]] = arange(len(key))[::-1]
        sorting = np.argsort(first[present])
    present = present[sorting]
    rank = np.empty(len(known), np.int64)
    rank[present] = arange(len(present))
    ends = np.cumsum(counts[present])
    return _taken(known, present), ends - counts[present], order[counting_order(rank[key])]


def _taken(values: pa.Array, places: Ints) -> pa.Array:
    return values.take(pa.array(places))
