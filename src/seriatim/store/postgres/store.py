"""A store in a schema of a PostgreSQL database, for an active engine and its standbys.

Rules
    - ``PostgresStore`` is the owner: see ``ownership.py``. ``PostgresReader`` owns nothing and only reads, also from a
      replica; any number of them may be open.
    - Committed means on the disk of the server: ``synchronous_commit`` is on in every session.
    - A transaction is sent as a whole and answered once. If the connection is lost before the commit is sent, nothing has
      changed, and the next transaction reconnects, unless another owner has taken over (``StoreLost``). If it is lost during
      the commit, the outcome is unknown: the store does nothing more until it is reopened.
    - A handle belongs to the process that opened it; in a forked child it refuses everything.
"""

from __future__ import annotations

import json
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
from seriatim.store.base import OutboxRow, Standby
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
from seriatim.store.sql.pool import Pool
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.reader import TAKEN_OVER, SqlReader, staged_heads
from seriatim.store.sql.schema import schema_version
from seriatim.store.sql.writable_store import SqlWriter
from seriatim.store.staged_messages import IN_DATABASE, require_messages

OUTBOX_MESSAGES, OUTBOX_BYTES = 1000, 16 * 1024 * 1024
"""How much is taken from the outbox at once."""


class PostgresReader(SqlReader):
    """A read-only store, for any role that may read the schema."""

    def __init__(self, url: str) -> None:
        self._address = PostgresUrl.parse(url)
        super().__init__(Pool(lambda: Pipe(connect(self._address)), lambda pipe: is_gone(pipe.connection)))
        with ExitStack() as undo:
            undo.callback(self._pool.close)
            with self.reading() as session:
                self._require_our_schema(session)
            undo.pop_all()

    @property
    def url(self) -> str:
        return self._address.public

    def outbox(self) -> list[OutboxRow]:
        with self.reading() as session:
            rows = session.rows("outbox", OUTBOX_MESSAGES, OUTBOX_BYTES)
        return [
            OutboxRow(id_, topic, key, data, json.loads(attributes) if attributes else None)
            for id_, topic, key, data, attributes in rows
        ]

    def backup(self, path: str) -> None:
        raise FailedPrecondition(
            f"a store in PostgreSQL is backed up with PostgreSQL's own tools: pg_dump --schema={self._address.schema} "
            f"--format=custom --file={path} (a consistent copy, while the store is in use)"
        )

    def _require_our_schema(self, session: PostgresSession) -> None:
        schema, migrations = self._address.schema, load_migrations("postgres")
        if is_new(session, schema):
            raise NotFound(f"there is no store in schema '{schema}' of {self.url}")
        refuse_foreign_schema(session, schema)
        if schema_version(session, migrations) < migrations[-1].version:
            raise NotAStore(f"schema '{schema}' of {self.url} has an older schema: its owner must open it first")

    @contextmanager
    def reading(self) -> Iterator[PostgresSession]:
        self._require_usable()
        with self._pool.use() as pipe:
            session = PostgresSession(pipe.connection)
            session.command("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield session
            session.commit(pipe)


class PostgresStore(PostgresReader, SqlWriter[PostgresSession]):
    """The store of the owner, who alone may write."""

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

    def check_staged(self, file: str, messages: int) -> None:
        if not file.startswith(IN_DATABASE):
            super().check_staged(file, messages)
            return
        with self.reading() as session:
            heads = (head for _, head in staged_heads(session, file.removeprefix(IN_DATABASE)))
            require_messages(file, heads, messages)

    def close(self) -> None:
        if self._pid != os.getpid() or self._is_closed:
            return
        self._refuse_inside_transaction()
        self._is_closed = True
        super().close()
        with self._turn:
            self._heartbeat.stop()  # only now: it ends a transaction that hangs, for which this would wait
            self._pipe.leave()
            give_back(self._address, Claim(self._pipe.connection, self._epoch))

    def _new_session(self) -> PostgresSession:
        if is_gone(self._pipe.connection):
            self._connect_again()
        return PostgresSession(self._pipe.connection, self._progress)

    def _begin(self, session: PostgresSession) -> None:
        session.command("BEGIN ISOLATION LEVEL READ COMMITTED")
        session.run("hold_epoch", self._epoch)

    def _commit(self, session: PostgresSession) -> None:
        if is_gone(self._pipe.connection):
            raise StoreFailed("the connection to PostgreSQL was lost before the commit: try again")
        try:
            session.commit(self._pipe)
        except (StoreError, InvalidArgument) as error:
            if not is_broken(self._pipe.connection):
                raise  # the server did not commit
            self._break("a commit failed")
            raise OutcomeUnknown(
                f"it is unknown whether the commit took place: open the store again ({error})"
            ) from error
        except BaseException:  # the wait for the answer was interrupted
            self._break("a commit was interrupted")
            raise

    def _roll_back(self, session: PostgresSession) -> None:
        """Nothing was committed. If the connection is gone, find out whether another owner has taken over."""
        if session.is_fenced:
            self._lose()
        elif self._unusable == TAKEN_OVER:  # the heartbeat has found out already
            self._require_usable()
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
