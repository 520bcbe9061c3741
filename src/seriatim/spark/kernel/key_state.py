"""The state of some keys, or the changes of a batch to it: one data structure for both, and the rule for merging
changes.

Rules
-----
1. A key has one value of each text and of each fact. A later change replaces them.
2. Multiple values of a key are in lists, with the number of the key as owner. A later change of the key replaces its
   list. There are two exceptions, which keep changes small. ``given_up`` is replaced only if ``fresh`` is set. Of the
   waiting messages, a change contains those that were added (``held``) and names those that were removed
   (``released``): the latest change of a number counts.
3. ``gone`` marks keys that were forgotten: they held nothing, and a later change makes them new keys.

So changes can be merged in any grouping, as long as they stay in order: ``fold`` searches a stack of changes, and
merges them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.spark.kernel.arrays import Bools, Columns, Floats, Ints, Owned, arange, flat
from seriatim.spark.kernel.keys import bytes_of, raw_keys

KEY, HELD, RELEASED, GIVEN_UP = "key", "held", "released", "given_up"
WORD_BITS = 64


@dataclass
class NoLongerHeld(Owned):
    """Messages that no longer wait."""

    number: Ints


@dataclass(frozen=True)
class Times:
    """The progress of a partition: its clock, and up to when deadlines were decided and idle keys forgotten."""

    clock: float = -inf
    decided: float = -inf
    idled: float = -inf


@dataclass
class Content:
    """Some keys. ``held.row`` is the index of a message in ``rows``; ``due`` is the next deadline of a key."""

    times: Times
    texts: dict[str, pa.Array]
    facts: Columns
    due: Floats
    fresh: Bools
    gone: Bools
    lists: dict[str, Any]
    rows: pa.Table

    def __len__(self) -> int:
        return len(self.gone)

    @property
    def entries(self) -> int:
        """The number of keys and parts of keys."""
        return len(self) + sum(map(len, self.lists.values()))

    def require_sound(self) -> None:
        """Raise ValueError unless every owner exists, and every held row."""
        columns = [(owned.owner, len(self)) for owned in self.lists.values()]
        for places, end in (*columns, (self.lists[HELD].row, self.rows.num_rows)):
            if len(places) and not 0 <= places.min() <= places.max() < end:
                raise ValueError(f"places beyond the {end} that there are")

    def take(self, chosen: Ints) -> Content:
        """Some of the keys, in that order. Their data is sorted by key, and the rows of held messages likewise."""
        ranks = np.full(len(self), -1, np.int64)
        ranks[chosen] = arange(len(chosen))
        lists = {
            name: _sorted(owned.take(ranks[owned.owner] >= 0).renumbered(ranks)) for name, owned in self.lists.items()
        }
        held, places = lists[HELD], pa.array(chosen)
        return replace(
            self,
            texts={name: values.take(places) for name, values in self.texts.items()},
            facts=self.facts.take(chosen),
            due=self.due[chosen],
            fresh=self.fresh[chosen],
            gone=self.gone[chosen],
            lists={**lists, HELD: replace(held, row=arange(len(held)))},
            rows=self.rows.take(pa.array(held.row)) if self.rows.num_rows else self.rows,
        )

    def digest(self) -> str:
        """A digest of the content, not of its encoding: it does not depend on the version of pyarrow."""
        found = hashlib.blake2b(repr(self.times).encode(), digest_size=16)
        texts = [array for values in self.texts.values() for array in bytes_of(values)[1:]]
        owned = [array for part in self.lists.values() for array in part.arrays()]
        for array in (*texts, *self.facts.arrays(), self.fresh, self.gone, *owned):
            _add(found, array)
        for name in sorted(self.rows.schema.names):
            column = flat(self.rows[name])
            if column.null_count < len(column):  # an entirely null column equals one that did not exist yet
                found.update(name.encode())
                _add_values(found, column)
        return found.hexdigest()


def _sorted(owned: Owned) -> Any:
    columns = owned.arrays()
    return owned.take(np.lexsort((columns[1], columns[0])))


def _add_values(found: hashlib.blake2b, column: pa.Array) -> None:
    """Hash values by their meaning: numbers of any width alike, timestamps in any time zone."""
    types, kind = pa.types, column.type
    _add(found, np.packbits(column.is_valid().to_numpy(zero_copy_only=False)))
    if types.is_struct(kind):
        children = column.flatten()
    elif types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        offsets = column.offsets.to_numpy().astype(np.int64)
        _add(found, np.diff(offsets))
        inside = slice(int(offsets[0]), int(offsets[-1]))
        children = [
            values[inside] for values in ((column.keys, column.items) if types.is_map(kind) else (column.values,))
        ]
    else:
        children = []
        for array in _plain_values(column):
            _add(found, array)
    for child in children:
        _add_values(found, child)


def _plain_values(column: pa.Array) -> list[npt.NDArray[Any]]:
    """The values of a column without children; values under nulls are ignored."""
    types, kind = pa.types, column.type
    if types.is_null(kind):
        return []
    if types.is_floating(kind):
        return [pc.fill_null(column.cast(pa.float64()), 0).to_numpy()]
    if types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == WORD_BITS else pa.int32())
    elif types.is_decimal(kind):
        column = column.cast(pa.decimal128(38, kind.scale)).cast(pa.string())
    elif not types.is_integer(kind) and not types.is_boolean(kind):
        column = column.cast(pa.large_binary())
    if types.is_integer(column.type) or types.is_boolean(column.type):
        return [pc.fill_null(column.cast(pa.int64()), 0).to_numpy()]
    _, lengths, data = bytes_of(raw_keys(pc.fill_null(column.cast(pa.large_binary()), b"")))
    return [lengths, data]


def _add(found: hashlib.blake2b, array: npt.NDArray[Any]) -> None:
    found.update(np.ascontiguousarray(array).data)


def fold(parts: Sequence[Content], ids: Sequence[Ints], count: int) -> tuple[Ints, Content]:
    """Merge all parts, oldest first.

    ``ids`` has the number of each key of each part, below ``count``. Returns the numbers that occurred, and their
    content. Owners are numbers; rows are left to the caller.
    """
    newest, remembered, place = (np.full(count, -1, np.int64) for _ in range(3))
    begin = 0
    for level, (part, own) in enumerate(zip(parts, ids, strict=True)):
        newest[own] = level
        remembered[own[part.fresh]] = level
        place[own] = begin + arange(len(own))
        begin += len(own)
    present = np.flatnonzero(newest >= 0)
    place = place[present]

    def listed(name: str, counts: Ints | None) -> Any:
        kept = []
        for level, (part, own) in enumerate(zip(parts, ids, strict=True)):
            owned = part.lists[name].renumbered(own)
            kept.append(owned if counts is None else owned.take(counts[owned.owner] == level))
        return type(kept[0]).concat(kept)

    lists: dict[str, Any] = {}
    for name in parts[0].lists:
        if name == HELD and RELEASED in parts[0].lists:
            lists[HELD], lists[RELEASED] = _last_words(listed(HELD, None), listed(RELEASED, None), parts)
        elif name != RELEASED:
            lists[name] = _sorted(listed(name, remembered if name == GIVEN_UP else newest))
    content = Content(
        times=parts[-1].times,
        texts={
            name: pa.concat_arrays([part.texts[name] for part in parts]).take(pa.array(place))
            for name in parts[0].texts
        },
        facts=type(parts[0].facts).concat([part.facts for part in parts]).take(place),
        due=np.concatenate([part.due for part in parts])[place],
        fresh=remembered[present] >= 0,
        gone=np.concatenate([part.gone for part in parts])[place],
        lists=lists,
        rows=parts[-1].rows.slice(0, 0),
    )
    return present, content


def _last_words(held: Any, released: NoLongerHeld, parts: Sequence[Content]) -> tuple[Any, NoLongerHeld]:
    """The messages that wait, and those that were released for good. Within a part, releases precede additions."""
    levels = arange(len(parts))
    when = np.concatenate(
        [
            2 * np.repeat(levels, [len(part.lists[HELD]) for part in parts]) + 1,
            2 * np.repeat(levels, [len(part.lists[RELEASED]) for part in parts]),
        ]
    )
    owner = np.concatenate([held.owner, released.owner])
    number = np.concatenate([held.number, released.number])
    order = np.lexsort((when, number, owner))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (owner[order][1:] != owner[order][:-1]) | (number[order][1:] != number[order][:-1])
    last = order[is_last]
    return held.take(last[last < len(held)]), released.take(last[last >= len(held)] - len(held))
