"""Resources as text: what the store keeps of a message besides what the engine itself knows."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, Parse

from seriatim.wire.services import Subscription

M = TypeVar("M")


def to_document(message: Any, fields: Collection[str]) -> str | None:
    """The named fields of a message, as JSON; None when none of them is set."""
    kept = type(message)()
    kept.CopyFrom(message)
    for descriptor, _ in message.ListFields():
        if descriptor.name not in fields:
            kept.ClearField(descriptor.name)
    return MessageToJson(kept, preserving_proto_field_name=True, indent=None) if kept.ListFields() else None


def from_document(kind: type[M], document: str | None) -> M:
    """A message with what a document says. What only a newer version can have written is passed over."""
    message = kind()
    if document is not None:
        Parse(document, message, ignore_unknown_fields=True)
    return message


@lru_cache(1024)  # it is asked for every response
def is_exactly_once(document: str | None) -> bool:
    """Whether a subscription promises that no message is delivered again after its ack was confirmed."""
    return document is not None and bool(from_document(Subscription, document).enable_exactly_once_delivery)
