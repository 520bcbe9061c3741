"""What an operator wants to know about a store's file, without owning or changing it."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from seriatim.store.lock_file import Owner, file_system, owner_of
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.schema import schema_version
from seriatim.store.sqlite.session import (
    SqliteSession,
    connect_reader,
    is_new,
    refuse_foreign_file,
    refuse_other_file,
    remove_empty_log,
)
from seriatim.store.sqlite.wal_damage import refuse_damaged_log

MAX_PENDING = 10_000
"""The count of rows that wait for clean-up stops here."""


class Examination(NamedTuple):
    """A SQLite store as its file and its folder show it."""

    owner: Owner | None
    schema: int | None
    newest_schema: int
    file_bytes: int
    log_bytes: int
    """The size of the write-ahead log."""
    pending_settlements: int
    """Rows that clean-up will fold together, up to ``MAX_PENDING``."""
    file_system: str | None


def examine(path: Path) -> Examination:
    """Examine the store in an existing file."""
    refuse_other_file(path)
    newest = load_migrations("sqlite")[-1].version
    owner = owner_of(path)
    if owner is None:
        refuse_damaged_log(path)
    with closing(connect_reader(path)) as connection:
        session = SqliteSession(connection)
        refuse_foreign_file(session, path)
        schema = None if is_new(session) else schema_version(session, load_migrations("sqlite"))
        pending = len(session.rows("oldest_settlements", MAX_PENDING)) if schema == newest else 0
    if owner is None:
        remove_empty_log(path)
    return Examination(owner, schema, newest, _bytes(path), _bytes(Path(f"{path}-wal")), pending, file_system(path))


def _bytes(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
