"""What is settled: a floor, and bitmaps above it.

Rules
    - Everything below the floor is settled. Above it, block b is one integer whose bit i stands for offset ``b * BLOCK + i``.
    - In a missing block nothing is settled.
    - For offsets whose messages are no longer kept the set is meaningless, and their blocks may be dropped.

Theory of operation
    Consumers settle almost in order, so the floor is most of the set. What is settled behind a blocked key is dense, and one
    bit per message is as small as it gets with constant-time lookups. The bitmaps are Python integers: masks over thousands of
    messages are single operations.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from seriatim.store.base import BLOCK, Cursor
from seriatim.store.state_checksums import seal, unseal

FULL = (1 << BLOCK) - 1
BLOCK_BYTES = BLOCK // 8

_NUMBER = struct.Struct("<Q")


class SettledSet:
    """A mutable cursor."""

    __slots__ = ("blocks", "floor")

    def __init__(self, floor: int = 0, blocks: Iterable[tuple[int, int]] = ()) -> None:
        self.floor = floor
        self.blocks = dict(blocks)

    @classmethod
    def of(cls, cursor: Cursor) -> SettledSet:
        return cls(cursor.floor, cursor.blocks.items())

    def cursor(self) -> Cursor:
        """An immutable copy."""
        return Cursor(self.floor, dict(self.blocks))

    def __contains__(self, offset: int) -> bool:
        block, bit = divmod(offset, BLOCK)
        return offset < self.floor or bool(self.blocks.get(block, 0) >> bit & 1)

    def add(self, offsets: Iterable[int]) -> None:
        """Settle offsets, those of one block at once."""
        rising = sorted(offsets)
        start = bisect_left(rising, self.floor)
        while start < len(rising):
            block = rising[start] // BLOCK
            end = bisect_left(rising, (block + 1) * BLOCK, start)
            self.blocks[block] = self.blocks.get(block, 0) | _bits_at(rising[start:end], block * BLOCK)
            start = end

    def discard(self, offsets: Iterable[int]) -> None:
        """Unsettle offsets. One below the floor lowers the floor, and what the floor had settled becomes bits."""
        for offset in offsets:
            if offset < self.floor:
                self._lower_floor(offset)
            block, bit = divmod(offset, BLOCK)
            if left := self.blocks.get(block, 0) & ~(1 << bit):
                self.blocks[block] = left
            else:
                self.blocks.pop(block, None)

    def _lower_floor(self, floor: int) -> None:
        for block in range(floor // BLOCK, (self.floor - 1) // BLOCK + 1):
            first, last = max(floor, block * BLOCK), min(self.floor, (block + 1) * BLOCK) - 1
            self.blocks[block] = self.blocks.get(block, 0) | _mask(last - first + 1) << first % BLOCK
        self.floor = floor

    def raise_floor(self) -> None:
        """Raise the floor to the lowest offset that is not settled, and drop the blocks below it."""
        while (first := self.first_unsettled_in_block(self.floor)) % BLOCK == 0 and first > self.floor:
            self.set_floor(first)
        self.set_floor(first)

    def first_unsettled_in_block(self, offset: int) -> int:
        """The lowest unsettled offset from ``offset`` on, or the start of the next block when its block has none."""
        settled = self.blocks.get(offset // BLOCK, 0) >> offset % BLOCK
        return offset + _trailing_ones(settled)

    def set_floor(self, floor: int) -> None:
        """Settle everything below ``floor``, which must not be lower than the present floor."""
        self.floor = floor
        at, bit = divmod(floor, BLOCK)
        for block in [block for block in self.blocks if block < at]:
            del self.blocks[block]
        if at in self.blocks:
            self.blocks[at] &= ~_mask(bit)
            if not self.blocks[at]:
                del self.blocks[at]

    def bits(self, first: int, last: int) -> int:
        """A bitmap of the range: bit i is set when ``first + i`` is settled."""
        below = min(max(self.floor - first, 0), last - first + 1)
        found = _mask(below)
        for block in range((first + below) // BLOCK, last // BLOCK + 1):
            bits, shift = self.blocks.get(block, 0), block * BLOCK - first
            found |= bits << shift if shift >= 0 else bits >> -shift
        return found & _mask(last - first + 1)

    def unsettled(self, first: int, last: int) -> Iterator[int]:
        """The unsettled offsets of a range, rising."""
        return (first + index for index in set_bits(~self.bits(first, last) & _mask(last - first + 1)))


def set_bits(bits: int) -> Iterator[int]:
    """The places of the set bits, rising."""
    text = f"{bits:b}"[::-1]
    index = text.find("1")
    while index >= 0:
        yield index
        index = text.find("1", index + 1)


def _bits_at(offsets: Sequence[int], base: int) -> int:
    """A bitmap of offsets that lie less than BLOCK above ``base``."""
    if len(offsets) < 16:
        bits = 0
        for offset in offsets:
            bits |= 1 << (offset - base)
        return bits
    # Many are quicker as digits: one byte is set for each of them, and the rest runs at C speed.
    digits = bytearray(b"0") * BLOCK
    top = base + BLOCK - 1
    for offset in offsets:
        digits[top - offset] = 0x31
    return int(digits, 2)


def _mask(width: int) -> int:
    return (1 << width) - 1


def _trailing_ones(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1


def encode_block(bits: int, subscription_id: int, block: int) -> bytes:
    return seal(bits.to_bytes(BLOCK_BYTES, "little"), subscription_id, block)


def decode_block(blob: bytes, subscription_id: int, block: int) -> int:
    return int.from_bytes(unseal(blob, "a block of settled messages", BLOCK_BYTES, subscription_id, block), "little")


def encode_cursor(cursor: Cursor) -> bytes:
    """A whole cursor as one blob: the floor, then each block with its number."""
    blocks = (
        _NUMBER.pack(block) + bits.to_bytes(BLOCK_BYTES, "little") for block, bits in sorted(cursor.blocks.items())
    )
    return seal(_NUMBER.pack(cursor.floor) + b"".join(blocks))


def decode_cursor(blob: bytes) -> Cursor:
    size = _NUMBER.size + BLOCK_BYTES
    blob = unseal(blob, "a stored cursor", size, rest=_NUMBER.size)
    parts = [blob[at : at + size] for at in range(_NUMBER.size, len(blob), size)]
    blocks = {_NUMBER.unpack_from(part)[0]: int.from_bytes(part[_NUMBER.size :], "little") for part in parts}
    return Cursor(_NUMBER.unpack_from(blob)[0], blocks)
