"""Columns of numbers as bytes, little-endian on every machine, for packs and settlements; and bytes with a checksum."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from zlib import crc32

from seriatim.errors import DamagedStore

CHECKSUM_BYTES = 4


def encode_column(code: str, values: Iterable[float]) -> bytes:
    """The values one after another; ``code`` as in ``array.array``: Q, I, H, d. Bytes are taken as values of this machine."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def seal(blob: bytes) -> bytes:
    """With a checksum behind it."""
    return blob + crc32(blob).to_bytes(CHECKSUM_BYTES, "little")


def unseal(blob: bytes, what: str, unit: int, rest: int = 0) -> bytes:
    """What was sealed: ``rest`` bytes more than whole units. Earlier versions stored it as it is."""
    if len(blob) % unit == rest:
        return blob
    content, checksum = blob[:-CHECKSUM_BYTES], blob[-CHECKSUM_BYTES:]
    if len(content) % unit != rest or crc32(content).to_bytes(CHECKSUM_BYTES, "little") != checksum:
        raise DamagedStore(
            f"{what}: {len(blob)} bytes are not a whole number of values of {unit} bytes with their checksum"
        )
    return content


def decode_column(code: str, blob: bytes | memoryview) -> array[int]:
    """The inverse of ``encode_column``."""
    column: array[int] = array(code)
    if len(blob) % column.itemsize:
        raise DamagedStore(f"{len(blob)} bytes are not a whole number of values of {column.itemsize} bytes")
    column.frombytes(blob)
    if sys.byteorder == "big":
        column.byteswap()
    return column
