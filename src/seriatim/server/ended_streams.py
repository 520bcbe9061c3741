"""Streams ended by their clients, and the leases that outlive them.

Rules
    - A client that ends its stream (half-closes or cancels it) may still ack its messages by unary calls: the official clients
      do so whenever they are closed. So its leases stay valid until their deadlines, and their keys are delivered to no other
      client.
    - When the client's connection is lost, with its streams or later, it can't ack any more: the leases are released at once,
      and the attempts do not count.
    - A client that sends ``RELEASE_ON_CLOSE`` has acked everything before it ends a stream: its leases are released then.
    - A client may have as many ended streams as streams; beyond that, the leases of the oldest are released.

Theory of operation
    An ended stream is a consumer without room: its leases can be acked, extended and expire as before. One task watches all of
    them: it checks which connections still exist, when a stream has ended and every ``CHECK_INTERVAL_S`` seconds, and removes
    consumers without leases.

    gRPC doesn't tell a server whether a call was cancelled by its client or ended together with the connection. The kernel's
    table of TCP connections shows which are established; a killed process is gone from it before gRPC notices. Where the table
    can't be read (it exists on Linux only), or a proxy in between keeps its own connection, a client counts as connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from seriatim.server.consumers import ConsumerRegistry, RegisteredConsumer

CHECK_INTERVAL_S = 0.5


class Client(NamedTuple):
    """The client of a stream: its token or address, its connection, and whether closing the stream releases its leases."""

    name: str
    peer: str
    releases_on_close: bool


class EndedStreams:
    """The consumers of streams that were ended by their clients."""

    def __init__(self, members: ConsumerRegistry, max_per_client: int) -> None:
        self._members = members
        self._max_per_client = max_per_client
        self._ended: dict[int, tuple[RegisteredConsumer, Client]] = {}  # by the member's number: the oldest first
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def add(self, member: RegisteredConsumer, client: Client) -> None:
        """A client has ended its stream."""
        if client.releases_on_close or not member.consumer.outstanding:
            self._members.leave(member)
            return
        member.attachment.stop()
        self._ended[member.number] = member, client
        numbers = [number for number, (_, known) in self._ended.items() if known.name == client.name]
        for number in numbers[: -self._max_per_client]:
            self._release(number)
        self._changed.set()
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

    def _release(self, number: int) -> None:
        member, _ = self._ended.pop(number)
        self._members.leave(member)

    async def _watch(self) -> None:
        while self._ended:
            self._changed.clear()
            peers = {client.peer for _, client in self._ended.values()}
            gone = peers - await asyncio.to_thread(connected, peers)
            for number, (member, client) in list(self._ended.items()):
                if client.peer in gone or not member.consumer.outstanding:
                    self._release(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._changed.wait()


_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_REMOTE, _STATE = 2, 3  # columns
_ESTABLISHED = "01"


def connected(peers: Collection[str]) -> set[str]:
    """Those of some peers, as gRPC names them (``ipv4:127.0.0.1:4711``), that are connected, or may be."""
    tables = [table for table in map(Path, _TABLES) if table.exists()]  # there may be no IPv6
    if not tables:
        return set(peers)
    # The remote ends of the established connections, as the tables spell them.
    rows = [row.split() for table in tables for row in table.read_text(encoding="ascii").splitlines()[1:]]
    established = {row[_REMOTE] for row in rows if row[_STATE] == _ESTABLISHED}
    columns = {peer: _columns(peer) for peer in peers}
    return {peer for peer, names in columns.items() if not names or not names.isdisjoint(established)}


def _columns(peer: str) -> set[str]:
    """How the tables may spell a peer; empty for one without a TCP address."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return set()
    try:
        parsed = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return set()
    mapped = [IPv6Address(f"::ffff:{parsed}")] if isinstance(parsed, IPv4Address) else []
    # Words of four bytes in the byte order of this machine.
    packed = [memoryview(one.packed).cast("I") for one in (parsed, *mapped)]
    return {"".join(f"{word:08X}" for word in words) + f":{int(port):04X}" for words in packed}
