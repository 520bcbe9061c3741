"""Finds keys: which slot of a partition a key has.

Theory of operation
-------------------
Each key gets a 64-bit hash, computed for all keys of a batch at once, eight bytes of every key at a time. The hash
leads into an open table (linear probing, at most half full) of slot numbers, probed for all keys at once until every
one has met an equal hash or an empty place. What was found is then compared **whole**: a hash alone never decides. Keys
that share their hash with another are looked up one by one in a dict; there are none outside tests.

The place in the table is the *upper* part of the hash. A batch brings its keys in the order of their hashes (``intake``), and
new ones get their slots in that order, so table, slots and all that is kept by slot are walked through nearly from front to
back. With a million keys memory would otherwise be waited for at each of them.

Building such an index costs once what Arrow's ``index_in`` costs for every batch, because Arrow can't keep its table.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.errors import InvalidArgument
from seriatim.spark.kernel.arrays import Ints, arange

Hashes: TypeAlias = npt.NDArray[np.uint64]

EMPTY = -1
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
SHIFT = np.uint64(29)
WORD = 8


class KeyIndex:
    """The slots of the keys of one partition, which are numbered in the order in which they were added."""

    def __init__(self, keys: pa.Array) -> None:
        self.keys = keys.slice(0, 0)
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._table: Ints = np.full(16, EMPTY, np.int64)
        self._twins: dict[Any, int] = {}
        self.add(keys)

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: pa.Array) -> Ints:
        """The slot of each key, or -1."""
        if not len(self) or not len(keys):
            return np.full(len(keys), EMPTY, np.int64)
        slots = self._probe(hash_keys(keys))
        found = np.flatnonzero(slots >= 0)
        asked = keys if len(found) == len(keys) else keys.take(pa.array(found))
        equal = pc.equal(self.keys.take(pa.array(slots[found])), asked)
        other = found[~equal.to_numpy(zero_copy_only=False)]
        for place in other:
            slots[place] = self._twins.get(keys[int(place)].as_py(), EMPTY)
        return slots

    def add(self, keys: pa.Array) -> None:
        """Give the next slots to keys that are not there yet."""
        if not len(keys):
            return
        hashes = hash_keys(keys)
        first = len(self)
        self.keys = pa.concat_arrays([self.keys, keys])
        self._hashes = np.concatenate([self._hashes, hashes])
        if 2 * len(self) > len(self._table):
            self._rebuild()
        else:
            self._place(arange(len(keys)) + first)

    def _rebuild(self) -> None:
        size = 16
        while size < 4 * len(self):
            size *= 2
        self._table = np.full(size, EMPTY, np.int64)
        self._twins = {}
        self._place(arange(len(self)))

    def _places(self, hashes: Hashes) -> Ints:
        bits = len(self._table).bit_length() - 1
        return (hashes >> np.uint64(64 - bits)).astype(np.int64)

    def _probe(self, hashes: Hashes) -> Ints:
        """The slot with the same hash, or -1."""
        slots = np.full(len(hashes), EMPTY, np.int64)
        waiting, places = arange(len(hashes)), self._places(hashes)
        while waiting.size:
            met = self._table[places]
            hit = (met >= 0) & (self._hashes[met] == hashes[waiting])
            slots[waiting[hit]] = met[hit]
            further = (met >= 0) & ~hit
            waiting, places = waiting[further], self._next(places[further])
        return slots

    def _place(self, slots: Ints) -> None:
        places = self._places(self._hashes[slots])
        while slots.size:
            met = self._table[places]
            free = met == EMPTY
            self._table[places[free]] = slots[free]
            met = self._table[places]  # of several that wanted one place, the last has it
            twin = (met != slots) & (self._hashes[met] == self._hashes[slots])
            for slot in slots[twin]:
                self._twins[self.keys[int(slot)].as_py()] = int(slot)
            further = (met != slots) & ~twin
            slots, places = slots[further], self._next(places[further])

    def _next(self, places: Ints) -> Ints:
        return (places + 1) & (len(self._table) - 1)


def check_key_type(kind: pa.DataType) -> None:
    """Keys must be equal to themselves, and be compared whole: no floats (NaN is not equal to NaN), nothing nested."""
    types = pa.types
    fine = (
        _is_text(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_temporal(kind)
        or types.is_decimal(kind)
    )
    if not fine:
        raise InvalidArgument(
            f"a key can't be of type {kind}: use strings, bytes, whole numbers, decimals, dates or times"
        )


def hash_keys(keys: pa.Array) -> Hashes:
    """A 64-bit hash of each key."""
    if pa.types.is_integer(keys.type) or pa.types.is_boolean(keys.type):
        words = keys.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False).view(np.uint64)
        return _mix(words + np.uint64(1))
    return _hash_bytes(keys if _is_text(keys.type) else keys.cast(pa.string()))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_binary(kind) or _is_large(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _hash_bytes(keys: pa.Array) -> Hashes:
    starts, lengths, words = _words(keys)
    hashes = _mix(lengths.astype(np.uint64))
    longest = int(lengths.max(initial=0))
    if (lengths == longest).all():  # one after another: nothing has to be looked up, and one mask serves all
        for begin in range(0, longest, WORD):
            hashes ^= words[begin : len(keys) * longest : longest] & _mask(np.array(min(longest - begin, WORD)))
            hashes = _mix(hashes)
        return hashes
    for begin in range(0, longest, WORD):
        inside = np.flatnonzero(lengths > begin)
        word = words[starts[inside] + begin] & _mask(np.minimum(lengths[inside] - begin, WORD))
        hashes[inside] = _mix(hashes[inside] ^ word)
    return hashes


def _words(keys: pa.Array) -> tuple[Ints, Ints, Hashes]:
    """Where each key starts, how long it is, and the word of eight bytes that begins at each byte."""
    kind = np.int64 if _is_large(keys.type) else np.int32
    offsets = np.frombuffer(keys.buffers()[1], kind)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    # A word may reach beyond the last key: those bytes are masked away, but they have to exist.
    data = np.zeros(last - first + WORD, np.uint8)
    data[:-WORD] = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[first:last]
    words: Hashes = np.ndarray((last - first + 1,), np.uint64, data.data, strides=(1,))
    return offsets[:-1] - first, np.diff(offsets), words


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
