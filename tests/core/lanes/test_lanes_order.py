"""Order within a key, and keys that do not wait for each other."""

from __future__ import annotations

from math import inf, nan

import pytest

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.lanes import EXPIRED
from seriatim.core.lanes.types import (
    Counts,
    DeadLettered,
    Delivery,
    Expired,
    Fenced,
    Lease,
    ReleaseAfter,
    RetryMode,
    RetryPolicy,
    Returned,
    Settled,
)
from seriatim.errors import (
    IllegalTransition,
    InvalidArgument,
)
from tests.core.lanes.crashes import saved
from tests.core.lanes.given import RECEIPT, assert_stale, lanes_of, offsets, retrying, state_of, take

# -- order and independence --------------------------------------------------------------------------------------------


def test_one_message_of_a_key_is_in_flight_at_a_time() -> None:
    lanes = lanes_of("a", "a", "a")
    assert take(lanes) == [Lease(token=1, key="a", offset=1, attempt=1, deadline=10)]
    assert take(lanes) == []


def test_keys_are_in_flight_side_by_side() -> None:
    assert offsets(take(lanes_of("a", "b", "a", "c"))) == [1, 2, 4]


def test_a_take_gives_out_no_more_than_its_limit() -> None:
    lanes = lanes_of("a", "b", "c")
    assert offsets(take(lanes, limit=2)) == [1, 2]
    assert take(lanes, limit=0) == []
    assert offsets(take(lanes, limit=2)) == [3]


@pytest.mark.parametrize("time", [nan, inf])
def test_a_time_that_is_none_is_refused_and_changes_nothing(time: float) -> None:
    lanes = lanes_of("a", "a")
    (lease,) = take(lanes)
    with pytest.raises(InvalidArgument, match=r"^delay must be"):
        lanes.push("b", 3, 0, time)
    with pytest.raises(InvalidArgument, match=r"^lease_time must be"):
        lanes.take(0, time)
    with pytest.raises(InvalidArgument, match=r"^lease_time must be"):
        lanes.extend(lease.token, 0, time)
    with pytest.raises(InvalidArgument, match=r"^delay must be"):
        lanes.give_back(lease.token, 0, time)
    assert lanes.settle(lease.token) == [Settled("a", 1)]
    assert offsets(take(lanes)) == [2]


def test_lanes_are_served_in_turn() -> None:
    lanes = lanes_of("a", "b", "a", "b")
    for expected in ([1, 2], [3, 4]):
        leases = take(lanes)
        assert offsets(leases) == expected
        for lease in leases:
            lanes.settle(lease.token)


def test_with_a_window_all_leases_of_a_key_belong_to_one_consumer() -> None:
    lanes = lanes_of("a", "a", "a", "b", delivery=retrying(window=3))
    (first,) = lanes.take(0, 10, 1, "x")
    assert offsets(lanes.take(0, 10, 9, "y")) == [4], "key a is with x"
    assert offsets(lanes.take(0, 10, 9, "x")) == [2, 3]
    assert first.offset == 1


@pytest.mark.parametrize("ending", ["settle", "give back", "expire", "dead-letter", "skip"])
def test_a_key_of_which_no_lease_is_out_is_free_for_every_consumer(ending: str) -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=2))
    one, two = (lanes.take(0, 10, 1, "x")[0] for _ in range(2))
    assert lanes.take(0, 10, 1, "y") == []
    if ending == "settle":
        assert lanes.settle(two.token) == [], "provisional: the first one is still out"
        assert lanes.take(0, 10, 1, "y") == []
        lanes.settle(one.token)
    elif ending == "give back":
        lanes.give_back(one.token, 0)
    elif ending == "expire":
        lanes.advance(10)
    elif ending == "dead-letter":
        lanes.dead_letter("a")
    else:
        lanes.skip("a")
    assert len(lanes.take(0, 10, 9, "y")) == 1 + (ending != "settle")


def test_a_key_that_waits_for_its_holder_is_free_when_the_last_of_its_leases_is_settled() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(window=3))
    (one,) = lanes.take(0, 10, 1, "x")
    assert lanes.take(0, 10, 1, "y") == []
    lanes.settle(one.token)
    assert offsets(lanes.take(0, 10, 1, "y")) == [2]


