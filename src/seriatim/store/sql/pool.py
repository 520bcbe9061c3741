"""A pool of connections for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=Closable)


class Pool(Generic[Connection]):
    """Keeps as many connections as were ever in use at once."""

    def __init__(self, connect: Callable[[], Connection], is_gone: Callable[[Connection], bool]) -> None:
        self._connect = connect
        self._is_gone = is_gone
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """A connection for exclusive use, returned to the pool unless something went wrong with it."""
        connection = self._take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are returned."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if not self._is_gone(connection):
                return connection
            connection.close()
