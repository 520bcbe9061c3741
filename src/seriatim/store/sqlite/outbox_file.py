"""The outbox in a SQLite file of somebody else: a table that the application fills in its own transactions.

SQLite lets one transaction write at a time, so ids rise in the order of the commits. How far the outbox was read is kept in the
store. Messages below that are deleted here later: one that is still there is not appended again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StoreFailed
from seriatim.store.base import OutboxRow
from seriatim.store.sqlite.session import BUSY_SECONDS, OUR_MARK

MESSAGES_AT_ONCE, BYTES_AT_ONCE = 500, 16 * 1024 * 1024
_TABLES = """
CREATE TABLE IF NOT EXISTS seriatim_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    key TEXT CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 1024),
    data BLOB NOT NULL,
    attributes TEXT CHECK (attributes IS NULL OR json_valid(attributes))
);
CREATE TABLE IF NOT EXISTS seriatim_outbox_reader (name TEXT NOT NULL);
"""


class OutboxFile(NamedTuple):
    """The outbox in a file, and the name under which a store reads it."""

    path: str
    reader: str

    def prepare(self) -> None:
        """Make the table, to be read under this name and no other."""
        with _open(self.path, "rw") as file:
            if file.execute("PRAGMA application_id").fetchone() == (OUR_MARK,):
                raise InvalidArgument(f"'{self.path}' is a store: an outbox is a table in a database of your own")
            file.executescript(f"BEGIN IMMEDIATE; {_TABLES}")
            found = file.execute("SELECT name FROM seriatim_outbox_reader").fetchall()
            if found and found != [(self.reader,)]:
                raise FailedPrecondition(
                    f"the outbox in '{self.path}' belongs to another store, or was added under another path: remove it there"
                )
            if not found:
                file.execute("INSERT INTO seriatim_outbox_reader VALUES (?)", (self.reader,))
            file.execute("COMMIT")

    def read(self, start: int) -> list[OutboxRow]:
        """The next messages, from the id ``start`` on."""
        with _open(self.path, "ro") as file:
            if file.execute("SELECT name FROM seriatim_outbox_reader").fetchall() != [(self.reader,)]:
                raise FailedPrecondition(
                    f"the outbox in '{self.path}' is not that of this store any more: add it again"
                )
            if _is_older(file, start):
                raise FailedPrecondition(
                    f"'{self.path}' is older than what was read from its outbox (a backup?): new messages would get ids that "
                    "count as read. Remove the outbox and add it again"
                )
            query = "SELECT id, topic, key, data, attributes FROM seriatim_outbox WHERE id >= ? ORDER BY id LIMIT ?"
            rows, size = list[OutboxRow](), 0
            for id_, topic, key, data, attributes in file.execute(query, (start, MESSAGES_AT_ONCE)):
                rows.append(OutboxRow(id_, topic, key, data, json.loads(attributes) if attributes else None))
                size += len(data)
                if size >= BYTES_AT_ONCE:
                    break
            return rows

    def forget(self, end: int) -> None:
        """Delete messages below an id."""
        with _open(self.path, "rw") as file:
            file.execute("DELETE FROM seriatim_outbox WHERE id < ?", (end,))

    def release(self, end: int) -> None:
        """Let another store read the outbox. Messages below ``end`` were read, and some may not be deleted yet."""
        with _open(self.path, "rw") as file:
            file.execute("BEGIN IMMEDIATE")
            if not _is_older(file, end):
                file.execute("DELETE FROM seriatim_outbox WHERE id < ?", (end,))
            file.execute("DELETE FROM seriatim_outbox_reader WHERE name = ?", (self.reader,))
            file.execute("COMMIT")


def _is_older(file: sqlite3.Connection, end: int) -> bool:
    """Whether a file is older than what was read from it."""
    ((last,),) = file.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'seriatim_outbox'")
    return bool(last + 1 < end)


@contextmanager
def _open(path: str, mode: str) -> Iterator[sqlite3.Connection]:
    if not Path(path).is_file():
        raise NotFound(f"there is no file '{path}'")
    address = f"file:{quote(path)}?mode={mode}"
    try:
        with closing(sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, uri=True)) as file:
            yield file
    except sqlite3.Error as error:
        raise StoreFailed(f"the outbox in '{path}' can't be used: {error}") from error
