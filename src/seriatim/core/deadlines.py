"""Deadlines: which of many things falls due next, without looking at the others.

Most deadlines are set in rising order (everybody gets the same time), and most are discarded before they fall due. Those
live in a linked queue, which stays sorted by itself and forgets at once. A deadline that is earlier than the last of that
queue, and one that is moved, goes into a binary heap with lazy deletion; when stale entries outnumber live ones the heap is
rebuilt, so memory stays proportional to what is scheduled and every operation costs O(log n) amortised at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import takewhile
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SLACK = 64


class Deadlines(Generic[T]):
    """A schedule of things, each with at most one deadline. Things due at the same time come out in a fixed order."""

    __slots__ = ("_heap", "_last", "_moved", "_order", "_queue")

    def __init__(self) -> None:
        self._queue: OrderedDict[T, float] = OrderedDict()
        self._last = -inf
        self._moved: dict[T, tuple[float, int, T]] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._moved)

    def __contains__(self, thing: T) -> bool:
        return thing in self._queue or thing in self._moved

    def set(self, thing: T, when: float) -> None:
        """Schedule ``thing``, or move its deadline."""
        if when >= self._last and thing not in self._queue and thing not in self._moved:
            self._queue[thing] = self._last = when
        else:
            self._move(thing, when)

    def _move(self, thing: T, when: float) -> None:
        self._queue.pop(thing, None)
        self._order += 1
        entry = (when, self._order, thing)
        self._moved[thing] = entry
        heappush(self._heap, entry)
        self._bound_heap()

    def discard(self, thing: T) -> None:
        """Forget ``thing``; unknown things are fine."""
        if self._queue.pop(thing, None) is None:
            self._moved.pop(thing, None)
            self._bound_heap()
        if not self._queue:
            self._last = -inf

    def _bound_heap(self) -> None:
        if len(self._heap) > 2 * len(self._moved) + _SLACK:
            self._heap = list(self._moved.values())
            heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline, or None when nothing is scheduled."""
        self._drop_stale_top()
        first = next(iter(self._queue.values()), None)
        if not self._heap:
            return first
        return self._heap[0][0] if first is None else min(first, self._heap[0][0])

    def _drop_stale_top(self) -> None:
        heap = self._heap
        while heap and self._moved.get(heap[0][2]) is not heap[0]:
            heappop(heap)

    def pop_due(self, now: float) -> list[T]:
        """Remove and return everything due at ``now``, earliest first."""
        due = [(when, thing) for thing, when in takewhile(lambda item: item[1] <= now, self._queue.items())]
        self._drop_stale_top()
        while self._heap and self._heap[0][0] <= now:
            when, _, thing = self._heap[0]
            due.append((when, thing))
            del self._moved[thing]
            self._drop_stale_top()
        for _, thing in due:
            self.discard(thing)
        due.sort(key=itemgetter(0))
        return [thing for _, thing in due]
