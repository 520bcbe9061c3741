"""Deadlines: finds the next one that is due without a scan.

Most deadlines are set in rising order (all get the same duration), and most are discarded before they are due. Those
are in a linked queue, which stays sorted and removes them at once. A deadline that is earlier than the last of that
queue, and one that is moved, goes into a binary heap with lazy deletion; when stale entries outnumber live ones the
heap is rebuilt. So memory is proportional to the live entries, and every operation costs O(log n) amortised at most.

There are so many leases that even removing them one by one is measurable. ``LeaseDeadlines`` adds them a batch at a
time and is not notified when they end: the owner of the leases passes a mapping of live ones, and stale entries are
skipped at the front, or swept out when they outnumber the live ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable
from heapq import heapify, heappop, heappush
from itertools import repeat, takewhile
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SLACK = 64


class Deadlines(Generic[T]):
    """A schedule of things, each with at most one deadline. Things due at the same time have a fixed order."""

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
        """Remove ``thing`` if it is scheduled."""
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
        """The earliest deadline; None if nothing is scheduled."""
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


class LeaseDeadlines:
    """The deadlines of the leases in ``live``, by token. A lease that leaves ``live`` has no deadline any more."""

    __slots__ = ("_heap", "_live", "_moved", "_times", "_tokens")

    def __init__(self, live: Collection[int]) -> None:
        self._live = live
        self._tokens: deque[int] = deque()  # sorted by deadline; the deadlines are in _times
        self._times: deque[float] = deque()
        self._moved: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._live)

    def add(self, tokens: Collection[int], when: float) -> None:
        """Schedule new leases, all for the same time."""
        if self._times and when < self._times[-1]:
            for token in tokens:
                self.move(token, when)
            return
        self._tokens.extend(tokens)
        self._times.extend(repeat(when, len(tokens)))
        self._drop_stale_front()
        if len(self._tokens) > 2 * len(self._live) + _SLACK:
            self._sweep()

    def move(self, token: int, when: float) -> None:
        """Change the deadline of a lease."""
        self._moved[token] = when
        heappush(self._heap, (when, token))
        if max(len(self._heap), len(self._moved)) > 2 * len(self._live) + _SLACK:
            self._moved = {token: when for token, when in self._moved.items() if token in self._live}
            self._heap = [(when, token) for token, when in self._moved.items() if when < inf]
            heapify(self._heap)

    def of(self, token: int, given: float) -> float:
        """The deadline of a lease whose original one was ``given``."""
        return self._moved.get(token, given)

    def next(self) -> float | None:
        """The earliest deadline; None if nothing is leased."""
        self._drop_stale_front()
        self._drop_stale_top()
        fronts = [self._times[0]] if self._times else []
        fronts += [self._heap[0][0]] if self._heap else []
        return min(fronts, default=None)

    def pop_due(self, now: float) -> list[int]:
        """Unschedule and return every lease that is due at ``now``, earliest first."""
        due: list[tuple[float, int]] = []
        while (when := self.next()) is not None and when <= now:
            if self._times and self._times[0] == when:
                due.append((self._times.popleft(), self._tokens.popleft()))
            else:
                due.append(heappop(self._heap))
                self._moved[due[-1][1]] = inf  # so that its other entries, in the queue and in the heap, are stale
        return [token for _, token in due]

    def _drop_stale_front(self) -> None:
        tokens, live, moved = self._tokens, self._live, self._moved
        while tokens and (tokens[0] not in live or tokens[0] in moved):
            tokens.popleft()
            self._times.popleft()

    def _drop_stale_top(self) -> None:
        heap = self._heap
        while heap and (heap[0][1] not in self._live or self._moved.get(heap[0][1]) != heap[0][0]):
            heappop(heap)

    def _sweep(self) -> None:
        entries = zip(self._tokens, self._times, strict=True)
        queued = [(token, when) for token, when in entries if token in self._live and token not in self._moved]
        self._tokens = deque(token for token, _ in queued)
        self._times = deque(when for _, when in queued)
