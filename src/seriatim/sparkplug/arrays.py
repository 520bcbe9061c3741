"""Values of Sparkplug's array types, which travel packed in bytes.

Rules (the specification's section on array types)
    - Numbers stand one after another, little-endian, each as wide as its type. A date is 64 bits of milliseconds.
    - Booleans: how many there are in 32 bits, then one bit each, the highest of a byte first.
    - Texts are UTF-8, each ended by a zero byte.
    - Bytes that don't fit their type, or more than ``MAX_ITEMS`` items, are no array: ``unpack_array`` returns None, and the
      value stays what it is, bytes.
"""

from __future__ import annotations

import struct
from math import isfinite

MAX_ITEMS = 65_536
"""The longest array that becomes a list. A longer one would be many times its size as JSON."""

_FORMATS = {
    "Int8Array": "b",
    "Int16Array": "h",
    "Int32Array": "i",
    "Int64Array": "q",
    "UInt8Array": "B",
    "UInt16Array": "H",
    "UInt32Array": "I",
    "UInt64Array": "Q",
    "FloatArray": "f",
    "DoubleArray": "d",
    "DateTimeArray": "q",
}
_COUNT_BYTES = 4


def unpack_array(data: bytes, type_name: str) -> list[int | float | bool | str] | None:
    """The items, ready for JSON; None when this is no array of that type."""
    if type_name in _FORMATS:
        return _numbers(data, _FORMATS[type_name])
    if type_name == "BooleanArray":
        return _booleans(data)
    return _texts(data) if type_name == "StringArray" else None


def _numbers(data: bytes, code: str) -> list[int | float | bool | str] | None:
    count, rest = divmod(len(data), struct.calcsize(f"<{code}"))
    if rest or count > MAX_ITEMS:
        return None
    numbers = struct.unpack(f"<{count}{code}", data)
    return [number if isfinite(number) else str(number) for number in numbers]


def _booleans(data: bytes) -> list[int | float | bool | str] | None:
    if len(data) < _COUNT_BYTES:
        return None
    count, bits = int.from_bytes(data[:_COUNT_BYTES], "little"), data[_COUNT_BYTES:]
    if count > MAX_ITEMS or len(bits) != (count + 7) // 8:
        return None
    return [bool(bits[number // 8] & 0x80 >> number % 8) for number in range(count)]


def _texts(data: bytes) -> list[int | float | bool | str] | None:
    if data and not data.endswith(b"\0"):
        return None
    parts = data.split(b"\0")[:-1]
    if len(parts) > MAX_ITEMS:
        return None
    return [part.decode("utf-8", "backslashreplace") for part in parts]
