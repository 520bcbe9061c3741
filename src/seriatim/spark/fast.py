"""The fast path: all keys of a batch at once, on one number line.

Rules
-----
It decides exactly what the core's resequencer would, or not at all: keys for which it can't be sure are named, with the
cause, and left to the slow path. It never decides half of a key.

Theory of operation
-------------------
*One line.* Every key gets a stretch of one long line of integers, as wide as the numbers that its rows, its held
messages and its expected number span. On this line a number says by itself which key it belongs to; sorting, running
maxima and binary searches over all keys at once are those of a single sequence. Under a modulus a row is first taken to
be the number closest to the row before it; when everything is known, each row is checked to have been within half a
circle of what was expected when it came.

*Acceptance.* A number is missing from when a higher one comes (its *opener*, found in the running maximum of the rows)
until its deadline, the opener's time plus the timeout. So a row is taken when it is the first with its number, is not
behind what was expected when the batch began, and is a new highest number or comes before the deadline of its gap. The
holes between accepted numbers are exactly the gaps; each lies in one gap that was opened by one row, or was open
before.

*Release.* Let a number be settled by the row that brings it, or, when it never comes, by the first row at or after its
deadline. A number is released when it and all below it are settled: the running maximum of those rows, along the line.
From it follows whether a copy met its number held or released, how many were held at any moment, and what was expected
by each row.

Moments: row *i* of the key *k* has the place ``i + k``, so that there is one more place behind each key's rows, for the
time that passes at the end of a batch. At place *p* time passes at moment ``2p`` and the row comes at ``2p + 1``. What
was held before counts as having come just before its key's first place, and a gap that stays open as settled just after
its last. So moments, too, rise along the line and no key's maximum reaches into the next.

*Memory.* Ranges given up are only looked at for keys that have rows behind or lose numbers. Late numbers are cut out of
them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.resequencing import OnDuplicate, OnGap, OnLate, Reason, Resequencing, StartRule
from seriatim.core.sequence import SequenceSpace
from seriatim.spark.arrays import (
    Bools,
    Columns,
    Floats,
    Ints,
    Objects,
    arange,
    filled,
    first_at_least,
    first_of_each,
    reduce_runs,
    run_bounds,
)
from seriatim.spark.partition import Gaps, Held, KeyFacts, Ranges
from seriatim.spark.work import NO_SOURCE, Batch, Entries, Released, Tag, Verdict

WIDEST = 2**40
"""A key whose numbers span more than this is left to the slow path, so that a million keys fit on the line."""


class Cause(IntEnum):
    """Why a key is left to the slow path."""

    NONE = 0
    GATHERING = 1  # the lowest number is still awaited
    EPOCH = 2  # a session ends, or a row belongs to one that has ended
    GRID = 3  # a row is off the grid of the increment
    JUMP = 4  # the numbers span more than fits on the line
    DEADLINES = 5  # deadlines do not rise with the numbers: the timeout was changed
    DUE = 6  # a gap falls due, and it is not to be skipped
    LATE = 7  # a row is late, and that is to be raised
    ROOM = 8  # more was held than there is room for
    CIRCLE = 9  # a row came from the other half of the circle
    SYNC = 10  # sync was lost
    MEMORY = 11  # what is remembered of the numbers given up moved past a row that is behind


Causes: TypeAlias = npt.NDArray[np.int8]


def begin_sessions(batch: Batch, options: Resequencing) -> Batch:
    """The batch, with the keys that are new at their start, which a literal start or the first row tells."""
    new = np.flatnonzero(~batch.known)
    if not new.size:
        return batch
    facts = batch.facts
    first = batch.starts[new]
    facts.epoch[new] = batch.rows.epoch[first]
    literal = options.start.rule is StartRule.LITERAL
    facts.expected[new] = int(options.start.value) if literal else batch.rows.sequence[first]
    facts.horizon[new] = facts.expected[new]
    if options.start.rule is StartRule.LOWEST_WITHIN:
        facts.start_deadline[new] = inf
    return batch


def obstacles(batch: Batch, options: Resequencing) -> Causes:
    """Why keys can't take the fast path, as far as their rows and what is known of them tell."""
    causes = np.zeros(len(batch), np.int8)
    owner, rows, facts = batch.owner_of_rows(), batch.rows, batch.facts
    distance = rows.sequence - facts.expected[owner]
    if options.space.modulus is None:
        causes[owner[np.abs(distance) > WIDEST]] = Cause.JUMP
    if options.space.increment > 1:
        causes[owner[distance % options.space.increment != 0]] = Cause.GRID
    causes[_with_falling_deadlines(batch, options)] = Cause.DEADLINES
    causes[owner[rows.epoch != facts.epoch[owner]]] = Cause.EPOCH
    causes[~np.isnan(facts.start_deadline)] = Cause.GATHERING
    return causes


