"""Checks of names, texts and addresses, and shortening of error texts.

Rules
    - Every store can keep what passes these checks. They run when a value is accepted, before anything changes.
    - Invalid names are refused. Reasons and error texts are shortened instead, because reporting an error must not
      cause another one.
"""

from __future__ import annotations

from seriatim.errors import InvalidArgument

MAX_NAME_BYTES = 1024
MAX_REASON_BYTES = 4096

_CUT = "…".encode()


def check_name(what: str, name: object) -> None:
    """Raise InvalidArgument unless ``name`` is a valid name, such as that of a topic; ``what`` describes it."""
    check_short_text(what, name, MAX_NAME_BYTES)


def check_text(what: str, text: object) -> None:
    """Raise InvalidArgument unless ``text`` is valid text, of any length."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    utf8_bytes(what, text)


def check_address(what: str, text: object) -> None:
    """Raise InvalidArgument unless ``text`` can be the address of a store, or the path of a file.

    File names need not be UTF-8: Python represents other bytes as lone surrogates.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgument(f"{what} can't contain the character 0")
    utf8_bytes(what, text, "surrogateescape")


def reason_of(reason: object) -> str | None:
    """A reason, or an error given as text or as an exception, as it is stored.

    Invalid UTF-8 and the character 0 are escaped; text beyond ``MAX_REASON_BYTES`` is cut off.
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
    """The type and message of an error, even if getting the message raises."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """The message of an error, even if getting it raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - anything may go wrong in somebody else's __str__
        return "(it can't be shown)"


def check_short_text(what: str, text: object, max_bytes: int) -> None:
    """Raise InvalidArgument unless ``text`` has from 1 to ``max_bytes`` bytes of UTF-8."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    if not text:
        raise InvalidArgument(f"{what} cannot be empty")
    if len(text) > max_bytes or (not text.isascii() and len(utf8_bytes(what, text)) > max_bytes):
        raise InvalidArgument(f"{what} exceeds maximum length of {max_bytes} bytes")


def utf8_bytes(what: str, text: str, errors: str = "strict") -> bytes:
    """``text`` as bytes; InvalidArgument if it can't be encoded."""
    try:
        return text.encode(errors=errors)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8 text") from None
