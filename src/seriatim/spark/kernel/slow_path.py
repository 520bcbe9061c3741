"""The slow path: the core's resequencer, key by key. It handles every case, and the fast path must agree with it."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa

from seriatim.core.resequencing import options as core
from seriatim.core.resequencing.gaps import Held as HeldMessage
from seriatim.core.resequencing.options import ResequenceOptions
from seriatim.core.resequencing.resequencer import Resequencer, SavedResequencer
from seriatim.errors import InvalidSequence
from seriatim.spark.kernel.arrays import Ints, run_bounds
from seriatim.spark.kernel.batch import NO_SOURCE, Batch, Decision, Entries, Released
from seriatim.spark.kernel.partition_state import Gaps, HeldMessages, KeyFacts, Ranges
from seriatim.spark.tagged import INVALID, Tag


class SlowPath:
    """One batch, decided message by message. Messages are identified by their sources."""

    def __init__(self, batch: Batch, options: ResequenceOptions, *, raise_invalid: bool) -> None:
        self.batch, self.options, self.raise_invalid = batch, options, raise_invalid
        self.held_runs = run_bounds(batch.held.owner, len(batch))
        self.gap_runs = run_bounds(batch.gaps.owner, len(batch))
        self.range_runs = run_bounds(batch.given_up.owner, len(batch))
        self.released: list[tuple[Any, ...]] = []
        self.entries: list[tuple[Any, ...]] = []
        self.facts: list[tuple[Any, ...]] = []
        self.gaps: list[tuple[Any, ...]] = []
        self.given_up: list[tuple[Any, ...]] = []
        self.held: list[tuple[Any, ...]] = []
        self.owners: list[int] = []
        keys, digests = batch.keys.to_pylist(), self._digests()
        for owner in range(len(batch)):
            self._decide(owner, keys[owner], digests)

    def _digests(self) -> dict[int, Any]:
        """The digest of every source that has one."""
        if self.batch.digests is None:
            return {}
        sources = np.concatenate([self.batch.rows.source, self.batch.held.row])
        return dict(zip(sources.tolist(), self.batch.digests.take(pa.array(sources)).to_pylist(), strict=True))

    def _decide(self, owner: int, key: Any, digests: dict[int, Any]) -> None:
        machine = self._machine(owner, key, digests)
        position = int(self.batch.facts.position[owner])
        rows = self.batch.rows.take(slice(int(self.batch.starts[owner]), int(self.batch.ends[owner])))
        count = len(self.released)
        for sequence, epoch, time, source in zip(*(column.tolist() for column in rows.arrays()), strict=True):
            self._note(owner, machine.advance(time), time)
            try:
                effects = machine.push(sequence, source, time, epoch=epoch, digest=digests.get(source))
            except InvalidSequence as error:
                if self.raise_invalid:
                    raise
                self._enter(owner, Tag.LEDGER, INVALID, epoch, (sequence, sequence, 1), time, str(error), source)
            else:
                self._note(owner, effects, time)
        self._note(owner, machine.advance(self.batch.clock), self.batch.clock)
        self._save(owner, machine.save(), position + len(self.released) - count)

    # -- from columns ---------------------------------------------------------------------------------------------------

    def _machine(self, owner: int, key: Any, digests: dict[int, Any]) -> Resequencer[int]:
        if not self.batch.known[owner]:
            return Resequencer(self.options, key)
        facts = self.batch.facts.take(slice(owner, owner + 1))
        epoch, expected, horizon, _, _, start_deadline, behind_run, behind_last = (a.item() for a in facts.arrays())
        gathering = not isnan(start_deadline)
        saved: SavedResequencer[int] = SavedResequencer(
            now=float(self.batch.floors[owner]),
            epoch=epoch,
            expected=None if gathering else expected,
            horizon=horizon,
            start_deadline=start_deadline if gathering else None,
            held=self._held_of(owner, digests),
            gaps=tuple(_rows_of(self.batch.gaps.take(_run(self.gap_runs, owner)))),
            given_up=tuple(_rows_of(self.batch.given_up.take(_run(self.range_runs, owner)))),
            behind_run=behind_run,
            behind_last=behind_last if behind_run else None,
        )
        return Resequencer.restore(saved, self.options, key)

    def _held_of(self, owner: int, digests: dict[int, Any]) -> tuple[tuple[int, HeldMessage[int]], ...]:
        held = _rows_of(self.batch.held.take(_run(self.held_runs, owner)))
        return tuple((number, HeldMessage(source, arrival, digests.get(source))) for number, arrival, source in held)

    # -- to columns -----------------------------------------------------------------------------------------------------

    def _note(self, owner: int, effects: list[core.Effect[int]], now: float) -> None:
        for effect in effects:
            if isinstance(effect, core.Released):
                self.released.append((owner, effect.message))
            else:
                self._enter_effect(owner, effect, now)

    def _enter_effect(self, owner: int, effect: core.Effect[int], now: float) -> None:
        match effect:
            case core.LedgerEntry(_, epoch, reason, first, last, size, time, detail, message):
                source = NO_SOURCE if message is None else message
                self._enter(owner, Tag.LEDGER, reason, epoch, (first, last, size), time, detail, source)
            case core.Late(_, epoch, sequence, message):
                self._enter(owner, Tag.LATE, None, epoch, (sequence, sequence, 1), now, None, message)
            case core.DeadLettered(_, epoch, sequence, message):
                self._enter(owner, Tag.DEAD_LETTER, None, epoch, (sequence, sequence, 1), now, None, message)
            case core.SyncLost(_, epoch, sequence):
                self._enter(owner, Tag.SYNC_LOST, None, epoch, (sequence, sequence, 1), now, None, NO_SOURCE)
            case core.ResendRequested(_, epoch, ranges):
                self._enter_ranges(owner, Tag.REQUEST, epoch, ranges, now)
            case core.GapReported(_, epoch, ranges):
                self._enter_ranges(owner, Tag.REPORT, epoch, ranges, now)

    def _enter_ranges(self, owner: int, tag: Tag, epoch: int, ranges: tuple[tuple[int, int], ...], now: float) -> None:
        space = self.options.space
        for first, last in ranges:
            span = last - first if space.modulus is None else (last - first) % space.modulus
            self._enter(owner, tag, None, epoch, (first, last, span // space.increment + 1), now, None, NO_SOURCE)

    def _enter(
        self,
        owner: int,
        tag: Tag,
        reason: str | None,
        epoch: int,
        numbers: tuple[int, int, int],
        time: float,
        detail: str | None,
        source: int,
    ) -> None:
        self.entries.append((owner, len(self.entries), tag, reason, epoch, *numbers, time, detail, source))

    def _save(self, owner: int, saved: SavedResequencer[int], position: int) -> None:
        if saved.epoch is None:  # it had no valid rows
            return
        gathering = saved.start_deadline is not None
        self.owners.append(owner)
        self.facts.append(
            (
                saved.epoch,
                saved.horizon if gathering else saved.expected,
                saved.horizon,
                position,
                saved.now,
                saved.start_deadline if gathering else np.nan,
                saved.behind_run,
                saved.behind_last or 0,
            )
        )
        self.gaps += [(owner, *gap) for gap in saved.gaps]
        self.given_up += [(owner, *given_up) for given_up in saved.given_up]
        self.held += [(owner, number, item.arrival, item.message) for number, item in sorted(saved.held)]

    def decision(self) -> Decision:
        return Decision(
            owners=np.array(self.owners, np.int64),
            released=Released.from_rows(self.released),
            entries=Entries.from_rows(self.entries),
            facts=KeyFacts.from_rows(self.facts),
            gaps=Gaps.from_rows(self.gaps),
            fresh_memory=np.ones(len(self.owners), np.bool_),
            given_up=Ranges.from_rows(self.given_up),
            held=HeldMessages.from_rows(self.held),
        )


def _run(runs: tuple[Ints, Ints], owner: int) -> slice:
    return slice(int(runs[0][owner]), int(runs[1][owner]))


def _rows_of(pool: HeldMessages | Gaps | Ranges) -> Any:
    """The rows of a pool as tuples, without their owner."""
    return zip(*(column.tolist() for column in pool.arrays()[1:]), strict=True)
