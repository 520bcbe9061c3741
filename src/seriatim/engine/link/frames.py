"""The frames of the link, and their encoding.

::

    frame   size of the text (4 bytes), size of the bytes (4 bytes), text, bytes
    text    JSON: ["Ack", 1, ...], the type of the frame and its fields
    bytes   the binary fields, one after the other

Rules
    - Both ends begin with ``Hello``, and their versions must be the same: both processes run on one machine.
    - ``Call`` is answered by ``Answer`` or ``Failure`` with its id, in any order.
    - ``Attach`` opens a channel, numbered by the client. Acks, nacks and extensions name the channel, offset and token of their
      lease. An ack is answered when it is refused, and on request also when it is durable.
    - An owner that shuts down sends ``Bye``. The client answers ``Bye`` and makes no more calls; earlier ones are answered.
    - Bytes that are not a frame end the connection. There is no IO here: bytes go in, frames come out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from seriatim import errors
from seriatim.core.text_checks import message_of
from seriatim.engine.consumer import Delivered
from seriatim.engine.link.codec import Blobs, Packed, codec_of
from seriatim.errors import InvalidArgument, ResourceExhausted, SeriatimError

VERSION = 6
"""Raise it whenever a frame, or a class that one carries, changes incompatibly."""

MAX_FRAME = 64 * 1024 * 1024
"""The largest size of a frame: a few messages of the largest size."""

_SIZES = struct.Struct("!II")


class Hello(NamedTuple):
    version: int
    pid: int


class Clock(NamedTuple):
    """The time of the owner's monotonic clock; the client's may start elsewhere."""

    time: float


class Call(NamedTuple):
    id: int
    verb: str
    arguments: Packed


class Answer(NamedTuple):
    id: int
    value: Packed


class Failure(NamedTuple):
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
    batch: int = 1


class Deliver(NamedTuple):
    """Messages, and when they were sent by the owner's clock: a client that was stopped may read them much later. With
    ``continues``, the next frame has more of the batch that the last one belongs to."""

    channel: int
    ack_deadline: float
    delivered: list[Delivered]
    sent: float
    continues: bool = False


class Fence(NamedTuple):
    """A lease is lost."""

    channel: int
    token: int


class ConsumerError(NamedTuple):
    """An error to report to a consumer."""

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
    """Acks of one turn of the event loop."""

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
    somewhere: bool = False  # in a batch that begins with this message


class GiveUp(NamedTuple):
    """Dead-letter a message at once, with ``rest`` together with what waits of its key."""

    channel: int
    offset: int
    token: int
    reason: str | None
    rest: bool


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
    """No more calls follow, or no more are accepted."""


_Questions: TypeAlias = Call | Attach | Acks | Nack | GiveUp | Extend | Stop | Detach
_Answers: TypeAlias = Clock | Answer | Failure | Deliver | Fence | ConsumerError | Durable
Frame: TypeAlias = Hello | _Questions | _Answers | Bye

_FRAMES: dict[str, type[Frame]] = {kind.__name__: kind for kind in Frame.__args__}


class MalformedFrame(InvalidArgument):
    """The other end sent bytes that are not a frame of this protocol."""


def encode(frame: Frame) -> bytes:
    """The bytes of a frame. Raises ResourceExhausted if it is too large."""
    blobs: list[bytes] = []
    text = json.dumps([type(frame).__name__, *codec_of(type(frame)).pack(frame, blobs)], separators=(",", ":")).encode(
        "ascii"
    )
    size = sum(map(len, blobs))
    if len(text) + size > MAX_FRAME:
        raise ResourceExhausted(
            f"{(len(text) + size) >> 20} MiB do not fit into one frame of {MAX_FRAME >> 20} MiB: ask for less at once"
        )
    return b"".join((_SIZES.pack(len(text), size), text, *blobs))


class Decoder:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes, and yield every complete frame. Raises MalformedFrame."""
        self._data += data
        start = 0
        try:
            while (frame := self._frame(start)) is not None:
                message, start = frame
                yield message
        finally:
            # Once for all of them: taking each from the front would move the rest every time.
            del self._data[:start]

    def _frame(self, start: int) -> tuple[Frame, int] | None:
        """The frame that begins at ``start``, and its end; None while it is incomplete."""
        if len(self._data) < start + _SIZES.size:
            return None
        text, blobs = _SIZES.unpack_from(self._data, start)
        if text + blobs > MAX_FRAME:
            raise MalformedFrame(f"a frame of {text + blobs} bytes")
        middle = start + _SIZES.size + text
        if len(self._data) < middle + blobs:
            return None
        aside = bytes(memoryview(self._data)[middle : middle + blobs])
        return _decode(self._data[middle - text : middle], memoryview(aside)), middle + blobs


def _decode(text: bytearray, blobs: memoryview) -> Frame:
    try:
        name, *values = json.loads(text)
        frame: Frame = codec_of(_FRAMES[name]).unpack(values, Blobs(blobs))
    except (ValueError, TypeError, KeyError, RecursionError, InvalidArgument) as error:
        raise MalformedFrame(f"{type(error).__name__}: {error}") from error
    return frame


def text_of(error: BaseException) -> tuple[str, str]:
    """An error as its type and its text."""
    return type(error).__name__, message_of(error)


def error_of(name: str, text: str) -> SeriatimError:
    """An error that was raised at the other end. One outside our tree becomes a SeriatimError."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SeriatimError):
        return kind(text)
    return SeriatimError(f"{name}: {text}")
