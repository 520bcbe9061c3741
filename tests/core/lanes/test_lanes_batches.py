"""Batches: one lease over consecutive messages of a key (rule 9 of the lanes)."""

from __future__ import annotations

import pytest

from seriatim.core.lanes.lanes import EXPIRED, Lanes
from seriatim.core.lanes.tenants import TenantLanes
from seriatim.core.lanes.types import (
    DeadLettered,
    Delivery,
    Expired,
    Fenced,
    KeyPaused,
    Lease,
    OnExhausted,
    Removed,
    Returned,
    Settled,
)
from seriatim.errors import FailedPrecondition, StaleLease
from tests.core.lanes.crashes import crashed, saved
from tests.core.lanes.given import lanes_of, retrying, state_of, view_of


def batch_of(lanes: Lanes, size: int = 10, now: float = 0) -> Lease:
    (lease,) = lanes.take(now, 10, 100, batch=size)
    return lease


def taken(lanes: Lanes, size: int = 10) -> tuple[int, ...]:
    return batch_of(lanes, size).offsets


def test_a_batch_has_the_messages_of_one_key_in_order_under_one_token() -> None:
    lanes = lanes_of("a", "a", "b", "a", "b")
    first, second = lanes.take(0, 10, 100, batch=2)
    assert (first.key, first.offsets, second.key, second.offsets) == ("a", (1, 2), "b", (3, 5))
    assert second.token == first.token + 1
    assert not lanes.take(0, 10, 100, batch=2), "the rest of a key waits for its batch"
    assert (view_of(lanes, "a").depth, view_of(lanes, "a").in_flight) == (3, 2)
    assert (lanes.counts().leased, lanes.counts().blocked) == (4, 1)


def test_no_more_messages_are_taken_than_asked_for() -> None:
    lanes = lanes_of("a", "a", "a", "b")
    assert [lease.offsets for lease in lanes.take(0, 10, 2, batch=3)] == [(1, 2)]
    assert [lease.offsets for lease in lanes.take(0, 10, 2, batch=3)] == [(4,)]


def test_an_ack_settles_a_prefix_and_the_lease_goes_on_with_the_rest() -> None:
    lanes = lanes_of("a", "a", "a", "a")
    token = batch_of(lanes).token
    assert lanes.settle(token, 2) == [Settled("a", 1), Settled("a", 2)]
    assert (lanes.lease(token), state_of(lanes, "a")) == (Lease(token, "a", 3, 1, 10, (4,)), "leased")
    assert lanes.settle(token, 3) == [Settled("a", 3)]
    for settled in (1, 2, 3):
        with pytest.raises(StaleLease):
            lanes.settle(token, settled)
        with pytest.raises(StaleLease):
            lanes.give_back(token, 0, at=settled)
        with pytest.raises(StaleLease):
            lanes.give_up(token, 0, at=settled)
    assert lanes.settle(token) == [Settled("a", 4)]
    assert lanes.view("a") is None


def test_the_next_message_waits_until_every_ack_of_a_batch_is_durable() -> None:
    lanes = lanes_of("a", "a", "a", delivery=Delivery())
    lanes.settle(batch_of(lanes, 2).token)
    for offset in (2, 1):
        assert state_of(lanes, "a") == "settling"
        lanes.confirm(offset)
    assert taken(lanes) == (3,)


def test_a_poison_message_in_the_middle_costs_only_itself() -> None:
    lanes = lanes_of(*"aaaaaa", delivery=retrying(max_attempts=2))
    delivered: list[tuple[int, ...]] = []
    dead: list[int] = []
    while len(lanes):
        lease = batch_of(lanes, 4)
        delivered.append(lease.offsets)
        if 3 in lease.offsets:  # nobody says where
            effects = lanes.give_back(lease.token, 0, error="poison")
            dead += [effect.offset for effect in effects if isinstance(effect, DeadLettered)]
        else:
            lanes.settle(lease.token)
    assert dead == [3]
    assert delivered == [(1, 2, 3, 4), (1,), (2,), (3,), (3,), (4, 5, 6)]


def test_when_nobody_says_where_it_failed_nothing_counts() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=1, min_backoff=5))
    lease = batch_of(lanes)
    assert lanes.give_back(lease.token, 1, error="boom") == [
        Returned("a", 1, 0, 1, "boom"),
        Returned("a", 2, 0, 1, "boom"),
    ]
    assert state_of(lanes, "a") == "ready", "and there is no backoff: it is not known whose it would be"
    assert batch_of(lanes) == Lease(lease.token + 1, "a", 1, 1, 10)


def test_an_expired_batch_counts_for_nobody_and_goes_one_at_a_time() -> None:
    lanes = lanes_of("a", "a", "a", delivery=retrying(max_attempts=1))
    lease = batch_of(lanes, 2)
    returned = [Returned("a", 1, 0, 10, EXPIRED), Returned("a", 2, 0, 10, EXPIRED)]
    assert lanes.advance(10) == [Expired(lease), *returned]
    for alone in ((1,), (2,)):
        lease = batch_of(lanes)
        assert lease.offsets == alone
        lanes.settle(lease.token)
    lanes.push("a", 9, now=10)
    assert taken(lanes) == (3, 9), "what was not in the batch is not under suspicion"


