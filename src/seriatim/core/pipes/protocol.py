"""Pipes: a sender and a receiver around a route, which together repair what the route breaks.

Rules
-----
1. The sender gives each message an **index**: one higher than the one before. An index is never used for two messages
   of a pipe, even after a restart.
2. The receiver hands messages over in index order, and **confirms** what its output has taken, never before.
3. *Continuity*: unconfirmed messages are sent again. The receiver requests the numbers that it misses below one that it
   has; the sender, when nothing is confirmed for a while, sends again what the receiver may never have seen. A
   confirmation names an index, so **any copy of a message confirms it**: a round trip longer than the timeout costs
   copies, but makes progress. It also echoes the time stamp of the transmission that it answers, from which the sender
   measures the round trip.
4. *Strictness*: a repeat of an index that was handed over is dropped, and confirmed again: the sender seems not to
   know.
5. At most ``window`` messages are in flight. Because only what the output has taken is confirmed, a slow output fills
   the window, and a full window keeps the sender from accepting more: back-pressure needs no rule of its own.
6. Each end has an **epoch** that is higher after every restart. Every frame names both. A frame with an older epoch of
   either end has no effect.
7. Every data frame names the **floor**: the lowest index that can still come. Missing ones below it are lost.

Theory of operation
-------------------
Traditionally, there are two kinds of pipe. In the *sequential* one (receive queue) each message waits for the
confirmation of the previous one. In the *indexed* one (send queue) many are in flight and the receiver sorts them. The
first is the second with a window of 1: one machine implements both. A third kind, *resend*, hands over whatever arrives
at once, once, in any order: it repairs loss and nothing else, and belongs **inside** an indexed pipe.

A session is a pair of epochs. The sender sends ``Hello(s)`` until it receives ``Welcome(s, r)``, and then puts both
numbers into its data. A restarted receiver answers data for its former session with its new epoch, and the sender sends
all unconfirmed messages again under that epoch. So an old frame that arrives after either end, or both, have restarted
names an outdated epoch, and is dropped.

Indexes never repeat, so nothing else has to be negotiated. A sender that lost its memory begins above all indexes that
it can have used before (``first_index``), and its floor tells the receiver that nothing below will come. A sender that
kept its messages continues with the same indexes, and what the receiver holds stays valid. A receiver that knows its
position drops what it had handed over; any other begins at the floor, the lowest index that was never confirmed.

What a crash leaves of the guarantee follows (``across_crashes``): a sender without a durable outbox loses unconfirmed
messages; a receiver that loses its position hands over unconfirmed messages again. With a window of 1 that is a repeat
in place (1, 2, 2, 3); with a larger one it is a step back (1, 2, 3, 2, 3), which is no order at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from seriatim.core.guarantees import Guarantee, Level, Stage, enclose
from seriatim.core.pipes.round_trip import RoundTrip
from seriatim.core.ranges import Range
from seriatim.core.resequencing.options import LedgerEntry, OnGap
from seriatim.core.validation import one_of, require_duration, require_whole
from seriatim.errors import InvalidArgument

INDEX_BITS = 40
"""The bits of an index that count the messages of one run of a sender without memory; its epoch is above them."""


def first_index(epoch: int) -> int:
    """The first index of a sender without memory: above all that an earlier epoch can have used."""
    return epoch << INDEX_BITS


# --- options --------------------------------------------------------------------------------------------------------


class PipeKind(StrEnum):
    """How a pipe keeps messages in order, and how many may be in flight."""

    SEQUENTIAL = "sequential"  # one message in flight; the next one waits for its confirmation
    INDEXED = "indexed"  # many in flight; the receiver puts them in order
    RESEND = "resend"  # many in flight, handed over in any order: repairs only loss


class OnFull(StrEnum):
    """What happens to a message when the sender's buffer is full."""

    WAIT = "wait"  # it waits: back-pressure
    RAISE = "raise"
    DROP_OLDEST = "drop-oldest"  # the oldest unconfirmed message is given up for it
    DROP_NEWEST = "drop-newest"


