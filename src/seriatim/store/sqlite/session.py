"""Connections to a SQLite file: how they are opened, what they are asked, and what their errors mean.

Rules
    - The owner has one connection that writes. Everything else reads through connections of its own that can neither write nor
      checkpoint, in short transactions, so that the write-ahead log can't grow behind a slow reader.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from seriatim.errors import (
    DamagedStore,
    InvalidArgument,
    NotAStore,
    SeriatimError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
)
from seriatim.store.files import make_private
from seriatim.store.sql.queries import load_queries
from seriatim.store.sql.session import Row, UnitOfWork

BUSY_SECONDS = 5.0
CHECKPOINT_PAGES = 256  # so many that it pays, and so few that no commit waits long for it
LARGEST_IDLE_WAL = 16 * 1024 * 1024

_KINDS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "another program has locked the store: let it finish"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "another program has locked the store: let it finish"),
    sqlite3.SQLITE_FULL: (StoreFull, "there is no room left for the store: make room on its disk"),
    sqlite3.SQLITE_CORRUPT: (DamagedStore, "the file of the store is damaged: restore a backup"),
    sqlite3.SQLITE_NOTADB: (DamagedStore, "the file is not a SQLite database, or it is damaged: restore a backup"),
}


def as_store_error(error: Exception) -> SeriatimError:
    """What an error of SQLite means to us."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError) or "binding parameter" in str(error):
        return InvalidArgument(f"the store can't keep this value ({error})")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind, what = _KINDS.get(code, (StoreFailed, "the store could not be read or written: look after its disk"))
    return kind(f"{what} ({error})")


class SqliteSession(UnitOfWork):
    """One transaction on a connection: named queries, our errors."""

    failures = sqlite3.Error

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection
        self._queries = load_queries("sqlite")

    def rows(self, query: str, *values: object) -> list[Row]:
        return self._ask(self._fetch, query, values)

    def run(self, query: str, *values: object) -> None:
        self._ask(self._connection.execute, self._queries[query], values)

    def run_many(self, query: str, rows: Iterable[Row]) -> None:
        self._ask(self._connection.executemany, self._queries[query], rows)

    def run_script(self, script: str) -> None:
        statement = ""
        for line in script.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.command(statement)
                statement = ""

    def command(self, statement: str) -> None:
        """One statement that is not a named query: transaction control, migrations."""
        self._ask(self._connection.execute, statement)

    def _fetch(self, query: str, values: Row) -> list[Row]:
        return self._connection.execute(self._queries[query], values).fetchall()

    def _as_store_error(self, error: Exception) -> SeriatimError:
        return as_store_error(error)


def connect_writer(path: Path) -> sqlite3.Connection:
    """The connection of the owner; a new file is prepared, a file of something else is refused untouched."""
    with suppress(OSError):  # SQLite says what is wrong
        make_private(path)
    connection = _connect(path, "rwc")
    try:
        session = SqliteSession(connection)
        refuse_foreign_file(session, path)
        if is_new(session):  # before the first page is written, because that decides whether a file can ever shrink
            session.command("PRAGMA auto_vacuum = INCREMENTAL")
        for pragma in (
            "synchronous = FULL",
            "foreign_keys = ON",
            f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"journal_size_limit = {LARGEST_IDLE_WAL}",
        ):
            session.command(f"PRAGMA {pragma}")
        if session.rows("write_ahead_log")[0][0] != "wal":
            raise NotAStore(
                f"'{path}' is on a file system without shared memory, which SQLite's WAL needs: use a local disk"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that can't change or checkpoint anything."""
    return _connect(path, "ro")


def is_new(session: SqliteSession) -> bool:
    """Whether there is nothing at all in the file."""
    return not session.rows("table_names")


def refuse_foreign_file(session: SqliteSession, path: Path) -> None:
    """Raise when the file is a database of something else."""
    (found,) = session.rows("application_id")
    if found[0] != OUR_MARK and not is_new(session):
        raise NotAStore(f"'{path}' is a SQLite database of another program: choose another file")


OUR_MARK = int.from_bytes(b"SERI", "big")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"file:{quote(bytes(path))}?mode={mode}"
    try:
        return sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    except sqlite3.Error as error:
        raise as_store_error(error) from error
