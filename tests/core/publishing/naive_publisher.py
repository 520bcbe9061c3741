"""Naive models of the publisher's machines: plain lists, everything worked out again each time, nothing clever."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from seriatim.core.publishing.batching import Batcher, Batching, LineState, _Line
from seriatim.core.publishing.flow import FlowControl, FlowGate
from seriatim.errors import FlowControlTimeout, NotFound, PublishingPaused


def dump(thing: Any) -> Any:
    """Everything inside a machine, as values that can be compared before and after."""
    if isinstance(thing, Batcher | FlowGate):
        return dump(vars(thing))
    if isinstance(thing, _Line):
        return [dump(getattr(thing, name)) for name in _Line.__slots__]
    if isinstance(thing, dict):
        return [(key, dump(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | deque):
        return [dump(value) for value in thing]
    return thing


@dataclass
class NaiveBatch:
    key: str | None
    opened: float
    messages: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    full: bool = False
    ripe: bool = False
    number: int | None = None
    repeated: list[float] = field(default_factory=list)

    def sent(self) -> tuple[Any, ...]:
        return (self.number, self.key, tuple(self.messages), sum(self.sizes))


class NaiveBatcher:
    """All batches that are not confirmed, in order of opening; which may go is asked of each of them every time."""

    def __init__(self, options: Batching) -> None:
        self.options = options
        self.batches: list[NaiveBatch] = []
        self.paused: list[str] = []
        self.number = 0

    def waiting(self, key: str | None) -> list[NaiveBatch]:
        return [batch for batch in self.batches if batch.key == key and batch.number is None]

    def flying(self, key: str | None) -> list[NaiveBatch]:
        return [batch for batch in self.batches if batch.key == key and batch.number is not None]

    def open(self) -> list[NaiveBatch]:
        return [batch for batch in self.batches if batch.number is None and not batch.full]

    def send(self) -> list[tuple[Any, ...]]:
        sent = []
        for batch in list(self.batches):
            blocked = batch.key is not None and (self.flying(batch.key) or self.waiting(batch.key)[0] is not batch)
            if batch.number is None and (batch.full or batch.ripe) and not blocked:
                self.number += 1
                batch.number = self.number
                sent.append(batch.sent())
        return sent

    def fill_up(self) -> None:
        for batch in self.open():
            counted = len(batch.messages) >= self.options.max_messages
            batch.full = counted or sum(batch.sizes) >= self.options.max_bytes

    def add(self, key: str | None, message: Any, size: int, now: float) -> list[tuple[Any, ...]]:
        if key in self.paused:
            raise PublishingPaused
        for batch in self.open():
            if batch.key == key and sum(batch.sizes) + size > self.options.max_bytes:
                batch.full = True
        sent = self.send()
        mine = [batch for batch in self.open() if batch.key == key]
        if not mine:
            mine = [NaiveBatch(key, now, ripe=self.options.max_milliseconds == 0)]
            self.batches += mine
        mine[0].messages.append(message)
        mine[0].sizes.append(size)
        self.fill_up()
        return sent + self.send()

    def deadline(self, batch: NaiveBatch) -> float:
        return batch.opened + self.options.max_milliseconds / 1000

    def due(self, now: float) -> list[tuple[Any, ...]]:
        for batch in self.open():
            batch.ripe = batch.ripe or self.deadline(batch) <= now
        return self.send()

    def next_deadline(self) -> float | None:
        return min((self.deadline(batch) for batch in self.open() if not batch.ripe), default=None)

    def flush(self) -> list[tuple[Any, ...]]:
        for batch in self.open():
            batch.ripe = True
        return self.send()

    def set_options(self, options: Batching, now: float) -> list[tuple[Any, ...]]:
        self.options = options
        self.fill_up()
        return self.send() + self.due(now)

    def land(self, number: int) -> str | None:
        for batch in self.batches:
            if batch.number == number:
                self.batches.remove(batch)
                return batch.key
        raise NotFound

    def confirm(self, number: int) -> list[tuple[Any, ...]]:
        self.land(number)
        return self.send()

    def fail(self, number: int) -> list[Any]:
        key = self.land(number)
        if key is None:
            return []
        refused = [message for batch in self.waiting(key) for message in batch.messages]
        self.batches = [batch for batch in self.batches if batch.key != key]
        if key not in self.paused:
            self.paused.append(key)
        return refused

    def repeat(self, number: int, now: float) -> float | None:
        """The pauses are 0.1 s, 0.2 s and so on, 5 s at most, for two minutes since the first was asked for."""
        (batch,) = [batch for batch in self.batches if batch.number == number]
        batch.repeated.append(now)
        return min(0.1 * 2 ** (len(batch.repeated) - 1), 5) if now < batch.repeated[0] + 120 else None

    def outstanding(self) -> tuple[int, int]:
        waiting = sum(len(batch.messages) for batch in self.batches if batch.number is None)
        return waiting, sum(len(batch.messages) for batch in self.batches) - waiting

    def state(self, key: str) -> LineState:
        if self.flying(key):
            return LineState.BACKLOGGED if self.waiting(key) else LineState.SENDING
        if self.waiting(key):
            return LineState.FILLING
        return LineState.PAUSED if key in self.paused else LineState.IDLE


class NaiveGate:
    """Two lists; after each change the first of the queue is asked whether it fits or has waited too long."""

    def __init__(self, options: FlowControl) -> None:
        self.options = options
        self.admitted: list[tuple[Any, int]] = []
        self.queue: list[tuple[Any, int, float]] = []

    def bytes(self) -> int:
        return sum(size for _, size in self.admitted)

    def full(self) -> bool:
        limit = self.options.max_outstanding_messages
        return limit is not None and len(self.admitted) >= limit

    def fits(self, size: int) -> bool:
        limit = self.options.max_outstanding_bytes
        if self.full():
            return False
        return limit is None or not self.admitted or (self.bytes() < limit and self.bytes() + size <= limit)

    def error(self) -> str:
        return f"Flow control: max outstanding {'messages' if self.full() else 'bytes'} exceeded"

    def settle(self, now: float | None = None) -> tuple[list[tuple[Any, str]], list[Any]]:
        timed_out: list[tuple[Any, str]] = []
        admitted: list[Any] = []
        timeout = self.options.timeout
        while self.queue:
            ticket, size, since = self.queue[0]
            if self.fits(size):
                self.admitted.append((ticket, size))
                admitted.append(ticket)
            elif now is not None and timeout is not None and since + timeout <= now:
                timed_out.append((ticket, self.error()))
            else:
                break
            self.queue = self.queue[1:]
        return timed_out, admitted

    def request(self, ticket: Any, size: int, now: float) -> bool:
        if not self.queue and self.fits(size):
            self.admitted.append((ticket, size))
            return True
        if self.options.timeout == 0:
            raise FlowControlTimeout(self.error())
        self.queue.append((ticket, size, now))
        return False

    def release(self, ticket: Any) -> list[Any]:
        self.admitted = [entry for entry in self.admitted if entry[0] != ticket]
        return self.settle()[1]

    def cancel(self, ticket: Any) -> list[Any]:
        self.queue = [entry for entry in self.queue if entry[0] != ticket]
        return self.settle()[1]

    def set_options(self, options: FlowControl, now: float) -> tuple[list[tuple[Any, str]], list[Any]]:
        self.options = options
        return self.settle(now)

    def next_deadline(self) -> float | None:
        if self.options.timeout is None:
            return None
        return min((since + self.options.timeout for _, _, since in self.queue), default=None)
