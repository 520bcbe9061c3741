"""Checks that every frozen options object shares."""

from __future__ import annotations

import re
from enum import StrEnum
from math import inf
from typing import Any, TypeVar

from seriatim.errors import InvalidArgument

Choice = TypeVar("Choice", bound=StrEnum)


def one_of(name: str, kind: type[Choice], value: Any) -> Choice:
    """A choice, given as a member of its enum or as its text; InvalidArgument names the choices there are."""
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(str(choice)) for choice in kind)
        raise InvalidArgument(f"{name} must be one of {choices}, not {value!r}") from None


def require_whole(name: str, value: object, at_least: int) -> None:
    """Raise InvalidArgument unless ``value`` is an int, not a bool, of ``at_least`` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidArgument(f"{name} must be a whole number of {at_least} or more, not {value!r}")


def require_duration(name: str, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a finite number, not a bool, of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise InvalidArgument(f"{name} must be a finite number of 0 or more, not {value!r}")


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_in(text: str) -> float | None:
    """How many seconds a text such as 90, 1.5s, 500ms, 10m, 2h or 7d means; None when it is no duration."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s|m|h|d)?", text)
    return None if found is None else float(found[1]) * _UNITS[found[2] or "s"]


def duration(name: str, value: object) -> float:
    """A duration in seconds, given as a number of them or as a text; InvalidArgument when it is neither."""
    seconds = seconds_in(value) if isinstance(value, str) else value
    if seconds is None:
        raise InvalidArgument(f"{name} must be a duration such as 2s, 500ms or 1m, not {value!r}")
    require_duration(name, seconds)
    assert isinstance(seconds, int | float)
    return seconds