def test_a_consumer_without_room_delays_its_own_keys_only() -> None:
    lanes = lanes_of("a", "a", "b", "b", None, None, delivery=retrying(window=2))
    held = lanes.take(0, 10, 1, "x")
    assert offsets(held) == [1]
    assert sorted(offsets(lanes.take(0, 10, 9, "y"))) == [3, 4, 5, 6]
    assert offsets(lanes.take(0, 10, 9, "x")) == [2]


def test_a_key_that_waits_for_its_holder_keeps_its_turn_among_all_others() -> None:
    lanes = lanes_of("a", "a", "b", "c", "b", delivery=retrying(window=2))
    assert [lease.key for lease in lanes.take(0, 10, 9, "x")] == ["a", "b", "c", "a", "b"]


def test_an_ack_wakes_the_next_message_at_once_when_released_on_receipt() -> None:
    lanes = lanes_of("a", "a")
    assert lanes.settle(take(lanes)[0].token) == [Settled("a", 1)]
    assert offsets(take(lanes)) == [2]


def test_an_ack_wakes_the_next_message_after_its_confirmation_when_released_durably() -> None:
    lanes = lanes_of("a", "a", delivery=Delivery())
    assert lanes.settle(take(lanes)[0].token) == [Settled("a", 1)]
    assert state_of(lanes, "a") == LaneState.SETTLING
    assert take(lanes) == []
    lanes.confirm(1)
    assert offsets(take(lanes)) == [2]


def test_another_retry_policy_holds_for_the_next_failure() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(min_backoff=5))
    assert lanes.give_back(take(lanes)[0].token, 0) == [Returned("a", 1, 1, 5, None)]
    lanes.set_retry(RetryPolicy.immediate(max_attempts=2))
    lanes.advance(5)
    assert lanes.give_back(take(lanes, now=5)[0].token, 5) == [DeadLettered("a", 1, 2, None)]
    assert lanes._delivery.release is ReleaseAfter.RECEIPT
    with pytest.raises(IllegalTransition, match="load them anew"):
        lanes.set_retry(RetryPolicy.immediate(mode=RetryMode.OVERTAKE))


def test_what_waits_for_no_confirmation_cannot_be_confirmed() -> None:
    for delivery in (RECEIPT, Delivery()):
        lanes = lanes_of("a", "a", delivery=delivery)
        lanes.settle(take(lanes)[0].token)
        if delivery.release is ReleaseAfter.DURABLE:
            lanes.confirm(1)
        with pytest.raises(IllegalTransition) as refused:
            lanes.confirm(1)
        assert str(refused.value) == "nothing about offset 1 waits to be confirmed"


@pytest.mark.parametrize("delay", [0, 5])
def test_offsets_of_a_key_must_rise_with_and_without_delay(delay: float) -> None:
    lanes = lanes_of("a", "a")
    before = saved(lanes)
    with pytest.raises(InvalidArgument, match="offset 2 must be above 2, the last one in the queue"):
        lanes.push("a", 2, now=0, delay=delay)
    assert saved(lanes) == before


# -- keyless messages --------------------------------------------------------------------------------------------------


def test_keyless_messages_never_wait_for_each_other_or_for_keys() -> None:
    lanes = lanes_of(None, "a", None, "a", None)
    assert offsets(take(lanes)) == [1, 2, 3, 5]


def test_a_failed_keyless_message_blocks_and_fences_nobody() -> None:
    lanes = lanes_of(None, None, None, delivery=retrying(min_backoff=5))
    one, two = take(lanes, limit=2)
    assert lanes.give_back(one.token, 0) == [Returned(None, 1, 1, 5, None)]
    assert offsets(take(lanes)) == [3]
    assert lanes.settle(two.token) == [Settled(None, 2)]
    lanes.advance(5)
    assert take(lanes, now=5)[0][2:4] == (1, 2)


