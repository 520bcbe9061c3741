"""The verdict of the fast path, made from what it found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.resequencing import OnDuplicate, OnLate, Reason
from seriatim.core.sequence import SequenceSpace
from seriatim.spark.kernel.arrays import Bools, Ints, Objects, filled, first_of_each, last_of_each
from seriatim.spark.kernel.fast_path import FastPath, Holes
from seriatim.spark.kernel.partition import HeldMessages, KeyFacts
from seriatim.spark.kernel.slow_path_causes import Cause
from seriatim.spark.kernel.verdict import NO_SOURCE, Entries, Released, Verdict
from seriatim.spark.tagged import Tag


class FastVerdict:
    """What the fast path found out about a batch."""

    def __init__(self, path: FastPath) -> None:
        self.path = path

    def verdict(self) -> Verdict:
        """What became of the keys without a cause to leave them to the slow path."""
        decided = self.path.causes == Cause.NONE
        sources, dropped = self._sources()
        released, waiting = self.path.is_released, ~self.path.is_released
        if not decided.all():
            chosen = decided[self.path.of_accepted]
            released, waiting = chosen & released, chosen & waiting
        open_holes = self.path.holes.take(self.path.holes.moment == self.path.never[self.path.holes.owner])
        gaps = self.path.numbered(open_holes)
        return Verdict(
            owners=np.flatnonzero(decided),
            released=self._released(np.flatnonzero(released), sources),
            entries=self._entries(decided, dropped),
            facts=self._facts(open_holes).take(decided),
            gaps=gaps.take(decided[gaps.owner]),
            fresh_memory=self.path.fresh_memory[decided],
            given_up=self.path.given_up.take(decided[self.path.given_up.owner]),
            held=self._held(np.flatnonzero(waiting), sources),
        )

    def _sources(self) -> tuple[Ints, Ints]:
        """Which copy of each accepted number is kept, and which message each of the rest drops."""
        batch = self.path.batch
        all_sources = np.concatenate([batch.held.row, batch.rows.source])[self.path.order]
        kept, dropped = all_sources[self.path.accepted], all_sources[self.path.rest]
        if self.path.options.on_duplicate is OnDuplicate.LAST:
            replacing = self.path.rest[self.path.meets_held]
            dropped[self.path.meets_held] = all_sources[replacing - 1]
            kept[self.path.twin[self.path.meets_held]] = all_sources[replacing]  # of several, the last is assigned last
        return kept, dropped

    def _released(self, index: Ints, sources: Ints) -> Released:
        return Released(self.path.of_accepted[index], sources[index])

    def _wrapped(self, number: Ints) -> Ints:
        return wrapped(number, self.path.options.space)

    def _held(self, index: Ints, sources: Ints) -> HeldMessages:
        owner, at = self.path.of_accepted[index], self.path.accepted[index]
        arrival = np.concatenate([self.path.batch.held.arrival, self.path.batch.rows.time])
        return HeldMessages(
            owner, self.path.place[at] - self.path.shift[owner], arrival[self.path.order[at]], sources[index]
        )

    def _facts(self, open_holes: Holes) -> KeyFacts:
        facts = self.path.batch.facts
        end = self.path.end.copy()
        last = last_of_each(self.path.of_accepted)
        owner = self.path.of_accepted[last]
        end[owner] = np.maximum(end[owner], self.path.accepted_place[last] + self.path.step)
        head = first_of_each(open_holes.owner)
        end[open_holes.owner[head]] = open_holes.first[head]
        released = np.bincount(self.path.of_accepted[self.path.is_released], minlength=len(self.path.batch))
        return KeyFacts(
            epoch=facts.epoch,
            expected=end - self.path.shift,
            horizon=self.path.horizon,
            position=facts.position + released,
            now=self.path.end_time,
            start_deadline=facts.start_deadline,
            behind_run=self.path.behind_run,
            behind_last=self.path.behind_last,
        )

    def _entries(self, decided: Bools, dropped: Ints) -> Entries:
        parts = [self._lost_entries(decided), self._rest_entries(decided, dropped)]
        if self.path.options.on_late is OnLate.SIDE_OUTPUT:
            parts.append(self._side_output(parts[1]))
        entries = Entries.concat(parts)
        return entries.take(np.argsort(entries.order, kind="stable"))

    def _lost_entries(self, decided: Bools) -> Entries:
        due = self.path.holes.moment < self.path.never[self.path.holes.owner]
        holes = self.path.holes.take(due & decided[self.path.holes.owner])
        gaps, count = self.path.numbered(holes), len(holes)
        return Entries(
            owner=gaps.owner,
            order=2 * holes.moment,
            tag=filled(count, Tag.LEDGER),
            reason=filled(count, Reason.LOST),
            epoch=self.path.batch.facts.epoch[gaps.owner],
            first=self._wrapped(gaps.first),
            last=self._wrapped(gaps.last),
            size=(gaps.last - gaps.first) // self.path.step + 1,
            time=gaps.deadline,
            detail=filled(count, "gap timeout"),
            source=np.full(count, NO_SOURCE, np.int64),
        )

    def _rest_entries(self, decided: Bools, dropped: Ints) -> Entries:
        chosen = np.flatnonzero(decided[self.path.rest_owner])
        owner, row = self.path.rest_owner[chosen], self.path.rest_row[chosen]
        sequence = self.path.batch.rows.sequence[row]
        return Entries(
            owner=owner,
            order=2 * (2 * (row + owner) + 1) + 1,
            tag=filled(len(chosen), Tag.LEDGER),
            reason=self._reasons()[chosen],
            epoch=self.path.batch.facts.epoch[owner],
            first=sequence,
            last=sequence,
            size=np.ones(len(chosen), np.int64),
            time=self.path.batch.rows.time[row],
            detail=self._details()[chosen],
            source=dropped[chosen],
        )

    def _reasons(self) -> Objects:
        reasons = filled(len(self.path.rest), Reason.DUPLICATE)
        reasons[self.path.hits_memory | self.path.too_old] = Reason.LATE
        digests = self.path.batch.digests
        if self.path.options.on_duplicate is OnDuplicate.CONFLICT and digests is not None:
            kept, dropped = self._sources()
            meeting = np.flatnonzero(self.path.meets_held)
            differ = _differ(digests, dropped[meeting], kept[self.path.twin[meeting]])
            reasons[meeting[differ]] = Reason.CONFLICT
        return reasons

    def _details(self) -> Objects:
        details = filled(len(self.path.rest), "released before")
        details[self.path.meets_held] = "another copy is held"
        details[self.path.hits_memory] = "its gap was given up"
        details[self.path.too_old] = "before the start, or older than what is remembered"
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
