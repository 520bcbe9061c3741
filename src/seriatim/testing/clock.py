"""A clock that moves only when you advance it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from seriatim.errors import InvalidArgument


class ManualClock:
    """A clock for tests. It moves only forward, and calls the timers that fall due on the way, in order.

    While a timer is being called, ``now()`` is the time for which it was set; timers that it sets are called, too, if they
    fall due within the same move.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timers_set = 0

    def now(self) -> float:
        """The current time of this clock."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``; 0 calls the timers that are already due."""
        self.set(self._now + seconds)

    def set(self, time: float) -> None:
        """Move forward to ``time``."""
        if not time >= self._now:
            raise InvalidArgument(f"a clock never goes backwards: it is {self._now}, so it cannot be set to {time}")
        while self._timers and self._timers[0][0] <= time:
            when, _, callback = heappop(self._timers)
            self._now = max(self._now, when)
            callback()
        # A callback may have moved the clock further than this call was asked to.
        self._now = max(self._now, time)

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        """Call back once the clock reaches ``when``; timers for the same time are called in the order in which they were set.

        A time that has passed already is due at the next move.
        """
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, callback))
