"""Stores: where topics, subscriptions and messages survive.

::

    base.py        the seam: what an engine asks of a store
    memory.py      memory://, lost with the process
    sqlite/        sqlite:///file, the default: store, session, SQL; inspection and restore of a file
    postgres/      postgresql://host/database: store, session, ownership (active and standby), address, SQL
    sql/           what both SQL stores share
    pack.py        many messages as one row                settled_set.py    what is settled, as a floor and bitmaps
    retention.py   which messages may be deleted           staged_messages.py  messages that wait to be appended
    lock_file.py   one owner for each file                 private_files.py  private files that appear only when complete
    validation.py  what every store accepts                number_columns.py numbers as bytes
    state_checksums.py  of rows that decide what is delivered
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from seriatim.core.text_checks import check_address
from seriatim.errors import InvalidArgument
from seriatim.extras import require_extra
from seriatim.store.base import Standby, Store, StoreReader
from seriatim.store.postgres.url import SCHEMES, without_secrets

if TYPE_CHECKING:
    from seriatim.store.sqlite.outbox_file import OutboxFile

__all__ = ["restore_backup"]

_MEMORY = "memory://"
_SQLITE = "sqlite:///"


def store_file(url: str) -> Path | None:
    """The file of the store at a URL; None if it is not in a file."""
    check_address("The address of a store", url)
    path = url.removeprefix(_SQLITE)
    return None if path in {url, ""} else Path(path)


def absolute_url(url: str) -> str:
    """The same store, also after the program has changed its working directory."""
    path = store_file(url)
    return url if path is None else f"{_SQLITE}{path.absolute()}"


@overload
def open_store(url: str, *, read_only: Literal[False] = False, standby: Standby | None = None) -> Store: ...
@overload
def open_store(url: str, *, read_only: Literal[True]) -> StoreReader: ...


def open_store(url: str, *, read_only: bool = False, standby: Standby | None = None) -> StoreReader:
    """Open the store at a URL: memory://, sqlite:///relative/file, sqlite:////absolute/file or postgresql://host/database.

    The caller owns the store until it is closed. With ``read_only`` it does not, and the methods that write are missing. With
    ``standby`` (PostgreSQL only) the call waits while another process owns the store, until it is free or the wait is
    cancelled.
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
        if url and ":" not in url:  # the name of a file
            raise InvalidArgument(f"'{url}' is not the address of a store: for a file write {_SQLITE}{url}")
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


def outbox_file(path: str, reader: str) -> OutboxFile:
    """The outbox in a SQLite file of an application, as a store reads it under the name ``reader``."""
    from seriatim.store.sqlite import outbox_file

    return outbox_file.OutboxFile(path, reader)


def restore_backup(backup: str | Path, target: str | Path) -> None:
    """Make a new store, at ``target``, from a backup. Nothing is overwritten."""
    from seriatim.store.sqlite import restore

    restore.restore_backup(backup, target)
