"""The resequencer by example: each rule of its docstring, each option, each text. The model test covers their mixtures."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.backlog import Held
from seriatim.core.resequencer import Resequencer, SavedResequencer, State
from seriatim.core.resequencing import (
    DeadLettered,
    GapReported,
    Late,
    LedgerEntry,
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Reason,
    Released,
    ResendRequested,
    Resequencing,
    Start,
    SyncLost,
)
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded, IllegalTransition, InvalidSequence, LateMessage

CIRCLE = SequenceSpace(256)
GIVEN_UP = "its gap was given up"
BEFORE = "before the start, or older than what is remembered"
STRANDED = "stranded behind a gap that was given up"


def machine(**options: Any) -> Resequencer[str]:
    return Resequencer(Resequencing(**options), "k")


def push(to: Resequencer[str], *sequences: int, now: float = 0, epoch: int = 0, **more: Any) -> list[Any]:
    """Push the messages m1, m2, ... for the numbers 1, 2, ..."""
    return [effect for n in sequences for effect in to.push(n, f"m{n}", now, epoch=epoch, **more)]


def released(*sequences: int, epoch: int = 0) -> list[Released[str]]:
    return [Released("k", epoch, n, f"m{n}") for n in sequences]


def entry(reason: Reason, sequence: int, time: float, detail: str, message: str | None = "", epoch: int = 0) -> Any:
    """The ledger entry of one message; m1 for the number 1 unless told otherwise."""
    message = f"m{sequence}" if message == "" else message
    return LedgerEntry("k", epoch, reason, sequence, sequence, 1, time, detail, message)


def lost(first: int, last: int, size: int, time: float, detail: str = "gap timeout", epoch: int = 0) -> Any:
    return LedgerEntry("k", epoch, Reason.LOST, first, last, size, time, detail, None)


def dead_letters(*sequences: int, time: float) -> list[Any]:
    pairs = [(DeadLettered("k", 0, n, f"m{n}"), entry(Reason.DEAD_LETTER, n, time, STRANDED)) for n in sequences]
    return [effect for pair in pairs for effect in pair]


def look(at: Resequencer[str]) -> tuple[Any, ...]:
    return at.state, at.expected, [n for n, _ in at.held()], at.missing(), at.deadline


# A new machine


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


def test_a_message_whose_gap_was_given_up_is_late_and_never_released_backwards():
    k = machine(gap_timeout=10)
    push(k, 1, 4)
    k.advance(10)
    assert push(k, 3, now=11) == [entry(Reason.LATE, 3, 11, GIVEN_UP)]
    assert push(k, 2, now=12) == [entry(Reason.LATE, 2, 12, GIVEN_UP)]
    assert k.expected == 5


def test_the_second_copy_of_a_late_message_is_a_duplicate():
    k = machine(gap_timeout=10)
    push(k, 1, 5)
    k.advance(10)
    push(k, 3, now=11)
    assert push(k, 3, now=12) == [entry(Reason.DUPLICATE, 3, 12, "released before")]
    assert push(k, 2, 4, now=13) == [entry(Reason.LATE, 2, 13, GIVEN_UP), entry(Reason.LATE, 4, 13, GIVEN_UP)]


def test_a_message_before_the_start_is_late():
    k = machine()
    push(k, 5)
    assert push(k, 4, now=1) == [entry(Reason.LATE, 4, 1, BEFORE)]
    assert push(k, 5, now=2) == [entry(Reason.DUPLICATE, 5, 2, "released before")]


def test_late_messages_can_go_to_a_side_output_with_their_ledger_entry():
    k = machine(gap_timeout=10, on_late=OnLate.SIDE_OUTPUT)
    push(k, 1, 3)
    k.advance(10)
    assert push(k, 2, now=11) == [Late("k", 0, 2, "m2"), entry(Reason.LATE, 2, 11, GIVEN_UP)]
    assert push(k, 2, now=12) == [entry(Reason.DUPLICATE, 2, 12, "released before")]


@pytest.mark.parametrize(("sequence", "detail"), [(2, GIVEN_UP), (0, BEFORE)])
def test_late_messages_can_be_refused_and_then_nothing_is_changed(sequence, detail):
    k = machine(gap_timeout=10, on_late=OnLate.RAISE)
    push(k, 1, 3)
    k.advance(10)
    before = k.save()
    with pytest.raises(LateMessage) as error:
        push(k, sequence, now=11)
    assert error.value.message == (
        f"message {sequence} of key 'k' came too late: {detail}; drop it, or choose another late policy"
    )
    assert k.save() == before


def test_a_duplicate_is_never_refused():
    k = machine(on_late=OnLate.RAISE)
    push(k, 1)
    assert push(k, 1, now=1) == [entry(Reason.DUPLICATE, 1, 1, "released before")]


def give_up_2_and_4_and_6(k: Resequencer[str]) -> None:
    push(k, 1, 3, 5, 7)
    assert [e.first for e in k.advance(10) if isinstance(e, LedgerEntry)] == [2, 4, 6]


def test_what_is_older_than_the_remembered_ranges_is_late():
    k = machine(gap_timeout=10, remember=2)
    give_up_2_and_4_and_6(k)
    assert push(k, 2, 1, now=11) == [entry(Reason.LATE, 2, 11, BEFORE), entry(Reason.LATE, 1, 11, BEFORE)]
    assert push(k, 3, now=11) == [entry(Reason.DUPLICATE, 3, 11, "released before")]
    assert push(k, 4, 6, now=11) == [entry(Reason.LATE, 4, 11, GIVEN_UP), entry(Reason.LATE, 6, 11, GIVEN_UP)]


def test_exactly_as_many_ranges_as_allowed_are_remembered():
    k = machine(gap_timeout=10, remember=3)
    give_up_2_and_4_and_6(k)
    assert k.save().given_up == ((2, 2), (4, 4), (6, 6))
    assert push(k, 1, now=11) == [entry(Reason.DUPLICATE, 1, 11, "released before")]


def test_a_late_message_that_splits_a_remembered_range_costs_one_range():
    k = machine(gap_timeout=10, remember=1)
    push(k, 1, 5)
    k.advance(10)
    assert k.save().given_up == ((2, 4),)
    push(k, 3, now=11)
    assert k.save().given_up == ((4, 4),)
    assert push(k, 2, now=12) == [entry(Reason.LATE, 2, 12, BEFORE)]
    assert push(k, 3, now=12) == [entry(Reason.DUPLICATE, 3, 12, "released before")]


def test_neighbouring_given_up_ranges_of_a_stepped_space_count_as_one():
    k = machine(space=SequenceSpace(increment=10), gap_timeout=10, remember=1, on_gap=OnGap.DEAD_LETTER)
    push(k, 0, 30)
    k.advance(10)
    push(k, 60, now=11)
    k.advance(21)
    assert k.save().given_up == ((40, 59),)
    assert push(k, 40, now=22) == [entry(Reason.LATE, 40, 22, GIVEN_UP)]
    assert k.save().given_up == ((50, 59),)


def test_a_late_message_of_a_stepped_space_is_seen_once():
    k = machine(space=SequenceSpace(increment=10), gap_timeout=10)
    push(k, 0, 30)
    k.advance(10)
    assert push(k, 10, now=11) == [entry(Reason.LATE, 10, 11, GIVEN_UP)]
    assert push(k, 10, now=12) == [entry(Reason.DUPLICATE, 10, 12, "released before")]
    assert k.save().given_up == ((20, 29),)


# Duplicates of what is held


def copy_of_held(on_duplicate: OnDuplicate, digest: str) -> tuple[Resequencer[str], list[Any]]:
    k = machine(on_duplicate=on_duplicate)
    push(k, 1)
    k.push(3, "first", 1, digest="a")
    return k, list(k.push(3, "second", 2, digest=digest))


@pytest.mark.parametrize("digest", ["a", "b"])
def test_first_keeps_the_first_copy(digest):
    k, effects = copy_of_held(OnDuplicate.FIRST, digest)
    assert effects == [entry(Reason.DUPLICATE, 3, 2, "another copy is held", "second")]
    assert k.held() == [(3, Held("first", 1, "a"))]


@pytest.mark.parametrize("digest", ["a", "b"])
def test_last_keeps_the_last_copy_and_the_first_arrival(digest):
    k, effects = copy_of_held(OnDuplicate.LAST, digest)
    assert effects == [entry(Reason.DUPLICATE, 3, 2, "another copy is held", "first")]
    assert k.held() == [(3, Held("second", 1, digest))]
    assert k.push(2, "m2", 3)[1:] == [Released("k", 0, 3, "second")]


def test_conflict_tells_a_copy_from_a_different_message_with_the_same_number():
    k, effects = copy_of_held(OnDuplicate.CONFLICT, "b")
    assert effects == [entry(Reason.CONFLICT, 3, 2, "another copy is held", "second")]
    assert k.held() == [(3, Held("first", 1, "a"))]
    k, effects = copy_of_held(OnDuplicate.CONFLICT, "a")
    assert effects == [entry(Reason.DUPLICATE, 3, 2, "another copy is held", "second")]


# Rule 7: sessions and their start


def test_a_literal_start_waits_for_its_number():
    k = machine(start=Start.at(5), gap_timeout=10)
    assert push(k, 7, now=1) == []
    assert look(k) == (State.HOLDING, 5, [7], ((5, 6),), 11)
    assert push(k, 4, now=2) == [entry(Reason.LATE, 4, 2, BEFORE)]
    assert push(k, 5, 6, now=3) == released(5, 6, 7)


def test_the_first_seen_starts_wherever_it_is():
    k = machine(start=Start.first_seen())
    assert push(k, -3, -2) == released(-3, -2)


def test_the_lowest_number_within_the_time_is_the_start():
    k = machine(start=Start.lowest_within(5))
    assert push(k, 7, now=10) == []
    assert push(k, 5, now=12) == push(k, 6, now=14) == []
    assert look(k) == (State.GATHERING, None, [5, 6, 7], (), 15)
    assert k.held_count == 3
    assert k.advance(14.999) == []
    assert k.advance(15) == released(5, 6, 7)
    assert look(k) == (State.FLOWING, 8, [], (), None)
    assert push(k, 4, now=16) == [entry(Reason.LATE, 4, 16, BEFORE)]


def test_gaps_among_the_gathered_opened_when_the_first_message_above_them_came():
    k = machine(start=Start.lowest_within(5), gap_timeout=10)
    push(k, 9, now=3)
    push(k, 12, now=1)
    push(k, 7, now=4)
    push(k, 5, now=5)
    push(k, 14, now=6)
    assert k.advance(8) == released(5)
    assert look(k) == (State.HOLDING, 6, [7, 9, 12, 14], ((6, 6), (8, 8), (10, 11), (13, 13)), 13)
    assert [deadline for _, _, deadline, _, _ in k.save().gaps] == [13, 13, 13, 16]


def test_a_duplicate_among_the_gathered_is_released_once():
    k = machine(start=Start.lowest_within(5))
    push(k, 7)
    assert push(k, 7, now=1) == [entry(Reason.DUPLICATE, 7, 1, "another copy is held")]
    assert k.advance(5) == released(7)


def test_start_and_gaps_can_fall_due_in_one_advance():
    k = machine(start=Start.lowest_within(5), gap_timeout=1)
    push(k, 3)
    push(k, 1, now=2)
    assert k.advance(5) == [*released(1), lost(2, 2, 1, 1), *released(3)]


def test_gathering_works_across_the_wrap_and_refuses_what_is_half_a_circle_below():
    k = machine(space=SequenceSpace(16), start=Start.lowest_within(5))
    push(k, 2, 15, 13)
    assert [n for n, _ in k.held()] == [13, 15, 2]
    too_low = "more than half a circle below what was gathered"
    assert push(k, 10, now=1) == [entry(Reason.LATE, 10, 1, too_low)]
    assert push(k, 11, now=1) == []
    assert k.advance(5) == released(11)


def test_gathering_counts_half_a_circle_in_steps():
    k = machine(space=SequenceSpace(32, increment=2), start=Start.lowest_within(5))
    push(k, 2)
    assert push(k, 20, now=1) == []
    assert push(k, 18, now=1) == [entry(Reason.LATE, 18, 1, "more than half a circle below what was gathered")]
    assert k.advance(5) == released(20)


def test_a_higher_epoch_ends_the_session_and_releases_what_is_held():
    k = machine()
    push(k, 1, 3)
    assert push(k, 8, now=5, epoch=2) == [lost(2, 2, 1, 5, "flushed"), *released(3), *released(8, epoch=2)]
    assert (k.epoch, k.expected, k.state) == (2, 9, State.FLOWING)


def test_a_higher_epoch_can_discard_what_is_held():
    k = machine(on_epoch=OnEpoch.DISCARD)
    push(k, 1, 5, 3)
    discarded = [entry(Reason.DISCARDED, n, 5, "epoch 1 began") for n in (3, 5)]
    assert push(k, 0, now=5, epoch=1) == [*discarded, *released(0, epoch=1)]
    assert look(k) == (State.FLOWING, 1, [], (), None)


def test_a_new_session_forgets_what_the_old_one_gave_up():
    k = machine(start=Start.at(0), gap_timeout=10)
    push(k, 0, 2)
    k.advance(10)
    assert push(k, 0, 1, now=11, epoch=1) == released(0, 1, epoch=1)
    assert k.save().given_up == ()


def test_the_start_rule_applies_anew_to_each_session():
    k = machine(start=Start.lowest_within(5))
    push(k, 7)
    assert push(k, 3, now=1, epoch=1) == released(7)
    assert look(k) == (State.GATHERING, None, [3], (), 6)
    k = machine(start=Start.at(0))
    push(k, 0)
    assert push(k, 1, now=1, epoch=1) == []
    assert k.missing() == ((0, 0),)


@pytest.mark.parametrize("on_late", [OnLate.DROP, OnLate.SIDE_OUTPUT])
def test_a_message_of_a_lower_epoch_is_late(on_late):
    k = machine(on_late=on_late)
    push(k, 1, epoch=4)
    side = [Late("k", 3, 2, "m2")] if on_late is OnLate.SIDE_OUTPUT else []
    assert push(k, 2, now=1, epoch=3) == [*side, entry(Reason.LATE, 2, 1, "epoch 3 ended", epoch=3)]
    assert (k.epoch, k.expected) == (4, 2)


def test_a_message_of_a_lower_epoch_can_be_refused():
    k = machine(on_late=OnLate.RAISE)
    push(k, 1, epoch=4)
    with pytest.raises(LateMessage, match=r"^message 2 of key 'k' came too late: epoch 3 ended; drop it"):
        push(k, 2, now=1, epoch=3)


def test_any_epoch_may_be_the_first_also_after_clear():
    k = machine()
    assert push(k, 1, epoch=-7) == released(1, epoch=-7)
    k.clear(1)
    assert push(k, 1, epoch=-9) == released(1, epoch=-9)


def test_a_first_message_before_the_start_that_is_refused_ends_no_session():
    k = machine(start=Start.at(5), on_late=OnLate.RAISE)
    push(k, 5, 7)
    before = k.save()
    with pytest.raises(LateMessage) as error:
        push(k, 4, now=9, epoch=1)
    assert error.value.message == (
        "message 4 of key 'k' came too late: epoch 1 starts at 5; drop it, or choose another late policy"
    )
    assert k.save() == before


@pytest.mark.parametrize("start", [Start.at(5), Start.lowest_within(3)])
def test_a_first_message_without_room_that_is_refused_ends_no_session(start):
    k = machine(start=start, on_overflow=OnOverflow.RAISE)
    push(k, 5)
    k.flush(1)
    before = k.save()
    with pytest.raises(CapacityExceeded, match=r"^no room to hold message 6 of key 'k' behind a gap"):
        push(k, 6, now=9, epoch=1, room=False)
    assert k.save() == before


@pytest.mark.parametrize("start", [Start.at(5), Start.first_seen()])
def test_a_first_message_that_need_not_be_held_needs_no_room(start):
    k = machine(start=start, on_overflow=OnOverflow.RAISE)
    assert push(k, 5, room=False) == released(5)


def test_a_new_session_takes_the_room_that_the_old_one_frees():
    k = machine(start=Start.at(5), on_overflow=OnOverflow.RAISE)
    push(k, 5, 7)
    assert push(k, 8, now=1, epoch=1, room=False)[-1:] == released(7)
    assert (k.epoch, k.missing()) == (1, ((5, 7),))


def test_a_first_message_before_the_start_needs_no_room_to_be_late():
    k = machine(start=Start.at(5), on_overflow=OnOverflow.RAISE)
    assert push(k, 4, room=False) == [entry(Reason.LATE, 4, 0, BEFORE)]


# Rule 8, wrap-around and steps


def test_numbers_wrap_around():
    k = machine(space=CIRCLE)
    assert push(k, 254, 255, 0, 1) == released(254, 255, 0, 1)
    assert k.expected == 2


def test_holes_on_both_sides_of_the_wrap_are_ordinary_holes():
    k = machine(space=CIRCLE, gap_timeout=10)
    push(k, 252, 254, 1, 3)
    assert look(k) == (State.HOLDING, 253, [254, 1, 3], ((253, 253), (255, 0), (2, 2)), 10)
    assert push(k, 0, now=1) == []
    assert push(k, 253, now=2) == released(253, 254)
    assert k.advance(10) == [lost(255, 255, 1, 10), *released(0, 1), lost(2, 2, 1, 10), *released(3)]
    assert push(k, 255, now=11) == [entry(Reason.LATE, 255, 11, GIVEN_UP)]
    assert push(k, 0, now=11) == [entry(Reason.DUPLICATE, 0, 11, "released before")]


def test_a_gap_across_the_wrap_is_one_ledger_entry():
    k = machine(space=CIRCLE, gap_timeout=10)
    push(k, 253, 2)
    assert k.advance(10) == [lost(254, 1, 4, 10), *released(2)]


def test_numbers_can_go_round_many_times():
    k = machine(space=SequenceSpace(8))
    numbers = [n % 8 for n in range(100)]
    assert push(k, *numbers) == released(*numbers)


def test_numbers_may_be_several_apart():
    k = machine(space=SequenceSpace(increment=10), gap_timeout=10)
    assert push(k, 7, 47, 27) == released(7)
    assert look(k) == (State.HOLDING, 17, [27, 47], ((17, 17), (37, 37)), 10)
    assert push(k, 17) == released(17, 27)
    assert k.advance(10) == [lost(37, 37, 1, 10), *released(47)]
    push(k, 97, now=11)
    effects = k.advance(21)
    assert effects == [lost(57, 87, 4, 21), *released(97)]
    assert repr(effects[0]).count("size=4,") == 1


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        (256, "sequence 256 is outside 0 to 255 (modulus 256)"),
        (-1, "sequence -1 is outside 0 to 255 (modulus 256)"),
        (True, "a sequence must be an integer, not bool True"),
        ("4", "a sequence must be an integer, not str '4'"),
        (5, "sequence 5 is off the grid: it must differ from 4 by a multiple of the increment 2"),
    ],
)
def test_an_invalid_number_is_refused_and_changes_nothing(sequence, text):
    k = machine(space=SequenceSpace(256, increment=2))
    push(k, 2, 6)
    before = k.save()
    with pytest.raises(InvalidSequence) as error:
        k.push(sequence, "x", 9)
    assert error.value.message == text
    assert k.save() == before


def test_an_invalid_first_number_of_a_session_ends_no_session():
    k = machine(space=SequenceSpace(increment=2), start=Start.at(4))
    push(k, 4, 8)
    before = k.save()
    with pytest.raises(InvalidSequence):
        push(k, 5, now=9, epoch=1)
    assert k.save() == before


def test_three_messages_behind_that_continue_each_other_mean_that_sync_was_lost():
    k = machine(space=CIRCLE)
    push(k, 100, 101)
    assert push(k, 30, 31, now=1) == [entry(Reason.LATE, 30, 1, BEFORE), entry(Reason.LATE, 31, 1, BEFORE)]
    assert push(k, 32, now=2) == [
        entry(Reason.LATE, 32, 2, BEFORE),
        entry(Reason.SYNC_LOST, 32, 2, "3 messages in a row behind what is expected", None),
        SyncLost("k", 0, 32),
    ]
    assert len(push(k, 33, 34, now=3)) == 2
    assert len(push(k, 35, now=3)) == 3


@pytest.mark.parametrize("between", [(102,), (104,), (40,)])
def test_messages_behind_that_do_not_continue_each_other_mean_nothing(between):
    k = machine(space=CIRCLE)
    push(k, 100, 101)
    effects = push(k, 30, 31, *between, 32, 33)
    assert not [effect for effect in effects if isinstance(effect, SyncLost)]


def test_a_duplicate_of_a_held_message_interrupts_a_run_behind():
    k = machine(space=CIRCLE)
    push(k, 100, 102)
    assert not [effect for effect in push(k, 30, 31, 102, 32) if isinstance(effect, SyncLost)]


def test_a_message_ahead_that_finds_no_room_interrupts_a_run_behind():
    k = machine(space=CIRCLE, capacity=1, on_overflow=OnOverflow.DROP)
    push(k, 100, 102)
    assert not [effect for effect in push(k, 30, 31, 104, 32) if isinstance(effect, SyncLost)]


def test_duplicates_count_as_behind_too():
    k = machine(resync_after=2)
    push(k, 1, 2)
    assert push(k, 1, 2, now=1)[-1] == SyncLost("k", 0, 2)


def test_without_a_modulus_sync_is_not_watched():
    k = machine()
    push(k, 100)
    assert [e.reason for e in push(k, *range(10)) if isinstance(e, LedgerEntry)] == [Reason.LATE] * 10


# Capacity


def test_by_default_a_full_key_gives_up_its_head_gap():
    k = machine(capacity=2)
    push(k, 1, 3, 6)
    assert push(k, 9, now=4) == [lost(2, 2, 1, 4, "no room to hold more"), *released(3)]
    assert look(k) == (State.HOLDING, 4, [6, 9], ((4, 5), (7, 8)), None)
    assert push(k, 5, now=5) == [lost(4, 4, 1, 5, "no room to hold more"), *released(5, 6)]


def test_a_full_key_that_gathers_stops_waiting_for_a_lower_start():
    k = machine(start=Start.lowest_within(5), capacity=2)
    push(k, 9, 8)
    assert push(k, 5, now=1) == released(5)
    assert look(k) == (State.HOLDING, 6, [8, 9], ((6, 7),), None)


def test_overflow_can_drop_the_message():
    k = machine(capacity=1, on_overflow=OnOverflow.DROP)
    push(k, 1, 3)
    assert push(k, 4, now=5) == [entry(Reason.OVERFLOW, 4, 5, "no room to hold it")]
    assert k.save().now == 5
    assert push(k, 3, now=6) == [entry(Reason.DUPLICATE, 3, 6, "another copy is held")]
    assert push(k, 2) == released(2, 3)
    assert push(k, 4) == released(4)


def test_overflow_can_refuse_the_message_and_then_nothing_is_changed():
    k = machine(capacity=1, on_overflow=OnOverflow.RAISE)
    push(k, 1, 3)
    before = k.save()
    with pytest.raises(CapacityExceeded) as error:
        push(k, 4, now=5)
    assert error.value.message == (
        "no room to hold message 4 of key 'k' behind a gap (1 are held); "
        "wait for the gap to close, skip it, or raise the capacity"
    )
    assert k.save() == before
    assert push(k, 2) == released(2, 3)


def test_a_dropped_number_is_named_as_the_source_names_it():
    k = machine(space=SequenceSpace(8), capacity=1, on_overflow=OnOverflow.DROP)
    push(k, 6, 0)
    assert push(k, 1, now=5) == [entry(Reason.OVERFLOW, 1, 5, "no room to hold it")]
    k = machine(space=SequenceSpace(8), capacity=1, on_overflow=OnOverflow.RAISE)
    push(k, 6, 0)
    with pytest.raises(CapacityExceeded, match="message 1 of"):
        push(k, 1)


def test_exactly_capacity_messages_can_be_held():
    k = machine(capacity=3, on_overflow=OnOverflow.RAISE)
    push(k, 1, 3, 5, 7)
    assert k.held_count == 3


def test_a_gathering_key_can_be_full_too():
    k = machine(start=Start.lowest_within(5), capacity=1, on_overflow=OnOverflow.DROP)
    push(k, 3)
    assert push(k, 2, now=1) == [entry(Reason.OVERFLOW, 2, 1, "no room to hold it")]
    assert k.advance(5) == released(3)


@pytest.mark.parametrize("on_overflow", [OnOverflow.DROP, OnOverflow.RAISE])
def test_without_room_elsewhere_nothing_more_is_held(on_overflow):
    k = machine(on_overflow=on_overflow)
    push(k, 1)
    if on_overflow is OnOverflow.DROP:
        assert push(k, 3, room=False) == [entry(Reason.OVERFLOW, 3, 0, "no room to hold it")]
    else:
        with pytest.raises(CapacityExceeded, match=r"\(0 are held\)"):
            push(k, 3, room=False)
    assert push(k, 2, room=False) == released(2)


def test_with_give_up_the_caller_makes_room_elsewhere():
    k = machine(on_overflow=OnOverflow.GIVE_UP)
    push(k, 1)
    assert push(k, 3, room=False) == []
    assert k.make_room(6) == [lost(2, 2, 1, 6, "no room to hold more"), *released(3)]


def test_room_is_made_behind_the_head_gap_only():
    k = machine(gap_timeout=10)
    push(k, 1, 3, 4, 6)
    assert k.make_room(1) == [lost(2, 2, 1, 1, "no room to hold more"), *released(3, 4)]
    assert look(k) == (State.HOLDING, 5, [6], ((5, 5),), 10)


# Commands of an operator


def test_skip_gives_up_the_head_gap():
    k = machine()
    push(k, 1, 4, 6)
    assert k.skip(3) == [lost(2, 3, 2, 3, "skipped by an operator"), *released(4)]
    assert look(k) == (State.HOLDING, 5, [6], ((5, 5),), None)
    assert push(k, 2, now=4) == [entry(Reason.LATE, 2, 4, GIVEN_UP)]


def test_flush_gives_up_every_gap_and_releases_what_is_held():
    k = machine(gap_timeout=10)
    push(k, 1, 3, 6)
    assert k.flush(7) == [lost(2, 2, 1, 7, "flushed"), *released(3), lost(4, 5, 2, 7, "flushed"), *released(6)]
    assert look(k) == (State.FLOWING, 7, [], (), None)


def test_flush_releases_what_was_gathered():
    k = machine(start=Start.lowest_within(5))
    push(k, 9, 7)
    assert k.flush(1) == [*released(7), lost(8, 8, 1, 1, "flushed"), *released(9)]
    assert look(k) == (State.FLOWING, 10, [], (), None)


def test_flush_releases_what_was_reported():
    k = machine(gap_timeout=10, on_gap=OnGap.HOLD)
    push(k, 1, 3)
    k.advance(10)
    assert k.flush(11) == [lost(2, 2, 1, 11, "flushed"), *released(3)]


def test_clear_discards_what_is_held_in_order_and_forgets_the_session():
    k = machine(gap_timeout=10)
    push(k, 1, 5, 3, epoch=2)
    discarded = [entry(Reason.DISCARDED, n, 4, "cleared", epoch=2) for n in (3, 5)]
    assert k.clear(4) == discarded
    assert look(k) == (State.NEW, None, [], (), None)
    assert (k.epoch, k.held_count) == (None, 0)
    assert push(k, 1, now=5) == released(1)


def gathering() -> Resequencer[str]:
    k = machine(start=Start.lowest_within(5))
    push(k, 1)
    return k


def flowing() -> Resequencer[str]:
    k = machine()
    push(k, 1)
    return k


def stalled() -> Resequencer[str]:
    k = machine(gap_timeout=1, on_gap=OnGap.HOLD)
    push(k, 1, 3)
    k.advance(1)
    return k


@pytest.mark.parametrize(
    ("make", "command", "text"),
    [
        (machine, "skip", "'skip' is not possible while 'new'; possible now: clear, epoch, flush, gather, start"),
        (
            gathering,
            "skip",
            "'skip' is not possible while 'gathering'; possible now: clear, epoch, flush, gather, give up, start",
        ),
        (flowing, "skip", "'skip' is not possible while 'flowing'; possible now: clear, epoch, flush, hold"),
        (
            machine,
            "make_room",
            "'give up' is not possible while 'new'; possible now: clear, epoch, flush, gather, start",
        ),
        (flowing, "make_room", "'give up' is not possible while 'flowing'; possible now: clear, epoch, flush, hold"),
        (
            stalled,
            "make_room",
            "'give up' is not possible while 'stalled'; possible now: clear, epoch, fill, flush, hold, skip",
        ),
    ],
)
def test_an_illegal_command_raises_and_changes_nothing(make, command, text):
    k = make()
    before, state = k.save(), k.state
    with pytest.raises(IllegalTransition) as error:
        getattr(k, command)(99)
    assert error.value.message == f"resequencer: {text}"
    assert (k.save(), k.state) == (before, state)


# State as data


def test_a_new_machine_knows_nothing():
    assert machine().save() == SavedResequencer(-inf, None, None, 0, None, (), (), (), 0, None)


def test_a_saved_machine_is_plain_data():
    k = machine(space=SequenceSpace(16), gap_timeout=10, on_gap=OnGap.REQUEST, max_requests=1)
    push(k, 1, 3)
    k.advance(10)
    k.advance(20)
    push(k, 7, now=21, digest="d")
    k.advance(31)
    k.push(2, "m2", 32)
    assert k.save() == SavedResequencer(
        now=32,
        epoch=0,
        expected=4,
        horizon=1,
        start_deadline=None,
        held=((7, Held("m7", 21, "d")),),
        gaps=((4, 6, 41, 1, False),),
        given_up=(),
        behind_run=1,
        behind_last=2,
    )


def test_a_restored_machine_goes_on_where_the_saved_one_was():
    options = Resequencing(space=SequenceSpace(256, 2), gap_timeout=10)
    k: Resequencer[str] = Resequencer(options, "k")
    push(k, 2, 6)
    k.advance(10)
    push(k, 10, 14, now=11, epoch=0)
    push(k, 0, 2, now=12)
    again = Resequencer.restore(k.save(), options, "k")
    assert again.save() == k.save()
    assert (look(again), again.epoch, again.key) == (look(k), 0, "k")
    assert push(again, 18, now=13) == []
    assert again.missing() == ((8, 8), (12, 12), (16, 16))
    assert push(again, 4, now=14) == [entry(Reason.LATE, 4, 14, GIVEN_UP)]


def test_a_restored_machine_remembers_a_run_behind():
    options = Resequencing(space=CIRCLE)
    k: Resequencer[str] = Resequencer(options, "k")
    push(k, 100, 30, 31)
    again = Resequencer.restore(k.save(), options, "k")
    assert push(again, 32)[-1] == SyncLost("k", 0, 32)


def test_a_restored_machine_goes_on_gathering_and_judges_from_the_lowest():
    options = Resequencing(space=SequenceSpace(16), start=Start.lowest_within(5))
    k: Resequencer[str] = Resequencer(options, "k")
    push(k, 2, 13)
    again = Resequencer.restore(k.save(), options, "k")
    assert push(again, 3) == push(again, 12) == []
    assert look(again) == (State.GATHERING, None, [12, 13, 2, 3], (), 5)
    assert again.advance(5) == released(12, 13)


@pytest.mark.parametrize("make", [machine, gathering, flowing, stalled])
def test_every_state_survives_a_restart(make):
    k = make()
    again = Resequencer.restore(k.save(), Resequencing(), "k")
    assert (again.state, again.save()) == (k.state, k.save())


def test_a_machine_is_restored_with_default_options_and_no_key():
    again = Resequencer.restore(flowing().save())
    assert again.key is None
    assert again.push(2, "b", 0) == [Released(None, 0, 2, "b")]


# --- a run at once --------------------------------------------------------------------------------------------------


def test_a_run_that_is_just_what_is_expected_passes_at_once():
    order = Resequencer[str](Resequencing(start=Start.at(5)))
    assert not order.pass_run(5, 3, 0.0), "the session has not begun"
    order.push(5, "a", 1.0)
    assert order.pass_run(6, 3, 2.0)
    assert order.expected == 9
    assert order.state is State.FLOWING


@pytest.mark.parametrize("first", [4, 5, 7])
def test_any_other_run_changes_nothing(first):
    order = Resequencer[str](Resequencing(start=Start.at(5)))
    order.push(5, "a", 1.0)
    before = order.save()
    assert not order.pass_run(first, 3, 2.0)
    assert order.save() == before


def test_no_run_passes_while_a_gap_is_open():
    order = Resequencer[str](Resequencing(start=Start.at(5)))
    order.push(6, "b", 1.0)
    before = order.save()
    assert not order.pass_run(5, 3, 2.0)
    assert order.save() == before


@given(st.integers(0, 255), st.integers(1, 300))
def test_a_run_under_a_modulus_wraps_as_single_messages_do(start, count):
    options = Resequencing(space=SequenceSpace(256), start=Start.at(start))
    one_by_one, at_once = Resequencer[int](options), Resequencer[int](options)
    for order in (one_by_one, at_once):
        order.push(start, 0, 0.0)
    for number in range(count):
        one_by_one.push((start + 1 + number) % 256, 0, 1.0)
    assert at_once.pass_run((start + 1) % 256, count, 1.0)
    assert at_once.save() == one_by_one.save()
