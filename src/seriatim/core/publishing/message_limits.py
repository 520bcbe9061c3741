"""The size limits of a message and its parts.

Every store can keep what passes these checks. They run when a message is accepted, before anything changes; the error
names the exceeded limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seriatim.core.text_checks import check_short_text, utf8_bytes
from seriatim.core.validation import shown
from seriatim.errors import InvalidArgument

MAX_MESSAGE_BYTES = 10 * 1024 * 1024
MAX_KEY_BYTES = 1024
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024


def check_message(
    data: object, key: object, attributes: Mapping[str, str] | None, dedup_id: object | None = None
) -> None:
    """Raise InvalidArgument unless a message with these parts can be published."""
    if not isinstance(data, bytes):
        refusal = InvalidArgument("Message data must be bytes")
        refusal.add_note(f"It is of type {type(data).__name__}: encode it first, or publish JSON with 'publish_json'.")
        raise refusal
    # Nearly every key and id is short and ASCII, and needs no call.
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= MAX_KEY_BYTES and key.isascii()):
        check_key(key)
    if dedup_id is not None and not (
        isinstance(dedup_id, str) and 0 < len(dedup_id) <= MAX_KEY_BYTES and dedup_id.isascii()
    ):
        check_short_text("dedup_id", dedup_id, MAX_KEY_BYTES)
    size = len(data) + (_check_attributes(attributes) if attributes else 0)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument("Message size exceeds maximum of 10MB")


def check_key(key: object) -> None:
    """Raise InvalidArgument unless ``key`` is a valid ordering key."""
    check_short_text("Ordering key", key, MAX_KEY_BYTES)


def copy_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """A private copy of attributes, which is still to be checked."""
    if not isinstance(attributes, Mapping):
        raise InvalidArgument(f"Attributes must be a mapping of str to str, not {type(attributes).__name__}")
    return dict(attributes)


def _check_attributes(attributes: Mapping[Any, Any]) -> int:
    """The size of attributes in bytes."""
    total = 0
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"Attributes must be str to str, not {shown(name)} to {shown(value)}")
        # Nearly all are ASCII: their bytes are their characters.
        name_size = len(name) if name.isascii() else len(utf8_bytes("Attribute key", name))
        value_size = len(value) if value.isascii() else len(utf8_bytes("Attribute value", value))
        if not 0 < name_size <= MAX_ATTRIBUTE_KEY_BYTES:
            raise InvalidArgument(f"Attribute key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} bytes, not {name_size}")
        if value_size > MAX_ATTRIBUTE_VALUE_BYTES:
            raise InvalidArgument(
                f"Attribute value of {name!r} exceeds maximum length of {MAX_ATTRIBUTE_VALUE_BYTES} bytes"
            )
        total += name_size + value_size
    return total
