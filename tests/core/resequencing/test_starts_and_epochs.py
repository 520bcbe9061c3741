"""The resequencer: where it starts, and sessions that end."""

from __future__ import annotations

import pytest

from seriatim.core.resequencing.options import (
    Late,
    OnEpoch,
    OnLate,
    OnOverflow,
    Reason,
    Start,
)
from seriatim.core.resequencing.resequencer import State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import CapacityExceeded, LateMessage
from tests.core.resequencing.resequencer_kit import (
    BEFORE,
    entry,
    look,
    lost,
    machine,
    push,
    released,
)


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
