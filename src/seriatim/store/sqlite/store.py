"""A store in one SQLite file: the default.

Rules
    - ``SqliteStore`` is the owner: it holds the lock file beside the database, and each of its transactions checks that the
      epoch has not been raised. ``SqliteReader`` owns nothing and only reads; both may be open at once.
    - Committed means on the disk: write-ahead log, ``synchronous=FULL``.
    - The outcome of a failed commit is unknown, unless SQLite reports a locked file or a full disk: then nothing was written.
      After an unknown outcome the store does nothing more until it is reopened.
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
    DamagedStore,
    NotAStore,
    NotFound,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
)
from seriatim.store.base import UpkeepReport
from seriatim.store.lock_file import OwnerLock, owner_of, refuse_network_file_system
from seriatim.store.private_files import put_in_place, unfinished
from seriatim.store.sql.integrity import problems_of_rows
from seriatim.store.sql.pool import Pool
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.reader import TAKEN_OVER, SqlReader
from seriatim.store.sql.schema import migrate, schema_version
from seriatim.store.sql.writable_store import SqlWriter
from seriatim.store.sqlite.session import (
    SqliteSession,
    as_store_error,
    connect_reader,
    connect_writer,
    is_new,
    refuse_foreign_file,
    refuse_other_file,
    remove_empty_log,
)
from seriatim.store.sqlite.wal_damage import refuse_damaged_log

FREE_PAGES_KEPT = 1024
"""Free pages that are not returned to the file system, because the next messages will need them."""

PAGES_GIVEN_BACK = 64
"""How many free pages are returned in one piece of clean-up."""


class SqliteReader(SqlReader):
    """A read-only store, for any process on this machine."""

    def __init__(self, path: str | Path, *, may_be_older: bool = False) -> None:
        """``may_be_older``: accept a file of an earlier version, which can be copied."""
        self._path = Path(path).absolute()  # the working directory may change
        super().__init__(Pool(lambda: connect_reader(self._path), lambda _: False))
        if not self._path.exists():
            raise NotFound(f"there is no store at '{path}'")
        refuse_network_file_system(self._path)
        refuse_other_file(self._path)
        if owner_of(self._path) is None:
            refuse_damaged_log(self._path)
        with self.reading() as session:
            refuse_foreign_file(session, self._path)
            migrations = load_migrations("sqlite")
            oldest = migrations[0 if may_be_older else -1].version
            if is_new(session):
                raise NotAStore(f"'{path}' is empty: choose another file")
            if schema_version(session, migrations) < oldest:
                raise NotAStore(f"'{path}' has an older schema: its owner must open it first")

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def close(self) -> None:
        super().close()
        if owner_of(self._path) is None:
            remove_empty_log(self._path)

    def backup(self, path: str) -> None:
        """The copy has a temporary name at first: a file under ``path`` is always a complete backup."""
        goal = Path(path).absolute()
        try:
            if goal.exists():
                raise FileExistsError
            with unfinished(goal) as partial:
                self._copy_to(partial)
                put_in_place(partial, goal)
        except FileExistsError:
            raise AlreadyExists(f"'{path}' already exists: choose another name for the backup") from None
        except OSError as error:
            raise StoreFailed(f"the backup '{path}' can't be written: {error.strerror}") from error

    def _copy_to(self, file: Path) -> None:
        self._require_usable()
        with self._pool.use() as source:
            try:
                with closing(sqlite3.connect(file)) as target:
                    source.backup(target)
                    # One file, beside which a reader leaves nothing. Whoever owns it next chooses the journal anew.
                    target.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.Error as error:
                raise as_store_error(error) from error

    @contextmanager
    def reading(self) -> Iterator[SqliteSession]:
        self._require_usable()
        with self._pool.use() as connection:
            session = SqliteSession(connection)
            session.command("BEGIN")
            try:
                yield session
            except (TypeError, ValueError, IndexError) as error:  # columns that hold something else than was written
                raise DamagedStore(f"a row of the store is damaged: restore a backup ({error})") from error
            session.command("COMMIT")


class SqliteStore(SqliteReader, SqlWriter[SqliteSession]):
    """The store of the owner, who alone may write."""

    def __init__(self, path: str | Path) -> None:
        file = Path(path).absolute()
        refuse_network_file_system(file.parent)
        self._surplus = 0
        refuse_other_file(file)
        with ExitStack() as undo:
            self._lock = OwnerLock(Path(f"{file}.lock"))
            undo.callback(self._lock.release)
            refuse_damaged_log(file)
            self._writer = connect_writer(file)
            undo.callback(self._writer.close)
            SqliteSession(self._writer).command("PRAGMA wal_checkpoint(TRUNCATE)")  # ``wal_damage.py`` says why
            self._epoch = self._take_over()
            super().__init__(file)
            undo.pop_all()

    def _take_over(self) -> int:
        """Migrate the file and raise its epoch, in one transaction."""
        session = SqliteSession(self._writer)
        session.command("BEGIN IMMEDIATE")
        migrate(session, load_migrations("sqlite"), new=is_new(session))
        rows = session.rows("raise_epoch")
        if len(rows) != 1:
            raise DamagedStore("the table of owners is damaged: run 'seriatim store check', and restore a backup")
        for where, what in problems_of_rows(session):
            raise DamagedStore(f"{where}: {what}: run 'seriatim store check', and restore a backup")
        session.command("COMMIT")
        return int(rows[0][0])

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
        """Find out how many free pages will not be needed soon; True if there are more than one piece returns."""
        free, pages = session.rows("free_pages")[0][0], session.rows("all_pages")[0][0]
        self._surplus = free - max(FREE_PAGES_KEPT, pages // 4)
        return bool(self._surplus > PAGES_GIVEN_BACK)

    def _give_back_pages(self, pages: int) -> None:
        """Shrink the file, in a transaction of its own.

        As a script, because ``execute`` runs this pragma for one step only, whatever the number.
        """
        with self._turn:
            self._require_usable()
            try:
                self._writer.executescript(f"PRAGMA incremental_vacuum({pages})")
            except sqlite3.Error as error:
                raise as_store_error(error) from error

    def _new_session(self) -> SqliteSession:
        return SqliteSession(self._writer)

    def _begin(self, session: SqliteSession) -> None:
        session.command("BEGIN IMMEDIATE")
        if session.rows("epoch")[0][0] != self._epoch:
            self._unusable = TAKEN_OVER
            self._require_usable()

    def _commit(self, session: SqliteSession) -> None:
        try:
            session.command("COMMIT")
        except (StoreBusy, StoreFull):
            raise
        except StoreError as error:
            self._break("a commit failed")
            raise OutcomeUnknown(
                "it is unknown whether the commit took place: open the store again, and look before you write the same again "
                f"({error})"
            ) from error
        except BaseException:  # a signal's, in the middle of it or just after it
            self._break("a commit was interrupted")
            raise

    def _roll_back(self, _: SqliteSession) -> None:
        """Nothing was committed. A connection that can't roll back is not used again."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._break("a rollback failed")
