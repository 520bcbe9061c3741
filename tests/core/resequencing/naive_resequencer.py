"""A reference model of the resequencer, written the slow and obvious way.

It shares its vocabulary (options and effects) with the machine, and nothing else: it keeps one entry for each number in plain
dicts and looks through all of them every time. Property tests hold the machine equal to it, and anyone who writes another
implementation can do the same.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from seriatim.core.resequencing.options import (
    DeadLettered,
    Effect,
    GapReported,
    Late,
    LedgerEntry,
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Reason,
    Released,
    ResendRequested,
    ResequenceOptions,
    StartRule,
    SyncLost,
)
from seriatim.errors import CapacityExceeded, LateMessage

M = TypeVar("M")


@dataclass
class _Missing:
    """One number that has not come."""

    deadline: float
    requests: int = 0
    reported: bool = False


class NaiveResequencer(Generic[M]):
    """One key put in order: every number has a dict entry that says what became of it."""

    def __init__(self, options: ResequenceOptions, key: Hashable = None) -> None:
        self.options = options
        self.key = key
        self.now = -inf
        self.epoch: int | None = None
        self.reset()

    def reset(self) -> None:
        self.expected: int | None = None
        self.start_deadline: float | None = None
        self.held: dict[int, tuple[M, float, Hashable]] = {}
        self.missing: dict[int, _Missing] = {}
        self.given_up: set[int] = set()
        self.oldest_known = 0
        self.behind: list[int] = []

    # -- looking --------------------------------------------------------------------------------------------------------

    def held_numbers(self) -> list[int]:
        return [self.options.space.wrap(n) for n in sorted(self.held)]

    def missing_ranges(self) -> tuple[tuple[int, int], ...]:
        wrap, step = self.options.space.wrap, self.options.space.increment
        firsts = [n for n in sorted(self.missing) if n - step not in self.missing]
        lasts = [n for n in sorted(self.missing) if n + step not in self.missing]
        return tuple((wrap(first), wrap(last)) for first, last in zip(firsts, lasts, strict=True))

    def deadline(self) -> float | None:
        if self.start_deadline is not None:
            return self.start_deadline
        if not self.missing:
            return None
        first = self.missing[min(self.missing)].deadline
        return first if first < inf else None

    # -- commands -------------------------------------------------------------------------------------------------------

    def push(self, sequence: int, message: M, now: float, epoch: int, digest: Hashable, room: bool) -> list[Effect[M]]:
        now = max(now, self.now)
        effects: list[Effect[M]] = []
        if self.epoch is not None and epoch < self.epoch:
            return self._late(sequence, epoch, message, now, f"epoch {epoch} ended")
        if self.epoch is None or epoch > self.epoch:
            room = room or bool(self.held)
            self._refuse_first_of_session(sequence, room)
            effects = self._new_session(epoch, now)
        if self.expected is None and self.options.start.rule is StartRule.LOWEST_WITHIN:
            return effects + self._gather(sequence, message, now, digest, room)
        return effects + self._place(sequence, message, now, digest, room)

    def _place(self, sequence: int, message: M, now: float, digest: Hashable, room: bool) -> list[Effect[M]]:
        if self.expected is None:
            self.expected = self.oldest_known = sequence
        number = self.options.space.unwrap(sequence, self.expected)
        if number < self.expected:
            return self._behind(number, message, now)
        if number in self.held:
            return self._again(number, message, now, digest)
        if number > self.expected and self._full(room) and self.options.overflow is not OnOverflow.GIVE_UP:
            return self._refuse(number, message, now)
        self.now, self.behind = now, []
        for below in range(self.expected, number, self.options.space.increment):
            if below not in self.held and below not in self.missing:
                self.missing[below] = _Missing(self._after(now))
        self.missing.pop(number, None)
        self.held[number] = (message, now, digest)
        effects = self._release(strand=False, time=now)
        if len(self.held) > self.options.held_limit:
            effects += self.make_room(now)
        return effects

    def advance(self, now: float) -> list[Effect[M]]:
        self.now = now = max(now, self.now)
        effects: list[Effect[M]] = []
        if self.start_deadline is not None and self.start_deadline <= now:
            effects += self._start()
        while self.expected is not None and (due := self.deadline()) is not None and due <= now:
            head = self.missing[min(self.missing)]
            if self.options.on_gap is OnGap.HOLD:
                effects.append(GapReported(self.key, self._epoch(), self.missing_ranges()))
                for missing in self.missing.values():
                    missing.deadline, missing.reported = inf, True
            elif self.options.on_gap is OnGap.REQUEST and head.requests < self.options.max_requests:
                effects.append(ResendRequested(self.key, self._epoch(), self.missing_ranges()))
                for missing in self.missing.values():
                    missing.deadline, missing.requests = self._after(now), missing.requests + 1
            else:
                effects += self._give_up(head.deadline, "gap timeout", self.options.on_gap is OnGap.DEAD_LETTER)
        return effects

    def skip(self, now: float) -> list[Effect[M]]:
        self.now = now = max(now, self.now)
        return self._give_up(now, "skipped by an operator", self.options.on_gap is OnGap.DEAD_LETTER)

    def flush(self, now: float) -> list[Effect[M]]:
        self.now = now = max(now, self.now)
        effects = self._start() if self.start_deadline is not None else []
        while self.missing:
            effects += self._give_up(now, "flushed", strand=False)
        return effects

    def clear(self, now: float) -> list[Effect[M]]:
        self.now = now = max(now, self.now)
        effects = self._discard(now, "cleared")
        self.reset()
        self.epoch = None
        return effects

    def make_room(self, now: float) -> list[Effect[M]]:
        self.now = now = max(now, self.now)
        if self.start_deadline is not None:
            return self._start()
        return self._give_up(now, "no room to hold more", self.options.on_gap is OnGap.DEAD_LETTER)

    # -- how ------------------------------------------------------------------------------------------------------------

    def _epoch(self) -> int:
        assert self.epoch is not None
        return self.epoch

    def _after(self, opened: float) -> float:
        return inf if self.options.gap_timeout is None else opened + self.options.gap_timeout

    def _full(self, room: bool) -> bool:
        return not room or len(self.held) >= self.options.held_limit

    def _entry(
        self, reason: Reason, first: int, last: int, time: float, detail: str, message: M | None = None
    ) -> Effect[M]:
        space = self.options.space
        size = len(range(first, last + 1, space.increment))
        return LedgerEntry(
            self.key, self._epoch(), reason, space.wrap(first), space.wrap(last), size, time, detail, message
        )

    def _refuse_first_of_session(self, sequence: int, room: bool) -> None:
        start, held = self.options.start, self.options.start.rule is StartRule.LOWEST_WITHIN
        if start.rule is StartRule.LITERAL:
            distance = self.options.space.distance(sequence, int(start.value))
            if distance < 0 and self.options.on_late is OnLate.RAISE:
                raise LateMessage
            held = distance > 0
        if held and not room and self.options.overflow is OnOverflow.RAISE:
            raise CapacityExceeded

    def _new_session(self, epoch: int, now: float) -> list[Effect[M]]:
        effects: list[Effect[M]] = []
        if self.epoch is not None:
            release = self.options.on_epoch is OnEpoch.RELEASE
            effects = self.flush(now) if release else self._discard(now, f"epoch {epoch} began")
        self.reset()
        self.epoch = epoch
        if self.options.start.rule is StartRule.LITERAL:
            self.expected = self.oldest_known = int(self.options.start.value)
        return effects

    def _gather(self, sequence: int, message: M, now: float, digest: Hashable, room: bool) -> list[Effect[M]]:
        space = self.options.space
        number = space.unwrap(sequence, min(self.held)) if self.held else sequence
        if number in self.held:
            return self._again(number, message, now, digest)
        if self.held and space.max_ahead is not None:
            steps_below_highest = (max(self.held) - number) // space.increment
            if steps_below_highest > space.max_ahead:
                detail = "more than half a circle below what was gathered"
                return self._late(sequence, self._epoch(), message, now, detail)
        if self._full(room) and self.options.overflow is not OnOverflow.GIVE_UP:
            return self._refuse(number, message, now)
        self.now = now
        if not self.held:
            self.start_deadline = now + self.options.start.value
        self.held[number] = (message, now, digest)
        return self.make_room(now) if len(self.held) > self.options.held_limit else []

    def _start(self) -> list[Effect[M]]:
        self.start_deadline = None
        self.expected = self.oldest_known = min(self.held)
        for number in range(self.expected, max(self.held), self.options.space.increment):
            if number not in self.held:
                opened = min(arrival for above, (_, arrival, _) in self.held.items() if above > number)
                self.missing[number] = _Missing(self._after(opened))
        return self._release(strand=False, time=0)

    def _release(self, strand: bool, time: float) -> list[Effect[M]]:
        effects: list[Effect[M]] = []
        assert self.expected is not None
        while self.expected in self.held:
            number, sequence = self.expected, self.options.space.wrap(self.expected)
            message = self.held.pop(number)[0]
            if strand:
                effects.append(DeadLettered(self.key, self._epoch(), sequence, message))
                detail = "stranded behind a gap that was given up"
                effects.append(self._entry(Reason.DEAD_LETTER, number, number, time, detail, message))
            else:
                effects.append(Released(self.key, self._epoch(), sequence, message))
            self.expected += self.options.space.increment
        return effects

    def _give_up(self, time: float, detail: str, strand: bool) -> list[Effect[M]]:
        assert self.expected is not None
        first = self.expected
        while self.expected in self.missing:
            del self.missing[self.expected]
            self.given_up.add(self.expected)
            self.expected += self.options.space.increment
        self._forget_oldest()
        lost = self._entry(Reason.LOST, first, self.expected - self.options.space.increment, time, detail)
        return [lost, *self._release(strand, time)]

    def _forget_oldest(self) -> None:
        """Only so many ranges of given-up numbers are remembered."""
        step = self.options.space.increment
        while len([n for n in self.given_up if n - step not in self.given_up]) > self.options.remember:
            number = min(self.given_up)
            while number in self.given_up:
                self.given_up.remove(number)
                number += step
            self.oldest_known = number

    def _behind(self, number: int, message: M, now: float) -> list[Effect[M]]:
        sequence = self.options.space.wrap(number)
        if number in self.given_up:
            effects = self._late(sequence, self._epoch(), message, now, "its gap was given up")
            self.given_up.remove(number)
            self._forget_oldest()
        elif number < self.oldest_known:
            detail = "before the start, or older than what is remembered"
            effects = self._late(sequence, self._epoch(), message, now, detail)
        else:
            self.now = now
            effects = [self._entry(Reason.DUPLICATE, number, number, now, "released before", message)]
        return effects + self._watch_sync(number, now)

    def _watch_sync(self, number: int, now: float) -> list[Effect[M]]:
        limit = self.options.resync_limit
        if limit is None:
            return []
        self.behind.append(number)
        run = self.behind[-limit:]
        if run != [run[0] + i * self.options.space.increment for i in range(limit)]:
            return []
        self.behind = []
        detail = f"{limit} messages in a row behind what is expected"
        lost = SyncLost(self.key, self._epoch(), self.options.space.wrap(number))
        return [self._entry(Reason.SYNC_LOST, number, number, now, detail), lost]

    def _late(self, sequence: int, epoch: int, message: M, now: float, detail: str) -> list[Effect[M]]:
        if self.options.on_late is OnLate.RAISE:
            raise LateMessage
        self.now = now
        entry = LedgerEntry(self.key, epoch, Reason.LATE, sequence, sequence, 1, now, detail, message)
        if self.options.on_late is OnLate.SIDE_OUTPUT:
            return [Late(self.key, epoch, sequence, message), entry]
        return [entry]

    def _refuse(self, number: int, message: M, now: float) -> list[Effect[M]]:
        if self.options.overflow is OnOverflow.RAISE:
            raise CapacityExceeded
        self.now, self.behind = now, []
        return [self._entry(Reason.OVERFLOW, number, number, now, "no room to hold it", message)]

    def _again(self, number: int, message: M, now: float, digest: Hashable) -> list[Effect[M]]:
        self.now, self.behind = now, []
        held, arrival, held_digest = self.held[number]
        reason, dropped = Reason.DUPLICATE, message
        if self.options.on_duplicate is OnDuplicate.LAST:
            self.held[number] = (message, arrival, digest)
            dropped = held
        if self.options.on_duplicate is OnDuplicate.CONFLICT and digest != held_digest:
            reason = Reason.CONFLICT
        return [self._entry(reason, number, number, now, "another copy is held", dropped)]

    def _discard(self, now: float, detail: str) -> list[Effect[M]]:
        return [
            self._entry(Reason.DISCARDED, number, number, now, detail, self.held[number][0])
            for number in sorted(self.held)
        ]
