"""A machine that is restored with other options than it was saved with: it loses no message, and lets none wait for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.resequencing.options import (
    GapReported,
    LedgerEntry,
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    Reason,
    Released,
    ResequenceOptions,
    Start,
)
from seriatim.core.resequencing.resequencer import Resequencer, State
from seriatim.core.sequence import SequenceSpace

PATIENT = ResequenceOptions(start=Start.at(0))


def machine(options: ResequenceOptions, *numbers: int, now: float = 0) -> Resequencer[int]:
    order = Resequencer[int](options, "k")
    for number in numbers:
        order.push(number, number, now)
    return order


def changed(order: Resequencer[int], **options: Any) -> Resequencer[int]:
    return Resequencer.restore(order.save(), replace(order._options, **options), "k")


def numbers_in(effects: list[Any]) -> list[int]:
    return [effect.sequence for effect in effects if isinstance(effect, Released)]


@pytest.mark.parametrize("start", [Start.at(0), Start.first_seen(), Start.lowest_within(0)])
def test_a_key_that_gathers_begins_with_the_lowest_number_that_it_has(start):
    again = changed(machine(ResequenceOptions(start=Start.lowest_within(6)), 5, 3), start=start)
    assert again.push(7, 7, 0) == []
    assert numbers_in(again.advance(0)) == [3]
    assert numbers_in(again.push(4, 4, 1)) == [4, 5]
    assert [number for number, _ in again.held()] == [7]


def test_a_key_that_gathers_does_not_gather_longer_than_it_is_told_to_now():
    order = machine(ResequenceOptions(start=Start.lowest_within(60)), 5, 3, now=1)
    assert changed(order, start=Start.lowest_within(6)).deadline == 7
    assert changed(order, start=Start.lowest_within(600)).deadline == 61


def test_open_gaps_get_a_deadline_when_there_is_one():
    again = changed(machine(PATIENT, 2, 4, now=10), gap_timeout=5)
    assert again.deadline == 15
    assert numbers_in(again.advance(15)) == [2, 4]


def test_open_gaps_wait_no_longer_than_the_timeout_and_keep_a_deadline_that_is_nearer():
    order = machine(replace(PATIENT, gap_timeout=100), 2, now=10)
    assert changed(order, gap_timeout=5).deadline == 15
    assert changed(order, gap_timeout=500).deadline == 110
    assert changed(order, gap_timeout=None).deadline == 110


def test_gaps_that_were_reported_are_given_up_when_that_is_chosen_later():
    order = machine(replace(PATIENT, gap_timeout=5, on_gap=OnGap.HOLD), 2, now=10)
    order.advance(15)
    order.push(4, 4, 16)
    order.push(6, 6, 30)
    assert order.state is State.STALLED
    again = changed(order, on_gap=OnGap.SKIP)
    assert (again.state, again.deadline) == (State.HOLDING, 35)
    assert numbers_in(again.advance(35)) == [2, 4, 6]


def test_gaps_that_were_reported_are_not_reported_again():
    order = machine(replace(PATIENT, gap_timeout=5, on_gap=OnGap.HOLD), 2)
    order.advance(5)
    again = changed(order, gap_timeout=1)
    assert (again.state, again.deadline) == (State.STALLED, None)
    again.push(4, 4, 6)
    assert [type(effect) for effect in again.advance(9)] == []
    assert [type(effect) for effect in again.push(0, 0, 9) + again.push(1, 1, 9) + again.advance(9)] == [
        *[Released] * 3,
        GapReported,
    ]


def test_a_run_behind_is_forgotten_when_nobody_counts_it_any_more():
    order = machine(replace(PATIENT, resync_after=3), 0, 1, 2, 0)
    assert order.save().behind_run == 1
    assert changed(order, resync_after=None).save().behind_run == 0


def policies(space: SequenceSpace) -> st.SearchStrategy[ResequenceOptions]:
    """All options that do not raise."""
    return st.builds(
        lambda on_gap, timeout, **others: ResequenceOptions(
            space=space,
            on_gap=on_gap,
            gap_timeout=timeout or (2 if on_gap is OnGap.REQUEST else timeout),
            **others,
        ),
        on_gap=st.sampled_from(OnGap),
        timeout=st.sampled_from([None, 0, 2, 50]),
        start=st.sampled_from([Start.first_seen(), Start.at(5), Start.lowest_within(3), Start.lowest_within(60)]),
        max_requests=st.integers(1, 2),
        on_late=st.sampled_from([OnLate.DROP, OnLate.SIDE_OUTPUT]),
        on_duplicate=st.sampled_from(OnDuplicate),
        on_epoch=st.sampled_from(OnEpoch),
        capacity=st.sampled_from([None, 4, 1]),
        on_overflow=st.just(OnOverflow.DROP),
        remember=st.sampled_from([100, 1]),
        resync_after=st.sampled_from([None, 3, 2]),
    ).flatmap(_with_any_overflow)


def _with_any_overflow(options: ResequenceOptions) -> st.SearchStrategy[ResequenceOptions]:
    choices = [OnOverflow.DROP] if options.on_gap is OnGap.HOLD else [OnOverflow.DROP, OnOverflow.GIVE_UP]
    return st.sampled_from(choices).map(lambda chosen: replace(options, on_overflow=chosen))


@given(space=st.sampled_from([SequenceSpace(), SequenceSpace(16), SequenceSpace(20, 2)]), data=st.data())
def test_no_change_of_options_loses_a_message_or_lets_one_wait_for_ever(space, data):
    draw, now, sent = data.draw, 0.0, 0
    came_out: Counter[int] = Counter()
    order = Resequencer[int](draw(policies(space)), "k")

    def note(effects: list[Any]) -> None:
        released = [effect.message for effect in effects if isinstance(effect, Released)]
        entered = [effect.message for effect in effects if isinstance(effect, LedgerEntry)]
        came_out.update(message for message in released + entered if message is not None)

    for _ in range(draw(st.integers(1, 4))):
        for number, pause, is_ticking in draw(
            st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 7]), st.booleans()), max_size=8)
        ):
            now += pause
            if is_ticking:
                note(order.advance(now))
            sent += 1
            note(order.push(space.wrap(number * space.increment + 5), sent, now))
        before = order.save()
        assert Resequencer.restore(before, order._options, "k").save() == before
        order = Resequencer.restore(before, draw(policies(space)), "k")
        assert sorted([*came_out.elements(), *(item.message for _, item in order.held())]) == [*range(1, sent + 1)]
    if order._options.on_gap is not OnGap.HOLD and order._options.gap_timeout is not None:
        for _ in range(5):
            now += 100
            note(order.advance(now))
        assert order.held() == []
    order = Resequencer.restore(order.save(), replace(PATIENT, space=space, gap_timeout=1), "k")
    note(order.advance(inf))
    assert sorted(came_out.elements()) == [*range(1, sent + 1)]


def test_what_is_given_up_after_a_change_is_in_the_ledger():
    again = changed(machine(PATIENT, 2, now=10), gap_timeout=5)
    (lost,) = [effect for effect in again.advance(20) if isinstance(effect, LedgerEntry)]
    assert (lost.reason, lost.first, lost.last, lost.time) == (Reason.LOST, 0, 1, 15)
