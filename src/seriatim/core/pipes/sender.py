"""The sending end of a pipe. The rules of pipes are in ``protocol.py``.

Rules
-----
1. A message is kept from ``push`` until it is confirmed, or given up.
2. Until a receiver has answered (``Welcome``), only ``Hello`` is sent, every ``timeout`` at first and then with
   backoff. A receiver with a higher epoch has forgotten what was in flight: it is resent, or given up if the pipe never
   resends.
3. If nothing is confirmed in time, the pipe's gap policy applies: what the receiver has not seen is sent again
   (``request``), or what is in flight is given up (``skip``), or the receiver is asked for its position (``hold``). The
   timeout follows the round trip (``round_trip.py``) and doubles each time. A pipe that gives up waits for ``timeout``
   at least: a shorter wait would lose messages.
4. A confirmation for another epoch has no effect, and none confirms more than was sent.

Theory of operation
-------------------
Messages are a list from ``floor`` (the lowest unconfirmed one) to ``next``. ``sent`` divides it: messages below are in
flight; those above wait for the window. One deadline serves all of them: the receiver knows what is missing, and
reports it. The deadline is for what the receiver can't know, the end of what was sent, and for lost confirmations.

``push`` and ``receive`` send nothing new by themselves: ``advance`` does, so that everything from one turn of the event
loop is sent in few frames.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from seriatim.core.pipes.protocol import (
    Confirm,
    Data,
    Finished,
    Hello,
    OnFull,
    PipeEffect,
    PipeOptions,
    Welcome,
    first_index,
)
from seriatim.core.pipes.round_trip import stamp_of
from seriatim.core.resequencing.options import LedgerEntry, OnGap, Reason
from seriatim.core.transition_table import TransitionTable
from seriatim.errors import CapacityExceeded, InvalidArgument


class SenderState(StrEnum):
    GREETING = "greeting"  # no receiver has answered yet
    IDLE = "idle"  # everything is confirmed
    FLOWING = "flowing"  # messages are kept, and the window has room
    FULL = "full"  # the window is full


class SenderEvent(StrEnum):
    ACCEPT = "accept"  # a message comes in
    WELCOME = "welcome"  # a receiver answers, the first time or after a restart
    SEND = "send"  # messages go out
    CONFIRM = "confirm"  # the receiver's output has taken messages
    GIVE_UP = "give up"  # messages are given up


_S, _E = SenderState, SenderEvent
_BUSY = frozenset({_S.FLOWING, _S.FULL})

TABLE = TransitionTable(
    "pipe sender",
    SenderState.GREETING,
    {
        _S.GREETING: {
            _E.WELCOME: frozenset({_S.IDLE, _S.FLOWING}),
            _E.GIVE_UP: frozenset({_S.GREETING}),
        },
        _S.IDLE: {
            _E.ACCEPT: frozenset({_S.FLOWING}),
            _E.WELCOME: frozenset({_S.IDLE}),
        },
        _S.FLOWING: {
            _E.WELCOME: frozenset({_S.FLOWING}),
            _E.SEND: _BUSY,
            _E.CONFIRM: frozenset({_S.IDLE, _S.FLOWING}),
            _E.GIVE_UP: frozenset({_S.IDLE, _S.FLOWING}),
        },
        _S.FULL: {
            _E.WELCOME: frozenset({_S.FLOWING}),
            _E.CONFIRM: frozenset({_S.IDLE, _S.FLOWING}),
            _E.GIVE_UP: frozenset({_S.IDLE, _S.FLOWING}),
        },
    },
)

MESSAGE_OVERHEAD = 4
"""The bytes that a message takes in a frame besides its own."""

STEADY_HELLOS = 8
"""The number of hellos before the sender backs off."""

_GREETING, _IDLE = SenderState.GREETING, SenderState.IDLE


class PipeSender:
    """Keeps messages until they are confirmed. See the module's rules."""

    __slots__ = (
        "_base",
        "_deadline",
        "_floor",
        "_hellos",
        "_max_bytes",
        "_max_message",
        "_messages",
        "_next",
        "_options",
        "_peer",
        "_queue",
        "_round_trip",
        "_seen",
        "_sent",
        "_state",
        "_window",
        "epoch",
    )

    def __init__(self, options: PipeOptions, epoch: int, *, first: int | None = None, max_bytes: int = 60_000) -> None:
        """``first`` is the index of the next message, for a sender that remembers it; ``max_bytes`` limits a frame."""
        self._options = options
        self.epoch = epoch
        self._max_bytes, self._max_message = max_bytes, max_bytes - MESSAGE_OVERHEAD
        self._queue = options.queue
        self._base = first_index(epoch) if first is None else first
        self._floor = self._sent = self._next = self._seen = self._base
        self._messages: list[bytes] = []  # from _base on; those below the floor are done
        self._peer: int | None = None
        self._hellos = 0
        self._window = options.window
        self._round_trip = options.confirmation_round_trip()
        self._deadline = -inf  # of the next Hello, and later of a confirmation
        self._state = TABLE.start

    # -- state ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SenderState:
        return self._state

    @property
    def peer(self) -> int | None:
        """The epoch of the receiver, once it is known."""
        return self._peer

    @property
    def max_message(self) -> int:
        """The maximum size of a message."""
        return self._max_message

    @property
    def next_index(self) -> int:
        return self._next

    @property
    def kept(self) -> int:
        """The number of unconfirmed messages."""
        return self._next - self._floor

    @property
    def under_way(self) -> int:
        return self._sent - self._floor

    @property
    def room(self) -> int:
        """The number of messages that it can accept now."""
        return self._queue - self._next + self._floor

    @property
    def deadline(self) -> float | None:
        """When ``advance`` has something to do, in the past for at once; None if nothing is awaited."""
        if self._peer is not None and self._sent < min(self._next, self._floor + self._window):
            return -inf
        return None if self._deadline == inf else self._deadline

    # -- commands -------------------------------------------------------------------------------------------------------

    def push(self, message: bytes, now: float) -> list[PipeEffect]:
        """Accept a message. ``advance`` sends it. Raises CapacityExceeded if there is no room for it."""
        effects: list[PipeEffect] = []
        if not self.accept(message):
            self.require_fitting(message)
            if self._make_room(message, now, effects):
                self.accept(message)
        return effects

    def accept(self, message: bytes) -> bool:
        """Accept a message if it fits and there is room: ``push`` for the usual case, without any other effect."""
        if self._next - self._floor >= self._queue or len(message) > self._max_message:
            return False
        self._messages.append(message)
        self._next += 1
        if self._state is _IDLE:
            self._enter(SenderEvent.ACCEPT)
        return True

    def receive(self, frame: Welcome | Confirm, now: float) -> list[PipeEffect]:
        """Process a frame of the receiver."""
        if frame.sender != self.epoch:
            return []
        if isinstance(frame, Welcome):
            return self._welcome(frame, now)
        if frame.receiver != self._peer:
            return []
        effects: list[PipeEffect] = []
        self._seen = max(self._seen, min(frame.seen, self._sent))
        # The receiver may remember more than a sender that has just restarted: then all that was sent is confirmed.
        expected = min(frame.expected, self._sent)
        if expected > self._floor:
            self._round_trip.measure(frame.echo, now)
            self._confirm(expected, now, effects)
        if frame.missing and self._options.resends:
            self._send_missing(frame, now, effects)
        return effects

    def advance(self, now: float) -> list[PipeEffect]:
        """Let time pass, and send what can be sent."""
        effects: list[PipeEffect] = []
        if self._peer is None:
            if self._deadline <= now:
                self._greet(now, effects)
            return effects
        if self._deadline <= now:
            self._time_out(now, effects)
        end = min(self._next, self._floor + self._window)
        if self._sent < end:
            self._send_new(end, now, effects)
        return effects

    def require_fitting(self, message: bytes) -> None:
        """Raise InvalidArgument if a message is too large for a frame."""
        if len(message) > self._max_message:
            raise InvalidArgument(
                f"a message of {len(message):,} bytes does not fit into a frame of this route "
                f"({self.max_message:,}): split it"
            )

    def _greet(self, now: float, effects: list[PipeEffect]) -> None:
        """A lost greeting delays everything and is cheap: repeat it a few times before backing off."""
        effects.append(Hello(self.epoch, stamp_of(now)))
        self._deadline = now + self._round_trip.timeout
        self._hellos += 1
        if self._hellos >= STEADY_HELLOS:
            self._round_trip.miss()

    # -- the receiver ---------------------------------------------------------------------------------------------------

    def _welcome(self, frame: Welcome, now: float) -> list[PipeEffect]:
        if self._peer is not None and frame.receiver <= self._peer:
            return []  # the same epoch, or an earlier one
        effects: list[PipeEffect] = []
        if self._sent > self._floor and self._options.gap_policy is OnGap.SKIP:
            # It may have been handed over before the restart: sent again, it could be a repeat.
            self._give_up(self._sent, now, "under way when the receiver restarted", effects)
        self._peer = frame.receiver
        self._window = min(self._options.window, frame.room)
        self._sent = self._seen = self._floor
        self._deadline = inf
        self._round_trip.begin_anew()
        self._round_trip.measure(frame.echo, now)
        self._enter(SenderEvent.WELCOME)
        return effects

    def _confirm(self, expected: int, now: float, effects: list[PipeEffect]) -> None:
        effects.append(Finished(self._floor, expected))
        self._move_floor(expected)
        self._wait(now)
        self._enter(SenderEvent.CONFIRM)

    def _send_missing(self, frame: Confirm, now: float, effects: list[PipeEffect]) -> None:
        done = self._floor  # a number that is requested twice is sent once
        for first, last in frame.missing:
            lo, hi = max(first, done), min(last + 1, self._sent)
            if lo < hi:
                self._add_frames(lo, hi, now, effects, frame.stamp)
                done = hi
        self._wait(now)

    # -- time -----------------------------------------------------------------------------------------------------------

    def _time_out(self, now: float, effects: list[PipeEffect]) -> None:
        policy = self._options.gap_policy
        if policy is OnGap.SKIP:
            self._give_up(self._sent, now, "not confirmed in time", effects)
            return
        unseen = max(self._seen, self._floor)
        if policy is OnGap.REQUEST and unseen < self._sent:
            self._add_frames(unseen, self._sent, now, effects)
        else:
            effects.append(self._data(self._sent, (), now))
        self._wait_on(now)

    def _wait(self, now: float) -> None:
        """Wait for a confirmation if anything is in flight."""
        self._deadline = now + self._round_trip.timeout if self._sent > self._floor else inf

    def _wait_on(self, now: float) -> None:
        """No answer arrived: wait longer."""
        self._deadline = now + self._round_trip.timeout
        self._round_trip.miss()

    # -- frames ---------------------------------------------------------------------------------------------------------

    def _send_new(self, end: int, now: float, effects: list[PipeEffect]) -> None:
        is_first = self._sent == self._floor
        self._add_frames(self._sent, end, now, effects)
        self._sent = end
        if is_first:
            self._wait(now)
        self._enter(SenderEvent.SEND)

    def _add_frames(self, first: int, end: int, now: float, effects: list[PipeEffect], echo: int = 0) -> None:
        """Send the messages from ``first`` to below ``end`` in as few frames as possible."""
        while first < end:
            messages = self._messages[first - self._base : min(end, first + self._options.frame_messages) - self._base]
            if sum(map(len, messages)) + MESSAGE_OVERHEAD * len(messages) > self._max_bytes:
                messages = _that_fit(messages, self._max_bytes)
            effects.append(self._data(first, tuple(messages), now, echo))
            first += len(messages)

    def _data(self, first: int, messages: tuple[bytes, ...], now: float, echo: int = 0) -> Data:
        assert self._peer is not None
        return Data(self.epoch, self._peer, self._floor, first, messages, stamp_of(now), echo)

    # -- making room ----------------------------------------------------------------------------------------------------

    def _make_room(self, message: bytes, now: float, effects: list[PipeEffect]) -> bool:
        """Whether there is room for a message now."""
        policy = self._options.on_full
        if policy is OnFull.DROP_OLDEST:
            self._give_up(self._floor + 1, now, "no room to keep it", effects, Reason.OVERFLOW)
            return True
        if policy is OnFull.DROP_NEWEST:
            effects.append(self._entry(Reason.OVERFLOW, self._next, self._next, now, "no room to keep it", message))
            return False
        raise CapacityExceeded(
            f"no room for another message: {self.kept:,} are not confirmed; wait until the receiver has taken some, "
            "or raise the queue of the pipe"
        )

    def _give_up(
        self, end: int, now: float, detail: str, effects: list[PipeEffect], reason: Reason = Reason.LOST
    ) -> None:
        effects += [self._entry(reason, self._floor, end - 1, now, detail), Finished(self._floor, end)]
        self._move_floor(end)
        self._round_trip.begin_anew()
        if self._peer is not None:
            self._wait(now)
        self._enter(SenderEvent.GIVE_UP)

    def _move_floor(self, floor: int) -> None:
        self._floor = floor
        self._sent = max(self._sent, floor)
        done = floor - self._base
        if 2 * done >= len(self._messages):
            del self._messages[:done]
            self._base = floor

    # -- helpers --------------------------------------------------------------------------------------------------------

    def _entry(
        self, reason: Reason, first: int, last: int, now: float, detail: str, message: bytes | None = None
    ) -> LedgerEntry[bytes]:
        return LedgerEntry(None, self.epoch, reason, first, last, last - first + 1, now, detail, message)

    def _derived_state(self) -> SenderState:
        if self._peer is None:
            return _GREETING
        if self._next == self._floor:
            return _IDLE
        return SenderState.FULL if self._sent - self._floor >= self._window else SenderState.FLOWING

    def _enter(self, event: SenderEvent) -> None:
        target = self._derived_state()
        TABLE.check(self._state, event, target)
        self._state = target


def _that_fit(messages: list[bytes], max_bytes: int) -> list[bytes]:
    """The first messages whose bytes fit; at least one, because ``push`` accepts none that is larger."""
    size = 0
    for count, message in enumerate(messages):
        size += len(message) + MESSAGE_OVERHEAD
        if size > max_bytes:
            return messages[:count]
    return messages
