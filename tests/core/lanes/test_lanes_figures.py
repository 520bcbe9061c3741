"""What lanes tell about themselves: leases, failures, figures, refusals to the word, and dead letters that were passed."""

from __future__ import annotations

from math import inf, nan

import pytest

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, Expired, OnExhausted, RetryMode, RetryPolicy
from seriatim.errors import FailedPrecondition, IllegalTransition, InvalidArgument, NotFound, RedriveRefused, StaleLease
from tests.core.lanes import given

DURABLE = Delivery()
BACKOFF = RetryPolicy(min_backoff=5, max_backoff=5, max_attempts=3)


def lanes_of(*keys: str | None, delivery: Delivery = DURABLE) -> Lanes:
    """Lanes in which the next message of a key waits until an ack is durable."""
    return given.lanes_of(*keys, delivery=delivery)


def test_leases_that_are_out_are_listed_and_counted_over_several_takes() -> None:
    lanes = lanes_of("a", "b", "c", None)
    taken = [*lanes.take(0, 10, 1), *lanes.take(0, 10, 2)]
    assert lanes.leases() == taken
    assert lanes.counts().leased == 3
    assert not lanes.is_quiet()


def test_who_has_a_lease_is_known_while_it_is_out() -> None:
    lanes = lanes_of("a", "b", "a", delivery=Delivery(window=2))
    (first,) = lanes.take(0, 10, 1, "x")
    (second,) = lanes.take(0, 10, 1, "y")
    assert (first.key, lanes.holder(first.token)) == ("a", "x")
    assert (second.key, lanes.holder(second.token)) == ("b", "y")
    with pytest.raises(StaleLease, match="99"):
        lanes.holder(99)
    expired = [effect for effect in lanes.advance(10) if isinstance(effect, Expired)]
    assert [(effect.lease, effect.holder) for effect in expired] == [(first, "x"), (second, "y")]
    with pytest.raises(StaleLease, match=str(first.token)):
        lanes.holder(first.token)


def test_the_failures_of_a_message_are_told_with_the_last_error() -> None:
    lanes = lanes_of("a", "b")
    for error in ("first", "second"):
        lease = next(lease for lease in lanes.take(0, 10, 2) if lease.key == "a")
        lanes.give_back(lease.token, 0, error=error)
    assert lanes.failures(1) == (2, "second")
    assert lanes.failures(2) == (0, None)


def test_only_keys_that_wait_for_time_or_are_paused_count_as_blocked() -> None:
    lanes = lanes_of("a", "b", "c", "d")
    lanes.pause("d")
    lanes.push("e", 9, 0, delay=5)
    assert (lanes.key_count, lanes.blocked_keys()) == (5, ["d", "e"])
    lanes.advance(5)
    lanes.resume("d")
    assert (lanes.blocked_keys(), lanes.blocked_key_count) == ([], 0)


def test_the_oldest_of_a_key_is_its_first_message_also_while_nothing_is_out() -> None:
    lanes = lanes_of("a", "b", "a")
    assert (lanes.oldest(["b"]), lanes.oldest(["a", "b"])) == (2, 1)
    lanes.take(0, 10, 1)
    assert lanes.oldest(["a"]) == 1
    assert lanes.offsets("a", 1) == [1]


def test_lanes_become_ready_one_by_one_when_their_acks_are_confirmed() -> None:
    lanes = lanes_of("a", "a", "b", "b", "c")
    leases = lanes.take(0, 10, 10)
    for lease in leases:
        lanes.settle(lease.token)
    assert lanes.counts().ready == 0
    lanes.confirm_all([1])
    assert lanes.counts().ready == 1
    lanes.confirm_all([3, 5])
    assert (lanes.counts().ready, lanes.keys()) == (2, ["a", "b"])
    assert [lease.offset for lease in lanes.take(0, 10, 10)] == [2, 4]


def test_with_a_window_a_lane_waits_for_the_last_of_its_acks() -> None:
    lanes = lanes_of("a", "a", "a", delivery=Delivery(window=2))
    for lease in lanes.take(0, 10, 2):
        lanes.settle(lease.token)
    assert lanes.take(0, 10, 2) == []
    lanes.confirm_all([1])
    assert [lease.offset for lease in lanes.take(0, 10, 2)] == [3]


