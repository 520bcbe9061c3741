"""The intakes of a pipe against naive models: numbers one by one, in plain lists and sets."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seriatim.core.guarantees import Level
from seriatim.core.pipes.handover_order import InAnyOrder, InOrder
from seriatim.core.pipes.protocol import DeliveredRun, PipeEffect, PipeKind, PipeOptions
from seriatim.core.resequencing.options import LedgerEntry, OnGap, Reason
from seriatim.errors import CapacityExceeded

START = 10
RUNS = st.tuples(st.just("take"), st.integers(START - 3, START + 15), st.integers(1, 5))
FLOORS = st.tuples(st.just("floor"), st.integers(START, START + 15), st.just(0))
SETTLE = st.tuples(st.just("settle"), st.integers(1, 4), st.just(0))
STEPS = st.lists(st.one_of(RUNS, RUNS, RUNS, SETTLE, SETTLE, FLOORS), max_size=60)


class NaiveIntake:
    """What an intake should do, told in the simplest way. ``waiting`` is what the output has not taken."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.arrived: set[int] = set()
        self.given_up: set[int] = set()
        self.handed_over: list[int] = []
        self.taken_by_output = 0

    def known(self, number: int) -> bool:
        return number < START or number in self.arrived | self.given_up

    def wanted(self) -> int:
        number = START
        while self.known(number):
            number += 1
        return number

    def take(self, numbers: range) -> list[int]:
        out = []
        for number in numbers:
            if not self.known(number):
                self.arrived.add(number)
                if not self.ordered:
                    out.append(number)
        return self.hand_over(out)

    def hand_over(self, out: list[int]) -> list[int]:
        if self.ordered:
            out = [
                number for number in sorted(self.arrived) if number < self.wanted() and number not in self.handed_over
            ]
        self.handed_over += out
        return out

    def floor(self, floor: int) -> list[int]:
        if floor > self.wanted():
            self.given_up |= {number for number in range(START, floor) if not self.known(number)}
        return self.hand_over([])

    def taken(self) -> int:
        """Everything below was taken, or given up with nothing before it that waits."""
        done = set(self.handed_over[: self.taken_by_output]) | self.given_up
        number = START
        while number in done:
            number += 1
        return number

    def missing(self) -> list[int]:
        highest = max(self.arrived, default=START - 1)
        return [number for number in range(START, highest) if not self.known(number)]


def numbers_of(effects) -> list[int]:
    return [
        number for effect in effects if isinstance(effect, DeliveredRun) for number in range(effect.first, effect.end)
    ]


def expand(ranges) -> list[int]:
    return [number for lo, hi in ranges for number in range(lo, hi + 1)]


def walk(intake, model: NaiveIntake, steps) -> None:
    queue: list[int] = []
    for what, number, count in steps:
        if what == "take":
            messages = tuple(b"%d" % one for one in range(number, number + count))
            effects, _ = intake.take(number, messages, 0.0)
            assert numbers_of(effects) == model.take(range(number, number + count))
            assert [int(one) for effect in effects for one in getattr(effect, "messages", ())] == numbers_of(effects)
        elif what == "floor":
            effects = intake.give_up_below(number, 0.0)
            assert numbers_of(effects) == model.floor(number)
        else:
            effects = []
            for _ in range(min(number, len(queue))):
                one = queue.pop(0)
                intake.settle(one, one + 1)
                model.taken_by_output += 1
        queue += numbers_of(effects)
        assert (intake.wanted, intake.taken) == (model.wanted(), model.taken())
        assert expand(intake.missing()) == model.missing()


@given(STEPS)
@example([("take", 10, 1), ("take", 12, 1), ("floor", 12, 0), ("settle", 1, 0)])  # 11 is done when 10 is, before 12
def test_the_ordered_intake_does_what_the_naive_one_does(steps):
    walk(InOrder(PipeOptions(), START), NaiveIntake(ordered=True), steps)


@given(STEPS)
def test_the_unordered_intake_does_what_the_naive_one_does(steps):
    walk(InAnyOrder(PipeOptions(PipeKind.RESEND), START), NaiveIntake(ordered=False), steps)


@given(STEPS)
@example([("take", 10, 1), ("settle", 1, 0), ("take", 10, 1), ("take", 10, 1)])  # the second repeat finds the first
def test_an_intake_that_is_not_strict_repeats_only_what_it_handed_over_last_and_only_to_an_idle_output(steps):
    intake, out, waiting = InOrder(PipeOptions(level=Level.CONTINUOUS), START), list[int](), list[int]()
    for what, number, count in steps:
        if what == "take":
            effects, _ = intake.take(number, (b"x",) * count, 0.0)
            for new in numbers_of(effects):
                assert not out or new > out[-1] or (new == out[-1] and not waiting)
                out.append(new)
                waiting.append(new)
        elif what == "settle":
            while waiting:
                one = waiting.pop(0)
                intake.settle(one, one + 1)


# --- one sentence each -----------------------------------------------------------------------------------------------


def lost(first: int, last: int, now: float, detail: str = "the sender gave it up") -> LedgerEntry[bytes]:
    return LedgerEntry(None, 0, Reason.LOST, first, last, last - first + 1, now, detail)


def ordered(**options) -> InOrder:
    return InOrder(PipeOptions(**options), START)


def unordered() -> InAnyOrder:
    return InAnyOrder(PipeOptions(PipeKind.RESEND), START)


