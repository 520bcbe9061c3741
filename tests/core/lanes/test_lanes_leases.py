"""Leases, their tokens and deadlines, and time."""

from __future__ import annotations

from seriatim.core.lanes.lanes import EXPIRED, Lanes
from seriatim.core.lanes.types import (
    Expired,
    Returned,
)
from tests.core.lanes.crashes import crashed
from tests.core.lanes.given import assert_stale, lanes_of, offsets, take

# -- leases and fencing ------------------------------------------------------------------------------------------------


def test_every_use_of_a_lease_that_ended_is_refused_and_changes_nothing() -> None:
    lanes = lanes_of("settled", "returned", "expired", "unknown")
    settled, returned, expiring = take(lanes, limit=3)
    lanes.settle(settled.token)
    lanes.give_back(returned.token, 0, delay=100)
    lanes.advance(10)
    for token in (settled.token, returned.token, expiring.token, 999):
        assert_stale(lanes, token)


def test_a_restart_makes_every_lease_stale_and_never_gives_a_token_twice() -> None:
    lanes = lanes_of("a", "b")
    before = take(lanes)
    lanes = crashed(lanes)
    for lease in before:
        assert_stale(lanes, lease.token)
    assert [lease.token for lease in take(lanes)] == [3, 4]


def test_tokens_start_where_they_are_told() -> None:
    lanes = Lanes(first_token=70)
    lanes.push("a", 1, now=0)
    assert take(lanes)[0].token == 70


def test_an_extended_lease_expires_later() -> None:
    lanes = lanes_of("a")
    (lease,) = take(lanes)
    assert lanes.extend(lease.token, 4, 10) == 14
    assert lanes.next_deadline() == 14
    assert lanes.advance(13) == []
    assert lanes.advance(14) == [Expired(lease), Returned("a", 1, 1, 14, EXPIRED)]


def test_a_lease_can_be_cut_short() -> None:
    lanes = lanes_of("a")
    (lease,) = take(lanes)
    lanes.extend(lease.token, 0, 3)
    assert lanes.advance(3) == [Expired(lease), Returned("a", 1, 1, 3, EXPIRED)]


# -- time --------------------------------------------------------------------------------------------------------------


def test_time_never_runs_backwards() -> None:
    lanes = lanes_of("a", "b", "c")
    lanes.advance(100)
    lanes.advance(50)
    lanes.push("d", 4, now=0, delay=5)
    assert lanes.next_deadline() == 105
    one, two, three = lanes.take(0, 10)[0], *lanes.take(120, 10, 2)
    assert (one.deadline, two.deadline, three.deadline) == (110, 130, 130)
    assert lanes.extend(one.token, 60, 7) == 107
    assert lanes.give_back(two.token, 60, delay=1) == [Returned("b", 2, 1, 101, None)]
    assert lanes.advance(107) == [Expired(one), Returned("a", 1, 1, 107, EXPIRED)]


def test_only_advance_lets_anything_fall_due() -> None:
    lanes = lanes_of("a", "b")
    lanes.give_back(take(lanes, limit=1)[0].token, 0, delay=5)
    assert offsets(take(lanes, now=50)) == [2]
    assert take(lanes, now=50) == []
    lanes.advance(50)
    assert offsets(take(lanes, now=50)) == [1]


def test_the_next_deadline_is_the_earliest_of_leases_and_delays() -> None:
    lanes = lanes_of("a")
    assert lanes.next_deadline() is None
    take(lanes)
    assert lanes.next_deadline() == 10
    lanes.push("b", 2, now=0, delay=4)
    assert lanes.next_deadline() == 4
    lanes.advance(4)
    assert lanes.next_deadline() == 10
