"""Computes the facts that an audit needs about each key, with numpy: Arrow in and out, no Spark.

Rules
-----
1. Rows come as columns ``ROWS``, sorted by ``group``, a hash of the key. All rows of a group are processed together, and
   nothing is kept of earlier groups: memory is bounded by a chunk, or the largest group.
2. A row is valid if it has a number. Of the others only the first complaint counts.
3. Rows that are equal in arrival, offset, number and digest may be processed in any order: they get the same verdict.

Theory of operation
-------------------
Numbers and arrivals are replaced by their ranks in the chunk. A rank and the place of a row are small, so that key, rank and
place fit into one integer, and numpy sorts plain integers many times faster than it finds an order. Sorted by key and arrival,
the running maximum shows what was overtaken; sorted by key and number, the row before shows copies and holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.errors import FailedPrecondition
from seriatim.spark.kernel.arrays import Bools, Ints, arange, first_of_each, flat, stable_order

ROWS = ("group", "key", "number", "arrival", "offset", "digest", "complaint")
"""``offset`` and ``digest`` may be missing."""
COUNTS = ("rows", "invalid", "duplicates", "conflicts", "reordered", "max_displacement", "span")
WITNESSES = {
    "first_inverted": ("at", "number", "highest"),
    "first_copied": ("at", "number"),
    "first_conflict": ("at", "number"),
    "first_hole": ("number", "previous"),
}
CHUNK_ROWS = 250_000
MAX_GROUP_ROWS = 50_000_000
"""The rows of one key that are assumed to fit into the memory of a worker."""


@dataclass(frozen=True, slots=True)
class AuditTask:
    chunk_rows: int = CHUNK_ROWS
    max_group_rows: int = MAX_GROUP_ROWS

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        count = limit = 0
        for batch in batches:
            waiting.append(batch)
            count += batch.num_rows
            if count < max(limit, self.chunk_rows):
                continue
            table = pa.Table.from_batches(waiting).combine_chunks()
            group = table["group"].to_numpy()
            cut = int(np.searchsorted(group, group[-1]))
            if cut:
                yield from facts_of(table.slice(0, cut)).to_batches()
            elif count > self.max_group_rows:
                raise FailedPrecondition(
                    f"key {table['key'][0]} has more than {self.max_group_rows:,} rows, which may not fit into memory: audit "
                    "the table with in_memory=False"
                )
            waiting, count = table.slice(cut).to_batches(), table.num_rows - cut
            limit = 2 * count  # one large group is not put together again with every batch
        if waiting:
            yield from facts_of(pa.Table.from_batches(waiting).combine_chunks()).to_batches()


def facts_of(table: pa.Table) -> pa.Table:
    if pa.types.is_timestamp(table.schema.field("arrival").type):
        place = table.schema.get_field_index("arrival")
        table = table.set_column(place, "arrival", table["arrival"].cast(pa.int64()))
    code, keys = _coded(table)
    number = flat(table["number"])
    is_valid: Bools = number.is_valid().to_numpy(zero_copy_only=False)
    facts = {name: np.zeros(len(keys), np.int64) for name in COUNTS}
    first = {name: _Firsts(len(keys), columns) for name, columns in WITNESSES.items()}
    facts["invalid"] = np.bincount(code[~is_valid], minlength=len(keys))
    if is_valid.any():
        rows = table if is_valid.all() else table.filter(pa.array(is_valid))
        _judge(rows, code[is_valid], facts, first)
    invalid = _first_complaints(table, code, is_valid, len(keys))
    columns = {"key": keys, **facts, **{name: one.to_arrow() for name, one in first.items()}, "first_invalid": invalid}
    return pa.table(columns)


def _coded(table: pa.Table) -> tuple[Ints, pa.Array]:
    """For each row the number of its key, and the keys. Groups are keys, unless two keys have the same hash."""
    group, key = table["group"].to_numpy(), flat(table["key"])
    begins = first_of_each(group)
    same = pc.fill_null(pc.equal(key.slice(1), key.slice(0, len(key) - 1)), False).to_numpy(zero_copy_only=False)
    if (same | begins[1:]).all():
        return np.cumsum(begins) - 1, key.take(pa.array(np.flatnonzero(begins)))
    encoded = pc.dictionary_encode(key, null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _judge(rows: pa.Table, code: Ints, facts: dict[str, Ints], first: dict[str, _Firsts]) -> None:
    """Fill in what the valid rows of a chunk tell."""
    keys, count = len(facts["rows"]), len(code)
    number = rows["number"].to_numpy()
    levels, rank = np.unique(number, return_inverse=True)
    order = _by_arrival(rows, code, rank)
    code, number, rank = code[order], number[order], rank[order]
    facts["rows"] = np.bincount(code, minlength=keys)
    there = np.flatnonzero(facts["rows"])
    starts = np.concatenate([[0], np.cumsum(facts["rows"])[:-1]])
    at = arange(count) - starts[code]

    line = np.maximum.accumulate(code * len(levels) + rank)  # codes rise: no key's maximum reaches into the next
    before = np.concatenate([[0], line[:-1]]) - code * len(levels)  # negative for the first of a key
    inverted = before > rank
    highest = levels[np.maximum(before, 0)]

    by_number = stable_order(code * len(levels) + rank)
    sorted_number, same_key = number[by_number], ~first_of_each(code)  # sorted by key either way
    previous = np.concatenate([sorted_number[:1], sorted_number[:-1]])
    copied_by_number = same_key & (sorted_number == previous)
    after_hole = same_key & (sorted_number > previous + 1)
    copied = np.zeros(count, np.bool_)
    copied[by_number] = copied_by_number
    behind = inverted & ~copied

    facts["duplicates"] = np.bincount(code[copied], minlength=keys)
    facts["reordered"] = np.bincount(code[behind], minlength=keys)
    np.maximum.at(facts["max_displacement"], code[behind], (highest - number)[behind])
    ends = starts + facts["rows"] - 1
    facts["span"][there] = sorted_number[ends[there]] - sorted_number[starts[there]] + 1
    first["first_inverted"].fill(code, inverted, at, number, highest)
    first["first_copied"].fill(code, copied, at, number)
    first["first_hole"].fill(code, after_hole, sorted_number, previous)
    if "digest" in rows.schema.names:
        digest = rows["digest"].to_numpy()[order]
        first_copy = np.maximum.accumulate(np.where(copied_by_number, 0, arange(count)))
        conflicting = np.zeros(count, np.bool_)
        conflicting[by_number] = copied_by_number & (digest[by_number] != digest[by_number][first_copy])
        facts["conflicts"] = np.bincount(code[conflicting], minlength=keys)
        first["first_conflict"].fill(code, conflicting, at, number)


def _by_arrival(rows: pa.Table, code: Ints, rank: Ints) -> Ints:
    """The rows key by key, each in order of arrival."""
    arrival = rows["arrival"].to_numpy()
    levels, when = np.unique(arrival, return_inverse=True)
    line = code * len(levels) + when
    order = stable_order(line)
    if not (line[order][1:] == line[order][:-1]).any():
        return order
    offset, digest = ([rows[name].to_numpy()] if name in rows.schema.names else [] for name in ("offset", "digest"))
    return np.lexsort([line, *offset, rank, *digest][::-1])


class _Firsts:
    """Some columns of the first row of each key that something applies to."""

    def __init__(self, keys: int, names: tuple[str, ...]) -> None:
        self._names, self._found = names, np.zeros(keys, np.bool_)
        self._values = np.zeros((len(names), keys), np.int64)

    def fill(self, code: Ints, applies: Bools, *columns: Ints) -> None:
        places = np.flatnonzero(applies)
        places = places[first_of_each(code[places])]
        self._found[code[places]] = True
        for values, column in zip(self._values, columns, strict=True):
            values[code[places]] = column[places]

    def to_arrow(self) -> pa.Array:
        return pa.StructArray.from_arrays(list(map(pa.array, self._values)), self._names, mask=pa.array(~self._found))


def _first_complaints(table: pa.Table, code: Ints, is_valid: Bools, keys: int) -> pa.Array:
    """Of each key the complaint of the row that came first: no time before any time, and NaN behind all."""
    found: dict[int, tuple[tuple[int, float], str]] = {}
    rows = table.select(["arrival", "complaint"]).filter(pa.array(~is_valid)).to_pylist()
    for key, row in zip(code[~is_valid].tolist(), rows, strict=True):
        time = row["arrival"]
        place = (0, 0) if time is None else (2, 0) if isinstance(time, float) and isnan(time) else (1, time)
        found[key] = min(found.get(key, (place, row["complaint"])), (place, row["complaint"]))
    return pa.array([found[key][1] if key in found else None for key in range(keys)], pa.string())
