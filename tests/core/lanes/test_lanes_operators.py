"""What operators do to a key: pause, skip, remove, dead-letter, retry."""

from __future__ import annotations

import pytest

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import (
    Counts,
    DeadLettered,
    Delivery,
    Fenced,
    LaneView,
    Redriven,
    ReleaseAfter,
    Removed,
    RetryMode,
    Returned,
    Settled,
)
from seriatim.errors import (
    FailedPrecondition,
    IllegalTransition,
    NotFound,
    StaleLease,
)
from tests.core.lanes.crashes import crashed, saved
from tests.core.lanes.given import RECEIPT, assert_stale, fails, lanes_of, offsets, retrying, state_of, take, view_of


def test_an_operator_dead_letters_the_head_with_its_attempts_and_last_error() -> None:
    lanes = lanes_of("a", "a")
    fails(lanes, 2)
    assert lanes.dead_letter("a") == [DeadLettered("a", 1, 2, "boom")]
    assert lanes.dead_letter("a", "no use") == [DeadLettered("a", 2, 0, "no use")]
    with pytest.raises(NotFound) as refused:
        lanes.dead_letter("a")
    assert str(refused.value) == "key 'a' has no message to dead-letter"


def test_dead_lettering_a_leased_head_fences_its_lease_and_counts_it() -> None:
    lanes = lanes_of("a", "a")
    (lease,) = take(lanes)
    assert lanes.dead_letter("a") == [Fenced(lease), DeadLettered("a", 1, 1, None)]
    assert_stale(lanes, lease.token)
    assert offsets(take(lanes)) == [2]


def test_an_operator_dead_letters_all_of_a_key() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=2))
    one, two = lanes.take(0, 10, 10, "x")
    lanes.settle(two.token)
    assert lanes.dead_letter("a", "no use", rest=True) == [
        Fenced(one, "x"),
        Fenced(two),  # it had been acked, and is nobody's
        DeadLettered("a", 1, 1, "no use"),
        DeadLettered("a", 2, 0, "no use"),
        DeadLettered("a", 3, 0, "no use"),
    ]
    assert lanes.counts() == Counts(0, 0, 0, 0, 0)


def test_dead_lettering_all_of_a_key_takes_what_was_overtaken_too() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5))
    lanes.give_back(take(lanes)[0].token, 0, error="boom")
    assert lanes.dead_letter("a", rest=True) == [DeadLettered("a", 1, 1, "boom"), DeadLettered("a", 2, 0, None)]
    assert (lanes.next_deadline(), list(lanes.views())) == (None, [])


def test_dead_lettering_keyless_messages_leaves_those_in_flight_alone() -> None:
    lanes = lanes_of(None, None)
    (lease,) = take(lanes, limit=1)
    assert lanes.dead_letter(None) == [DeadLettered(None, 2, 0, None)]
    assert view_of(lanes, None).in_flight == 1
    assert lanes.settle(lease.token) == [Settled(None, 1)]


def test_a_message_is_removed_wherever_it_waits() -> None:
    lanes = lanes_of("a", "a", "a", "a")
    assert lanes.remove("a", 3) == Removed("a", 3)
    assert lanes.remove("a", 1) == Removed("a", 1)
    delivered = []
    while leases := take(lanes):
        delivered += offsets(leases)
        lanes.settle(leases[0].token)
    assert delivered == [2, 4]


@pytest.mark.parametrize("delivery", [RECEIPT, Delivery()])
def test_a_skipped_head_leaves_unseen_and_the_next_message_follows(delivery: Delivery) -> None:
    lanes = lanes_of("a", "a", delivery=delivery)
    assert lanes.skip("a") == [Removed("a", 1)]
    if delivery.release is ReleaseAfter.DURABLE:
        assert state_of(lanes, "a") == "settling"
        with pytest.raises(IllegalTransition):
            lanes.confirm(2)
        lanes.confirm(1)
    assert offsets(take(lanes)) == [2]


def test_skipping_a_head_in_flight_fences_every_lease_of_its_key() -> None:
    lanes = lanes_of("a", "a", "b", delivery=retrying(window=2))
    one, two, other = sorted(take(lanes), key=lambda lease: lease.offset)
    assert lanes.skip("a") == [Fenced(one), Fenced(two), Removed("a", 1)]
    for lease in (one, two):
        with pytest.raises(StaleLease):
            lanes.settle(lease.token)
    assert offsets(take(lanes)) == [2]
    assert lanes.settle(other.token) == [Settled("b", 3)]


