"""The resequencer: what it holds, and when it gives up."""

from __future__ import annotations

from math import inf

import pytest

from seriatim.core.resequencing.gaps import Held
from seriatim.core.resequencing.options import (
    GapReported,
    OnGap,
    Reason,
    Released,
)
from seriatim.core.resequencing.resequencer import Resequencer, State
from tests.core.resequencing.resequencer_kit import (
    entry,
    look,
    lost,
    machine,
    push,
    released,
)


def test_a_new_machine_waits_for_its_first_message():
    fresh: Resequencer[str] = Resequencer()
    assert look(fresh) == (State.NEW, None, [], (), None)
    assert (fresh.key, fresh.epoch, fresh.held_count) == (None, None, 0)
    assert fresh.advance(100) == []
    assert fresh.flush(100) == []
    assert fresh.clear(100) == []
    assert fresh.state is State.NEW


def test_the_options_default_to_first_seen_and_no_timeout():
    fresh: Resequencer[str] = Resequencer()
    assert fresh.push(7, "a", 0) == [Released(None, 0, 7, "a")]
    assert fresh.push(9, "c", 0) == []
    assert fresh.advance(10**9) == []
    assert fresh.push(8, "b", 10**9) == [Released(None, 0, 8, "b"), Released(None, 0, 9, "c")]


# Rule 1: in order, each number at most once, never backwards


def test_messages_in_order_pass_straight_through():
    k = machine()
    assert push(k, 1, 2, 3) == released(1, 2, 3)
    assert look(k) == (State.FLOWING, 4, [], (), None)


def test_a_second_copy_of_a_released_message_is_a_duplicate():
    k = machine()
    push(k, 1, 2)
    assert push(k, 2, now=5) == [entry(Reason.DUPLICATE, 2, 5, "released before")]
    assert push(k, 1, now=6) == [entry(Reason.DUPLICATE, 1, 6, "released before")]
    assert k.expected == 3


def test_a_duplicate_of_a_held_message_is_released_once():
    k = machine()
    push(k, 1, 3)
    assert push(k, 3, now=1) == [entry(Reason.DUPLICATE, 3, 1, "another copy is held")]
    assert push(k, 2) == released(2, 3)
    assert push(k, 3, now=2) == [entry(Reason.DUPLICATE, 3, 2, "released before")]


# Rule 2: holding, gaps and splits


def test_a_message_ahead_is_held_until_the_gap_is_filled():
    k = machine(gap_timeout=10)
    push(k, 1, now=3)
    assert push(k, 4, now=4) == []
    assert look(k) == (State.HOLDING, 2, [4], ((2, 3),), 14)
    assert k.held() == [(4, Held("m4", 4, None))]
    assert push(k, 2, now=5) == released(2)
    assert look(k) == (State.HOLDING, 3, [4], ((3, 3),), 14)
    assert push(k, 3, now=6) == released(3, 4)
    assert look(k) == (State.FLOWING, 5, [], (), None)


def test_filling_a_gap_releases_only_up_to_the_next_gap():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    push(k, 6, now=1)
    assert push(k, 2, now=2) == released(2, 3)
    assert look(k) == (State.HOLDING, 4, [6], ((4, 5),), 11)


def test_an_arrival_inside_a_gap_splits_it_and_both_parts_keep_its_deadline():
    k = machine(gap_timeout=10)
    push(k, 1, 8)
    assert push(k, 5, now=6) == []
    assert look(k) == (State.HOLDING, 2, [5, 8], ((2, 4), (6, 7)), 10)
    assert k.advance(10) == [lost(2, 4, 3, 10), *released(5), lost(6, 7, 2, 10), *released(8)]


def test_an_arrival_at_the_upper_end_of_a_gap_shortens_it():
    k = machine(gap_timeout=10)
    push(k, 1, 5)
    push(k, 4, now=6)
    assert look(k) == (State.HOLDING, 2, [4, 5], ((2, 3),), 10)


def test_an_arrival_at_the_lower_end_of_a_later_gap_shortens_it():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    push(k, 7, now=2)
    push(k, 4, now=5)
    assert look(k) == (State.HOLDING, 2, [3, 4, 7], ((2, 2), (5, 6)), 10)
    assert k.advance(11.5) == [lost(2, 2, 1, 10), *released(3, 4)]
    assert k.deadline == 12


def test_an_arrival_that_is_a_whole_later_gap_closes_it():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    push(k, 5, now=2)
    push(k, 4, now=5)
    assert look(k) == (State.HOLDING, 2, [3, 4, 5], ((2, 2),), 10)
    assert push(k, 2) == released(2, 3, 4, 5)


