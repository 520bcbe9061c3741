"""RangeSet behaves like a plain set of integers, and keeps as few ranges as possible."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.ranges import RangeSet
from seriatim.errors import InvalidArgument

small_ranges = st.tuples(st.integers(-12, 12), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
commands = st.lists(st.tuples(st.sampled_from(["add", "discard"]), small_ranges), max_size=20)


def integers_of(ranges: RangeSet) -> set[int]:
    return {number for lo, hi in ranges for number in range(lo, hi + 1)}


def built_by(steps: list[tuple[str, tuple[int, int]]]) -> tuple[RangeSet, set[int]]:
    ranges, model = RangeSet(), set[int]()
    for command, (lo, hi) in steps:
        getattr(ranges, command)(lo, hi)
        (model.update if command == "add" else model.difference_update)(range(lo, hi + 1))
    return ranges, model


@given(commands)
def test_holds_the_same_integers_as_a_plain_set(steps: list[tuple[str, tuple[int, int]]]) -> None:
    ranges, model = built_by(steps)
    assert integers_of(ranges) == model
    assert ranges.count() == len(model)
    assert bool(ranges) == bool(model)
    assert all((number in ranges) == (number in model) for number in range(-15, 22))


@given(commands)
def test_ranges_are_sorted_and_never_touch(steps: list[tuple[str, tuple[int, int]]]) -> None:
    ranges = list(built_by(steps)[0])
    assert all(lo <= hi for lo, hi in ranges)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


@given(commands, small_ranges)
def test_gaps_are_what_a_plain_set_misses(steps: list[tuple[str, tuple[int, int]]], window: tuple[int, int]) -> None:
    ranges, model = built_by(steps)
    gaps = list(ranges.gaps(*window))
    missing = set(range(window[0], window[1] + 1)) - model
    assert RangeSet(gaps) == RangeSet((number, number) for number in missing)
    assert len(RangeSet(gaps)) == len(gaps)


@given(commands)
def test_equal_when_they_hold_the_same_integers_however_they_were_built(
    steps: list[tuple[str, tuple[int, int]]],
) -> None:
    ranges, model = built_by(steps)
    assert ranges == RangeSet((number, number) for number in sorted(model, reverse=True))


def test_add_without_an_end_adds_one_integer() -> None:
    ranges = RangeSet()
    ranges.add(5)
    assert list(ranges) == [(5, 5)]


def test_add_merges_neighbours_on_both_sides_and_leaves_others_alone() -> None:
    ranges = RangeSet([(1, 2), (4, 5), (7, 8)])
    ranges.add(3)
    assert list(ranges) == [(1, 5), (7, 8)]


def test_add_keeps_apart_what_has_a_hole_between() -> None:
    ranges = RangeSet([(1, 2)])
    ranges.add(4, 5)
    ranges.add(-1)
    assert list(ranges) == [(-1, -1), (1, 2), (4, 5)]


def test_add_swallows_every_range_inside() -> None:
    ranges = RangeSet([(1, 1), (3, 3), (5, 9), (20, 21)])
    ranges.add(2, 7)
    assert list(ranges) == [(1, 9), (20, 21)]


def test_adding_a_part_of_a_range_changes_nothing() -> None:
    ranges = RangeSet([(1, 9)])
    ranges.add(4, 5)
    assert list(ranges) == [(1, 9)]


def test_discard_splits_a_range() -> None:
    ranges = RangeSet([(1, 9)])
    ranges.discard(4, 5)
    assert list(ranges) == [(1, 3), (6, 9)]


def test_discard_without_an_end_removes_one_integer() -> None:
    ranges = RangeSet([(1, 3)])
    ranges.discard(2)
    assert list(ranges) == [(1, 1), (3, 3)]


def test_discard_trims_exactly_at_the_ends() -> None:
    ranges = RangeSet([(1, 3), (5, 7)])
    ranges.discard(3, 5)
    assert list(ranges) == [(1, 2), (6, 7)]


def test_discarding_what_is_not_there_changes_nothing() -> None:
    ranges = RangeSet([(1, 3), (7, 9)])
    ranges.discard(4, 6)
    assert list(ranges) == [(1, 3), (7, 9)]


def test_membership_is_exact_at_the_ends() -> None:
    ranges = RangeSet([(2, 4), (8, 8)])
    assert [number for number in range(11) if number in ranges] == [2, 3, 4, 8]


def test_first_and_last_are_ranges_or_none() -> None:
    assert (RangeSet().first(), RangeSet().last()) == (None, None)
    ranges = RangeSet([(8, 9), (1, 2), (4, 4)])
    assert (ranges.first(), ranges.last()) == ((1, 2), (8, 9))


def test_pop_first_removes_the_lowest_range() -> None:
    ranges = RangeSet([(4, 6), (1, 2)])
    assert ranges.pop_first() == (1, 2)
    assert list(ranges) == [(4, 6)]


def test_pop_first_of_an_empty_set_raises() -> None:
    with pytest.raises(IndexError, match=r"^pop from an empty RangeSet$"):
        RangeSet().pop_first()


def test_len_counts_ranges_and_count_counts_integers() -> None:
    ranges = RangeSet([(1, 3), (10, 10)])
    assert (len(ranges), ranges.count()) == (2, 4)
    assert (len(RangeSet()), RangeSet().count()) == (0, 0)


def test_gaps_start_and_end_exactly_at_the_window() -> None:
    ranges = RangeSet([(3, 4), (7, 7)])
    assert list(ranges.gaps(1, 9)) == [(1, 2), (5, 6), (8, 9)]
    assert list(ranges.gaps(4, 7)) == [(5, 6)]
    assert list(ranges.gaps(3, 4)) == []
    assert list(ranges.gaps(5, 5)) == [(5, 5)]
    assert list(ranges.gaps(2, 3)) == [(2, 2)]


def test_a_window_that_ends_before_it_starts_has_no_gaps() -> None:
    assert list(RangeSet([(3, 4)]).gaps(9, 8)) == []
    assert list(RangeSet([(3, 10)]).gaps(9, 5)) == []


@pytest.mark.parametrize("command", ["add", "discard"])
def test_an_empty_range_is_refused_and_changes_nothing(command: str) -> None:
    ranges = RangeSet([(1, 9)])
    with pytest.raises(InvalidArgument) as refusal:
        getattr(ranges, command)(5, 4)
    assert str(refusal.value) == "a range from 5 to 4 is empty: the end must not be below the start"
    assert list(ranges) == [(1, 9)]


def test_an_empty_range_is_refused_by_the_constructor() -> None:
    with pytest.raises(InvalidArgument):
        RangeSet([(2, 1)])


def test_equality_is_by_value_and_only_among_range_sets() -> None:
    assert RangeSet([(1, 3)]) == RangeSet([(1, 1), (2, 3)])
    assert RangeSet([(1, 3)]) != RangeSet([(1, 4)])
    assert RangeSet([(1, 3)]) != RangeSet([(0, 3)])
    assert RangeSet([(1, 3)]) != [(1, 3)]
    assert RangeSet() == ANY  # what is no RangeSet may answer itself


def test_a_mutable_set_cannot_be_hashed() -> None:
    with pytest.raises(TypeError):
        hash(RangeSet())


def test_repr_can_be_read_back() -> None:
    assert repr(RangeSet([(1, 3), (5, 5)])) == "RangeSet([(1, 3), (5, 5)])"
