"""The resequencer: what becomes of a gap that is given up, reported or asked for."""

from __future__ import annotations

from seriatim.core.resequencing.options import (
    GapReported,
    OnGap,
    Reason,
    ResendRequested,
)
from seriatim.core.resequencing.resequencer import State
from tests.core.resequencing.resequencer_kit import (
    dead_letters,
    entry,
    look,
    lost,
    machine,
    push,
    released,
)


def test_dead_letter_gives_up_the_gap_together_with_the_run_behind_it():
    k = machine(gap_timeout=10, on_gap=OnGap.DEAD_LETTER)
    push(k, 1, 3, 4)
    push(k, 6, now=5)
    assert k.advance(10) == [lost(2, 2, 1, 10), *dead_letters(3, 4, time=10)]
    assert look(k) == (State.HOLDING, 5, [6], ((5, 5),), 15)
    assert push(k, 5, now=11) == released(5, 6)


def test_dead_letter_holds_for_an_operators_skip_too_and_not_for_flush():
    k = machine(on_gap=OnGap.DEAD_LETTER)
    push(k, 1, 3, 5)
    assert k.skip(8) == [lost(2, 2, 1, 8, "skipped by an operator"), *dead_letters(3, time=8)]
    assert k.flush(9) == [lost(4, 4, 1, 9, "flushed"), *released(5)]


def test_a_dead_lettered_message_counts_as_seen():
    k = machine(gap_timeout=10, on_gap=OnGap.DEAD_LETTER)
    push(k, 1, 3)
    k.advance(10)
    assert push(k, 3, now=11) == [entry(Reason.DUPLICATE, 3, 11, "released before")]


def test_hold_reports_every_open_gap_once_and_waits():
    k = machine(gap_timeout=10, on_gap=OnGap.HOLD)
    push(k, 1, 3)
    push(k, 6, now=5)
    assert k.advance(10) == [GapReported("k", 0, ((2, 2), (4, 5)))]
    assert look(k) == (State.STALLED, 2, [3, 6], ((2, 2), (4, 5)), None)
    assert k.advance(10**6) == []
    assert push(k, 2) == released(2, 3)
    assert k.state is State.STALLED
    assert push(k, 4, 5) == released(4, 5, 6)
    assert look(k)[0] is State.FLOWING


def test_a_part_of_a_reported_gap_is_not_reported_again():
    k = machine(gap_timeout=10, on_gap=OnGap.HOLD)
    push(k, 1, 5)
    k.advance(10)
    push(k, 3, now=11)
    assert k.missing() == ((2, 2), (4, 4))
    assert k.advance(10**6) == []
    assert push(k, 2) == released(2, 3)
    assert k.state is State.STALLED
    assert k.advance(10**7) == []


def test_a_gap_behind_a_reported_one_is_reported_when_it_comes_to_the_head():
    k = machine(gap_timeout=10, on_gap=OnGap.HOLD)
    push(k, 1, 3)
    k.advance(10)
    push(k, 5, now=11)
    assert k.state is State.STALLED
    assert k.advance(30) == []
    assert k.skip(31) == [lost(2, 2, 1, 31, "skipped by an operator"), *released(3)]
    assert look(k) == (State.HOLDING, 4, [5], ((4, 4),), 21)
    assert k.advance(31) == [GapReported("k", 0, ((4, 4),))]
    assert k.skip(32) == [lost(4, 4, 1, 32, "skipped by an operator"), *released(5)]
    assert look(k)[0] is State.FLOWING


def test_request_asks_for_every_missing_number_and_then_gives_up():
    k = machine(gap_timeout=10, on_gap=OnGap.REQUEST, max_requests=2)
    push(k, 1, 3, 6)
    assert k.advance(10) == [ResendRequested("k", 0, ((2, 2), (4, 5)))]
    assert look(k) == (State.HOLDING, 2, [3, 6], ((2, 2), (4, 5)), 20)
    assert k.advance(19) == []
    assert k.advance(20) == [ResendRequested("k", 0, ((2, 2), (4, 5)))]
    assert k.advance(30) == [lost(2, 2, 1, 30), *released(3), lost(4, 5, 2, 30), *released(6)]
    assert look(k)[0] is State.FLOWING


def test_request_asks_three_times_unless_told_otherwise():
    k = machine(gap_timeout=10, on_gap=OnGap.REQUEST)
    push(k, 1, 3)
    for due in (10, 20, 30):
        assert k.advance(due) == [ResendRequested("k", 0, ((2, 2),))]
    assert k.advance(40) == [lost(2, 2, 1, 40), *released(3)]


def test_a_request_made_late_still_gives_the_source_its_time_to_answer():
    k = machine(gap_timeout=10, on_gap=OnGap.REQUEST)
    push(k, 1, 3)
    assert k.advance(100) == [ResendRequested("k", 0, ((2, 2),))]
    assert k.deadline == 110


def test_requests_are_counted_for_each_gap():
    k = machine(gap_timeout=10, on_gap=OnGap.REQUEST, max_requests=1)
    push(k, 1, 3)
    k.advance(10)
    push(k, 5, now=12)
    assert k.advance(20) == [lost(2, 2, 1, 20), *released(3)]
    assert k.advance(22) == [ResendRequested("k", 0, ((4, 4),))]
    assert k.advance(32) == [lost(4, 4, 1, 32), *released(5)]


def test_a_part_of_a_requested_gap_was_asked_for_as_often():
    k = machine(gap_timeout=10, on_gap=OnGap.REQUEST, max_requests=1)
    push(k, 1, 5)
    k.advance(10)
    push(k, 3, now=11)
    assert k.advance(20) == [lost(2, 2, 1, 20), *released(3), lost(4, 4, 1, 20), *released(5)]


def test_a_resend_that_answers_a_request_is_released():
    k = machine(gap_timeout=10, on_gap=OnGap.REQUEST)
    push(k, 1, 3)
    k.advance(10)
    assert push(k, 2, now=12) == released(2, 3)
    assert k.deadline is None


# Rule 5: late or duplicate