def _with_falling_deadlines(batch: Batch, options: Resequencing) -> Ints:
    """The keys in which a gap may fall due before one below it; without a change of the timeout there are none."""
    gaps = batch.gaps
    falls = (gaps.owner[1:] == gaps.owner[:-1]) & (gaps.deadline[1:] < gaps.deadline[:-1])
    timeout = inf if options.gap_timeout is None else options.gap_timeout
    with_rows = batch.starts < batch.ends
    next_deadline = np.full(len(batch), inf)
    next_deadline[with_rows] = batch.rows.time[batch.starts[with_rows]] + timeout
    # A gap that was reported has no deadline any more, and those above it wait for it: on_gap=HOLD looks at the first only.
    beyond = (gaps.deadline > next_deadline[gaps.owner]) & ~gaps.reported
    return np.concatenate([gaps.owner[1:][falls & ~gaps.reported[:-1]], gaps.owner[beyond]])


@dataclass
class Holes(Columns):
    """Missing numbers as they are at the end: ``first`` to ``last`` on the line, below the accepted number ``above``."""

    owner: Ints
    first: Ints
    last: Ints
    above: Ints
    deadline: Floats
    requests: Ints
    reported: Bools
    moment: Ints


class FastPath:
    """One batch, decided at once. Positions are places on the line (see the module's theory)."""

    def __init__(self, batch: Batch, options: Resequencing) -> None:
        self.batch, self.options = batch, options
        self.step = options.space.increment
        self.causes: Causes = np.zeros(len(batch), np.int8)
        self.owner = batch.owner_of_rows()
        self.number = self._unwrap()
        self._lay_out()
        self._sort()
        self._accept()
        self._find_holes()
        self._settle()
        self._judge_the_rest()
        self._remember()
        self._check()

    # -- one line -------------------------------------------------------------------------------------------------------

    def _unwrap(self) -> Ints:
        batch, modulus = self.batch, self.options.space.modulus
        sequence = batch.rows.sequence
        if modulus is None or not len(sequence):
            return sequence
        some = batch.starts < batch.ends
        before = np.empty_like(sequence)
        before[1:] = sequence[:-1]
        before[batch.starts[some]] = batch.facts.expected[some]
        moved = (sequence - before) % modulus
        moved[2 * moved >= modulus] -= modulus
        travelled = np.cumsum(moved)
        origin = np.zeros(len(batch), np.int64)
        origin[some] = batch.facts.expected[some] - (travelled - moved)[batch.starts[some]]
        return travelled + origin[self.owner]

    def _lay_out(self) -> None:
        batch = self.batch
        low, end = batch.facts.expected.copy(), batch.facts.expected.copy()
        end[batch.held.owner] = batch.held.number + self.step  # sorted: the highest of each key comes last
        high = end.copy()
        reduce_runs(np.minimum, self.number, batch.starts, batch.ends, low)
        reduce_runs(np.maximum, self.number, batch.starts, batch.ends, high)
        width = high - low + 2 * self.step
        self.low = low
        self.shift = np.cumsum(width) - width - low
        self.expected = batch.facts.expected + self.shift
        self.end = end + self.shift
        self.at = self.number + self.shift[self.owner]

    def _sort(self) -> None:
        """All messages along the line, copies of a number in order of arrival. What was held before arrived before."""
        batch, held_count = self.batch, len(self.batch.held)
        places = np.concatenate([batch.held.number + self.shift[batch.held.owner], self.at])
        order = np.argsort(places, kind="stable")
        self.was_held = order < held_count
        self.held_index = order  # meant where was_held
        self.row = order - held_count  # meant where not was_held
        self.place = places[order]
        counts = np.bincount(batch.held.owner, minlength=len(batch)) + batch.ends - batch.starts
        self.of = np.repeat(arange(len(batch)), counts)
        self.is_copy = ~first_of_each(self.place)
        self.group = np.cumsum(~self.is_copy) - 1

    # -- acceptance -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        self.is_behind = self.place < self.expected[self.of]
        fresh = ~self.is_copy & ~self.is_behind
        self.is_late = self._late_among(np.flatnonzero(fresh & ~self.was_held))
        self.accepted = np.flatnonzero(fresh & ~self.is_late)

    @cached_property
    def highest(self) -> Ints:
        """The running maximum of the rows and of what was known before, for each row."""
        some = self.batch.starts < self.batch.ends
        first = self.batch.starts[some]
        highest = self.at.copy()
        highest[first] = np.maximum(highest[first], (self.end - self.step)[some])
        return np.maximum.accumulate(highest)

    def _late_among(self, fresh: Ints) -> Bools:
        """Marks what came after the deadline of its gap; ``fresh`` are the candidates."""
        late = np.zeros(len(self.place), np.bool_)
        if self.options.gap_timeout is None and not len(self.batch.gaps):
            return late
        time = self.batch.rows.time[self.row[fresh]]
        doubtful = fresh[time >= self._earliest_deadline()[self.of[fresh]]]
        place, row = self.place[doubtful], self.row[doubtful]
        deadline = np.full(len(doubtful), inf)
        old = place < self.end[self.of[doubtful]]
        deadline[old] = self.batch.gaps.deadline[self._old_gap(place[old])]
        opener = np.searchsorted(self.highest, place[~old], side="right")
        opened = opener <= row[~old]  # the row that is itself the highest opens what lies below it
        new = np.flatnonzero(~old)[opened]
        deadline[new] = self.batch.rows.time[opener[opened]] + self._timeout
        late[doubtful[self.batch.rows.time[row] >= deadline]] = True
        return late

    @property
    def _timeout(self) -> float:
        return inf if self.options.gap_timeout is None else self.options.gap_timeout

    def _earliest_deadline(self) -> Floats:
        """Before this nothing of a key falls due."""
        batch = self.batch
        some = batch.starts < batch.ends
        earliest = np.full(len(batch), inf)
        earliest[some] = batch.rows.time[batch.starts[some]] + self._timeout
        np.minimum.at(earliest, batch.gaps.owner, batch.gaps.deadline)
        return earliest

    def _old_gap(self, place: Ints) -> Ints:
        """Which of the gaps that were open before holds each place."""
        first = self.batch.gaps.first + self.shift[self.batch.gaps.owner]
        return np.searchsorted(first, place, side="right") - 1

    # -- gaps -----------------------------------------------------------------------------------------------------------

    def _find_holes(self) -> None:
        place, owner = self.place[self.accepted], self.of[self.accepted]
        below = np.empty_like(place)
        below[1:] = place[:-1]
        first = first_of_each(owner)
        below[first] = (self.expected - self.step)[owner[first]]
        above = np.flatnonzero(place - below > self.step)
        count = len(above)
        holes = Holes(
            owner=owner[above],
            first=below[above] + self.step,
            last=place[above] - self.step,
            above=above,
            deadline=np.empty(count),
            requests=np.zeros(count, np.int64),
            reported=np.zeros(count, np.bool_),
            moment=np.empty(count, np.int64),
        )
        opener = self._open(holes)
        self._let_fall_due(holes, opener)
        self.holes = holes

    def _open(self, holes: Holes) -> Ints:
        """Set deadlines; the row that opened each hole, or -1 for those that were open before."""
        old = holes.last < self.end[holes.owner]
        gap = self._old_gap(holes.first[old])
        gaps = self.batch.gaps
        opener = np.full(len(holes), -1, np.int64)
        opener[~old] = np.searchsorted(self.highest, holes.last[~old], side="right")
        holes.deadline[~old] = self.batch.rows.time[opener[~old]] + self._timeout
        holes.deadline[old] = gaps.deadline[gap]
        holes.requests[old] = gaps.requests[gap]
        holes.reported[old] = gaps.reported[gap]
        return opener

    @cached_property
    def end_time(self) -> Floats:
        batch = self.batch
        time = np.maximum(batch.floors, batch.clock)
        some = batch.starts < batch.ends
        time[some] = np.maximum(time[some], batch.rows.time[batch.ends[some] - 1])
        return time

    @cached_property
    def never(self) -> Ints:
        """For each key the moment just after the batch."""
        return 2 * (self.batch.ends + arange(len(self.batch))) + 1

    def _let_fall_due(self, holes: Holes, opener: Ints) -> None:
        batch = self.batch
        holes.moment[:] = self.never[holes.owner]
        due = np.flatnonzero((holes.deadline <= self.end_time[holes.owner]) & (holes.deadline < inf))
        owner = holes.owner[due]
        begin = np.maximum(batch.starts[owner], opener[due] + 1)
        row = first_at_least(batch.rows.time, begin, batch.ends[owner], holes.deadline[due])
        holes.moment[due] = 2 * (row + owner)
        if self.options.on_gap is not OnGap.SKIP:
            self.causes[owner] = Cause.DUE

    # -- release --------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        owner, was_held = self.of[self.accepted], self.was_held[self.accepted]
        came = 2 * (self.row[self.accepted] + owner) + 1
        came[was_held] = (2 * (self.batch.starts + arange(len(self.batch))) - 1)[owner[was_held]]
        settled = came.copy()
        settled[self.holes.above] = np.maximum(settled[self.holes.above], self.holes.moment)
        self.came = came
        self.released_at = np.maximum.accumulate(settled)
        self.is_released = self.released_at < self.never[owner]
        self.of_accepted = owner

    # -- what was not accepted ------------------------------------------------------------------------------------------

    def _judge_the_rest(self) -> None:
        """Sort copies and what is behind into late, copies of what is held, and copies of what was released."""
        released_at = np.full(self.group[-1] + 1 if len(self.group) else 0, -1, np.int64)
        released_at[self.group[self.accepted]] = self.released_at
        rest = np.flatnonzero((self.is_copy | self.is_behind | self.is_late) & ~self.was_held)
        owner, row = self.of[rest], self.row[rest]
        behind = self.is_behind[rest]
        given_up = np.zeros(len(rest), np.bool_)
        given_up[behind] = self._was_given_up(self.place[rest[behind]])
        self.rest, self.rest_owner, self.rest_row = rest, owner, row
        self.meets_held = released_at[self.group[rest]] > 2 * (row + owner)
        self.hits_memory = (given_up & ~self.is_copy[rest]) | self.is_late[rest]
        self.too_old = behind & ~given_up & (self.number[row] < self.batch.facts.horizon[owner])

    def _was_given_up(self, place: Ints) -> Bools:
        ranges = self.batch.given_up
        begin = (self.shift + self.low)[ranges.owner]
        first, last = ranges.first + self.shift[ranges.owner], ranges.last + self.shift[ranges.owner]
        # What lies below everything that a key has on the line would lie on the stretch of another.
        first, last = np.maximum(first, begin)[last >= begin], last[last >= begin]
        found = np.searchsorted(first, place, side="right") - 1
        hit: Bools = np.zeros(len(place), np.bool_)
        hit[found >= 0] = last[found[found >= 0]] >= place[found >= 0]
        return hit

    def _remember(self) -> None:
        """What is known of the numbers given up, and from which number on: lost ones are added, late ones cut out."""
        lost, late = self._lost(), self.rest[self.hits_memory]
        late_owner, late_number = self.of[late], self.number[self.row[late]]
        changed = np.zeros(len(self.batch), np.bool_)
        changed[lost.owner] = changed[late_owner] = True
        old = self.batch.given_up.take(changed[self.batch.given_up.owner])
        owner = np.concatenate([old.owner, lost.owner, late_owner])
        first = np.concatenate([old.first, lost.first, late_number + self.step])
        last = np.concatenate([old.last, lost.last + self.step - 1, late_number - 1])
        # Ranges do not overlap: the n-th start and the n-th end of a key belong together, whatever was cut out.
        by_first, by_last = np.lexsort((first, owner)), np.lexsort((last, owner))
        ranges = Ranges(owner[by_first], first[by_first], last[by_last])
        self._bound(ranges.take(ranges.first <= ranges.last))
        busy = np.bincount(owner, minlength=len(self.batch)) > self.options.remember
        self.causes[np.intersect1d(np.flatnonzero(busy), late_owner)] = Cause.MEMORY
        self.fresh_memory = changed

    def _lost(self) -> Gaps:
        """The gaps that were given up, with their numbers."""
        return self._numbered(self.holes.take(self.holes.moment < self.never[self.holes.owner]))

    def _numbered(self, holes: Holes) -> Gaps:
        shift = self.shift[holes.owner]
        return Gaps(
            holes.owner, holes.first - shift, holes.last - shift, holes.deadline, holes.requests, holes.reported
        )

    def _bound(self, ranges: Ranges) -> None:
        """Forget the oldest ranges when there are too many. Whether a row came before or after that is not decided here."""
        starts, ends = run_bounds(ranges.owner, len(self.batch))
        surplus = np.maximum(ends - starts - self.options.remember, 0)
        forgotten = arange(len(ranges)) < (starts + surplus)[ranges.owner]
        horizon = self.batch.facts.horizon
        self.horizon = horizon.copy()
        np.maximum.at(self.horizon, ranges.owner[forgotten], ranges.last[forgotten] + 1)
        self.given_up = ranges.take(~forgotten)
        owner, number = self.rest_owner, self.number[self.rest_row]
        passed = (horizon[owner] <= number) & (number < self.horizon[owner]) & ~self.meets_held
        self.causes[owner[passed]] = Cause.MEMORY

    # -- what can't be decided here -------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.options.on_late is OnLate.RAISE:
            self.causes[self.rest_owner[self.hits_memory | self.too_old]] = Cause.LATE
        self._check_room()
        if self.options.space.modulus is not None:
            self._check_circle(self.options.space.modulus)
        self._watch_sync()

    def _check_room(self) -> None:
        waited = np.flatnonzero(self.released_at > self.came)
        limit = self.options.held_limit
        owner = self.of_accepted[waited]
        if np.bincount(owner, minlength=1).max() <= limit:
            return
        first_place = self.batch.starts + arange(len(self.batch))
        places = len(self.batch.rows) + len(self.batch)
        enters = np.maximum(self.came[waited] // 2, first_place[owner])
        leaves = self.released_at[waited] // 2
        held = np.cumsum(np.bincount(enters, minlength=places) - np.bincount(leaves, minlength=places))
        full = np.flatnonzero(held > limit)
        self.causes[np.searchsorted(first_place, full, side="right") - 1] = Cause.ROOM

    def _check_circle(self, modulus: int) -> None:
        """Each row must have been within half a circle of what was expected when it came, or it is another number."""
        distance = 2 * (self.at - self._expected_by_rows())
        self.causes[self.owner[(distance < -modulus) | (distance >= modulus)]] = Cause.CIRCLE

    def _expected_by_rows(self) -> Ints:
        """For each row the place that was expected when it came."""
        place = self.place[self.accepted]
        awaited = place.copy()
        awaited[self.holes.above] = self.holes.first
        first, last = run_bounds(self.of_accepted, len(self.batch))
        after_all = self.expected.copy()
        some = first < last
        after_all[some] = place[last[some] - 1] + self.step
        moments = 2 * (arange(len(self.at)) + self.owner)
        head = np.searchsorted(self.released_at, moments, side="right")
        inside = head < last[self.owner]
        expected: Ints = after_all[self.owner]
        expected[inside] = awaited[head[inside]]
        return expected

    def _watch_sync(self) -> None:
        """Runs of rows behind that continue each other."""
        batch, facts = self.batch, self.batch.facts
        self.behind_run, self.behind_last = facts.behind_run, facts.behind_last
        limit = self.options.resync_limit
        some = np.flatnonzero(batch.starts < batch.ends)
        if limit is None or not some.size:
            return
        behind = np.zeros(len(self.number), np.bool_)
        behind[self.rest_row[~self.meets_held]] = True
        first, last = batch.starts[some], batch.ends[some] - 1
        goes_on = np.zeros(len(behind), np.bool_)
        goes_on[1:] = behind[1:] & behind[:-1] & (self.number[1:] == self.number[:-1] + self.step)
        goes_on[first] = False
        run = arange(len(behind)) - np.maximum.accumulate(np.where(goes_on, 0, arange(len(behind)))) + 1
        before = np.zeros(len(behind), np.int64)
        continued = (facts.behind_run[some] > 0) & (self.number[first] == facts.behind_last[some] + self.step)
        before[first] = np.where(continued, facts.behind_run[some], 0)
        run += before[arange(len(behind)) - run + 1]
        self.causes[self.owner[behind & (run >= limit)]] = Cause.SYNC
        self.behind_run, self.behind_last = self.behind_run.copy(), self.behind_last.copy()
        self.behind_run[some] = np.where(behind[last], run[last], 0)
        self.behind_last[some] = np.where(behind[last], self.number[last], 0)

    # -- the verdict ----------------------------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """What became of the keys without a cause to leave them to the slow path."""
        decided = self.causes == Cause.NONE
        sources, dropped = self._sources()
        chosen = decided[self.of_accepted]
        released, waiting = chosen & self.is_released, chosen & ~self.is_released
        open_holes = self.holes.take(self.holes.moment == self.never[self.holes.owner])
        gaps = self._numbered(open_holes)
        return Verdict(
            owners=np.flatnonzero(decided),
            released=self._released(np.flatnonzero(released), sources),
            entries=self._entries(decided, dropped),
            facts=self._facts(open_holes).take(decided),
            gaps=gaps.take(decided[gaps.owner]),
            fresh_memory=self.fresh_memory[decided],
            given_up=self.given_up.take(decided[self.given_up.owner]),
            held=self._held(np.flatnonzero(waiting), sources),
        )

    def _sources(self) -> tuple[Ints, Ints]:
        """Which copy of each accepted number is kept, and which message each of the rest drops."""
        all_sources = np.empty(len(self.place), np.int64)
        all_sources[self.was_held] = self.batch.held.row[self.held_index[self.was_held]]
        all_sources[~self.was_held] = self.batch.rows.source[self.row[~self.was_held]]
        kept, dropped = all_sources[self.accepted], all_sources[self.rest]
        if self.options.on_duplicate is OnDuplicate.LAST:
            replacing = self.rest[self.meets_held]
            dropped[self.meets_held] = all_sources[replacing - 1]
            by_group = np.empty(self.group[-1] + 1 if len(self.group) else 0, np.int64)
            by_group[self.group[self.accepted]] = kept
            by_group[self.group[replacing]] = all_sources[replacing]  # of several, the last is assigned last
            kept = by_group[self.group[self.accepted]]
        return kept, dropped

    def _released(self, index: Ints, sources: Ints) -> Released:
        owner = self.of_accepted[index]
        number = self.place[self.accepted[index]] - self.shift[owner]
        return Released(owner, sources[index], self.batch.facts.epoch[owner], self._wrapped(number))

    def _wrapped(self, number: Ints) -> Ints:
        return wrapped(number, self.options.space)

    def _held(self, index: Ints, sources: Ints) -> Held:
        owner, at = self.of_accepted[index], self.accepted[index]
        arrival = np.empty(len(index))
        before = self.was_held[at]
        arrival[before] = self.batch.held.arrival[self.held_index[at[before]]]
        arrival[~before] = self.batch.rows.time[self.row[at[~before]]]
        return Held(owner, self.place[at] - self.shift[owner], arrival, sources[index])

    def _facts(self, open_holes: Holes) -> KeyFacts:
        facts = self.batch.facts
        end = self.end.copy()
        end[self.of_accepted] = np.maximum(end[self.of_accepted], self.place[self.accepted] + self.step)
        head = first_of_each(open_holes.owner)
        end[open_holes.owner[head]] = open_holes.first[head]
        released = np.bincount(self.of_accepted[self.is_released], minlength=len(self.batch))
        return KeyFacts(
            epoch=facts.epoch,
            expected=end - self.shift,
            horizon=self.horizon,
            position=facts.position + released,
            now=self.end_time,
            start_deadline=facts.start_deadline,
            behind_run=self.behind_run,
            behind_last=self.behind_last,
        )

    def _entries(self, decided: Bools, dropped: Ints) -> Entries:
        parts = [self._lost_entries(decided), self._rest_entries(decided, dropped)]
        if self.options.on_late is OnLate.SIDE_OUTPUT:
            parts.append(self._side_output(parts[1]))
        entries = Entries.concat(parts)
        return entries.take(np.argsort(entries.order, kind="stable"))

    def _lost_entries(self, decided: Bools) -> Entries:
        due = self.holes.moment < self.never[self.holes.owner]
        holes = self.holes.take(due & decided[self.holes.owner])
        gaps, count = self._numbered(holes), len(holes)
        return Entries(
            owner=gaps.owner,
            order=2 * holes.moment,
            tag=filled(count, Tag.LEDGER),
            reason=filled(count, Reason.LOST),
            epoch=self.batch.facts.epoch[gaps.owner],
            first=self._wrapped(gaps.first),
            last=self._wrapped(gaps.last),
            size=(gaps.last - gaps.first) // self.step + 1,
            time=gaps.deadline,
            detail=filled(count, "gap timeout"),
            source=np.full(count, NO_SOURCE, np.int64),
        )

    def _rest_entries(self, decided: Bools, dropped: Ints) -> Entries:
        chosen = np.flatnonzero(decided[self.rest_owner])
        owner, row = self.rest_owner[chosen], self.rest_row[chosen]
        sequence = self.batch.rows.sequence[row]
        return Entries(
            owner=owner,
            order=2 * (2 * (row + owner) + 1) + 1,
            tag=filled(len(chosen), Tag.LEDGER),
            reason=self._reasons()[chosen],
            epoch=self.batch.facts.epoch[owner],
            first=sequence,
            last=sequence,
            size=np.ones(len(chosen), np.int64),
            time=self.batch.rows.time[row],
            detail=self._details()[chosen],
            source=dropped[chosen],
        )

    def _reasons(self) -> Objects:
        reasons = filled(len(self.rest), Reason.DUPLICATE)
        reasons[self.hits_memory | self.too_old] = Reason.LATE
        digests = self.batch.digests
        if self.options.on_duplicate is OnDuplicate.CONFLICT and digests is not None:
            kept, dropped = self._sources()
            by_group = np.full(self.group[-1] + 1 if len(self.group) else 0, NO_SOURCE, np.int64)
            by_group[self.group[self.accepted]] = kept
            meeting = np.flatnonzero(self.meets_held)
            differ = _differ(digests, dropped[meeting], by_group[self.group[self.rest[meeting]]])
            reasons[meeting[differ]] = Reason.CONFLICT
        return reasons

    def _details(self) -> Objects:
        details = filled(len(self.rest), "released before")
        details[self.meets_held] = "another copy is held"
        details[self.hits_memory] = "its gap was given up"
        details[self.too_old] = "before the start, or older than what is remembered"
        return details

    def _side_output(self, entries: Entries) -> Entries:
        late = entries.take(entries.reason == Reason.LATE)
        late.order = late.order - 1
        late.tag = filled(len(late), Tag.LATE)
        late.reason, late.detail = filled(len(late), None), filled(len(late), None)
        return late


def wrapped(number: Ints, space: SequenceSpace) -> Ints:
    """The raw numbers of unwrapped ones."""
    if space.modulus is None:
        return number
    raw: Ints = number % space.modulus
    return raw


def _differ(digests: pa.Array, some: Ints, others: Ints) -> Bools:
    """Whether digests differ, pair by pair; a missing digest equals a missing one."""
    left, right = digests.take(pa.array(some)), digests.take(pa.array(others))
    both_missing = pc.and_(pc.is_null(left), pc.is_null(right))
    same = pc.or_(pc.fill_null(pc.equal(left, right), False), both_missing)
    differ: Bools = ~same.to_numpy(zero_copy_only=False)
    return differ
