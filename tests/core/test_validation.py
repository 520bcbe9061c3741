"""Checks that every options object shares."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import pytest

from seriatim.core.lanes.types import ReleaseAfter, RetryMode
from seriatim.core.validation import (
    convert_choices,
    duration,
    one_of,
    require_duration,
    require_finite,
    require_kind,
    require_time,
    require_whole,
    shown,
)
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


@pytest.mark.parametrize("value", [0, 0.0, 0.001, 7, 3_155_760_000])
def test_a_finite_number_of_0_or_more_is_a_duration(value):
    require_duration("wait", value)


@pytest.mark.parametrize("value", [-1, -0.001, True, False, inf, -inf, nan, "1", None])
def test_anything_else_is_no_duration(value):
    with pytest.raises(InvalidArgument) as error:
        require_duration("wait", value)
    assert error.value.message == f"wait must be a finite number of 0 or more, not {value!r}"


@pytest.mark.parametrize("value", [3_155_760_001, 1e300])
def test_a_duration_is_100_years_at_most(value):
    with pytest.raises(InvalidArgument) as error:
        require_duration("wait", value)
    assert error.value.message == f"wait must be 3155760000 (100 years) or less, not {value!r}"


def test_a_whole_number_may_have_a_highest_value():
    require_whole("size", 9, 0, 9)
    with pytest.raises(InvalidArgument, match=r"^size must be a whole number of 9 or less, not 10$"):
        require_whole("size", 10, 0, 9)


@pytest.mark.parametrize("value", [0, 1_700_000_000.5, 253_402_300_799])
def test_a_time_is_a_number_of_seconds_up_to_the_year_9999(value):
    require_time("time", value)


@pytest.mark.parametrize("value", [-1, 253_402_300_800, 2**63 - 1, inf, nan, True, "now", None])
def test_anything_else_is_no_time(value):
    with pytest.raises(InvalidArgument) as error:
        require_time("time", value)
    assert error.value.message == f"time must be a finite number of seconds from 1970 to the year 9999, not {value!r}"


@pytest.mark.parametrize("value", [inf, -inf, nan, True, "5", None])
def test_what_is_not_a_finite_number_is_refused(value):
    require_finite("delay", -5)
    with pytest.raises(InvalidArgument) as error:
        require_finite("delay", value)
    assert error.value.message == f"delay must be a finite number, not {value!r}"


def test_a_value_of_another_class_is_refused():
    require_kind("flag", bool, True)
    with pytest.raises(InvalidArgument, match=r"^flag must be a bool, not 1$"):
        require_kind("flag", bool, 1)


def test_a_refused_value_is_shown_however_large_or_strange_it_is():
    class Strange:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("x" * 198) == f"'{'x' * 198}'", "as long as it may be"
    assert shown("x" * 1_000_000) == f"'{'x' * 199}…"
    assert shown(Strange()) == "<Strange>"
    assert shown(10**5000) == "<int>"


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


@pytest.mark.parametrize("value", ["36526d", -1])
def test_a_duration_of_an_option_that_is_out_of_range_is_refused_by_its_name(value):
    with pytest.raises(InvalidArgument, match=r"^wait must be "):
        duration("wait", value)


@pytest.mark.parametrize("value", ["soon", "", "-1s", "1 s", "1w", "s"])
def test_a_text_that_is_no_duration_is_refused_with_an_example(value):
    with pytest.raises(InvalidArgument) as error:
        duration("wait", value)
    assert error.value.message == f"wait must be a duration such as 2s, 500ms or 1m, not {value!r}"


@pytest.mark.parametrize("value", ["receipt", ReleaseAfter.RECEIPT])
def test_a_choice_is_given_as_a_member_or_as_its_text(value):
    assert one_of("release", ReleaseAfter, value) is ReleaseAfter.RECEIPT


@dataclass(frozen=True)
class Chosen:
    release: ReleaseAfter
    mode: RetryMode = RetryMode.BLOCK
    note: str = "receipt"

    def __post_init__(self) -> None:
        convert_choices(self, release=ReleaseAfter, mode=RetryMode)


def test_the_choices_of_frozen_options_may_be_given_as_texts():
    chosen = Chosen("receipt", "overtake")  # type: ignore[arg-type]
    assert (chosen.release, chosen.mode, chosen.note) == (ReleaseAfter.RECEIPT, RetryMode.OVERTAKE, "receipt")
    assert isinstance(chosen.release, ReleaseAfter)
    assert isinstance(chosen.mode, RetryMode)


def test_a_wrong_choice_of_frozen_options_is_named():
    with pytest.raises(InvalidArgument, match=r"^mode must be one of 'block', 'overtake', not 'never'$"):
        Chosen(ReleaseAfter.DURABLE, "never")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["never", None, 1])
def test_anything_else_is_no_choice_and_the_choices_are_named(value):
    with pytest.raises(InvalidArgument) as error:
        one_of("release", ReleaseAfter, value)
    assert error.value.message == f"release must be one of 'durable', 'receipt', not {value!r}"
