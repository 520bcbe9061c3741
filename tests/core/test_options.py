"""Checks that every options object shares."""

from __future__ import annotations

from math import inf, nan

import pytest

from seriatim.core.delivery import Release
from seriatim.core.options import duration, one_of, require_duration, require_whole
from seriatim.errors import InvalidArgument


@pytest.mark.parametrize("value", [2, 3, 10**30])
def test_a_whole_number_of_at_least_the_lowest_is_fine(value):
    require_whole("size", value, 2)


@pytest.mark.parametrize("value", [1, -5, True, 2.0, inf, nan, "2", None])
def test_anything_else_is_no_whole_number(value):
    with pytest.raises(InvalidArgument) as error:
        require_whole("size", value, 2)
    assert error.value.message == f"size must be a whole number of 2 or more, not {value!r}"


def test_a_bool_is_no_whole_number_even_when_it_is_large_enough():
    with pytest.raises(InvalidArgument, match=r"^size must be a whole number of 0 or more, not True$"):
        require_whole("size", True, 0)


@pytest.mark.parametrize("value", [0, 0.0, 0.001, 7, 1e300])
def test_a_finite_number_of_0_or_more_is_a_duration(value):
    require_duration("wait", value)


@pytest.mark.parametrize("value", [-1, -0.001, True, False, inf, -inf, nan, "1", None])
def test_anything_else_is_no_duration(value):
    with pytest.raises(InvalidArgument) as error:
        require_duration("wait", value)
    assert error.value.message == f"wait must be a finite number of 0 or more, not {value!r}"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("500ms", 0.5),
        ("10m", 600),
        ("2h", 7200),
        ("7d", 604800),
        (3, 3),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_a_text_with_a_unit(value, seconds):
    assert duration("wait", value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["soon", "", "-1s", "1 s", "1w", "s"])
def test_a_text_that_is_no_duration_is_refused_with_an_example(value):
    with pytest.raises(InvalidArgument) as error:
        duration("wait", value)
    assert error.value.message == f"wait must be a duration such as 2s, 500ms or 1m, not {value!r}"


@pytest.mark.parametrize("value", ["receipt", Release.RECEIPT])
def test_a_choice_is_given_as_a_member_or_as_its_text(value):
    assert one_of("release", Release, value) is Release.RECEIPT


@pytest.mark.parametrize("value", ["never", None, 1])
def test_anything_else_is_no_choice_and_the_choices_are_named(value):
    with pytest.raises(InvalidArgument) as error:
        one_of("release", Release, value)
    assert error.value.message == f"release must be one of 'durable', 'receipt', not {value!r}"
