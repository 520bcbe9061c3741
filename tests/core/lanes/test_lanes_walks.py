"""What holds however lanes are used, shown by long random walks: fairness, crashes, and a transition table that is exact."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import ClassVar, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.delivery import Delivery, Lease, Release, RetryPolicy
from seriatim.core.guarantees import Level
from seriatim.core.lane import TABLE, Lane, LaneEvent, LaneState
from seriatim.core.lanes import Lanes
from seriatim.core.traces import classify
from seriatim.errors import IllegalTransition
from tests.core.lanes_walk import LanesWalk, deliveries

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

    def _refresh(self, lane: Lane, event: LaneEvent) -> None:
        try:
            self._watch(lane, event, lambda: super(WatchedLanes, self)._refresh(lane, event))
        except IllegalTransition as missing:
            raise AssertionError(str(missing)) from None

    def _lease(self, lane: Lane, deadline: float) -> Lease:
        return self._watch(lane, LaneEvent.TAKE, lambda: super(WatchedLanes, self)._lease(lane, deadline))

    def settle_into(self, settled: list[int], token: int) -> None:
        if lane := self._leased.get(token):
            self._watch(lane, LaneEvent.SETTLE, lambda: super(WatchedLanes, self).settle_into(settled, token))

    def confirm_all(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if waiting := self._unconfirmed.get(offset):
                lane = waiting[0]
                self._watch(lane, LaneEvent.CONFIRM, partial(super().confirm_all, [offset]))


def test_the_table_of_a_lane_names_every_transition_that_happens_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.lanes_walk.Lanes", WatchedLanes)
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

    def __init__(self, seed: int, delivery: Delivery) -> None:
        super().__init__(seed, delivery, ("a", "b"))
        for command in (self.dead_letter, self.remove, self.skip, self.redrive):
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
        for lease in self.lanes.take(self.now, 2, 2):
            self.held.append(lease)
            self.deliver(lease)

    def deliver(self, lease: Lease) -> None:
        unconfirmed = (offset for offset in self.pushed[lease.key] if offset not in self.confirmed)
        assert lease.offset == next(unconfirmed), "neither behind a confirmed message nor past an unconfirmed one"
        self.delivered[lease.key].append(lease.offset)

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


def deliver_two_and_crash_before_the_commit(release: Release) -> list[int]:
    """Ack 1, ask for the next, crash before anything is written, and start again: which offsets were delivered?"""
    delivery = Delivery(release=release)
    lanes = Lanes(delivery)
    lanes.push("a", 1, now=0)
    lanes.push("a", 2, now=0)
    written = lanes.save()
    delivered = lanes.take(now=0, lease_time=10)
    lanes.settle(delivered[0].token)
    delivered += lanes.take(now=0, lease_time=10)
    delivered += Lanes.restore(written, delivery).take(now=0, lease_time=10)
    return [lease.offset for lease in delivered]


def test_released_on_receipt_a_crash_can_show_1_2_1() -> None:
    assert deliver_two_and_crash_before_the_commit(Release.RECEIPT) == [1, 2, 1]


def test_released_when_durable_the_same_crash_shows_1_1() -> None:
    assert deliver_two_and_crash_before_the_commit(Release.DURABLE) == [1, 1]
