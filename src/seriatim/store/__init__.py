"""Stores: where topics, subscriptions and messages survive.

::

    base.py        the seam: what an engine asks of a store
    memory.py      memory://, lost with the process
    sqlite/        sqlite:///file, the default: store, session, SQL; inspection and restore of a file
    postgres/      postgresql://host/database: store, session, ownership (active and standby), address, SQL
    sql/           what both SQL stores share
    pack.py        many messages as one row                settled.py     what is settled, as a floor and bitmaps
    retention.py   which messages may be deleted           staging.py     messages that wait in files
    lock_file.py   one owner for each file                 files.py       private files that appear only when complete
    rules.py, columns.py  small rules and encodings that all stores share
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

from seriatim.core.limits import check_address
from seriatim.errors import InvalidArgument
from seriatim.extras import require_extra
from seriatim.store.base import Standby, Store, StoreReader
from seriatim.store.postgres.url import SCHEMES, without_secrets

__all__ = [
    "Standby",
    "Store",
    "StoreReader",
    "absolute_url",
    "check_staged",
    "open_store",
    "restore_backup",
    "store_file",
]

_MEMORY = "memory://"
_SQLITE = "sqlite:///"


def store_file(url: str) -> Path | None:
    """The file of the store at a URL; None when it is not in a file."""
    check_address("The address of a store", url)
    path = url.removeprefix(_SQLITE)
    return None if path in {url, ""} else Path(path)


def absolute_url(url: str) -> str:
    """The same store, whatever folder the program goes to."""
    path = store_file(url)
    return url if path is None else f"{_SQLITE}{path.absolute()}"


@overload
def open_store(url: str, *, read_only: Literal[False] = False, standby: Standby | None = None) -> Store: ...
@overload
def open_store(url: str, *, read_only: Literal[True]) -> StoreReader: ...


def open_store(url: str, *, read_only: bool = False, standby: Standby | None = None) -> StoreReader:
    """Open the store at a URL: memory://, sqlite:///relative/file, sqlite:////absolute/file or postgresql://host/database.

    Whoever opens a store owns it until it is closed. With ``read_only`` it is not owned: the verbs that write are missing. With
    ``standby`` (PostgreSQL only) the call waits while somebody else owns it, until it is free or the wait is cancelled.
    """
    path = store_file(url)
    if url.startswith(SCHEMES):
        return _open_postgres(url, read_only, standby)
    if standby is not None:
        raise InvalidArgument("only a store in PostgreSQL has standbys: give postgresql://host/database")
    if url == _MEMORY and not read_only:
        from seriatim.store.memory import MemoryStore

        return MemoryStore()
    if path is None:
        raise InvalidArgument(
            f"'{without_secrets(url)}' is not a store that can be opened{' read-only' if read_only else ''}: give "
            "memory://, sqlite:///relative/file or sqlite:////absolute/file, or postgresql://user@host:port/database"
        )
    from seriatim.store.sqlite.store import SqliteReader, SqliteStore

    return SqliteReader(path) if read_only else SqliteStore(path)


def _open_postgres(url: str, read_only: bool, standby: Standby | None) -> StoreReader:
    require_extra("postgres", "psycopg", what="a store in PostgreSQL")
    from seriatim.store.postgres.store import PostgresReader, PostgresStore

    return PostgresReader(url) if read_only else PostgresStore(url, standby)


def check_staged(file: str, messages: int) -> None:
    """Raise unless a staged file is whole and holds so many messages: what is damaged must not fail a whole commit."""
    from seriatim.store import staging

    staging.check_staged(Path(file), messages)


def restore_backup(backup: str | Path, target: str | Path) -> None:
    """Make a store of a backup, at a path where nothing is yet. See ``sqlite/restore.py`` for what is guaranteed."""
    from seriatim.store.sqlite import restore

    restore.restore_backup(backup, target)
