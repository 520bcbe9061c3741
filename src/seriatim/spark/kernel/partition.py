"""What one partition of the stream knows about its keys, in columns, and the change that a batch makes to it.

Rules
-----
1. A key has a *slot*: its place in the columns of ``KeyFacts``. Slots are given in the order in which keys were first
   seen.
2. What a key has several of (held messages, gaps, ranges given up) lies in a pool, with the key's slot as owner. A pool
   is in no particular order; what is taken out of it for some keys is sorted by key and number.
3. A batch is *applied*: ``Partition.apply(change)`` is the only way in which a partition changes, whether the change
   was just decided or is read again from disk. So both lead to the same partition, slot by slot and row by row.
4. A change is proportional to what happened: keys that neither got a row nor let a deadline pass are not in it, nor are
   messages that stay held, nor ranges given up of a key for which they did not change.

The numbers are unwrapped ones, exactly those of ``core.resequencer.SavedResequencer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from typing import TypeVar

import numpy as np
import pyarrow as pa

from seriatim.errors import InvalidArgument
from seriatim.spark.kernel.arrays import Bools, Columns, Floats, Ints, Owned, arange, flat
from seriatim.spark.kernel.key_index import KeyIndex
from seriatim.spark.kernel.schema_evolution import ADDED, fitted, misfits, refuse_misfits

P = TypeVar("P", "HeldMessages", "Gaps", "Ranges")

WAITING = (
    pa.field("_since", pa.float64()),
    pa.field("_first", pa.int64()),
    pa.field("_last", pa.int64()),
    pa.field("_due", pa.float64()),
)
"""What is said of a row that waits: since when, for which numbers, and until when."""


@dataclass
class KeyFacts(Columns):
    """One row a key. ``start_deadline`` is NaN unless the key still gathers; then ``expected`` means nothing."""

    epoch: Ints
    expected: Ints
    horizon: Ints
    position: Ints
    now: Floats
    start_deadline: Floats
    behind_run: Ints
    behind_last: Ints

    @classmethod
    def of_new_keys(cls, count: int) -> KeyFacts:
        def zeros() -> Ints:
            return np.zeros(count, np.int64)

        never, unknown = np.full(count, -inf), np.full(count, nan)
        return cls(zeros(), zeros(), zeros(), zeros(), never, unknown, zeros(), zeros())


@dataclass
class HeldMessages(Owned):
    """Messages that wait. ``row`` says where the message is."""

    number: Ints
    arrival: Floats
    row: Ints

    def numbers(self) -> Ints:
        return self.number


@dataclass
class Gaps(Owned):
    """Missing numbers, ``first`` to ``last``."""

    first: Ints
    last: Ints
    deadline: Floats
    requests: Ints
    reported: Bools

    def numbers(self) -> Ints:
        return self.first


@dataclass
class Ranges(Owned):
    """Numbers that were given up, as ``core.ranges.RangeSet`` keeps them."""

    first: Ints
    last: Ints

    def numbers(self) -> Ints:
        return self.first


@dataclass
class PartitionChange:
    """What a batch changes. Owners are indexes into ``keys``.

    ``fresh_memory`` marks the keys whose ranges given up are replaced by those in ``given_up``. ``released`` names messages
    that are held no longer, by owner and number (its other columns mean nothing). ``held.row`` indexes ``rows``.
    """

    clock: float
    keys: pa.Array
    facts: KeyFacts
    gaps: Gaps
    fresh_memory: Bools
    given_up: Ranges
    released: HeldMessages
    held: HeldMessages
    rows: pa.Table
    expired: pa.Array

    @property
    def entries(self) -> int:
        """How many keys, messages, gaps and ranges it is about: how much has to be written."""
        return sum(map(len, (self.keys, self.gaps, self.given_up, self.released, self.held, self.expired)))

    def tables(self) -> list[pa.Table]:
        """The change as it is written; the clock is written elsewhere."""
        keys = (
            self.facts.to_arrow()
            .append_column("key", self.keys)
            .append_column("fresh_memory", pa.array(self.fresh_memory))
        )
        released = self.released.to_arrow().select(["owner", "number"])
        expired = pa.table({"key": self.expired})
        return [
            keys,
            self.gaps.to_arrow(),
            self.given_up.to_arrow(),
            released,
            self.held.to_arrow(),
            self.rows,
            expired,
        ]

    @classmethod
    def of_tables(cls, clock: float, tables: list[pa.Table]) -> PartitionChange:
        keys, gaps, given_up, released, held, rows, expired = tables
        return cls(
            clock=clock,
            keys=flat(keys["key"]),
            facts=KeyFacts.from_arrow(keys),
            gaps=Gaps.from_arrow(gaps),
            fresh_memory=keys["fresh_memory"].to_numpy(),
            given_up=Ranges.from_arrow(given_up),
            released=_named(released),
            held=HeldMessages.from_arrow(held),
            rows=rows,
            expired=flat(expired["key"]),
        )


def _named(released: pa.Table) -> HeldMessages:
    owner, number = (released[name].to_numpy().astype(np.int64) for name in ("owner", "number"))
    return HeldMessages(owner, number, number.astype(np.float64), number)


@dataclass
class Places:
    """Where in a partition a change applies: the slots of its keys (-1 for new ones), and the places of what it releases."""

    slots: Ints
    released: Ints


MAX_ROWS_PER_HELD = 2
"""How many times more rows are kept than are held, before those of messages that are gone are dropped."""
MAX_CHUNKS = 64


class Partition:
    """The keys of one partition. ``apply`` changes it in place."""

    def __init__(self, key_type: pa.DataType, schema: pa.Schema) -> None:
        self.clock = -inf
        self.index = KeyIndex(pa.array([], key_type))
        self.facts = KeyFacts.of_new_keys(0)
        self.held = HeldMessages.empty()
        self.gaps = Gaps.empty()
        self.given_up = Ranges.empty()
        self.rows: pa.Table = schema.empty_table()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def keys(self) -> pa.Array:
        return self.index.keys

    def check_key_type(self, kind: pa.DataType) -> None:
        require_same_keys(kind, self.keys.type)

    # -- looking --------------------------------------------------------------------------------------------------------

    @property
    def held_count(self) -> int:
        return len(self.held)

    @property
    def gap_count(self) -> int:
        return len(self.gaps)

    def due(self, clock: float) -> Ints:
        """The slots of the keys in which something falls due by ``clock``, in order."""
        overdue = np.zeros(len(self), np.bool_)
        overdue[self.gaps.owner[self.gaps.deadline <= clock]] = True
        overdue |= self.facts.start_deadline <= clock
        return np.flatnonzero(overdue)

    def next_due(self) -> float:
        """When something falls due next; infinite for never. A key with a gap that was reported waits for an operator."""
        stalled = np.zeros(len(self), np.bool_)
        stalled[self.gaps.owner[self.gaps.reported]] = True
        deadlines = self.gaps.deadline[~stalled[self.gaps.owner]]
        starts = self.facts.start_deadline[~np.isnan(self.facts.start_deadline)]
        return float(np.min(np.concatenate([deadlines, starts]), initial=inf))

    def idle(self, since: float) -> Ints:
        """The slots of the keys that hold nothing and to which nothing happened after ``since``, in order."""
        idle = self.facts.now <= since
        idle[self.held.owner] = False
        return np.flatnonzero(idle)

    def ranks(self, slots: Ints) -> Ints:
        """For each slot of the partition its place in ``slots``, or -1."""
        ranks = np.full(len(self), -1, np.int64)
        known = np.flatnonzero(slots >= 0)
        ranks[slots[known]] = known
        return ranks

    def rows_at(self, places: Ints) -> pa.Table:
        """Some of the rows of held messages, by rising places, without putting all chunks of them together."""
        parts, begin = [], 0
        for chunk in self.rows.to_batches():
            first, last = np.searchsorted(places, (begin, begin + chunk.num_rows))
            if first < last:
                parts.append(chunk.take(pa.array(places[first:last] - begin)))
            begin += chunk.num_rows
        return pa.Table.from_batches(parts, self.rows.schema)

    def waiting(self) -> pa.Table:
        """The rows that wait, by key and number, with the first gap of their key.

        ``_since`` is when a row came; ``_first`` to ``_last`` are the numbers that its key waits for, counted on without end
        where the source's numbers wrap, and ``_due`` is when they will be given up. A key that gathers its first rows waits
        for no number.
        """
        order = np.lexsort((self.held.number, self.held.owner))
        held = self.held.take(order)
        return with_waits(self.rows.take(pa.array(held.row)), [pa.array(held.arrival), *self._waits_of(held.owner)])

    def _waits_of(self, owner: Ints) -> tuple[pa.Array, pa.Array, pa.Array]:
        """For each held message what its key waits for, and until when."""
        gaps = self.gaps.take(np.lexsort((self.gaps.first, self.gaps.owner)))
        head = np.searchsorted(gaps.owner, owner)
        has_gap = head < len(gaps)
        has_gap[has_gap] = gaps.owner[head[has_gap]] == owner[has_gap]
        head = np.where(has_gap, head, 0)
        due = np.array(self.facts.start_deadline[owner])
        due[has_gap] = gaps.deadline[head[has_gap]]

        def of_gap(values: Ints) -> pa.Array:
            return pa.array(values[head] if len(values) else arange(len(owner)), mask=~has_gap)

        return of_gap(gaps.first), of_gap(gaps.last), pa.array(due, mask=~np.isfinite(due))

    # -- changing -------------------------------------------------------------------------------------------------------

    def adopt(self, schema: pa.Schema) -> None:
        """Give the rows that wait the columns that the query has now."""
        self.rows = adopted(self.rows, len(self.held), schema)

    def apply(self, change: PartitionChange, places: Places | None = None) -> None:
        """Make it what it is after the batch. ``places`` spare a search where they are known already."""
        places = places or self._find(change)
        slots = self._place_keys(change, places.slots)
        self.clock = change.clock
        self.facts.put(slots, change.facts)
        touched = np.zeros(len(self), np.bool_)
        touched[slots] = True
        self.gaps = _swap(self.gaps, touched, change.gaps, slots)
        fresh = np.zeros(len(self), np.bool_)
        fresh[slots[change.fresh_memory]] = True
        self.given_up = _swap(self.given_up, fresh, change.given_up, slots)
        self._replace_held(change, slots, places.released)
        self._forget(change.expired)

    def _find(self, change: PartitionChange) -> Places:
        slots = self.index.find(change.keys)
        return Places(slots, _listed(self.held, slots[change.released.owner], change.released.number))

    def _place_keys(self, change: PartitionChange, slots: Ints) -> Ints:
        new = np.flatnonzero(slots < 0)
        if not new.size:
            return slots
        slots = slots.copy()
        slots[new] = len(self) + arange(new.size)
        self.index.add(change.keys.take(pa.array(new)))
        self.facts = KeyFacts.concat([self.facts, KeyFacts.of_new_keys(new.size)])
        return slots

    def _replace_held(self, change: PartitionChange, slots: Ints, released: Ints) -> None:
        if not len(released) and not len(change.held):
            return
        keep = np.ones(len(self.held), np.bool_)
        keep[released] = False
        added = change.held.renumbered(slots)
        added.row = added.row + self.rows.num_rows
        self.held = HeldMessages.concat([self.held.take(keep), added])
        self.rows = joined_rows(self.rows, change.rows)
        if self.rows.num_rows > MAX_ROWS_PER_HELD * len(self.held) or len(self.rows.to_batches()) > MAX_CHUNKS:
            self._pack_rows()

    def _pack_rows(self) -> None:
        """Drop the rows of messages that are not held any more. Rows are added at the end, so the others are in order."""
        self.rows = self.rows_at(self.held.row).combine_chunks()
        self.held = replace(self.held, row=arange(len(self.held)))

    def _forget(self, expired: pa.Array) -> None:
        if not len(expired):
            return
        keep = np.ones(len(self), np.bool_)
        keep[self.index.find(expired)] = False
        self.keep_slots(keep)

    def keep_slots(self, keep: Bools) -> None:
        """Keep some keys only; what the others own goes with them."""
        renumber = np.cumsum(keep) - 1
        self.index = KeyIndex(self.keys.take(pa.array(np.flatnonzero(keep))))
        self.facts = self.facts.take(keep)
        self.gaps = self.gaps.take(keep[self.gaps.owner]).renumbered(renumber)
        self.given_up = self.given_up.take(keep[self.given_up.owner]).renumbered(renumber)
        self.held = self.held.take(keep[self.held.owner]).renumbered(renumber)

    # -- as a whole -----------------------------------------------------------------------------------------------------

    def as_change(self) -> PartitionChange:
        """The change that makes an empty partition into this one."""
        self._pack_rows()
        return PartitionChange(
            clock=self.clock,
            keys=self.keys,
            facts=self.facts,
            gaps=self.gaps,
            fresh_memory=np.ones(len(self), np.bool_),
            given_up=self.given_up,
            released=HeldMessages.empty(),
            held=self.held,
            rows=self.rows,
            expired=self.keys.slice(0, 0),
        )

    @classmethod
    def change_of(cls, clock: float, tables: list[pa.Table]) -> PartitionChange:
        """A change as it was written."""
        return PartitionChange.of_tables(clock, tables)

    @classmethod
    def from_change(cls, change: PartitionChange) -> Partition:
        self = cls(change.keys.type, change.rows.schema)
        self.apply(change)
        return self

    def split(self, assign: Callable[[pa.Array], Ints], count: int) -> list[Partition]:
        """One partition for each number from 0 to ``count - 1`` that ``assign`` gives the keys."""
        targets = assigned(assign, self.keys, count)
        parts = [Partition.from_change(self.as_change()) for _ in range(count)]
        for number, part in enumerate(parts):
            part.keep_slots(targets == number)
        return parts

    @classmethod
    def join(cls, parts: list[Partition]) -> Partition:
        """All keys of several partitions in one."""
        whole = cls.from_change(parts[0].as_change())
        for part in parts[1:]:
            change = part.as_change()
            change.clock = max(whole.clock, part.clock)
            whole.apply(change)
        return whole


def require_same_keys(now: pa.DataType, before: pa.DataType) -> None:
    """Keys of another type would all be new ones."""
    if now != before:
        raise InvalidArgument(f"keys are of type {now} now, and were {before} before: cast them")


def assigned(assign: Callable[[pa.Array], Ints], keys: pa.Array, count: int) -> Ints:
    """The number that ``assign`` gives each key, once it is one from 0 to ``count - 1``."""
    targets = np.asarray(assign(keys), np.int64)
    if len(targets) != len(keys) or (len(targets) and not 0 <= targets.min() <= targets.max() < count):
        raise InvalidArgument(f"the partition function must give each key a number from 0 to {count - 1}")
    return targets


def with_waits(rows: pa.Table, waits: list[pa.Array]) -> pa.Table:
    """Rows that wait, as they came, with the columns ``WAITING``."""
    table = rows.select([name for name in rows.schema.names if not name.startswith(ADDED)])
    for field, values in zip(WAITING, waits, strict=True):
        table = table.append_column(field, values)
    return table


def _swap(pool: P, replaced: Bools, new: P, slots: Ints) -> P:
    """The pool without the rows of some keys and with new ones, whose owners are indexes into ``slots``."""
    kept = pool.take(~replaced[pool.owner])
    return type(pool).concat([kept, new.renumbered(slots)])


def owned(pool: P, ranks: Ints) -> Ints:
    """Where the rows of the keys that have a rank are, in the order of ranks and numbers."""
    rank = ranks[pool.owner]
    found = np.flatnonzero(rank >= 0)
    order: Ints = found[np.lexsort((pool.numbers()[found], rank[found]))]
    return order


def _listed(held: HeldMessages, owner: Ints, number: Ints) -> Ints:
    """Where the held messages are that a list of owners and numbers names."""
    if not len(owner):
        return arange(0)
    candidates = np.flatnonzero(np.isin(held.owner, owner))
    owners = np.concatenate([held.owner[candidates], owner])
    numbers = np.concatenate([held.number[candidates], number])
    order = np.lexsort((numbers, owners))
    # Each list has a pair at most once, and the sort is stable: a held message and its mention end up side by side.
    twin = (owners[order][1:] == owners[order][:-1]) & (numbers[order][1:] == numbers[order][:-1])
    return np.sort(candidates[order[:-1][twin]])


def joined_rows(some: pa.Table, more: pa.Table) -> pa.Table:
    """The rows of two tables with the same columns, one after the other. A table without rows may have any columns."""
    if not (some.num_rows and more.num_rows):
        return more if more.num_rows else some
    if not misfits(some.schema, more.schema):
        return pa.concat_tables([fitted(some, more.schema), more])
    if not misfits(more.schema, some.schema):
        return pa.concat_tables([some, fitted(more, some.schema)])
    raise InvalidArgument(
        f"some messages have the columns {_listing(some)}, and others {_listing(more)}: "
        "keep the columns of a stream as they are, or begin with an empty state folder"
    )


def adopted(rows: pa.Table, held: int, schema: pa.Schema) -> pa.Table:
    """Rows of a partition that holds ``held`` of them, with the columns that the query has now."""
    if rows.schema.equals(schema):
        return rows
    if not held:
        return schema.empty_table()
    refuse_misfits(rows.schema, schema, held, "the state")
    return fitted(rows, schema)


def _listing(table: pa.Table) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in table.schema)
