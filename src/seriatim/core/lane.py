"""A lane: one key's queue inside one subscription.

Rules
-----
1. A lane gives its messages out in offset order, at most ``window`` at a time (1 unless told otherwise).
2. A message that failed, expired or is delayed keeps its place and blocks the messages behind it in its lane, and no other
   lane (retry mode ``overtake``: only delays on publish block; a message that waits for its retry is passed).
3. A change that must be written down first (an ack, a removal, a dead letter, a redrive) is *pending* until it is confirmed
   and takes up a place in the window meanwhile. So with a window of 1 the next message goes out only after the ack of the
   one before is durable.
4. With a window of more than 1 an ack is *provisional* until everything before it in the lane is settled. When a message
   fails, everything given out after it is fenced, acked or not, and given out again in order.
5. The lane of the keyless messages is *loose*: each message stands alone, nothing blocks and nothing is fenced.

Theory of operation
-------------------
A lane knows offsets, never payloads: ``waiting`` holds what is not given out, ``flight`` what is, both in offset order, and
``aside`` what was overtaken and comes back when its time has come. What is rare (attempts, delays, errors) lives in one sparse
dict of the map, so an ordinary lane is one small object and eight bytes for each message. The state is derived from these
in one place (``Lanes._resting_state``) whenever something happened, and checked against the table below. With a window of more
than 1 a lane may be ``ready`` and still have messages in flight: ready means that another one may be taken now.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from seriatim.core.offsets import OffsetQueue
from seriatim.core.table import TransitionTable


class LaneState(StrEnum):
    EMPTY = "empty"
    READY = "ready"  # a message can be taken now
    LEASED = "leased"  # messages are in flight, and no further one can be taken
    SETTLING = "settling"  # a change is not durable yet
    DELAYED = "delayed"  # the next message's time has not come
    PAUSED = "paused"


class LaneEvent(StrEnum):
    PUSH = "push"
    TAKE = "take"
    SETTLE = "settle"
    CONFIRM = "confirm"
    RETURN = "return"  # nack or expiry
    DUE = "due"  # a delay is over
    PAUSE = "pause"
    RESUME = "resume"
    DEAD_LETTER = "dead-letter"
    REMOVE = "remove"
    REDRIVE = "redrive"


_S, _E = LaneState, LaneEvent
_AT_REST = frozenset({_S.EMPTY, _S.READY, _S.DELAYED})
_BUSY = frozenset({_S.LEASED, _S.SETTLING})
_ANY = _AT_REST | _BUSY
_PAUSED = frozenset({_S.PAUSED})

TABLE = TransitionTable(
    "lane",
    _S.EMPTY,
    {
        _S.EMPTY: {
            _E.PUSH: frozenset({_S.READY, _S.DELAYED}),
            _E.PAUSE: _PAUSED,
            _E.REDRIVE: frozenset({_S.READY, _S.SETTLING}),
        },
        _S.READY: {
            _E.PUSH: frozenset({_S.READY}),
            _E.TAKE: frozenset({_S.READY, _S.LEASED}),
            _E.SETTLE: frozenset({_S.READY, _S.LEASED}),
            _E.CONFIRM: frozenset({_S.READY}),
            _E.RETURN: _ANY | _PAUSED,
            _E.DUE: frozenset({_S.READY}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: _ANY,
            _E.REMOVE: _ANY,
            _E.REDRIVE: frozenset({_S.READY, _S.LEASED, _S.SETTLING}),
        },
        _S.LEASED: {
            _E.PUSH: frozenset({_S.LEASED, _S.READY}),
            _E.SETTLE: _ANY,
            _E.CONFIRM: frozenset({_S.READY, _S.LEASED}),
            _E.RETURN: _ANY | _PAUSED,
            _E.DUE: frozenset({_S.READY, _S.LEASED}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: _ANY,
            _E.REMOVE: _ANY,
            _E.REDRIVE: frozenset({_S.READY, _S.LEASED}),
        },
        _S.SETTLING: {
            _E.PUSH: frozenset({_S.SETTLING, _S.READY}),
            _E.CONFIRM: _AT_REST | {_S.SETTLING},
            _E.DUE: frozenset({_S.SETTLING, _S.READY}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: frozenset({_S.SETTLING}),
            _E.REMOVE: frozenset({_S.SETTLING}),
            _E.REDRIVE: frozenset({_S.SETTLING}),
        },
        _S.DELAYED: {
            _E.PUSH: frozenset({_S.DELAYED, _S.READY}),
            _E.CONFIRM: frozenset({_S.DELAYED}),
            _E.DUE: frozenset({_S.READY, _S.DELAYED}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: _AT_REST | {_S.SETTLING},
            _E.REMOVE: _AT_REST | {_S.SETTLING},
            _E.REDRIVE: frozenset({_S.READY, _S.SETTLING}),
        },
        _S.PAUSED: {
            **dict.fromkeys((_E.PUSH, _E.SETTLE, _E.CONFIRM, _E.RETURN, _E.DUE), _PAUSED),
            **dict.fromkeys((_E.DEAD_LETTER, _E.REMOVE, _E.REDRIVE), _PAUSED),
            _E.RESUME: _ANY,
        },
    },
)


class Flight:
    """One message given out."""

    __slots__ = ("acked", "attempt", "lane", "offset", "token")

    def __init__(self, lane: Lane, token: int, offset: int, attempt: int) -> None:
        self.lane = lane
        self.token = token
        self.offset = offset
        self.attempt = attempt
        self.acked = False


class Lane:
    """What the map of lanes knows of one key."""

    __slots__ = ("aside", "flight", "in_ring", "key", "last_settled", "paused", "pending", "state", "waiting", "window")

    def __init__(self, key: str | None, window: float) -> None:
        self.key = key
        self.window = window
        self.waiting = OffsetQueue()
        self.flight: list[Flight] = []
        self.aside: set[int] | None = None
        self.pending = 0
        self.last_settled = -1
        self.paused = False
        self.in_ring = False
        self.state = LaneState.EMPTY

    @property
    def in_flight(self) -> int:
        return len(self.flight)

    @property
    def depth(self) -> int:
        """How many messages of the key are not settled, whether in flight or not."""
        return len(self.waiting) + self.in_flight + (len(self.aside) if self.aside else 0)

    def give_out(self, flight: Flight) -> None:
        self.flight.append(flight)

    def ack(self, flight: Flight) -> list[int]:
        """Take an ack; return the offsets that are thereby settled, in order."""
        flight.acked = True
        return self.settle_acked_front()

    def settle_acked_front(self) -> list[int]:
        flight, count = self.flight, 0
        while count < len(flight) and flight[count].acked:
            count += 1
        settled = [done.offset for done in flight[:count]]
        del flight[:count]
        return settled

    def take_back(self, flight: Flight, alone: bool) -> list[Flight]:
        """Take a failed message out of flight, and unless ``alone`` everything given out after it, which is returned."""
        index = self.flight.index(flight)
        after = [] if alone else self.flight[index + 1 :]
        del self.flight[index : index + 1 + len(after)]
        return after

    def take_back_all(self) -> list[Flight]:
        flights, self.flight = self.flight, []
        return flights

    def set_aside(self, offset: int) -> None:
        if self.aside is None:
            self.aside = set()
        self.aside.add(offset)


class LooseLane(Lane):
    """The lane of keyless messages, each of which stands alone."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        super().__init__(None, inf)
        self._count = 0

    @property
    def in_flight(self) -> int:
        return self._count

    def give_out(self, flight: Flight) -> None:  # noqa: ARG002
        self._count += 1

    def ack(self, flight: Flight) -> list[int]:
        self._count -= 1
        return [flight.offset]

    def take_back(self, flight: Flight, alone: bool) -> list[Flight]:  # noqa: ARG002
        self._count -= 1
        return []
