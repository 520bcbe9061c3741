"""Batching: when a published message is sent, and what must wait so that nothing overtakes.

Rules
-----
1. Each key has a *line* of its own, and all keyless messages share one. The first message of a line opens a batch, and
   the next ones join it.
2. A batch is **full** with ``max_messages`` messages or ``max_bytes`` bytes (the sum of its messages' data lengths). A
   message that would exceed ``max_bytes`` closes the open batch and opens the next, so an oversized one is alone.
3. A batch is **ripe** ``max_milliseconds`` after it was opened, which later messages never extend, or when flushed.
4. A full or ripe batch is sent at once while nothing of its key is in flight. Behind a batch in flight, a full one is
   sealed and waits its turn; a ripe one continues to fill until its turn comes, because it has to wait anyway and every
   message that joins it saves a round trip.
5. At most one batch of a key is in flight. Its confirmation sends the next. Its failure **pauses** the key: all
   messages that wait behind it are refused, and so is every later one until the key is resumed, so that nothing
   overtakes.
6. Keyless messages have no order: any number of their batches are in flight, and a failure pauses nothing.
7. A key can also be **paused** by the caller, because one of its messages was lost earlier. The messages in its line
   are older, and are sent; later messages are refused until the key is resumed.
8. A batch whose outcome is unknown, and which may be sent twice, is **repeated**: it is sent again after a pause that
   doubles each time, until ``REPEAT_FOR_S`` after the first repetition was asked for. It stays in flight, so nothing of
   its key overtakes it.

Theory of operation
-------------------
Two questions (is something in flight? does something wait?) give the four states of a line; the fifth is paused. A line
that the caller paused while it is not empty keeps its state, and becomes paused instead of idle. An idle line is
removed, so idle keys cost nothing. The keyless line uses the same states, but treats each batch as confirmed as soon as
it is sent, so nothing ever waits behind it.

All open batches share one delay, so they ripen in the order in which they were opened: an ordered map is the whole
timer, also after the delay has changed; ``now`` must not go backwards. (It is an ``OrderedDict`` because the first
entry of a ``dict`` is slow to find after many deletions.) Only ``set_options`` costs more with more keys.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, takewhile
from typing import Generic, NamedTuple, TypeVar

from seriatim.core.publishing.dedup import REPEAT_FOR_S
from seriatim.core.transition_table import TransitionTable
from seriatim.core.validation import require_duration, require_whole
from seriatim.errors import NotFound, PublishingPaused

M = TypeVar("M")

FIRST_REPEAT_PAUSE_S, MAX_REPEAT_PAUSE_S = 0.1, 5.0


class LineState(StrEnum):
    """The state of a key's line."""

    IDLE = "idle"
    FILLING = "filling"
    SENDING = "sending"
    BACKLOGGED = "backlogged"
    PAUSED = "paused"


class LineEvent(StrEnum):
    """The events of a key's line."""

    OPEN = "open"
    SEND = "send"
    CONFIRM = "confirm"
    FAIL = "fail"
    REPEAT = "repeat"
    PAUSE = "pause"
    RESUME = "resume"


LINES = TransitionTable(
    "publishing line",
    LineState.IDLE,
    {
        LineState.IDLE: {
            LineEvent.OPEN: frozenset({LineState.FILLING}),
            LineEvent.PAUSE: frozenset({LineState.PAUSED}),
        },
        LineState.FILLING: {
            LineEvent.SEND: frozenset({LineState.SENDING, LineState.BACKLOGGED}),
            LineEvent.PAUSE: frozenset({LineState.FILLING}),
        },
        LineState.SENDING: {
            LineEvent.OPEN: frozenset({LineState.BACKLOGGED}),
            LineEvent.CONFIRM: frozenset({LineState.IDLE, LineState.PAUSED}),
            LineEvent.FAIL: frozenset({LineState.PAUSED}),
            LineEvent.REPEAT: frozenset({LineState.SENDING}),
            LineEvent.PAUSE: frozenset({LineState.SENDING}),
        },
        LineState.BACKLOGGED: {
            LineEvent.OPEN: frozenset({LineState.BACKLOGGED}),
            LineEvent.CONFIRM: frozenset({LineState.FILLING}),
            LineEvent.FAIL: frozenset({LineState.PAUSED}),
            LineEvent.REPEAT: frozenset({LineState.BACKLOGGED}),
            LineEvent.PAUSE: frozenset({LineState.BACKLOGGED}),
        },
        LineState.PAUSED: {LineEvent.RESUME: frozenset({LineState.IDLE})},
    },
)


