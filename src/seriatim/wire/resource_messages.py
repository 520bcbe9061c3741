"""Resource messages: stored as JSON documents, updated by field mask, and limited in size."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, Parse

from seriatim.errors import InvalidArgument
from seriatim.wire.services import Subscription

M = TypeVar("M")


def to_document(message: Any, fields: Collection[str]) -> str | None:
    """The named fields of a message, as JSON; None if none of them is set."""
    kept = type(message)()
    kept.CopyFrom(message)
    for descriptor, _ in message.ListFields():
        if descriptor.name not in fields:
            kept.ClearField(descriptor.name)
    return MessageToJson(kept, preserving_proto_field_name=True, indent=None) if kept.ListFields() else None


def from_document(kind: type[M], document: str | None) -> M:
    """A message with the fields of a document. Unknown fields, from a newer version, are ignored."""
    message = kind()
    if document is not None:
        Parse(document, message, ignore_unknown_fields=True)
    return message


@lru_cache(1024)  # it is asked for every response
def is_exactly_once(document: str | None) -> bool:
    """Whether a subscription promises that no message is delivered again after its ack was confirmed."""
    return document is not None and bool(from_document(Subscription, document).enable_exactly_once_delivery)


def apply_mask(target: Any, source: Any, paths: Iterable[str], updatable: Collection[str]) -> None:
    """Copy the fields named by ``paths`` from one message to another of its type. Fields that are not set in ``source`` are
    cleared. Raises InvalidArgument for an unknown field, or one that may not be updated."""
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


MAX_TEXT_BYTES = 2048
MAX_ENTRIES = 100


def check_bounds(message: Any, outer: str = "") -> None:
    """Raise InvalidArgument if a text, list or map in a message, at any depth, is too long."""
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
