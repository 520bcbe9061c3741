"""Keys as bytes, and their hashes.

State stores a key as its bytes: texts as they are, anything else as the bytes of its fixed width. A hash is computed
for all keys at once, eight bytes of every key at a time. It only locates keys: a match is compared **whole**. Hashes
are stored, so the function must not change.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seriatim.errors import DamagedStore, InvalidArgument
from seriatim.spark.kernel.arrays import Ints

Hashes: TypeAlias = npt.NDArray[np.uint64]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
SHIFT = np.uint64(29)
WORD = 8


def check_key_type(kind: pa.DataType) -> None:
    """Keys must be equal to themselves, and compared whole: no floats (NaN is not equal to NaN), no nested types."""
    types = pa.types
    fixed = (types.is_integer, types.is_boolean, types.is_temporal, types.is_decimal)
    if not (_is_text(kind) or any(is_kind(kind) for is_kind in fixed)):
        raise InvalidArgument(
            f"a key can't be of type {kind}: use strings, bytes, whole numbers, decimals, dates or times"
        )


def require_same_keys(now: pa.DataType, before: pa.DataType) -> None:
    """Keys of another type would all be new."""
    if now != before:
        raise InvalidArgument(f"keys are of type {now} now, and were {before} before: cast them")


def raw_keys(keys: pa.Array) -> pa.Array:
    """Non-null keys as bytes."""
    if _is_text(keys.type):
        wide = np.int64 if _is_large(keys.type) else np.int32
        offsets = np.frombuffer(keys.buffers()[1] or bytes(8), wide)[keys.offset : keys.offset + len(keys) + 1]
        return raw_of(offsets.astype(np.int64), keys.buffers()[2])
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.uint8())
    width = keys.type.bit_width // 8
    return raw_of((np.arange(len(keys) + 1, dtype=np.int64) + keys.offset) * width, keys.buffers()[1])


def raw_of(offsets: Ints, data: object) -> pa.Array:
    """The bytes between each offset and the next."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(b"" if data is None else data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def keys_of(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode keys from bytes."""
    if _is_text(kind):
        return raw.cast(kind)
    _, _, data = bytes_of(raw)
    stored = pa.uint8() if pa.types.is_boolean(kind) else kind
    if len(data) * 8 != len(raw) * stored.bit_width:
        raise DamagedStore(f"{len(raw)} keys of type {kind} do not have {len(data)} bytes")
    keys = pa.Array.from_buffers(stored, len(raw), [None, pa.py_buffer(data)])
    return keys.cast(kind)


def bytes_of(raw: pa.Array) -> tuple[Ints, Ints, npt.NDArray[np.uint8]]:
    """The start and length of each value, and the bytes of all of them, concatenated."""
    offsets = np.frombuffer(raw.buffers()[1] or bytes(8), np.int64)[raw.offset : raw.offset + len(raw) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(raw.buffers()[2] or b"", np.uint8)[first:last]
    return offsets[:-1] - first, np.diff(offsets), data


def hash_keys(keys: pa.Array) -> Hashes:
    """A 64-bit hash of each key."""
    return hash_raw(raw_keys(keys))


def hash_raw(raw: pa.Array) -> Hashes:
    starts, lengths, data = bytes_of(raw)
    # A word may extend beyond the last key: those bytes are masked out, but they have to exist.
    padded = np.zeros(len(data) + WORD, np.uint8)
    padded[:-WORD] = data
    words: Hashes = np.ndarray((len(data) + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    hashes = _mix(lengths.astype(np.uint64))
    longest = int(lengths.max(initial=0))
    if (lengths == longest).all():  # adjacent keys of one length: no index lookups, and one mask for all
        for begin in range(0, longest, WORD):
            hashes ^= words[begin : len(raw) * longest : longest] & _mask(np.array(min(longest - begin, WORD)))
            hashes = _mix(hashes)
        return hashes
    for begin in range(0, longest, WORD):
        inside = np.flatnonzero(lengths > begin)
        word = words[starts[inside] + begin] & _mask(np.minimum(lengths[inside] - begin, WORD))
        hashes[inside] = _mix(hashes[inside] ^ word)
    return hashes


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _mask(rest: Ints) -> Hashes:
    """Keeps the lowest ``rest`` bytes of a little-endian word."""
    drop = (np.uint64(WORD) - rest.astype(np.uint64)) * np.uint64(8)
    mask: Hashes = np.uint64(0xFFFFFFFFFFFFFFFF) >> drop
    return mask


def _mix(words: Hashes) -> Hashes:
    """In place."""
    words ^= words >> SHIFT
    words *= MULTIPLIER
    words ^= words >> SHIFT
    return words
