"""Connections to PostgreSQL: how they are opened, what they are asked, and what their errors mean.

Rules
    - Statements are sent without waiting for their answers (pipeline mode). Whoever asks for rows waits for everything before
      them; whoever only writes waits once, at the commit. An error stops all that was sent after it.
    - Everything is sent before an answer is waited for, and answers that arrive meanwhile are read: otherwise client and server
      would each wait for the other as soon as a transaction is larger than the buffers of the connection.
    - What the server refuses has changed nothing. Only when the connection ends during a commit nobody can know.
    - Text may hold any character, although PostgreSQL can't keep the character 0: see ``_Text``.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from time import monotonic
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader, TextLoader

from seriatim.errors import (
    DamagedStore,
    InvalidArgument,
    SeriatimError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLost,
)
from seriatim.store.postgres.url import NO_ADDRESS, PostgresUrl
from seriatim.store.sql.queries import load_queries
from seriatim.store.sql.reader import TAKEN_OVER, lost_because
from seriatim.store.sql.session import Result, Row, UnitOfWork

LOCK_SECONDS = 5.0
"""How long anything waits for a lock of somebody else."""

PREPARED_STATEMENTS = 500
"""More than there are queries: none is ever prepared twice on a connection."""

Connection = psycopg.Connection[Any]

_FAILED = (StoreFailed, "PostgreSQL could not do it: look at its log")
_KINDS: dict[str, tuple[type[StoreError], str]] = {
    "SE001": (StoreLost, str(lost_because(TAKEN_OVER))),
    "40001": (StoreBusy, "another program changed the same: try again"),
    "40P01": (StoreBusy, "another program waits for the same locks: try again"),
    "42501": (StoreFailed, "the role may not do this: grant it what the store needs, or give another user"),
    "42P01": (
        StoreFailed,
        "a table of the store is not there, or the role may not see it: grant it USAGE on the schema",
    ),
    "25006": (StoreFailed, "the server only reads (a replica?): give the address of the primary"),
    "53100": (StoreFull, "there is no room left for the store: make room on the disk of the server"),
    "55P03": (StoreBusy, "another program has locked the store: let it finish"),
    "57P01": (StoreFailed, "the server ended the connection: try again"),
    "57P02": (StoreFailed, "the server ended the connection: try again"),
    "57P05": (StoreFailed, "the server ended the connection: try again"),
    "XX001": (DamagedStore, "a page of the database is damaged: restore a backup"),
    "XX002": (DamagedStore, "an index of the database is damaged: REINDEX it, or restore a backup"),
}


def as_store_error(error: Exception) -> SeriatimError:
    """What an error of PostgreSQL means to us."""
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError) or "cannot adapt" in str(error):
        return InvalidArgument(f"the store can't keep this value ({_first_line(error)})")
    code = getattr(error, "sqlstate", None)
    kind, what = _KINDS.get(code, _FAILED) if code else (StoreFailed, "the connection to PostgreSQL failed: try again")
    return kind(f"{what} ({_first_line(error)})")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# -- connections --------------------------------------------------------------------------------------------------------


def connect(address: PostgresUrl) -> Connection:
    """A connection that waits for nothing for ever, and on which committed means durable."""
    try:
        connection = psycopg.Connection.connect(address.conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
    except psycopg.ProgrammingError:
        raise InvalidArgument(NO_ADDRESS) from None
    except psycopg.Error as error:
        raise StoreFailed(
            f"no connection to {address.public}: see that PostgreSQL runs there, that the database exists and the user may "
            f"use it ({' '.join(str(error).split())})"
        ) from error
    connection.prepared_max = PREPARED_STATEMENTS
    adapters = connection.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(str, _Text)
    adapters.register_loader("text", _TextLoader)
    adapters.register_loader("text", _TextBinaryLoader)
    try:
        session = PostgresSession(connection)
        session.rows("prepare_session", f'"{address.schema}"', f"{round(LOCK_SECONDS * 1000)}")
    except BaseException:
        connection.close()
        raise
    return connection


def is_gone(connection: Connection) -> bool:
    """Whether the other side has ended a connection that nothing is expected from."""
    poller = select.poll()
    try:
        poller.register(connection.fileno(), select.POLLIN)
        while poller.poll(0):
            connection.pgconn.consume_input()
    except psycopg.Error:
        return True
    return is_broken(connection)


def is_broken(connection: Connection) -> bool:
    """Whether a connection is known to be of no use any more."""
    return connection.closed or connection.pgconn.status == ConnStatus.BAD


class Progress:
    """When a transaction last got on. The heartbeat asks, from its own thread."""

    def __init__(self) -> None:
        self._last: float | None = None

    def note(self) -> None:
        """Something was asked, answered or sent."""
        self._last = monotonic()

    def end(self) -> None:
        """No transaction is under way."""
        self._last = None

    def stalled_for(self) -> float:
        """Seconds since the transaction under way last got on; 0 when there is none."""
        last = self._last
        return 0.0 if last is None else monotonic() - last


class Pipe:
    """A connection in pipeline mode: what is asked of it is sent, and answered when somebody needs an answer."""

    def __init__(self, connection: Connection, progress: Progress | None = None) -> None:
        self.connection = connection
        self.backend = connection.info.backend_pid
        self.progress = progress or Progress()
        self._open = ExitStack()
        self._pipeline = self._open.enter_context(connection.pipeline())

    def sync(self) -> None:
        """Wait for everything that was sent."""
        self._flush()
        self._pipeline.sync()

    def _flush(self) -> None:
        """Hand everything to the operating system: psycopg's own ``sync`` tries once, and then only waits for answers."""
        poller = select.poll()
        poller.register(self.connection.fileno(), select.POLLIN | select.POLLOUT)
        while self.connection.pgconn.flush():
            ((_, ready),) = poller.poll()
            self.progress.note()
            if ready & select.POLLIN:
                self.connection.pgconn.consume_input()

    def roll_back(self) -> bool:
        """End a transaction; False when the connection is of no use any more."""
        with suppress(psycopg.Error):  # what went wrong was said already
            self.sync()
        try:
            if not is_gone(self.connection) and self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")
                self.sync()
        except psycopg.Error:
            return False
        return not is_broken(self.connection)

    def leave(self) -> None:
        """Back to asking and waiting for each answer."""
        with suppress(psycopg.Error):
            self._open.close()

    def close(self) -> None:
        self.leave()
        self.connection.close()


