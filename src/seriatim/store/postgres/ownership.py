"""One process owns a PostgreSQL store, others stand by.

Rules
    - The owner is the process that raised the **epoch** last. Every transaction locks the epoch and compares it, so that a
      former owner can change nothing.
    - The **owner lock** (an advisory lock on the connection that writes) shows that there is an owner. It ends with that
      connection: when the owner's process dies, another one may take over at once.
    - The **lease** shows that the owner is alive: a thread renews it, by the clock of the server. An owner that is suspended,
      or cut off from the server, keeps its connection, and perhaps an open transaction with its locks. Once its lease has
      expired, a process that wants the store terminates that connection on the server, and takes over.
    - An owner whose transaction **stalls** loses its lease, too: when nothing of the transaction was sent or received for
      longer than ``stall_timeout``, and the server was not working on it either (it waits for the client, for a lock, for time
      to pass), the lease is no longer renewed and the connection is terminated on the server. Its transaction is rolled back.
      If no other process takes over, the owner continues with a new connection.
    - One process at a time opens a store (the **opening lock**), so that epoch, lock and lease always change together.

Theory of operation
    A standby requests the owner lock as SHARE, in a statement of its own: PostgreSQL answers when the owner is gone, or when
    the lease could have expired (lock_timeout). Then the standby tries to open the store. After a lost connection the owner
    regains its lock in the same way, provided that the epoch is still its own.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from time import monotonic
from typing import NamedTuple

import psycopg

from seriatim.errors import NotAStore, StoreBusy, StoreError, StoreFailed
from seriatim.log import logger
from seriatim.store.base import Standby
from seriatim.store.postgres.session import (
    LOCK_SECONDS,
    Connection,
    PostgresSession,
    Progress,
    as_store_error,
    connect,
    is_broken,
)
from seriatim.store.postgres.url import PostgresUrl
from seriatim.store.sql.queries import Migration
from seriatim.store.sql.reader import TAKEN_OVER, lost_because
from seriatim.store.sql.schema import migrate, schema_version

GRACE = 0.5
"""Seconds to wait before a store is reported busy: the server needs a moment to notice that an owner has died."""

BEATS_PER_LEASE = 3

ANSWER_SECONDS = 5.0
"""How long a server may take for a trivial request before it is considered dead."""

OUR_MARK = "Seriatim"


class LeaseHolder(NamedTuple):
    """Another process that owns the store."""

    process: int
    host: str
    application: str
    remaining: float
    """Seconds until the lease expires."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} ({self.application})"

    @property
    def patience(self) -> float:
        """Seconds to wait before the store is reported busy: longer if the owner has died, as its lock will be free soon."""
        return self.remaining if self._has_died() else min(self.remaining, GRACE)

    def _has_died(self) -> bool:
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it runs, as another user
        return False


class Claim(NamedTuple):
    """A connection with the owner lock, and the epoch that it writes in."""

    connection: Connection
    epoch: int


class Claimant:
    """A process that wants to own the store at an address."""

    def __init__(self, address: PostgresUrl, migrations: Sequence[Migration]) -> None:
        self._address = address
        self._migrations = migrations

    def claim_now(self) -> Claim:
        """Become the owner; StoreBusy, which names the owner, if there is one."""
        connection = connect(self._address)
        with _closed_on_error(connection), Standby() as nobody:
            found = self._try(connection)
            if isinstance(found, LeaseHolder):
                self._wait(connection, found.patience, nobody)
                found = self._try(connection)
            if isinstance(found, LeaseHolder):
                raise StoreBusy(
                    f"the store is owned by {found}: use it through that process, stop the process, or stand by"
                )
            return Claim(connection, found)

    def claim_when_free(self, standby: Standby) -> Claim:
        """Become the owner as soon as there is none. The wait survives a restart of the server."""
        connect(self._address).close()  # a wrong address fails at once
        while not standby.is_cancelled:
            try:
                if claim := self._stand_by(standby):
                    return claim
            except (StoreBusy, StoreFailed) as error:
                logger.warning("standing by for %s: %s", self._address.public, error)
                standby.wait(self._address.lease)
        raise StoreBusy("the store is owned by another process, and the wait for it was cancelled")

    def _stand_by(self, standby: Standby) -> Claim | None:
        """Wait on one connection; None if the wait was cancelled."""
        connection = connect(self._address)
        with _closed_on_error(connection):
            while isinstance(found := self._try(connection), LeaseHolder):
                self._wait(connection, found.remaining, standby)
                if standby.is_cancelled:
                    connection.close()
                    return None
            return Claim(connection, found)

    def reclaim(self, epoch: int) -> Connection:
        """A new connection for the owner that lost its own; StoreLost if another process has taken over."""
        connection = connect(self._address)
        with _closed_on_error(connection), _opening(connection, self._address) as session:
            if not is_ours(session, self._address.schema) or session.rows("epoch")[0][0] != epoch:
                raise lost_because(TAKEN_OVER)
            _get_lock(session, self._address.schema)  # its holder is our own lost connection
            return connection

    def _try(self, connection: Connection) -> int | LeaseHolder:
        """One attempt: the epoch of the new owner, or the present owner."""
        schema = self._address.schema
        with _opening(connection, self._address) as session:
            new = is_new(session, schema)
            if not new:
                refuse_foreign_schema(session, schema)
                schema_version(session, self._migrations)
                if owner := _living_owner(session, schema):
                    return owner
            _get_lock(session, schema)
            if not session.rows("schema_names", schema):
                session.command(f'CREATE SCHEMA "{schema}"')
            migrate(session, self._migrations, new=new)
            return self._put_owner(session, connection.info.get_parameters().get("application_name", ""))

    def _put_owner(self, session: PostgresSession, application: str) -> int:
        epoch = int(session.rows("raise_epoch")[0][0])
        session.run("put_owner", epoch, os.getpid(), socket.gethostname(), application, self._address.lease)
        return epoch

    def _wait(self, connection: Connection, seconds: float, standby: Standby) -> None:
        """Wait until the owner is gone, its lease could have expired, or the wait is cancelled."""
        milliseconds = round(seconds * 1000) + 10
        key = _key(self._address.schema, "owner")
        statement = f"SET LOCAL lock_timeout = {milliseconds}; SELECT pg_advisory_xact_lock_shared({key})"
        try:
            connection.pgconn.send_query(statement.encode())
            connection.pgconn.flush()
            if standby.wait(seconds + ANSWER_SECONDS, connection.fileno()):
                while connection.pgconn.get_result():
                    pass  # whether the lock is free or the wait timed out: the next attempt will tell
            elif not standby.is_cancelled:
                raise StoreFailed(f"no answer from {self._address.public}")
        except psycopg.Error as error:
            raise as_store_error(error) from error


