"""The options of a resequencer: what they default to, and which of them are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seriatim.core.resequencing.options import (
    OnDuplicate,
    OnEpoch,
    OnGap,
    OnLate,
    OnOverflow,
    ResequenceOptions,
    Start,
    StartRule,
)
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidArgument, InvalidSequence


def test_the_defaults():
    assert ResequenceOptions() == ResequenceOptions(
        space=SequenceSpace(),
        start=Start(StartRule.FIRST_SEEN, 0),
        gap_timeout=None,
        on_gap=OnGap.SKIP,
        max_requests=3,
        on_late=OnLate.DROP,
        on_duplicate=OnDuplicate.FIRST,
        on_epoch=OnEpoch.RELEASE,
        capacity=None,
        on_overflow=None,
        remember=128,
        resync_after=None,
    )
    assert ResequenceOptions().held_limit == 10_000
    assert ResequenceOptions().overflow is OnOverflow.GIVE_UP
    assert ResequenceOptions().resync_limit is None


def test_options_can_be_derived_from_others():
    derived = replace(ResequenceOptions(), on_gap=OnGap.HOLD, space=SequenceSpace(16))
    assert (derived.overflow, derived.held_limit, derived.resync_limit) == (OnOverflow.RAISE, 7, 3)


def test_the_start_rules():
    assert Start.at(5) == Start(StartRule.LITERAL, 5)
    assert Start.first_seen() == Start(StartRule.FIRST_SEEN, 0)
    assert Start.lowest_within(2.5) == Start(StartRule.LOWEST_WITHIN, 2.5)


def test_under_a_modulus_sync_is_watched_and_no_more_is_held_than_can_be_told_to_be_ahead():
    options = ResequenceOptions(space=SequenceSpace(256))
    assert (options.held_limit, options.resync_limit) == (127, 3)
    assert ResequenceOptions(space=SequenceSpace(10**6)).held_limit == 10_000
    given = ResequenceOptions(space=SequenceSpace(256), capacity=126, resync_after=2)
    assert (given.held_limit, given.resync_limit) == (126, 2)
    assert ResequenceOptions(space=SequenceSpace(256), capacity=127).held_limit == 127


def test_a_choice_may_be_given_as_text():
    texts = {"on_gap": "hold", "on_late": "side-output", "on_duplicate": "last", "on_epoch": "discard"}
    given = ResequenceOptions(**texts, on_overflow="drop")  # type: ignore[arg-type]
    chosen = (given.on_gap, given.on_late, given.on_duplicate, given.on_epoch, given.on_overflow)
    members = (OnGap.HOLD, OnLate.SIDE_OUTPUT, OnDuplicate.LAST, OnEpoch.DISCARD, OnOverflow.DROP)
    assert all(one is other for one, other in zip(chosen, members, strict=True))


def test_a_held_gap_is_never_given_up_for_room():
    assert ResequenceOptions(on_gap=OnGap.HOLD).overflow is OnOverflow.RAISE
    assert ResequenceOptions(on_gap=OnGap.HOLD, on_overflow=OnOverflow.DROP).overflow is OnOverflow.DROP
    assert ResequenceOptions(on_gap=OnGap.SKIP, on_overflow=OnOverflow.RAISE).overflow is OnOverflow.RAISE


def test_the_lowest_allowed_values():
    options = ResequenceOptions(gap_timeout=0, max_requests=1, capacity=1, remember=1, resync_after=2)
    assert (options.gap_timeout, options.max_requests, options.held_limit) == (0, 1, 1)
    assert (options.remember, options.resync_limit) == (1, 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(
            ({name: "nonsense"}, f"{name} must be one of {choices}, not 'nonsense'")
            for name, choices in {
                "on_gap": ", ".join(map(repr, map(str, OnGap))),
                "on_late": ", ".join(map(repr, map(str, OnLate))),
                "on_duplicate": "'first', 'last', 'conflict'",
                "on_epoch": "'release', 'discard'",
                "on_overflow": "'give-up', 'drop', 'raise'",
            }.items()
        ),
        ({"gap_timeout": -1}, "gap_timeout must be a finite number of 0 or more, not -1"),
        ({"max_requests": 0}, "max_requests must be a whole number of 1 or more, not 0"),
        ({"capacity": 0}, "capacity must be a whole number of 1 or more, not 0"),
        ({"remember": 0}, "remember must be a whole number of 1 or more, not 0"),
        ({"resync_after": 1}, "resync_after must be a whole number of 2 or more, not 1"),
        (
            {"on_gap": OnGap.HOLD, "on_overflow": OnOverflow.GIVE_UP},
            "on_gap=HOLD never gives up a gap by itself: choose on_overflow=DROP or RAISE",
        ),
        *(
            (
                {"on_gap": OnGap.REQUEST, "gap_timeout": timeout},
                "on_gap=REQUEST asks when a gap_timeout of more than 0 has passed: set one",
            )
            for timeout in (None, 0)
        ),
        (
            {"space": SequenceSpace(256), "capacity": 128},
            "capacity 128 is more than the 127 numbers that can be told to be ahead modulo 256; choose 127 or less",
        ),
    ],
)
def test_options_that_can_not_work_are_refused(options, text):
    with pytest.raises(InvalidArgument) as error:
        ResequenceOptions(**options)
    assert error.value.message == text


def test_a_literal_start_must_be_a_number_of_the_space():
    with pytest.raises(InvalidSequence, match=r"^sequence 16 is outside 0 to 15 \(modulus 16\)$"):
        ResequenceOptions(space=SequenceSpace(16), start=Start.at(16))


def test_the_time_of_the_lowest_within_must_be_a_duration():
    with pytest.raises(InvalidArgument) as error:
        Start.lowest_within(-1)
    assert error.value.message == "the time of Start.lowest_within must be a finite number of 0 or more, not -1"


def test_options_are_frozen():
    with pytest.raises(AttributeError):
        ResequenceOptions().capacity = 3  # type: ignore[misc]