def test_a_delayed_keyless_message_blocks_nobody() -> None:
    lanes = lanes_of()
    lanes.push(None, 1, now=0, delay=5)
    lanes.push(None, 2, now=0)
    assert offsets(take(lanes)) == [2]
    assert lanes.counts() == Counts(total=2, ready=0, leased=1, delayed=1, blocked=0)
    lanes.advance(5)
    assert offsets(take(lanes)) == [1]


def test_keyless_acks_count_in_any_order() -> None:
    lanes = lanes_of(None, None, None, delivery=Delivery())
    leases = take(lanes)
    assert [lanes.settle(lease.token) for lease in reversed(leases)] == [[(None, 3)], [(None, 2)], [(None, 1)]]
    lanes.push(None, 4, now=0)
    assert offsets(take(lanes)) == [4]


# -- a window of more than one -----------------------------------------------------------------------------------------


def test_a_window_gives_out_several_messages_of_a_key_in_order() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(window=3))
    assert offsets(take(lanes)) == [1, 2, 3]
    assert state_of(lanes, "a") == LaneState.LEASED


def test_an_ack_is_provisional_until_everything_before_it_is_settled() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(window=3))
    one, two, three = take(lanes)
    assert lanes.settle(three.token) == []
    assert lanes.settle(two.token) == []
    assert (len(lanes), lanes.counts().leased, take(lanes)) == (4, 3, [])
    assert lanes.settle(one.token) == [Settled("a", 1), Settled("a", 2), Settled("a", 3)]
    assert (len(lanes), offsets(take(lanes))) == (1, [4])


def test_acks_in_order_settle_one_by_one() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3))
    assert [lanes.settle(lease.token) for lease in take(lanes)] == [[("a", 1)], [("a", 2)], [("a", 3)]]


def test_a_nack_fences_and_revokes_everything_given_out_after_it() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(window=4))
    one, two, three, four = take(lanes)
    lanes.settle(three.token)
    assert lanes.give_back(two.token, 0, error="boom") == [
        Fenced(three),
        Fenced(four),
        Returned("a", 2, 1, 0, "boom"),
    ]
    for lease in (two, three, four):
        assert_stale(lanes, lease.token)
    assert lanes.settle(one.token) == [Settled("a", 1)]
    again = take(lanes)
    assert [(lease.offset, lease.attempt) for lease in again] == [(2, 2), (3, 1), (4, 1)]
    assert [lanes.settle(lease.token) for lease in again] == [[("a", 2)], [("a", 3)], [("a", 4)]]


def test_an_expiry_fences_what_was_given_out_after_it_and_counts_once() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3))
    one, two, three = take(lanes)
    lanes.extend(one.token, 0, 50)
    assert lanes.advance(10) == [Expired(two), Fenced(three), Returned("a", 2, 1, 10, EXPIRED)]
    assert lanes.next_deadline() == 50
    assert [(lease.offset, lease.attempt) for lease in take(lanes)] == [(2, 2), (3, 1)]


def test_a_dead_letter_fences_what_was_given_out_after_it() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(window=2, max_attempts=1))
    one, two = take(lanes)
    assert lanes.give_back(one.token, 0, error="boom") == [Fenced(two), DeadLettered("a", 1, 1, "boom")]


def test_when_overtaking_a_nack_fences_nothing_and_acks_after_it_count() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3, mode=RetryMode.OVERTAKE, min_backoff=5))
    one, two, three = take(lanes)
    lanes.settle(two.token)
    assert lanes.give_back(one.token, 0) == [Returned("a", 1, 1, 5, None), Settled("a", 2)]
    assert lanes.settle(three.token) == [Settled("a", 3)]
    assert len(lanes) == 1


def test_unconfirmed_acks_take_up_the_window() -> None:
    lanes = lanes_of("a", "a", "a", delivery=Delivery(window=2))
    one, _ = take(lanes)
    lanes.settle(one.token)
    assert take(lanes) == []
    lanes.confirm(1)
    assert offsets(take(lanes)) == [3]


def test_a_push_to_a_lane_with_room_in_its_window_makes_it_ready() -> None:
    lanes = lanes_of("a", delivery=retrying(window=2))
    take(lanes)
    lanes.push("a", 2, now=0)
    assert offsets(take(lanes)) == [2]
