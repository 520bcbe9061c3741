"""The state of the keys of one partition: a stack of segments, in which newer ones take precedence.

Rules
-----
1. A batch *pushes* a segment with its changes. Anything else stays as the segments below have it (``key_state.py``).
2. Segments are immutable. When the newer ones together hold as much as the one below them, they are merged. So there
   are few segments (the logarithm of all changes), and each change is rewritten only that often. All segments are
   merged when the changes since the last full merge reach half of its size, or a larger share in other partitions, so
   that they don't all merge in the same batch.
3. Reads depend on the batch alone: its keys are searched in each segment, and due and idle keys are found by time.
   Everything that was due by the clock of a batch was decided in it, so the next one searches from there on.

The numbers are unwrapped ones, exactly those of ``core.resequencing.resequencer.SavedResequencer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.errors import InvalidArgument
from seriatim.spark.kernel.arrays import Bools, Columns, Floats, Ints, Owned, arange, flat
from seriatim.spark.kernel.key_state import GIVEN_UP, HELD, KEY, RELEASED, Content, NoLongerHeld, Times, fold
from seriatim.spark.kernel.keys import hash_raw, keys_of, raw_keys
from seriatim.spark.kernel.schema_evolution import ADDED, fitted, misfits, refuse_misfits
from seriatim.spark.kernel.state_segment import Segment, write_segment

GAPS = "gaps"
LEVEL_BITS = 40
"""A row of a stack has the number of its segment above this many bits, and its place in the segment below."""
WALKED = 256
WAITING = (
    pa.field("_since", pa.float64()),
    pa.field("_first", pa.int64()),
    pa.field("_last", pa.int64()),
    pa.field("_due", pa.float64()),
)
"""The columns that describe a held row: since when it waits, for which numbers, and until when."""


@dataclass
class KeyFacts(Columns):
    """One row per key. ``start_deadline`` is NaN unless the key still gathers; then ``expected`` is meaningless."""

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
    """Messages that wait. ``row`` is the index of the message."""

    number: Ints
    arrival: Floats
    row: Ints


@dataclass
class Gaps(Owned):
    """Missing numbers, ``first`` to ``last``."""

    first: Ints
    last: Ints
    deadline: Floats
    requests: Ints
    reported: Bools


@dataclass
class Ranges(Owned):
    """Numbers that were given up, as in ``core.ranges.RangeSet``."""

    first: Ints
    last: Ints


@dataclass(frozen=True)
class Tally:
    """The size of a partition, or the change of it by a batch."""

    keys: int = 0
    held: int = 0
    gaps: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.keys + other.keys, self.held + other.held, self.gaps + other.gaps)


NOTHING, NEVER = Tally(), Times()


@dataclass
class Known:
    """The state of some keys. ``content`` is about those at ``present``; its owners are indexes into ``keys``."""

    keys: pa.Array
    present: Ints
    content: Content


class StackedPartition:
    """The keys of one partition, for any kind of state. ``apply`` changes it."""

    facts: ClassVar[type[Columns]]
    lists: ClassVar[dict[str, type[Owned]]]
    texts: ClassVar[tuple[str, ...]] = (KEY,)

    def __init__(
        self,
        key_type: pa.DataType,
        schema: pa.Schema,
        segments: Sequence[Segment] = (),
        tally: Tally = NOTHING,
        times: Times = NEVER,
    ) -> None:
        self.key_type, self.schema, self.segments, self.tally = key_type, schema, list(segments), tally
        self.times = times
        self.waits, self.is_to_be_revisited = "", False
        """Under which options everything waits, and whether all of it is to be looked at because there are others now."""
        self._is_foreign = False
        """Whether segments have rows, none of which is held, that don't fit the columns of today."""

    @classmethod
    def count(cls, content: Content) -> Tally:
        """The size of a complete content."""
        raise NotImplementedError

    @classmethod
    def read_tables(cls, clock: float, tables: list[pa.Table]) -> Content:
        """A change in the first version's format."""
        raise NotImplementedError

    def waiting(self) -> pa.Table:
        """The rows that wait, with the columns ``WAITING``."""
        raise NotImplementedError

    @property
    def clock(self) -> float:
        return self.times.clock

    def adopt(self, schema: pa.Schema) -> None:
        """Convert the waiting rows to the current columns of the query."""
        if misfits(self.schema, schema):
            if self.tally.held:
                refuse_misfits(self.schema, schema, self.tally.held, "the state")
            self._is_foreign = True
        self.schema = schema

    # -- reading --------------------------------------------------------------------------------------------------------

    def look_up(self, keys: pa.Array, clock: float = -inf) -> Known:
        """Some keys, followed by those with a deadline due by ``clock``, or all that hold something."""
        raw = raw_keys(keys)
        others = self._moments("dues", self.times.decided, clock)
        if self.is_to_be_revisited:
            others, clock = self._holding(), inf
        others = self._without(others, raw)
        known = self._find(pa.concat_arrays([raw, others]) if len(others) else raw)
        if not len(others):
            return replace(known, keys=keys)
        due = np.zeros(len(known.keys), np.bool_)
        due[known.present] = known.content.due <= clock
        due[: len(keys)] = True
        if not due.all():
            known = self._find(known.keys.take(pa.array(np.flatnonzero(due))))
        return replace(known, keys=keys_of(known.keys, self.key_type))

    def _moments(self, name: str, after: float, until: float) -> pa.Array:
        """The keys that have a time of some kind in a segment, which may be stale."""
        found = []
        for segment in self.segments if after < until else ():
            slots = segment.moments(name, after, until)
            if slots.size:
                found.append(segment.texts(slots)[KEY])
        return pa.concat_arrays(found).unique() if found else pa.array([], pa.large_binary())

    def _holding(self) -> pa.Array:
        """The keys that hold something. This reads everything, so it is only for rare cases."""
        if not self.tally.held:
            return pa.array([], pa.large_binary())
        whole = self.whole()
        return whole.texts[KEY].take(pa.array(np.unique(whole.lists[HELD].owner)))

    def _without(self, keys: pa.Array, others: pa.Array) -> pa.Array:
        if not len(keys):
            return keys
        return keys.filter(pc.invert(pc.is_in(keys, value_set=others)))

    def _find(self, raw: pa.Array) -> Known:
        hashes, parts, ids = hash_raw(raw), [self._nothing()], [arange(0)]
        for level, segment in enumerate(self.segments):
            slots = segment.find(raw, hashes)
            own = np.flatnonzero(slots >= 0)
            if own.size:
                parts.append(_at_level(segment.content(slots[own]), level))
                ids.append(own)
        present, content = fold(parts, ids, len(raw))
        if content.gone.any():
            live = np.flatnonzero(~content.gone)
            texts = {name: values.take(pa.array(live)) for name, values in content.texts.items()}
            content = replace(
                content, texts=texts, facts=content.facts.take(live), due=content.due[live], gone=content.gone[live]
            )
            present = present[live]
        return Known(raw, present, content)

    def _nothing(self) -> Content:
        count = np.empty(0, np.bool_)
        lists = {name: kind.empty() for name, kind in self.lists.items()}
        texts = {name: pa.array([], pa.large_binary()) for name in self.texts}
        nothing = self.facts.empty()
        return Content(self.times, texts, nothing, np.empty(0), count, count, lists, self.schema.empty_table())

    def rows_at(self, places: Ints) -> pa.Table:
        """The rows of held messages, in the order of the given indexes."""
        return _rows_of(self.segments, places, self.schema)

    def next_due(self) -> float:
        """The next deadline; infinite if there is none."""
        least = inf
        for level, segment in enumerate(self.segments):
            skip = 0
            while (slots := segment.moments("dues", self.times.decided, inf, WALKED, skip)).size:
                live = np.ones(len(slots), np.bool_)
                if newer := self.segments[level + 1 :]:
                    raw = segment.texts(slots)[KEY]
                    hashes = hash_raw(raw)
                    for other in newer:
                        live &= other.find(raw, hashes) < 0
                if live.any():
                    least = min(least, float(segment.content(slots[live][:1]).due[0]))
                    break
                skip += WALKED
        return least

    def whole(self) -> Content:
        """All known keys, and the rows that they hold."""
        return self._merged(self.segments, None, 0)

    def whole_by_key(self) -> Content:
        content = self.whole()
        return content.take(pc.sort_indices(keys_of(content.texts[KEY], self.key_type)).to_numpy().astype(np.int64))

    @property
    def keys(self) -> pa.Array:
        return keys_of(self.whole().texts[KEY], self.key_type)

    # -- changing -------------------------------------------------------------------------------------------------------

    def apply(self, change: Content, tally: Tally, ratio: float = 1.0, *, is_full: bool = False) -> Segment:
        """Push the changes of a batch; returns the segment with them, which may include more. Everything is merged when
        ``ratio`` times all changes since the last full merge are as large; ``is_full`` forces it."""
        below, size = len(self.segments), max(1, change.entries)
        sizes = [segment.entries for segment in self.segments]
        if is_full or self._is_foreign or (sizes and ratio * (sum(sizes[1:]) + size) >= sizes[0]):
            below = 0
        while below and sizes[below - 1] <= size:
            below -= 1
            size += sizes[below]
        above = self.segments[below:]
        segment = write_segment(self._merged(above, change, below) if above or not below else change)
        self.segments[below:] = [segment]
        self.times, self.tally = change.times, self.tally + tally
        self._is_foreign = self.is_to_be_revisited = False
        return segment

    def _merged(self, segments: Sequence[Segment], change: Content | None, below: int) -> Content:
        """Segments, and a change on top, merged. With nothing below, keys that are gone are dropped."""
        parts = [_at_level(segment.content(), level) for level, segment in enumerate(segments)]
        top = self._nothing() if change is None else change
        sources: list[Segment | Content] = [*segments, top]
        parts.append(_at_level(top, len(parts)))
        ids, count = _matched([part.texts[KEY] for part in parts])
        _, content = fold(parts, ids, count)
        content.rows = _rows_of(sources, content.lists[HELD].row, self.schema)
        content.lists[HELD] = replace(content.lists[HELD], row=arange(content.rows.num_rows))
        if below:
            return content
        if content.gone.any():
            content = content.take(np.flatnonzero(~content.gone))
        if RELEASED in content.lists:
            content.lists[RELEASED] = NoLongerHeld.empty()
        content.fresh = np.ones(len(content), np.bool_)
        return content


