"""Streams that their clients ended, and the leases that live on.

Rules
    - A client that ends its stream (half-closes or cancels it) may still ack what it got by unary calls: the official clients
      do so whenever they are closed. So its leases live on until their deadlines, and their keys go to nobody else.
    - When the client's connection goes, with its streams or later, nobody can ack any more: the leases are released at once,
      and count as not tried.
    - A client that says ``RELEASE_ON_CLOSE`` has acked everything before it ends a stream: its leases are released then.
    - Of the ended streams of one client no more are kept than it may have streams; the leases of the oldest are released.

Theory of operation
    An ended stream is a consumer without room: the engine lets its leases be acked, extended and expire as before. One task
    looks after all of them while there are any: it asks which connections still exist, when a stream has ended and every
    ``LOOK_EVERY_S`` seconds, and forgets consumers without leases.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from seriatim.server.connections import connected
from seriatim.server.consumers import Member, Members

LOOK_EVERY_S = 0.5


class Client(NamedTuple):
    """Who opened a stream: its token or address, its connection, and whether it has acked everything when it ends it."""

    name: str
    peer: str
    releases_on_close: bool


class EndedStreams:
    """The consumers of streams that were ended by their clients."""

    def __init__(self, members: Members, most_per_client: int) -> None:
        self._members = members
        self._most_per_client = most_per_client
        self._ended: dict[int, tuple[Member, Client]] = {}  # by the member's number: the oldest first
        self._news = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def add(self, member: Member, client: Client) -> None:
        """A client has ended its stream."""
        if client.releases_on_close or not member.consumer.leases:
            self._members.leave(member)
            return
        member.attachment.stop()
        self._ended[member.number] = member, client
        self._release_surplus(client.name)
        self._news.set()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Release everything."""
        for number in list(self._ended):
            self._release(number)
        if self._watching is not None:
            self._watching.cancel()

    def __len__(self) -> int:
        return len(self._ended)

    def _release_surplus(self, name: str) -> None:
        numbers = [number for number, (_, client) in self._ended.items() if client.name == name]
        for number in numbers[: -self._most_per_client]:
            self._release(number)

    def _release(self, number: int) -> None:
        member, _ = self._ended.pop(number)
        self._members.leave(member)

    async def _watch(self) -> None:
        while self._ended:
            self._news.clear()
            peers = {client.peer for _, client in self._ended.values()}
            gone = peers - await asyncio.to_thread(connected, peers)
            for number, (member, client) in list(self._ended.items()):
                if client.peer in gone or not member.consumer.leases:
                    self._release(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()
