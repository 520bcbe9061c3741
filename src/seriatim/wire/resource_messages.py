"""Updates by field mask."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from seriatim.errors import InvalidArgument


def apply_mask(target: Any, source: Any, paths: Iterable[str], updatable: Collection[str]) -> None:
    """Take the fields that ``paths`` name from one message over into another of its kind. What ``source`` does not set is
    cleared. A field that may not be updated, or that there is none of, raises InvalidArgument."""
    wanted = list(paths)
    if not wanted:
        raise InvalidArgument("the update mask is empty: name the fields to update")
    for path in wanted:
        _check(target, path, updatable)
    for path in wanted:
        *outer, field = path.split(".")
        to, of = target, source
        for name in outer:
            to, of = getattr(to, name), getattr(of, name)
        _take(to, of, field)


def _check(message: Any, path: str, updatable: Collection[str]) -> None:
    descriptor = message.DESCRIPTOR
    for name in path.split("."):
        field = descriptor.fields_by_name.get(name) if descriptor is not None else None
        if field is None:
            raise InvalidArgument(f"the update mask names {path!r}: there is no such field")
        # Below a list or a map there are no fields.
        descriptor = None if field.is_repeated else field.message_type
    if path.partition(".")[0] not in updatable:
        raise InvalidArgument(f"{path!r} can't be updated; what can be is {', '.join(sorted(updatable))}")


def _take(target: Any, source: Any, field: str) -> None:
    target.ClearField(field)
    if field in {descriptor.name for descriptor, _ in source.ListFields()}:
        picked = type(source)()
        picked.CopyFrom(source)
        for descriptor, _ in source.ListFields():
            if descriptor.name != field:
                picked.ClearField(descriptor.name)
        target.MergeFrom(picked)
