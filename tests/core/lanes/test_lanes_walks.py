"""What holds however lanes are used, shown by long random walks: fairness, crashes, and a transition table that is exact."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import groupby, islice
from typing import ClassVar, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.guarantees import Level
from seriatim.core.lanes.lane import TABLE, Lane, LaneEvent, LaneState
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, Lease, ReleaseAfter, RetryPolicy
from seriatim.core.traces import classify
from seriatim.errors import IllegalTransition
from tests.core.lanes.crashes import crashed
from tests.core.lanes.lanes_walk import LanesWalk, deliveries

SEEDS = st.integers(0, 2**32)
T = TypeVar("T")


# -- the table ----------------------------------------------------------------------------------------------------------


class WatchedLanes(Lanes):
    """Notes every transition. What most messages do is not decided by ``_refresh``, so it is watched as well."""

    seen: ClassVar[set[tuple[LaneState, LaneEvent, LaneState]]] = set()

    def _watch(self, lane: Lane, event: LaneEvent, change: Callable[[], T]) -> T:
        before, result = lane.state, change()
        self.seen.add((before, event, lane.state))
        return result

    def _refresh(self, lane: Lane, event: LaneEvent, now: float | None) -> None:
        try:
            self._watch(lane, event, lambda: super(WatchedLanes, self)._refresh(lane, event, now))
        except IllegalTransition as missing:
            raise AssertionError(str(missing)) from None

    def take(
        self, now: float, lease_time: float, limit: int = 1, consumer: Hashable = None, batch: int = 1
    ) -> list[Lease]:
        leases: list[Lease] = []
        while limit > 0 and (taken := super().take(now, lease_time, min(batch, limit), consumer, batch)):
            leases += taken
            limit -= sum(len(lease.offsets) for lease in taken)
            self.seen.update((LaneState.READY, LaneEvent.TAKE, self._lanes[lease.key].state) for lease in taken)
        return leases

    def settle_into(
        self, settled: list[int], token: int, through: int | None = None, now: float | None = None
    ) -> Hashable:
        settle = partial(super().settle_into, settled, token, through, now)
        lease = self.lease(token)
        return settle() if lease is None else self._watch(self._lanes[lease.key], LaneEvent.SETTLE, settle)

    def confirm_all(self, offsets: Iterable[int], now: float | None = None) -> None:
        for offset in offsets:
            if waiting := self._unconfirmed.get(offset):
                lane = waiting[0]
                self._watch(lane, LaneEvent.CONFIRM, partial(super().confirm_all, [offset], now))


def test_the_table_of_a_lane_names_every_transition_that_happens_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.lanes.lanes_walk.new_lanes", WatchedLanes)
    for seed, delivery in enumerate(list(deliveries()) * 12):
        walk = LanesWalk(seed, delivery)
        for _ in range(400):
            walk.step()
            for lane in walk.lanes._lanes.values():
                assert lane.state is walk.lanes._state_of(lane)
                is_held = lane.state is LaneState.READY and lane.key is not None and lane.in_flight > 0
                assert lane.is_held is is_held
                assert lane.in_ring or is_held or lane.state is not LaneState.READY
                assert lane.in_flight or lane.holder is None
            held = [lane for lane in walk.lanes._lanes.values() if lane.is_held]
            assert sum(map(len, walk.lanes._held.values())) == len(held), "nothing is left behind"
    assert WatchedLanes.seen == set(TABLE)


# -- fairness -----------------------------------------------------------------------------------------------------------


class FairnessWalk(LanesWalk):
    """Counts, for each lane that is ready, how often every other one was served since it became so, by a consumer that could
    have been given this one. A lane that loses its holder while it waits begins to wait anew, so it is passed once more."""

    def __init__(self, seed: int, delivery: Delivery) -> None:
        super().__init__(seed, delivery, ("a", "b", "c", "d", None))
        self.passed_by: dict[str | None, Counter[str | None]] = {}
        self.longest_wait = 0

    def take(self) -> None:
        consumer = self.random.choice("xy")
        open_to = {key for key in self.passed_by if self.holder(key) in (None, consumer)}
        for lease in self.lanes.take(self.now, 5, consumer=consumer):
            self.held.append(lease)
            self.passed_by.pop(lease.key, None)
            for key in open_to & self.passed_by.keys():
                others = self.passed_by[key]
                others[lease.key] += 1
                self.longest_wait = max(self.longest_wait, others.total())
                assert others[lease.key] <= (1 if self.delivery.window == 1 else 2)

    def holder(self, key: str | None) -> object:
        lane = self.lanes._lanes.get(key)
        return lane.holder if lane is not None and lane.is_held else None

    def crash(self) -> None:
        super().crash()
        self.passed_by.clear()  # everybody stands in a new ring

    def step(self) -> None:
        super().step()
        ready = {view.key for view in self.lanes.views() if view.state == LaneState.READY}
        self.passed_by = {key: self.passed_by.get(key, Counter()) for key in ready}


@given(SEEDS, st.sampled_from(list(deliveries((1, 3)))))
def test_a_ready_lane_waits_for_a_bounded_number_of_turns_of_each_other_ready_lane(
    seed: int, delivery: Delivery
) -> None:
    walk = FairnessWalk(seed, delivery)
    for _ in range(150):
        walk.step()


def test_lanes_do_wait_for_each_other_in_these_walks() -> None:
    walk = FairnessWalk(1, Delivery(window=3))
    for _ in range(1000):
        walk.step()
    assert walk.longest_wait >= 3


# -- crashes ------------------------------------------------------------------------------------------------------------


class CrashWalk(LanesWalk):
    """Delivers, acks, nacks and crashes, and nothing that takes messages out of the way. Keeps a trace for each key."""

    def __init__(self, seed: int, delivery: Delivery, batch: int = 1) -> None:
        super().__init__(seed, delivery, ("a", "b"))
        self.batch = batch
        for command in (self.give_up, self.dead_letter, self.remove, self.skip, self.redrive):
            del self.commands[command]
        self.pushed: dict[str | None, list[int]] = defaultdict(list)
        self.delivered: dict[str | None, list[int]] = defaultdict(list)
        self.confirmed: set[int] = set()

    def push(self) -> None:
        key = self.key()
        self.offset += 1
        self.pushed[key].append(self.offset)
        self.lanes.push(key, self.offset, self.now, self.random.choice((0, 0, 1)))

    def take(self) -> None:
        for lease in self.lanes.take(self.now, 2, 2, batch=self.random.choice((1, self.batch))):
            self.lease(lease)
            self.deliver(lease)

    def deliver(self, lease: Lease) -> None:
        unconfirmed = (offset for offset in self.pushed[lease.key] if offset not in self.confirmed)
        expected = tuple(islice(unconfirmed, len(lease.offsets)))
        assert lease.offsets == expected, "neither behind a confirmed message nor past an unconfirmed one"
        self.delivered[lease.key] += lease.offsets

    def confirm(self) -> None:
        if self.unwritten:
            self.lanes.confirm(self.unwritten[0])
            self.confirmed.add(self.unwritten.pop(0))

    def drain(self) -> None:
        for key in self.keys:
            if (view := self.lanes.view(key)) and view.state == LaneState.PAUSED:
                self.lanes.resume(key)
        while len(self.lanes) or self.unwritten:
            self.advance()
            self.take()
            while self.held:
                lease = self.held.pop()
                if lease.token in self.lanes._leased:
                    self.note(self.lanes.settle(lease.token))
            self.confirm()


@given(SEEDS)
def test_no_crash_can_show_1_2_1_when_the_next_message_waits_for_a_durable_ack(seed: int) -> None:
    walk = CrashWalk(seed, Delivery(RetryPolicy(min_backoff=1)))
    for _ in range(150):
        walk.step()
    walk.drain()
    for key, pushed in walk.pushed.items():
        assert [offset for offset, _ in groupby(walk.delivered[key])] == pushed
        last_delivery_of_each = list(dict.fromkeys(reversed(walk.delivered[key])))[::-1]
        assert classify(last_delivery_of_each, sent=pushed).level is Level.ABSOLUTE
    assert walk.confirmed == set(range(1, walk.offset + 1))


@given(SEEDS)
def test_no_crash_shows_a_message_after_one_that_was_settled_behind_it_in_a_batch(seed: int) -> None:
    """Within a batch a crash may repeat from any message on that is not settled; nothing is left out or comes too early."""
    walk = CrashWalk(seed, Delivery(RetryPolicy(min_backoff=1)), batch=4)
    for _ in range(150):
        walk.step()
    walk.drain()
    for key, pushed in walk.pushed.items():
        last_delivery_of_each = list(dict.fromkeys(reversed(walk.delivered[key])))[::-1]
        assert last_delivery_of_each == pushed
    assert walk.confirmed == set(range(1, walk.offset + 1))


def deliver_two_and_crash_before_the_commit(release: ReleaseAfter) -> list[int]:
    """Ack 1, ask for the next, crash before anything is written, and start again: which offsets were delivered?"""
    delivery = Delivery(release=release)
    lanes = Lanes(delivery)
    lanes.push("a", 1, now=0)
    lanes.push("a", 2, now=0)
    restarted = crashed(lanes)
    delivered = lanes.take(now=0, lease_time=10)
    lanes.settle(delivered[0].token)
    delivered += lanes.take(now=0, lease_time=10)
    delivered += restarted.take(now=0, lease_time=10)
    return [lease.offset for lease in delivered]


def test_released_on_receipt_a_crash_can_show_1_2_1() -> None:
    assert deliver_two_and_crash_before_the_commit(ReleaseAfter.RECEIPT) == [1, 2, 1]


def test_released_when_durable_the_same_crash_shows_1_1() -> None:
    assert deliver_two_and_crash_before_the_commit(ReleaseAfter.DURABLE) == [1, 1]
