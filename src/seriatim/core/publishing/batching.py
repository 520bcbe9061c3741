"""Batching: when a published message goes out, and what has to wait so that nothing overtakes.

Rules
-----
1. Each key has a *line* of its own, and all keyless messages share one. The first message of a line opens a batch, and
   the next ones join it.
2. A batch is **full** with ``max_messages`` messages or ``max_bytes`` bytes (the sum of its messages' data lengths). A
   message that would exceed ``max_bytes`` closes the open batch and opens the next, so an oversized message goes alone.
3. A batch is **ripe** ``max_milliseconds`` after it was opened, which later messages never extend, or when flushed.
4. A full or ripe batch is sent at once while nothing of its key is in flight. Behind a batch in flight, a full one is
   sealed and waits its turn; a ripe one goes on filling until its turn comes, because it has to wait anyway and every
   message that joins it spares a round trip.
5. At most one batch of a key is in flight. Its confirmation sends the next. Its failure **pauses** the key: whatever
   waits behind it is refused, and so is every later message until the key is resumed, so that nothing overtakes.
6. Keyless messages have no order to lose: any number of their batches are in flight, and a failure pauses nothing.
7. A key can also be **paused** from outside, because one of its messages was lost before it came here. What its line holds is
   older, and goes on; later messages are refused until the key is resumed.

Theory of operation
-------------------
A line is in one of four states by two questions (is something in flight? does something wait?), or paused. A line that was
paused from outside and still holds something keeps its state, and becomes paused instead of idle. An idle line is forgotten,
so idle keys cost nothing. The keyless line walks through the same states, but takes each confirmation for
granted as soon as a batch is sent, so nothing ever waits behind it.

All open batches share one delay, so they ripen in the order in which they were opened: an ordered map is the whole
timer, also after the delay has changed; ``now`` must not go backwards. (It is an ``OrderedDict`` because the first entry
of a ``dict`` is slow to find once many before it were deleted.) No operation but ``set_options`` costs more because there
are many keys.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, takewhile
from typing import Generic, NamedTuple, TypeVar

from seriatim.core.options import require_duration, require_whole
from seriatim.core.table import TransitionTable
from seriatim.errors import NotFound, PublishingPaused

M = TypeVar("M")


class LineState(StrEnum):
    """What a key's line is doing."""

    IDLE = "idle"
    FILLING = "filling"
    SENDING = "sending"
    BACKLOGGED = "backlogged"
    PAUSED = "paused"


class LineEvent(StrEnum):
    """What can happen to a key's line."""

    OPEN = "open"
    SEND = "send"
    CONFIRM = "confirm"
    FAIL = "fail"
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
            LineEvent.PAUSE: frozenset({LineState.SENDING}),
        },
        LineState.BACKLOGGED: {
            LineEvent.OPEN: frozenset({LineState.BACKLOGGED}),
            LineEvent.CONFIRM: frozenset({LineState.FILLING}),
            LineEvent.FAIL: frozenset({LineState.PAUSED}),
            LineEvent.PAUSE: frozenset({LineState.BACKLOGGED}),
        },
        LineState.PAUSED: {LineEvent.RESUME: frozenset({LineState.IDLE})},
    },
)


_LEGAL = frozenset(LINES)
# Looked up for every message: a name of this module is found several times faster than a member of an enum.
_IDLE, _FILLING, _SENDING, _BACKLOGGED = LineState.IDLE, LineState.FILLING, LineState.SENDING, LineState.BACKLOGGED
_OPEN, _SEND, _CONFIRM = LineEvent.OPEN, LineEvent.SEND, LineEvent.CONFIRM


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
    """Messages to be stored together or not at all. Batches are numbered in the order in which they are sent."""

    number: int
    key: str | None
    messages: tuple[M, ...]
    size: int


class Outstanding(NamedTuple):
    """How many messages are not confirmed yet."""

    waiting: int
    in_flight: int


class _Line(Generic[M]):
    """One key's line: its state and its open batch (none while ``messages`` is empty)."""

    __slots__ = ("key", "messages", "opened", "ripe", "size", "state")
    opened: float
    ripe: bool

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.state = LINES.start
        self.messages: list[M] = []
        self.size = 0


