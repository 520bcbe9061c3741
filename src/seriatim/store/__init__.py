"""Stores: where topics, subscriptions and messages survive.

::

    base.py          the seam: what an engine asks of a store
    memory.py        memory://, lost with the process
    sqlite.py        sqlite:///file, the default          sqlite_session.py  its connections and errors
    ownership.py     one owner a file                     sql/               what all SQL stores share, and the SQL itself
    pack.py          many messages as one row             settled.py         what is settled, as a floor and bitmaps
    retention.py     which messages may go                rules.py, columns.py  small things that all share
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

from seriatim.errors import InvalidArgument
from seriatim.store.base import Store, StoreReader

__all__ = ["Store", "StoreReader", "open_store", "store_file"]

_MEMORY = "memory://"
_SQLITE = "sqlite:///"


def store_file(url: str) -> Path | None:
    """The file of the store at a URL; None when it is not in a file."""
    path = url.removeprefix(_SQLITE)
    return None if path in {url, ""} else Path(path)


@overload
def open_store(url: str, *, read_only: Literal[False] = False) -> Store: ...
@overload
def open_store(url: str, *, read_only: Literal[True]) -> StoreReader: ...


def open_store(url: str, *, read_only: bool = False) -> StoreReader:
    """Open the store at a URL: memory://, sqlite:///relative/file or sqlite:////absolute/file.

    Whoever opens a store owns it until it is closed. With ``read_only`` it is not owned: the verbs that write are missing.
    """
    if url == _MEMORY and not read_only:
        from seriatim.store.memory import MemoryStore

        return MemoryStore()
    path = store_file(url)
    if path is None:
        raise InvalidArgument(
            f"'{url}' is not a store that can be opened{' read-only' if read_only else ''}: "
            "give memory://, sqlite:///relative/file or sqlite:////absolute/file"
        )
    from seriatim.store.sqlite import SqliteReader, SqliteStore

    return SqliteReader(path) if read_only else SqliteStore(path)
