"""Numbers as bytes: what packs and settlements keep many of, little-endian on every machine."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from seriatim.errors import DamagedStore


def encode_column(code: str, values: Iterable[float]) -> bytes:
    """The values one after another; ``code`` as in ``array.array``: Q, I, H, d. Bytes are values of this machine already."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def decode_column(code: str, blob: bytes | memoryview) -> array[int]:
    """What ``encode_column`` was given."""
    column: array[int] = array(code)
    if len(blob) % column.itemsize:
        raise DamagedStore(f"{len(blob)} bytes are not a whole number of values of {column.itemsize} bytes")
    column.frombytes(blob)
    if sys.byteorder == "big":
        column.byteswap()
    return column
