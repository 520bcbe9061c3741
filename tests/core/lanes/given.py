"""Lanes to begin a test with. ``a1 a2 a3`` are messages 1, 2, 3 of key "a"."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import (
    Delivery,
    LaneView,
    Lease,
    ReleaseAfter,
    RetryMode,
    RetryPolicy,
)
from seriatim.errors import StaleLease
from tests.core.lanes.crashes import saved

RECEIPT = Delivery(release=ReleaseAfter.RECEIPT)


def lanes_of(*keys: str | None, delivery: Delivery = RECEIPT) -> Lanes:
    """Lanes at time 0 with one message for each key named: the first has offset 1."""
    lanes = Lanes(delivery)
    lanes.advance(0)
    for offset, key in enumerate(keys, start=1):
        lanes.push(key, offset, now=0)
    return lanes


def retrying(
    window: int = 1, release: ReleaseAfter = ReleaseAfter.RECEIPT, mode: RetryMode = RetryMode.BLOCK, **policy: object
) -> Delivery:
    policy = {"min_backoff": 0, "max_backoff": 600, **policy}
    return Delivery(RetryPolicy(mode=mode, **policy), window, release)  # type: ignore[arg-type]


def take(lanes: Lanes, limit: int = 100, now: float = 0) -> list[Lease]:
    return lanes.take(now, 10, limit)


def offsets(leases: list[Lease]) -> list[int]:
    return [lease.offset for lease in leases]


def view_of(lanes: Lanes, key: str | None) -> LaneView:
    view = lanes.view(key)
    assert view is not None
    return view


def state_of(lanes: Lanes, key: str | None) -> str:
    return view_of(lanes, key).state


def fails(lanes: Lanes, times: int, error: str = "boom") -> list[object]:
    """Take the one message that can be taken and give it back, several times; what the last time said."""
    effects: list[object] = []
    for _ in range(times):
        (lease,) = take(lanes)
        effects = [*lanes.give_back(lease.token, 0, error=error)]
    return effects


def assert_stale(lanes: Lanes, token: int) -> None:
    """Whatever is said with the token is refused and changes nothing."""
    before = (saved(lanes), lanes.counts(), lanes.next_deadline())
    uses: list[Callable[[], object]] = [
        lambda: lanes.settle(token),
        lambda: lanes.give_back(token, 0, delay=1, error="late"),
        lambda: lanes.extend(token, 0, 60),
    ]
    for use in uses:
        with pytest.raises(StaleLease) as refused:
            use()
        assert str(refused.value) == (
            f"lease {token} is not held any more: it was settled or returned, it expired, or it was fenced; "
            "the message is delivered again if it is not settled"
        )
    assert (saved(lanes), lanes.counts(), lanes.next_deadline()) == before


def returnable(lanes: Lanes, *offsets: int) -> list[int]:
    """Those of key "a" that could go back to their places as dead letters."""
    return [offset for offset in offsets if lanes.is_returnable("a", offset)]


def weight(lanes: Lanes) -> int:
    """About how much lanes hold on to, in bytes."""
    return len(pickle.dumps(lanes))
