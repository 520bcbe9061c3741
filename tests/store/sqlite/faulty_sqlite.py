"""SQLite with calls that can be made to fail: each at will, in four ways."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from seriatim.errors import StoreBusy, StoreError, StoreFailed, StoreFull

REAL_CONNECT = sqlite3.connect


class Fault(NamedTuple):
    code: int
    text: str
    after: bool
    """Whether the call is carried out before it reports that it failed."""

    expected: type[StoreError]


FAULTS = {
    "disk full": Fault(sqlite3.SQLITE_FULL, "database or disk is full", after=False, expected=StoreFull),
    "locked": Fault(sqlite3.SQLITE_BUSY, "database is locked", after=False, expected=StoreBusy),
    "I/O error": Fault(sqlite3.SQLITE_IOERR, "disk I/O error", after=False, expected=StoreFailed),
    "I/O error afterwards": Fault(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error", after=True, expected=StoreFailed),
}


class Injector:
    """Counts calls, and lets one of them fail."""

    def __init__(self, fail_at: int = -1, fault: Fault | None = None) -> None:
        self.calls = 0
        self.fail_at, self.fault = fail_at, fault
        self.failed: tuple[str, bool] | None = None
        """The statement that failed, and whether the owner's connection was asked."""

    def call(self, connection, statement, question):
        self.calls += 1
        if self.fault is None or self.calls - 1 != self.fail_at:
            return question()
        self.failed = (statement, connection.writes)
        if self.fault.after:
            question()
        error = sqlite3.OperationalError(self.fault.text)
        error.sqlite_errorcode = self.fault.code
        raise error


class FaultyConnection(sqlite3.Connection):
    injector: Injector
    writes: bool

    def execute(self, statement, *values):
        return self.injector.call(self, statement, lambda: sqlite3.Connection.execute(self, statement, *values))

    def executemany(self, statement, rows):
        return self.injector.call(self, statement, lambda: sqlite3.Connection.executemany(self, statement, rows))


def connect(injector, address, *args, **options):
    if not options.get("uri"):
        return REAL_CONNECT(address, *args, **options)
    connection = REAL_CONNECT(address, *args, **options, factory=FaultyConnection)
    connection.injector, connection.writes = injector, address.endswith("mode=rwc")
    return connection
