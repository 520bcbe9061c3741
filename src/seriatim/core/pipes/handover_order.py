"""The receiving end's treatment of numbered messages: in order, or merely complete.

``InOrder`` uses the resequencer, which decides order everywhere. ``InAnyOrder`` hands over messages as they arrive,
once each. Both know which numbers are missing, and up to which number the output has taken everything and may be
confirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from seriatim.core.pipes.protocol import DeliveredRun, PipeEffect, PipeOptions
from seriatim.core.ranges import Range, RangeSet
from seriatim.core.resequencing.options import Effect, LedgerEntry, OnGap, Reason, Released, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer


class Intake(Protocol):
    """Takes in numbered messages and returns those that can be handed over."""

    @property
    def wanted(self) -> int:
        """The lowest number that has not arrived."""

    @property
    def taken(self) -> int:
        """The output has taken everything below, or it was given up."""

    @property
    def seen(self) -> int:
        """One past the highest number that has arrived."""

    @property
    def deadline(self) -> float | None:
        """When a missing number is given up."""

    def missing(self) -> tuple[Range, ...]:
        """The numbers below ``seen`` that have not arrived."""

    def take(self, first: int, messages: tuple[bytes, ...], now: float, /) -> tuple[list[PipeEffect], bool]:
        """What to hand over now, and whether a message arrived that was handed over before."""

    def settle(self, first: int, end: int, /) -> None:
        """The output has taken the messages from ``first`` to below ``end``."""

    def give_up_below(self, floor: int, now: float) -> list[PipeEffect]:
        """Nothing below ``floor`` will arrive any more."""

    def advance(self, now: float, /) -> list[PipeEffect]: ...


class InOrder:
    """Messages in the order of their numbers."""

    __slots__ = ("_given_out", "_jumps", "_options", "_order", "_repeat_waits", "_seen", "_start", "_taken")

    def __init__(self, options: PipeOptions, start: int) -> None:
        self._options = options
        self._seen = start
        # Where numbers were given up between two waiting messages: from the end of the first to the second.
        self._jumps: deque[tuple[int, int]] = deque()
        self._repeat_waits = False
        self._begin(start)

    def _begin(self, start: int) -> None:
        gives_up = self._options.gap_policy is OnGap.SKIP
        self._order: Resequencer[bytes] = Resequencer(
            ResequenceOptions(
                start=Start.at(start),
                on_gap=OnGap.SKIP if gives_up else OnGap.HOLD,
                gap_timeout=self._options.patience,
                capacity=self._options.capacity,
            )
        )
        self._start = self._given_out = self._taken = start

    @property
    def wanted(self) -> int:
        expected = self._order.expected
        return self._start if expected is None else expected

    @property
    def taken(self) -> int:
        # Numbers after the last message that was handed over may have been given up.
        return self.wanted if self._taken == self._given_out else self._taken

    @property
    def seen(self) -> int:
        return max(self._seen, self.wanted)

    @property
    def deadline(self) -> float | None:
        return self._order.deadline

    def missing(self) -> tuple[Range, ...]:
        return self._order.missing()

    def take(self, first: int, messages: tuple[bytes, ...], now: float, /) -> tuple[list[PipeEffect], bool]:
        end = first + len(messages)
        self._seen = max(self._seen, end)
        if self._order.pass_run(first, len(messages), now):
            return [self._hand_over(first, messages)], False
        effects: list[PipeEffect] = []
        repeated = False
        for index, message in enumerate(messages, first):
            repeated |= index < self.wanted
            if self._stays_in_place(index):
                self._repeat_waits = True
                effects.append(DeliveredRun(index, (message,)))
            else:
                effects += self._push(index, message, now)
        return effects, repeated

    def _stays_in_place(self, index: int) -> bool:
        """Whether a repeat may be handed over again: only if nothing was since, and nothing waits for a slow output."""
        if self._options.is_strict or self._repeat_waits or self._taken < self._given_out:
            return False
        return self._start <= index == self._given_out - 1 == self.wanted - 1

    def _push(self, index: int, message: bytes, now: float) -> list[PipeEffect]:
        return self._joined(self._order.push(index, message, now))

    def _joined(self, effects: Iterable[Effect[bytes]]) -> list[PipeEffect]:
        """The effects of the resequencer, with consecutive releases combined."""
        joined: list[PipeEffect] = []
        run: list[bytes] = []
        first = 0
        for effect in effects:
            if isinstance(effect, Released):
                if run and effect.sequence != first + len(run):
                    joined.append(self._hand_over(first, tuple(run)))
                    run.clear()
                first = first if run else effect.sequence
                run.append(effect.message)
            elif isinstance(effect, LedgerEntry) and not self._was_handed_over(effect):
                joined.append(effect)
        return [*joined, self._hand_over(first, tuple(run))] if run else joined

    def _was_handed_over(self, entry: LedgerEntry[bytes]) -> bool:
        """Whether it is a repeat: handed over since the start, or before the restart that this session begins with."""
        return entry.reason is Reason.DUPLICATE or (entry.reason is Reason.LATE and entry.last < self._start)

    def _hand_over(self, first: int, messages: tuple[bytes, ...]) -> DeliveredRun:
        if self._taken == self._given_out:
            self._taken = first  # nothing waits, so numbers given up in between are done too
        elif first > self._given_out:
            self._jumps.append((self._given_out, first))
        self._given_out = first + len(messages)
        return DeliveredRun(first, messages)

    def settle(self, _first: int, end: int, /) -> None:
        self._repeat_waits = False
        self._taken = max(self._taken, end)
        while self._jumps and self._jumps[0][0] <= self._taken:
            self._taken = max(self._taken, self._jumps.popleft()[1])

    def give_up_below(self, floor: int, now: float) -> list[PipeEffect]:
        if floor <= self.wanted:
            return []
        held, effects = self._order.held(), list[PipeEffect]()
        numbers = RangeSet((index, index) for index, _ in held)
        # Only the sender knows whether a number above all that have arrived was ever used.
        for first, last in numbers.gaps(self.wanted, min(floor, self.seen) - 1):
            detail = "the sender gave it up"
            effects.append(LedgerEntry(None, 0, Reason.LOST, first, last, last - first + 1, now, detail))
        for index, item in held:
            if index < floor:
                effects.append(self._hand_over(index, (item.message,)))
        taken, given_out = self._taken, self._given_out
        self._begin(floor)
        if taken < given_out:
            self._taken, self._given_out = taken, given_out
        for index, item in held:
            if index >= floor:
                effects += self._push(index, item.message, item.arrival)
        return effects

    def advance(self, now: float) -> list[PipeEffect]:
        return self._joined(self._order.advance(now))


class InAnyOrder:
    """Messages in order of arrival, each once."""

    __slots__ = ("_arrived", "_settled", "_start")

    deadline: float | None = None

    def __init__(self, _: PipeOptions, start: int) -> None:
        self._start = start
        self._arrived, self._settled = RangeSet(), RangeSet()

    @property
    def wanted(self) -> int:
        return _first_hole(self._arrived, self._start)

    @property
    def taken(self) -> int:
        return _first_hole(self._settled, self._start)

    @property
    def seen(self) -> int:
        last = self._arrived.last()
        return self._start if last is None else max(self._start, last[1] + 1)

    def missing(self) -> tuple[Range, ...]:
        return tuple(self._arrived.gaps(self._start, self.seen - 1))

    def take(self, first: int, messages: tuple[bytes, ...], _now: float, /) -> tuple[list[PipeEffect], bool]:
        if first >= self.seen:
            self._arrived.add(first, first + len(messages) - 1)
            return [DeliveredRun(first, messages)], False
        effects: list[PipeEffect] = []
        repeated = False
        for index, message in enumerate(messages, first):
            if index < self._start or index in self._arrived:
                repeated = True
            else:
                self._arrived.add(index)
                effects.append(DeliveredRun(index, (message,)))
        return effects, repeated

    def settle(self, first: int, end: int, /) -> None:
        self._settled.add(first, end - 1)

    def give_up_below(self, floor: int, now: float) -> list[PipeEffect]:
        """A floor above the lowest wanted number: the sender restarted without memory."""
        if floor <= self.wanted:
            return []
        known, missing = self.seen, list(self._arrived.gaps(self._start, floor - 1))
        for first, last in missing:
            self._arrived.add(first, last)
            self._settled.add(first, last)
        lost = [(first, min(last, known - 1)) for first, last in missing if first < known]
        detail = "the sender gave it up"
        return [LedgerEntry(None, 0, Reason.LOST, lo, hi, hi - lo + 1, now, detail) for lo, hi in lost]

    def advance(self, _now: float, /) -> list[PipeEffect]:
        return []


def _first_hole(numbers: RangeSet, start: int) -> int:
    first = numbers.first()
    return first[1] + 1 if first is not None and first[0] <= start else start
