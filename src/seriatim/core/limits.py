"""What a message may be. Every error here is the caller's (INVALID_ARGUMENT, 3) and says which limit was met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seriatim.errors import InvalidArgument

MAX_MESSAGE_BYTES = 10 * 1024 * 1024
MAX_KEY_BYTES = 1024
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024


def check_message(data: object, key: object, attributes: Mapping[str, str] | None) -> None:
    """Raise InvalidArgument unless a message with these parts can be published."""
    if not isinstance(data, bytes):
        raise InvalidArgument("Message data must be bytes")
    if key is not None:
        check_key(key)
    size = len(data) + (_check_attributes(attributes) if attributes else 0)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument("Message size exceeds maximum of 10MB")


def check_key(key: object) -> None:
    """Raise InvalidArgument unless ``key`` can order messages."""
    if not isinstance(key, str):
        raise InvalidArgument(f"Ordering key must be a str, not {type(key).__name__}")
    if not key:
        raise InvalidArgument("Ordering key cannot be empty")
    if len(key) > MAX_KEY_BYTES or len(_utf8("Ordering key", key)) > MAX_KEY_BYTES:
        raise InvalidArgument(f"Ordering key exceeds maximum length of {MAX_KEY_BYTES} bytes")


def _check_attributes(attributes: Mapping[Any, Any]) -> int:
    """The bytes that attributes take."""
    total = 0
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"Attributes must be str to str, not {name!r} to {value!r}")
        name_size, value_size = len(_utf8("Attribute key", name)), len(_utf8("Attribute value", value))
        if not 0 < name_size <= MAX_ATTRIBUTE_KEY_BYTES:
            raise InvalidArgument(f"Attribute key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} bytes, not {name_size}")
        if value_size > MAX_ATTRIBUTE_VALUE_BYTES:
            raise InvalidArgument(
                f"Attribute value of {name!r} exceeds maximum length of {MAX_ATTRIBUTE_VALUE_BYTES} bytes"
            )
        total += name_size + value_size
    return total


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8 text") from None
