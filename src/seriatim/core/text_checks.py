"""What a message, a name and a reason may be. Every error here is the caller's and says which limit was met.

Rules
    - Whatever passes these checks can be kept by every store. They are made where something comes in, before anything changes.
    - Messages and names are refused when they can't be kept. Reasons and error texts are made to fit instead, because whoever
      reports an error must not get another one for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seriatim.core.options import shown
from seriatim.errors import InvalidArgument

MAX_MESSAGE_BYTES = 10 * 1024 * 1024
MAX_KEY_BYTES = 1024
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_NAME_BYTES = 1024
MAX_REASON_BYTES = 4096

_CUT = "…".encode()


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
    _check_short_text("Ordering key", key, MAX_KEY_BYTES)


def check_name(what: str, name: object) -> None:
    """Raise InvalidArgument unless ``name`` can name something, such as a topic; ``what`` says which name it is."""
    _check_short_text(what, name, MAX_NAME_BYTES)


def check_text(what: str, text: object) -> None:
    """Raise InvalidArgument unless ``text`` is text that can be kept, however long it is."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    _utf8(what, text)


def check_address(what: str, text: object) -> None:
    """Raise InvalidArgument unless ``text`` can be the address of a store, or the path of a file.

    Names of files need not be UTF-8: Python gives their other bytes as lone surrogates, and takes them back.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgument(f"{what} can't contain the character 0")
    _utf8(what, text, "surrogateescape")


def reason_of(reason: object) -> str | None:
    """A reason, or an error given as text or as an exception, as it is kept.

    What is not valid UTF-8 is escaped, and so is the character 0; what is longer than ``MAX_REASON_BYTES`` is cut.
    """
    if reason is None:
        return None
    if isinstance(reason, BaseException):
        reason = describe(reason)
    elif not isinstance(reason, str):
        raise InvalidArgument(f"A reason must be a str or an exception, not {type(reason).__name__}")
    kept = reason[:MAX_REASON_BYTES].replace("\0", "\\x00").encode(errors="backslashreplace")
    if len(kept) > MAX_REASON_BYTES or len(reason) > MAX_REASON_BYTES:
        return kept[: MAX_REASON_BYTES - len(_CUT)].decode(errors="ignore") + _CUT.decode()
    return kept.decode()


def describe(error: BaseException) -> str:
    """The type of an error and what it says, also when it fails to say anything."""
    return f"{type(error).__name__}: {said_by(error)}"


def said_by(error: BaseException) -> str:
    """What an error says, also when it fails to say anything."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - anything may go wrong in somebody else's __str__
        return "(it can't be shown)"


def _check_short_text(what: str, text: object, most: int) -> None:
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    if not text:
        raise InvalidArgument(f"{what} cannot be empty")
    if len(text) > most or (not text.isascii() and len(_utf8(what, text)) > most):
        raise InvalidArgument(f"{what} exceeds maximum length of {most} bytes")


def copy_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes that nobody else can change, still to be checked."""
    if not isinstance(attributes, Mapping):
        raise InvalidArgument(f"Attributes must be a mapping of str to str, not {type(attributes).__name__}")
    return dict(attributes)


def _check_attributes(attributes: Mapping[Any, Any]) -> int:
    """The bytes that attributes take."""
    total = 0
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"Attributes must be str to str, not {shown(name)} to {shown(value)}")
        name_size, value_size = len(_utf8("Attribute key", name)), len(_utf8("Attribute value", value))
        if not 0 < name_size <= MAX_ATTRIBUTE_KEY_BYTES:
            raise InvalidArgument(f"Attribute key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} bytes, not {name_size}")
        if value_size > MAX_ATTRIBUTE_VALUE_BYTES:
            raise InvalidArgument(
                f"Attribute value of {name!r} exceeds maximum length of {MAX_ATTRIBUTE_VALUE_BYTES} bytes"
            )
        total += name_size + value_size
    return total


def _utf8(what: str, text: str, errors: str = "strict") -> bytes:
    try:
        return text.encode(errors=errors)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8 text") from None
