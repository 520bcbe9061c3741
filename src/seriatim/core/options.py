"""Checks that every frozen options object shares."""

from __future__ import annotations

from math import inf

from seriatim.errors import InvalidArgument


def require_whole(name: str, value: object, at_least: int) -> None:
    """Raise InvalidArgument unless ``value`` is an int, not a bool, of ``at_least`` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidArgument(f"{name} must be a whole number of {at_least} or more, not {value!r}")


def require_duration(name: str, value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a finite number, not a bool, of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise InvalidArgument(f"{name} must be a finite number of 0 or more, not {value!r}")
