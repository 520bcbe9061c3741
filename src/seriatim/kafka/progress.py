"""The finished records of a partition: everything below an offset, and some records beyond it.

Rules
    - Only records that were seen count. Offsets have holes, left by compaction and by transactions: an offset that was
      never seen is not waited for.
    - A commit names the lowest unfinished offset, and in its metadata the finished offsets beyond it: a bitmap, or the
      same deflated, whichever is shorter. What does not fit into the broker's limit is left out and is not durable yet;
      the next commits cover it as the lowest offset moves.
    - Metadata that is unreadable, or not ours, is ignored: then messages repeat, in order.

    A commit may follow every few messages of a hot key while thousands of others are finished ahead of it. So progress
    is kept as the bitmap that is committed, and no commit iterates over its offsets. Offsets may be far apart, in an old
    topic that is read from its beginning, or behind a hole: the bitmap reaches no further than metadata may.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections import deque
from typing import NamedTuple

BITMAP, DEFLATED = "s2b", "s2d"
"""How metadata begins: whose it is, its version, and its kind."""

CHECKSUM_BYTES = 4

MAX_METADATA_BYTES = 4096
"""What brokers accept unless they are configured otherwise (offset.metadata.max.bytes): one that refuses it gets less."""

MAX_AHEAD = 1_000_000
"""How far beyond the lowest offset metadata may reach."""


class Encoded(NamedTuple):
    """Metadata of a commit, and the last offset that it covers."""

    text: str
    last: int


def encode(lowest: int, bitmap: bytes, limit: int = MAX_METADATA_BYTES) -> Encoded:
    """Encode the finished offsets from ``lowest`` on, one bit each, as many as fit."""
    room = (limit - len(BITMAP)) // 4 * 3 - CHECKSUM_BYTES  # base64 encodes three bytes as four characters
    if not bitmap or room <= 0:
        return Encoded("", lowest - 1)
    deflated = zlib.compress(bitmap[: MAX_AHEAD // 8], 1)
    kind, packed, covered = DEFLATED, deflated, min(len(bitmap), MAX_AHEAD // 8)
    if len(deflated) >= len(bitmap) or len(deflated) > room:
        kind, packed, covered = BITMAP, bitmap[:room], min(len(bitmap), room)
    # With a checksum: corrupt metadata would skip unprocessed messages.
    sealed = zlib.crc32(b"%d" % lowest + packed).to_bytes(CHECKSUM_BYTES) + packed
    return Encoded(kind + b64encode(sealed).decode(), lowest + 8 * covered - 1)


def decode(lowest: int, metadata: str | None) -> frozenset[int]:
    """The finished offsets beyond ``lowest``; empty if the metadata can't be read."""
    if not metadata or metadata[:3] not in (BITMAP, DEFLATED):
        return frozenset()
    try:
        raw = b64decode(metadata[3:], validate=True)
        packed = raw[CHECKSUM_BYTES:]
        if zlib.crc32(b"%d" % lowest + packed).to_bytes(CHECKSUM_BYTES) != raw[:CHECKSUM_BYTES]:
            return frozenset()
        if metadata.startswith(DEFLATED):
            packed = zlib.decompressobj().decompress(packed, MAX_AHEAD // 8)
    except (ValueError, zlib.error):
        return frozenset()
    return frozenset(
        lowest + place * 8 + bit for place, byte in enumerate(packed) for bit in range(8) if byte >> bit & 1
    )


class Progress:
    """The records of one partition that were seen, and which of them are finished."""

    def __init__(self, lowest: int, finished: frozenset[int] = frozenset()) -> None:
        self.next = self._base = max(0, lowest)  # after all seen records; the offset of the first bit
        self._seen: deque[int] = deque()  # from the lowest unfinished one on
        self._bits = bytearray()
        self._far = set[int]()  # finished, and too far ahead for the bitmap
        for offset in finished:
            self._mark(offset)

    @property
    def lowest(self) -> int:
        """The lowest unfinished offset, or the one after all seen records."""
        return self._seen[0] if self._seen else self.next

    def see(self, offset: int) -> bool:
        """Add a record, after those before it. Returns whether it is unfinished."""
        self.next = offset + 1
        self._seen.append(offset)
        if len(self._seen) == 1:
            self._drop_passed()
        if self._is_finished(offset):
            self._advance()
            return False
        return True

    def skip_to(self, end: int) -> int:
        """No more records will come below an offset. Returns how many passed offsets are not known to be finished."""
        passed = max(0, end - self.next)
        bits = min(passed, 8 * len(self._bits))
        known = int.from_bytes(self._bits, "little") >> (self.next - self._base) & (1 << bits) - 1
        self.next = max(self.next, end)
        return passed - known.bit_count()

    def finish(self, offset: int) -> None:
        self._mark(offset)
        if offset == self._seen[0]:
            self._advance()

    def _mark(self, offset: int) -> None:
        place, bit = divmod(offset - self._base, 8)
        if place > MAX_AHEAD // 8:
            self._far.add(offset)
            return
        if place >= len(self._bits):
            self._bits.extend(bytes(place + 1 - len(self._bits)))
        self._bits[place] |= 1 << bit

    def _is_finished(self, offset: int) -> bool:
        place, bit = divmod(offset - self._base, 8)
        return offset in self._far or (place < len(self._bits) and bool(self._bits[place] >> bit & 1))

    def _advance(self) -> None:
        while self._seen and self._is_finished(self._seen[0]):
            self._seen.popleft()

    def commit(self, limit: int = MAX_METADATA_BYTES) -> tuple[int, Encoded]:
        """What to commit: the lowest unfinished offset, and the finished ones beyond it."""
        lowest = self.lowest
        self._drop_passed()
        ahead = int.from_bytes(self._bits, "little") >> (lowest - self._base)
        return lowest, encode(lowest, ahead.to_bytes((ahead.bit_length() + 7) // 8, "little"), limit)

    def _drop_passed(self) -> None:
        """Move the bitmap to the lowest unfinished offset."""
        whole = (self.lowest - self._base) // 8
        del self._bits[:whole]
        self._base += whole * 8
        if self._far:
            far, self._far = self._far, set()
            for offset in far:
                if offset >= self._base:
                    self._mark(offset)

    def __len__(self) -> int:
        """The number of records seen since the lowest unfinished one."""
        return len(self._seen)
