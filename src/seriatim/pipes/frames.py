"""Frames of a pipe as bytes, and back.

Rules
    - A frame begins with one byte: the version of this format in the upper half, the kind of frame in the lower.
    - Numbers are written seven bits to a byte, the lowest first, and have at most ``MAX_BITS`` bits.
    - The lengths of a frame's messages are written before the messages, each with as many bytes (1, 2 or 4) as the
      longest needs.
    - Anything that is not exactly a frame is rejected: ``decode`` returns None, and never raises. A frame may not announce
      more than it contains, so the cost of reading it is bounded by its length.
    - A *sealed* frame carries a checksum. With a secret only those who know it can make one.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

from seriatim.core.pipes.protocol import Confirm, Data, Frame, Hello, Welcome
from seriatim.core.pipes.receiver import MAX_RANGES

VERSION = 2
MAX_BITS = 112
SEAL_BYTES = 8
HEAD_BYTES = 128
"""At most this many bytes of a data frame are neither messages nor their lengths."""

_HELLO, _WELCOME, _DATA, _CONFIRM, _ASIDE = range(1, 6)
_WIDTHS = {1: "B", 2: "H", 4: "I"}


class Aside(bytes):
    """A frame that a pipe passes through unread: confirmations of an enclosing pipe."""


def encode(frame: Frame | Aside) -> bytes:
    if isinstance(frame, Data):
        return _encode_data(frame)
    if isinstance(frame, Aside):
        return bytes([_head(_ASIDE)]) + frame
    if isinstance(frame, Hello):
        return _pack(_HELLO, frame)
    if isinstance(frame, Welcome):
        return _pack(_WELCOME, frame)
    sender, receiver, expected, seen, missing, stamp, echo = frame
    ranges = [number for lo, hi in missing for number in (lo - expected, hi - lo)]
    return _pack(_CONFIRM, [sender, receiver, expected, seen - expected, stamp, echo, *ranges])


def decode(data: bytes) -> Frame | Aside | None:
    """The frame, or None if it is invalid."""
    if not data or data[0] >> 4 != VERSION:
        return None
    kind = data[0] & 15
    if kind == _DATA:
        return _decode_data(data)
    if kind == _ASIDE:
        return Aside(data[1:])
    numbers = _unpack(data)
    if numbers is None:
        return None
    if kind == _HELLO and len(numbers) == 2:
        return Hello(*numbers)
    if kind == _WELCOME and len(numbers) == 4:
        return Welcome(*numbers) if numbers[2] else None
    return _decode_confirm(numbers) if kind == _CONFIRM else None


def seal(frame: bytes, secret: bytes = b"") -> bytes:
    """The frame with a checksum in front."""
    return blake2b(frame, digest_size=SEAL_BYTES, key=secret).digest() + frame


def unseal(sealed: bytes, secret: bytes = b"") -> bytes | None:
    """The frame, or None when its checksum is wrong."""
    frame = sealed[SEAL_BYTES:]
    expected = blake2b(frame, digest_size=SEAL_BYTES, key=secret).digest()
    return frame if hmac.compare_digest(sealed[:SEAL_BYTES], expected) else None


# --- data -----------------------------------------------------------------------------------------------------------


def _encode_data(frame: Data) -> bytes:
    sender, receiver, floor, first, messages, stamp, echo = frame
    lengths = list(map(len, messages))
    longest = max(lengths, default=0)
    width = 1 if longest < 1 << 8 else 2 if longest < 1 << 16 else 4
    head = _pack(_DATA, [sender, receiver, floor, first - floor, stamp, echo, len(messages), width])
    return b"".join((head, struct.pack(f">{len(lengths)}{_WIDTHS[width]}", *lengths), *messages))


def _decode_data(data: bytes) -> Data | None:
    read = _read(data, 1, 8)
    if read is None:
        return None
    (sender, receiver, floor, ahead, stamp, echo, count, width), at = read
    if width not in _WIDTHS or at + count * width > len(data):
        return None
    lengths = struct.unpack_from(f">{count}{_WIDTHS[width]}", data, at)
    begin = at + count * width
    if begin + sum(lengths) != len(data):
        return None
    messages = tuple([data[lo:hi] for lo, hi in pairwise(accumulate(lengths, initial=begin))])
    return Data(sender, receiver, floor, floor + ahead, messages, stamp, echo)


def _decode_confirm(numbers: Sequence[int]) -> Confirm | None:
    if len(numbers) < 6 or len(numbers) % 2 or len(numbers) > 6 + 2 * MAX_RANGES:
        return None
    sender, receiver, expected, ahead, stamp, echo, *ranges = numbers
    missing = tuple((expected + lo, expected + lo + size) for lo, size in zip(ranges[::2], ranges[1::2], strict=True))
    return Confirm(sender, receiver, expected, expected + ahead, missing, stamp, echo)


# --- numbers --------------------------------------------------------------------------------------------------------


def _head(kind: int) -> int:
    return VERSION << 4 | kind


def _pack(kind: int, numbers: Sequence[int]) -> bytes:
    packed = bytearray([_head(kind)])
    for number in numbers:
        rest = number
        while rest > 127:
            packed.append(rest & 127 | 128)
            rest >>= 7
        packed.append(rest)
    return bytes(packed)


def _read(data: bytes, at: int, count: int) -> tuple[list[int], int] | None:
    """``count`` numbers from ``at`` on, and where they end; None if there are fewer."""
    numbers: list[int] = []
    number = shift = 0
    while len(numbers) < count:
        if at >= len(data) or shift >= MAX_BITS:
            return None
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    return numbers, at


def _unpack(data: bytes) -> list[int] | None:
    """All numbers of a frame that consists of numbers."""
    if data[-1] > 127:
        return None
    count = sum(byte < 128 for byte in data[1:])
    read = _read(data, 1, count)
    return None if read is None else read[0]
