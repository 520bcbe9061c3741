"""The life of a subscription: when it gives messages out, and when what is published has to wait.

Rules
    - It is *loading* until its lanes hold what the store holds: at first, and whenever the store has to be opened again.
    - While it is *active*, messages go into its lanes and out to its consumers.
    - While it is *moving*, its lanes are being replaced: by others that are made for other options, or that stand somewhere
      else. Leases come to their end, nothing more is given out, and what is published is held back for the new lanes.
    - A store that fails during a move makes it *stalled*: it goes on when the lanes are loaded again.
    - *Closed* is for good. What began before and ends now changes nothing any more.
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
    """Where a subscription is in its life."""

    def __init__(self) -> None:
        self.state = TABLE.start
        self.ended: BaseException | None = None  # why nothing can be taken or said any more

    def step(self, event: LifeEvent) -> LifeState:
        """Something happened. Raises IllegalTransition, and changes nothing, when it can't happen now."""
        (self.state,) = TABLE.targets(self.state, event)
        return self.state

    def close(self, why: BaseException) -> None:
        """End it, for the first reason that is given."""
        self.step(LifeEvent.CLOSE)
        self.ended = self.ended or why

    def require_open(self) -> None:
        if self.ended is not None:
            raise self.ended