def test_there_must_be_a_message_to_skip() -> None:
    with pytest.raises(NotFound, match="key 'a' has no message to skip"):
        lanes_of("b").skip("a")


def test_a_skipped_message_takes_no_place_from_a_dead_letter_before_it() -> None:
    lanes = lanes_of("a", "a", "a")
    lanes.dead_letter("a")
    lanes.skip("a")
    assert lanes.redrive("a", 1) == Redriven("a", 1)
    assert offsets(take(lanes)) == [1]


def test_a_retry_lets_a_head_that_backs_off_go_now_and_counts_on() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(min_backoff=60))
    lanes.give_back(take(lanes)[0].token, 0, error="down")
    assert (state_of(lanes, "a"), lanes.next_deadline()) == ("delayed", 60)
    assert lanes.retry("a", 1) == [Returned("a", 1, 1, 1, "down")]
    assert lanes.next_deadline() is None
    (lease,) = take(lanes)
    assert (lease.offset, lease.attempt) == (1, 2)


def test_a_retry_lets_a_message_that_was_delayed_on_publish_go_now_and_not_those_behind_it() -> None:
    lanes = Lanes(RECEIPT)
    for offset in (1, 2):
        lanes.push("a", offset, 0, delay=60)
    lanes.retry("a", 0)
    lanes.settle(take(lanes)[0].token)
    assert (state_of(lanes, "a"), take(lanes)) == ("delayed", [])


@pytest.mark.parametrize("key", ["a", None])
def test_a_retry_brings_back_everything_that_was_overtaken(key: str | None) -> None:
    lanes = lanes_of(key, key, key, delivery=retrying(window=3, mode=RetryMode.OVERTAKE, min_backoff=60))
    for _ in range(2):
        lanes.give_back(take(lanes, 1)[0].token, 0)
    assert [effect.offset for effect in lanes.retry(key, 0)] == [1, 2]
    assert offsets([*take(lanes), *take(lanes), *take(lanes)]) == [1, 2, 3]


def test_a_retry_leaves_a_paused_key_paused_and_its_delay_gone() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=60))
    lanes.give_back(take(lanes)[0].token, 0)
    lanes.pause("a")
    lanes.retry("a", 0)
    assert state_of(lanes, "a") == "paused"
    lanes.resume("a")
    assert state_of(lanes, "a") == "ready"


def test_a_retry_needs_something_that_waits_for_its_time() -> None:
    lanes = lanes_of("a")
    for key in ("a", "b"):
        with pytest.raises(FailedPrecondition, match=f"key '{key}' has no message that waits for a retry or a delay"):
            lanes.retry(key, 0)


def test_a_retry_is_no_way_around_used_up_attempts() -> None:
    before = lanes_of("a", delivery=retrying(max_attempts=1, min_backoff=5))
    take(before)
    lanes = crashed(before)
    with pytest.raises(FailedPrecondition):
        lanes.retry("a", 0)
    assert lanes.advance(0) == [DeadLettered("a", 1, 1, None)]


def test_a_dead_letter_of_an_earlier_life_can_be_redriven_until_it_is_forgotten() -> None:
    lanes = lanes_of("a")
    lanes.remember_dead_letter("b", 5)
    lanes.remember_dead_letter("b", 4)
    lanes.forget_dead_letter("b", 4)
    lanes.forget_dead_letter("b", 3)
    assert [lanes.is_returnable("b", offset) for offset in (3, 4, 5)] == [False, False, True]
    assert lanes.redrive("b", 5) == Redriven("b", 5)
    assert offsets(take(lanes)) == [1, 5]


