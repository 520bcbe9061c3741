"""Where only the latest message of a key is kept: what leaves, when, and what is left of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, Keep, OnExhausted, ReleaseAfter, RetryMode, Superseded
from seriatim.errors import RedriveRefused
from tests.core.lanes.given import lanes_of, offsets, retrying, state_of, take

LATEST = replace(retrying(), keep=Keep.LATEST)
DURABLE = replace(LATEST, release=ReleaseAfter.DURABLE)


def left(lanes: Lanes) -> list[tuple[int, int]]:
    """What was left behind since this was asked last, and by which message."""
    superseded, lanes.superseded = lanes.superseded, []
    assert {one.key for one in superseded} <= {"a"}
    return [(one.offset, one.by) for one in superseded]


def assert_nothing_left(lanes: Lanes) -> None:
    """A drained key costs nothing."""
    assert (len(lanes), lanes.counts().total, lanes.keys(), lanes.next_deadline()) == (0, 0, [], None)
    assert not lanes.has_troubles


def test_a_newer_message_supersedes_what_waits_before_it() -> None:
    lanes = lanes_of("a", "a", "b", "a", delivery=LATEST)
    assert lanes.superseded == [Superseded("a", 1, 2), Superseded("a", 2, 4)]
    assert (len(lanes), lanes.offsets("a", 9)) == (2, [4])
    assert sorted(offsets(take(lanes))) == [3, 4]


def test_by_default_everything_is_kept() -> None:
    lanes = lanes_of("a", "a")
    assert (len(lanes), lanes.superseded) == (2, [])


def test_messages_without_a_key_supersede_nothing() -> None:
    lanes = lanes_of(None, None, delivery=LATEST)
    (first, second) = take(lanes)
    assert lanes.superseded == []
    lanes.give_back(first.token, 0, delay=5)
    lanes.give_back(second.token, 0)
    lanes.advance(5)
    assert (sorted(offsets(take(lanes))), lanes.superseded) == ([1, 2], [])


def test_a_lease_is_not_touched_and_its_ack_settles_it() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    (lease,) = take(lanes)
    lanes.push("a", 2, now=0)
    lanes.push("a", 3, now=0)
    assert left(lanes) == [(2, 3)]
    assert [one.offset for one in lanes.settle(lease.token)] == [1]
    lanes.settle(take(lanes)[0].token)
    assert_nothing_left(lanes)


@pytest.mark.parametrize("on_exhausted", OnExhausted)
@pytest.mark.parametrize("max_attempts", [1, None])
def test_a_failed_message_is_superseded_when_there_is_a_newer_one(
    on_exhausted: OnExhausted, max_attempts: int | None
) -> None:
    lanes = lanes_of(
        "a", delivery=replace(retrying(max_attempts=max_attempts, on_exhausted=on_exhausted), keep=Keep.LATEST)
    )
    (lease,) = take(lanes)
    lanes.push("a", 2, now=0)
    assert lanes.give_back(lease.token, 0, error="boom") == []
    assert (left(lanes), len(lanes), lanes.has_troubles) == ([(1, 2)], 1, False)
    assert offsets(take(lanes)) == [2]


def test_a_failed_message_comes_again_when_there_is_no_newer_one() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    lanes.give_back(take(lanes)[0].token, 0)
    assert (offsets(take(lanes)), left(lanes)) == ([1], [])


def test_a_failed_message_that_waits_for_its_retry_is_superseded_with_its_delay() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    lanes.give_back(take(lanes)[0].token, 0, delay=60)
    lanes.push("a", 2, now=0)
    assert left(lanes) == [(1, 2)]
    lanes.settle(take(lanes)[0].token)
    assert_nothing_left(lanes)


def test_a_delayed_message_supersedes_when_its_time_has_come() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    lanes.push("a", 2, now=0, delay=5)
    lanes.push("a", 3, now=0, delay=9)
    assert (left(lanes), lanes.next_deadline()) == ([], 5)
    lanes.advance(5)
    assert (left(lanes), lanes.offsets("a", 9)) == ([(1, 2)], [2, 3])
    lanes.push("a", 4, now=5)
    assert left(lanes) == [(2, 4), (3, 4)]
    assert (offsets(take(lanes)), lanes.next_deadline()) == ([4], 15)


def test_a_delayed_message_is_no_newer_one_before_its_time() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    (lease,) = take(lanes)
    lanes.push("a", 2, now=0, delay=60)
    lanes.give_back(lease.token, 0)
    assert (left(lanes), offsets(take(lanes))) == ([], [1])


def test_in_flight_the_newest_supersedes_the_failed_ones_before_it() -> None:
    """With a window several messages of a key are out; what fails goes only when a newer one stays."""
    lanes = lanes_of("a", delivery=replace(retrying(window=2, mode=RetryMode.OVERTAKE), keep=Keep.LATEST))
    (first,) = take(lanes, 1)
    lanes.push("a", 2, now=0)
    (second,) = take(lanes, 1)
    lanes.give_back(first.token, 0, delay=60)
    assert (left(lanes), len(lanes)) == ([(1, 2)], 1)
    lanes.give_back(second.token, 0, delay=60)
    assert (left(lanes), lanes.offsets("a", 9)) == ([], [2])


def test_what_is_fenced_behind_a_failure_supersedes_it() -> None:
    lanes = lanes_of("a", delivery=replace(retrying(window=2), keep=Keep.LATEST))
    (first,) = take(lanes, 1)
    lanes.push("a", 2, now=0)
    take(lanes, 1)
    lanes.give_back(first.token, 0)
    assert (left(lanes), offsets(take(lanes))) == ([(1, 2)], [2])


def test_also_a_paused_key_keeps_its_latest_only() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    lanes.pause("a")
    lanes.push("a", 2, now=0)
    assert (left(lanes), state_of(lanes, "a")) == ([(1, 2)], "paused")
    lanes.resume("a")
    assert offsets(take(lanes)) == [2]


def test_a_retry_lets_the_head_go_and_what_is_delayed_behind_it_waits_on() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    (first,) = take(lanes)
    lanes.push("a", 2, now=0, delay=60)
    lanes.give_back(first.token, 0, delay=30)
    lanes.retry("a", 0)
    assert (left(lanes), offsets(take(lanes))) == ([], [1])


def test_a_retry_of_what_was_overtaken_leaves_the_newest() -> None:
    lanes = lanes_of("a", delivery=replace(retrying(mode=RetryMode.OVERTAKE), keep=Keep.LATEST))
    (first,) = take(lanes)
    lanes.push("a", 2, now=0, delay=60)
    lanes.give_back(first.token, 0, delay=30)
    assert (left(lanes), lanes.offsets("a", 9)) == ([], [1, 2])
    lanes.retry("a", 0)
    assert (left(lanes), lanes.offsets("a", 9)) == ([(1, 2)], [2])


@pytest.mark.parametrize("verb", ["dead_letter", "skip"])
def test_what_comes_back_because_an_operator_took_the_head_out_leaves_the_newest(verb: str) -> None:
    lanes = lanes_of("a", delivery=replace(retrying(window=3), keep=Keep.LATEST))
    take(lanes, 1)
    for offset in (2, 3):
        lanes.push("a", offset, now=0)
        take(lanes, 1)
    getattr(lanes, verb)("a")
    assert (left(lanes), offsets(take(lanes))) == ([(2, 3)], [3])


def test_a_dead_letter_goes_back_only_where_nothing_newer_is() -> None:
    lanes = lanes_of("a", delivery=LATEST)
    lanes.dead_letter("a")
    lanes.push("a", 2, now=0)
    said = (
        "message 1 can't go back to its place in key 'a': there is a newer one, and the subscription keeps the latest only; "
        "append it at the end instead"
    )
    with pytest.raises(RedriveRefused, match=f"^{said}$"):
        lanes.redrive("a", 1)
    lanes.remove("a", 2)
    lanes.redrive("a", 1)
    assert offsets(take(lanes)) == [1]


def test_what_is_just_being_redriven_stays_until_that_is_durable() -> None:
    lanes = lanes_of("a", "b", delivery=DURABLE)
    lanes.dead_letter("a")
    lanes.confirm(1)
    lanes.redrive("a", 1)
    lanes.push("a", 3, now=0)
    lanes.push("a", 4, now=0)
    assert (left(lanes), lanes.offsets("a", 9)) == ([(3, 4)], [1, 4])
    lanes.confirm(1)
    assert (left(lanes), lanes.offsets("a", 9), len(lanes)) == ([(1, 4)], [4], 2)


def test_what_failed_before_a_restart_is_superseded_by_what_is_due() -> None:
    lanes = Lanes(LATEST)
    lanes.advance(0)
    lanes.admit("a", 1, failures=1)
    lanes.admit("a", 2, failures=1, not_before=60)
    lanes.admit("a", 3, failures=1, not_before=70)
    assert left(lanes) == []
    lanes.admit("a", 4, failures=1)
    assert (left(lanes), lanes.counts().total) == ([(1, 4), (2, 4), (3, 4)], 1)
    lanes.settle(take(lanes)[0].token)
    assert_nothing_left(lanes)


def test_a_message_whose_attempts_a_crash_used_up_is_superseded_too() -> None:
    lanes = Lanes(replace(retrying(max_attempts=1), keep=Keep.LATEST))
    lanes.admit("a", 1, failures=1)
    lanes.push("a", 2, now=0)
    assert lanes.advance(0) == []
    assert (left(lanes), offsets(take(lanes))) == ([(1, 2)], [2])


def test_the_others_of_a_key_are_dead_lettered_with_the_last_one() -> None:
    lanes = Lanes(replace(retrying(max_attempts=1), keep=Keep.LATEST))
    lanes.admit("a", 1, failures=1)
    lanes.push("a", 2, now=0, delay=60)
    assert [getattr(effect, "offset", None) for effect in lanes.advance(0)] == [1]
    assert (left(lanes), lanes.offsets("a", 9)) == ([], [2])


def test_keys_do_not_supersede_each_other() -> None:
    lanes = lanes_of("a", "b", "a", "b", delivery=Delivery(keep=Keep.LATEST))
    assert lanes.superseded == [Superseded("a", 1, 3), Superseded("b", 2, 4)]


@pytest.mark.parametrize("key", ["a", None])
def test_the_very_first_message_that_fails_comes_again(key: str | None) -> None:
    lanes = Lanes(LATEST)
    lanes.push(key, 0, now=0)
    lanes.give_back(take(lanes)[0].token, 0)
    assert (offsets(take(lanes)), lanes.superseded) == ([0], [])


def test_an_overtaken_message_is_superseded_with_its_delay() -> None:
    lanes = lanes_of("a", delivery=replace(retrying(mode=RetryMode.OVERTAKE), keep=Keep.LATEST))
    lanes.give_back(take(lanes)[0].token, 0, delay=60)
    lanes.push("b", 3, now=0, delay=100)
    lanes.push("a", 4, now=0)
    assert (left(lanes), lanes.offsets("a", 9), lanes.next_deadline()) == ([(1, 4)], [4], 100)
