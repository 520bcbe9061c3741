"""The resequencer: operators' commands, saving, and runs at once."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.resequencing.gaps import Held
from seriatim.core.resequencing.options import (
    OnGap,
    Reason,
    Released,
    ResequenceOptions,
    Start,
    SyncLost,
)
from seriatim.core.resequencing.resequencer import Resequencer, SavedResequencer, State
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import IllegalTransition
from tests.core.resequencing.resequencer_kit import (
    CIRCLE,
    GIVEN_UP,
    entry,
    look,
    lost,
    machine,
    push,
    released,
)


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
    options = ResequenceOptions(space=SequenceSpace(256, 2), gap_timeout=10)
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
    options = ResequenceOptions(space=CIRCLE)
    k: Resequencer[str] = Resequencer(options, "k")
    push(k, 100, 30, 31)
    again = Resequencer.restore(k.save(), options, "k")
    assert push(again, 32)[-1] == SyncLost("k", 0, 32)


def test_a_restored_machine_goes_on_gathering_and_judges_from_the_lowest():
    options = ResequenceOptions(space=SequenceSpace(16), start=Start.lowest_within(5))
    k: Resequencer[str] = Resequencer(options, "k")
    push(k, 2, 13)
    again = Resequencer.restore(k.save(), options, "k")
    assert push(again, 3) == push(again, 12) == []
    assert look(again) == (State.GATHERING, None, [12, 13, 2, 3], (), 5)
    assert again.advance(5) == released(12, 13)


@pytest.mark.parametrize("make", [machine, gathering, flowing, stalled])
def test_every_state_survives_a_restart(make):
    k = make()
    again = Resequencer.restore(k.save(), k._options, "k")
    assert (again.state, again.save()) == (k.state, k.save())


def test_a_machine_is_restored_with_default_options_and_no_key():
    again = Resequencer.restore(flowing().save())
    assert again.key is None
    assert again.push(2, "b", 0) == [Released(None, 0, 2, "b")]


# --- a run at once --------------------------------------------------------------------------------------------------


def test_a_run_that_is_just_what_is_expected_passes_at_once():
    order = Resequencer[str](ResequenceOptions(start=Start.at(5)))
    assert not order.pass_run(5, 3, 0.0), "the session has not begun"
    order.push(5, "a", 1.0)
    assert order.pass_run(6, 3, 2.0)
    assert order.expected == 9
    assert order.state is State.FLOWING


@pytest.mark.parametrize("first", [4, 5, 7])
def test_any_other_run_changes_nothing(first):
    order = Resequencer[str](ResequenceOptions(start=Start.at(5)))
    order.push(5, "a", 1.0)
    before = order.save()
    assert not order.pass_run(first, 3, 2.0)
    assert order.save() == before


def test_no_run_passes_while_a_gap_is_open():
    order = Resequencer[str](ResequenceOptions(start=Start.at(5)))
    order.push(6, "b", 1.0)
    before = order.save()
    assert not order.pass_run(5, 3, 2.0)
    assert order.save() == before


@given(st.integers(0, 255), st.integers(1, 300))
def test_a_run_under_a_modulus_wraps_as_single_messages_do(start, count):
    options = ResequenceOptions(space=SequenceSpace(256), start=Start.at(start))
    one_by_one, at_once = Resequencer[int](options), Resequencer[int](options)
    for order in (one_by_one, at_once):
        order.push(start, 0, 0.0)
    for number in range(count):
        one_by_one.push((start + 1 + number) % 256, 0, 1.0)
    assert at_once.pass_run((start + 1) % 256, count, 1.0)
    assert at_once.save() == one_by_one.save()
