"""Ranges of a log follow each other without overlap and without a hole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seriatim.spark.topics.ranges import Range, divide, end_of
from seriatim.store.base import Span


@st.composite
def packs_of_offsets(draw) -> list[list[int]]:
    """The offsets of packs, some of them with holes."""
    offset, packs = draw(st.integers(0, 5)), []
    for steps in draw(st.lists(st.lists(st.sampled_from([1, 1, 1, 3]), min_size=1, max_size=30), max_size=6)):
        pack = []
        for step in steps:
            offset += step
            pack.append(offset)
        packs.append(pack)
    return packs


def spans_of(packs: list[list[int]]) -> list[Span]:
    return [Span(pack[0], pack[-1], len(pack)) for pack in packs]


@given(packs_of_offsets(), st.integers(1, 50), st.integers(1, 8))
def test_every_message_is_in_one_range_and_the_ranges_know_how_many_they_hold(packs, size, most):
    offsets = [offset for pack in packs for offset in pack]
    end = offsets[-1] + 5 if offsets else 7
    ranges = divide(spans_of(packs), 0, end, size=size, max_tasks=most)
    assert [one.first for one in ranges] == [0, *(one.end for one in ranges[:-1])]
    assert ranges[-1].end == end
    assert [one.messages for one in ranges] == [sum(one.first <= at < one.end for at in offsets) for one in ranges]
    assert len(ranges) <= most
    assert len(ranges) <= max(1, -(-len(offsets) // size))


def test_packs_stay_whole_and_large_ones_are_cut():
    small = [Span(number * 10, number * 10 + 9, 10) for number in range(6)]
    assert divide(small, 0, 60, size=20, max_tasks=9) == [Range(0, 20, 20), Range(20, 40, 20), Range(40, 60, 20)]
    assert divide([Span(0, 59, 60)], 0, 60, size=20, max_tasks=9) == [
        Range(0, 20, 20),
        Range(20, 40, 20),
        Range(40, 60, 20),
    ]


@given(packs_of_offsets(), st.integers(1, 40))
def test_a_limit_is_respected_and_something_is_always_taken(packs, limit):
    offsets = [offset for pack in packs for offset in pack]
    end = offsets[-1] + 5 if offsets else 7
    cut = end_of(spans_of(packs), end, limit)
    taken = sum(at < cut for at in offsets)
    assert cut <= end
    assert taken <= limit
    assert taken or not offsets
    if all(pack[-1] - pack[0] == len(pack) - 1 for pack in packs):
        assert taken == min(limit, len(offsets))
