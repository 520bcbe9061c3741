"""A store in a schema of a PostgreSQL database, for an active engine and its standbys.

Rules
    - ``PostgresStore`` is the owner: see ``ownership.py``. ``PostgresReader`` owns nothing and only reads, also on a
      replica; any number of them may be open.
    - Committed means on the disk of the server: ``synchronous_commit`` is on in every session.
    - A transaction is sent as a whole and answered once. When the connection is found lost before the commit is sent, nothing
      was changed, and the next transaction connects again, unless another owner has taken over (``StoreLost``). When it is lost
      during the commit nobody can know: the store does nothing more until it is opened again.
    - A handle belongs to the process that opened it; in a forked child it refuses everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from seriatim.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotAStore,
    NotFound,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreLost,
)
from seriatim.store.base import Standby
from seriatim.store.postgres.ownership import (
    Claim,
    Claimant,
    Heartbeat,
    give_back,
    is_new,
    refuse_foreign_schema,
)
from seriatim.store.postgres.session import Pipe, PostgresSession, Progress, connect, is_broken, is_gone
from seriatim.store.postgres.url import PostgresUrl
from seriatim.store.sql.owner import SqlOwner
from seriatim.store.sql.pool import Pool
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.reader import TAKEN_OVER, SqlReader
from seriatim.store.sql.schema import schema_version


class PostgresReader(SqlReader):
    """The reading verbs, for anybody who may read the schema."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = PostgresUrl.parse(url)
        self._pool = Pool(lambda: Pipe(connect(self._address)), lambda pipe: is_gone(pipe.connection))
        with ExitStack() as undo:
            undo.callback(self._pool.close)
            with self._reading() as session:
                self._require_our_schema(session)
            undo.pop_all()

    @property
    def url(self) -> str:
        return self._address.public

    def backup(self, path: str) -> None:
        raise FailedPrecondition(
            f"a store in PostgreSQL is backed up with PostgreSQL's own tools: pg_dump --schema={self._address.schema} "
            f"--format=custom --file={path} (a consistent copy, while the store is in use)"
        )

    def close(self) -> None:
        if self._pid == os.getpid():
            self._unusable = self._unusable or "it was closed"
            self._pool.close()

    def _require_our_schema(self, session: PostgresSession) -> None:
        schema, migrations = self._address.schema, load_migrations("postgres")
        if is_new(session, schema):
            raise NotFound(f"there is no store in schema '{schema}' of {self.url}")
        refuse_foreign_schema(session, schema)
        if schema_version(session, migrations) < migrations[-1].version:
            raise NotAStore(f"schema '{schema}' of {self.url} has an older schema: its owner must open it first")

    @contextmanager
    def _reading(self) -> Iterator[PostgresSession]:
        self._require_usable()
        with self._pool.use() as pipe:
            session = PostgresSession(pipe.connection)
            session.command("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield session
            session.commit(pipe)


class PostgresStore(PostgresReader, SqlOwner[PostgresSession]):
    """The owner of a schema, and everything that only an owner may do."""

    def __init__(self, url: str, standby: Standby | None = None) -> None:
        address = PostgresUrl.parse(url)
        self._claimant = Claimant(address, load_migrations("postgres"))
        claim = self._claimant.claim_when_free(standby) if standby else self._claimant.claim_now()
        self._epoch = claim.epoch
        self._is_closed = False
        with ExitStack() as undo:
            undo.callback(give_back, address, claim)
            super().__init__(url)
            undo.pop_all()
        self._progress = Progress()
        self._pipe = Pipe(claim.connection, self._progress)
        self._heartbeat = Heartbeat(address, self._epoch, self._progress, lambda: self._pipe.backend, self._lose)

    @property
    def epoch(self) -> int:
        return self._epoch

    def close(self) -> None:
        if self._pid != os.getpid() or self._is_closed:
            return
        self._refuse_inside_transaction()
        self._is_closed = True
        super().close()
        with self._turn:
            self._heartbeat.stop()  # not before: it ends a transaction that hangs, which would keep us waiting here
            self._pipe.leave()
            give_back(self._address, Claim(self._pipe.connection, self._epoch))

    @contextmanager
    def _working(self) -> Iterator[PostgresSession]:
        if is_gone(self._pipe.connection):
            self._connect_again()
        session = PostgresSession(self._pipe.connection, self._progress)
        try:
            session.command("BEGIN ISOLATION LEVEL READ COMMITTED")
            session.run("hold_epoch", self._epoch)
            yield session
            self._commit(session)
        except BaseException:
            self._roll_back(session)
            raise
        finally:
            session.end()
            self._progress.end()

    def _commit(self, session: PostgresSession) -> None:
        session.require_unbroken()
        if is_gone(self._pipe.connection):
            raise StoreFailed("the connection to PostgreSQL was lost before the commit: try again")
        try:
            session.commit(self._pipe)
        except (StoreError, InvalidArgument) as error:
            if not is_broken(self._pipe.connection):
                raise  # the server said that it did not commit
            self._break("a commit failed")
            raise OutcomeUnknown(
                f"nobody can know whether the commit took place: open the store again ({error})"
            ) from error
        except BaseException:  # the wait for the answer was interrupted
            self._break("a commit was interrupted")
            raise

    def _roll_back(self, session: PostgresSession) -> None:
        """Nothing was committed. When the connection is gone, it is found out whether another owner is the reason."""
        if session.is_fenced:
            self._lose()
        elif not self._unusable and not self._pipe.roll_back():
            with suppress(StoreBusy, StoreFailed):  # no server: the next transaction tries again
                self._connect_again()

    def _connect_again(self) -> None:
        self._pipe.close()
        try:
            self._pipe = Pipe(self._claimant.reclaim(self._epoch), self._progress)
        except StoreLost:
            self._lose()
            raise

    def _lose(self) -> None:
        self._unusable = self._unusable or TAKEN_OVER