# Used for every message: a module's name is several times faster to look up than a member of an enum.
_IDLE, _FILLING, _SENDING, _BACKLOGGED = LineState.IDLE, LineState.FILLING, LineState.SENDING, LineState.BACKLOGGED
_make = tuple.__new__  # creates named tuples in C: twice as fast as calling their class


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch is sent: whichever of the three thresholds is reached first."""

    max_messages: int = 100
    max_milliseconds: float = 10
    max_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        require_whole("max_messages", self.max_messages, 1)
        require_duration("max_milliseconds", self.max_milliseconds)
        require_whole("max_bytes", self.max_bytes, 1)


class Batch(NamedTuple, Generic[M]):
    """Messages to be stored together or not at all. Batches are numbered in the order of sending."""

    number: int
    key: str | None
    messages: tuple[M, ...]
    size: int


class Outstanding(NamedTuple):
    """The number of unconfirmed messages."""

    waiting: int
    in_flight: int


class _Line(Generic[M]):
    """One key's line that is neither idle nor paused: its state and its open batch (none while ``messages`` is empty)."""

    __slots__ = ("key", "messages", "opened", "ripe", "sealed", "size", "state")

    def __init__(self, key: str | None, opened: float) -> None:
        self.key = key
        self.state = _FILLING
        self.messages: list[M] = []
        self.size = 0
        self.opened = opened
        self.ripe = False
        self.sealed: deque[tuple[tuple[M, ...], int]] | None = None  # full batches behind one in flight, with sizes


