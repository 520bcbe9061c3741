"""The map of lanes does exactly what the naive reference model does, through commands, time and crashes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.tenants import new_lanes
from seriatim.core.lanes.types import Delivery, Keep, OnExhausted, ReleaseAfter, RetryMode, RetryPolicy
from seriatim.errors import FailedPrecondition, IllegalTransition, NotFound, RedriveRefused, StaleLease
from tests.core.lanes.crashes import crashed, saved
from tests.core.lanes.naive_lanes import NaiveLanes

KEYS = st.sampled_from(["t/a", "t/a", "t/b", "u/c", None])
PICKS = st.integers(0, 999)
PLACES = st.one_of(st.none(), st.integers(0, 4))
T = TypeVar("T")


def picked(pick: int, options: Sequence[T]) -> T:
    return options[pick % len(options)]


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    retry = RetryPolicy(
        min_backoff=draw(st.sampled_from([0, 0, 2])),
        max_backoff=draw(st.sampled_from([2, 3, 600])),
        mode=draw(st.sampled_from(RetryMode)),
        max_attempts=draw(st.sampled_from([None, None, 1, 2, 3])),
        on_exhausted=draw(st.sampled_from(OnExhausted)),
    )
    window, release = draw(st.sampled_from([1, 1, 2, 4])), draw(st.sampled_from(ReleaseAfter))
    limit = draw(st.sampled_from([None, 1, 2])) if window == 1 else None
    return Delivery(retry, window, release, draw(st.sampled_from(Keep)), limit)


class LanesAgainstModel(RuleBasedStateMachine):
    @initialize(delivery=deliveries())
    def begin(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.lanes = new_lanes(delivery)
        self.model = NaiveLanes(delivery)
        self.now = 0.0
        self.offset = 0
        self.tokens: list[int] = []
        self.leases_timed = 0

    def fresh_fraction(self) -> float:
        """Keeps the deadlines of leases apart, so that expiry has one right order."""
        self.leases_timed += 1
        return self.leases_timed / 2**20

    @rule(key=KEYS, delay=st.sampled_from([0, 0, 0, 0, 1, 3]))
    def push(self, key: str | None, delay: float) -> None:
        self.offset += 1
        self.lanes.push(key, self.offset, self.now, delay)
        self.model.push(key, self.offset, self.now, delay)

    @rule(
        limit=st.sampled_from([1, 2, 3, 10]),
        lease_time=st.sampled_from([1, 4]),
        consumer=st.sampled_from("xy"),
        batch=st.sampled_from([1, 1, 2, 5]),
    )
    def take(self, limit: int, lease_time: float, consumer: str, batch: int) -> None:
        seconds, room = lease_time + self.fresh_fraction(), limit
        for lease in self.lanes.take(self.now, seconds, limit, consumer, batch):
            assert (lease.key, lease.offset) in self.model.takeable(consumer)
            assert list(lease.offsets) == self.model.batch_of(lease.key, lease.offset, min(batch, room))
            assert lease.token > max(self.tokens, default=0)
            assert lease.deadline == max(self.now, self.model.now) + seconds
            self.tokens.append(lease.token)
            self.model.taken(lease, consumer)
            message = self.model.leased(lease.token)
            assert message is not None
            assert lease.attempt == message.failures + 1
            room -= len(lease.offsets)
        assert room >= 0
        assert not room or not self.model.takeable(consumer)

    def token(self, pick: int) -> int:
        return picked(pick, self.tokens[-6:] or [999])

    def is_stale(self, token: int) -> bool:
        """A token that is not held changes nothing, whatever is said with it."""
        if self.model.leased(token) is not None:
            return False
        before = saved(self.lanes)
        with pytest.raises(StaleLease, match=f"lease {token} is not held any more"):
            self.lanes.settle(token)
        with pytest.raises(StaleLease):
            self.lanes.give_back(token, self.now, 1, "late")
        with pytest.raises(StaleLease):
            self.lanes.give_up(token, self.now, "late")
        with pytest.raises(StaleLease):
            self.lanes.extend(token, self.now, 60)
        assert saved(self.lanes) == before
        return True

    def place(self, token: int, at: int | None) -> int | None:
        """One of the messages of a lease. What is said about another one changes nothing."""
        batch, before = self.model.batch(token), saved(self.lanes)
        for other in (batch[0].offset - 1, batch[-1].offset + 1):
            with pytest.raises(StaleLease):
                self.lanes.settle(token, other)
            with pytest.raises(StaleLease):
                self.lanes.give_back(token, self.now, 1, "elsewhere", at=other)
            with pytest.raises(StaleLease):
                self.lanes.give_up(token, self.now, "elsewhere", at=other)
        assert saved(self.lanes) == before
        return None if at is None else picked(at, batch).offset

    @rule(pick=PICKS, at=PLACES)
    def settle(self, pick: int, at: int | None) -> None:
        token = self.token(pick)
        if not self.is_stale(token):
            through = self.place(token, at)
            assert self.lanes.settle(token, through) == self.model.settle(token, through)
            assert self.lanes.lease(token) == (first.lease if (first := self.model.leased(token)) else None)

    @rule(pick=PICKS, delay=st.sampled_from([None, None, 0, 2]), count=st.sampled_from([True, True, False]), at=PLACES)
    def give_back(self, pick: int, delay: float | None, count: bool, at: int | None) -> None:
        token = self.token(pick)
        if not self.is_stale(token):
            error, place = f"error {token}", self.place(token, at)
            effects = self.lanes.give_back(token, self.now, delay, error, count, place)
            assert effects == self.model.give_back(token, self.now, delay, error, count, place)

    @rule(pick=PICKS, rest=st.booleans(), at=PLACES)
    def give_up(self, pick: int, rest: bool, at: int | None) -> None:
        token = self.token(pick)
        if not self.is_stale(token):
            place = self.place(token, at)
            effects = self.lanes.give_up(token, self.now, "no use", rest, place)
            assert effects == self.model.give_up(token, "no use", rest, place, self.now)

    @rule(pick=PICKS, lease_time=st.sampled_from([0, 1, 2, 9]))
    def extend(self, pick: int, lease_time: float) -> None:
        token = self.token(pick)
        if not self.is_stale(token):
            lease_time += self.fresh_fraction()
            deadline = self.lanes.extend(token, self.now, lease_time)
            assert deadline == max(self.now, self.model.now) + lease_time
            for message in self.model.batch(token):
                message.deadline = deadline

    @rule(seconds=st.sampled_from([0, 1, 2, 5]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        assert self.lanes.advance(self.now) == self.model.advance(self.now)

    @rule()
    def clock_goes_back(self) -> None:
        self.now -= 1

    @rule(pick=PICKS)
    def confirm(self, pick: int) -> None:
        if self.model.pending:
            offset = picked(pick, self.model.pending)[1].offset
            self.lanes.confirm(offset)
            self.model.confirm(offset)
        else:
            with pytest.raises(IllegalTransition, match="nothing about offset 1 waits to be confirmed"):
                self.lanes.confirm(1)

    @rule()
    def commit(self) -> None:
        for _, message in list(self.model.pending):
            self.lanes.confirm(message.offset)
            self.model.confirm(message.offset)

    @rule(key=KEYS)
    def pause(self, key: str | None) -> None:
        if key in self.model.paused:
            with pytest.raises(IllegalTransition, match="'pause' is not possible while 'paused'"):
                self.lanes.pause(key)
        else:
            self.lanes.pause(key)
            self.model.paused.add(key)

    @rule(key=KEYS)
    def resume(self, key: str | None) -> None:
        if key in self.model.paused:
            assert self.lanes.resume(key) == self.model.resume(key)
        else:
            with pytest.raises(IllegalTransition, match="'resume' is not possible while"):
                self.lanes.resume(key)

    @rule(key=KEYS, rest=st.booleans(), error=st.sampled_from([None, "no use"]))
    def dead_letter(self, key: str | None, rest: bool, error: str | None) -> None:
        head = self.model.head(key)
        if head is None:
            with pytest.raises(NotFound, match="has no message to dead-letter"):
                self.lanes.dead_letter(key, error, rest)
        elif not rest and head in self.model.changing(key):
            with pytest.raises(FailedPrecondition, match="is just being redriven"):
                self.lanes.dead_letter(key, error, rest)
        else:
            assert self.lanes.dead_letter(key, error, rest) == self.model.dead_letter(key, error, rest)

    @rule(key=KEYS)
    def skip(self, key: str | None) -> None:
        head = self.model.head(key)
        if head is None:
            with pytest.raises(NotFound, match="has no message to skip"):
                self.lanes.skip(key)
        elif head in self.model.changing(key):
            with pytest.raises(FailedPrecondition, match="is just being redriven"):
                self.lanes.skip(key)
        else:
            assert self.lanes.skip(key) == self.model.skip(key)

    @rule(key=KEYS)
    def retry(self, key: str | None) -> None:
        if self.model.waiting_for_time(key):
            assert self.lanes.retry(key, self.now) == self.model.retry(key, self.now)
        else:
            with pytest.raises(FailedPrecondition, match="has no message that waits for a retry or a delay"):
                self.lanes.retry(key, self.now)

    @rule(key=KEYS, pick=PICKS)
    def remove(self, key: str | None, pick: int) -> None:
        offset = picked(pick, range(max(1, self.offset - 6), self.offset + 2))
        changing = [m.offset for _, m in self.model.pending]
        message = self.model.find(key, offset)
        if offset in changing:
            with pytest.raises(FailedPrecondition, match="is just being"):
                self.lanes.remove(key, offset)
        elif message is None or message.where == "acked":
            with pytest.raises(NotFound, match=f"has no message {offset} waiting"):
                self.lanes.remove(key, offset)
        elif message.where == "out":
            with pytest.raises(FailedPrecondition, match=f"message {offset} is in flight"):
                self.lanes.remove(key, offset)
        else:
            assert self.lanes.remove(key, offset) == (key, offset)
            self.model.remove(message)

    @rule(pick=PICKS)
    def redrive(self, pick: int) -> None:
        if not self.model.dead:
            with pytest.raises(RedriveRefused):
                self.lanes.redrive("a", 1)
            return
        message = picked(pick, self.model.dead)
        if self.model.may_be_redriven(message):
            assert self.lanes.redrive(message.key, message.offset) == (message.key, message.offset)
            self.model.redrive(message)
        else:
            before = saved(self.lanes)
            with pytest.raises(RedriveRefused):
                self.lanes.redrive(message.key, message.offset)
            assert saved(self.lanes) == before

    @rule(count_leases=st.booleans())
    def crash_and_restart(self, count_leases: bool) -> None:
        assert self.lanes.advance(0) == self.model.advance(0)  # wherever lanes are loaded, time has begun
        self.same_superseded()
        known = [*self.model.messages, *(message for _, message in self.model.pending)]
        self.lanes = crashed(self.lanes, count_leases, {message.offset for message in known if message.batched})
        self.model.crash(count_leases)

    @invariant()
    def same_superseded(self) -> None:
        if hasattr(self, "lanes"):
            named = [(left.key, left.offset) for left in self.lanes.superseded]
            assert sorted(named) == sorted((left.key, left.offset) for left in self.model.superseded)
            assert all(left.by > left.offset for left in self.lanes.superseded)
            self.lanes.superseded, self.model.superseded = [], []

    @invariant()
    def same_messages(self) -> None:
        if not hasattr(self, "lanes"):
            return
        counts, model = self.lanes.counts(), self.model
        assert len(self.lanes) == counts.total == len(model.messages)
        assert counts.leased == len([m for m in model.messages if m.where in ("out", "acked")])
        assert counts.total == counts.ready + counts.leased + counts.delayed + counts.blocked
        assert min(counts.ready, counts.delayed, counts.blocked) >= 0
        assert bool(counts.ready) == bool(model.takeable())

    @invariant()
    def same_keys(self) -> None:
        if not hasattr(self, "lanes"):
            return
        model = self.model
        alive = {m.key for m in model.messages} | {m.key for _, m in model.pending} | model.paused
        assert {view.key for view in self.lanes.views()} == alive
        for view in self.lanes.views():
            head = model.head(view.key)
            assert view.depth == len(model.of(view.key))
            assert self.lanes.sort_values(view.key) == (view.state, view.attempts, view.depth, view.head)
            assert view.head == (head.offset if head else None)
            assert (view.state is LaneState.PAUSED) == (view.key in model.paused)
            assert (view.state is LaneState.READY) == (view.key in dict(model.takeable()))
            if head:
                self.same_head(view, head)

    @invariant()
    def same_dead_letters_can_go_back(self) -> None:
        if hasattr(self, "lanes"):
            dead = {(m.key, m.offset) for m in self.model.dead}
            assert {known for known in dead if self.lanes.is_returnable(*known)} == {
                (m.key, m.offset) for m in self.model.dead if self.model.is_after_settled(m)
            }
            assert set(saved(self.lanes).returnable) >= dead

    @invariant()
    def same_oldest_message(self) -> None:
        if hasattr(self, "lanes"):
            lanes, offsets = self.lanes, [m.offset for m in self.model.messages]
            assert lanes.oldest(lanes.keys()) == min(offsets, default=None)
            blocked = {view.key for view in lanes.views() if view.state in {LaneState.DELAYED, LaneState.PAUSED}}
            assert set(lanes.blocked_keys()) == blocked >= set(self.model.paused)
            assert (lanes.blocked_key_count, lanes.key_count) == (len(blocked), len(lanes.keys()))
            for key in {m.key for m in self.model.messages}:
                assert self.lanes.offsets(key, 3) == [m.offset for m in self.model.of(key)][:3]

    def same_head(self, view: Any, head: Any) -> None:
        assert view.attempts == head.failures + (head.where == "out")
        assert view.not_before == (head.not_before if head.not_before > self.model.now else None)
        assert view.error == head.error

    @invariant()
    def a_deadline_is_known_while_something_waits_for_time(self) -> None:
        if hasattr(self, "lanes"):
            waits = [m.deadline for m in self.model.messages if m.where == "out"]
            waits += [m.not_before for m in self.model.messages if m.where == "aside" and m.not_before > self.model.now]
            waits += [self.model.now for m in self.model.messages if m.where == "spent"]
            deadline = self.lanes.next_deadline()
            assert deadline is not None or not waits
            assert not waits or (deadline is not None and deadline <= min(waits))


TestLanesAgainstModel = LanesAgainstModel.TestCase


# -- the same by seeded walks: many more steps a second, and no search for small examples -------------------------------

WALKS = 80
ANY_KEY = ("t/a", "t/a", "t/b", "u/c", None)
PLACE = (None, None, 0, 1, 2)
COMMANDS: dict[str, tuple[int, dict[str, Sequence[Any]]]] = {
    "push": (8, {"key": ANY_KEY, "delay": (0, 0, 0, 1, 3)}),
    "take": (6, {"limit": (1, 2, 3, 10), "lease_time": (1, 4), "consumer": "xy", "batch": (1, 2, 5)}),
    "settle": (4, {"pick": range(6), "at": PLACE}),
    "give_back": (3, {"pick": range(6), "delay": (None, None, 0, 2), "count": (True, True, False), "at": PLACE}),
    "give_up": (1, {"pick": range(6), "rest": (True, False), "at": PLACE}),
    "extend": (1, {"pick": range(6), "lease_time": (0, 1, 2, 9)}),
    "advance": (3, {"seconds": (0, 1, 2, 5)}),
    "clock_goes_back": (1, {}),
    "confirm": (3, {"pick": range(20)}),
    "commit": (1, {}),
    "pause": (1, {"key": ANY_KEY}),
    "resume": (2, {"key": ANY_KEY}),
    "dead_letter": (1, {"key": ANY_KEY, "rest": (True, False, False), "error": (None, "no use")}),
    "remove": (1, {"key": ANY_KEY, "pick": range(8)}),
    "skip": (1, {"key": ANY_KEY}),
    "retry": (2, {"key": ANY_KEY}),
    "redrive": (2, {"pick": range(20)}),
    "crash_and_restart": (1, {"count_leases": (True, False)}),
}


def random_delivery(random: Random) -> Delivery:
    retry = RetryPolicy(
        min_backoff=random.choice((0, 0, 2)),
        max_backoff=random.choice((2, 3, 600)),
        mode=random.choice(list(RetryMode)),
        max_attempts=random.choice((None, 1, 2, 3)),
        on_exhausted=random.choice(list(OnExhausted)),
    )
    window, release = random.choice((1, 1, 2, 4)), random.choice(list(ReleaseAfter))
    limit = random.choice((None, 1, 2)) if window == 1 else None
    return Delivery(retry, window, release, random.choice(list(Keep)), limit)


def walk(seed: int, steps: int = 120) -> None:
    random, machine = Random(seed), LanesAgainstModel()
    machine.begin(delivery=random_delivery(random))
    for name in random.choices(list(COMMANDS), [weight for weight, _ in COMMANDS.values()], k=steps):
        arguments = {argument: random.choice(choices) for argument, choices in COMMANDS[name][1].items()}
        getattr(machine, name)(**arguments)
        machine.same_superseded()
        machine.same_messages()
        machine.same_keys()
        machine.same_dead_letters_can_go_back()
        machine.same_oldest_message()
        machine.a_deadline_is_known_while_something_waits_for_time()


def test_seeded_walks_agree_with_the_model() -> None:
    for seed in range(WALKS):
        walk(seed)
