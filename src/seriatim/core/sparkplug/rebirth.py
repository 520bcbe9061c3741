"""Rebirth requests: one outstanding per node, with backoff, and a limit over all nodes.

Rules
    - One request is outstanding, for any number of reasons: only a birth answers it.
    - Without an answer it is repeated, each time after twice the time, and given up after ``attempts`` requests.
    - An answer ends the request, not the backoff: a node that loses messages repeatedly is not asked more often than
      the backoff allows. A quiet time of twice the longest backoff resets it.
    - While there is no connection to the node nothing is requested, and no attempt is used up.
    - Over all nodes, requests are sent at a limited rate (``RebirthBudget``), with a burst of one second's worth.
"""

from __future__ import annotations

from math import inf

from seriatim.core.sparkplug.messages import NodeOrdering


class RebirthGovernor:
    """Decides when to send a request to one node."""

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
        """When the request is to be sent, or repeated; None if there is no need."""
        return self._allowed if self._left and self.reachable else None

    @property
    def begins_anew(self) -> float:
        """When the past makes no difference any more: after a quiet time."""
        return self._allowed + 2 * self._options.rebirth_backoff_limit

    def want(self, reason: str) -> None:
        """There is a reason for a request."""
        if self._reason is None:
            self._reason, self._left, self._sent = reason, self._options.rebirth_attempts, 0
        else:
            self._left = max(self._left, 1)

    def ask(self, now: float) -> tuple[str, int]:
        """The request is sent now. Returns its reason, and the number of attempts."""
        assert self._reason is not None
        if now > self.begins_anew:
            self._delay = self._options.rebirth_backoff
        self._left, self._sent = self._left - 1, self._sent + 1
        self._allowed = now + self._delay
        self._delay = min(2 * self._delay, self._options.rebirth_backoff_limit)
        return self._reason, self._sent

    def end(self) -> None:
        """The node was born, or died: no request is outstanding."""
        self._reason, self._left = None, 0


class RebirthBudget:
    """A bucket that fills at a constant rate, up to one second's worth and at least one request."""

    __slots__ = ("_available", "_rate", "_room", "_time")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._room = self._available = max(1.0, rate)
        self._time = -inf

    def take(self, now: float) -> bool:
        """Whether one more request may be sent now."""
        self._available = min(self._room, self._available + max(0.0, now - self._time) * self._rate)
        self._time = max(now, self._time)
        # Small increments add up to slightly less than one.
        if self._available < 1 - 1e-6:
            return False
        self._available -= 1
        return True

    @property
    def next(self) -> float:
        """When the next request may be sent."""
        return self._time + max(0.0, 1 - self._available) / self._rate
