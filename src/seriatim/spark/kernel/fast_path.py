"""The fast path: all keys of a batch at once, on one number line.

Rules
-----
It decides exactly as the core's resequencer would, or not at all: keys for which it can't be sure are reported, with
the cause, and left to the slow path. It never decides part of a key.

Theory of operation
-------------------
*One line.* Every key gets a section of one long line of integers, as wide as the numbers that its rows, its held
messages and its expected number span. On this line a number identifies its key; sorting, running maxima and binary
searches over all keys at once work as on a single sequence. Under a modulus a row is first assumed to be the number
closest to the row before it; when everything is known, each row is checked to have been within half a circle of the
number expected when it came.

*Acceptance.* A number is missing from when a higher one comes (its *opener*, found in the running maximum of the rows)
until its deadline, the opener's time plus the timeout. So a row is accepted when it is the first with its number, is
not behind the number expected when the batch began, and is a new highest number or comes before the deadline of its
gap. The holes between accepted numbers are exactly the gaps; each lies in one gap that one row opened, or that was
open.

*Release.* A number is settled by the row that brings it, or, if it never comes, by the first row at or after its
deadline. A number is released when it and all below it are settled: the running maximum of those rows, along the line.
This determines whether a copy found its number held or released, how many messages were held at any moment, and which
number each row expected.

Moments: row *i* of the key *k* has the index ``i + k``, so that there is one more index after each key's rows, for the
time that passes at the end of a batch. At index *p* time passes at moment ``2p`` and the row comes at ``2p + 1``.
Messages that were held before count as having come just before their key's first index, and a gap that stays open as
settled just after its last. So moments, too, rise along the line and no key's maximum reaches into the next.

*Memory.* Ranges given up are only examined for keys that have rows behind or lose numbers. Late numbers are cut out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from seriatim.core.resequencing.options import OnGap, OnLate, ResequenceOptions
from seriatim.spark.kernel.arrays import (
    Bools,
    Columns,
    Floats,
    Ints,
    arange,
    first_at_least,
    first_of_each,
    reduce_runs,
    run_bounds,
    stable_order,
)
from seriatim.spark.kernel.batch import Batch
from seriatim.spark.kernel.partition_state import Gaps, Ranges
from seriatim.spark.kernel.slow_path_causes import Cause, Causes


@dataclass
class Holes(Columns):
    """Numbers that are missing at the end: ``first`` to ``last`` on the line, below the accepted number ``above``."""

    owner: Ints
    first: Ints
    last: Ints
    above: Ints
    deadline: Floats
    requests: Ints
    reported: Bools
    moment: Ints


class FastPath:
    """One batch, decided at once. Positions are on the line (see the module's theory)."""

    def __init__(self, batch: Batch, options: ResequenceOptions) -> None:
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
        end[batch.held.owner] = batch.held.number + self.step  # sorted: the highest of each key is last
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
        """Sort all messages along the line, copies of a number by arrival. Messages held before arrived first."""
        batch, held_count = self.batch, len(self.batch.held)
        places = np.concatenate([batch.held.number + self.shift[batch.held.owner], self.at])
        order = stable_order(places)
        self.order = order  # indexes of held messages, followed by the rows
        self.was_held = order < held_count
        self.row = order - held_count  # valid unless was_held
        self.place = places[order]
        counts = np.bincount(batch.held.owner, minlength=len(batch)) + batch.ends - batch.starts
        self.of = np.repeat(arange(len(batch)), counts)
        self.is_copy = ~first_of_each(self.place)

    # -- acceptance -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        self.is_behind = self.place < self.expected[self.of]
        fresh = ~self.is_copy & ~self.is_behind
        self.is_late = self._late_among(np.flatnonzero(fresh & ~self.was_held))
        self.accepted = np.flatnonzero(fresh & ~self.is_late)
        self.accepted_place, self.of_accepted = self.place[self.accepted], self.of[self.accepted]

    @cached_property
    def highest(self) -> Ints:
        """For each row, the running maximum of the rows and of the previously known numbers."""
        some = self.batch.starts < self.batch.ends
        first = self.batch.starts[some]
        highest = self.at.copy()
        highest[first] = np.maximum(highest[first], (self.end - self.step)[some])
        return np.maximum.accumulate(highest)

    def _late_among(self, fresh: Ints) -> Bools:
        """Marks rows that came after the deadline of their gap; ``fresh`` are the candidates."""
        late = np.zeros(len(self.place), np.bool_)
        if self.options.gap_timeout is None and not len(self.batch.gaps):
            return late
        time = self.batch.rows.time[self.row[fresh]]
        # A row that is the highest when it comes lies in no gap: most rows are.
        lower = self.highest[self.row[fresh]] > self.place[fresh]
        doubtful = fresh[lower & (time >= self._earliest_deadline()[self.of[fresh]])]
        place, row = self.place[doubtful], self.row[doubtful]
        deadline = np.full(len(doubtful), inf)
        old = place < self.end[self.of[doubtful]]
        deadline[old] = self.batch.gaps.deadline[self._old_gap(place[old])]
        opener = np.searchsorted(self.highest, place[~old], side="right")
        opened = opener <= row[~old]  # a row that is itself the highest opens the gap below it
        new = np.flatnonzero(~old)[opened]
        deadline[new] = self.batch.rows.time[opener[opened]] + self._timeout
        late[doubtful[self.batch.rows.time[row] >= deadline]] = True
        return late

    @property
    def _timeout(self) -> float:
        return inf if self.options.gap_timeout is None else self.options.gap_timeout

    def _earliest_deadline(self) -> Floats:
        """Nothing of a key is due before this."""
        batch = self.batch
        some = batch.starts < batch.ends
        earliest = np.full(len(batch), inf)
        earliest[some] = batch.rows.time[batch.starts[some]] + self._timeout
        np.minimum.at(earliest, batch.gaps.owner, batch.gaps.deadline)
        return earliest

    def _old_gap(self, place: Ints) -> Ints:
        """Which of the previously open gaps contains each position."""
        first = self.batch.gaps.first + self.shift[self.batch.gaps.owner]
        return np.searchsorted(first, place, side="right") - 1

    # -- gaps -----------------------------------------------------------------------------------------------------------

    def _find_holes(self) -> None:
        place, owner = self.accepted_place, self.of_accepted
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
        """Set deadlines. Returns the row that opened each hole, or -1 if it was open before."""
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
        """The moment just after the batch, for each key."""
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
        owner, was_held = self.of_accepted, self.was_held[self.accepted]
        came = 2 * (self.row[self.accepted] + owner) + 1
        came[was_held] = (2 * (self.batch.starts + arange(len(self.batch))) - 1)[owner[was_held]]
        settled = came.copy()
        settled[self.holes.above] = np.maximum(settled[self.holes.above], self.holes.moment)
        self.came = came
        self.released_at = np.maximum.accumulate(settled)
        self.is_released = self.released_at < self.never[owner]

    # -- what was not accepted ------------------------------------------------------------------------------------------

    def _judge_the_rest(self) -> None:
        """Classify copies and rows behind as late, as copies of held messages, or as copies of released ones."""
        rest = np.flatnonzero((self.is_copy | self.is_behind | self.is_late) & ~self.was_held)
        owner, row = self.of[rest], self.row[rest]
        behind = self.is_behind[rest]
        given_up = np.zeros(len(rest), np.bool_)
        given_up[behind] = self._was_given_up(self.place[rest[behind]])
        self.rest, self.rest_owner, self.rest_row = rest, owner, row
        self.twin = self._accepted_twins(self.place[rest])
        self.meets_held = (self.twin >= 0) & (np.append(self.released_at, -1)[self.twin] > 2 * (row + owner))
        self.hits_memory = (given_up & ~self.is_copy[rest]) | self.is_late[rest]
        self.too_old = behind & ~given_up & (self.number[row] < self.batch.facts.horizon[owner])

    def _accepted_twins(self, place: Ints) -> Ints:
        """The accepted message with the same number; -1 if there is none."""
        found = np.searchsorted(self.accepted_place, place)
        same = np.append(self.accepted_place, -1)[found] == place
        return np.where(same, found, -1)

    def _was_given_up(self, place: Ints) -> Bools:
        ranges = self.batch.given_up
        begin = (self.shift + self.low)[ranges.owner]
        first, last = ranges.first + self.shift[ranges.owner], ranges.last + self.shift[ranges.owner]
        # A position below all of a key's positions would belong to another key.
        first, last = np.maximum(first, begin)[last >= begin], last[last >= begin]
        found = np.searchsorted(first, place, side="right") - 1
        hit: Bools = np.zeros(len(place), np.bool_)
        hit[found >= 0] = last[found[found >= 0]] >= place[found >= 0]
        return hit

    def _remember(self) -> None:
        """Update the ranges given up, and from which number they are known: add lost numbers, cut out late ones."""
        lost, late = self._lost(), self.rest[self.hits_memory]
        late_owner, late_number = self.of[late], self.number[self.row[late]]
        changed = np.zeros(len(self.batch), np.bool_)
        changed[lost.owner] = changed[late_owner] = True
        old = self.batch.given_up.take(changed[self.batch.given_up.owner])
        owner = np.concatenate([old.owner, lost.owner, late_owner])
        first = np.concatenate([old.first, lost.first, late_number + self.step])
        last = np.concatenate([old.last, lost.last + self.step - 1, late_number - 1])
        # Ranges do not overlap: the n-th start and the n-th end of a key match, whatever was cut out.
        by_first, by_last = np.lexsort((first, owner)), np.lexsort((last, owner))
        ranges = Ranges(owner[by_first], first[by_first], last[by_last])
        self._bound(ranges.take(ranges.first <= ranges.last))
        busy = np.bincount(owner, minlength=len(self.batch)) > self.options.remember
        self.causes[np.intersect1d(np.flatnonzero(busy), late_owner)] = Cause.MEMORY
        self.fresh_memory = changed

    def _lost(self) -> Gaps:
        """The gaps that were given up, with their numbers."""
        return self.numbered(self.holes.take(self.holes.moment < self.never[self.holes.owner]))

    def numbered(self, holes: Holes) -> Gaps:
        shift = self.shift[holes.owner]
        return Gaps(
            holes.owner, holes.first - shift, holes.last - shift, holes.deadline, holes.requests, holes.reported
        )

    def _bound(self, ranges: Ranges) -> None:
        """Forget the oldest ranges if there are too many. Whether a row came before that is not decided here."""
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

    # -- causes for the slow path ---------------------------------------------------------------------------------------

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
        """Each row must have been within half a circle of the number expected when it came, or it is another number."""
        distance = 2 * (self.at - self._expected_by_rows())
        self.causes[self.owner[(distance < -modulus) | (distance >= modulus)]] = Cause.CIRCLE

    def _expected_by_rows(self) -> Ints:
        """The position that each row expected."""
        place = self.accepted_place
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
        """Find runs of rows behind that continue each other."""
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
