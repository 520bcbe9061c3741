"""The schedule does what a plain dict does, and keeps no more than is scheduled."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seriatim.core.deadlines import Deadlines, LeaseDeadlines

SLACK = 64


class Time(float):
    """A time that knows how many of its kind somebody keeps."""

    kept = 0

    def __init__(self, _: float) -> None:
        Time.kept += 1

    def __del__(self) -> None:
        Time.kept -= 1


things = st.integers(0, 8)
times = st.integers(0, 12)


def schedule(**deadlines: float) -> Deadlines[str]:
    made: Deadlines[str] = Deadlines()
    for thing, when in deadlines.items():
        made.set(thing, when)
    return made


def test_nothing_is_scheduled_at_first():
    empty = schedule()
    assert (len(empty), empty.next(), empty.pop_due(10**9), "a" in empty) == (0, None, [], False)


def test_rising_deadlines_come_out_as_they_went_in():
    made = schedule(a=1, b=2, c=2, d=3)
    assert (len(made), made.next(), "c" in made) == (4, 1, True)
    assert made.pop_due(2) == ["a", "b", "c"]
    assert (len(made), made.next(), "c" in made) == (1, 3, False)


def test_what_falls_due_exactly_now_is_due():
    made = schedule(a=5, b=3)
    assert made.pop_due(2.9) == []
    assert made.pop_due(3) == ["b"]
    assert made.pop_due(5) == ["a"]


def test_a_deadline_earlier_than_the_last_comes_out_earlier():
    made = schedule(a=9, b=5, c=7)
    assert (len(made), made.next(), "b" in made) == (3, 5, True)
    assert made.pop_due(9) == ["b", "c", "a"]


@pytest.mark.parametrize("first", [5, 20])
@pytest.mark.parametrize("second", [1, 15, 30])
def test_a_moved_deadline_counts_only_where_it_is_now(first, second):
    made = schedule(x=10, a=first)
    made.set("a", second)
    assert (len(made), made.next()) == (2, min(10, second))
    assert made.pop_due(30) == (["a", "x"] if second < 10 else ["x", "a"])
    assert (len(made), made.next()) == (0, None)


def test_a_deadline_moved_to_the_time_that_it_has_stays():
    made = schedule(a=5)
    made.set("a", 5)
    assert (len(made), made.pop_due(5), made.pop_due(5)) == (1, ["a"], [])


@pytest.mark.parametrize("deadlines", [{"x": 1, "a": 5}, {"x": 9, "a": 5}])
def test_a_discarded_deadline_never_falls_due(deadlines):
    made = schedule(**deadlines)
    made.discard("a")
    made.discard("unknown")
    assert (len(made), made.next(), "a" in made) == (1, deadlines["x"], False)
    assert made.pop_due(10) == ["x"]


def test_of_things_due_at_the_same_time_the_queued_come_first_and_the_moved_in_the_order_of_their_moves():
    made = schedule(z=9, c=4, a=4, b=5)
    made.set("b", 4)
    made.set("c", 4)
    made.discard("z")
    made.set("q", 4)
    assert made.pop_due(4) == ["q", "a", "b", "c"]


def test_a_deadline_as_late_as_the_last_of_the_queue_is_queued_before_those_that_were_moved_to_that_time():
    made = schedule(moved=1, first=2)
    made.set("moved", 2)
    made.set("second", 2)
    assert made.pop_due(2) == ["first", "second", "moved"]


def test_once_the_queue_is_empty_any_deadline_can_be_queued_again():
    made = schedule(a=100, moved=5)
    made.discard("a")
    made.set("b", 5)
    made.set("c", 6)
    assert made.pop_due(6) == ["b", "moved", "c"], "of two that are due at the same time, the queued one comes first"


def test_things_need_not_be_comparable():
    made: Deadlines[object] = Deadlines()
    for thing in ["late", 1, (), None]:
        made.set(thing, 5)
        made.set(thing, 3)
    assert made.pop_due(3) == ["late", 1, (), None]


def test_moving_a_deadline_often_keeps_no_more_than_is_scheduled():
    made = schedule(a=Time(1))
    for when in range(1000):
        made.set("a", Time(when))
        assert Time.kept <= 2 * len(made) + SLACK + 1
    assert made.pop_due(998) == []
    assert made.pop_due(999) == ["a"]


def test_discarding_moved_deadlines_keeps_no_more_than_is_scheduled():
    made: Deadlines[int] = Deadlines()
    for thing in range(1000):
        made.set(thing, Time(1000 - thing))
    assert Time.kept == 1000
    for thing in range(998):
        made.discard(thing)
        assert Time.kept <= 2 * len(made) + SLACK + 1
    assert made.pop_due(1000) == [999, 998]


def test_stale_entries_are_tolerated_up_to_the_slack():
    made = schedule(x=Time(1), a=Time(0))
    for when in range(2 * 1 + SLACK - 1):
        made.set("a", Time(when))
    assert Time.kept == 1 + 2 + SLACK
    made.set("a", Time(5))
    assert Time.kept == 1 + 1


class DeadlinesAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine: Deadlines[int] = Deadlines()
        self.model: dict[int, int] = {}

    @rule(thing=things, when=times)
    def is_set(self, thing: int, when: int) -> None:
        self.machine.set(thing, when)
        self.model[thing] = when

    @rule(thing=things)
    def is_discarded(self, thing: int) -> None:
        self.machine.discard(thing)
        self.model.pop(thing, None)

    @rule(now=times)
    def time_passes(self, now: int) -> None:
        due = self.machine.pop_due(now)
        assert [self.model[thing] for thing in due] == sorted(when for when in self.model.values() if when <= now)
        assert len(set(due)) == len(due)
        for thing in due:
            del self.model[thing]

    @rule()
    def is_looked_at(self) -> None:
        assert self.machine.next() == min(self.model.values(), default=None)

    @invariant()
    def both_look_the_same(self) -> None:
        assert len(self.machine) == len(self.model)
        assert all((thing in self.machine) == (thing in self.model) for thing in range(9))


TestDeadlinesAgainstDict = DeadlinesAgainstDict.TestCase


# -- leases: told of in batches, and forgotten by whoever holds them ----------------------------------------------------


class LeaseMachine(RuleBasedStateMachine):
    """Leases are given, moved, ended and fall due; a plain dict says what is scheduled."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, str] = {}
        self.deadlines = LeaseDeadlines(self.live)
        self.model: dict[int, float] = {}
        self.token = 0

    @rule(count=st.integers(1, 5), when=times)
    def give(self, count, when):
        tokens = range(self.token, self.token + count)
        self.token += count
        self.live.update(dict.fromkeys(tokens, "lane"))
        self.model.update(dict.fromkeys(tokens, when))
        self.deadlines.add(tokens, when)

    @rule(data=st.data(), when=times)
    def move(self, data, when):
        if self.model:
            token = data.draw(st.sampled_from(sorted(self.model)))
            self.model[token] = when
            self.deadlines.move(token, when)

    @rule(data=st.data())
    def end(self, data):
        if self.model:
            token = data.draw(st.sampled_from(sorted(self.model)))
            del self.model[token], self.live[token]

    @rule(now=times)
    def fall_due(self, now):
        due = self.deadlines.pop_due(now)
        assert [self.model[token] for token in due] == sorted(when for when in self.model.values() if when <= now)
        for token in due:
            del self.model[token], self.live[token]

    @invariant()
    def the_next_deadline_is_the_earliest(self):
        assert len(self.deadlines) == len(self.model)
        assert self.deadlines.next() == min(self.model.values(), default=None)


