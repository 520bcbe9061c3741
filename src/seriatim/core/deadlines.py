"""Deadlines: which of many things falls due next, without looking at the others.

A binary heap with lazy deletion. Rescheduling or discarding leaves a stale entry behind; when stale entries outnumber live
ones the heap is rebuilt, so memory stays proportional to what is scheduled and every operation costs O(log n) amortised.
Things that fall due at the same time come out in the order in which they were scheduled.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SLACK = 64


class Deadlines(Generic[T]):
    """A schedule of things, each with at most one deadline."""

    __slots__ = ("_heap", "_live", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._live: dict[T, tuple[float, int, T]] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, thing: T) -> bool:
        return thing in self._live

    def set(self, thing: T, when: float) -> None:
        """Schedule ``thing``, or move its deadline."""
        self._order += 1
        entry = (when, self._order, thing)
        self._live[thing] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._drop_stale()

    def discard(self, thing: T) -> None:
        """Forget ``thing``; unknown things are fine."""
        self._live.pop(thing, None)

    def get(self, thing: T) -> float | None:
        entry = self._live.get(thing)
        return entry[0] if entry else None

    def next(self) -> float | None:
        """The earliest deadline, or None when nothing is scheduled."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._live.get(entry[2]) is entry:
                return entry[0]
            heappop(heap)
        return None

    def pop_due(self, now: float) -> list[T]:
        """Remove and return everything due at ``now``, earliest first."""
        due: list[T] = []
        heap, live = self._heap, self._live
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if live.get(entry[2]) is entry:
                del live[entry[2]]
                due.append(entry[2])
        return due

    def _drop_stale(self) -> None:
        self._heap = list(self._live.values())
        heapify(self._heap)
