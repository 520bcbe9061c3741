"""The resequencer: numbers that wrap, and sync that is lost."""

from __future__ import annotations

import pytest

from seriatim.core.resequencing.options import (
    LedgerEntry,
    OnOverflow,
    Reason,
    Start,
    SyncLost,
)
from seriatim.core.resequencing.resequencer import State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidSequence
from tests.core.resequencing.resequencer_kit import (
    BEFORE,
    CIRCLE,
    GIVEN_UP,
    entry,
    look,
    lost,
    machine,
    push,
    released,
)


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
