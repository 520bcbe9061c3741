"""Admission control: what a client may use before its request is read.

Rules
    - The headers of a call decide whether its request is read at all. A call without a valid token ends before that, and uses
      no more memory than gRPC's own flow-control window.
    - A client is a token, or an address where there are no tokens. Each has a limit on concurrent calls, so that it can't use
      up the capacity for all.
    - Requests are read a few at a time, per client and in total; a request that waits its turn stays with its sender. If it
      does not arrive in time, its call ends and makes room for the next.

Rules of the locks by name, with which changes of a resource happen one after another
    - A change that depends on the current state of a resource (a mask applied to it, a revision added to it) reads and writes
      under the lock of the resource.
    - A call that has begun is completed even if its caller is gone (``calls.py``), so no change is abandoned half-way.
    - A call that needs two locks takes the subscription's first, then its topic's.
    - The same locks limit how many requests of a client are read at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from seriatim.errors import InvalidArgument, ResourceExhausted


class RequestTimeout(Exception):
    """A request did not arrive in time."""


class Quota:
    """A limit per client, and optionally one for all clients together."""

    def __init__(self, what: str, per_client: int, in_all: int | None = None) -> None:
        self._what = what
        self._per_client = per_client
        self._in_all = in_all
        self._used: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Take one unit. Raises ResourceExhausted when none is left."""
        if self._used[client] >= self._per_client:
            raise ResourceExhausted(f"{client} has {self._per_client} {self._what}, the maximum: end some first")
        if self._in_all is not None and self._total >= self._in_all:
            raise ResourceExhausted(f"the server has {self._in_all} {self._what}, the maximum: try again later")
        self._used[client] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._used[client] -= 1
            if not self._used[client]:
                del self._used[client]


class Reader:
    """Reads the requests of calls, a few at a time."""

    def __init__(self, per_client: int, in_all: int, timeout_s: float) -> None:
        self._per_client = NamedLocks(per_client)
        self._in_all = asyncio.Semaphore(in_all)
        self._timeout_s = timeout_s

    async def read(self, client: str, read: Callable[[], Awaitable[Any]]) -> bytes:
        """The next request of a call. Raises InvalidArgument if there is none, and RequestTimeout if it does not arrive."""
        async with self._per_client.hold(client), self._in_all:
            try:
                async with asyncio.timeout(self._timeout_s):
                    data = await read()
            except TimeoutError:
                raise RequestTimeout(f"no request arrived within {self._timeout_s:g} seconds") from None
        if data is grpc.aio.EOF:
            raise InvalidArgument("a call begins with a request")
        return bytes(data)


def address_of(context: Any) -> str:
    """Where a call comes from, without the port, which differs for each connection."""
    return str(context.peer()).rpartition(":")[0]


class NamedLocks:
    """A lock for each name that is in use, with at most ``holders`` holders at the same time."""

    def __init__(self, holders: int = 1) -> None:
        self._holders = holders
        self._locks: dict[str, asyncio.Semaphore] = {}
        self._wanted: Counter[str] = Counter()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for the lock of this name, and hold it for the block."""
        self._wanted[name] += 1
        try:
            async with self._locks.setdefault(name, asyncio.Semaphore(self._holders)):
                yield
        finally:
            self._wanted[name] -= 1
            if not self._wanted[name]:
                del self._wanted[name], self._locks[name]
