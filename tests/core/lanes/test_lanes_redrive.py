"""Dead letters that go back to their places, and those that can't any more."""

from __future__ import annotations

import pytest

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.types import (
    Counts,
    DeadLettered,
    Delivery,
    Redriven,
    ReleaseAfter,
    RetryMode,
)
from seriatim.errors import (
    FailedPrecondition,
    RedriveRefused,
)
from tests.core.lanes.given import fails, lanes_of, offsets, retrying, returnable, state_of, take


def test_a_redriven_message_goes_back_to_its_place_with_fresh_attempts() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(release=ReleaseAfter.DURABLE, max_attempts=2))
    fails(lanes, 2)
    lanes.confirm(1)
    assert lanes.redrive("a", 1) == Redriven("a", 1)
    assert (state_of(lanes, "a"), take(lanes), len(lanes)) == (LaneState.SETTLING, [], 2)
    lanes.confirm(1)
    assert take(lanes)[0][2:4] == (1, 1)


def test_a_redriven_message_waits_for_its_confirmation_whatever_the_window() -> None:
    lanes = lanes_of("a", "a", delivery=Delivery(window=3))
    lanes.dead_letter("a")
    lanes.confirm(1)
    lanes.redrive("a", 1)
    assert take(lanes) == []
    lanes.confirm(1)
    assert offsets(take(lanes)) == [1, 2]


def test_several_dead_letters_are_redriven_in_any_order() -> None:
    for order in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
        lanes = lanes_of("a", "a", "a", "a")
        for _ in range(3):
            lanes.dead_letter("a")
        for offset in order:
            lanes.redrive("a", offset)
        assert lanes.offsets("a", 10) == [1, 2, 3, 4]
        assert returnable(lanes, *order) == []


def test_a_key_that_is_empty_can_be_redriven() -> None:
    for release, state in ((ReleaseAfter.RECEIPT, LaneState.READY), (ReleaseAfter.DURABLE, LaneState.SETTLING)):
        lanes = lanes_of("a", delivery=retrying(release=release))
        lanes.dead_letter("a")
        if release is ReleaseAfter.DURABLE:
            lanes.confirm(1)
        assert lanes.view("a") is None
        lanes.redrive("a", 1)
        assert state_of(lanes, "a") == state


def test_a_dead_letter_is_not_redriven_once_a_later_message_is_settled() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=Delivery())
    for offset in (1, 2):
        lanes.dead_letter("a")
        lanes.confirm(offset)
    token = take(lanes)[0].token
    with pytest.raises(RedriveRefused) as refused:
        lanes.redrive("a", 2)
    assert str(refused.value) == (
        "message 2 can't go back to its place in key 'a' while the later message 3 is in flight; "
        "pause the key and try again, or append it at the end"
    )
    lanes.settle(token)
    for _ in ("settling", "settled"):
        with pytest.raises(RedriveRefused) as refused:
            lanes.redrive("a", 2)
        assert str(refused.value) == (
            "message 2 can't go back to its place in key 'a', because a later message of the key was settled since: append it "
            "at the end instead"
        )
        if not lanes.is_quiet():
            lanes.confirm(3)
    assert returnable(lanes, 1, 2) == []


def test_a_dead_letter_behind_the_settled_message_may_still_be_redriven() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3))
    tokens = [lease.token for lease in take(lanes)]
    lanes.settle(tokens[0])
    lanes.dead_letter("a")
    assert lanes.redrive("a", 2) == Redriven("a", 2)
    assert offsets(take(lanes)) == [2, 3]


def test_settling_forgets_the_dead_letters_before_and_no_others() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3, max_attempts=1))
    lanes.dead_letter("a")
    two, three = take(lanes)
    lanes.give_back(three.token, 0)
    assert returnable(lanes, 1, 2, 3) == [1, 3]
    lanes.settle(two.token)
    assert returnable(lanes, 1, 2, 3) == [3]
    assert lanes.redrive("a", 3) == Redriven("a", 3)


