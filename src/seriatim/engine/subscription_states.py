"""The life of a subscription: when it delivers messages, and when published messages have to wait.

Rules
    - It is *loading* until its lanes have the stored state: at first, and whenever the store is reopened.
    - While it is *active*, messages go into its lanes and out to its consumers.
    - While it is *moving*, its lanes are being replaced by others, for other options or another position. Leases end, nothing
      is delivered, and published messages are held back for the new lanes.
    - If the store fails during a move, it is *stalled*: it continues when the lanes are loaded again.
    - *Closed* is final. Operations that began before and end now change nothing.
"""

from __future__ import annotations

from enum import StrEnum

from seriatim.core.transition_table import TransitionTable


class LifeState(StrEnum):
    LOADING = "loading"
    ACTIVE = "active"
    MOVING = "moving"
    STALLED = "stalled"
    CLOSED = "closed"


class LifeEvent(StrEnum):
    LOAD = "load"  # the lanes hold what the store holds
    MOVE = "move"  # the lanes are to be replaced
    MOVED = "moved"  # they are, or it failed and those that there were go on
    SUSPEND = "suspend"  # the store has to be opened again
    CLOSE = "close"


_S, _E = LifeState, LifeEvent


def _to(state: LifeState) -> frozenset[LifeState]:
    return frozenset({state})


TABLE = TransitionTable(
    "subscription",
    _S.LOADING,
    {
        _S.LOADING: {
            _E.LOAD: _to(_S.ACTIVE),
            _E.MOVE: _to(_S.STALLED),
            _E.SUSPEND: _to(_S.LOADING),
            _E.CLOSE: _to(_S.CLOSED),
        },
        _S.ACTIVE: {
            _E.MOVE: _to(_S.MOVING),
            _E.SUSPEND: _to(_S.LOADING),
            _E.CLOSE: _to(_S.CLOSED),
        },
        _S.MOVING: {
            _E.MOVED: _to(_S.ACTIVE),
            _E.SUSPEND: _to(_S.STALLED),
            _E.CLOSE: _to(_S.CLOSED),
        },
        _S.STALLED: {
            _E.LOAD: _to(_S.MOVING),
            _E.MOVED: _to(_S.LOADING),
            _E.SUSPEND: _to(_S.STALLED),
            _E.CLOSE: _to(_S.CLOSED),
        },
        _S.CLOSED: dict.fromkeys((_E.LOAD, _E.MOVED, _E.SUSPEND, _E.CLOSE), _to(_S.CLOSED)),
    },
)


class SubscriptionLife:
    """The current state of a subscription's life."""

    def __init__(self) -> None:
        self.state = TABLE.start
        self.ended: BaseException | None = None  # why nothing can be taken or said any more

    def step(self, event: LifeEvent) -> LifeState:
        """Process an event. Raises IllegalTransition, and changes nothing, if it is not allowed now."""
        (self.state,) = TABLE.targets(self.state, event)
        return self.state

    def close(self, why: BaseException) -> None:
        """Close it. The first reason counts."""
        self.step(LifeEvent.CLOSE)
        self.ended = self.ended or why

    def require_open(self) -> None:
        if self.ended is not None:
            raise self.ended
