"""Why a key waits: one sentence for every state, with what would move it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import pytest

from seriatim.core.lanes.explanation import Explanation, WaitsFor, explain
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, Keep, LaneView, OnExhausted, RetryMode, RetryPolicy
from tests.core.lanes.given import lanes_of, retrying, take, view_of
from tests.core.lanes.lanes_walk import KEYS, LanesWalk, deliveries


def explained(lanes: Lanes, key: str | None = "a", consumers: int = 1, **given: Any) -> Explanation:
    return explained_view(lanes.view(key), consumers, **given)


def explained_view(view: LaneView | None, consumers: int = 1, **given: Any) -> Explanation:
    told = {"pause_reason": None, "halted": None, **given}
    return explain(view, consumers=consumers, clock=lambda time: f"{time:g} s", **told)


def test_a_key_without_messages_or_with_one_that_is_ready() -> None:
    assert explained(Lanes()).sentence == "it has no messages; it continues with the next published message"
    lanes = lanes_of("a")
    assert explained(lanes).waits_for is WaitsFor.CONSUMER
    assert (
        explained(lanes).sentence
        == "message 1 is ready; it is delivered when a consumer has room and it is the key's turn"
    )
    nobody = "message 1 is ready, but the subscription has no consumer; it needs a consumer"
    assert explained(lanes, consumers=0).sentence == nobody
    halted = explained(lanes, halted="the subscription is paused")
    assert (halted.waits_for, halted.sentence) == (
        WaitsFor.OPERATOR,
        "the subscription is paused; it needs an operator",
    )


def test_a_message_that_is_with_another_program_and_has_a_name() -> None:
    found = explain(
        lanes_of("a").view("a"),
        pause_reason=None,
        halted=None,
        consumers=1,
        elsewhere="the member {x}",
        clock=str,
        named=lambda offset: f"0-{offset}",
    )
    assert found.waits_for is WaitsFor.CONSUMER
    assert found.sentence == (
        "message 0-1 is with the member {x}: in flight, or waiting for the key's turn; it continues after its ack or nack"
    )


def test_a_key_whose_tenant_has_no_room() -> None:
    full = explained(lanes_of("a"), full_tenant="{a}")
    assert full.waits_for is WaitsFor.TENANT
    assert full.sentence == (
        "message 1 is ready, and its tenant '{a}' has its maximum number of messages in flight; "
        "it continues after an ack or nack of one of them"
    )


def test_messages_without_a_key_that_are_under_way() -> None:
    lanes = lanes_of(None, None)
    take(lanes)
    assert (
        explained(lanes, None).sentence == "2 messages without a key are in flight; keyless messages wait for no other"
    )


def test_what_nobody_knows_is_not_said() -> None:
    view = LaneView("a", "ready", depth=1, in_flight=0, head=None, attempts=0, not_before=None, error=None)
    assert explained_view(view).sentence.startswith("its next message is ready; ")
    assert explained_view(replace(view, state="paused")).sentence == "paused; resume the key to continue"
    failed = explained_view(replace(view, state="delayed", attempts=1))
    assert failed.sentence.startswith("waits for its retry until a moment from now; ")


def test_a_delivery_that_is_under_way_and_extended() -> None:
    lanes = lanes_of("a", "a", delivery=Delivery())
    (lease,) = take(lanes, now=5)
    assert explained(lanes) == Explanation(
        WaitsFor.OUTCOME,
        5,
        15,
        "it continues after its ack or nack, or when its lease expires",
        "message 1 is in flight (attempt 1), since 5 s; it continues after its ack or nack, or when its lease expires",
    )
    lanes.extend(lease.token, 8, 60)
    assert explained(lanes).until == 68
    lanes.settle(lease.token, now=9)
    assert explained(lanes).sentence == "its acknowledgement is being written, since 9 s; it continues after the commit"
    lanes.confirm(1, 12)
    assert explained(lanes, published=3.0).since == 12
    assert explained(lanes, barred=20.0).sentence == (
        "message 2 is ready (waiting since 20 s); it is delivered when a consumer has room and it is the key's turn"
    )
    assert explained(lanes, barred=None).since is None


def test_a_message_whose_delay_ended_behind_another_waits_since_that_was_done() -> None:
    lanes = lanes_of("a", delivery=Delivery())
    (lease,) = take(lanes, now=1)
    lanes.push("a", 2, 2, delay=3)
    lanes.settle(lease.token, now=9)
    lanes.confirm(1, 12)
    lanes.advance(12)
    assert (explained(lanes).waits_for, explained(lanes).since) == (WaitsFor.CONSUMER, 12)


def test_a_window_is_in_flight_since_its_first_lease() -> None:
    lanes = lanes_of("a", "a", delivery=Delivery(window=2))
    take(lanes, limit=1, now=5)
    take(lanes, limit=1, now=7)
    assert (explained(lanes).since, explained(lanes).until) == (5, 15)


def test_a_retry_a_delay_and_a_pause() -> None:
    lanes = lanes_of("a", delivery=retrying(min_backoff=60, max_attempts=2, on_exhausted=OnExhausted.PAUSE))
    (lease,) = take(lanes, now=5)
    lanes.give_back(lease.token, 10, error="bad {braces}")
    waits = explained(lanes)
    assert (waits.waits_for, waits.since, waits.until) == (WaitsFor.TIME, 10, 70)
    assert waits.sentence == (
        "waits for its retry until 70 s: bad {braces}, since 10 s; "
        "it continues then, or when an operator retries, skips or dead-letters it"
    )
    lanes.advance(70)
    (lease,) = take(lanes, now=70)
    lanes.give_back(lease.token, 75, error="bad")
    paused = explained(lanes, pause_reason="2 attempts")
    assert (paused.waits_for, paused.since, paused.until) == (WaitsFor.OPERATOR, 75, None)
    assert paused.sentence == "paused: 2 attempts, since 75 s; resume the key to continue"
    lanes.push("b", 2, 80, delay=20)
    delayed = explained(lanes, "b")
    assert (delayed.since, delayed.until) == (80, 100)
    assert delayed.sentence.startswith("delayed until 100 s; it continues then")
    lanes.pause("c", 90)
    assert explained(lanes, "c").since == 90


class Witness:
    """Watches a walk from outside: since when every key waits as it does, and whether what is said to move it does."""

    def __init__(self, seed: int, delivery: Delivery) -> None:
        keys = ("a/1", "a/1", "a/2", "a/3", "b", None) if delivery.tenant_limit else KEYS
        self.walk = LanesWalk(seed, delivery, keys)
        self.walk.lanes.advance(0)
        self.known: dict[str | None, tuple[Explanation, int | None]] = {}  # what was said last, and of which message
        self.loaded = -1  # messages up to this one were there before the last crash
        self.proven: set[WaitsFor] = set()

    @property
    def lanes(self) -> Lanes:
        return self.walk.lanes

    def said(self, key: str | None, lanes: Lanes | None = None) -> Explanation:
        view = (lanes or self.lanes).view(key)
        next_ = -1 if view is None or view.next is None else view.next
        published = self.walk.pushed_at[next_] if next_ > self.loaded else -inf
        tenant, barred = (lanes or self.lanes).full_tenant(key), (lanes or self.lanes).room_changed(key)
        return explained_view(view, full_tenant=tenant, published=published, barred=barred)

    def step(self) -> None:
        lanes, before = self.lanes, self.walk.now
        self.walk.step()
        if self.lanes is not lanes:
            self.loaded, self.known = self.walk.offset, {}
        known, self.known = self.known, {}
        for key in list(self.lanes._lanes):
            view, said = view_of(self.lanes, key), self.said(key)
            self.known[key] = said, view.next if view.state == "ready" else view.head
            assert said.sentence.endswith(f"; {said.moved_by}")
            self.check_since(key, known.get(key), before)
            if self.walk.random.random() < 0.3:
                self.move(key)

    def check_since(self, key: str | None, known: tuple[Explanation, int | None] | None, before: float) -> None:
        said, message = self.known[key]
        since, now = said.since, self.walk.now
        if self.loaded >= 0 and since is None:  # it began before the crash
            assert known is None or (known[0].since is None and known[0].waits_for is said.waits_for)
            return
        assert since is not None
        if said.waits_for is WaitsFor.OUTCOME:
            first = next(lease for lease in self.lanes.leases() if lease.key == key)
            assert since == self.walk.leased_at[first.token]
        elif known is None or known[0].waits_for is not said.waits_for:
            assert before <= since <= now, (before, since, now, known, said)
        elif known[1] != message:
            is_back = said.waits_for is WaitsFor.CONSUMER and (known[1] or 0) > (message or 0)
            earliest = before if is_back else known[0].since
            assert earliest is None or earliest <= since <= now, (known, said)
        else:
            assert known[0].since is None or since == known[0].since, (known, said)

    def move(self, key: str | None) -> None:
        """Do what is said to move a key, each time with lanes of their own, and see it move."""
        said, ways = self.known[key][0], self.ways(key)
        self.proven.add(said.waits_for)
        for way in ways:
            lanes = deepcopy(self.lanes)
            view = view_of(lanes, key)
            way(lanes, view)
            after = lanes.view(key)
            assert after != view, (way, said)

    def ways(self, key: str | None) -> list[Callable[[Lanes, LaneView], object]]:  # noqa: C901 - one function for each way
        """What is said to move a key: by time, an operator, a consumer, an outcome, a commit."""
        said, now = self.known[key][0], self.walk.now

        def due(lanes: Lanes, view: LaneView) -> None:
            until = now if said.until is None else said.until
            assert until >= lanes.now
            lanes.advance(until)
            assert (after := lanes.view(key)) is None or after.state != "delayed" or after.not_before != view.not_before

        def resumed(lanes: Lanes, _: LaneView) -> None:
            lanes.resume(key, now)

        def consumed(lanes: Lanes, view: LaneView) -> None:
            """Consumers with room take one message after the other, and are done with those of other keys: it has its turn."""
            holder = lanes._lanes[key].holder if key is not None else None
            for _ in range(len(lanes) + 1):
                (lease,) = lanes.take(now, 10, 1, holder)
                if lease.key == key:
                    assert lease.offset == view.next
                    return
                for effect in lanes.settle(lease.token):
                    if lanes._waits_for_commit:
                        lanes.confirm(effect.offset)
            raise AssertionError(f"{key} had no turn")

        def freed(lanes: Lanes, _: LaneView) -> None:
            tenant = str(key).partition("/")[0]
            lease = next(lease for lease in lanes.leases() if str(lease.key).partition("/")[0] == tenant)
            lanes.settle(lease.token, now=now)
            assert self.said(key, lanes).waits_for is WaitsFor.CONSUMER
            consumed(lanes, view_of(lanes, key))

        def first(lanes: Lanes) -> int:
            return next(lease.token for lease in lanes.leases() if lease.key == key)

        def written(lanes: Lanes, _: LaneView) -> None:
            lanes.confirm_all([offset for offset, (lane, _) in lanes._unconfirmed.items() if lane.key == key], now)
            assert lanes.view(key) is None or self.said(key, lanes).waits_for is not WaitsFor.COMMIT

        ways: dict[WaitsFor, list[Callable[[Lanes, LaneView], object]]] = {
            WaitsFor.CONSUMER: [consumed],
            WaitsFor.TENANT: [freed],
            WaitsFor.TIME: [due, *([] if said.until is None else [lambda lanes, _: lanes.retry(key, now)])],
            WaitsFor.OPERATOR: [resumed],
            WaitsFor.OUTCOME: [
                lambda lanes, _: lanes.settle(first(lanes), now=now),
                lambda lanes, _: lanes.give_back(first(lanes), now, delay=1),
                lambda lanes, view: lanes.advance(max(view.deadline or 0, now)),
            ],
            WaitsFor.COMMIT: [written],
        }
        return ways[said.waits_for]


LATEST = [Delivery(RetryPolicy.immediate(max_attempts=2), window, keep=Keep.LATEST) for window in (1, 2)]
TENANTS = [
    Delivery(RetryPolicy.immediate(max_attempts=3, mode=mode), tenant_limit=limit)
    for limit, mode in product((1, 2), RetryMode)
]


@pytest.mark.parametrize("delivery", [*deliveries((1, 3)), *LATEST, *TENANTS], ids=str)
def test_however_lanes_are_used_what_is_said_to_move_a_key_does_and_it_waits_since_then(delivery: Delivery) -> None:
    proven: set[WaitsFor] = set()
    for seed in range(4):
        witness = Witness(seed, delivery)
        for _ in range(150):
            witness.step()
        proven |= witness.proven
    expected = {WaitsFor.CONSUMER, WaitsFor.TIME, WaitsFor.OPERATOR, WaitsFor.OUTCOME}
    expected |= {WaitsFor.COMMIT} if delivery.release == "durable" else set()
    assert proven >= expected | ({WaitsFor.TENANT} if delivery.tenant_limit else set())
