"""The manual clock moves forward only, and calls timers on the way."""

from __future__ import annotations

from math import nan

import pytest

from seriatim.errors import InvalidArgument
from seriatim.testing import ManualClock


def test_a_clock_starts_at_zero_or_where_told() -> None:
    assert ManualClock().now() == 0.0
    assert ManualClock(1000.5).now() == 1000.5


def test_a_clock_stands_still_until_moved() -> None:
    clock = ManualClock(5.0)
    assert [clock.now(), clock.now()] == [5.0, 5.0]


def test_advance_adds_and_set_moves_to_a_time() -> None:
    clock = ManualClock(10.0)
    clock.advance(2.5)
    assert clock.now() == 12.5
    clock.set(20.0)
    assert clock.now() == 20.0


def test_standing_still_is_no_step_backwards() -> None:
    clock = ManualClock(3.0)
    clock.advance(0.0)
    clock.set(3.0)
    assert clock.now() == 3.0


def test_a_clock_never_goes_backwards() -> None:
    clock = ManualClock(3.0)
    with pytest.raises(InvalidArgument) as refusal:
        clock.set(2.5)
    assert str(refusal.value) == "a clock never goes backwards: it is 3.0, so it cannot be set to 2.5"
    with pytest.raises(InvalidArgument):
        clock.advance(-0.001)
    with pytest.raises(InvalidArgument):
        clock.set(nan)
    assert clock.now() == 3.0


def test_timers_are_called_in_order_of_time_and_then_of_setting() -> None:
    clock = ManualClock()
    calls: list[str] = []
    for when, name in ((3.0, "c"), (1.0, "a"), (2.0, "b1"), (2.0, "b2"), (3.5, "too late")):
        clock.call_at(when, lambda name=name: calls.append(name))  # type: ignore[misc]
    clock.advance(3.0)
    assert calls == ["a", "b1", "b2", "c"]
    clock.advance(0.5)
    assert calls[4:] == ["too late"]


def test_during_a_timer_it_is_the_time_for_which_the_timer_was_set() -> None:
    clock = ManualClock()
    times: list[float] = []
    clock.call_at(1.0, lambda: times.append(clock.now()))
    clock.call_at(2.0, lambda: times.append(clock.now()))
    clock.set(10.0)
    assert times == [1.0, 2.0]
    assert clock.now() == 10.0


def test_a_timer_is_called_once() -> None:
    clock = ManualClock()
    calls: list[float] = []
    clock.call_at(1.0, lambda: calls.append(clock.now()))
    clock.advance(1.0)
    clock.advance(1.0)
    assert calls == [1.0]


def test_a_timer_set_by_a_timer_is_called_within_the_same_move() -> None:
    clock = ManualClock()
    times: list[float] = []

    def tick() -> None:
        times.append(clock.now())
        clock.call_at(clock.now() + 1.0, tick)

    clock.call_at(1.0, tick)
    clock.advance(3.5)
    assert times == [1.0, 2.0, 3.0]


def test_a_timer_for_the_past_is_due_at_the_next_move_and_sees_the_present() -> None:
    clock = ManualClock(5.0)
    times: list[float] = []
    clock.call_at(1.0, lambda: times.append(clock.now()))
    assert times == []
    clock.advance(0.0)
    assert times == [5.0]


def test_a_timer_that_moves_the_clock_further_is_not_undone() -> None:
    clock = ManualClock()
    clock.call_at(1.0, lambda: clock.set(50.0))
    clock.advance(2.0)
    assert clock.now() == 50.0
