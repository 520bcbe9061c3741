"""The receiving end of a pipe. The rules of pipes are in ``protocol.py``.

Rules
-----
1. ``receive`` returns what to hand over; ``settle`` is called when the output has taken it. Only that is confirmed:
   after ``confirmation_interval`` messages, after ``confirm_after``, and at once when the sender seems not to know (it
   sent something again, or asks).
2. Missing numbers are requested, first after ``request_after``, and again whenever the round trip (``round_trip.py``)
   passed without an answer.
3. Data for an earlier epoch of this receiver is answered with the current one, and otherwise ignored.
4. A frame with a lower epoch of the sender than the highest seen has no effect.
5. A receiver that knows its place (``position``) begins there; any other begins at the floor of its first data.

Theory of operation
-------------------
An intake (``handover_order.py``) interprets the numbers: the resequencer, or a plain set. This machine decides which
sender it accepts, and when to confirm. There are three reasons to send a confirmation, each with a deadline; one frame
serves all that are due.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf

from seriatim.core.pipes.handover_order import InAnyOrder, InOrder, Intake
from seriatim.core.pipes.protocol import Confirm, Data, Hello, PipeEffect, PipeKind, PipeOptions, Welcome
from seriatim.core.pipes.round_trip import stamp_of
from seriatim.core.ranges import Range
from seriatim.core.resequencing.options import LedgerEntry, Reason
from seriatim.core.transition_table import TransitionTable

MAX_RANGES = 64
"""The maximum of missing ranges in one request: a request must fit into a frame."""


class ReceiverState(StrEnum):
    NEW = "new"  # no data has arrived yet
    FLOWING = "flowing"  # nothing is missing
    MISSING = "missing"  # numbers are missing below one that has arrived


class ReceiverEvent(StrEnum):
    SESSION = "session"  # a sender with a higher epoch
    START = "start"  # the first data arrives
    TAKE = "take"  # data arrives
    GIVE_UP = "give up"  # missing numbers are given up


_S, _E = ReceiverState, ReceiverEvent
_STARTED = frozenset({_S.FLOWING, _S.MISSING})

TABLE = TransitionTable(
    "pipe receiver",
    ReceiverState.NEW,
    {
        _S.NEW: {_E.SESSION: frozenset({_S.NEW}), _E.START: frozenset({_S.FLOWING})},
        _S.FLOWING: {_E.SESSION: frozenset({_S.FLOWING}), _E.TAKE: _STARTED},
        _S.MISSING: {
            _E.SESSION: frozenset({_S.MISSING}),
            _E.TAKE: _STARTED,
            _E.GIVE_UP: _STARTED,
        },
    },
)


class PipeReceiver:
    """Hands messages over, and confirms them when they are taken. See the module's rules."""

    __slots__ = (
        "_confirm_at",
        "_confirmed",
        "_echo",
        "_intake",
        "_max_ranges",
        "_now",
        "_options",
        "_request_at",
        "_round_trip",
        "_sender",
        "_state",
        "_wanted",
        "epoch",
    )

    def __init__(
        self, options: PipeOptions, epoch: int, *, position: int | None = None, max_ranges: int = MAX_RANGES
    ) -> None:
        """``position`` is the index of the first message that was not handed over, for a receiver that remembers it;
        ``max_ranges`` is how many missing ranges fit into one frame."""
        self._options = options
        self.epoch = epoch
        self._sender: int | None = None
        self._intake: Intake | None = None
        self._max_ranges = max_ranges
        self._now = -inf
        self._confirm_at = self._request_at = inf
        self._round_trip = options.request_round_trip()
        self._wanted = self._confirmed = 0
        self._echo = 0  # the stamp of the data that came last
        self._state = TABLE.start
        if position is not None:
            self._start(position)

    # -- state ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ReceiverState:
        return self._state

    @property
    def sender(self) -> int | None:
        """The highest epoch of a sender seen so far."""
        return self._sender

    @property
    def position(self) -> int | None:
        """The output has taken everything below."""
        return None if self._intake is None else self._intake.taken

    @property
    def missing(self) -> tuple[Range, ...]:
        return self._intake.missing() if self._intake is not None else ()

    @property
    def deadline(self) -> float | None:
        """When ``advance`` has something to do; None: never."""
        gap = self._intake.deadline if self._intake is not None else None
        soonest = min(self._confirm_at, self._request_at, inf if gap is None else gap)
        return None if soonest == inf else soonest

    # -- commands -------------------------------------------------------------------------------------------------------

    def receive(self, frame: Hello | Data, now: float) -> list[PipeEffect]:
        """Process a frame of the sender."""
        self._now = now = max(now, self._now)
        if self._sender is None or frame.sender > self._sender:
            self._sender = frame.sender
            self._enter(ReceiverEvent.SESSION)
        elif frame.sender < self._sender:
            return []
        if isinstance(frame, Hello) or frame.receiver != self.epoch:
            return [Welcome(frame.sender, self.epoch, self._options.capacity, frame.stamp)]
        return self._take(frame, now)

    def settle(self, first: int, end: int) -> None:
        """The output has taken the messages from ``first`` to below ``end``. ``advance`` sends the confirmation."""
        assert self._intake is not None
        self._intake.settle(first, end)
        if self._intake.taken - self._confirmed >= self._options.confirmation_interval:
            self._confirm_at = -inf
        else:
            self._confirm_at = min(self._confirm_at, self._now + self._options.confirm_after)

    def advance(self, now: float) -> list[PipeEffect]:
        """Let time pass: give up overdue numbers, and send what is due."""
        self._now = now = max(now, self._now)
        if self._intake is None:
            return []
        effects = self._intake.advance(now)
        if effects:
            self._confirm_at = now  # the sender may drop the numbers given up
            self._enter(ReceiverEvent.GIVE_UP)
            self._watch_gaps(now)
        asks = self._request_at <= now
        if asks or self._confirm_at <= now:
            effects.append(self._confirmation(asks, now))
        return effects

    def farewell(self, now: float) -> list[PipeEffect]:
        """This end is about to stop: send a last confirmation, so that the sender need not wait for what was taken."""
        if self._intake is None or self._sender is None or self._intake.taken == self._confirmed:
            return []
        return [self._confirmation(asks=False, now=now)]

    # -- data -----------------------------------------------------------------------------------------------------------

    def _take(self, frame: Data, now: float) -> list[PipeEffect]:
        if self._intake is None:
            self._start(frame.floor)
        assert self._intake is not None
        self._echo = frame.stamp
        self._round_trip.measure(frame.echo, now)
        effects = self._intake.give_up_below(frame.floor, now)
        repeated = not frame.messages  # the sender asks for a confirmation
        if frame.first + len(frame.messages) - self._intake.taken > self._options.capacity:
            effects += self._too_much(frame, now)
        elif frame.messages:
            delivered, repeated = self._intake.take(frame.first, frame.messages, now)
            effects = effects + delivered if effects else delivered
        if repeated:
            self._confirm_at = now
        self._watch_gaps(now)
        self._enter(ReceiverEvent.TAKE)
        return effects

    def _too_much(self, frame: Data, now: float) -> list[PipeEffect]:
        """There is no room. A sender that resends respects the announced room, or retries."""
        if self._options.resends or not frame.messages:
            return []
        last, detail = frame.first + len(frame.messages) - 1, "the output takes too long"
        return [LedgerEntry(None, frame.sender, Reason.OVERFLOW, frame.first, last, len(frame.messages), now, detail)]

    def _start(self, position: int) -> None:
        intake: Callable[[PipeOptions, int], Intake]
        intake = InAnyOrder if self._options.kind is PipeKind.RESEND else InOrder
        self._intake = intake(self._options, position)
        self._wanted = self._confirmed = position
        self._enter(ReceiverEvent.START)

    # -- confirmations --------------------------------------------------------------------------------------------------

    def _watch_gaps(self, now: float) -> None:
        """Request missing numbers after a while, and soon again when some of them have arrived."""
        assert self._intake is not None
        wanted = self._intake.wanted
        if not self._options.resends or wanted >= self._intake.seen:
            self._request_at, self._wanted = inf, wanted
        elif wanted != self._wanted or self._request_at == inf:
            self._wanted = wanted
            self._round_trip.begin_anew()
            self._request_at = min(self._request_at, now + self._options.request_after)

    def _confirmation(self, asks: bool, now: float) -> Confirm:
        assert self._intake is not None
        assert self._sender is not None
        missing: tuple[Range, ...] = ()
        if asks:
            missing = self._intake.missing()[: self._max_ranges]
            self._request_at = now + self._round_trip.timeout
            self._round_trip.miss()
        self._confirmed, self._confirm_at = self._intake.taken, inf
        return Confirm(
            self._sender,
            self.epoch,
            self._confirmed,
            self._intake.seen,
            missing,
            stamp_of(now) if asks else 0,
            self._echo,
        )

    # -- helpers --------------------------------------------------------------------------------------------------------

    def _derived_state(self) -> ReceiverState:
        if self._intake is None:
            return ReceiverState.NEW
        return ReceiverState.FLOWING if self._intake.wanted >= self._intake.seen else ReceiverState.MISSING

    def _enter(self, event: ReceiverEvent) -> None:
        target = self._derived_state()
        TABLE.check(self._state, event, target)
        self._state = target
