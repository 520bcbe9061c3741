"""Tenants: never more in flight than the limit, turns between tenants, and nobody starves."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.tenants import TenantLanes, new_lanes
from seriatim.core.lanes.types import Delivery, Lease, ReleaseAfter, RetryPolicy
from seriatim.errors import InvalidArgument
from tests.core.lanes.given import take


def tenant_lanes(delivery: Delivery, *keys: str | None) -> TenantLanes:
    lanes = new_lanes(delivery)
    assert isinstance(lanes, TenantLanes)
    lanes.advance(0)
    lanes.push_all(list(zip(keys, range(1, len(keys) + 1), strict=True)))
    return lanes


def test_tenants_have_turns_and_no_more_in_flight_than_their_limit() -> None:
    lanes = tenant_lanes(Delivery(tenant_limit=2), "a/1", "a/2", "a/3", "a/4", "b/1", "c", None, None, None)
    leases = take(lanes)
    assert [lease.key for lease in leases] == ["a/1", "b/1", "c", None, "a/2", None, None]
    assert (lanes.full_tenant("a/4"), lanes.full_tenant("b/1"), lanes.full_tenant(None)) == ("a", None, None)
    lanes.settle(leases[0].token)
    assert [lease.key for lease in take(lanes)] == ["a/3"]
    lanes.give_back(leases[4].token, 0, delay=0)
    assert [lease.key for lease in take(lanes)] == ["a/4"], "the key that failed has its turn behind the others"


def test_it_is_known_since_when_a_tenant_is_full_or_has_room_again() -> None:
    lanes = tenant_lanes(Delivery(tenant_limit=2), "a/1", "a/2", "a/3", "b/1")
    assert [lanes.room_changed(key) for key in ("a/3", "b/1", "unknown")] == [-inf] * 3
    (first,), (of_b,), (second,) = (lanes.take(now, 60) for now in (4, 5, 6))
    assert [lease.key for lease in (first, of_b, second)] == ["a/1", "b/1", "a/2"]
    assert [lanes.room_changed(key) for key in ("a/3", "b/1", "unknown")] == [6, -inf, -inf]
    lanes.settle_into([], first.token, now=8)
    settled = lanes.view("a/1")
    assert settled is not None
    assert (lanes.room_changed("a/3"), settled.since) == (8, 8)
    lanes.settle_into([], second.token, now=9)
    assert lanes.room_changed("a/3") == 8, "it had room before"


def test_another_separator_and_a_key_without_one() -> None:
    delivery = Delivery(tenant_limit=1, tenant_separator=":")
    assert [lease.key for lease in take(tenant_lanes(delivery, "a:1", "a:2", "b/1", "b/2"))] == ["a:1", "b/1", "b/2"]


@pytest.mark.parametrize(("limit", "kind"), [(None, Lanes), (1, TenantLanes)])
def test_lanes_are_of_the_kind_that_the_options_ask_for_and_count_tokens_as_they_are_told(
    limit: int | None, kind: type[Lanes]
) -> None:
    delivery = Delivery(tenant_limit=limit)
    assert type(new_lanes(delivery)) is kind
    assert [new_lanes(delivery).next_token, new_lanes(delivery, 7).next_token, kind(delivery).next_token] == [1, 7, 1]


@pytest.mark.parametrize("given", [{"tenant_limit": 0}, {"tenant_separator": ""}, {"tenant_limit": 1, "window": 2}])
def test_options_that_can_not_be(given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="tenant"):
        Delivery(**given)  # type: ignore[arg-type]


class Workers:
    """Take, fail and settle at random, in virtual time, and watch limits and turns."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = Random(seed), 0.0
        self.limit = self.random.choice([1, 2, 5])
        retry = RetryPolicy(min_backoff=self.random.choice([0, 3]), max_backoff=10)
        self.lanes = tenant_lanes(Delivery(retry, tenant_limit=self.limit))
        self.held: list[Lease] = []
        self.handled: dict[str, list[int]] = {}
        self.waited: Counter[str] = Counter()  # for each tenant that could be served, how often the others were

    def take(self, limit: int) -> None:
        for _ in range(limit):
            for lease in self.lanes.take(self.now, 5):
                self.held.append(lease)
                served = str(lease.key)[0]
                ready = {str(view.key)[0] for view in self.lanes.views() if view.state == "ready"}
                able = {tenant for tenant in ready - {served} if self.lanes.full_tenant(tenant) is None}
                self.waited = Counter({tenant: self.waited[tenant] + 1 for tenant in able})
                assert max(self.waited.values(), default=0) <= 2, "two others, one turn each"
        out = Counter(str(lease.key)[0] for lease in self.lanes.leases())
        assert max(out.values(), default=0) <= self.limit

    def finish(self, failures: float) -> None:
        lease = self.held.pop(self.random.randrange(len(self.held)))
        if self.lanes.lease(lease.token) is None:
            return
        if self.random.random() < failures:
            self.lanes.give_back(lease.token, self.now)
            return
        self.handled.setdefault(str(lease.key), []).append(lease.offset)
        for settled in self.lanes.settle(lease.token):
            self.lanes.confirm(settled.offset)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.lanes.advance(self.now)