def _at_level(content: Content, level: int) -> Content:
    held = content.lists[HELD]
    return replace(content, lists={**content.lists, HELD: replace(held, row=held.row + (level << LEVEL_BITS))})


def _rows_of(sources: Sequence[Segment | Content], places: Ints, schema: pa.Schema) -> pa.Table:
    levels, inside = places >> LEVEL_BITS, places & ((1 << LEVEL_BITS) - 1)
    order = np.lexsort((inside, levels))
    parts = []
    for level in np.unique(levels).tolist():
        source, own = sources[level], inside[order[levels[order] == level]]
        if isinstance(source, Content):
            parts.append(fitted(source.rows.take(pa.array(own)), schema))
        else:
            parts.append(source.rows(own, schema))
    if not parts:
        return schema.empty_table()
    back = np.empty(len(order), np.int64)
    back[order] = arange(len(order))
    return pa.concat_tables(parts).combine_chunks().take(pa.array(back))


def _matched(raws: list[pa.Array]) -> tuple[list[Ints], int]:
    """Numbers for keys, the same for equal keys, and how many there are."""
    raw = pa.concat_arrays(raws)
    if len(raws) == 1:
        return [arange(len(raw))], len(raw)
    hashes = hash_raw(raw)
    order = np.argsort(hashes, kind="stable")
    alike = hashes[order][1:] == hashes[order][:-1]
    before, after = raw.take(pa.array(order[:-1][alike])), raw.take(pa.array(order[1:][alike]))
    if pc.all(pc.equal(before, after)).as_py() is False:  # different keys share a hash
        numbers = raw.dictionary_encode().indices.to_numpy().astype(np.int64)
    else:
        numbers = np.empty(len(raw), np.int64)
        numbers[order] = np.append(np.zeros(min(1, len(raw)), np.int64), np.cumsum(~alike))
    ends = np.cumsum([len(own) for own in raws])
    return np.split(numbers, ends[:-1]), int(numbers.max(initial=-1)) + 1


