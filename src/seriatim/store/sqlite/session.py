"""Connections to a SQLite file: opening them, running queries, and translating errors.

Rules
    - The owner has one connection that writes. All reading uses separate connections that can neither write nor checkpoint, in
      short transactions, so that a slow reader can't make the write-ahead log grow.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import closing, suppress
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
from seriatim.store.private_files import make_private
from seriatim.store.sql.queries import load_queries
from seriatim.store.sql.session import Row, Session

BUSY_SECONDS = 5.0
CHECKPOINT_PAGES = 256  # large enough to pay, small enough that no commit waits long for it
MAX_IDLE_WAL_BYTES = 16 * 1024 * 1024

_HEADER_BYTES = 100
_MARK = b"SERI"
"""SQLite's application id, at byte 68 of the header."""

_KINDS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "another program has locked the store: let it finish"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "another program has locked the store: let it finish"),
    sqlite3.SQLITE_FULL: (StoreFull, "the disk of the store is full: free some space"),
    sqlite3.SQLITE_CORRUPT: (DamagedStore, "the file of the store is damaged: restore a backup"),
    sqlite3.SQLITE_NOTADB: (DamagedStore, "the file is not a SQLite database, or it is damaged: restore a backup"),
}


_FORBIDDEN = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}
"""What SQLite says, among other things, where this process lacks a permission."""


def as_store_error(error: Exception, path: Path | None = None) -> SeriatimError:
    """Translate an error of SQLite, with what is not permitted if it was about the file at ``path``."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError) or "binding parameter" in str(error):
        return InvalidArgument(f"the store can't keep this value ({error})")
    if isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error):
        return DamagedStore(f"a text in the store is damaged: restore a backup ({error})")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind, what = _KINDS.get(code, (StoreFailed, "the store could not be read or written: check its disk"))
    if code in _FORBIDDEN and path is not None and (missing := _missing_permission(path)) is not None:
        what = f"{missing}: correct the permissions, or run this as the user of the store"
    return kind(f"{what} ({error})")


def _missing_permission(path: Path) -> str | None:
    """What this process may not do with the files of a store, which SQLite doesn't say."""

    def may(place: Path, what: int) -> bool:
        return os.access(place, what, effective_ids=os.access in os.supports_effective_ids)

    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if file.exists() and not may(file, os.R_OK):
            return f"no permission to read '{file}'"
    if not may(path.parent, os.W_OK):
        return f"no permission to write in '{path.parent}', where SQLite keeps files beside the store, even to read it"
    return f"no permission to write '{path}'" if path.exists() and not may(path, os.W_OK) else None


class SqliteSession(Session):
    """One transaction on a SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queries = load_queries("sqlite")

    def rows(self, query: str, *values: object) -> list[Row]:
        return self._execute(self._queries[query], values)

    def run(self, query: str, *values: object) -> None:
        self._execute(self._queries[query], values)

    def run_many(self, query: str, rows: Iterable[Row]) -> None:
        self.require_unbroken()
        try:
            self._connection.executemany(self._queries[query], rows)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.broken_by(self._translated(error)) from error

    def run_script(self, script: str) -> None:
        statement = ""
        for line in script.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.command(statement)
                statement = ""

    def command(self, statement: str) -> None:
        """Run one statement that is not a named query: transaction control, migrations."""
        self._execute(statement)

    def misfits(self) -> list[tuple[str, str]]:
        """SQLite keeps any value in any column, so a damaged page may hold anything. Large values are not read for this."""
        found: list[tuple[str, str]] = []
        for (table,) in self.rows("table_names"):
            columns = {
                name: f"typeof({name}) != '{kind.lower()}'" + ("" if required or key else f" AND {name} IS NOT NULL")
                for _, name, kind, required, _, key in self._execute(f"PRAGMA table_info({table})")
            }
            sums = ", ".join(f"total({is_wrong})" for is_wrong in columns.values())
            (counts,) = self._execute(f"SELECT {sums} FROM {table}")
            found += [
                (f"table {table}", f"{count:.0f} rows hold no value of the right kind in column {name}")
                for name, count in zip(columns, counts, strict=True)
                if count
            ]
        return found

    def _execute(self, statement: str, values: Row = ()) -> list[Row]:
        if self.broken is not None:
            raise self.broken
        try:
            return self._connection.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.broken_by(self._translated(error)) from error

    def _translated(self, error: Exception) -> SeriatimError:
        path = None
        with suppress(sqlite3.Error):
            path = Path(self._connection.execute("PRAGMA database_list").fetchone()[2])
        return as_store_error(error, path)


def connect_writer(path: Path) -> sqlite3.Connection:
    """The connection of the owner. A new file is prepared; a database of another program is refused untouched."""
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
            f"journal_size_limit = {MAX_IDLE_WAL_BYTES}",
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


def remove_empty_log(path: Path) -> None:
    """Remove the empty log that a reader left beside a store without an owner, and its shared memory.

    SQLite does it when the last connection to a file is closed, if that may write.
    """
    if _size(Path(f"{path}-wal")) == 0 and os.access(path, os.W_OK):
        with suppress(sqlite3.Error), closing(_connect(path, "rw")) as connection:
            connection.execute("SELECT 1 FROM sqlite_master").fetchall()


def _size(file: Path) -> int | None:
    with suppress(OSError):
        return file.stat().st_size
    return None


def is_new(session: SqliteSession) -> bool:
    """Whether the file is empty."""
    return not session.rows("table_names")


def refuse_other_file(path: Path) -> None:
    """Raise if the file is no database at all, before anything is made beside it. A damaged store is known by its mark."""
    with suppress(OSError):  # opening it says what is wrong
        if not stat.S_ISREG(path.stat().st_mode):
            raise NotAStore(f"'{path}' is a folder or a device: name a file")
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
        if head and not head.startswith(b"SQLite format 3\0") and head[68:72] != _MARK:
            raise NotAStore(f"'{path}' is not a SQLite database: choose another file")


def refuse_foreign_file(session: SqliteSession, path: Path) -> None:
    """Raise if the file is a database of another program."""
    (found,) = session.rows("application_id")
    if found[0] != OUR_MARK and not is_new(session):
        raise NotAStore(f"'{path}' is a SQLite database of another program: choose another file")


OUR_MARK = int.from_bytes(_MARK, "big")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"file:{quote(bytes(path))}?mode={mode}"
    try:
        return sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    except sqlite3.Error as error:
        raise as_store_error(error, path) from error
