"""Checksums of what decides which messages are delivered, and when: what is settled, floors, attempts, pauses and options.

What earlier versions wrote has none, and is read as it is.
"""

from __future__ import annotations

from zlib import crc32

from seriatim.errors import DamagedStore

CHECKSUM_BYTES = 4

NO_CHECKSUM = 1 << 32
"""Of rows that an earlier version wrote. Not NULL: SQLite reads that where damage has cut the end of a row off."""


def seal(blob: bytes, *place: int) -> bytes:
    """With a checksum behind it: of the bytes, and of the numbers that say where they belong."""
    return blob + _sum(blob, place)


def unseal(blob: bytes, what: str, unit: int, *place: int, rest: int = 0) -> bytes:
    """What was sealed: ``rest`` bytes more than whole units. Earlier versions sealed nothing, and then only the bytes."""
    if len(blob) % unit == rest:
        return blob
    content, checksum = blob[:-CHECKSUM_BYTES], blob[-CHECKSUM_BYTES:]
    if len(content) % unit != rest or checksum not in (_sum(content, place), _sum(content, ())):
        raise DamagedStore(
            f"{what}: {len(blob)} bytes are not a whole number of values of {unit} bytes with their checksum"
        )
    return content


def _sum(blob: bytes, place: tuple[int, ...]) -> bytes:
    return crc32(blob, crc32(repr(place).encode()) if place else 0).to_bytes(CHECKSUM_BYTES, "little")


def checksum_of(*values: object) -> int:
    """The checksum of these columns of a row. All numbers are floats here: a database may return 1 for true, and 5.0 for 5."""
    return crc32("\n".join([value if isinstance(value, str) else _text(value) for value in values]).encode())


def _text(value: object) -> str:
    return str(value + 0.0) if isinstance(value, (int, float)) else repr(value)  # + 0.0 makes 0.0 of -0.0


def require_checksum(checksum: int, what: str, *values: object) -> None:
    """Refuse a row that holds something else than was written."""
    if checksum not in (NO_CHECKSUM, checksum_of(*values)):
        raise DamagedStore(f"{what} is damaged, its checksum is wrong: restore a backup")