def test_what_is_just_being_dead_lettered_or_removed_is_refused_by_that_name() -> None:
    lanes = lanes_of("a", "a", "a")
    lanes.dead_letter("a")
    with pytest.raises(RedriveRefused) as refused:
        lanes.redrive("a", 1)
    assert str(refused.value) == "message 1 is just being dead-lettered: try again"
    lanes.skip("a")
    with pytest.raises(FailedPrecondition) as again:
        lanes.remove("a", 2)
    assert str(again.value) == "message 2 is just being removed: try again"


def test_a_head_that_is_just_being_redriven_can_not_be_skipped() -> None:
    lanes = lanes_of("a", "a")
    lanes.dead_letter("a")
    lanes.confirm(1)
    lanes.redrive("a", 1)
    with pytest.raises(FailedPrecondition) as refused:
        lanes.skip("a")
    assert str(refused.value) == "message 1 is just being redriven: try again"


def test_a_paused_key_without_messages_has_no_head() -> None:
    lanes = lanes_of("a")
    lanes.pause("b")
    with pytest.raises(NotFound, match="'b' has no message to skip"):
        lanes.skip("b")


def test_another_retry_mode_is_refused_in_these_words() -> None:
    with pytest.raises(IllegalTransition, match=r"^lanes are made for one retry mode: load them anew$"):
        lanes_of().set_retry(RetryPolicy(mode=RetryMode.OVERTAKE))


def test_a_dead_letter_is_returnable_until_a_later_message_of_its_key_is_settled() -> None:
    lanes = lanes_of("a", "a", "b")
    lanes.dead_letter("a")
    lanes.confirm(1)
    assert lanes.is_returnable("a", 1)
    later, other = lanes.take(0, 10, 2)
    lanes.settle(other.token)
    assert lanes.is_returnable("a", 1)
    lanes.settle(later.token)
    assert not lanes.is_returnable("a", 1)


def test_dead_letters_are_noted_once_when_a_later_message_of_their_key_passes_them() -> None:
    lanes = lanes_of("a", "b", "a", "b", "a")
    for key, offset in (("a", 1), ("b", 2)):
        lanes.dead_letter(key)
        lanes.confirm(offset)
    for lease in lanes.take(0, 10, 2):
        lanes.settle(lease.token)
        lanes.confirm(lease.offset)
    assert lanes.overtaken == [1, 2]
    (last,) = lanes.take(0, 10, 1)
    lanes.settle(last.token)
    assert (last.offset, lanes.overtaken) == (5, [1, 2])


@pytest.mark.parametrize("rest", [False, True])
def test_what_is_taken_out_while_it_waits_for_its_retry_leaves_no_deadline_behind(rest: bool) -> None:
    lanes = lanes_of("a", "a", "b", delivery=Delivery(BACKOFF))
    first, other = lanes.take(0, 10, 2)
    lanes.give_back(first.token, 0)
    lanes.give_back(other.token, 0)
    if rest:
        lanes.dead_letter("a", rest=True)
    else:
        lanes.remove("a", 1)
    lanes.remove("b", 3)
    assert lanes.next_deadline() is None


def test_whoever_resumes_a_key_gives_an_attempt_to_what_has_none_left_in_that_key_alone_in_order() -> None:
    retry = RetryPolicy.immediate(max_attempts=1, on_exhausted=OnExhausted.PAUSE)
    lanes = lanes_of("a", "b", delivery=Delivery(retry))
    for lease in reversed(lanes.take(0, 10, 2)):
        lanes.give_back(lease.token, 0)
    assert [(granted.key, granted.offset, granted.attempts) for granted in lanes.resume("b")] == [("b", 2, 0)]
    assert [(granted.key, granted.offset) for granted in lanes.resume("a")] == [("a", 1)]


@pytest.mark.parametrize("seconds", [inf, -inf, nan])
def test_a_lease_of_no_finite_length_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidArgument) as refused:
        lanes_of("a").take(0, seconds)
    assert str(refused.value) == f"lease_time must be a finite number, not {seconds!r}"


def test_a_key_that_is_paused_while_its_ack_is_written_stays_paused() -> None:
    lanes = lanes_of("a", "a", "b")
    first, other = lanes.take(0, 10, 2)
    lanes.settle(first.token)
    lanes.pause("a")
    lanes.confirm(1)
    lanes.settle(other.token)
    lanes.confirm(3)
    assert (lanes.take(0, 10, 2), lanes.counts().ready, lanes.keys()) == ([], 0, ["a"])
    lanes.resume("a")
    assert [lease.offset for lease in lanes.take(0, 10, 2)] == [2]
