"""Flow control: how much may be published and unconfirmed, and who waits for room.

Rules
-----
1. Each message requests room with a ticket of its own, and holds it until the message is durable: then it is released.
2. There is room while fewer than ``max_outstanding_messages`` messages and ``max_outstanding_bytes`` bytes are
   outstanding, and the message's own bytes fit as well. A message that could never fit is admitted alone, when nothing
   else is outstanding.
3. Tickets are admitted in order of request: a small message never overtakes a large one that waits.
4. A ticket that has waited for ``timeout`` seconds is rejected with an error that names the exceeded limit; with a
   timeout of 0 no ticket waits. Those behind a rejected one are admitted if they fit, before they too time out.

Theory of operation
-------------------
The waiting tickets are an ordered map, from which any of them can be removed without touching the others. Between two
calls the first of them never fits, so only calls that free room, remove a ticket or change the options look for tickets
to admit. All share one timeout, so they time out in order of request, also after the timeout has changed; ``now`` must
not go backwards. A finished ticket is forgotten, and is new again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from seriatim.core.transition_table import TransitionTable
from seriatim.core.validation import require_duration, require_whole
from seriatim.errors import FlowControlTimeout

T = TypeVar("T", bound=Hashable)


class TicketState(StrEnum):
    """The state of a ticket."""

    NEW = "new"
    WAITING = "waiting"
    ADMITTED = "admitted"
    RELEASED = "released"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class TicketEvent(StrEnum):
    """The events of a ticket."""

    REQUEST = "request"
    ADMIT = "admit"
    RELEASE = "release"
    CANCEL = "cancel"
    EXPIRE = "expire"


TICKETS = TransitionTable(
    "flow control ticket",
    TicketState.NEW,
    {
        TicketState.NEW: {TicketEvent.REQUEST: frozenset({TicketState.ADMITTED, TicketState.WAITING})},
        TicketState.WAITING: {
            TicketEvent.ADMIT: frozenset({TicketState.ADMITTED}),
            TicketEvent.CANCEL: frozenset({TicketState.CANCELLED}),
            TicketEvent.EXPIRE: frozenset({TicketState.TIMED_OUT}),
        },
        TicketState.ADMITTED: {TicketEvent.RELEASE: frozenset({TicketState.RELEASED})},
    },
)


@dataclass(frozen=True, slots=True)
class FlowControl:
    """How much may be outstanding (None: any amount), and for how many seconds a message waits (None: for ever)."""

    max_outstanding_messages: int | None = None
    max_outstanding_bytes: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_outstanding_messages is not None:
            require_whole("max_outstanding_messages", self.max_outstanding_messages, 1)
        if self.max_outstanding_bytes is not None:
            require_whole("max_outstanding_bytes", self.max_outstanding_bytes, 1)
        if self.timeout is not None:
            require_duration("timeout", self.timeout)

    @property
    def is_limited(self) -> bool:
        """Whether any ticket might ever have to wait."""
        return self.max_outstanding_messages is not None or self.max_outstanding_bytes is not None


@dataclass(frozen=True, slots=True)
class Expired(Generic[T]):
    """The tickets that timed out, each with its error, and those that were admitted as a consequence."""

    timed_out: tuple[tuple[T, FlowControlTimeout], ...]
    admitted: tuple[T, ...]


class _Wait(NamedTuple):
    size: int
    since: float


class FlowGate(Generic[T]):
    """Admits tickets while there is room. Methods return the tickets that they admit, in that order."""

    def __init__(self, options: FlowControl) -> None:
        self._options = options
        self._admitted: dict[T, int] = {}  # sizes by ticket
        self._queue: OrderedDict[T, _Wait] = OrderedDict()
        self.outstanding_bytes = 0

    @property
    def outstanding_messages(self) -> int:
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def state(self, ticket: T) -> TicketState:
        """The state of a ticket; a finished one is new again."""
        if ticket in self._admitted:
            return TicketState.ADMITTED
        return TicketState.WAITING if ticket in self._queue else TicketState.NEW

    def request(self, ticket: T, size: int, now: float) -> bool:
        """Request room for a message of ``size`` bytes: True if admitted, False if it is queued.

        With a timeout of 0 no ticket waits: FlowControlTimeout is raised instead, and the ticket stays new.
        """
        if size < 0:
            require_whole("size", size, 0)
        if ticket in self._admitted or ticket in self._queue:
            TICKETS.targets(self.state(ticket), TicketEvent.REQUEST)  # which raises
        if not self._queue and self._fits(size):
            self._admitted[ticket] = size
            self.outstanding_bytes += size
            return True
        if self._options.timeout == 0:
            raise self._refusal()
        self._queue[ticket] = _Wait(size, now)
        return False

    def release(self, *tickets: T) -> tuple[T, ...]:
        """Admitted messages are durable, or have failed: their room is given to waiting tickets."""
        for ticket in tickets:
            size = self._admitted.pop(ticket, None)
            if size is None:
                TICKETS.targets(self.state(ticket), TicketEvent.RELEASE)  # which raises
            else:
                self.outstanding_bytes -= size
        return self._admit_waiting() if self._queue else ()

    def cancel(self, ticket: T) -> tuple[T, ...]:
        """A waiting ticket is cancelled."""
        TICKETS.check(self.state(ticket), TicketEvent.CANCEL, TicketState.CANCELLED)
        del self._queue[ticket]
        return self._admit_waiting()

    def expire(self, now: float) -> Expired[T]:
        """Reject the tickets that have waited too long."""
        admitted = [*self._admit_waiting()]
        timed_out: list[tuple[T, FlowControlTimeout]] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            ticket, _ = self._queue.popitem(last=False)
            timed_out.append((ticket, self._refusal()))
            admitted += self._admit_waiting()
        return Expired(tuple(timed_out), tuple(admitted))

    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do next; None: never."""
        timeout = self._options.timeout
        if timeout is None or not self._queue:
            return None
        return next(iter(self._queue.values())).since + timeout

    def set_options(self, options: FlowControl, now: float) -> Expired[T]:
        """Apply new limits at once, also to waiting tickets."""
        self._options = options
        return self.expire(now)

    def _fits(self, size: int) -> bool:
        messages, limit = self._options.max_outstanding_messages, self._options.max_outstanding_bytes
        if messages is not None and len(self._admitted) >= messages:
            return False
        # At the limit even an empty message does not fit, hence at least 1.
        return limit is None or not self._admitted or self.outstanding_bytes + max(size, 1) <= limit

    def _refusal(self) -> FlowControlTimeout:
        """The error that names the limit that blocks the first of the queue, and so all others."""
        most = self._options.max_outstanding_messages
        limit = "messages" if most is not None and len(self._admitted) >= most else "bytes"
        return FlowControlTimeout(f"Flow control: max outstanding {limit} exceeded")

    def _admit_waiting(self) -> tuple[T, ...]:
        """Admit from the front of the queue while the first one fits."""
        admitted: list[T] = []
        while self._queue and self._fits(next(iter(self._queue.values())).size):
            ticket, wait = self._queue.popitem(last=False)
            self._admitted[ticket] = wait.size
            self.outstanding_bytes += wait.size
            admitted.append(ticket)
        return tuple(admitted)