def test_the_last_message_of_a_batch_counts_when_all_before_it_are_settled() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=1))
    lease = batch_of(lanes)
    lanes.settle(lease.token, 1)
    assert lanes.give_back(lease.token, 0, error="boom") == [DeadLettered("a", 2, 1, "boom")]


def test_a_failure_that_names_its_message_counts_for_that_one_and_keeps_the_others_together() -> None:
    lanes = lanes_of("a", "a", "a", "a", delivery=retrying(max_attempts=2))
    lease = batch_of(lanes)
    assert lanes.give_back(lease.token, 0, error="boom", at=3) == [
        Returned("a", 4, 0, 0, None),
        Returned("a", 3, 1, 0, "boom"),
        Returned("a", 1, 0, 0, None),
        Returned("a", 2, 0, 0, None),
    ]
    lease = batch_of(lanes)
    assert lease.offsets == (1, 2)
    lanes.settle(lease.token)
    assert (taken(lanes), lanes.failures(3)) == ((3,), (1, "boom")), "what has failed goes alone"


@pytest.mark.parametrize(("rest", "dead"), [(False, [2]), (True, [2, 3, 4])])
def test_a_message_is_given_up_with_the_rest_behind_it_and_not_with_what_is_before_it(
    rest: bool, dead: list[int]
) -> None:
    lanes = lanes_of("a", "a", "a", "a")
    effects = lanes.give_up(batch_of(lanes, 3).token, 0, "no use", rest, at=2)
    assert [effect.offset for effect in effects if isinstance(effect, DeadLettered)] == dead
    assert taken(lanes) == (1,) if rest else (1, 3, 4)


def test_a_paused_key_stands_at_the_message_that_failed() -> None:
    lanes = lanes_of("a", "a", delivery=retrying(max_attempts=1, on_exhausted=OnExhausted.PAUSE))
    lease = batch_of(lanes)
    assert KeyPaused("a", 2, 1, "boom") in lanes.give_back(lease.token, 0, error="boom", at=2)
    lanes.resume("a")
    assert taken(lanes) == (1, 2)


def test_what_nobody_tried_comes_back_as_a_batch() -> None:
    lanes = lanes_of("a", "a", "a")
    lanes.give_back(batch_of(lanes, 2).token, 0, delay=3, count=False)
    assert (state_of(lanes, "a"), view_of(lanes, "a").not_before) == ("delayed", 3)
    lanes.advance(3)
    assert taken(lanes) == (1, 2, 3)


def test_a_batch_ends_before_a_message_that_has_to_wait_or_failed() -> None:
    lanes = lanes_of("a", "a")
    lanes.push("a", 3, now=0, delay=5)
    lanes.push("a", 4, now=0)
    lease = batch_of(lanes)
    assert lease.offsets == (1, 2)
    lanes.settle(lease.token)
    lanes.advance(5)
    assert taken(lanes) == (3, 4)


def test_an_operator_takes_a_whole_batch_back() -> None:
    lanes = lanes_of("a", "a", "a")
    lease = lanes.take(0, 10, 2, "x", batch=2)[0]
    with pytest.raises(FailedPrecondition, match="message 2 is in flight"):
        lanes.remove("a", 2)
    assert lanes.skip("a") == [Fenced(lease, "x"), Removed("a", 1)]
    assert (taken(lanes), lanes.counts().leased) == ((2, 3), 2)


def test_what_has_no_key_and_what_is_pipelined_or_limited_comes_in_batches_of_one() -> None:
    assert [lease.offsets for lease in lanes_of(None, None).take(0, 10, 10, batch=5)] == [(1,), (2,)]
    assert [lease.offsets for lease in lanes_of("a", "a", delivery=retrying(2)).take(0, 10, 10, batch=5)] == [
        (1,),
        (2,),
    ]
    limited = TenantLanes(Delivery(tenant_limit=2))
    limited.push_all((("a", 1), ("a", 2)))
    assert [lease.offsets for lease in limited.take(0, 10, 10, batch=5)] == [(1,)]


def test_what_is_said_about_a_message_of_another_lease_changes_nothing() -> None:
    lanes = lanes_of("a", "a", "a")
    lease = batch_of(lanes, 2)
    before = saved(lanes), lanes.lease(lease.token)
    with pytest.raises(StaleLease):
        lanes.settle(lease.token, 3)
    with pytest.raises(StaleLease):
        lanes.give_back(lease.token, 0, at=3)
    with pytest.raises(StaleLease):
        lanes.give_up(lease.token, 0, at=3)
    assert (saved(lanes), lanes.lease(lease.token)) == before


def test_after_a_crash_in_a_batch_its_messages_go_one_at_a_time() -> None:
    lanes = lanes_of(*"aaaa", delivery=retrying(max_attempts=1))
    batched = taken(lanes, 3)
    restarted = crashed(lanes, count_leases=True, batched=batched)
    assert not restarted.advance(0), "no attempt was counted"
    assert taken(restarted) == (1,)
    unnoted = crashed(lanes, count_leases=False, batched=batched)
    assert taken(unnoted) == (1, 2, 3, 4)