class Partition(StackedPartition):
    """The keys of a partition whose rows have sequence numbers."""

    facts = KeyFacts
    lists: ClassVar[dict[str, type[Owned]]] = {GAPS: Gaps, GIVEN_UP: Ranges, HELD: HeldMessages, RELEASED: NoLongerHeld}

    def idle(self, since: float, busy: pa.Array) -> tuple[pa.Array, KeyFacts]:
        """The keys that hold nothing and had no activity after ``since``, and their facts."""
        raw = self._without(self._moments("quiet", self.times.idled, since), raw_keys(busy))
        known = self._find(raw)
        content = known.content
        idle = content.facts.now <= since  # type: ignore[attr-defined]
        idle &= ~np.isin(known.present, content.lists[HELD].owner)
        chosen = np.flatnonzero(idle)
        keys = keys_of(content.texts[KEY].take(pa.array(chosen)), self.key_type)
        facts: KeyFacts = content.facts.take(chosen)  # type: ignore[assignment]
        return keys, facts

    def waiting(self) -> pa.Table:
        """The rows that wait, by key and number, with the first gap of their key.

        ``_since`` is when a row came; ``_first`` to ``_last`` are the missing numbers that its key waits for, unwrapped
        if the source's numbers wrap, and ``_due`` is when they will be given up. A key that gathers its first rows
        waits for no number.
        """
        content = self.whole_by_key()
        held, gaps, facts = content.lists[HELD], content.lists[GAPS], content.facts
        owner = held.owner
        head = np.searchsorted(gaps.owner, owner)
        has_gap = head < len(gaps)
        has_gap[has_gap] = gaps.owner[head[has_gap]] == owner[has_gap]
        head = np.where(has_gap, head, 0)
        due = np.array(facts.start_deadline[owner])  # type: ignore[attr-defined]
        due[has_gap] = gaps.deadline[head[has_gap]]

        def of_gap(values: Ints) -> pa.Array:
            return pa.array(values[head] if len(values) else arange(len(owner)), mask=~has_gap)

        waits = [pa.array(held.arrival), of_gap(gaps.first), of_gap(gaps.last), pa.array(due, mask=~np.isfinite(due))]
        return with_waits(content.rows, waits)

    @classmethod
    def count(cls, content: Content) -> Tally:
        return Tally(len(content), len(content.lists[HELD]), len(content.lists[GAPS]))

    @classmethod
    def read_tables(cls, clock: float, tables: list[pa.Table]) -> Content:
        """A change in the first version's format."""
        keys, gaps, given_up, released, held, rows, expired = tables
        facts, own, idle = KeyFacts.from_arrow(keys), Gaps.from_arrow(gaps), expired.num_rows
        return Content(
            times=Times(clock),
            texts={KEY: raw_keys(pa.concat_arrays([flat(keys[KEY]), flat(expired[KEY])]))},
            facts=KeyFacts.concat([facts, KeyFacts.of_new_keys(idle)]),
            due=np.append(dues_of(facts, own), np.full(idle, inf)),
            fresh=np.append(keys["fresh_memory"].to_numpy(), np.ones(idle, np.bool_)),
            gone=np.repeat([False, True], [len(facts), idle]),
            lists={
                GAPS: own,
                GIVEN_UP: Ranges.from_arrow(given_up),
                HELD: HeldMessages.from_arrow(held),
                RELEASED: NoLongerHeld.from_arrow(released),
            },
            rows=rows,
        )


def dues_of(facts: KeyFacts, gaps: Gaps) -> Floats:
    """The next deadline of each key. A key with a reported gap waits for an operator."""
    due = np.where(np.isnan(facts.start_deadline), inf, facts.start_deadline)
    np.minimum.at(due, gaps.owner, gaps.deadline)
    due[gaps.owner[gaps.reported]] = inf
    return due


def with_waits(rows: pa.Table, waits: list[pa.Array]) -> pa.Table:
    """Waiting rows, in order of arrival, with the columns ``WAITING``."""
    table = rows.select([name for name in rows.schema.names if not name.startswith(ADDED)])
    for field, values in zip(WAITING, waits, strict=True):
        table = table.append_column(field, values)
    return table


def joined_rows(some: pa.Table, more: pa.Table) -> pa.Table:
    """The rows of two tables with the same columns, concatenated. A table without rows may have any columns."""
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


def _listing(table: pa.Table) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in table.schema)