class Batcher(Generic[M]):
    """Collects messages into batches, one line per key. The caller sends the returned batches at once, in order."""

    def __init__(self, options: Batching) -> None:
        self._options = options
        self._lines: dict[str | None, _Line[M]] = {}  # those that are neither idle nor paused
        self._filling: OrderedDict[str | None, _Line[M]] = OrderedDict()  # batches not ripe yet, in order of opening
        self._flights: dict[int, Batch[M]] = {}
        self._repeats: dict[
            int, tuple[float, float]
        ] = {}  # until when and after which pause, by the numbers of batches
        self.paused: dict[str | None, None] = {}  # keys whose messages are refused, in order of pausing
        self._last_number = 0

    def add(self, key: str | None, message: M, size: int, now: float) -> tuple[Batch[M], ...]:
        """Add a message of ``size`` bytes to its line."""
        if size < 0:
            require_whole("size", size, 0)
        if key in self.paused:
            raise refusal(key)
        options, line = self._options, self._lines.get(key)
        sent: list[Batch[M]] = []
        if line is not None and line.messages and line.size + size > options.max_bytes:
            self._seal(line, sent)
            line = self._lines.get(key)  # the keyless line is idle again
        is_opened = line is None or not line.messages
        if line is None:
            line = self._lines[key] = self._filling[key] = _Line(key, now)
        elif is_opened:
            line.state, line.opened, line.ripe = _BACKLOGGED, now, False
            self._filling[key] = line
        line.messages.append(message)
        line.size += size
        if line.size >= options.max_bytes or len(line.messages) >= options.max_messages:
            self._seal(line, sent)
        elif is_opened and not options.max_milliseconds:
            self._ripen((line,), sent)
        return tuple(sent)

    def is_idle(self, keys: Set[str | None]) -> bool:
        """Whether nothing of these keys is open or in flight, and none is paused."""
        return self._lines.keys().isdisjoint(keys) and self.paused.keys().isdisjoint(keys)

    def note_sent(self, key: str | None, messages: Sequence[M], size: int) -> Batch[M]:
        """The caller sent a batch of an idle key, or of none, itself. It is in flight, and ends like any other."""
        self._last_number += 1
        batch = self._flights[self._last_number] = Batch(self._last_number, key, tuple(messages), size)
        if key is not None:
            self._lines[key] = _Line(key, 0.0)
            self._lines[key].state = _SENDING
        return batch

    def due(self, now: float) -> tuple[Batch[M], ...]:
        """Send the batches that are ripe."""
        delay = self._options.max_milliseconds / 1000
        sent: list[Batch[M]] = []  # list[Batch[M]]() takes ten times as long, here and below
        self._ripen(list(takewhile(lambda line: line.opened + delay <= now, self._filling.values())), sent)
        return tuple(sent)

    def next_deadline(self) -> float | None:
        """When ``due`` has something to do next; None: never."""
        for line in self._filling.values():
            return line.opened + self._options.max_milliseconds / 1000
        return None

    def flush(self) -> tuple[Batch[M], ...]:
        """Make every open batch ripe, in order of opening. One behind a batch in flight follows when its turn comes."""
        sent: list[Batch[M]] = []
        self._ripen(list(self._filling.values()), sent)
        return tuple(sent)

    def set_options(self, options: Batching, now: float) -> tuple[Batch[M], ...]:
        """Apply new thresholds, also to open batches; a batch that already exceeds them is sent as it is."""
        self._options = options
        sent: list[Batch[M]] = []
        # A ripe batch behind one in flight may exceed them too, and only its line still knows it.
        for line in [*self._filling.values(), *self._lines.values()]:
            if len(line.messages) >= options.max_messages or line.size >= options.max_bytes:
                self._seal(line, sent)
        return (*sent, *self.due(now))

    def confirm(self, number: int) -> tuple[Batch[M], ...]:
        """A batch is durable: send what was waiting for it."""
        key = self._land(number)
        if key is None:
            return ()
        line = self._lines[key]
        if line.state is _SENDING:
            line.state = LineState.PAUSED if key in self.paused else _IDLE
            del self._lines[key]
            return ()
        sent: list[Batch[M]] = []
        line.state = _FILLING
        if line.sealed:
            self._send(line, *line.sealed.popleft(), sent)
        elif line.ripe:
            self._seal(line, sent)
        return tuple(sent)

    def fail(self, number: int) -> tuple[M, ...]:
        """A batch is lost: pause its key, and return the later messages, which are refused."""
        key = self._land(number)
        if key is None:
            return ()
        line = self._lines.pop(key)
        line.state = LineState.PAUSED
        self.paused[key] = None
        self._filling.pop(key, None)
        return (*chain.from_iterable(messages for messages, _ in line.sealed or ()), *line.messages)

    def repeat(self, number: int, now: float) -> float | None:
        """The outcome of a batch is unknown: after how many seconds to send it again, or None when it is time to give up."""
        if number not in self._flights:
            raise _not_in_flight(number)
        until, pause = self._repeats.get(number, (now + REPEAT_FOR_S, FIRST_REPEAT_PAUSE_S))
        self._repeats[number] = until, min(2 * pause, MAX_REPEAT_PAUSE_S)
        return pause if now < until else None

    def pause(self, key: str) -> None:
        """A message of a key was lost earlier: refuse later ones. What waits or is in flight continues."""
        state = LineState.PAUSED if key in self.paused else self.state(key)
        LINES.check(state, LineEvent.PAUSE, LineState.PAUSED if state is _IDLE else state)
        self.paused[key] = None

    def resume(self, key: str) -> None:
        """Accept messages of a paused key again."""
        state = self.state(key)
        if key not in self.paused or state is LineState.PAUSED:
            LINES.check(state, LineEvent.RESUME, LineState.IDLE)
        del self.paused[key]

    def state(self, key: str) -> LineState:
        """The state of the line of ``key``."""
        line = self._lines.get(key)
        if line is not None:
            return line.state
        return LineState.PAUSED if key in self.paused else LineState.IDLE

    def paused_keys(self) -> tuple[str, ...]:
        """The paused keys, in order of pausing."""
        return tuple(key for key in self.paused if key is not None)

    def outstanding(self) -> Outstanding:
        """The number of unconfirmed messages."""
        sealed = chain.from_iterable(line.sealed or () for line in self._lines.values())
        waiting = sum(len(line.messages) for line in self._lines.values()) + sum(len(batch) for batch, _ in sealed)
        return Outstanding(waiting, sum(len(batch.messages) for batch in self._flights.values()))

    def _ripen(self, lines: Iterable[_Line[M]], sent: list[Batch[M]]) -> None:
        """Send open batches, or mark them to be sent in their turn, however full they are by then."""
        for line in lines:
            if line.state is _FILLING:
                self._seal(line, sent)
            else:
                line.ripe = True
                del self._filling[line.key]

    def _seal(self, line: _Line[M], sent: list[Batch[M]]) -> None:
        """Close the open batch, and send it unless another of its key is in flight."""
        messages, size = tuple(line.messages), line.size
        line.messages.clear()
        line.size = 0
        self._filling.pop(line.key, None)
        if line.state is _FILLING:
            self._send(line, messages, size, sent)
        else:
            line.sealed = deque() if line.sealed is None else line.sealed
            line.sealed.append((messages, size))

    def _send(self, line: _Line[M], messages: tuple[M, ...], size: int, sent: list[Batch[M]]) -> None:
        line.state = _BACKLOGGED if line.messages or line.sealed else _SENDING
        self._last_number += 1
        batch: Batch[M] = _make(Batch, (self._last_number, line.key, messages, size))
        self._flights[batch.number] = batch
        sent.append(batch)
        if line.key is None:
            line.state = _IDLE
            del self._lines[None]

    def _land(self, number: int) -> str | None:
        """A batch is no longer in flight; returns its key."""
        batch = self._flights.pop(number, None)
        if batch is None:
            raise _not_in_flight(number)
        if self._repeats:
            self._repeats.pop(number, None)
        return batch.key


def _not_in_flight(number: int) -> NotFound:
    return NotFound(f"Batch {number} is not in flight; confirm or fail each batch that was sent exactly once")


def refusal(key: str | None) -> PublishingPaused:
    """The error of a message whose key is paused."""
    return PublishingPaused(f"Key {key!r} is paused by a failed publish; call resume_publishing({key!r}) first")
