"""UDP: datagrams between processes or machines, which lose, repeat and overtake.

Rules
    - Each datagram is one sealed frame (``wire.seal``). What is not, whoever sent it, is counted and dropped.
    - With a ``secret``, only those who know it can make a frame. Without one the seal is a mere checksum, and the route
      stays on this machine: binding to, or sending to, another address is refused.
    - The receiving end answers to where the last good frame came from, so a sender may move or restart.

**Not promised**: secrecy. Whoever can read the network can read the messages.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import suppress
from typing import Any

from seriatim.core.guarantees import DeliveryMode, Guarantee
from seriatim.core.options import require_whole
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.pipes.route import Hear, Port, Route
from seriatim.pipes.wire import SEAL_BYTES, seal, unseal

Address = tuple[str, int]

BUFFER = 4 * 1024 * 1024
"""So many bytes of datagrams the system is asked to keep for us; it may allow less."""

SAFE_DATAGRAM = 1200
"""A datagram of this size passes any network whole."""

MAX_SECRET = 64


class Udp(Route):
    """Datagrams to a receiver at ``host:port``; port 0 lets the system choose one, for a receiver in this process."""

    order = Guarantee.NONE
    mode = DeliveryMode.BEST_EFFORT
    why = "datagrams get lost, repeated and overtaken"

    def __init__(
        self, port: int = 0, host: str = "127.0.0.1", *, secret: bytes = b"", max_datagram: int = SAFE_DATAGRAM
    ) -> None:
        require_whole("max_datagram", max_datagram, 256)
        if max_datagram > 65_507:
            raise InvalidArgument(f"no datagram is larger than 65507 bytes, so max_datagram can't be {max_datagram}")
        if len(secret) > MAX_SECRET:
            raise InvalidArgument(f"a secret has at most {MAX_SECRET} bytes, not {len(secret)}")
        if not secret and not _is_loopback(host):
            raise InvalidArgument(
                f"a route to {host!r} leaves this machine: give it a secret that both ends know, or anybody could send"
            )
        self.address: Address = (host, port)
        self.name = f"udp {host}"
        self.max_frame = max_datagram - SEAL_BYTES
        self._secret = secret

    async def open_receiver(self, hear: Hear) -> Port:
        port = await _UdpPort.open(self._secret, hear, bind=self.address)
        self.address = port.local_address
        return port

    async def open_sender(self, hear: Hear) -> Port:
        if not self.address[1]:
            raise FailedPrecondition(
                "the port of the receiver is not known: open the receiving end first, or name a port"
            )
        return await _UdpPort.open(self._secret, hear, peer=self.address)


class _UdpPort(asyncio.DatagramProtocol):
    """A socket. One that is connected to its peer hears nobody else."""

    def __init__(self, secret: bytes, hear: Hear, peer: Address | None) -> None:
        self._secret, self._hear, self._peer = secret, hear, peer
        self._is_connected = peer is not None
        self._transport: asyncio.DatagramTransport
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self.rejected = 0

    @classmethod
    async def open(
        cls, secret: bytes, hear: Hear, *, bind: Address | None = None, peer: Address | None = None
    ) -> _UdpPort:
        loop = asyncio.get_running_loop()
        _, port = await loop.create_datagram_endpoint(
            lambda: cls(secret, hear, peer), local_addr=bind, remote_addr=peer
        )
        return port

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        system_socket = transport.get_extra_info("socket")
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with suppress(OSError):  # it works with less, and loses more
                system_socket.setsockopt(socket.SOL_SOCKET, option, BUFFER)

    @property
    def local_address(self) -> Address:
        return self._transport.get_extra_info("sockname")[:2]  # type: ignore[no-any-return]

    def datagram_received(self, data: bytes, address: Any) -> None:
        frame = unseal(data, self._secret)
        if frame is None:
            self.rejected += 1
            return
        if not self._is_connected:
            self._peer = address
        self._hear(frame)

    def error_received(self, _: Exception) -> None:
        """Nobody is there, for now: the datagram is lost like any other."""

    def connection_lost(self, _: Exception | None) -> None:
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def send(self, frame: bytes) -> None:
        if self._peer is not None:
            self._transport.sendto(seal(frame, self._secret), None if self._is_connected else self._peer)

    @property
    def is_ready(self) -> bool:
        return self._writable.is_set()

    async def ready(self) -> None:
        await self._writable.wait()

    async def close(self) -> None:
        self._transport.close()
        await self._closed.wait()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