class Batcher(Generic[M]):
    """Gathers messages into batches, one line per key. Batches that a method returns are to be sent now, in order."""

    def __init__(self, options: Batching) -> None:
        self._options = options
        self._lines: dict[str | None, _Line[M]] = {}  # those that are neither idle nor paused
        self._filling: OrderedDict[str | None, _Line[M]] = OrderedDict()  # batches not ripe yet, in order of opening
        self._sealed: defaultdict[str | None, deque[tuple[tuple[M, ...], int]]] = defaultdict(deque)  # full, with sizes
        self._flights: dict[int, Batch[M]] = {}
        self._paused: dict[str | None, None] = {}  # a set that keeps the order of pausing
        self._last_number = 0
        self._waiting = 0
        self._in_flight = 0

    def add(self, key: str | None, message: M, size: int, now: float) -> tuple[Batch[M], ...]:
        """Put a message of ``size`` bytes into its line."""
        if size < 0:
            require_whole("size", size, 0)
        if key in self._paused:
            self.require_accepted(key)
        line = self._lines.get(key) or _Line(key)
        sent: tuple[Batch[M], ...] = ()
        if line.messages and line.size + size > self._options.max_bytes:
            sent = self._seal(line)
        opening = not line.messages
        if opening:
            self._open(line, now)
        line.messages.append(message)
        line.size += size
        self._waiting += 1
        if self._is_full(line):
            return sent + self._seal(line)
        if opening and not self._options.max_milliseconds:
            return sent + self._ripen(line)
        return sent

    def due(self, now: float) -> tuple[Batch[M], ...]:
        """Send what is ripe by time."""
        return self._ripen_all(takewhile(lambda line: self._deadline(line) <= now, self._filling.values()))

    def next_deadline(self) -> float | None:
        """When ``due`` has something to do next, or None."""
        line = next(iter(self._filling.values()), None)
        return None if line is None else self._deadline(line)

    def flush(self) -> tuple[Batch[M], ...]:
        """Make every open batch ripe, in order of opening. One behind a batch in flight follows when its turn comes."""
        return self._ripen_all(self._filling.values())

    def set_options(self, options: Batching, now: float) -> tuple[Batch[M], ...]:
        """Apply new thresholds, to open batches too; a batch that is already beyond them is sent whole."""
        self._options = options
        # A ripe batch behind one in flight may be beyond the new thresholds too, and only its line still knows of it.
        lines = [*self._filling.values(), *self._lines.values()]
        full = chain.from_iterable(self._seal(line) for line in lines if self._is_full(line))
        return (*full, *self.due(now))

    def confirm(self, number: int) -> tuple[Batch[M], ...]:
        """A batch is durable: send what waited for it."""
        key = self._land(number).key
        return () if key is None else self._free(self._lines[key])

    def fail(self, number: int) -> tuple[M, ...]:
        """A batch is lost: pause its key, and return the messages behind it, which are refused."""
        key = self._land(number).key
        if key is None:
            return ()
        line = self._lines.pop(key)
        self._move(line, LineEvent.FAIL, LineState.PAUSED)
        self._paused[key] = None
        self._filling.pop(key, None)
        sealed = chain.from_iterable(messages for messages, _ in self._sealed.pop(key, ()))
        refused = (*sealed, *line.messages)
        self._waiting -= len(refused)
        return refused

    def pause(self, key: str) -> None:
        """A message of a key was lost before it came here: refuse later ones. What waits or is in flight goes on."""
        state = LineState.PAUSED if self.is_paused(key) else self.state(key)
        LINES.check(state, LineEvent.PAUSE, LineState.PAUSED if state is _IDLE else state)
        self._paused[key] = None

    def resume(self, key: str) -> None:
        """Accept messages of a paused key again."""
        state = self.state(key)
        if key not in self._paused or state is LineState.PAUSED:
            LINES.check(state, LineEvent.RESUME, LineState.IDLE)
        del self._paused[key]

    def state(self, key: str) -> LineState:
        """What the line of ``key`` is doing."""
        line = self._lines.get(key)
        if line is not None:
            return line.state
        return LineState.PAUSED if key in self._paused else LineState.IDLE

    def is_paused(self, key: str | None) -> bool:
        """Whether messages of ``key`` are refused."""
        return key in self._paused

    def require_accepted(self, key: str | None) -> None:
        """Raise PublishingPaused when messages of ``key`` are refused."""
        if key in self._paused:
            raise PublishingPaused(f"Key {key!r} is paused by a failed publish; call resume_publishing({key!r}) first")

    def paused_keys(self) -> tuple[str, ...]:
        """The paused keys, in order of pausing."""
        return tuple(key for key in self._paused if key is not None)

    def outstanding(self) -> Outstanding:
        """How many messages are not confirmed yet."""
        return Outstanding(self._waiting, self._in_flight)

    def _deadline(self, line: _Line[M]) -> float:
        return line.opened + self._options.max_milliseconds / 1000

    def _is_full(self, line: _Line[M]) -> bool:
        return len(line.messages) >= self._options.max_messages or line.size >= self._options.max_bytes

    def _move(self, line: _Line[M], event: LineEvent, target: LineState) -> None:
        if (line.state, event, target) not in _LEGAL:
            LINES.check(line.state, event, target)
        line.state = target

    def _open(self, line: _Line[M], now: float) -> None:
        idle = line.state is _IDLE
        self._move(line, _OPEN, _FILLING if idle else _BACKLOGGED)
        line.opened = now
        line.ripe = False
        self._lines[line.key] = self._filling[line.key] = line

    def _ripen_all(self, lines: Iterable[_Line[M]]) -> tuple[Batch[M], ...]:
        return tuple(chain.from_iterable(self._ripen(line) for line in list(lines)))

    def _ripen(self, line: _Line[M]) -> tuple[Batch[M], ...]:
        """Send the open batch, or mark it to be sent, however full it is by then, when its turn comes."""
        if line.state is _FILLING:
            return self._seal(line)
        line.ripe = True
        del self._filling[line.key]
        return ()

    def _seal(self, line: _Line[M]) -> tuple[Batch[M], ...]:
        """Close the open batch, and send it unless another of its key is in flight."""
        messages, size = tuple(line.messages), line.size
        line.messages.clear()
        line.size = 0
        self._filling.pop(line.key, None)
        if line.state is _FILLING:
            return self._send(line, messages, size)
        self._sealed[line.key].append((messages, size))
        return ()

    def _send(self, line: _Line[M], messages: tuple[M, ...], size: int) -> tuple[Batch[M], ...]:
        more = line.messages or line.key in self._sealed
        self._move(line, _SEND, _BACKLOGGED if more else _SENDING)
        self._last_number += 1
        batch = Batch(self._last_number, line.key, messages, size)
        self._flights[batch.number] = batch
        self._waiting -= len(messages)
        self._in_flight += len(messages)
        if line.key is None:
            self._free(line)
        return (batch,)

    def _land(self, number: int) -> Batch[M]:
        batch = self._flights.pop(number, None)
        if batch is None:
            raise NotFound(f"Batch {number} is not in flight; confirm or fail each batch that was sent exactly once")
        self._in_flight -= len(batch.messages)
        return batch

    def _free(self, line: _Line[M]) -> tuple[Batch[M], ...]:
        """Nothing of the line is in flight any more: send its next batch, if one is full or ripe."""
        if line.state is _SENDING:
            self._move(line, _CONFIRM, LineState.PAUSED if line.key in self._paused else _IDLE)
            del self._lines[line.key]
            return ()
        self._move(line, _CONFIRM, _FILLING)
        if line.key in self._sealed:
            return self._send(line, *self._next_sealed(line.key))
        return self._seal(line) if line.ripe else ()

    def _next_sealed(self, key: str | None) -> tuple[tuple[M, ...], int]:
        sealed = self._sealed[key]
        first = sealed.popleft()
        if not sealed:
            del self._sealed[key]
        return first
