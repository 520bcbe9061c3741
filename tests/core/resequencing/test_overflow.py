"""The resequencer: what happens when there is no room."""

from __future__ import annotations

import pytest

from seriatim.core.resequencing.options import (
    OnOverflow,
    Reason,
    Start,
)
from seriatim.core.resequencing.resequencer import State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded
from tests.core.resequencing.resequencer_kit import (
    entry,
    look,
    lost,
    machine,
    push,
    released,
)


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
