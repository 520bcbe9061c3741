"""Lanes, one behaviour a test. ``a1 a2 a3`` are messages 1, 2, 3 of key "a"."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest

from seriatim.core.delivery import (
    Counts,
    DeadLettered,
    Delivery,
    Fenced,
    KeyPaused,
    LaneView,
    Lease,
    OnExhausted,
    Redriven,
    Release,
    Removed,
    RetryMode,
    RetryPolicy,
    Returned,
    SavedLanes,
    SavedMessage,
    Settled,
)
from seriatim.core.lane import TABLE, Lane, LaneEvent, LaneState, LooseLane
from seriatim.core.lanes import EXPIRED, Lanes
from seriatim.errors import (
    FailedPrecondition,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    RedriveRefused,
    StaleLease,
)

RECEIPT = Delivery(release=Release.RECEIPT)


def lanes_of(*keys: str | None, delivery: Delivery = RECEIPT) -> Lanes:
    """Lanes at time 0 with one message for each key named: the first has offset 1."""
    lanes = Lanes(delivery)
    lanes.advance(0)
    for offset, key in enumerate(keys, start=1):
        lanes.push(key, offset, now=0)
    return lanes


def retrying(
    window: int = 1, release: Release = Release.RECEIPT, mode: RetryMode = RetryMode.BLOCK, **policy: object
) -> Delivery:
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


def crashed(lanes: Lanes, count_leases: bool = True) -> Lanes:
    return Lanes.restore(lanes.save(count_leases), lanes._delivery)


# -- order and independence ---------------------------------------------------------------------------------------------


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
    lanes.set_retry(RetryPolicy(max_attempts=2))
    lanes.advance(5)
    assert lanes.give_back(take(lanes, now=5)[0].token, 5) == [DeadLettered("a", 1, 2, None)]
    assert lanes._delivery.release is Release.RECEIPT
    with pytest.raises(IllegalTransition, match="load them anew"):
        lanes.set_retry(RetryPolicy(mode=RetryMode.OVERTAKE))


def test_what_waits_for_no_confirmation_cannot_be_confirmed() -> None:
    for delivery in (RECEIPT, Delivery()):
        lanes = lanes_of("a", "a", delivery=delivery)
        lanes.settle(take(lanes)[0].token)
        if delivery.release is Release.DURABLE:
            lanes.confirm(1)
        with pytest.raises(IllegalTransition) as refused:
            lanes.confirm(1)
        assert str(refused.value) == "nothing about offset 1 waits to be confirmed"


@pytest.mark.parametrize("delay", [0, 5])
def test_offsets_of_a_key_must_rise_with_and_without_delay(delay: float) -> None:
    lanes = lanes_of("a", "a")
    before = lanes.save()
    with pytest.raises(InvalidArgument, match="offset 2 must be above 2, the last one in the queue"):
        lanes.push("a", 2, now=0, delay=delay)
    assert lanes.save() == before


# -- trouble blocks its own lane, and keeps its place -------------------------------------------------------------------


def nacked(lanes: Lanes) -> None:
    lanes.give_back(take(lanes, limit=1)[0].token, 0, delay=5)


def expired(lanes: Lanes) -> None:
    take(lanes, limit=1)
    lanes.advance(10)


@pytest.mark.parametrize("trouble", [nacked, expired])
def test_a_failed_head_keeps_its_place_and_blocks_its_own_lane_only(trouble: Callable[[Lanes], None]) -> None:
    lanes = lanes_of("a", "a", "b", delivery=retrying(min_backoff=5))
    trouble(lanes)
    assert state_of(lanes, "a") == LaneState.DELAYED
    assert offsets(take(lanes)) == [3]
    lanes.advance(15)
    assert offsets(take(lanes, now=15)) == [1]


def test_a_delayed_message_blocks_its_own_lane_only_until_its_time_has_come() -> None:
    lanes = lanes_of()
    lanes.push("a", 1, now=0, delay=5)
    lanes.push("a", 2, now=0)
    lanes.push("b", 3, now=0)
    assert lanes.next_deadline() == 5
    assert offsets(take(lanes)) == [3]
    lanes.advance(4.9)
    assert take(lanes) == []
    lanes.advance(5)
    assert offsets(take(lanes, now=5)) == [1]


def test_a_delay_that_passed_before_its_message_became_the_head_delays_nothing() -> None:
    lanes = lanes_of("a")
    lanes.push("a", 2, now=0, delay=5)
    (lease,) = take(lanes)
    lanes.advance(6)
    lanes.settle(lease.token)
    assert offsets(take(lanes, now=6)) == [2]
    assert lanes.next_deadline() == 16


@pytest.mark.parametrize("delay", [0.25, 1])
def test_the_shortest_delay_is_a_delay(delay: float) -> None:
    lanes = lanes_of("a")
    lanes.push("b", 2, now=0, delay=delay)
    lanes.give_back(take(lanes)[0].token, 0, delay=delay)
    assert (state_of(lanes, "a"), state_of(lanes, "b")) == (LaneState.DELAYED, LaneState.DELAYED)
    lanes.advance(delay)
    assert offsets(take(lanes)) == [2, 1]


def test_a_delay_counts_from_the_push_not_from_becoming_the_head() -> None:
    lanes = lanes_of("a")
    lanes.push("a", 2, now=1, delay=5)
    (lease,) = take(lanes)
    lanes.advance(3)
    lanes.settle(lease.token)
    assert state_of(lanes, "a") == LaneState.DELAYED
    assert lanes.next_deadline() == 6


def leased_head() -> Lanes:
    lanes = lanes_of("a", delivery=retrying(min_backoff=5))
    take(lanes)
    return lanes


def delayed_head() -> Lanes:
    lanes = lanes_of()
    lanes.push("a", 1, now=0, delay=5)
    return lanes


def backing_off_head() -> Lanes:
    lanes = leased_head()
    lanes.give_back(1, 0, error="boom")
    return lanes


@pytest.mark.parametrize("make", [leased_head, delayed_head, backing_off_head])
@pytest.mark.parametrize("delay", [0, 1, 9])
def test_a_push_behind_a_head_in_trouble_changes_nothing_for_the_head(make: Callable[[], Lanes], delay: float) -> None:
    lanes = make()
    before, deadline = view_of(lanes, "a"), lanes.next_deadline()
    lanes.push("a", 2, now=0, delay=delay)
    after = view_of(lanes, "a")
    assert (after.depth, before.depth) == (2, 1)
    assert (after.head, after.attempts, after.not_before, after.error, after.state) == (
        before.head,
        before.attempts,
        before.not_before,
        before.error,
        before.state,
    )
    assert lanes.next_deadline() == deadline
    assert take(lanes) == []


# -- retries ------------------------------------------------------------------------------------------------------------


def test_backoff_doubles_between_its_bounds_for_nacks_and_expiries_alike() -> None:
    lanes, now, waits = lanes_of("a", delivery=retrying(min_backoff=1, max_backoff=5)), 0.0, []
    for attempt in range(1, 6):
        (lease,) = take(lanes, now=now)
        assert lease.attempt == attempt
        if attempt % 2:
            (effect,) = lanes.give_back(lease.token, now, error="boom")
        else:
            now += 10
            (effect,) = lanes.advance(now)
        assert isinstance(effect, Returned)
        assert effect.attempts == attempt
        assert effect.error == ("boom" if attempt % 2 else EXPIRED)
        waits.append(effect.not_before - now)
        now = effect.not_before
        lanes.advance(now)
    assert waits == [1, 2, 4, 5, 5]


def test_an_explicit_delay_overrides_the_backoff() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=3))
    assert lanes.give_back(take(lanes)[0].token, 1, delay=7, error="boom") == [Returned("a", 1, 1, 8, "boom")]
    lanes.advance(8)
    assert lanes.give_back(take(lanes)[0].token, 8, delay=0) == [Returned("a", 1, 2, 8, None)]
    assert state_of(lanes, "a") == LaneState.READY


@pytest.mark.parametrize("delay", [None, 0, -2])
def test_a_message_that_need_not_wait_can_be_taken_at_once(delay: float | None) -> None:
    lanes = lanes_of("a")
    assert lanes.give_back(take(lanes)[0].token, 4, delay=delay) == [Returned("a", 1, 1, 4, None)]
    assert state_of(lanes, "a") == LaneState.READY


def test_an_expiry_says_what_happened() -> None:
    lanes = lanes_of("a")
    take(lanes)
    assert lanes.advance(9.9) == []
    assert lanes.advance(10) == [Returned("a", 1, 1, 10, "lease expired")]


def test_leases_of_several_keys_expire_together() -> None:
    lanes = lanes_of("a", "b")
    take(lanes)
    assert lanes.advance(10) == [Returned("a", 1, 1, 10, EXPIRED), Returned("b", 2, 1, 10, EXPIRED)]


def test_a_delivery_that_nobody_tried_neither_counts_nor_waits_nor_forgets_the_last_error() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=3, max_attempts=2))
    assert lanes.give_back(take(lanes)[0].token, 0, delay=0, error="boom") == [Returned("a", 1, 1, 0, "boom")]
    for _ in range(3):
        (lease,) = take(lanes)
        assert lease.attempt == 2
        assert lanes.give_back(lease.token, 0, count=False) == [Returned("a", 1, 1, 0, "boom")]
    assert lanes.give_back(take(lanes)[0].token, 0, count=False, error="stopped") == [Returned("a", 1, 1, 0, "stopped")]
    assert lanes.give_back(take(lanes)[0].token, 0) == [DeadLettered("a", 1, 2, None)]


def test_a_returned_message_is_overtaken_while_it_waits_for_its_retry_when_told_so() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5))
    lanes.give_back(take(lanes)[0].token, 0)
    (second,) = take(lanes)
    assert second.offset == 2
    lanes.advance(5)
    assert view_of(lanes, "a").depth == 3
    lanes.settle(second.token)
    assert offsets(take(lanes, now=5)) == [1]


def test_a_delay_on_publish_is_not_overtaken() -> None:
    lanes = lanes_of(delivery=retrying(mode=RetryMode.OVERTAKE))
    lanes.push("a", 1, now=0, delay=5)
    lanes.push("a", 2, now=0)
    assert take(lanes) == []


def test_when_all_of_a_key_was_overtaken_its_first_message_is_the_head() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(mode=RetryMode.OVERTAKE))
    lanes.give_back(take(lanes)[0].token, 0, delay=8, error="boom")
    lanes.give_back(take(lanes)[0].token, 0, delay=3)
    assert view_of(lanes, "a") == LaneView("a", "delayed", 2, 0, 1, 1, 8, "boom")
    assert lanes.next_deadline() == 3


# -- attempts used up ---------------------------------------------------------------------------------------------------


def test_attempts_are_exact_for_nacks() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=3))
    assert fails(lanes, 3, "boom") == [DeadLettered("a", 1, attempts=3, error="boom")]
    assert offsets(take(lanes)) == [2]


def test_attempts_are_exact_for_expiries() -> None:
    lanes = lanes_of("a", delivery=retrying(max_attempts=2))
    take(lanes)
    assert lanes.advance(10) == [Returned("a", 1, 1, 10, EXPIRED)]
    take(lanes, now=10)
    assert lanes.advance(20) == [DeadLettered("a", 1, 2, EXPIRED)]
    assert len(lanes) == 0


def test_a_dead_letter_unblocks_its_key_once_it_is_durable() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(release=Release.DURABLE, max_attempts=1))
    fails(lanes, 1)
    assert (take(lanes), len(lanes)) == ([], 1)
    lanes.confirm(1)
    assert offsets(take(lanes)) == [2]


def test_the_rest_of_a_key_is_dead_lettered_with_its_head_when_told_so() -> None:
    lanes = lanes_of("a", "a", "b", "a", delivery=retrying(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER_REST))
    lease = take(lanes, limit=1)[0]
    behind = "behind message 1 of its key, which was dead-lettered"
    assert lanes.give_back(lease.token, 0, error="boom") == [
        DeadLettered("a", 1, 1, "boom"),
        DeadLettered("a", 2, 0, behind),
        DeadLettered("a", 4, 0, behind),
    ]
    assert [view.key for view in lanes.views()] == ["b"]


def test_a_key_is_paused_with_its_head_when_told_so() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=2, on_exhausted=OnExhausted.PAUSE))
    assert fails(lanes, 2) == [KeyPaused("a", 1, 2, "boom")]
    assert view_of(lanes, "a") == LaneView("a", "paused", 2, 0, 1, 2, None, "boom")
    assert lanes.resume("a") == [Returned("a", 1, 1, 0.0, "boom")]
    assert take(lanes)[0][2:4] == (1, 2)


@pytest.mark.parametrize("policy", OnExhausted)
def test_a_keyless_message_that_used_up_its_attempts_is_dead_lettered_alone(policy: OnExhausted) -> None:
    lanes = lanes_of(None, None, delivery=retrying(max_attempts=1, on_exhausted=policy))
    lease = take(lanes, limit=1)[0]
    assert lanes.give_back(lease.token, 0, error="boom") == [DeadLettered(None, 1, 1, "boom")]
    assert offsets(take(lanes)) == [2]


# -- attempts used up by a crash ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", None])
def test_a_message_that_crashes_its_consumer_each_time_is_dead_lettered_after_exactly_its_attempts(
    key: str | None,
) -> None:
    lanes = lanes_of(key, key, delivery=retrying(release=Release.DURABLE, max_attempts=2))
    for attempt in (1, 2):
        assert take(lanes, limit=1)[0][2:4] == (1, attempt)
        lanes = crashed(lanes)
    assert lanes.next_deadline() == 0
    assert offsets(take(lanes)) == ([] if key else [2])
    assert lanes.advance(0) == [DeadLettered(key, 1, 2, None)]
    assert lanes.next_deadline() == (None if key else 10)
    lanes.confirm(1)
    assert offsets(take(lanes)) == ([2] if key else [])


def test_a_crash_before_a_dead_letter_is_durable_does_not_deliver_it_again() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(release=Release.DURABLE, max_attempts=1))
    fails(lanes, 1)
    lanes = crashed(lanes)
    assert (take(lanes), state_of(lanes, "a")) == ([], LaneState.DELAYED)
    assert lanes.advance(0) == [DeadLettered("a", 1, 1, "boom")]


def test_a_crash_that_used_up_attempts_takes_the_rest_along_when_told_so() -> None:
    policy = OnExhausted.DEAD_LETTER_REST
    for release in Release:
        lanes = lanes_of("a", "a", delivery=retrying(window=2, release=release, max_attempts=1, on_exhausted=policy))
        take(lanes)
        behind = "behind message 1 of its key, which was dead-lettered"
        lanes = crashed(lanes)
        assert lanes.counts() == Counts(total=2, ready=0, leased=0, delayed=2, blocked=0)
        assert lanes.advance(0) == [DeadLettered("a", 1, 1, None), DeadLettered("a", 2, 1, behind)]
        assert (len(lanes), lanes.next_deadline(), lanes.advance(1)) == (0, None, [])


def test_a_crash_that_used_up_attempts_pauses_the_key_once_when_told_so() -> None:
    lanes = lanes_of("a", delivery=retrying(max_attempts=1, on_exhausted=OnExhausted.PAUSE))
    take(lanes)
    lanes = crashed(lanes)
    assert lanes.advance(0) == [KeyPaused("a", 1, 1, None)]
    lanes.resume("a")
    assert take(lanes)[0].attempt == 1
    lanes.advance(10)
    lanes = crashed(lanes)
    assert (lanes.advance(0), state_of(lanes, "a")) == ([], LaneState.PAUSED)
    lanes.resume("a")
    assert take(lanes)[0].attempt == 1


@pytest.mark.parametrize("mode", RetryMode)
def test_a_key_that_was_resumed_stays_so_after_a_crash_and_its_message_has_one_attempt(mode: RetryMode) -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=3, on_exhausted=OnExhausted.PAUSE, mode=mode))
    fails(lanes, 3)
    lanes.resume("a")
    lanes = crashed(lanes)
    assert (lanes.advance(0), state_of(lanes, "a")) == ([], LaneState.READY)
    assert fails(lanes, 1) == [KeyPaused("a", 1, 3, "boom")]


def test_who_resumes_a_key_changes_nothing_for_messages_that_have_attempts_left() -> None:
    lanes = lanes_of("a", delivery=retrying(max_attempts=2, on_exhausted=OnExhausted.PAUSE))
    fails(lanes, 1)
    lanes.pause("a")
    assert lanes.resume("a") == []
    assert view_of(lanes, "a").attempts == 1


def test_several_messages_whose_attempts_a_crash_used_up_leave_together() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=2, max_attempts=1))
    take(lanes)
    lanes = crashed(lanes)
    assert lanes.advance(0) == [DeadLettered("a", 1, 1, None), DeadLettered("a", 2, 1, None)]
    assert lanes.counts() == Counts(total=1, ready=1, leased=0, delayed=0, blocked=0)


# -- an operator's hand -------------------------------------------------------------------------------------------------


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
    assert lanes.dead_letter("a") == [Fenced(lease.token, "a", 1), DeadLettered("a", 1, 1, None)]
    assert_stale(lanes, lease.token)
    assert offsets(take(lanes)) == [2]


def test_an_operator_dead_letters_all_of_a_key() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=2))
    tokens = [lease.token for lease in take(lanes)]
    lanes.settle(tokens[1])
    assert lanes.dead_letter("a", "no use", rest=True) == [
        Fenced(tokens[0], "a", 1),
        Fenced(tokens[1], "a", 2),
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
    if delivery.release is Release.DURABLE:
        assert state_of(lanes, "a") == "settling"
        with pytest.raises(IllegalTransition):
            lanes.confirm(2)
        lanes.confirm(1)
    assert offsets(take(lanes)) == [2]


def test_skipping_a_head_in_flight_fences_every_lease_of_its_key() -> None:
    lanes = lanes_of("a", "a", "b", delivery=retrying(window=2))
    one, two, other = sorted(take(lanes), key=lambda lease: lease.offset)
    assert lanes.skip("a") == [Fenced(one.token, "a", 1), Fenced(two.token, "a", 2), Removed("a", 1)]
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
        with pytest.raises(FailedPrecondition, match=f"nothing of key '{key}' waits for its retry or for its delay"):
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
    survey = lanes.survey(lanes.keys())
    assert (survey.keys, survey.blocked, survey.paused, survey.oldest) == (5, 3, 2, 1)
    assert lanes.survey(["c", "nobody"]).oldest is None
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
    before = lanes.save()
    with pytest.raises(IllegalTransition, match="'pause' is not possible while 'paused'"):
        lanes.pause("a")
    assert lanes.save() == before


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


# -- redrive ------------------------------------------------------------------------------------------------------------


def test_a_redriven_message_goes_back_to_its_place_with_fresh_attempts() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(release=Release.DURABLE, max_attempts=2))
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
        assert list(lanes._lanes["a"].waiting) == [1, 2, 3, 4]
        assert lanes._dead == {}


def test_a_key_that_is_empty_can_be_redriven() -> None:
    for release, state in ((Release.RECEIPT, LaneState.READY), (Release.DURABLE, LaneState.SETTLING)):
        lanes = lanes_of("a", delivery=retrying(release=release))
        lanes.dead_letter("a")
        if release is Release.DURABLE:
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
            "message 2 can't go back to its place in key 'a': a later message of the key is settled, or it is no dead "
            "letter of this lane; append it at the end instead"
        )
        if lanes._unconfirmed:
            lanes.confirm(3)
    assert lanes._dead == {}


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
    assert lanes._dead == {"a": [1, 3]}
    lanes.settle(two.token)
    assert lanes._dead == {"a": [3]}
    assert lanes.redrive("a", 3) == Redriven("a", 3)


def test_a_message_that_was_overtaken_and_then_dead_lettered_cannot_be_redriven() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5, max_attempts=2))
    lanes.give_back(take(lanes)[0].token, 0)
    lanes.settle(take(lanes)[0].token)
    lanes.advance(5)
    assert lanes.give_back(take(lanes)[0].token, 5) == [DeadLettered("a", 1, 2, None)]
    assert (lanes.view("a"), lanes._dead) == (None, {})
    with pytest.raises(RedriveRefused):
        lanes.redrive("a", 1)


def test_a_dead_letter_confirmed_after_a_later_ack_cannot_be_redriven() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(4, Release.DURABLE, RetryMode.OVERTAKE, max_attempts=1))
    one, two = take(lanes)
    lanes.give_back(one.token, 0)
    lanes.settle(two.token)
    lanes.confirm(2)
    lanes.confirm(1)
    assert (lanes.view("a"), lanes._dead) == (None, {})
    with pytest.raises(RedriveRefused):
        lanes.redrive("a", 1)


def test_the_highest_settled_message_decides_about_a_redrive() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(4, Release.DURABLE, RetryMode.OVERTAKE))
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


# -- keyless messages ---------------------------------------------------------------------------------------------------


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


# -- a window of more than one ------------------------------------------------------------------------------------------


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
    assert lanes._lanes["a"].acked == set()
    assert (len(lanes), offsets(take(lanes))) == (1, [4])


def test_acks_in_order_settle_one_by_one() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3))
    assert [lanes.settle(lease.token) for lease in take(lanes)] == [[("a", 1)], [("a", 2)], [("a", 3)]]


def test_a_nack_fences_and_revokes_everything_given_out_after_it() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(window=4))
    one, two, three, four = take(lanes)
    lanes.settle(three.token)
    assert lanes.give_back(two.token, 0, error="boom") == [
        Fenced(three.token, "a", 3),
        Fenced(four.token, "a", 4),
        Returned("a", 2, 1, 0, "boom"),
    ]
    for lease in (two, three, four):
        assert_stale(lanes, lease.token)
    assert lanes._lanes["a"].acked == set()
    assert lanes.settle(one.token) == [Settled("a", 1)]
    again = take(lanes)
    assert [(lease.offset, lease.attempt) for lease in again] == [(2, 2), (3, 1), (4, 1)]
    assert [lanes.settle(lease.token) for lease in again] == [[("a", 2)], [("a", 3)], [("a", 4)]]


def test_an_expiry_fences_what_was_given_out_after_it_and_counts_once() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(window=3))
    one, _, three = take(lanes)
    lanes.extend(one.token, 0, 50)
    assert lanes.advance(10) == [Fenced(three.token, "a", 3), Returned("a", 2, 1, 10, EXPIRED)]
    assert lanes.next_deadline() == 50
    assert [(lease.offset, lease.attempt) for lease in take(lanes)] == [(2, 2), (3, 1)]


def test_a_dead_letter_fences_what_was_given_out_after_it() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(window=2, max_attempts=1))
    one, two = take(lanes)
    assert lanes.give_back(one.token, 0, error="boom") == [Fenced(two.token, "a", 2), DeadLettered("a", 1, 1, "boom")]


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


# -- leases and fencing -------------------------------------------------------------------------------------------------


def assert_stale(lanes: Lanes, token: int) -> None:
    """Whatever is said with the token is refused and changes nothing."""
    before = (lanes.save(), lanes.counts(), lanes.next_deadline())
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
    assert (lanes.save(), lanes.counts(), lanes.next_deadline()) == before


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
    assert lanes.advance(14) == [Returned("a", 1, 1, 14, EXPIRED)]


def test_a_lease_can_be_cut_short() -> None:
    lanes = lanes_of("a")
    (lease,) = take(lanes)
    lanes.extend(lease.token, 0, 3)
    assert lanes.advance(3) == [Returned("a", 1, 1, 3, EXPIRED)]


# -- time ---------------------------------------------------------------------------------------------------------------


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
    assert lanes.advance(107) == [Returned("a", 1, 1, 107, EXPIRED)]


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


# -- looking ------------------------------------------------------------------------------------------------------------


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


# -- what is left behind ------------------------------------------------------------------------------------------------


def assert_nothing_left(lanes: Lanes) -> None:
    left = (lanes._lanes, lanes._troubles, lanes._leased, lanes._unconfirmed, lanes._dead)
    assert [len(part) for part in (*left, lanes._delays, lanes._expiry)] == [0] * 7
    assert lanes.counts() == Counts(0, 0, 0, 0, 0)
    take(lanes)
    assert len(lanes._ring) == 0


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("mode", RetryMode)
def test_a_drained_key_costs_nothing(release: Release, mode: RetryMode) -> None:
    delivery = retrying(release=release, mode=mode, min_backoff=1, max_attempts=3)
    lanes = lanes_of("a", "a", None, None, "a", "a", delivery=delivery)
    lanes.push("a", 7, now=0, delay=3)
    lanes.dead_letter("a")
    lanes.remove("a", 2)
    for now in range(40):
        for offset in list(lanes._unconfirmed):
            lanes.confirm(offset)
        for lease in take(lanes, now=now):
            if lease.attempt == 1:
                lanes.give_back(lease.token, now, error="boom")
            else:
                lanes.settle(lease.token)
        lanes.advance(now + 1)
    assert_nothing_left(lanes)


@pytest.mark.parametrize("others", [0, 5])
def test_places_of_dropped_lanes_are_cleared_from_the_ring_when_they_outnumber_the_others(others: int) -> None:
    lanes = lanes_of(*(f"other {n}" for n in range(others)))
    for cycle in range(1, 1000):
        lanes.push("a", 100 + cycle, now=0)
        lanes.remove("a", 100 + cycle)
        assert len(lanes._ring) == others + cycle % (others + 1)
    assert offsets(take(lanes)) == list(range(1, others + 1))


@pytest.mark.parametrize("ack", [False, True])
def test_a_push_behind_a_full_window_looks_at_nothing(ack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_of("a", delivery=Delivery())
    (lease,) = take(lanes)
    if ack:
        lanes.settle(lease.token)
    monkeypatch.delattr(Lanes, "_refresh")
    lanes.push("a", 2, now=0)
    assert len(lanes._lanes["a"].waiting) == 1


def test_a_lane_stands_in_the_ring_once() -> None:
    lanes = lanes_of("a", "b")
    for _ in range(5):
        lanes.pause("a")
        lanes.resume("a")
    assert [lane.key for lane in lanes._ring] == ["a", "b"]


def test_lanes_that_are_not_empty_keep_their_place_when_the_ring_is_cleared() -> None:
    lanes = lanes_of("a", "b", "c")
    lanes.pause("a")
    lanes.remove("b", 2)
    lanes.remove("c", 3)
    lanes.push("d", 4, now=0)
    lanes.resume("a")
    assert offsets(take(lanes)) == [1, 4]


# -- state as data ------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_what_a_crash_would_leave() -> None:
    lanes = lanes_of("a", "a", "b", "c", "d", "e", None, delivery=Delivery(window=2))
    lanes.advance(3)
    lanes.pause("e")
    lanes.dead_letter("d")
    lanes.dead_letter("c", "no use")
    lanes.confirm(4)
    leases = {lease.offset: lease.token for lease in take(lanes, now=3)}
    lanes.settle(leases[1])
    lanes.give_back(leases[3], 3, delay=2, error="boom")
    lanes.give_back(leases[7], 3, delay=2, error="boom")
    assert lanes.save() == SavedLanes(
        now=3,
        next_token=5,
        messages=(
            SavedMessage("a", 1, failures=1),
            SavedMessage("a", 2, failures=1),
            SavedMessage("b", 3, 1, 5, "boom"),
            SavedMessage("d", 5),
            SavedMessage("e", 6),
            SavedMessage(None, 7, 1, 5, "boom", steps_aside=True),
        ),
        paused=("e",),
        dead_letters=(("c", 4),),
    )
    assert lanes.save(count_leases=False).messages[:2] == (SavedMessage("a", 1), SavedMessage("a", 2))
    assert crashed(lanes).save() == lanes.save()


def test_a_redrive_that_was_not_durable_did_not_happen() -> None:
    lanes = lanes_of("b", "a", delivery=Delivery())
    for key, offset in (("a", 2), ("b", 1)):
        lanes.dead_letter(key)
        lanes.confirm(offset)
    lanes.redrive("a", 2)
    saved = lanes.save()
    assert (saved.messages, saved.dead_letters) == ((), (("b", 1), ("a", 2)))
    lanes = crashed(lanes)
    assert lanes.redrive("a", 2) == Redriven("a", 2)
    lanes.confirm(2)
    assert offsets(take(lanes)) == [2]


def test_a_restart_forgets_no_trouble() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=5, max_attempts=3))
    fails(lanes, 1)
    lanes.push("b", 2, now=0)
    lanes = crashed(lanes)
    assert view_of(lanes, "a") == LaneView("a", "delayed", 1, 0, 1, 1, 5, "boom")
    assert lanes.counts() == Counts(2, 1, 0, 1, 0)
    lanes.advance(5)
    leases = take(lanes)
    assert leases[1][2:4] == (1, 2)
    assert lanes.give_back(leases[1].token, 5) == [Returned("a", 1, 2, 15, None)]


def test_an_overtaken_message_whose_time_has_come_is_ready_after_a_restart() -> None:
    lanes = lanes_of("a", delivery=retrying(mode=RetryMode.OVERTAKE, min_backoff=5))
    fails(lanes, 1)
    lanes.advance(5)
    assert offsets(take(crashed(lanes), now=5)) == [1]


def test_a_restored_message_without_trouble_costs_no_more_than_a_new_one() -> None:
    lanes = crashed(lanes_of("a", "a", None))
    assert lanes._troubles == {}
    assert offsets(take(lanes)) == [1, 3]


def test_new_lanes_have_seen_no_time() -> None:
    assert Lanes().save() == SavedLanes(now=-inf, next_token=1, messages=(), paused=(), dead_letters=())


# -- the parts ----------------------------------------------------------------------------------------------------------


def test_a_lane_starts_empty() -> None:
    lane = Lane("a", 2)
    assert (lane.state, TABLE.start) == (LaneState.EMPTY, LaneState.EMPTY)
    assert (lane.key, lane.window, lane.depth, lane.last_settled) == ("a", 2, 0, -1)
    assert not lane.paused
    assert LooseLane().window == inf


def test_a_lane_refuses_a_transition_that_its_table_does_not_name() -> None:
    lanes = lanes_of("a")
    with pytest.raises(IllegalTransition) as refused:
        lanes._refresh(lanes._lanes["a"], LaneEvent.RESUME)
    assert "lane: 'resume' is not possible while 'ready'" in str(refused.value)
    with pytest.raises(IllegalTransition) as refused:
        lanes._refresh(Lane("b", 1), LaneEvent.REDRIVE)
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
