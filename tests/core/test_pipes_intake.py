"""The intakes of a pipe against naive models: numbers one by one, in plain lists and sets."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from seriatim.core.guarantees import Level
from seriatim.core.pipe_intake import InAnyOrder, InOrder
from seriatim.core.pipes import Delivered, PipeKind, PipeOptions

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
    return [number for effect in effects if isinstance(effect, Delivered) for number in range(effect.first, effect.end)]


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