def test_what_follows_the_highest_held_opens_no_gap():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    push(k, 4, now=5)
    assert look(k) == (State.HOLDING, 2, [3, 4], ((2, 2),), 10)


# Rule 3: deadlines belong to gaps


def test_a_gap_is_given_up_exactly_at_its_deadline():
    k = machine(gap_timeout=10)
    push(k, 1, now=2)
    push(k, 3, now=3)
    assert k.advance(12.999) == []
    assert k.advance(13) == [lost(2, 2, 1, 13), *released(3)]
    assert look(k) == (State.FLOWING, 4, [], (), None)


def test_a_deadline_passed_long_ago_is_entered_with_the_time_at_which_it_fell_due():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    assert k.advance(500) == [lost(2, 2, 1, 10), *released(3)]


def test_traffic_never_extends_a_deadline():
    k = machine(gap_timeout=10)
    push(k, 1, 5)
    for now, sequence in enumerate([6, 7, 2, 8, 5, 1, 9], start=1):
        push(k, sequence, now=now)
        assert k.deadline == 10
    assert k.advance(10) == [lost(3, 4, 2, 10), *released(5, 6, 7, 8, 9)]


def test_several_gaps_each_have_their_own_deadline():
    k = machine(gap_timeout=10)
    push(k, 1, 3, now=0)
    push(k, 5, now=4)
    push(k, 7, now=4)
    push(k, 9, now=6)
    assert k.missing() == ((2, 2), (4, 4), (6, 6), (8, 8))
    assert k.advance(10) == [lost(2, 2, 1, 10), *released(3)]
    assert look(k) == (State.HOLDING, 4, [5, 7, 9], ((4, 4), (6, 6), (8, 8)), 14)
    assert k.advance(15) == [lost(4, 4, 1, 14), *released(5), lost(6, 6, 1, 14), *released(7)]
    assert k.deadline == 16
    assert k.advance(16) == [lost(8, 8, 1, 16), *released(9)]


def test_a_gap_timeout_of_0_gives_up_at_the_next_advance():
    k = machine(gap_timeout=0)
    push(k, 1, 3, now=5)
    assert k.deadline == 5
    assert k.advance(5) == [lost(2, 2, 1, 5), *released(3)]


def test_without_a_gap_timeout_only_the_missing_message_helps():
    k = machine()
    push(k, 1, 3)
    assert k.deadline is None
    assert k.advance(10**12) == []
    assert push(k, 2) == released(2, 3)


def test_a_push_lets_no_deadline_fall_due():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    assert push(k, 2, now=50) == released(2, 3)


def test_time_never_runs_backwards():
    k = machine(gap_timeout=10)
    push(k, 1, now=100)
    push(k, 3, now=40)
    assert k.held() == [(3, Held("m3", 100, None))]
    assert k.deadline == 110
    assert k.advance(109) == []
    push(k, 5, now=0)
    assert k.held()[1] == (5, Held("m5", 109, None))
    assert k.skip(3) == [lost(2, 2, 1, 109, "skipped by an operator"), *released(3)]
    assert push(k, 1, now=3) == [entry(Reason.DUPLICATE, 1, 109, "released before")]
    assert k.flush(4) == [lost(4, 4, 1, 109, "flushed"), *released(5)]
    push(k, 8, now=5)
    assert k.make_room(5) == [lost(6, 7, 2, 109, "no room to hold more"), *released(8)]
    push(k, 10, now=5)
    assert k.clear(6) == [entry(Reason.DISCARDED, 10, 109, "cleared")]
    assert k.save().now == 109


@pytest.mark.parametrize("command", ["advance", "flush", "clear"])
def test_every_command_moves_time(command):
    k = machine()
    push(k, 1)
    getattr(k, command)(30)
    assert k.save().now == 30


def test_an_advance_to_an_earlier_time_decides_what_the_latest_time_decides():
    k = machine(gap_timeout=10)
    push(k, 1, 3)
    push(k, 4, now=10)
    assert k.advance(2) == [lost(2, 2, 1, 10), *released(3, 4)]


@pytest.mark.parametrize("on_gap", [OnGap.SKIP, OnGap.HOLD])
def test_at_the_end_of_time_only_gaps_with_a_deadline_are_due(on_gap):
    k = machine(gap_timeout=10, on_gap=on_gap)
    push(k, 1, 3)
    due = [GapReported("k", 0, ((2, 2),))] if on_gap is OnGap.HOLD else [lost(2, 2, 1, 10), *released(3)]
    assert k.advance(inf) == due
    k = machine(on_gap=on_gap)
    push(k, 1, 3)
    assert k.advance(inf) == []


# Rule 4: what a gap's deadline means
