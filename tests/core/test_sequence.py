"""Sequence spaces: ahead and behind by distance from the expected number, and nothing else."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.sequence import SequenceSpace, SyncWatch
from seriatim.errors import InvalidArgument, InvalidSequence

BYTE = SequenceSpace(modulus=256)
UNBOUNDED = SequenceSpace()

increments = st.integers(1, 5)
circles = st.builds(lambda span, step: SequenceSpace(span * step, step), st.integers(4, 40), increments)


# --- a space is checked when it is made ---------------------------------------------------------------------------


def test_the_default_space_is_unbounded_with_increment_one() -> None:
    assert (UNBOUNDED.modulus, UNBOUNDED.increment) == (None, 1)


def test_a_space_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        BYTE.modulus = 10  # type: ignore[misc]


@pytest.mark.parametrize("increment", [0, -1, True, 1.0, "1", None])
def test_an_increment_below_one_or_not_an_integer_is_refused(increment: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        SequenceSpace(increment=increment)  # type: ignore[arg-type]
    assert str(refusal.value) == f"increment must be an integer of 1 or more, not {increment!r}"


@pytest.mark.parametrize("modulus", [3, 0, -4, True, 4.0, "256"])
def test_a_modulus_below_four_or_not_an_integer_is_refused(modulus: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        SequenceSpace(modulus=modulus)  # type: ignore[arg-type]
    assert str(refusal.value) == (
        f"modulus must be an integer of 4 or more (4 steps of the increment), not {modulus!r}"
    )


def test_the_smallest_circle_has_four_steps_whatever_the_increment() -> None:
    assert SequenceSpace(4).modulus == 4
    assert SequenceSpace(40, 10).modulus == 40
    with pytest.raises(InvalidArgument) as refusal:
        SequenceSpace(30, 10)
    assert str(refusal.value) == "modulus must be an integer of 40 or more (4 steps of the increment), not 30"


def test_a_modulus_that_the_increment_does_not_divide_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        SequenceSpace(256, 10)
    assert str(refusal.value) == "modulus 256 must be a multiple of the increment 10"


# --- numbers are checked at the border ----------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [0, 1, 254, 255])
def test_a_circle_takes_every_number_from_zero_to_modulus_minus_one(sequence: int) -> None:
    assert BYTE.validate(sequence) == sequence


@pytest.mark.parametrize("sequence", [-1, 256, 1000])
def test_a_circle_refuses_numbers_outside_and_says_what_is_allowed(sequence: int) -> None:
    with pytest.raises(InvalidSequence) as refusal:
        BYTE.validate(sequence)
    assert str(refusal.value) == f"sequence {sequence} is outside 0 to 255 (modulus 256)"


@pytest.mark.parametrize("sequence", [-(10**30), -1, 0, 10**30])
def test_an_unbounded_space_takes_any_integer(sequence: int) -> None:
    assert UNBOUNDED.validate(sequence) == sequence


@pytest.mark.parametrize("space", [BYTE, UNBOUNDED])
@pytest.mark.parametrize(
    ("sequence", "shown"),
    [(True, "bool True"), (None, "NoneType None"), ("7", "str '7'"), (7.0, "float 7.0"), (b"7", "bytes b'7'")],
)
def test_anything_but_an_integer_is_refused(space: SequenceSpace, sequence: object, shown: str) -> None:
    with pytest.raises(InvalidSequence) as refusal:
        space.validate(sequence)
    assert str(refusal.value) == f"a sequence must be an integer, not {shown}"


# --- distance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "expected", "distance"),
    [
        (254, 254, 0),
        (255, 254, 1),
        (0, 254, 2),
        (125, 254, 127),  # the furthest ahead
        (126, 254, -128),  # exactly opposite counts as behind
        (127, 254, -127),
        (253, 254, -1),
        (0, 0, 0),
        (127, 0, 127),
        (128, 0, -128),
        (255, 0, -1),
    ],
)
def test_distance_on_an_even_circle(sequence: int, expected: int, distance: int) -> None:
    assert BYTE.distance(sequence, expected) == distance


def test_distance_on_an_odd_circle_has_as_many_ahead_as_behind() -> None:
    assert [SequenceSpace(5).distance(sequence, 0) for sequence in range(5)] == [0, 1, 2, -2, -1]


def test_distance_on_the_smallest_circle() -> None:
    assert [SequenceSpace(4).distance(sequence, 0) for sequence in range(4)] == [0, 1, -2, -1]


def test_distance_counts_steps_of_the_increment() -> None:
    tens = SequenceSpace(increment=10)
    assert [tens.distance(sequence, 25) for sequence in (-5, 15, 25, 35, 65)] == [-3, -1, 0, 1, 4]
    circle = SequenceSpace(50, 10)
    assert [circle.distance(sequence, 3) for sequence in (3, 13, 23, 33, 43)] == [0, 1, 2, -2, -1]


def test_unbounded_distance_is_the_difference() -> None:
    assert UNBOUNDED.distance(-5, 10**20) == -5 - 10**20


@pytest.mark.parametrize("modulus", range(4, 12))
def test_every_pair_on_small_circles_by_brute_force(modulus: int) -> None:
    space = SequenceSpace(modulus)
    for expected in range(modulus):
        ahead = {(expected + step) % modulus: step for step in range(modulus) if step < modulus / 2}
        behind = {(expected - step) % modulus: -step for step in range(1, modulus) if step <= modulus / 2}
        assert ahead.keys().isdisjoint(behind)
        distances = {sequence: space.distance(sequence, expected) for sequence in range(modulus)}
        assert distances == ahead | behind


def test_comparing_two_raw_numbers_is_not_transitive_but_distances_from_one_point_are() -> None:
    circle = SequenceSpace(6)

    def before(a: int, b: int) -> bool:
        return circle.distance(b, a) > 0

    assert before(0, 2)
    assert before(2, 4)
    assert before(4, 0)
    assert sorted([0, 2, 4], key=lambda sequence: circle.distance(sequence, 4)) == [2, 4, 0]


@pytest.mark.parametrize(
    ("space", "sequence", "expected", "shown"),
    [(SequenceSpace(increment=10), 33, 25, 25), (SequenceSpace(50, 10), 4, 103, 3)],
)
@pytest.mark.parametrize("method", ["distance", "unwrap"])
def test_a_number_between_two_steps_is_refused(
    method: str, space: SequenceSpace, sequence: int, expected: int, shown: int
) -> None:
    with pytest.raises(InvalidSequence) as refusal:
        getattr(space, method)(sequence, expected)
    assert str(refusal.value) == (
        f"sequence {sequence} is off the grid: it must differ from {shown} by a multiple of the increment 10"
    )


# --- unwrapping ---------------------------------------------------------------------------------------------------


def test_holes_on_both_sides_of_the_wrap_are_ordinary_holes() -> None:
    expected = 254
    held = {BYTE.unwrap(sequence, expected) for sequence in (0, 2)}
    assert held == {256, 258}
    released = []
    for arriving in (254, 255, 1):
        held.add(BYTE.unwrap(arriving, expected))
        while expected in held:
            held.remove(expected)
            released.append(BYTE.wrap(expected))
            expected = BYTE.after(expected)
    assert released == [254, 255, 0, 1, 2]
    assert (expected, held) == (259, set())


def test_unwrap_far_beyond_the_first_turn_stays_near_the_expected_number() -> None:
    assert BYTE.unwrap(0, 256 * 1000 - 1) == 256 * 1000
    assert BYTE.unwrap(255, 256 * 1000) == 256 * 1000 - 1
    assert BYTE.unwrap(250, 254) == 250
    assert BYTE.unwrap(250, 3) == -6


def test_unbounded_numbers_unwrap_to_themselves() -> None:
    assert UNBOUNDED.unwrap(-7, 10**9) == -7
    assert UNBOUNDED.wrap(-7) == -7


def test_after_is_one_increment_further_and_does_not_wrap() -> None:
    assert BYTE.after(255) == 256
    assert SequenceSpace(50, 10).after(45) == 55


def test_wrap_gives_the_raw_number_of_any_turn() -> None:
    assert [BYTE.wrap(unwrapped) for unwrapped in (-1, 0, 255, 256, 513)] == [255, 0, 255, 0, 1]


@given(circles, st.integers(-1000, 1000), st.data())
def test_unwrapping_a_wrapped_number_near_itself_gives_it_back(
    space: SequenceSpace, near: int, data: st.DataObject
) -> None:
    assert space.modulus is not None
    span = space.modulus // space.increment
    steps = data.draw(st.integers(-(span // 2), (span - 1) // 2))
    unwrapped = near + steps * space.increment
    assert space.unwrap(space.wrap(unwrapped), near) == unwrapped
    assert space.distance(space.wrap(unwrapped), near) == steps


@given(circles, st.integers(-1000, 1000), st.integers(0, 39))
def test_unwrapped_numbers_are_congruent_and_within_half_a_circle(space: SequenceSpace, near: int, step: int) -> None:
    assert space.modulus is not None
    sequence = space.wrap(near + step * space.increment)
    unwrapped = space.unwrap(sequence, near)
    assert (unwrapped - sequence) % space.modulus == 0
    assert -space.modulus <= 2 * (unwrapped - near) < space.modulus


@given(increments, st.integers(), st.integers())
def test_unbounded_distance_and_steps_agree(increment: int, expected: int, steps: int) -> None:
    space = SequenceSpace(increment=increment)
    assert space.distance(expected + steps * increment, expected) == steps


# --- capacity -----------------------------------------------------------------------------------------------------


def test_an_unbounded_space_has_no_limit_ahead() -> None:
    assert UNBOUNDED.max_ahead is None


@pytest.mark.parametrize(
    ("modulus", "increment", "ahead"),
    [(4, 1, 1), (5, 1, 2), (6, 1, 2), (7, 1, 3), (256, 1, 127), (256, 2, 63), (50, 10, 2)],
)
def test_max_ahead_is_just_below_half_the_circle(modulus: int, increment: int, ahead: int) -> None:
    assert SequenceSpace(modulus, increment).max_ahead == ahead


@given(circles, st.integers(-1000, 1000))
def test_max_ahead_is_the_furthest_distance_that_counts_as_ahead(space: SequenceSpace, expected: int) -> None:
    assert space.modulus is not None
    steps = range(space.modulus // space.increment)
    distances = [space.distance(space.wrap(expected + step * space.increment), expected) for step in steps]
    assert max(distances) == space.max_ahead


# --- lost sync ----------------------------------------------------------------------------------------------------


def reports(watch: SyncWatch, *unwrapped: int) -> list[bool]:
    return [watch.behind(number) for number in unwrapped]


def test_a_new_watch_has_seen_nothing() -> None:
    watch = SyncWatch(UNBOUNDED)
    assert (watch.limit, watch.run, watch.last) == (3, 0, None)


def test_three_messages_behind_that_continue_each_other_mean_lost_sync() -> None:
    assert reports(SyncWatch(UNBOUNDED), 5, 6, 7) == [False, False, True]


def test_lost_sync_is_reported_once_and_counting_begins_again() -> None:
    assert reports(SyncWatch(UNBOUNDED), 5, 6, 7, 8, 9, 10) == [False, False, True, False, False, True]


def test_the_message_after_a_report_begins_a_run_of_its_own() -> None:
    watch = SyncWatch(UNBOUNDED)
    reports(watch, 5, 6, 7)
    assert (watch.run, watch.last) == (0, None)
    watch.behind(8)
    assert (watch.run, watch.last) == (1, 8)


@pytest.mark.parametrize("interruption", [6, 8, 5, 4, 100])
def test_a_message_that_does_not_continue_the_run_begins_a_new_one(interruption: int) -> None:
    watch = SyncWatch(UNBOUNDED)
    assert reports(watch, 5, 6, interruption) == [False, False, False]
    assert (watch.run, watch.last) == (1, interruption)


def test_a_message_that_is_not_behind_ends_the_run() -> None:
    watch = SyncWatch(UNBOUNDED)
    reports(watch, 5, 6)
    watch.reset()
    assert (watch.run, watch.last) == (0, None)
    assert reports(watch, 7, 8, 9) == [False, False, True]


def test_a_run_goes_by_the_increment() -> None:
    tens = SequenceSpace(increment=10)
    assert reports(SyncWatch(tens), 5, 15, 25) == [False, False, True]
    assert reports(SyncWatch(tens), 5, 6, 7) == [False, False, False]


def test_a_run_of_zero_is_continued_as_any_other() -> None:
    assert reports(SyncWatch(UNBOUNDED), 0, 1, 2) == [False, False, True]
    assert reports(SyncWatch(UNBOUNDED), -1, 0, 1) == [False, False, True]


def test_a_run_across_the_wrap_is_seen_from_an_unmoving_expected_number() -> None:
    watch = SyncWatch(BYTE)
    expected = 100
    run = [BYTE.unwrap(sequence, expected) for sequence in (254, 255, 0)]
    assert run == [-2, -1, 0]
    assert reports(watch, *run) == [False, False, True]


def test_a_source_that_jumped_from_ahead_to_behind_is_noticed() -> None:
    expected = 0
    distances = [BYTE.unwrap(sequence, expected) for sequence in range(126, 131)]
    assert distances == [126, 127, -128, -127, -126]
    assert reports(SyncWatch(BYTE), *distances[2:]) == [False, False, True]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_is_the_length_of_the_run(limit: int) -> None:
    assert reports(SyncWatch(UNBOUNDED, limit), *range(limit)) == [False] * (limit - 1) + [True]


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, None])
def test_a_limit_below_one_or_not_an_integer_is_refused(limit: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        SyncWatch(UNBOUNDED, limit)  # type: ignore[arg-type]
    assert str(refusal.value) == f"the limit of a sync watch must be an integer of 1 or more, not {limit!r}"


def test_a_watch_goes_on_from_its_saved_state() -> None:
    before = SyncWatch(UNBOUNDED)
    reports(before, 5, 6)
    restored = SyncWatch(UNBOUNDED, run=before.run, last=before.last)
    assert restored == before
    assert restored.behind(7)
