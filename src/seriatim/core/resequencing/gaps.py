"""The messages and gaps of a resequencer while a gap is open.

Between the expected number and ``end`` (one past the highest number seen) every number is either held or in exactly one gap.
Gaps are sorted by number, and so by deadline: a gap opens later than every gap below it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

M = TypeVar("M")


class Held(NamedTuple, Generic[M]):
    """A message that waits behind a gap."""

    message: M
    arrival: float
    digest: Hashable


@dataclass(slots=True)
class Gap:
    """Missing numbers ``first`` to ``last`` (unwrapped, inclusive)."""

    first: int
    last: int
    deadline: float
    requests: int = 0
    reported: bool = False


class Backlog(Generic[M]):
    """The messages and gaps of a key while a gap is open.

    Gaps leave at the head and arrive at the tail, so the list keeps an index of its first live gap and drops the dead ones
    when they are more than half of it: both ends cost O(1) however many gaps are open.
    """

    __slots__ = ("end", "gaps", "head", "held")

    def __init__(self, end: int) -> None:
        self.held: dict[int, Held[M]] = {}
        self.gaps: list[Gap] = []
        self.head = 0
        self.end = end

    def open_gaps(self) -> list[Gap]:
        return self.gaps[self.head :]

    def first_gap(self) -> Gap | None:
        return self.gaps[self.head] if self.head < len(self.gaps) else None

    def drop_first_gap(self) -> None:
        self.head += 1
        if self.head * 2 > len(self.gaps):
            del self.gaps[: self.head]
            self.head = 0

    def place(self, position: int, item: Held[M], deadline: float, step: int) -> None:
        """Hold a message: it opens a gap below itself, or splits the one that contains it."""
        self.held[position] = item
        if position < self.end:
            self._split(position, step)
            return
        if position > self.end:
            self.gaps.append(Gap(self.end, position - step, deadline))
        self.end = position + step

    def _split(self, position: int, step: int) -> None:
        index = bisect_right(self.gaps, position, lo=self.head, key=attrgetter("first")) - 1
        gap = self.gaps[index]
        if position == gap.last:
            gap.last -= step
            if gap.first > gap.last:
                del self.gaps[index]
            return
        upper = Gap(position + step, gap.last, gap.deadline, gap.requests, gap.reported)
        if position == gap.first:
            self.gaps[index] = upper
            return
        gap.last = position - step
        self.gaps.insert(index + 1, upper)
