"""Whose messages are out: who gets more of a key, and who is told what became of a lease."""

from __future__ import annotations

import pytest

from seriatim.core.lanes.types import Delivery, Expired, ReleaseAfter, RetryMode
from tests.core.lanes.given import lanes_of, offsets, retrying, state_of, take

TWO_AT_ONCE = retrying(window=2)


@pytest.mark.parametrize("delivery", [retrying(), TWO_AT_ONCE, Delivery(release=ReleaseAfter.DURABLE)])
@pytest.mark.parametrize("key", ["a", None])
def test_whoever_acks_hears_whose_lease_it_was(key: str | None, delivery: Delivery) -> None:
    lanes = lanes_of(key, delivery=delivery)
    (lease,) = lanes.take(0, 10, 1, "me")
    assert lanes.holder(lease.token) == "me"
    assert lanes.settle_into([], lease.token) == "me"


@pytest.mark.parametrize("key", ["a", None])
def test_a_lease_that_expires_names_its_holder(key: str | None) -> None:
    lanes = lanes_of(key, key, "b", delivery=TWO_AT_ONCE)
    mine, others = lanes.take(0, 10, 1, "me"), lanes.take(0, 10, 1, "other")
    expired = {effect.lease: effect.holder for effect in lanes.advance(10) if isinstance(effect, Expired)}
    assert expired == {**dict.fromkeys(mine, "me"), **dict.fromkeys(others, "other")}


def test_a_key_that_is_paused_gives_nothing_more_to_its_holder() -> None:
    lanes = lanes_of("a", "a", delivery=TWO_AT_ONCE)
    lanes.take(0, 10, 1, "me")
    lanes.pause("a")
    assert lanes.take(0, 10, 1, "me") == []
    lanes.resume("a")
    assert offsets(lanes.take(0, 10, 1, "me")) == [2]


def test_a_key_that_stays_ready_keeps_its_turn_with_its_holder() -> None:
    lanes = lanes_of("a", "a", "a", "b", "b", "b", delivery=retrying(window=3))
    lanes.take(0, 10, 2, "me")
    lanes.push("a", 7, now=0)  # the first to wait stays the first
    assert [lease.key for lease in lanes.take(0, 10, 2, "me")] == ["a", "b"]


def test_an_ack_makes_room_in_a_full_window() -> None:
    lanes = lanes_of("a", "a", "a", delivery=TWO_AT_ONCE)
    first, _ = take(lanes, 2)
    assert take(lanes) == []
    lanes.settle(first.token)
    assert offsets(take(lanes)) == [3]


def test_a_paused_key_stays_paused_when_its_lease_is_acked_and_that_is_durable() -> None:
    lanes = lanes_of("a", "a", delivery=Delivery(release=ReleaseAfter.DURABLE))
    (lease,) = take(lanes)
    lanes.pause("a")
    lanes.settle(lease.token)
    assert state_of(lanes, "a") == "paused"
    lanes.confirm(lease.offset)
    assert state_of(lanes, "a") == "paused"


def test_a_provisionally_acked_message_is_among_the_first_of_its_key() -> None:
    lanes = lanes_of("a", "a", "a", delivery=TWO_AT_ONCE)
    _, second = take(lanes, 2)
    assert lanes.settle(second.token) == []
    assert lanes.offsets("a", 3) == [1, 2, 3]


def test_a_retry_brings_back_what_was_overtaken_when_nothing_else_is_left() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(window=2, mode=RetryMode.OVERTAKE, min_backoff=60))
    for lease in take(lanes, 2):
        lanes.give_back(lease.token, 0)
    assert [effect.offset for effect in lanes.retry("a", 0)] == [1, 2]


def test_keyless_dead_letters_lose_their_places_to_nobody() -> None:
    lanes = lanes_of(None, None)
    lanes.dead_letter(None)
    lanes.settle(take(lanes)[0].token)
    assert lanes.overtaken == []
    assert lanes.is_returnable(None, 1)
