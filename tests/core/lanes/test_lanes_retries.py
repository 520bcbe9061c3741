"""What fails, expires or is delayed: it keeps its place, comes back, and is dead-lettered when its attempts are used up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.lanes import EXPIRED, Lanes
from seriatim.core.lanes.types import (
    Counts,
    DeadLettered,
    Expired,
    KeyPaused,
    LaneView,
    OnExhausted,
    ReleaseAfter,
    RetryMode,
    Returned,
)
from tests.core.lanes.crashes import crashed
from tests.core.lanes.given import fails, lanes_of, offsets, retrying, state_of, take, view_of

# -- trouble blocks its own lane, and keeps its place ------------------------------------------------------------------


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


# -- retries -----------------------------------------------------------------------------------------------------------


def test_backoff_doubles_between_its_bounds_for_nacks_and_expiries_alike() -> None:
    lanes, now, waits = lanes_of("a", delivery=retrying(min_backoff=1, max_backoff=5)), 0.0, []
    for attempt in range(1, 6):
        (lease,) = take(lanes, now=now)
        assert lease.attempt == attempt
        if attempt % 2:
            (effect,) = lanes.give_back(lease.token, now, error="boom")
        else:
            now += 10
            expired, effect = lanes.advance(now)
            assert expired == Expired(lease)
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
    (lease,) = lanes.take(0, 10, consumer="x")
    assert lanes.advance(9.9) == []
    assert lanes.advance(10) == [Expired(lease, "x"), Returned("a", 1, 1, 10, "lease expired")]


def test_leases_of_several_keys_expire_together() -> None:
    lanes = lanes_of("a", "b")
    one, two = take(lanes)
    assert lanes.advance(10) == [
        Expired(one),
        Returned("a", 1, 1, 10, EXPIRED),
        Expired(two),
        Returned("b", 2, 1, 10, EXPIRED),
    ]


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


# -- attempts used up --------------------------------------------------------------------------------------------------


def test_attempts_are_exact_for_nacks() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=3))
    assert fails(lanes, 3, "boom") == [DeadLettered("a", 1, attempts=3, error="boom")]
    assert offsets(take(lanes)) == [2]


def test_attempts_are_exact_for_expiries() -> None:
    lanes = lanes_of("a", delivery=retrying(max_attempts=2))
    (first,) = take(lanes)
    assert lanes.advance(10) == [Expired(first), Returned("a", 1, 1, 10, EXPIRED)]
    (second,) = take(lanes, now=10)
    assert lanes.advance(20) == [Expired(second), DeadLettered("a", 1, 2, EXPIRED)]
    assert len(lanes) == 0


def test_a_dead_letter_unblocks_its_key_once_it_is_durable() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(release=ReleaseAfter.DURABLE, max_attempts=1))
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


# -- attempts used up by a crash ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", None])
def test_a_message_that_crashes_its_consumer_each_time_is_dead_lettered_after_exactly_its_attempts(
    key: str | None,
) -> None:
    lanes = lanes_of(key, key, delivery=retrying(release=ReleaseAfter.DURABLE, max_attempts=2))
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
    lanes = lanes_of("a", "a", delivery=retrying(release=ReleaseAfter.DURABLE, max_attempts=1))
    fails(lanes, 1)
    lanes = crashed(lanes)
    assert (take(lanes), state_of(lanes, "a")) == ([], LaneState.DELAYED)
    assert lanes.advance(0) == [DeadLettered("a", 1, 1, "boom")]


def test_a_crash_that_used_up_attempts_takes_the_rest_along_when_told_so() -> None:
    policy = OnExhausted.DEAD_LETTER_REST
    for release in ReleaseAfter:
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


def test_a_message_that_is_given_up_is_dead_lettered_alone_whatever_its_attempts() -> None:
    lanes = lanes_of("a", "a")
    (lease,) = take(lanes)
    assert lanes.give_up(lease.token, 0, "no such address") == [DeadLettered("a", 1, 1, "no such address")]
    assert offsets(take(lanes)) == [2]


def test_a_message_may_be_given_up_with_the_rest_of_its_key() -> None:
    lanes = lanes_of("a", "a", "b")
    first, _ = take(lanes)
    letters = [effect for effect in lanes.give_up(first.token, 0, rest=True) if isinstance(effect, DeadLettered)]
    assert [letter.offset for letter in letters] == [1, 2]
    assert take(lanes) == []
