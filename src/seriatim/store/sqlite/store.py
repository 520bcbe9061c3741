"""A store in one SQLite file: the default.

Rules
    - ``SqliteStore`` is the owner: it holds the lock file beside the database, and every transaction of it checks that nobody
      has raised the epoch since. ``SqliteReader`` owns nothing and only reads; both may be open at once.
    - Committed means on the disk: write-ahead log, ``synchronous=FULL``.
    - A commit that fails leaves its outcome unknown, unless SQLite says that the file was locked or the disk full: then nothing
      was written. After an unknown outcome the store does nothing more until it is opened again.
    - A handle belongs to the process that opened it; in a forked child it refuses everything.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from seriatim.errors import (
    AlreadyExists,
    NotAStore,
    NotFound,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
)
from seriatim.store.base import UpkeepReport
from seriatim.store.files import put_in_place, unfinished
from seriatim.store.lock_file import OwnerLock, refuse_network_file_system
from seriatim.store.sql.owner import SqlOwner
from seriatim.store.sql.pool import Pool
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.reader import TAKEN_OVER, SqlReader
from seriatim.store.sql.schema import migrate, schema_version
from seriatim.store.sqlite.session import (
    SqliteSession,
    as_store_error,
    connect_reader,
    connect_writer,
    is_new,
    refuse_foreign_file,
)

FREE_PAGES_KEPT = 1024
"""Free pages that are not given back to the file system, because the next messages will need them."""

PAGES_GIVEN_BACK = 256
"""How many free pages are given back in one piece of clean-up."""


class SqliteReader(SqlReader):
    """The reading verbs, for anybody on this machine."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path).absolute()  # the program may go to another folder
        self._pool = Pool(lambda: connect_reader(self._path), lambda _: False)
        if not self._path.is_file():
            raise NotFound(f"there is no store at '{path}'")
        refuse_network_file_system(self._path)
        with self._reading() as session:
            refuse_foreign_file(session, self._path)
            migrations = load_migrations("sqlite")
            if is_new(session) or schema_version(session, migrations) < migrations[-1].version:
                raise NotAStore(f"'{path}' has an older schema, or none: its owner must open it first")

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def backup(self, path: str) -> None:
        """Copied to a name of its own first: a file under ``path`` is always a whole backup."""
        goal = Path(path).absolute()
        try:
            if goal.exists():
                raise FileExistsError
            with unfinished(goal) as partial:
                self._copy_to(partial)
                put_in_place(partial, goal)
        except FileExistsError:
            raise AlreadyExists(f"'{path}' exists already: choose another name for the backup") from None
        except OSError as error:
            raise StoreFailed(f"the backup '{path}' can't be written: {error.strerror}") from error

    def _copy_to(self, file: Path) -> None:
        self._require_usable()
        with self._pool.use() as source:
            try:
                with closing(sqlite3.connect(file)) as target:
                    source.backup(target)
            except sqlite3.Error as error:
                raise as_store_error(error) from error

    def close(self) -> None:
        if self._pid == os.getpid():
            self._unusable = self._unusable or "it was closed"
            self._pool.close()

    @contextmanager
    def _reading(self) -> Iterator[SqliteSession]:
        self._require_usable()
        with self._pool.use() as connection:
            session = SqliteSession(connection)
            session.command("BEGIN")
            yield session
            session.command("COMMIT")


class SqliteStore(SqliteReader, SqlOwner[SqliteSession]):
    """The owner of a file, and everything that only an owner may do."""

    def __init__(self, path: str | Path) -> None:
        file = Path(path).absolute()
        refuse_network_file_system(file.parent)
        self._surplus = 0
        with ExitStack() as undo:
            self._lock = OwnerLock(Path(f"{file}.lock"))
            undo.callback(self._lock.release)
            self._writer = connect_writer(file)
            undo.callback(self._writer.close)
            self._epoch = self._take_over()
            super().__init__(file)
            undo.pop_all()

    @property
    def epoch(self) -> int:
        return self._epoch

    def _take_over(self) -> int:
        """Bring the file to our schema and raise its epoch, in one transaction."""
        session = SqliteSession(self._writer)
        session.command("BEGIN IMMEDIATE")
        migrate(session, load_migrations("sqlite"), new=is_new(session))
        (row,) = session.rows("raise_epoch")
        session.command("COMMIT")
        return int(row[0])

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._refuse_inside_transaction()
        super().close()
        with self._turn:
            self._writer.close()
        self._lock.release()

    def upkeep(self, now: float) -> UpkeepReport:
        report = super().upkeep(now)
        if self._surplus > 0:
            self._give_back_pages(min(self._surplus, PAGES_GIVEN_BACK))
        return report

    def _tidy(self, session: SqliteSession) -> bool:
        """Find out how many free pages will not be needed soon; True when they are more than one piece gives back."""
        free, pages = session.rows("free_pages")[0][0], session.rows("all_pages")[0][0]
        self._surplus = free - max(FREE_PAGES_KEPT, pages // 4)
        return bool(self._surplus > PAGES_GIVEN_BACK)

    def _give_back_pages(self, pages: int) -> None:
        """Shrink the file, in a transaction of SQLite's own.

        As a script, because ``execute`` lets this pragma run for one step only, whatever number it is given.
        """
        with self._turn:
            self._require_usable()
            try:
                self._writer.executescript(f"PRAGMA incremental_vacuum({pages})")
            except sqlite3.Error as error:
                raise as_store_error(error) from error

    @contextmanager
    def _working(self) -> Iterator[SqliteSession]:
        session = SqliteSession(self._writer)
        try:
            self._begin(session)
            yield session
            self._commit(session)
        except BaseException:
            self._roll_back()
            raise
        finally:
            session.end()

    def _begin(self, session: SqliteSession) -> None:
        session.command("BEGIN IMMEDIATE")
        if session.rows("epoch")[0][0] != self._epoch:
            self._unusable = TAKEN_OVER
            self._require_usable()

    def _commit(self, session: SqliteSession) -> None:
        session.require_unbroken()
        try:
            session.command("COMMIT")
        except (StoreBusy, StoreFull):
            raise
        except StoreError as error:
            self._break("a commit failed")
            raise OutcomeUnknown(
                "nobody can know whether the commit took place: open the store again, and look before you write the same again "
                f"({error})"
            ) from error

    def _roll_back(self) -> None:
        """Nothing was committed; a connection that can't even say so is not used again."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._break("a rollback failed")