def test_a_message_that_was_overtaken_and_then_dead_lettered_cannot_be_redriven() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5, max_attempts=2))
    lanes.give_back(take(lanes)[0].token, 0)
    lanes.settle(take(lanes)[0].token)
    lanes.advance(5)
    assert lanes.give_back(take(lanes)[0].token, 5) == [DeadLettered("a", 1, 2, None)]
    assert (lanes.view("a"), returnable(lanes, 1, 2)) == (None, [])
    with pytest.raises(RedriveRefused):
        lanes.redrive("a", 1)


def test_a_dead_letter_confirmed_after_a_later_ack_cannot_be_redriven() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(4, ReleaseAfter.DURABLE, RetryMode.OVERTAKE, max_attempts=1))
    one, two = take(lanes)
    lanes.give_back(one.token, 0)
    lanes.settle(two.token)
    lanes.confirm(2)
    lanes.confirm(1)
    assert (lanes.view("a"), returnable(lanes, 1, 2)) == (None, [])
    with pytest.raises(RedriveRefused):
        lanes.redrive("a", 1)


def test_the_highest_settled_message_decides_about_a_redrive() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(4, ReleaseAfter.DURABLE, RetryMode.OVERTAKE))
    one, two, three = take(lanes, limit=3)
    lanes.give_back(one.token, 0, delay=5)
    lanes.dead_letter("a")
    lanes.confirm(2)
    (again,) = take(lanes, limit=1)
    assert again.offset == three.offset
    lanes.settle(again.token)
    lanes.advance(5)
    (one,) = take(lanes, limit=1, now=5)
    assert one.offset == 1
    lanes.settle(one.token)
    with pytest.raises(RedriveRefused):
        lanes.redrive("a", two.offset)


def test_what_is_no_dead_letter_cannot_be_redriven() -> None:
    lanes = lanes_of("a", "a", "b")
    lanes.dead_letter("a")
    for key, offset in (("a", 2), ("b", 1), ("a", 0), ("c", 1)):
        with pytest.raises(RedriveRefused):
            lanes.redrive(key, offset)


def test_a_message_that_is_just_being_redriven_is_left_alone() -> None:
    lanes = lanes_of("a", "a", delivery=Delivery())
    lanes.dead_letter("a")
    lanes.confirm(1)
    lanes.redrive("a", 1)
    with pytest.raises(FailedPrecondition) as refused:
        lanes.dead_letter("a")
    assert str(refused.value) == "message 1 is just being redriven: try again"
    with pytest.raises(FailedPrecondition):
        lanes.remove("a", 1)
    assert lanes.dead_letter("a", rest=True) == [DeadLettered("a", 2, 0, None)]
    lanes.confirm(1)
    lanes.confirm(2)
    assert offsets(take(lanes)) == [1]


def test_a_keyless_message_that_is_just_being_redriven_blocks_no_other() -> None:
    lanes = lanes_of(None, None, None, delivery=Delivery())
    lanes.dead_letter(None)
    lanes.confirm(1)
    lanes.redrive(None, 1)
    assert lanes.counts() == Counts(total=3, ready=2, leased=0, delayed=0, blocked=1)
    assert offsets(take(lanes)) == [2, 3]
    assert lanes.dead_letter(None, rest=True) == []
    lanes.confirm(1)
    assert offsets(take(lanes)) == [1]


def test_a_keyless_dead_letter_is_redriven_whatever_was_settled_since() -> None:
    lanes = lanes_of(None, None, None)
    lanes.dead_letter(None)
    lanes.settle(take(lanes, limit=1)[0].token)
    assert lanes.redrive(None, 1) == Redriven(None, 1)
    assert offsets(take(lanes)) == [1, 3]


def test_settling_one_key_forgets_no_dead_letters_of_another() -> None:
    lanes = lanes_of("a", "b")
    lanes.dead_letter("a")
    lanes.settle(take(lanes)[0].token)
    assert lanes.redrive("a", 1) == Redriven("a", 1)