def test_keys_in_figures_and_the_first_messages_of_a_key() -> None:
    lanes = lanes_of("a", "a", "b", None, delivery=retrying(window=2))
    lanes.pause("b")
    lanes.pause("c")
    lanes.push("d", 9, 0, delay=5)
    take(lanes)
    assert (lanes.key_count, lanes.blocked_keys(), lanes.blocked_key_count) == (5, ["b", "c", "d"], 3)
    assert (lanes.keys(2), lanes.blocked_keys(1), lanes.oldest(lanes.keys())) == (["a", "b"], ["b"], 1)
    assert lanes.oldest(["c", "nobody"]) is None
    assert (lanes.offsets("a", 9), lanes.offsets("a", 1), lanes.offsets("nobody", 1)) == ([1, 2], [1], [])


def test_an_overtaken_message_is_removed_with_its_delay() -> None:
    lanes = lanes_of("a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5))
    fails(lanes, 1)
    assert lanes.remove("a", 1) == Removed("a", 1)
    assert (lanes.next_deadline(), len(lanes), lanes.view("a")) == (None, 0, None)


@pytest.mark.parametrize("key", ["a", None])
def test_a_message_in_flight_cannot_be_removed(key: str | None) -> None:
    lanes = lanes_of(key, key)
    take(lanes, limit=1)
    with pytest.raises(FailedPrecondition) as refused:
        lanes.remove(key, 1)
    assert str(refused.value) == "message 1 is in flight: ack it, or return it first"
    assert lanes.remove(key, 2) == Removed(key, 2)


@pytest.mark.parametrize(("key", "offset"), [("a", 9), ("b", 1), (None, 1)])
def test_an_unknown_message_cannot_be_removed(key: str | None, offset: int) -> None:
    lanes = lanes_of("a")
    with pytest.raises(NotFound) as refused:
        lanes.remove(key, offset)
    assert str(refused.value) == f"key {key!r} has no message {offset} waiting"


def test_a_provisionally_acked_message_cannot_be_removed() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(window=2))
    lanes.settle(take(lanes)[1].token)
    with pytest.raises(NotFound):
        lanes.remove("a", 2)


def test_a_change_that_is_not_durable_yet_takes_up_the_window() -> None:
    lanes = lanes_of("a", "a", "a", delivery=Delivery())
    lanes.remove("a", 3)
    assert (take(lanes), state_of(lanes, "a")) == ([], LaneState.SETTLING)
    with pytest.raises(FailedPrecondition) as refused:
        lanes.remove("a", 3)
    assert str(refused.value) == "message 3 is just being removed: try again"
    lanes.confirm(3)
    assert offsets(take(lanes)) == [1]


def test_a_paused_key_gives_out_nothing_and_its_leases_go_on() -> None:
    lanes = lanes_of("a", "a", "b")
    first = take(lanes, limit=1)[0]
    lanes.pause("a")
    assert lanes.settle(first.token) == [Settled("a", 1)]
    assert offsets(take(lanes)) == [3]
    lanes.push("a", 4, now=0)
    assert take(lanes) == []
    lanes.resume("a")
    assert offsets(take(lanes)) == [2]


def test_an_unknown_key_can_be_paused_and_is_forgotten_when_resumed() -> None:
    lanes = lanes_of()
    lanes.pause("a")
    assert view_of(lanes, "a") == LaneView("a", "paused", 0, 0, None, 0, None, None)
    lanes.resume("a")
    assert lanes.view("a") is None


def test_pausing_twice_or_resuming_what_is_not_paused_is_illegal_and_changes_nothing() -> None:
    lanes = lanes_of("a")
    with pytest.raises(IllegalTransition, match="'resume' is not possible while 'ready'"):
        lanes.resume("a")
    with pytest.raises(IllegalTransition, match="'resume' is not possible while 'empty'"):
        lanes.resume("b")
    lanes.pause("a")
    before = saved(lanes)
    with pytest.raises(IllegalTransition, match="'pause' is not possible while 'paused'"):
        lanes.pause("a")
    assert saved(lanes) == before


def test_a_delay_that_passes_while_its_key_is_paused_is_over_when_it_resumes() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=5))
    lease = take(lanes)[0]
    lanes.pause("a")
    lanes.give_back(lease.token, 0)
    assert lanes.next_deadline() is None
    lanes.advance(4)
    lanes.resume("a")
    assert (state_of(lanes, "a"), lanes.next_deadline()) == (LaneState.DELAYED, 5)
    lanes.pause("a")
    lanes.advance(6)
    lanes.resume("a")
    assert offsets(take(lanes, now=6)) == [1]
