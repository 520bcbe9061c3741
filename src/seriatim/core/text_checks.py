"""Which names, texts and addresses are accepted, and how error texts are made to fit.

Rules
    - Whatever passes these checks can be kept by every store. They are made where something comes in, before anything changes.
    - Names are refused when they can't be kept. Reasons and error texts are made to fit instead, because whoever reports an
      error must not get another one for it.
"""

from __future__ import annotations

from seriatim.errors import InvalidArgument

MAX_NAME_BYTES = 1024
MAX_REASON_BYTES = 4096

_CUT = "…".encode()


def check_name(what: str, name: object) -> None:
    """Raise InvalidArgument unless ``name`` can name something, such as a topic; ``what`` says which name it is."""
    check_short_text(what, name, MAX_NAME_BYTES)


def check_text(what: str, text: object) -> None:
    """Raise InvalidArgument unless ``text`` is text that can be kept, however long it is."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    utf8_bytes(what, text)


def check_address(what: str, text: object) -> None:
    """Raise InvalidArgument unless ``text`` can be the address of a store, or the path of a file.

    Names of files need not be UTF-8: Python gives their other bytes as lone surrogates, and takes them back.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgument(f"{what} can't contain the character 0")
    utf8_bytes(what, text, "surrogateescape")


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
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """What an error says, also when it fails to say anything."""
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
    """``text`` as bytes; InvalidArgument where that can't be."""
    try:
        return text.encode(errors=errors)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8 text") from None
