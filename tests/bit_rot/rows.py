"""Every bit of the rows that decide which messages are delivered, and when."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from seriatim.store.base import Cursor, SnapshotRow
from seriatim.store.sqlite.store import SqliteStore
from tests.bit_rot.stores import Content, content_of, reading
from tests.store.contract.kit import letter, records, trouble

TABLES = ("topics", "subscriptions", "troubles", "paused_keys", "dead_letters", "settlements", "settled_blocks")


class Bit(NamedTuple):
    """One bit of a file."""

    at: int
    bit: int


class Rows:
    """A store in which each of these tables is one page, to be damaged again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _fill(path)
        with closing(SqliteStore(path)) as store:
            self.written = content_of(store)
        self._whole = path.read_bytes()

    def bits(self, table: str) -> list[Bit]:
        """Of the rows of a table, and of what SQLite keeps of them in their page."""
        with closing(sqlite3.connect(self.path)) as file:
            ((page,),) = file.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
            ((size,),) = file.execute("PRAGMA page_size")
        start = (page - 1) * size
        cells = int.from_bytes(self._whole[start + 3 : start + 5])
        content = int.from_bytes(self._whole[start + 5 : start + 7])
        places = [*range(8 + 2 * cells), *range(content, size)]
        return [Bit(start + at, bit) for at in places for bit in range(8)]

    def outcomes(self, bits: list[Bit]) -> Iterator[tuple[Bit, str, Content | None]]:
        """What becomes of the store when one of these is flipped."""
        for flipped in bits:
            damaged = bytearray(self._whole)
            damaged[flipped.at] ^= 1 << flipped.bit
            self.restore(bytes(damaged))
            yield flipped, *reading(self.path)

    def restore(self, content: bytes | None = None) -> None:
        """As it was written, or with other content."""
        for left in self.path.parent.glob(f"{self.path.name}*"):
            left.unlink()
        self.path.write_bytes(self._whole if content is None else content)


def _fill(path: Path) -> None:
    """Two subscriptions with everything that can be known of them, so that a row may become that of the other."""
    with closing(SqliteStore(path)) as store:
        with store.transaction() as work:
            topic = work.create_topic("orders", {"retention": None, "max_messages": 50})
            work.append(topic.id, records(range(30), "k", 20, published=0.0))
            one = work.create_subscription(topic.id, "billing", {"window": 1}, Cursor(0))
            other = work.create_subscription(topic.id, "shipping", {"window": 2}, Cursor(5))
            work.settle(one.id, [*range(9), 12, 14])
        while store.upkeep(1.0).more_to_do:
            pass
        with store.transaction() as work:
            work.settle(one.id, [16])
            work.unbury(one.id, [14])
            work.note_troubles(one.id, [trouble(9), trouble(10)])
            work.note_troubles(other.id, [trouble(9)])
            work.bury(one.id, [letter(11), letter(13)])
            work.overtake(one.id, [13])
            work.pause_key(one.id, "k", "a reason")
            work.pause_key(other.id, None, None)
            work.put_snapshot(SnapshotRow("snapshot", topic.id, Cursor(1, {0: 8}), 1e12, {"window": 3}))
