"""Copies of machines, made faster than pickle makes them: what can't change is shared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")
Copier = Callable[[Any], Any]

_SHARED = (int, float, str, bytes, tuple, frozenset, Enum, FunctionType, type(None))
"""Tuples and frozensets too: nothing that a machine puts into them ever changes."""


def clone(value: T) -> T:
    """A copy, and of whatever may change in it too."""
    copier = _COPIERS[type(value)]
    copy: T = value if copier is None else copier(value)
    return copy


class _Copiers(dict[type, "Copier | None"]):
    """How values of each class are copied; None for what is shared. Worlds spend most of their time here."""

    def __missing__(self, kind: type) -> Copier | None:
        copier = self[kind] = _copier_of(kind)
        return copier


def _copier_of(kind: Any) -> Copier | None:
    if issubclass(kind, _SHARED) or (is_dataclass(kind) and kind.__dataclass_params__.frozen):  # type: ignore[union-attr]
        return None
    if issubclass(kind, list | deque):
        return lambda value: kind(map(clone, value))
    if issubclass(kind, dict):
        return lambda value: kind((key, clone(each)) for key, each in value.items())
    slots = tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if name != "__weakref__")
    has_dict = bool(kind.__dictoffset__)

    def copy_machine(value: Any) -> Any:
        twin = kind.__new__(kind)
        for name in slots:
            each = getattr(value, name)
            copier = _COPIERS[type(each)]
            setattr(twin, name, each if copier is None else copier(each))
        if has_dict:
            for name, each in value.__dict__.items():
                setattr(twin, name, clone(each))
        return twin

    return copy_machine


_COPIERS = _Copiers()
