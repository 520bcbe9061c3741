"""Connections to PostgreSQL: opening them, running queries, and translating errors.

Rules
    - Statements are sent without waiting for their answers (pipeline mode). A query waits for everything sent before it;
      writing waits once, at the commit. An error cancels everything that was sent after it.
    - Everything is sent before an answer is awaited, and answers that arrive in the meantime are read. Otherwise client and
      server would deadlock as soon as a transaction is larger than the buffers of the connection.
    - A statement that the server refuses has changed nothing. Only if the connection ends during a commit, the outcome is
      unknown.
    - Text may contain any character, although PostgreSQL can't store the character 0: see ``_Text``.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from time import monotonic
from typing import Any, TypeVar

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
from seriatim.store.sql.session import Row, Session

LOCK_SECONDS = 5.0
"""How long a statement waits for a lock of another session."""

PREPARED_STATEMENTS = 500
"""More than there are queries: none is ever prepared twice on a connection."""

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

_FAILED = (StoreFailed, "PostgreSQL reported an error: see its log")
_KINDS: dict[str, tuple[type[StoreError], str]] = {
    "SE001": (StoreLost, str(lost_because(TAKEN_OVER))),
    "40001": (StoreBusy, "another program changed the same rows: try again"),
    "40P01": (StoreBusy, "a deadlock with another program: try again"),
    "42501": (StoreFailed, "the role may not do this: grant it what the store needs, or give another user"),
    "42P01": (
        StoreFailed,
        "a table of the store is not there, or the role may not see it: grant it USAGE on the schema",
    ),
    "25006": (StoreFailed, "the server is read-only (a replica?): give the address of the primary"),
    "53100": (StoreFull, "the disk of the database server is full: free some space"),
    "55P03": (StoreBusy, "another program has locked the store: let it finish"),
    "57P01": (StoreFailed, "the server ended the connection: try again"),
    "57P02": (StoreFailed, "the server ended the connection: try again"),
    "57P05": (StoreFailed, "the server ended the connection: try again"),
    "XX001": (DamagedStore, "a page of the database is damaged: restore a backup"),
    "XX002": (DamagedStore, "an index of the database is damaged: REINDEX it, or restore a backup"),
}


def as_store_error(error: Exception) -> SeriatimError:
    """Translate an error of PostgreSQL."""
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError) or "cannot adapt" in str(error):
        return InvalidArgument(f"the store can't keep this value ({_first_line(error)})")
    code = getattr(error, "sqlstate", None)
    kind, what = _KINDS.get(code, _FAILED) if code else (StoreFailed, "the connection to PostgreSQL failed: try again")
    return kind(f"{what} ({_first_line(error)})")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# -- connections --------------------------------------------------------------------------------------------------------


def connect(address: PostgresUrl) -> Connection:
    """A connection on which every wait has a timeout, and committed means durable."""
    try:
        connection = psycopg.Connection.connect(address.conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
    except psycopg.ProgrammingError:
        raise InvalidArgument(NO_ADDRESS) from None
    except psycopg.Error as error:
        raise StoreFailed(
            f"can't connect to {address.public}: check that PostgreSQL runs there, that the database exists and that the "
            f"user may use it ({' '.join(str(error).split())})"
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
    """Whether the server has ended an idle connection."""
    poller = select.poll()
    try:
        poller.register(connection.fileno(), select.POLLIN)
        while poller.poll(0):
            connection.pgconn.consume_input()
    except psycopg.Error:
        return True
    return is_broken(connection)


def is_broken(connection: Connection) -> bool:
    """Whether a connection is known to be unusable."""
    return connection.closed or connection.pgconn.status == ConnStatus.BAD


class Progress:
    """When a transaction last made progress. The heartbeat thread reads it."""

    def __init__(self) -> None:
        self._last: float | None = None

    def note(self) -> None:
        """Something was sent or received."""
        self._last = monotonic()

    def end(self) -> None:
        """No transaction is open."""
        self._last = None

    def stalled_for(self) -> float:
        """Seconds since the open transaction last made progress; 0 if there is none."""
        last = self._last
        return 0.0 if last is None else monotonic() - last


class Pipe:
    """A connection in pipeline mode: statements are sent at once, and answers are read when they are needed."""

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
        """Hand everything to the operating system: psycopg's ``sync`` tries once, and then only waits for answers."""
        poller = select.poll()
        poller.register(self.connection.fileno(), select.POLLIN | select.POLLOUT)
        while self.connection.pgconn.flush():
            ((_, ready),) = poller.poll()
            self.progress.note()
            if ready & select.POLLIN:
                self.connection.pgconn.consume_input()

    def roll_back(self) -> bool:
        """Roll a transaction back; False if the connection is unusable."""
        with suppress(psycopg.Error):  # the error has been raised already
            self.sync()
        try:
            if not is_gone(self.connection) and self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")
                self.sync()
        except psycopg.Error:
            return False
        return not is_broken(self.connection)

    def leave(self) -> None:
        """Leave pipeline mode."""
        with suppress(psycopg.Error):
            self._open.close()

    def close(self) -> None:
        self.leave()
        self.connection.close()


# -- sessions -----------------------------------------------------------------------------------------------------------


class PostgresSession(Session):
    """One transaction on a PostgreSQL connection."""

    def __init__(self, connection: Connection, progress: Progress | None = None) -> None:
        self._connection = connection
        self._progress = progress or Progress()
        self._queries = _encoded_queries()

    @property
    def is_fenced(self) -> bool:
        """Whether the server reported that another owner has raised the epoch."""
        return isinstance(self.broken, StoreLost)

    def end(self) -> None:
        super().end()
        self._progress.end()

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
        """Run statements that are no named query: transaction control, migrations."""
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
        self.require_unbroken()
        try:
            return function(*arguments)
        except psycopg.Error as error:
            raise self.broken_by(as_store_error(error)) from error


@cache
def _encoded_queries() -> Mapping[str, bytes]:
    return {name: text.encode() for name, text in load_queries("postgres").items()}


# -- text ---------------------------------------------------------------------------------------------------------------


class _Text(StrBinaryDumper):
    """Writes the character 0, which PostgreSQL can't store, as two others. All other text stays as it is."""

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
