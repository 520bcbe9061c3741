"""The resequencer: late messages, and copies."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.resequencing.gaps import Held
from seriatim.core.resequencing.options import (
    Late,
    LedgerEntry,
    OnDuplicate,
    OnGap,
    OnLate,
    Reason,
    Released,
)
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import LateMessage
from tests.core.resequencing.resequencer_kit import (
    BEFORE,
    GIVEN_UP,
    entry,
    machine,
    push,
)


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
