"""Copies of machines, made faster than pickle makes them: what can't change is shared."""

from __future__ import annotations

from collections import deque
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")

_SHARED = (int, float, str, bytes, tuple, frozenset, Enum, FunctionType, type(None))
"""Tuples and frozensets too: nothing that a machine puts into them ever changes."""


def clone(value: T) -> T:
    """A copy, and of whatever may change in it too."""
    kind: Any = type(value)
    if isinstance(value, _SHARED) or _is_frozen(kind):
        return value
    if isinstance(value, list | deque):
        return kind(map(clone, value))
    if isinstance(value, dict):
        return kind((key, clone(each)) for key, each in value.items())
    twin = kind.__new__(kind)
    for name in _slots(kind):
        setattr(twin, name, clone(getattr(value, name)))
    for name, each in getattr(value, "__dict__", {}).items():
        setattr(twin, name, clone(each))
    return twin


@cache
def _is_frozen(kind: type) -> bool:
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if name != "__weakref__")
