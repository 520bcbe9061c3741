"""What lanes show of themselves, and what a drained key leaves behind."""

from __future__ import annotations

from math import inf

import pytest

from seriatim.core.lanes.lane import TABLE, Lane, LaneEvent, LaneState, LooseLane
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import (
    Counts,
    DeadLettered,
    Delivery,
    LaneView,
    Redriven,
    ReleaseAfter,
    RetryMode,
    Settled,
)
from seriatim.errors import (
    IllegalTransition,
)
from tests.core.lanes.given import RECEIPT, lanes_of, offsets, retrying, take, view_of, weight

# -- looking -----------------------------------------------------------------------------------------------------------


def test_counts_say_how_many_messages_are_what() -> None:
    lanes = lanes_of("ready", "leased", "ready", "leased", None, None)
    lanes.push("delayed", 7, now=0, delay=5)
    lanes.push("delayed", 8, now=0)
    assert lanes.counts() == Counts(total=8, ready=4, leased=0, delayed=1, blocked=3)
    lanes.pause("ready")
    take(lanes, limit=2)
    assert lanes.counts() == Counts(total=8, ready=1, leased=2, delayed=1, blocked=4)
    assert len(lanes) == 8


def test_a_view_shows_a_key_as_it_stands() -> None:
    lanes = lanes_of("a", "a", "b", delivery=retrying(min_backoff=5))
    assert view_of(lanes, "a") == LaneView("a", "ready", 2, 0, 1, 0, None, None)
    (lease,) = take(lanes, limit=1)
    assert view_of(lanes, "a") == LaneView("a", "leased", 2, 1, 1, 1, None, None)
    lanes.give_back(lease.token, 0, error="boom")
    assert view_of(lanes, "a") == LaneView("a", "delayed", 2, 0, 1, 1, 5, "boom")
    lanes.advance(5)
    assert view_of(lanes, "a") == LaneView("a", "ready", 2, 0, 1, 1, None, "boom")
    assert [view.key for view in lanes.views()] == ["a", "b"]
    assert lanes.view("c") is None


def test_a_provisionally_acked_message_still_counts_as_in_flight() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(window=2))
    one, two = take(lanes)
    lanes.settle(two.token)
    assert view_of(lanes, "a") == LaneView("a", "leased", 2, 2, 1, 1, None, None)
    assert lanes.settle(one.token) == [("a", 1), ("a", 2)]


# -- what is left behind -----------------------------------------------------------------------------------------------


def assert_nothing_left(lanes: Lanes, delivery: Delivery) -> None:
    assert (lanes.keys(), lanes.leases(), lanes.next_deadline()) == ([], [], None)
    assert lanes.is_quiet()
    assert not lanes.has_troubles
    assert lanes.counts() == Counts(0, 0, 0, 0, 0)
    take(lanes)
    assert weight(lanes) < weight(lanes_of(delivery=delivery)) + 100


@pytest.mark.parametrize("release", ReleaseAfter)
@pytest.mark.parametrize("mode", RetryMode)
def test_a_drained_key_costs_nothing(release: ReleaseAfter, mode: RetryMode) -> None:
    delivery = retrying(release=release, mode=mode, min_backoff=1, max_attempts=3)
    lanes = lanes_of("a", "a", None, None, "a", "a", delivery=delivery)
    lanes.push("a", 7, now=0, delay=3)
    lanes.dead_letter("a")
    lanes.remove("a", 2)
    unconfirmed = [1, 2]
    for now in range(40):
        if release is ReleaseAfter.DURABLE:
            lanes.confirm_all(unconfirmed)
        unconfirmed = []
        for lease in take(lanes, now=now):
            if lease.attempt == 1:
                lanes.give_back(lease.token, now, error="boom")
            else:
                unconfirmed += [settled.offset for settled in lanes.settle(lease.token)]
        lanes.advance(now + 1)
    assert_nothing_left(lanes, delivery)


@pytest.mark.parametrize("others", [0, 5])
def test_keys_that_come_and_go_leave_nothing_in_the_queue_for_a_turn(others: int) -> None:
    lanes = lanes_of(*(f"other {n}" for n in range(others)))
    at_first = weight(lanes)
    for cycle in range(1, 1000):
        lanes.push("a", 100 + cycle, now=0)
        lanes.remove("a", 100 + cycle)
        assert weight(lanes) < at_first + 200 * (others + 2)
    assert offsets(take(lanes)) == list(range(1, others + 1))


@pytest.mark.parametrize("ack", [False, True])
def test_a_push_behind_a_full_window_looks_at_nothing(ack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_of("a", delivery=Delivery())
    (lease,) = take(lanes)
    if ack:
        lanes.settle(lease.token)
    monkeypatch.delattr(Lanes, "_refresh")
    lanes.push("a", 2, now=0)
    assert lanes.offsets("a", 9)[-1] == 2


def test_a_lane_waits_for_its_turn_once() -> None:
    lanes = lanes_of("a", "b")
    at_first = weight(lanes)
    for _ in range(5):
        lanes.pause("a", 0.5)
        lanes.resume("a", 0.5)
    assert weight(lanes) == at_first
    assert offsets(take(lanes)) == [1, 2]


def test_lanes_that_are_not_empty_keep_their_place_when_the_ring_is_cleared() -> None:
    lanes = lanes_of("a", "b", "c")
    lanes.pause("a")
    lanes.remove("b", 2)
    lanes.remove("c", 3)
    lanes.push("d", 4, now=0)
    lanes.resume("a")
    assert offsets(take(lanes)) == [1, 4]


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_a_lane_starts_empty() -> None:
    lane = Lane("a", 2)
    assert (lane.state, TABLE.start) == (LaneState.EMPTY, LaneState.EMPTY)
    assert (lane.key, lane.window, lane.depth, lane.last_settled) == ("a", 2, 0, -1)
    assert not lane.paused
    assert LooseLane().window == inf


def test_a_lane_refuses_a_transition_that_its_table_does_not_name() -> None:
    lanes = lanes_of("a")
    with pytest.raises(IllegalTransition) as refused:
        lanes._refresh(lanes._lanes["a"], LaneEvent.RESUME, None)
    assert "lane: 'resume' is not possible while 'ready'" in str(refused.value)
    with pytest.raises(IllegalTransition) as refused:
        lanes._refresh(Lane("b", 1), LaneEvent.REDRIVE, None)
    assert str(refused.value) == "lane: 'redrive' does not lead from 'empty' to 'empty'"


def test_offset_zero_is_a_message_like_any_other() -> None:
    lanes = Lanes(RECEIPT)
    lanes.push("a", 0, now=0)
    assert lanes.dead_letter("a") == [DeadLettered("a", 0, 0, None)]
    assert lanes.redrive("a", 0) == Redriven("a", 0)
    assert lanes.settle(take(lanes)[0].token) == [Settled("a", 0)]


def test_lanes_are_quiet_when_nothing_is_in_flight_or_waits_to_be_confirmed():
    lanes = Lanes()
    assert lanes.is_quiet()
    lanes.push("k", 0, 0)
    assert lanes.is_quiet()
    (lease,) = lanes.take(0, 10)
    assert not lanes.is_quiet()
    lanes.settle(lease.token)
    assert not lanes.is_quiet()
    lanes.confirm(0)
    assert lanes.is_quiet()


def test_the_next_token_is_known():
    lanes = Lanes(first_token=7)
    lanes.push("k", 0, 0)
    assert lanes.next_token == 7
    (lease,) = lanes.take(0, 10)
    assert (lease.token, lanes.next_token) == (7, 8)