# -- sessions -----------------------------------------------------------------------------------------------------------


class PostgresSession(UnitOfWork):
    """One transaction on a connection: named queries, our errors."""

    failures = psycopg.Error

    def __init__(self, connection: Connection, progress: Progress | None = None) -> None:
        super().__init__()
        self._connection = connection
        self._progress = progress or Progress()
        self._queries = _encoded_queries()

    @property
    def is_fenced(self) -> bool:
        """Whether the server said that the epoch is not ours any more."""
        return isinstance(self._over, StoreLost)

    def rows(self, query: str, *values: object) -> list[Row]:
        return self._ask(self._fetch, query, values)

    def run(self, query: str, *values: object) -> None:
        self._ask(self._send, query, values)

    def run_many(self, query: str, rows: Iterable[Row]) -> None:
        for values in rows:
            self._ask(self._send, query, values)

    def run_script(self, script: str) -> None:
        self.command(script)

    def command(self, statement: str) -> None:
        """Statements that are not a named query: transaction control, migrations."""
        self._ask(self._connection.execute, statement.encode())

    def commit(self, pipe: Pipe) -> None:
        self._ask(self._connection.execute, b"COMMIT")
        self._ask(pipe.sync)

    def _fetch(self, query: str, values: Row) -> list[Row]:
        return self._send(query, values).fetchall()

    def _send(self, query: str, values: Row) -> psycopg.Cursor[Any]:
        return self._connection.execute(self._queries[query], values, prepare=True, binary=True)

    def _ask(self, function: Callable[..., Result], *arguments: object) -> Result:
        self._progress.note()
        return super()._ask(function, *arguments)

    def _as_store_error(self, error: Exception) -> SeriatimError:
        return as_store_error(error)


@cache
def _encoded_queries() -> Mapping[str, bytes]:
    return {name: text.encode() for name, text in load_queries("postgres").items()}


# -- text ---------------------------------------------------------------------------------------------------------------


class _Text(StrBinaryDumper):
    """Text with the character 0, which PostgreSQL can't keep, written as two others. All other text stays as it is."""

    def dump(self, obj: str) -> Any:
        return super().dump(_escape(obj) if "\0" in obj or "\1" in obj else obj)


class _TextLoader(TextLoader):
    def load(self, data: Any) -> Any:
        return _unescape(super().load(data))


class _TextBinaryLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        return _unescape(super().load(data))


def _escape(text: str) -> str:
    return text.replace("\1", "\1b").replace("\0", "\1a")


def _unescape(text: str | bytes) -> str | bytes:
    return text.replace("\1a", "\0").replace("\1b", "\1") if isinstance(text, str) and "\1" in text else text