TestLeases = LeaseMachine.TestCase


def test_leases_that_ended_are_not_kept_behind_one_that_lasts():
    live: dict[int, None] = {}
    deadlines = LeaseDeadlines(live)
    for token in range(10_000):
        live[token] = None
        deadlines.add([token], Time(token))
        if token:
            del live[token]
    assert Time.kept <= 2 + SLACK + 1
    assert deadlines.next() == 0


def test_a_lease_that_is_extended_again_and_again_is_kept_once():
    live = {7: None}
    deadlines = LeaseDeadlines(live)
    deadlines.add([7], 0)
    for when in range(10_000):
        deadlines.move(7, Time(when))
    assert Time.kept <= 2 + SLACK + 1
    assert deadlines.pop_due(10_000) == [7]
    assert deadlines.next() is None


def test_leases_that_ended_are_tolerated_until_they_outnumber_the_live_ones_by_the_slack():
    live, most = set(range(100)), 2 * 100 + SLACK
    deadlines = LeaseDeadlines(live)
    for token in range(most):
        deadlines.add([token], Time(token))
    assert Time.kept == most
    deadlines.add([most], Time(most))
    assert Time.kept == len(live)


def test_earlier_deadlines_of_extended_leases_are_tolerated_until_they_outnumber_the_live_ones_by_the_slack():
    live, most = set(range(100)), 2 * 100 + SLACK
    deadlines = LeaseDeadlines(live)
    deadlines.add(sorted(live), 0.0)
    for when in range(most):
        deadlines.move(7, Time(when))
    assert Time.kept == most
    deadlines.move(7, Time(most))
    assert Time.kept == 1


def test_the_deadline_of_a_lease_is_the_one_that_it_was_given_until_it_is_moved():
    deadlines = LeaseDeadlines({1, 2})
    deadlines.add([1, 2], 5.0)
    deadlines.move(2, 9.0)
    assert (deadlines.of(1, 5.0), deadlines.of(2, 5.0)) == (5.0, 9.0)


def test_leases_with_shorter_deadlines_come_out_earlier():
    live = dict.fromkeys(range(4))
    deadlines = LeaseDeadlines(live)
    deadlines.add([0, 1], 10)
    deadlines.add([2, 3], 5)
    assert deadlines.next() == 5
    assert deadlines.pop_due(10) == [2, 3, 0, 1]


def test_leases_that_are_moved_again_and_again_are_due_once_and_those_that_were_due_never_again():
    live = {1, 2}
    deadlines = LeaseDeadlines(live)
    deadlines.add([1, 2], 5.0)
    deadlines.move(1, 3.0)
    assert deadlines.pop_due(4.0) == [1], "it stays leased until somebody ends it"
    for when in range(5, 2000):
        deadlines.move(2, float(when))
    assert deadlines.next() == 1999.0
    assert (deadlines.pop_due(1998.0), deadlines.pop_due(1999.0)) == ([], [2])
    assert deadlines.next() is None


def test_leases_that_were_moved_keep_their_deadlines_when_those_of_finished_ones_are_swept_out() -> None:
    live = set(range(1000))
    deadlines = LeaseDeadlines(live)
    deadlines.add(sorted(live), 10.0)
    for token in range(1000):
        deadlines.move(token, 20.0 + token)
    live -= set(range(3, 1000))
    for again in range(1000):
        deadlines.move(0, 100.0 + again)
    assert deadlines.pop_due(5_000.0) == [1, 2, 0]