@contextmanager
def _closed_on_error(connection: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def _opening(connection: Connection, address: PostgresUrl) -> Iterator[PostgresSession]:
    """A transaction that holds the opening lock; if the block raises, nothing has changed."""
    session = PostgresSession(connection)
    session.command("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        patience = round(max(address.lease, LOCK_SECONDS) * 1000)
        session.rows("lock_opening", _key(address.schema, "opening"), f"{patience}")
        yield session
        session.command("COMMIT")
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute(b"ROLLBACK")
        raise


def _living_owner(session: PostgresSession, schema: str) -> LeaseHolder | None:
    """The holder of the lock and of a lease that has not expired."""
    if not session.rows("holders", _key(schema, "owner")):
        return None
    (row,) = session.rows("owner")
    return LeaseHolder(*row) if (row[3] or 0) > 0 else None


def _get_lock(session: PostgresSession, schema: str) -> None:
    """Take the owner lock, also from a connection that holds it."""
    key = _key(schema, "owner")
    for (backend,) in session.rows("holders", key):
        session.rows("terminate", backend)
    session.rows("own", key)


def _key(schema: str, what: str) -> int:
    """The number of an advisory lock, which has 64 bits and is specific to a database."""
    return int.from_bytes(blake2b(f"seriatim/{schema}/{what}".encode(), digest_size=8).digest(), "big", signed=True)


# -- the schema ---------------------------------------------------------------------------------------------------------


def is_new(session: PostgresSession, schema: str) -> bool:
    """Whether the schema is empty."""
    return not session.rows("table_names", schema)


def is_ours(session: PostgresSession, schema: str) -> bool:
    """Whether the tables in the schema belong to a store."""
    return [tuple(row) for row in session.rows("mark", schema)] == [(OUR_MARK,)]


def refuse_foreign_schema(session: PostgresSession, schema: str) -> None:
    """Raise if the tables belong to another program."""
    if not is_ours(session, schema):
        raise NotAStore(f"schema '{schema}' holds tables of another program: choose another one with ?schema=…")


# -- renewing and releasing the lease -----------------------------------------------------------------------------------


class Heartbeat:
    """A thread that renews the lease, on a connection of its own, until it is stopped or another owner has taken over.

    It also detects stalled transactions.
    """

    def __init__(
        self,
        address: PostgresUrl,
        epoch: int,
        progress: Progress,
        writer: Callable[[], int],
        on_lost: Callable[[], None],
    ) -> None:
        self._address = address
        self._epoch = epoch
        self._progress = progress
        self._writer = writer
        self._on_lost = on_lost
        self._last_at_work = monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="seriatim-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(ANSWER_SECONDS)

    def _beat(self) -> None:
        connection: Connection | None = None
        while not self._stopped.wait(self._address.lease / BEATS_PER_LEASE):
            try:
                connection = connection or connect(self._address)
                if not self._renew(PostgresSession(connection)):
                    self._on_lost()
                    break
            except StoreError as error:  # the server may be back at the next beat
                logger.warning("the lease of %s was not renewed: %s", self._address.public, error)
                if connection:
                    connection.close()
                connection = None
        if connection:
            connection.close()

    def _renew(self, session: PostgresSession) -> bool:
        """Renew the lease, unless the writer stalls; False if another owner has taken over."""
        backend, seconds = self._writer(), self._seconds_without_progress(session)
        if seconds < self._address.stall_timeout:
            return bool(session.rows("renew_lease", self._epoch))
        logger.error(
            "a transaction on %s has made no progress for %.1f seconds: its connection is ended, and a standby may take over",
            self._address.public,
            seconds,
        )
        session.rows("terminate", backend)
        return True

    def _seconds_without_progress(self, session: PostgresSession) -> float:
        """For how long neither we nor the server made progress with the open transaction."""
        stalled = self._progress.stalled_for()
        if not stalled or session.rows("backend_at_work", self._writer()):
            self._last_at_work = monotonic()
        return min(stalled, monotonic() - self._last_at_work)


def give_back(address: PostgresUrl, claim: Claim) -> None:
    """Close the connection of a claim, and release the store at once.

    Without any connection it is free when the server notices that, or when the lease expires.
    """
    with suppress(StoreError), closing(claim.connection):
        usable = connect(address) if is_broken(claim.connection) else claim.connection
        with closing(usable):
            session = PostgresSession(usable)
            session.run("release_lease", claim.epoch)
            session.rows("disown", _key(address.schema, "owner"))
