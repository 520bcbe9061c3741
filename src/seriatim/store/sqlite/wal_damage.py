"""Damage in a write-ahead log, found before SQLite opens it.

SQLite's recovery ends at the first frame with a wrong checksum. For the torn end of a log after a crash that is right. But
a bit that flipped further up looks the same, and every commit behind it would vanish without a word.

Theory of operation
    With ``synchronous=FULL`` each commit is synced before the next one writes a frame, so a crash damages one commit at most.
    If the ends of two commits or more are in or behind what can't be read, the first of them was acknowledged.
    Frames of earlier lives of a log have other salts, and do not count; one whose checksum is right is of this life, whatever
    its salts have become. A header is synced before the first frame is written. The owner begins a new log when it opens a
    store, so torn frames that one crash left are not there any more at the next.

**Not noticed**: damage to the last commit of a log, and damage that wipes out the header of the last frame of the commit before
it: nobody can tell then that there were two. A log of another store, put beside this one, is not noticed here either.
"""

from __future__ import annotations

import struct
from functools import cache
from operator import mul
from pathlib import Path
from typing import BinaryIO

from seriatim.errors import DamagedStore, StoreFailed

_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, number of checkpoints, salts, checksums
_FRAME = struct.Struct(">IIIIII")  # page, pages after a commit (0: not the last frame of one), salts, checksums
_WORD = 0xFFFFFFFF
_PART_BYTES = 1024 * 1024
_SECOND_SUM = 96  # bits: the first sum is shorter, whatever the products
_LITTLE_ENDIAN, _BIG_ENDIAN = 0x377F0682, 0x377F0683

Sums = tuple[int, int]


def refuse_damaged_log(file: Path) -> None:
    """Raise if commits in the log of a database that nobody uses can't be read although they were acknowledged."""
    if lost := count_lost_commits(log := Path(f"{file}-wal")):
        raise DamagedStore(
            f"the write-ahead log '{log}' is damaged, and {lost} commits or more can't be read: restore a backup, or go on "
            f"without them (sqlite3 '{file}' 'PRAGMA wal_checkpoint(TRUNCATE)', then 'seriatim store check')"
        )


def count_lost_commits(log: Path) -> int:
    """At least how many acknowledged commits of a log can't be read."""
    try:
        with log.open("rb") as file:
            return _count(file)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreFailed(
            f"the write-ahead log '{log}' can't be read ({error.strerror}): check the file and its disk"
        ) from error


def _count(file: BinaryIO) -> int:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return 0
    magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack(header)
    order = {_LITTLE_ENDIAN: "<", _BIG_ENDIAN: ">"}.get(magic)
    sums = (0, 0) if order is None else _sums(header[:24], (0, 0), order)
    if order is None or sums != (first, second):
        return 1 if any(any(part) for part in iter(lambda: file.read(_PART_BYTES), b"")) else 0
    is_whole, lost = True, 0
    while len(frame := file.read(_FRAME.size)) == _FRAME.size:
        _, pages, *found = _FRAME.unpack(frame)
        is_of_this_log = found[:2] == salts
        if is_whole:
            sums = _sums(file.read(page_bytes), _sums(frame[:8], sums, order), order)
            is_right = sums == tuple(found[2:])
            is_whole, is_of_this_log = is_of_this_log and is_right, is_of_this_log or is_right
        else:
            file.seek(page_bytes, 1)
        lost += not is_whole and is_of_this_log and pages > 0
    return lost if lost > 1 else 0


def _sums(content: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum of some content, after that of what comes before it.

    For each pair of words (x, y) it is: one += x + other; other += y + one. That is linear, so both sums are found at once.
    """
    words = struct.unpack(f"{order}{len(content) // 8 * 2}I", content[: len(content) & ~7])
    total = sum(map(mul, (*sums, *words), _weights(len(words))))
    return total & _WORD, total >> _SECOND_SUM & _WORD


@cache
def _weights(words: int) -> list[int]:
    """How often each sum before, and then each word, is contained in the first sum and, higher up, in the second."""
    a, b, c, d = 1, 0, 0, 1
    weights = []
    for _ in range(words // 2):
        weights += [b | d << _SECOND_SUM, (a + b & _WORD) | (c + d & _WORD) << _SECOND_SUM]
        a, b, c, d = a + b & _WORD, a + 2 * b & _WORD, c + d & _WORD, c + 2 * d & _WORD
    return [a | c << _SECOND_SUM, b | d << _SECOND_SUM, *reversed(weights)]
