"""Columns of numbers as bytes, little-endian on every machine, for packs and settlements."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from seriatim.errors import DamagedStore


def encode_column(code: str, values: Iterable[float]) -> bytes:
    """The values one after another; ``code`` as in ``array.array``: Q, I, H, d. Bytes are taken as values of this machine."""
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def decode_column(code: str, blob: bytes | memoryview) -> array[int]:
    """The inverse of ``encode_column``."""
    column: array[int] = array(code)
    if len(blob) % column.itemsize:
        raise DamagedStore(f"{len(blob)} bytes are not a whole number of values of {column.itemsize} bytes")
    column.frombytes(blob)
    if sys.byteorder == "big":
        column.byteswap()
    return column
