"""What is said over the link, and how it looks as bytes.

::

    frame   size of the text (4 bytes), size of the bytes (4 bytes), text, bytes
    text    JSON: ["Ack", 1, ...], the name of a message and its fields
    bytes   what messages carry, one after the other, as it is

Rules
    - Both ends begin with ``Hello``. Versions must be the same: between processes of one machine that costs nobody anything.
    - ``Call`` is answered by ``Answer`` or ``Refusal`` with its id, in any order.
    - ``Attach`` opens a channel, numbered by the client. What is said about a lease names its channel, offset and token. An
      ack is answered when it is refused, and if that is wished for also when it is durable.
    - ``Bye`` of an owner that ends is answered with ``Bye``: nothing more is asked then. What was asked before is answered.
    - Bytes that are no frame, or a frame that is no message, end the connection. Nothing here waits for anything: bytes go in,
      messages come out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from seriatim import errors
from seriatim.core.limits import said_by
from seriatim.engine.consumer import Delivered
from seriatim.engine.link.codec import Blobs, Packed, codec_of
from seriatim.errors import InvalidArgument, ResourceExhausted, SeriatimError

VERSION = 3
"""Raise it whenever a message, or a class that one carries, changes in a way that the other end would not understand."""

MAX_FRAME = 64 * 1024 * 1024
"""How large a frame may be: a few messages of the largest size."""

_SIZES = struct.Struct("!II")


class Hello(NamedTuple):
    version: int
    pid: int


class Clock(NamedTuple):
    """What the owner's monotonic clock says; the client's may count from somewhere else."""

    time: float


class Call(NamedTuple):
    id: int
    verb: str
    arguments: Packed


class Answer(NamedTuple):
    id: int
    value: Packed


class Refusal(NamedTuple):
    """The answer to a call or an ack that failed."""

    id: int
    error: str
    text: str


class Attach(NamedTuple):
    channel: int
    subscription: str
    max_messages: int
    max_bytes: float
    ack_deadline: float | None = None


class Deliver(NamedTuple):
    """Messages, and when they were sent by the owner's clock: a client that was stopped may read them much later."""

    channel: int
    ack_deadline: float
    delivered: list[Delivered]
    sent: float


class Fence(NamedTuple):
    """A lease is lost."""

    channel: int
    token: int


class Trouble(NamedTuple):
    """An error that a consumer must hear of."""

    channel: int
    error: str
    text: str


class Ack(NamedTuple):
    channel: int
    offset: int
    token: int
    id: int
    tell: bool


class Acks(NamedTuple):
    """Acks that were said at about the same time."""

    acks: list[Ack]


class Durable(NamedTuple):
    """The answer to acks."""

    ids: list[int]


class Nack(NamedTuple):
    channel: int
    offset: int
    token: int
    delay: float | None
    error: str | None


class Extend(NamedTuple):
    channel: int
    offset: int
    token: int
    seconds: float


class Stop(NamedTuple):
    channel: int


class Detach(NamedTuple):
    channel: int


class Bye(NamedTuple):
    """Nothing more will be asked, or should be."""


_Questions: TypeAlias = Call | Attach | Acks | Nack | Extend | Stop | Detach
_Answers: TypeAlias = Clock | Answer | Refusal | Deliver | Fence | Trouble | Durable
Message: TypeAlias = Hello | _Questions | _Answers | Bye

_MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}


class Malformed(Exception):
    """The other end does not speak our language."""


def encode(message: Message) -> bytes:
    """The frame of a message. Raises ResourceExhausted when it would be too large."""
    blobs: list[bytes] = []
    text = json.dumps(
        [type(message).__name__, *codec_of(type(message)).pack(message, blobs)], separators=(",", ":")
    ).encode("ascii")
    size = sum(map(len, blobs))
    if len(text) + size > MAX_FRAME:
        raise ResourceExhausted(
            f"{(len(text) + size) >> 20} MiB do not fit into one frame of {MAX_FRAME >> 20} MiB: ask for less at once"
        )
    return b"".join((_SIZES.pack(len(text), size), text, *blobs))


class Decoder:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take what came in, and give every message that is complete. Raises Malformed."""
        self._data += data
        start = 0
        try:
            while (frame := self._frame(start)) is not None:
                message, start = frame
                yield message
        finally:
            # Once for all of them: taking each from the front would move the rest every time.
            del self._data[:start]

    def _frame(self, start: int) -> tuple[Message, int] | None:
        """The message that begins at ``start`` and where it ends; None while it is not complete."""
        if len(self._data) < start + _SIZES.size:
            return None
        text, blobs = _SIZES.unpack_from(self._data, start)
        if text + blobs > MAX_FRAME:
            raise Malformed(f"a frame of {text + blobs} bytes")
        middle = start + _SIZES.size + text
        if len(self._data) < middle + blobs:
            return None
        aside = bytes(memoryview(self._data)[middle : middle + blobs])
        return _decode(self._data[middle - text : middle], memoryview(aside)), middle + blobs


def _decode(text: bytearray, blobs: memoryview) -> Message:
    try:
        name, *values = json.loads(text)
        message: Message = codec_of(_MESSAGES[name]).unpack(values, Blobs(blobs))
    except (ValueError, TypeError, KeyError, RecursionError, InvalidArgument) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from error
    return message


def text_of(error: BaseException) -> tuple[str, str]:
    """How an error is said: by its type and its text."""
    return type(error).__name__, said_by(error)


def error_of(name: str, text: str) -> SeriatimError:
    """An error that was raised at the other end. One that is not of our tree becomes its root."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SeriatimError):
        return kind(text)
    return SeriatimError(f"{name}: {text}")
