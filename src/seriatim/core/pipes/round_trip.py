"""The retransmission timeout, derived from measured round trips.

Rules
-----
1. Until a round trip was measured, the timeout is ``initial``. Afterwards it is the smoothed round trip plus four times
   its smoothed deviation, and ``answer_delay``, by which the other end may delay an answer; never below ``lowest``.
2. Without an answer the timeout doubles, up to ``highest``, until one arrives.
3. An answer says which transmission it belongs to, so the round trip of a retransmission is known, too.

Theory of operation
-------------------
This is TCP's retransmission timer: Jacobson's estimator with the weights of RFC 6298, with echoed time stamps (RFC
7323). Without the echo a retransmission could not be measured, and the timeout would stay doubled until a first attempt
succeeds: if a third of all round trips fail, it would hardly ever come down.
"""

from __future__ import annotations

_TICKS = 1_000_000
_MEAN_WEIGHT = 1 / 8
_DEVIATION_WEIGHT = 1 / 4
_DEVIATIONS = 4


def stamp_of(now: float) -> int:
    """A time as it is sent to the other end, to be echoed."""
    return max(0, int(now * _TICKS))


class RoundTrip:
    """An estimate of the round trip, and the timeout that follows from it."""

    __slots__ = ("_answer_delay", "_deviation", "_doublings", "_highest", "_initial", "_lowest", "_mean")

    def __init__(self, initial: float, lowest: float, highest: float, answer_delay: float = 0.0) -> None:
        self._initial, self._lowest, self._highest = initial, lowest, highest
        self._answer_delay = answer_delay
        self._mean: float | None = None
        self._deviation = 0.0
        self._doublings = 0

    @property
    def timeout(self) -> float:
        """How long to wait for a confirmation before resending, in seconds."""
        base = self._initial
        if self._mean is not None:
            base = max(self._lowest, self._mean + _DEVIATIONS * self._deviation + self._answer_delay)
        # The exponent is limited: a float overflows after a thousand doublings.
        return min(self._highest, base * 2.0 ** min(self._doublings, 64))

    def measure(self, echo: int, now: float) -> None:
        """An answer arrived for the transmission with this stamp; 0: for none."""
        if echo == 0:
            return
        seconds = min(max(now - echo / _TICKS, 0.0), self._highest)  # the other end could echo anything
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            self._deviation += _DEVIATION_WEIGHT * (abs(seconds - self._mean) - self._deviation)
            self._mean += _MEAN_WEIGHT * (seconds - self._mean)
        self._doublings = 0

    def miss(self) -> None:
        """No answer arrived in time."""
        self._doublings += 1

    def begin_anew(self) -> None:
        """Nothing is awaited any more: the next timeout is not doubled."""
        self._doublings = 0