@dataclass(frozen=True, slots=True)
class PipeOptions:
    """What a pipe restores, how much may be in flight, and its timeouts. Times are in the unit of ``now``.

    ``level`` is what the pipe enforces regardless of its route. ``queue`` limits what the sender keeps (in flight and
    waiting), ``capacity`` what the receiver keeps (held behind a gap, or not taken by the output yet). ``timeout`` is
    how long to wait for a confirmation until the round trip is known; then the wait follows the round trip, from
    ``min_timeout`` to ``max_timeout``. ``request_after`` is how long a gap may be mere disorder.

    ``on_gap`` says what happens to a missing number: it is requested (``request``; the default, and the only choice,
    when the level allows no loss), given up after ``gap_timeout`` (``skip``, the default otherwise), or waited for
    (``hold``: for a route that loses nothing).
    """

    kind: PipeKind = PipeKind.INDEXED
    level: Level = Level.ABSOLUTE
    window: int = 1024
    queue: int = 2048
    on_full: OnFull = OnFull.WAIT
    capacity: int = 4096
    timeout: float = 0.2
    min_timeout: float = 0.01
    max_timeout: float = 5.0
    request_after: float = 0.02
    on_gap: OnGap | None = None
    gap_timeout: float | None = None
    confirm_every: int | None = None
    confirm_after: float = 0.01
    frame_messages: int = 512

    DEFAULT_GAP_TIMEOUT = 1.0

    def __post_init__(self) -> None:
        for name, kind in (("kind", PipeKind), ("level", Level), ("on_full", OnFull)):
            object.__setattr__(self, name, one_of(name, kind, getattr(self, name)))
        if self.on_gap is not None:
            object.__setattr__(self, "on_gap", one_of("on_gap", OnGap, self.on_gap))
        for name in ("window", "queue", "capacity", "frame_messages"):
            require_whole(name, getattr(self, name), 1)
        for name in ("timeout", "min_timeout", "max_timeout", "request_after", "confirm_after"):
            require_duration(name, getattr(self, name))
        if self.kind is PipeKind.SEQUENTIAL:
            object.__setattr__(self, "window", 1)
        if self.confirm_every is not None:
            require_whole("confirm_every", self.confirm_every, 1)
        self._check_level()
        self._check_times()

    def _check_level(self) -> None:
        if self.level is Level.NONE:
            raise InvalidArgument("a pipe of level 'none' restores nothing: use the bare route")
        if self.on_gap is OnGap.DEAD_LETTER:
            raise InvalidArgument("a pipe has no dead letters: choose on_gap='request', 'skip' or 'hold'")
        if not self.resends:
            if self.on_gap is OnGap.REQUEST:
                raise InvalidArgument(f"{self.level} pipes never resend: ask for level 'continuous' or 'absolute'")
            return
        if self.on_gap not in {None, OnGap.REQUEST} or self.gap_timeout is not None:
            raise InvalidArgument(f"{self.in_words} pipes never give up a number: leave out on_gap and gap_timeout")
        if self.on_full in {OnFull.DROP_OLDEST, OnFull.DROP_NEWEST}:
            raise InvalidArgument(f"{self.in_words} pipes drop nothing: choose on_full='wait' or 'raise'")

    def _check_times(self) -> None:
        if not 0 < self.timeout <= self.max_timeout:
            raise InvalidArgument(
                f"timeout must be above 0 and up to max_timeout ({self.max_timeout}), not {self.timeout}"
            )
        if self.gap_timeout is not None:
            require_duration("gap_timeout", self.gap_timeout)
            if self.on_gap is OnGap.HOLD:
                raise InvalidArgument("on_gap='hold' waits for ever: leave out gap_timeout, or choose 'skip'")

    @property
    def resends(self) -> bool:
        """Whether unconfirmed messages are sent again."""
        return self.kind is PipeKind.RESEND or bool(self.level.guarantee & Guarantee.NO_LOSS)

    @property
    def is_strict(self) -> bool:
        """Whether repeats of a message that was handed over are dropped."""
        return self.kind is PipeKind.RESEND or bool(self.level.guarantee & Guarantee.NO_DUPLICATE)

    @property
    def gap_policy(self) -> OnGap:
        """What happens to a missing number: ``on_gap``, or its default."""
        if self.resends:
            return OnGap.REQUEST
        return self.on_gap or OnGap.SKIP

    @property
    def patience(self) -> float | None:
        """The time after which a missing number is given up; None for never."""
        if self.gap_policy is not OnGap.SKIP:
            return None
        return self.DEFAULT_GAP_TIMEOUT if self.gap_timeout is None else self.gap_timeout

    @property
    def confirmation_interval(self) -> int:
        """The number of messages after which a confirmation is sent: ``confirm_every``, or a quarter of the window."""
        return self.confirm_every or max(1, self.window // 4)

    @property
    def in_words(self) -> str:
        """The guarantee and the kind, as text."""
        return str(self.kind) if self.kind is PipeKind.RESEND else f"{self.level} {self.kind}"

    def confirmation_round_trip(self) -> RoundTrip:
        """How long a sender waits for a confirmation. If it then gives up, it waits for at least ``timeout``."""
        lowest = self.timeout if self.gap_policy is OnGap.SKIP else min(self.min_timeout, self.max_timeout)
        held_back = 0.0 if self.confirmation_interval == 1 else self.confirm_after
        return RoundTrip(self.timeout, lowest, self.max_timeout, held_back)

    def request_round_trip(self) -> RoundTrip:
        """How long a receiver waits for requested numbers."""
        lowest = min(self.min_timeout, self.max_timeout)
        return RoundTrip(max(self.request_after, lowest), lowest, self.max_timeout)


# --- composition of guarantees --------------------------------------------------------------------------------------


def pipe_stage(options: PipeOptions, route: Stage) -> Stage:
    """The pipe around ``route`` as one stage, while both of its ends run."""
    restores, gives_up = options.level.guarantee, Guarantee.NONE
    if options.kind is PipeKind.RESEND:
        restores, gives_up = Guarantee.NO_LOSS | Guarantee.NO_DUPLICATE, Guarantee.NO_INVERSION
    elif options.resends and not options.is_strict:
        gives_up = Guarantee.NO_DUPLICATE
    elif options.gap_policy is OnGap.SKIP or options.on_full in {OnFull.DROP_OLDEST, OnFull.DROP_NEWEST}:
        gives_up = Guarantee.NO_LOSS
    return enclose(route, f"{options.in_words} pipe over {route.name}", restores, _why(options), gives_up=gives_up)


def _why(options: PipeOptions) -> str:
    if options.kind is PipeKind.RESEND:
        return "sends again what is not confirmed, and hands over at once what arrives"
    parts = ["one message under way" if options.window == 1 else "sorts by index"]
    if options.resends:
        parts.append("sends again what is not confirmed")
    elif options.gap_policy is OnGap.SKIP:
        parts.append("gives up what is late")
    else:
        parts.append("waits for what is missing")
    parts.append("drops repeats" if options.is_strict else "a repeat stays in place")
    return ", ".join(parts)


def across_crashes(alive: Stage, options: PipeOptions, *, durable_sender: bool, durable_receiver: bool) -> Stage:
    """The guarantee of a pipe's stage if its ends may crash and restart. ``durable_sender``: messages wait in a durable
    outbox. ``durable_receiver``: output and position are written in one transaction."""
    lost, reasons = Guarantee.NONE, []
    if not durable_sender:
        lost |= Guarantee.NO_LOSS
        reasons.append("what is not confirmed dies with its sender (no outbox)")
    if not durable_receiver and not durable_sender and options.gap_policy is OnGap.SKIP:
        reasons.append("what is not confirmed when its receiver restarts is given up")
    elif not durable_receiver:
        lost |= Guarantee.NO_DUPLICATE
        if options.window > 1:
            lost |= Guarantee.NO_INVERSION
        reasons.append("a receiver that restarts hands over again what is not confirmed (no topic as output)")
    why = "; ".join(reasons) or "outbox, and output and position in one transaction"
    return Stage(alive.name, alive.passes & ~lost, reliability=alive.reliability, why=why)


# --- frames ---------------------------------------------------------------------------------------------------------
# ``stamp`` is the time at which a frame that wants an answer was created, ``echo`` the stamp of the answered frame.
# Both are in the clock of the end that gets the answer, and 0 if there is none.


class Hello(NamedTuple):
    """From the sender: announces its epoch, and asks for the receiver's."""

    sender: int
    stamp: int = 0


class Welcome(NamedTuple):
    """From the receiver: the session, and how many messages it has room for."""

    sender: int
    receiver: int
    room: int
    echo: int = 0


class Data(NamedTuple):
    """From the sender: messages with indexes from ``first`` on. Without messages, it asks for a confirmation."""

    sender: int
    receiver: int
    floor: int
    first: int
    messages: tuple[bytes, ...]
    stamp: int = 0
    echo: int = 0


class Confirm(NamedTuple):
    """From the receiver: everything below ``expected`` is taken, everything below ``seen`` has arrived or is missing.

    ``missing`` (inclusive ranges) requests these again.
    """

    sender: int
    receiver: int
    expected: int
    seen: int
    missing: tuple[Range, ...] = ()
    stamp: int = 0
    echo: int = 0


Frame: TypeAlias = Hello | Welcome | Data | Confirm
FRAMES = (Hello, Welcome, Data, Confirm)

# --- other effects --------------------------------------------------------------------------------------------------


class Finished(NamedTuple):
    """The messages from ``first`` to below ``end`` were confirmed, or given up, and need not be kept."""

    first: int
    end: int


class DeliveredRun(NamedTuple):
    """Hand these messages over, in order, and then ``settle`` them. Their indexes are consecutive from ``first``."""

    first: int
    messages: tuple[bytes, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.messages)


PipeEffect: TypeAlias = Frame | Finished | DeliveredRun | LedgerEntry[bytes]
"""The effects of a machine. Frames are to be sent to the other end."""
