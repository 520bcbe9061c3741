"""How much a client may ask of the server before it has said what it wants.

Rules
    - The headers of a call decide whether its request is read at all. A call without a valid token ends before that, and holds
      no more than gRPC's own flow-control window.
    - A client is a token, or an address where there are no tokens. Each may have so many calls at once, so that it can't use up
      what there is for all.
    - Requests are read a few at a time, per client and in all; a request that waits its turn stays with its sender. One that is
      announced and does not come ends its call, and makes room for the next.
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
    """A request did not come in time."""


class Quota:
    """So much for each client."""

    def __init__(self, what: str, per_client: int, in_all: int | None = None) -> None:
        self._what = what
        self._per_client = per_client
        self._in_all = in_all
        self._used: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Raises ResourceExhausted when there is none left."""
        if self._used[client] >= self._per_client:
            raise ResourceExhausted(f"{client} has {self._per_client} {self._what} already: end some")
        if self._in_all is not None and self._total >= self._in_all:
            raise ResourceExhausted(f"the server has {self._in_all} {self._what} already: try again later")
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
        self._per_client = per_client
        self._in_all = asyncio.Semaphore(in_all)
        self._timeout_s = timeout_s
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._waiting: Counter[str] = Counter()

    async def read(self, client: str, read: Callable[[], Awaitable[Any]]) -> bytes:
        """The next request of a call. Raises InvalidArgument when there is none, and RequestTimeout when it doesn't come."""
        async with self._turn(client):
            try:
                async with asyncio.timeout(self._timeout_s):
                    data = await read()
            except TimeoutError:
                raise RequestTimeout(f"no request came within {self._timeout_s:g} seconds") from None
        if data is grpc.aio.EOF:
            raise InvalidArgument("a call begins with a request")
        return bytes(data)

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        own = self._turns.setdefault(client, asyncio.Semaphore(self._per_client))
        self._waiting[client] += 1
        try:
            async with own, self._in_all:
                yield
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client], self._turns[client]


def address_of(context: Any) -> str:
    """Where a call comes from, without the port, which differs for each connection."""
    return str(context.peer()).rpartition(":")[0]