@pytest.mark.parametrize("seed", range(60))
def test_in_virtual_time_with_failures_limits_and_order_hold_turns_are_fair_and_all_is_handled(seed: int) -> None:
    workers, pushed = Workers(seed), dict[str, list[int]]()
    random = workers.random
    for offset in range(1, 400):
        key = f"{random.choice('aaaaabc')}/{random.randrange(4)}"
        pushed.setdefault(key, []).append(offset)
        workers.lanes.push(key, offset, workers.now, random.choice([0, 0, 0, 2]))
        workers.take(random.choice([0, 1, 2]))
        while workers.held and random.random() < 0.6:
            workers.finish(0.2)
        workers.pass_time(random.choice([0, 0.5, 1]))
    while len(workers.lanes):
        workers.take(10)
        while workers.held:
            workers.finish(0)
        workers.pass_time(5)
    assert workers.handled == pushed
    assert workers.lanes._tenants == {}, "nothing is left behind"


def with_receipts(*keys: str | None, limit: int = 1) -> TenantLanes:
    return tenant_lanes(
        Delivery(RetryPolicy.immediate(max_attempts=3), release=ReleaseAfter.RECEIPT, tenant_limit=limit), *keys
    )


def test_a_key_that_is_drained_while_it_waits_for_its_turn_costs_nothing_and_keeps_nobody_from_theirs() -> None:
    lanes = with_receipts("a/1", "a/2", "b/1")
    lanes.skip("a/1")
    assert [lane.key for lane in lanes._tenants["a"].ready] == ["a/2"]
    assert [lease.key for lease in take(lanes)] == ["a/2", "b/1"]
    alone = with_receipts("a/1", "b/1")
    alone.skip("a/1")
    assert [lease.key for lease in take(alone)] == ["b/1"]
    assert list(alone._tenants) == ["b"]


def test_a_key_that_is_paused_while_it_waits_for_its_turn_lets_others_pass_and_has_its_turn_when_it_is_resumed() -> (
    None
):
    lanes = with_receipts("a/1", "b/1")
    lanes.pause("a/1")
    assert [lease.key for lease in take(lanes)] == ["b/1"]
    assert list(lanes._tenants) == ["b"], "a tenant without ready keys and leases costs nothing"
    lanes.resume("a/1")
    assert [lease.key for lease in take(lanes)] == ["a/1"]


def test_a_key_stands_in_its_tenants_ring_once() -> None:
    lanes = with_receipts("a/1", "a/2")
    for _ in range(3):
        lanes.pause("a/1")
        lanes.resume("a/1")
    assert sorted(lane.key or "" for lane in lanes._tenants["a"].ready) == ["a/1", "a/2"]


def test_lanes_of_tenants_have_all_other_options() -> None:
    lanes = with_receipts("a/1")
    for _ in range(3):
        (lease,) = take(lanes)
        lanes.give_back(lease.token, 0)
    assert (take(lanes), lanes.view("a/1")) == ([], None), "its attempts were used up"
