"""How long to wait for an answer."""

from __future__ import annotations

from itertools import accumulate, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.pipes.round_trip import RoundTrip, stamp_of


def test_before_anything_was_measured_the_initial_timeout_holds():
    assert RoundTrip(0.5, 0.01, 3.0).timeout == 0.5


def test_waiting_doubles_up_to_a_limit():
    trip = RoundTrip(0.5, 0.01, 3.0)
    timeouts = []
    for _ in range(5_000):
        timeouts.append(trip.timeout)
        trip.miss()
    assert timeouts[:4] == [0.5, 1.0, 2.0, 3.0]
    assert timeouts[-1] == 3.0
    trip.begin_anew()
    assert trip.timeout == 0.5


def test_the_first_answer_gives_the_mean_and_half_of_it_as_deviation_and_later_ones_move_both():
    trip = RoundTrip(0.5, 0.001, 60.0)
    trip.measure(stamp_of(1.0), 2.0)
    assert trip.timeout == pytest.approx(1.0 + 4 * 0.5)
    trip.measure(stamp_of(10.0), 10.2)
    assert trip.timeout == pytest.approx((1.0 - 0.8 / 8) + 4 * (0.5 + (0.8 - 0.5) / 4))


def test_a_time_before_zero_has_the_stamp_that_measures_nothing():
    assert (stamp_of(-5.0), stamp_of(0.0), stamp_of(1.5)) == (0, 0, 1_500_000)


def test_steady_answers_bring_the_timeout_close_to_the_round_trip():
    trip = RoundTrip(1.0, 0.001, 60.0)
    for now in accumulate(repeat(1.0, 100)):
        trip.measure(stamp_of(now), now + 0.1)
    assert 0.1 <= trip.timeout < 0.11


def test_answers_of_changing_speed_widen_it():
    trip = RoundTrip(1.0, 0.001, 60.0)
    for number in range(100):
        trip.measure(stamp_of(number + 1.0), number + (1.05 if number % 2 else 1.15))
    assert trip.timeout > 0.2


def test_an_answer_that_may_be_held_back_is_waited_for():
    patient, hasty = RoundTrip(1.0, 0.001, 60.0, answer_delay=0.5), RoundTrip(1.0, 0.001, 60.0)
    for trip in (patient, hasty):
        trip.measure(stamp_of(1.0), 1.1)
    assert patient.timeout == pytest.approx(hasty.timeout + 0.5)


def test_no_echo_measures_nothing():
    trip = RoundTrip(0.5, 0.01, 3.0)
    trip.miss()
    trip.measure(0, 100.0)
    assert trip.timeout == 1.0


@given(st.lists(st.tuples(st.integers(0, 1 << 70), st.floats(0, 1e9)), max_size=50))
def test_whatever_is_echoed_the_timeout_stays_within_its_bounds(answers):
    trip = RoundTrip(0.5, 0.01, 3.0)
    for echo, now in answers:
        trip.measure(echo, now)
        assert 0.01 <= trip.timeout <= 3.0