@pytest.mark.parametrize("make", [ordered, unordered])
def test_what_comes_in_a_row_is_handed_over_in_one_piece_and_only_repeats_are_called_repeats(make):
    intake = make()
    assert intake.take(10, (b"10",), 0.0) == ([DeliveredRun(10, (b"10",))], False)
    assert intake.take(11, (b"11", b"12"), 0.0) == ([DeliveredRun(11, (b"11", b"12"))], False)
    assert intake.take(11, (b"11", b"12"), 0.0) == ([], True)
    assert intake.take(12, (b"12", b"13"), 0.0) == ([DeliveredRun(13, (b"13",))], True)
    assert intake.take(9, (b"9",), 0.0)[1]
    assert intake.seen == 14


def test_what_fills_a_gap_is_no_repeat_and_is_handed_over_together_with_what_waited():
    intake = ordered()
    assert intake.take(11, (b"11", b"12"), 0.0) == ([], False)
    assert (intake.wanted, intake.seen) == (10, 13)
    assert intake.take(10, (b"10",), 0.0) == ([DeliveredRun(10, (b"10", b"11", b"12"))], False)


def test_without_order_the_first_number_may_come_last():
    intake = unordered()
    assert intake.take(11, (b"11",), 0.0) == ([DeliveredRun(11, (b"11",))], False)
    assert intake.take(10, (b"10",), 0.0) == ([DeliveredRun(10, (b"10",))], False)
    intake.settle(10, 12)
    assert (intake.wanted, intake.taken) == (12, 12)


def test_a_number_that_does_not_come_is_given_up_when_its_time_is_over():
    intake = ordered(level=Level.STRICT, gap_timeout=3.0)
    intake.take(10, (b"10",), 0.0)
    intake.take(12, (b"12",), 1.0)
    intake.take(14, (b"14", b"15"), 1.0)
    assert intake.advance(3.9) == []
    effects: list[PipeEffect] = []
    deadlines = []
    while (deadline := intake.deadline) is not None:
        deadlines.append(deadline)
        effects += intake.advance(deadline)
    assert deadlines[0] == 4.0
    pieces = [effect for effect in effects if isinstance(effect, DeliveredRun)]
    entries = [(entry.reason, entry.first, entry.last) for entry in effects if isinstance(entry, LedgerEntry)]
    assert pieces == [DeliveredRun(12, (b"12",)), DeliveredRun(14, (b"14", b"15"))]
    assert entries == [(Reason.LOST, 11, 11), (Reason.LOST, 13, 13)]
    assert intake.take(14, (b"14",), 5.0) == ([], True), "a repeat is not worth an entry"
    effects, is_repeat = intake.take(11, (b"11",), 5.0)
    assert [(entry.reason, entry.first) for entry in effects if isinstance(entry, LedgerEntry)] == [(Reason.LATE, 11)]
    assert is_repeat


@pytest.mark.parametrize("options", [{}, {"level": Level.STRICT, "on_gap": OnGap.HOLD}])
def test_a_number_that_is_asked_for_or_waited_for_is_not_given_up(options):
    intake = ordered(**options)
    intake.take(11, (b"11",), 0.0)
    assert intake.deadline is None
    assert intake.advance(1e9) == []


def test_no_more_waits_behind_a_gap_than_the_capacity():
    intake = ordered(capacity=2)
    intake.take(11, (b"11", b"12"), 0.0)
    with pytest.raises(CapacityExceeded):
        intake.take(13, (b"13",), 0.0)


def test_what_the_sender_gives_up_is_lost_and_what_waits_behind_it_is_handed_over():
    intake = ordered()
    intake.take(10, (b"10",), 0.0)
    intake.take(13, (b"13",), 1.0)
    assert intake.give_up_below(12, 5.0) == [lost(11, 11, 5.0)]
    assert intake.give_up_below(13, 6.0) == [lost(12, 12, 6.0), DeliveredRun(13, (b"13",))]
    assert intake.give_up_below(20, 7.0) == [], "what never came may never have been sent"
    assert intake.wanted == 20


def test_without_order_what_the_sender_gives_up_is_lost_if_something_later_has_come():
    intake = unordered()
    intake.take(10, (b"10",), 0.0)
    assert intake.give_up_below(11, 5.0) == []
    intake.take(14, (b"14",), 1.0)
    assert intake.give_up_below(20, 5.0) == [lost(11, 13, 5.0)]
    intake.settle(10, 11)
    intake.settle(14, 15)
    assert (intake.wanted, intake.taken) == (20, 20)
    assert intake.give_up_below(25, 5.0) == []


def test_a_repeat_of_the_last_message_stays_in_place_each_time_the_output_has_taken_it():
    intake = ordered(level=Level.CONTINUOUS)
    intake.take(10, (b"10",), 0.0)
    for _ in range(3):
        intake.settle(10, 11)
        assert intake.take(10, (b"10",), 0.0) == ([DeliveredRun(10, (b"10",))], True)
    intake.settle(10, 11)
    assert intake.give_up_below(11, 0.0) == []
    assert intake.take(10, (b"10",), 0.0) == ([DeliveredRun(10, (b"10",))], True), "nothing was given up"
    strict = ordered()
    strict.take(10, (b"10",), 0.0)
    strict.settle(10, 11)
    assert strict.take(10, (b"10",), 0.0) == ([], True)
