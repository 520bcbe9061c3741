"""A network that drops, duplicates, shuffles and delays messages, reproducibly for the same seed.

Rules
    - Every fault is decided when a message is sent, from the seed and the messages sent before. It does not depend on when the
      receiver polls. Same seed, same messages, same faults.
    - A message is dropped, or sent as one copy, or (``duplicate``) as two.
    - ``shuffle`` moves a copy by at most that many places. A copy that is to be overtaken waits until those that may
      overtake it have been sent; ``drain`` ends the wait when nothing more will be sent.
    - ``delay`` is the range of a copy's transit time. Different delays reorder messages, too, without a bound.

Theory of operation
    Copy number i draws a place from i to i + shuffle. Copies are sorted by place, the later sent first among
    equals. So copy i is never overtaken by a copy after i + shuffle, nor overtakes one before i - shuffle, which bounds how
    far it moves in either direction. A waiting copy is released as soon as every later copy must draw a higher place, and
    arrives no earlier than the copy that released it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Generic, TypeVar

from seriatim.errors import InvalidArgument

M = TypeVar("M")


class FaultyNetwork(Generic[M]):
    """One direction of a faulty connection between a sender and a receiver."""

    def __init__(
        self,
        seed: int,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        shuffle: int = 0,
        delay: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        _check_probability("drop", drop)
        _check_probability("duplicate", duplicate)
        if shuffle < 0:
            raise InvalidArgument(f"shuffle must be a number of places, 0 or more, not {shuffle!r}")
        if not 0.0 <= delay[0] <= delay[1]:
            raise InvalidArgument(f"delay must be a range of seconds, lowest first and not below 0, not {delay!r}")
        self._random = Random(seed)
        self._drop, self._duplicate, self._shuffle, self._delay = drop, duplicate, shuffle, delay
        # Heaps. Copies are numbered downwards, so that the later sent of two with the same place comes first.
        self._waiting: list[tuple[int, int, float, M]] = []  # place, copy, arrival, message
        self._flying: list[tuple[float, int, int, M]] = []  # arrival, place, copy, message
        self._copies = 0
        self._last_arrival = 0.0
        self._latest_received = 1
        self.sent = 0
        self.dropped = 0
        self.duplicated = 0
        self.displaced = 0

    def send(self, message: M, now: float = 0.0) -> None:
        """Send a message."""
        self.sent += 1
        if self._happens(self._drop):
            self.dropped += 1
            return
        self._send_copy(message, now)
        if self._happens(self._duplicate):
            self.duplicated += 1
            self._send_copy(message, now)

    def receive(self, now: float) -> list[M]:
        """Everything that arrived up to ``now``, in order of arrival."""
        received = []
        while self._flying and self._flying[0][0] <= now:
            _, _, copy, message = heappop(self._flying)
            self.displaced += copy > self._latest_received
            self._latest_received = min(self._latest_received, copy)
            received.append(message)
        return received

    def next_arrival(self) -> float | None:
        """When to poll next; None if nothing is in transit, or only copies that wait to be overtaken."""
        return self._flying[0][0] if self._flying else None

    @property
    def is_busy(self) -> bool:
        """Whether anything is in transit."""
        return bool(self._flying or self._waiting)

    def drain(self) -> list[M]:
        """Everything still in transit, in order of arrival, if nothing more will be sent."""
        self._let_go(inf)
        return self.receive(inf)

    def transmit(self, messages: Iterable[M]) -> list[M]:
        """Send all ``messages`` at once and return what arrives, in order of arrival."""
        for message in messages:
            self.send(message)
        return self.drain()

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def _send_copy(self, message: M, now: float) -> None:
        self._last_arrival = now + self._random.uniform(*self._delay)
        place = self._copies + self._random.randint(0, self._shuffle)
        heappush(self._waiting, (place, -self._copies, self._last_arrival, message))
        self._copies += 1
        self._let_go(self._copies)

    def _let_go(self, open_place: float) -> None:
        """Start the copies whose places are below ``open_place``, the lowest that a copy still to come may draw."""
        while self._waiting and self._waiting[0][0] < open_place:
            place, copy, arrival, message = heappop(self._waiting)
            heappush(self._flying, (max(arrival, self._last_arrival), place, copy, message))


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidArgument(f"{name} must be a probability from 0 to 1, not {value!r}")
