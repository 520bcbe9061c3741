"""When a rebirth is asked for: one request outstanding per node, with backoff, and a limit over all nodes.

Rules
    - However many reasons there are, one request is outstanding: it is answered by a birth and by nothing else.
    - Without an answer it is repeated, each time after twice the time, and given up after ``attempts`` requests.
    - An answer ends the request, not the backoff: a node that loses messages again and again is not asked more often than the
      backoff allows. A quiet time of twice the longest backoff begins it anew.
    - While there is no way to the node nothing is asked, and no attempt is used up.
    - Over all nodes, requests leave at a limited rate (``RebirthBudget``); the first second's worth may leave at once.
"""

from __future__ import annotations

from math import inf

from seriatim.core.sparkplug.messages import NodeOrdering


class RebirthGovernor:
    """Decides when one node is asked."""

    __slots__ = ("_allowed", "_delay", "_left", "_options", "_reason", "_sent", "reachable")

    def __init__(self, options: NodeOrdering) -> None:
        self._options = options
        self._reason: str | None = None
        self._left = self._sent = 0
        self._allowed = -inf
        self._delay = options.rebirth_backoff
        self.reachable = True
        """Whether there is a way to the node."""

    @property
    def outstanding(self) -> bool:
        """True from the first reason to the birth."""
        return self._reason is not None

    @property
    def due(self) -> float | None:
        """When the node is to be asked, or asked again; None when there is no need."""
        return self._allowed if self._left and self.reachable else None

    @property
    def begins_anew(self) -> float:
        """When the past makes no difference any more: a quiet time later."""
        return self._allowed + 2 * self._options.rebirth_backoff_limit

    def want(self, reason: str) -> None:
        """There is a reason to ask."""
        if self._reason is None:
            self._reason, self._left, self._sent = reason, self._options.rebirth_attempts, 0
        else:
            self._left = max(self._left, 1)

    def ask(self, now: float) -> tuple[str, int]:
        """The request leaves now: its reason, and how often it was made."""
        assert self._reason is not None
        if now > self.begins_anew:
            self._delay = self._options.rebirth_backoff
        self._left, self._sent = self._left - 1, self._sent + 1
        self._allowed = now + self._delay
        self._delay = min(2 * self._delay, self._options.rebirth_backoff_limit)
        return self._reason, self._sent

    def end(self) -> None:
        """The node was born, or died: nothing more is asked."""
        self._reason, self._left = None, 0


class RebirthBudget:
    """A bucket that fills at a constant rate, up to one second's worth and at least one request."""

    __slots__ = ("_available", "_rate", "_room", "_time")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._room = self._available = max(1.0, rate)
        self._time = -inf

    def take(self, now: float) -> bool:
        """Whether one more request may leave now."""
        self._available = min(self._room, self._available + max(0.0, now - self._time) * self._rate)
        self._time = max(now, self._time)
        # A bucket that was filled drop by drop is full at a whisker below one.
        if self._available < 1 - 1e-6:
            return False
        self._available -= 1
        return True

    @property
    def next(self) -> float:
        """When the next request may leave."""
        return self._time + max(0.0, 1 - self._available) / self._rate
