"""Checks shared by all frozen options objects."""

from __future__ import annotations

import re
from enum import StrEnum
from math import inf, isfinite
from typing import Any, TypeGuard, TypeVar

from seriatim.errors import InvalidArgument

Choice = TypeVar("Choice", bound=StrEnum)

MAX_DURATION_S = 3_155_760_000
"""100 years. Any time that is this far from now is still a valid date."""

MAX_TIME_S = 253_402_300_799
"""The end of the year 9999, the last valid date."""

MAX_INTEGER = 2**63 - 1
"""The largest integer that a store can keep."""

SHOWN_CHARACTERS = 200
"""The number of characters of a refused value in an error message."""


def shown(value: object) -> str:
    """A refused value for an error message, of any size and type."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - anything may go wrong in somebody else's __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def one_of(name: str, kind: type[Choice], value: Any) -> Choice:
    """A choice, given as a member of its enum or as its text; InvalidArgument lists the choices."""
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(str(choice)) for choice in kind)
        raise InvalidArgument(f"{name} must be one of {choices}, not {shown(value)}") from None


def convert_choices(options: object, **kinds: type[StrEnum]) -> None:
    """Convert choices of a frozen options object from text to members of their enums."""
    for name, kind in kinds.items():
        object.__setattr__(options, name, one_of(name, kind, getattr(options, name)))


def require_whole(name: str, value: object, at_least: int, at_most: int | None = None) -> None:
    """Raise InvalidArgument unless ``value`` is an int, not a bool, of ``at_least`` or more and ``at_most`` or less."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidArgument(f"{name} must be a whole number of {at_least} or more, not {shown(value)}")
    if at_most is not None and value > at_most:
        raise InvalidArgument(f"{name} must be a whole number of {at_most} or less, not {shown(value)}")


def require_duration(name: str, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a number, not a bool, from 0 to ``MAX_DURATION_S``."""
    require_span(name, value)
    assert is_number(value)
    if value > MAX_DURATION_S:
        raise InvalidArgument(f"{name} must be {MAX_DURATION_S} (100 years) or less, not {shown(value)}")


def require_span(name: str, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a finite number of 0 or more: in any unit, of any length."""
    if not is_number(value) or not 0 <= value < inf:
        raise InvalidArgument(f"{name} must be a finite number of 0 or more, not {shown(value)}")


def require_time(name: str, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a time in seconds since 1970, not after the year 9999."""
    if not is_number(value) or not 0 <= value <= MAX_TIME_S:
        raise InvalidArgument(
            f"{name} must be a finite number of seconds from 1970 to the year 9999, not {shown(value)}"
        )


def require_finite(name: str, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a finite number, not a bool."""
    if not is_number(value) or not isfinite(value):
        raise InvalidArgument(f"{name} must be a finite number, not {shown(value)}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_kind(name: str, kind: type, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is an instance of a class."""
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be a {kind.__name__}, not {shown(value)}")


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_in(text: str) -> float | None:
    """The seconds of a text such as 90, 1.5s, 500ms, 10m, 2h or 7d; None if it is not a duration."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s|m|h|d)?", text)
    return None if found is None else float(found[1]) * _UNITS[found[2] or "s"]


def duration(name: str, value: object) -> float:
    """A duration in seconds, given as a number or as text; InvalidArgument if it is neither."""
    seconds = seconds_in(value) if isinstance(value, str) else value
    if seconds is None:
        raise InvalidArgument(f"{name} must be a duration such as 2s, 500ms or 1m, not {shown(value)}")
    require_duration(name, seconds)
    assert isinstance(seconds, int | float)
    return seconds
