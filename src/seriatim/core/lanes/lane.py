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
in one place (``Lanes._refresh``) whenever something happened, and checked against the table below. With a window of more
than 1 a lane may be ``ready`` and still have messages in flight: ready means that another one may be taken now.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from math import inf

from seriatim.core.delivery import Lease
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
    RETURN = "return"  # nack or expiry, also one that a restart brought to light
    DUE = "due"  # a delay is over
    PAUSE = "pause"
    RESUME = "resume"
    DEAD_LETTER = "dead-letter"
    REMOVE = "remove"
    SKIP = "skip"
    RETRY = "retry"  # an operator lets what waits for its time go now
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
            _E.SETTLE: frozenset({_S.READY}),
            _E.CONFIRM: frozenset({_S.READY}),
            _E.RETURN: _ANY | _PAUSED,
            _E.DUE: frozenset({_S.READY}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: _ANY,
            _E.REMOVE: _ANY,
            _E.SKIP: _ANY,
            _E.RETRY: frozenset({_S.READY}),
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
            _E.REMOVE: frozenset({_S.READY, _S.LEASED}),
            _E.SKIP: _ANY,
            _E.RETRY: frozenset({_S.READY, _S.LEASED}),
            _E.REDRIVE: frozenset({_S.READY, _S.LEASED}),
        },
        _S.SETTLING: {
            _E.PUSH: frozenset({_S.SETTLING, _S.READY}),
            _E.CONFIRM: _AT_REST | {_S.SETTLING},
            _E.RETURN: frozenset({_S.SETTLING, _S.READY, _S.PAUSED}),
            _E.DUE: frozenset({_S.SETTLING, _S.READY}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: frozenset({_S.SETTLING, _S.READY}),
            _E.REMOVE: frozenset({_S.SETTLING, _S.READY}),
            _E.SKIP: frozenset({_S.SETTLING, _S.READY}),
            _E.RETRY: frozenset({_S.SETTLING, _S.READY}),
            _E.REDRIVE: frozenset({_S.SETTLING}),
        },
        _S.DELAYED: {
            _E.PUSH: frozenset({_S.DELAYED, _S.READY}),
            _E.RETURN: _AT_REST | {_S.SETTLING, _S.PAUSED},
            _E.DUE: frozenset({_S.READY, _S.DELAYED}),
            _E.PAUSE: _PAUSED,
            _E.DEAD_LETTER: _AT_REST | {_S.SETTLING},
            _E.REMOVE: _AT_REST | {_S.SETTLING},
            _E.SKIP: _AT_REST | {_S.SETTLING},
            _E.RETRY: frozenset({_S.READY, _S.DELAYED}),
            _E.REDRIVE: frozenset({_S.READY, _S.DELAYED, _S.SETTLING}),
        },
        _S.PAUSED: {
            **dict.fromkeys((_E.PUSH, _E.SETTLE, _E.CONFIRM, _E.RETURN, _E.DUE), _PAUSED),
            **dict.fromkeys((_E.DEAD_LETTER, _E.REMOVE, _E.SKIP, _E.RETRY, _E.REDRIVE), _PAUSED),
            _E.RESUME: _ANY,
        },
    },
)


class Lane:
    """What the map of lanes knows of one key."""

    __slots__ = (
        "acked",
        "aside",
        "flight",
        "holder",
        "in_flight",
        "in_ring",
        "is_held",
        "key",
        "last_settled",
        "paused",
        "pending",
        "state",
        "turn",
        "waiting",
        "window",
    )

    def __init__(self, key: str | None, window: float) -> None:
        self.key = key
        self.window = window
        self.waiting = OffsetQueue()
        self.flight: list[Lease] = []
        self.in_flight = 0
        self.acked: set[int] | None = None  # tokens of flights that are acked provisionally
        self.aside: set[int] | None = None
        self.pending = 0
        self.last_settled = -1
        self.paused = False
        self.holder: Hashable = None  # with a window: the consumer that has the leases that are out
        self.in_ring = False
        self.is_held = False  # whether it waits for its turn with its holder
        self.turn = 0  # of the lanes that wait, the one with the lowest is next
        self.state = LaneState.EMPTY

    @property
    def depth(self) -> int:
        """How many messages of the key are not settled, whether in flight or not."""
        return len(self.waiting) + self.in_flight + (len(self.aside) if self.aside else 0)

    def give_out(self, lease: Lease) -> None:
        self.flight.append(lease)
        self.in_flight += 1

    def ack(self, token: int) -> list[int]:
        """Take an ack; return the offsets that are thereby settled, in order."""
        if self.in_flight == 1:
            self.in_flight = 0
            return [self.flight.pop().offset]
        if self.acked is None:
            self.acked = set()
        self.acked.add(token)
        return self.settle_acked_front()

    def settle_acked_front(self) -> list[int]:
        settled: list[int] = []
        while self.acked and self.flight and self.flight[0].token in self.acked:
            lease = self.flight.pop(0)
            self.acked.discard(lease.token)
            settled.append(lease.offset)
        self.in_flight -= len(settled)
        return settled

    def take_back(self, token: int, alone: bool) -> tuple[Lease, list[Lease]]:
        """Take a failed message out of flight, and unless ``alone`` everything given out after it."""
        index = next(index for index, lease in enumerate(self.flight) if lease.token == token)
        end = index + 1 if alone else len(self.flight)
        failed, *after = self.flight[index:end]
        del self.flight[index:end]
        self.in_flight -= end - index
        return failed, after

    def leases(self) -> list[Lease]:
        """What is in flight."""
        return list(self.flight)

    def take_back_all(self) -> list[Lease]:
        """Take everything out of flight."""
        leases, self.flight = self.flight, []
        self.in_flight -= len(leases)
        return leases

    def unack(self, token: int) -> bool:
        """Revoke a provisional ack; False when there was none."""
        if not self.acked or token not in self.acked:
            return False
        self.acked.discard(token)
        return True

    def set_aside(self, offset: int) -> None:
        if self.aside is None:
            self.aside = set()
        self.aside.add(offset)

    def hold(self, offset: int) -> None:
        """Queue a message that can't go out yet: here at its place, where it blocks the lane."""
        self.waiting.insert(offset)

    def rejoin(self, offset: int) -> None:
        """What was set aside goes to its place."""
        if self.aside and offset in self.aside:
            self.aside.discard(offset)
            self.waiting.insert(offset)

    def unqueue(self, offset: int) -> bool:
        """Take out a message that is not in flight; False when it is not there."""
        if self.waiting.remove(offset):
            return True
        if not self.aside or offset not in self.aside:
            return False
        self.aside.discard(offset)
        return True


class LooseLane(Lane):
    """The lane of keyless messages, each of which stands alone: no order in flight, no limit, nothing to fence."""

    __slots__ = ("_leases",)

    def __init__(self) -> None:
        super().__init__(None, inf)
        self._leases: dict[int, Lease] = {}

    def give_out(self, lease: Lease) -> None:
        self._leases[lease.token] = lease
        self.in_flight += 1

    def ack(self, token: int) -> list[int]:
        return [self.take_back(token, alone=True)[0].offset]

    def take_back(self, token: int, alone: bool) -> tuple[Lease, list[Lease]]:  # noqa: ARG002
        self.in_flight -= 1
        return self._leases.pop(token), []

    def leases(self) -> list[Lease]:
        return list(self._leases.values())

    def hold(self, offset: int) -> None:
        self.set_aside(offset)
