"""Limits on what a client may have kept: every text, list and map of a resource."""

from __future__ import annotations

from typing import Any

from seriatim.errors import InvalidArgument

MAX_TEXT_BYTES = 2048
MAX_ENTRIES = 100


def check_bounds(message: Any, outer: str = "") -> None:
    """Raise InvalidArgument when a text, list or map in a message, at any depth, is too long."""
    for descriptor, value in message.ListFields():
        name = f"{outer}{descriptor.name}"
        if not descriptor.is_repeated:
            _check_value(name, descriptor, value)
            continue
        if len(value) > MAX_ENTRIES:
            raise InvalidArgument(f"{name} has {len(value)} entries: {MAX_ENTRIES} are allowed")
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            key, item = (descriptor.message_type.fields_by_name[part] for part in ("key", "value"))
            for one in value:
                _check_value(name, key, one)
                _check_value(name, item, value[one])
        else:
            for one in value:
                _check_value(name, descriptor, one)


def _check_value(name: str, descriptor: Any, value: Any) -> None:
    if descriptor.message_type is not None:
        check_bounds(value, f"{name}.")
    elif isinstance(value, str | bytes):
        size = len(value.encode() if isinstance(value, str) else value)
        if size > MAX_TEXT_BYTES:
            raise InvalidArgument(f"{name} has {size} bytes: {MAX_TEXT_BYTES} are allowed")
