"""The options of lanes: what is refused, and how long a failed message waits."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.lanes.types import Delivery, OnExhausted, ReleaseAfter, RetryMode, RetryPolicy
from seriatim.errors import InvalidArgument


def test_by_default_failures_back_off_and_block_their_key_for_ever() -> None:
    retry = RetryPolicy()
    assert [retry.backoff(failures) for failures in (1, 2, 100)] == [0.1, 0.2, 60]
    assert (retry.min_backoff, retry.max_backoff, retry.max_attempts) == (0.1, 60, None)
    assert retry.mode is RetryMode.BLOCK
    assert retry.on_exhausted is OnExhausted.DEAD_LETTER
    assert not retry.is_exhausted(1_000_000)


def test_immediate_retries_come_back_at_once_and_block_their_key_for_ever() -> None:
    retry = RetryPolicy.immediate()
    assert [retry.backoff(failures) for failures in (1, 2, 100)] == [0, 0, 0]
    assert (retry.min_backoff, retry.max_backoff, retry.max_attempts) == (0, 0, None)
    assert retry.mode is RetryMode.BLOCK
    assert retry.on_exhausted is OnExhausted.DEAD_LETTER
    assert not retry.is_exhausted(1_000_000)


def test_by_default_one_message_of_a_key_is_out_and_the_next_waits_for_a_durable_ack() -> None:
    assert Delivery() == Delivery(RetryPolicy.immediate(), window=1, release=ReleaseAfter.DURABLE)


def test_backoff_doubles_between_its_bounds() -> None:
    retry = RetryPolicy(min_backoff=1.5, max_backoff=10)
    assert [retry.backoff(failures) for failures in range(1, 6)] == [1.5, 3, 6, 10, 10]


def test_backoff_of_equal_bounds_is_constant() -> None:
    retry = RetryPolicy(min_backoff=5, max_backoff=5)
    assert [retry.backoff(failures) for failures in (1, 2, 3)] == [5, 5, 5]


@pytest.mark.parametrize("failures", [64, 65, 66, 1_025, 5_000])
def test_backoff_never_overflows(failures: int) -> None:
    assert RetryPolicy(min_backoff=0.25, max_backoff=600).backoff(failures) == 600


def test_backoff_goes_on_doubling_for_64_failures() -> None:
    retry = RetryPolicy(min_backoff=2.0**-40, max_backoff=2.0**30)
    assert retry.backoff(64) == 2.0**23
    assert retry.backoff(65) == retry.backoff(5_000) == 2.0**24


def test_attempts_are_used_up_exactly_at_the_maximum() -> None:
    retry = RetryPolicy.immediate(max_attempts=3)
    assert [retry.is_exhausted(failures) for failures in (0, 2, 3, 4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_backoff": -1}, "min_backoff must be a finite number of 0 or more, not -1"),
        ({"max_backoff": float("inf")}, "max_backoff must be a finite number of 0 or more, not inf"),
        ({"min_backoff": "1"}, "min_backoff must be a finite number of 0 or more, not '1'"),
        ({"min_backoff": 5, "max_backoff": 4}, "max_backoff 4 must not be below min_backoff 5"),
        ({"mode": "wait"}, "mode must be one of 'block', 'overtake', not 'wait'"),
        (
            {"on_exhausted": "drop"},
            "on_exhausted must be one of 'dead-letter', 'dead-letter-rest', 'pause', not 'drop'",
        ),
        ({"max_attempts": 0}, "max_attempts must be a whole number of 1 or more, not 0"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number of 1 or more, not 1.5"),
        ({"max_attempts": 2**63}, f"max_attempts must be a whole number of {2**63 - 1} or less, not {2**63}"),
    ],
)
def test_a_retry_policy_that_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        RetryPolicy(**options)
    assert str(refused.value) == text


@pytest.mark.parametrize("window", [0, -1, 1.0, True])
def test_a_window_below_one_is_refused(window: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Delivery(window=window)
    assert str(refused.value) == f"window must be a whole number of 1 or more, not {window!r}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": 2**63}, f"window must be a whole number of {2**63 - 1} or less, not {2**63}"),
        ({"retry": "twice"}, "retry must be a RetryPolicy, not 'twice'"),
        ({"release": "never"}, "release must be one of 'durable', 'receipt', not 'never'"),
        ({"keep": "some"}, "keep must be one of 'all', 'latest', not 'some'"),
    ],
)
def test_a_delivery_that_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Delivery(**options)
    assert str(refused.value) == text


def test_the_least_and_the_most_of_everything_is_accepted() -> None:
    assert RetryPolicy(min_backoff=0, max_backoff=0, max_attempts=1).is_exhausted(1)
    assert Delivery(window=1).window == 1
    assert RetryPolicy.immediate(max_attempts=2**63 - 1).max_attempts == Delivery(window=2**63 - 1).window


def test_choices_may_be_given_as_text() -> None:
    given: Any = {"mode": "overtake", "on_exhausted": "pause"}
    retry, receipt = RetryPolicy(**given), "receipt"
    assert retry.mode is RetryMode.OVERTAKE
    assert retry.on_exhausted is OnExhausted.PAUSE
    assert Delivery(release=receipt).release is ReleaseAfter.RECEIPT  # type: ignore[arg-type]


def test_retries_without_a_wait_take_the_same_choices() -> None:
    retry = RetryPolicy.immediate(mode="overtake", max_attempts=3, on_exhausted="pause")
    assert retry == RetryPolicy(0, 0, RetryMode.OVERTAKE, 3, OnExhausted.PAUSE)


@pytest.mark.parametrize(
    ("choice", "text"), [("mode", "mode must be one of "), ("on_exhausted", "on_exhausted must be ")]
)
def test_a_wrong_choice_for_retries_without_a_wait_is_named(choice: str, text: str) -> None:
    options: dict[str, Any] = {choice: "never"}
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        RetryPolicy.immediate(**options)
