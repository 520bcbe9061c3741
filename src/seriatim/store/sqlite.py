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
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotAStore,
    NotFound,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreLost,
)
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    PausedRow,
    Position,
    Problem,
    Record,
    Transaction,
    TroubleRow,
    UpkeepReport,
)
from seriatim.store.ownership import OwnerLock, refuse_network_file_system
from seriatim.store.sql import reading
from seriatim.store.sql.integrity import find_problems
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.schema import migrate, schema_version
from seriatim.store.sql.transaction import Known, SqlTransaction
from seriatim.store.sql.upkeep import Sweep
from seriatim.store.sqlite_session import (
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


class SqliteReader:
    """The reading verbs, for anybody on this machine."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._pid = os.getpid()
        self._unusable: str | None = None
        self._idle: list[sqlite3.Connection] = []
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

    @property
    def epoch(self) -> int:
        with self._reading() as session:
            return int(session.rows("epoch")[0][0])

    def catalog(self) -> Catalog:
        with self._reading() as session:
            return reading.read_catalog(session)

    def cursor(self, subscription_id: int) -> Cursor:
        with self._reading() as session:
            return reading.read_cursor(session, subscription_id)

    def troubles(self, subscription_id: int) -> list[TroubleRow]:
        with self._reading() as session:
            return reading.read_troubles(session, subscription_id)

    def paused_keys(self, subscription_id: int) -> list[PausedRow]:
        with self._reading() as session:
            return reading.read_paused_keys(session, subscription_id)

    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]:
        with self._reading() as session:
            return reading.read_dead_letters(session, subscription_id)

    def positions(self, topic_id: int, first: int = 0) -> Iterator[Sequence[Position]]:
        while True:
            with self._reading() as session:
                packs = reading.read_positions(session, topic_id, first)
            if not packs:
                return
            first = packs[-1][-1].offset + 1
            yield from packs

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        with self._reading() as session:
            return reading.fetch_records(session, topic_id, offsets)

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        with self._reading() as session:
            return reading.read_records(session, topic_id, first, limit)

    def earliest(self, topic_id: int) -> int:
        with self._reading() as session:
            return reading.read_earliest(session, topic_id)

    def check(self) -> Iterator[Problem]:
        return find_problems(self._reading)

    def backup(self, path: str) -> None:
        """Copied to a name of its own first: a file under ``path`` is always a whole backup."""
        if Path(path).exists():
            raise AlreadyExists(f"'{path}' exists already: choose another name for the backup")
        partial = Path(f"{path}.partial")
        partial.unlink(missing_ok=True)
        with self._connection() as source:
            try:
                with closing(sqlite3.connect(partial)) as target:
                    source.backup(target)
            except sqlite3.Error as error:
                raise as_store_error(error) from error
        partial.rename(path)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._unusable = self._unusable or "it was closed"
            while self._idle:
                self._idle.pop().close()

    @contextmanager
    def _reading(self) -> Iterator[SqliteSession]:
        """A session in a transaction that sees one moment of the store."""
        with self._connection() as connection:
            session = SqliteSession(connection)
            session.command("BEGIN")
            yield session
            session.command("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading, kept for the next one unless something went wrong with it."""
        self._require_usable()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = connect_reader(self._path)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._unusable:
            connection.close()
        else:
            self._idle.append(connection)

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreLost("the store was opened before a fork: open it again in this process")
        if self._unusable:
            raise StoreLost(f"the store can't be used any more, because {self._unusable}: open it again")


class SqliteStore(SqliteReader):
    """The owner of a file, and everything that only an owner may do."""

    def __init__(self, path: str | Path) -> None:
        refuse_network_file_system(Path(path).parent)
        self._turn = threading.Lock()
        self._writing_thread: int | None = None
        self._sweep = Sweep()
        self._known = Known()
        with ExitStack() as undo:
            self._lock = OwnerLock(Path(f"{path}.lock"))
            undo.callback(self._lock.release)
            self._writer = connect_writer(Path(path))
            undo.callback(self._writer.close)
            self._epoch = self._take_over()
            super().__init__(path)
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

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        try:
            with self._unit_of_work() as session:
                yield SqlTransaction(session, self._known)
        except BaseException:
            self._known = Known()
            raise

    def upkeep(self, now: float) -> UpkeepReport:
        try:
            with self._unit_of_work() as session:
                report = self._sweep.piece(session, now)
                surplus = 0 if report.more_to_do else _surplus_pages(session)
            if surplus > 0:
                self._give_back_pages(min(surplus, PAGES_GIVEN_BACK))
        except BaseException:
            self._sweep = Sweep()
            raise
        return report._replace(more_to_do=report.more_to_do or surplus > PAGES_GIVEN_BACK)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._refuse_inside_transaction()
        super().close()
        with self._turn:
            self._writer.close()
        self._lock.release()

    def _give_back_pages(self, pages: int) -> None:
        """Shrink the file by some free pages, in a transaction of SQLite's own.

        As a script, because ``execute`` lets this pragma run for one step only, whatever number it is given.
        """
        with self._turn:
            self._require_usable()
            try:
                self._writer.executescript(f"PRAGMA incremental_vacuum({pages})")
            except sqlite3.Error as error:
                raise as_store_error(error) from error

    @contextmanager
    def _unit_of_work(self) -> Iterator[SqliteSession]:
        """One transaction at a time, all or nothing."""
        self._require_usable()
        self._refuse_inside_transaction()
        with self._turn:
            self._require_usable()
            self._writing_thread = threading.get_ident()
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
                self._writing_thread = None

    def _refuse_inside_transaction(self) -> None:
        if self._writing_thread == threading.get_ident():
            raise FailedPrecondition("a transaction is under way in this thread: end it first")

    def _begin(self, session: SqliteSession) -> None:
        session.command("BEGIN IMMEDIATE")
        if session.rows("epoch")[0][0] != self._epoch:
            self._unusable = "another process has taken it over"
            self._require_usable()

    def _commit(self, session: SqliteSession) -> None:
        session.require_unbroken()
        try:
            session.command("COMMIT")
        except (StoreBusy, StoreFull):
            raise
        except StoreError as error:
            self._unusable = "a commit failed"
            raise OutcomeUnknown(
                f"nobody can know whether the commit took place: open the store again ({error})"
            ) from error

    def _roll_back(self) -> None:
        """Nothing was committed; a connection that can't even say so is not used again."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._unusable = "a rollback failed"


def _surplus_pages(session: SqliteSession) -> int:
    """How many pages of the file are free and will not be needed soon."""
    free, pages = session.rows("free_pages")[0][0], session.rows("all_pages")[0][0]
    return int(free - max(FREE_PAGES_KEPT, pages // 4))
