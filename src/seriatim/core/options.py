"""Checks that every frozen options object shares."""

from __future__ import annotations

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
