"""Builds the decision of the fast path from its results."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.resequencing.options import OnDuplicate, OnLate, Reason
from seriatim.core.sequence import SequenceSpace
from seriatim.spark.kernel.arrays import Bools, Ints, Objects, filled, first_of_each, last_of_each
from seriatim.spark.kernel.batch import NO_SOURCE, Decision, Entries, Released
from seriatim.spark.kernel.fast_path import FastPath, Holes
from seriatim.spark.kernel.partition_state import HeldMessages, KeyFacts
from seriatim.spark.kernel.slow_path_causes import Cause
from seriatim.spark.tagged import Tag


def decision_of(path: FastPath) -> Decision:
    """The decision for the keys that are not left to the slow path."""
    decided = path.causes == Cause.NONE
    sources, dropped = _sources(path)
    released, waiting = path.is_released, ~path.is_released
    if not decided.all():
        chosen = decided[path.of_accepted]
        released, waiting = chosen & released, chosen & waiting
    open_holes = path.holes.take(path.holes.moment == path.never[path.holes.owner])
    gaps = path.numbered(open_holes)
    return Decision(
        owners=np.flatnonzero(decided),
        released=Released(path.of_accepted[released], sources[released]),
        entries=_entries(path, decided, dropped),
        facts=_facts(path, open_holes).take(decided),
        gaps=gaps.take(decided[gaps.owner]),
        fresh_memory=path.fresh_memory[decided],
        given_up=path.given_up.take(decided[path.given_up.owner]),
        held=_held(path, np.flatnonzero(waiting), sources),
    )


def _sources(path: FastPath) -> tuple[Ints, Ints]:
    """The copy of each accepted number that is kept, and the message that each rejected row drops."""
    batch = path.batch
    all_sources = np.concatenate([batch.held.row, batch.rows.source])[path.order]
    kept, dropped = all_sources[path.accepted], all_sources[path.rest]
    if path.options.on_duplicate is OnDuplicate.LAST:
        replacing = path.rest[path.meets_held]
        dropped[path.meets_held] = all_sources[replacing - 1]
        kept[path.twin[path.meets_held]] = all_sources[replacing]  # of several, the last assignment wins
    return kept, dropped


def _held(path: FastPath, index: Ints, sources: Ints) -> HeldMessages:
    owner, at = path.of_accepted[index], path.accepted[index]
    arrival = np.concatenate([path.batch.held.arrival, path.batch.rows.time])
    return HeldMessages(owner, path.place[at] - path.shift[owner], arrival[path.order[at]], sources[index])


def _facts(path: FastPath, open_holes: Holes) -> KeyFacts:
    facts = path.batch.facts
    end = path.end.copy()
    last = last_of_each(path.of_accepted)
    owner = path.of_accepted[last]
    end[owner] = np.maximum(end[owner], path.accepted_place[last] + path.step)
    head = first_of_each(open_holes.owner)
    end[open_holes.owner[head]] = open_holes.first[head]
    released = np.bincount(path.of_accepted[path.is_released], minlength=len(path.batch))
    return KeyFacts(
        epoch=facts.epoch,
        expected=end - path.shift,
        horizon=path.horizon,
        position=facts.position + released,
        now=path.end_time,
        start_deadline=facts.start_deadline,
        behind_run=path.behind_run,
        behind_last=path.behind_last,
    )


def _entries(path: FastPath, decided: Bools, dropped: Ints) -> Entries:
    parts = [_lost_entries(path, decided), _rest_entries(path, decided, dropped)]
    if path.options.on_late is OnLate.SIDE_OUTPUT:
        late = parts[1].take(parts[1].reason == Reason.LATE)
        late.order = late.order - 1
        late.tag = filled(len(late), Tag.LATE)
        late.reason, late.detail = filled(len(late), None), filled(len(late), None)
        parts.append(late)
    entries = Entries.concat(parts)
    return entries.take(np.argsort(entries.order, kind="stable"))


def _lost_entries(path: FastPath, decided: Bools) -> Entries:
    due = path.holes.moment < path.never[path.holes.owner]
    holes = path.holes.take(due & decided[path.holes.owner])
    gaps, count = path.numbered(holes), len(holes)
    return Entries(
        owner=gaps.owner,
        order=2 * holes.moment,
        tag=filled(count, Tag.LEDGER),
        reason=filled(count, Reason.LOST),
        epoch=path.batch.facts.epoch[gaps.owner],
        first=wrapped(gaps.first, path.options.space),
        last=wrapped(gaps.last, path.options.space),
        size=(gaps.last - gaps.first) // path.step + 1,
        time=gaps.deadline,
        detail=filled(count, "gap timeout"),
        source=np.full(count, NO_SOURCE, np.int64),
    )


def _rest_entries(path: FastPath, decided: Bools, dropped: Ints) -> Entries:
    chosen = np.flatnonzero(decided[path.rest_owner])
    owner, row = path.rest_owner[chosen], path.rest_row[chosen]
    sequence = path.batch.rows.sequence[row]
    details = filled(len(path.rest), "released before")
    details[path.meets_held] = "another copy is held"
    details[path.hits_memory] = "its gap was given up"
    details[path.too_old] = "before the start, or older than what is remembered"
    return Entries(
        owner=owner,
        order=2 * (2 * (row + owner) + 1) + 1,
        tag=filled(len(chosen), Tag.LEDGER),
        reason=_reasons(path)[chosen],
        epoch=path.batch.facts.epoch[owner],
        first=sequence,
        last=sequence,
        size=np.ones(len(chosen), np.int64),
        time=path.batch.rows.time[row],
        detail=details[chosen],
        source=dropped[chosen],
    )


def _reasons(path: FastPath) -> Objects:
    reasons = filled(len(path.rest), Reason.DUPLICATE)
    reasons[path.hits_memory | path.too_old] = Reason.LATE
    digests = path.batch.digests
    if path.options.on_duplicate is OnDuplicate.CONFLICT and digests is not None:
        kept, dropped = _sources(path)
        meeting = np.flatnonzero(path.meets_held)
        left, right = (digests.take(pa.array(some)) for some in (dropped[meeting], kept[path.twin[meeting]]))
        both_missing = pc.and_(pc.is_null(left), pc.is_null(right))
        same = pc.or_(pc.fill_null(pc.equal(left, right), False), both_missing)
        reasons[meeting[~same.to_numpy(zero_copy_only=False)]] = Reason.CONFLICT
    return reasons


def wrapped(number: Ints, space: SequenceSpace) -> Ints:
    if space.modulus is None:
        return number
    raw: Ints = number % space.modulus
    return raw
