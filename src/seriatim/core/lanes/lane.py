"""A lane: one key's queue inside one subscription.

Rules
-----
1. A lane delivers its messages in offset order, at most ``window`` at a time (1 by default).
2. A message that failed, expired or is delayed keeps its place and blocks the messages behind it in its lane, and no
   other lane (retry mode ``overtake``: only delays on publish block; a message that waits for its retry is passed).
3. A change that must be stored first (an ack, a removal, a dead letter, a redrive) is *pending* until it is confirmed
   and occupies a place in the window meanwhile. So with a window of 1 the next message is delivered only after the ack
   of the previous one is durable.
4. With a window of more than 1 an ack is *provisional* until everything before it in the lane is settled. When a
   message fails, everything delivered after it is fenced, acked or not, and delivered again in order.
5. The lane of the keyless messages is *loose*: each message is independent, nothing blocks and nothing is fenced.

Theory of operation
-------------------
A lane knows offsets, never payloads: ``waiting`` holds those that are not in flight, ``flight`` those that are, both in
offset order, and ``aside`` those that were overtaken and return when their time has come. Rare data (attempts, delays,
errors) are in one sparse dict of the map, and so are leases (``flight`` has their tokens): an ordinary lane is one
small object and eight bytes per message. The state is derived from these in one place (``Lanes._refresh``) after each
event, and checked against the table below. With a window of more than 1 a lane may be ``ready`` and still have messages
in flight: ready means that another one can be taken now.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from seriatim.core.lanes.offset_queue import OffsetQueue
from seriatim.core.lanes.types import Holder, Lease
from seriatim.core.transition_table import TransitionTable


class LaneState(StrEnum):
    EMPTY = "empty"
    READY = "ready"  # a message can be taken now
    LEASED = "leased"  # messages are in flight, and no other one can be taken
    SETTLING = "settling"  # a change is not durable yet
    DELAYED = "delayed"  # the next message is not due yet
    PAUSED = "paused"


class LaneEvent(StrEnum):
    PUSH = "push"
    TAKE = "take"
    SETTLE = "settle"
    CONFIRM = "confirm"
    RETURN = "return"  # nack or expiry, including one found after a restart
    DUE = "due"  # a delay is over
    PAUSE = "pause"
    RESUME = "resume"
    DEAD_LETTER = "dead-letter"
    REMOVE = "remove"
    SKIP = "skip"
    RETRY = "retry"  # an operator makes delayed messages due now
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
    """The state of one key."""

    __slots__ = (
        "acked",
        "alone_until",
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
        "since",
        "state",
        "turn",
        "waiting",
        "window",
    )

    def __init__(self, key: str | None, window: float) -> None:
        self.key = key
        self.window = window
        self.waiting = OffsetQueue()
        self.flight: tuple[int, ...] = ()  # the tokens of the live leases, in the order of delivery
        self.in_flight = 0
        self.acked: dict[int, Lease] | None = None  # those that ended with a provisional ack
        self.aside: set[int] | None = None
        self.alone_until = -1  # deliver one at a time up to this offset: a batch failed at an unknown message
        self.pending = 0
        self.last_settled = -1
        self.paused = False
        self.holder: Holder = None  # the consumer that has the leases that are out
        self.in_ring = False
        self.is_held = False  # whether it waits for its turn with its holder
        self.since: float | None = -inf  # when it entered its state: -inf with its next message, None if unknown
        self.turn = 0  # of the lanes that wait, the one with the lowest is next
        self.state = LaneState.EMPTY

    @property
    def depth(self) -> int:
        """The number of unsettled messages of the key, including those in flight."""
        return len(self.waiting) + self.in_flight + (len(self.aside) if self.aside else 0)

    def give_out(self, token: int, holder: Holder) -> None:
        self.flight = (*self.flight, token)
        self.in_flight += 1
        self.holder = holder

    def holder_of(self, token: int) -> Holder:  # noqa: ARG002 - all leases of a key are with one consumer
        return self.holder

    def ack(self, lease: Lease) -> list[int]:
        """Apply an ack; return the offsets that it settles, in order."""
        if self.in_flight == 1:
            self.in_flight, self.flight = 0, ()
            return [lease.offset]
        if self.acked is None:
            self.acked = {}
        self.acked[lease.token] = lease
        return self.settle_acked_front()

    def settle_acked_front(self) -> list[int]:
        settled: list[int] = []
        if self.acked:
            for token in self.flight:
                if token not in self.acked:
                    break
                settled.append(self.acked.pop(token).offset)
            self.flight = self.flight[len(settled) :]
            self.in_flight -= len(settled)
        return settled

    def take_back(self, token: int, alone: bool) -> tuple[int, ...]:
        """Take a failed message out of flight, and unless ``alone`` all that were delivered after it. Returns the
        tokens of those."""
        index = self.flight.index(token)
        end = index + 1 if alone else len(self.flight)
        after = self.flight[index + 1 : end]
        self.flight = self.flight[:index] + self.flight[end:]
        self.in_flight -= end - index
        return after

    def take_back_all(self) -> tuple[int, ...]:
        """Take all messages out of flight."""
        tokens, self.flight = self.flight, ()
        if tokens:  # the loose lane keeps its leases elsewhere
            self.in_flight = 0
        return tokens

    def set_aside(self, offset: int) -> None:
        if self.aside is None:
            self.aside = set()
        self.aside.add(offset)

    def hold(self, offset: int) -> None:
        """Queue a message that is not due: here in its place, where it blocks the lane."""
        self.waiting.insert(offset)

    def rejoin(self, offset: int) -> None:
        """Put an overtaken message back in its place."""
        if self.aside and offset in self.aside:
            self.aside.discard(offset)
            self.waiting.insert(offset)

    def unqueue(self, offset: int) -> bool:
        """Remove a message that is not in flight; False if it is not there."""
        if self.waiting.remove(offset):
            return True
        if not self.aside or offset not in self.aside:
            return False
        self.aside.discard(offset)
        return True


class LooseLane(Lane):
    """The lane of keyless messages, which are independent: no order in flight, no limit, no fencing."""

    __slots__ = ("holders",)

    def __init__(self) -> None:
        super().__init__(None, inf)
        self.holders: dict[int, Holder] = {}  # by token

    def give_out(self, token: int, holder: Holder) -> None:
        self.holders[token] = holder
        self.in_flight += 1

    def holder_of(self, token: int) -> Holder:
        return self.holders[token]

    def ack(self, lease: Lease) -> list[int]:
        self.take_back(lease.token, alone=True)
        return [lease.offset]

    def take_back(self, token: int, alone: bool) -> tuple[int, ...]:  # noqa: ARG002
        self.in_flight -= 1
        del self.holders[token]
        return ()

    def hold(self, offset: int) -> None:
        self.set_aside(offset)
