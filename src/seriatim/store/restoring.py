"""A store in a SQLite file made from a backup.

Rules
    - Nobody may own the store meanwhile: its lock is held.
    - A store that is there already is refused, or kept beside under another name; nothing is overwritten.
    - The backup is looked at before anything is changed, and the store appears at its place whole or not at all.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from seriatim.errors import AlreadyExists, DamagedStore, NotFound
from seriatim.store.ownership import OwnerLock, refuse_network_file_system
from seriatim.store.sql.integrity import find_problems
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.schema import schema_version
from seriatim.store.sqlite_session import SqliteSession, as_store_error, connect_reader, refuse_foreign_file

REPLACED = ".replaced"


def restore(backup: Path, store: Path, *, replace: bool) -> Path | None:
    """Make the store in a file from a backup; returns where the store that it replaced is now, if it did."""
    if not backup.is_file():
        raise NotFound(f"there is no backup '{backup}'")
    refuse_network_file_system(store.parent)
    lock = OwnerLock(Path(f"{store}.lock"))
    try:
        if store.exists() and not replace:
            raise AlreadyExists(f"there is a store at '{store}' already: add --replace, or choose another --store")
        copy = Path(f"{store}.restoring")
        with closing(connect_reader(backup)) as source:
            _require_sound(SqliteSession(source), backup)
            _copy(source, copy)
        replaced = _move_away(store) if store.exists() else None
        copy.rename(store)
        _sync_folder(store.parent)
        return replaced
    finally:
        lock.release()


def _require_sound(session: SqliteSession, backup: Path) -> None:
    refuse_foreign_file(session, backup)
    migrations = load_migrations("sqlite")
    if schema_version(session, migrations) < migrations[-1].version:
        return  # of an older Seriatim: its first owner brings it up to date, and 'check' can look at it then

    @contextmanager
    def reading() -> Iterator[SqliteSession]:
        yield session

    for problem in find_problems(reading):
        raise DamagedStore(f"the backup '{backup}' is damaged ({problem.where}: {problem.what}): take another one")


def _copy(source: sqlite3.Connection, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(target)) as connection:
            source.backup(connection)
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise as_store_error(error) from error


def _move_away(store: Path) -> Path:
    """Rename a store. Its write-ahead log goes along: left behind, it would be taken for that of the new one."""
    replaced = Path(f"{store}{REPLACED}")
    if replaced.exists():
        raise AlreadyExists(f"'{replaced}' is in the way: move it elsewhere, or delete it")
    store.rename(replaced)
    for end in ("-wal", "-shm"):
        if (part := Path(f"{store}{end}")).exists():
            part.rename(f"{replaced}{end}")
    return replaced


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
