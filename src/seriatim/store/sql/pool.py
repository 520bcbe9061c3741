"""Connections for reading that are kept for the next reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=Closable)


class Pool(Generic[Connection]):
    """As many connections as were ever in use at once."""

    def __init__(self, connect: Callable[[], Connection], is_gone: Callable[[Connection], bool]) -> None:
        self._connect = connect
        self._is_gone = is_gone
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """A connection that nobody else uses, kept afterwards unless something went wrong with it."""
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
        """Close what is idle; what is in use is closed when it is given back."""
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
