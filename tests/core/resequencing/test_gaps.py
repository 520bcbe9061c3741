"""The backlog: every number between the expected one and the end is held or in exactly one gap."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from seriatim.core.resequencing.gaps import Backlog, Gap, Held

STEP = 3


def backlog(*positions: int) -> Backlog[str]:
    """What is held after 0 was released and ``positions`` came, one each second."""
    made: Backlog[str] = Backlog(1)
    for now, position in enumerate(positions):
        made.place(position, Held(f"m{position}", now, None), deadline=now + 10, step=1)
    return made


def test_a_backlog_without_messages_has_no_gap():
    empty = backlog()
    assert (empty.first_gap(), empty.open_gaps(), empty.held, empty.end) == (None, [], {}, 1)


def test_a_message_opens_a_gap_below_itself():
    made = backlog(3, 6)
    assert made.open_gaps() == [Gap(1, 2, 10, 0, False), Gap(4, 5, 11, 0, False)]
    assert (made.first_gap(), made.end) == (Gap(1, 2, 10), 7)
    assert made.held == {3: Held("m3", 0, None), 6: Held("m6", 1, None)}


def test_a_gap_that_is_split_keeps_what_became_of_it():
    made = backlog(9)
    made.gaps[0].requests, made.gaps[0].reported = 2, True
    made.place(5, Held("m5", 1, None), deadline=99, step=1)
    made.place(6, Held("m6", 1, None), deadline=99, step=1)
    assert made.open_gaps() == [Gap(1, 4, 10, 2, True), Gap(7, 8, 10, 2, True)]
    assert made.end == 10


def test_dead_gaps_leave_the_list_when_they_are_more_than_half_of_it():
    made = backlog(2, 4, 6, 8)
    sizes = []
    while made.first_gap() is not None:
        made.drop_first_gap()
        sizes.append((len(made.gaps), [gap.first for gap in made.open_gaps()]))
    assert sizes == [(4, [3, 5, 7]), (4, [5, 7]), (1, [7]), (0, [])]


def test_a_message_inside_a_gap_is_found_behind_dead_gaps():
    made = backlog(2, 4, 6, 10)
    made.drop_first_gap()
    made.place(8, Held("m8", 9, None), deadline=99, step=1)
    assert [(gap.first, gap.last) for gap in made.open_gaps()] == [(3, 3), (5, 5), (7, 7), (9, 9)]


@given(st.lists(st.integers(1, 40), unique=True))
def test_every_number_up_to_the_end_is_held_or_in_exactly_one_gap(places):
    made: Backlog[int] = Backlog(0)
    for now, place in enumerate(places):
        made.place(place * STEP, Held(place, now, None), deadline=now, step=STEP)
    missing = [number for gap in made.open_gaps() for number in range(gap.first, gap.last + 1, STEP)]
    assert sorted([*missing, *made.held]) == list(range(0, made.end, STEP))
    assert made.end == max((place * STEP for place in places), default=-STEP) + STEP
    deadlines = [gap.deadline for gap in made.open_gaps()]
    assert deadlines == sorted(deadlines)
