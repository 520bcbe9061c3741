"""UDP: datagrams between processes or machines, which lose, repeat and overtake.

Rules
    - Each datagram is one sealed frame (``frames.seal``). Anything else is counted and dropped.
    - With a ``secret``, only those who know it can make a frame. Without one, the seal is only a checksum, and the route
      is limited to this machine: other addresses are refused.
    - The receiving end replies to the sender of the last valid frame, so a sender may move or restart.

**Not promised**: secrecy. Anybody who can read the network can read the messages.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import suppress

from seriatim.core.guarantees import DeliveryMode, Guarantee
from seriatim.core.validation import require_whole
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.pipes.frames import SEAL_BYTES, seal, unseal
from seriatim.pipes.route import OnFrame, Port, Route

Address = tuple[str, int]

RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
"""The size of the receive buffer that is requested from the system, which may allow less."""

SAFE_DATAGRAM = 1200
"""A datagram of this size is not fragmented on any network."""

MAX_DATAGRAM = 65_507
"""The maximum size of a datagram."""

MAX_READS_PER_TURN = 64
"""How many datagrams are read before other tasks have their turn."""

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
        if max_datagram > MAX_DATAGRAM:
            raise InvalidArgument(
                f"no datagram is larger than {MAX_DATAGRAM} bytes, so max_datagram can't be {max_datagram}"
            )
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

    async def open_receiver(self, on_frame: OnFrame) -> Port:
        port = _UdpPort(self._secret, on_frame, self.address, connect=False)
        self.address = port.local_address
        return port

    async def open_sender(self, on_frame: OnFrame) -> Port:
        if not self.address[1]:
            raise FailedPrecondition(
                "the port of the receiver is not known: open the receiving end first, or name a port"
            )
        return _UdpPort(self._secret, on_frame, self.address, connect=True)


class _UdpPort:
    """A socket. If it is connected to its peer, it receives from nobody else.

    Many datagrams are read in one turn of the loop; the transport of asyncio reads one.
    """

    def __init__(self, secret: bytes, on_frame: OnFrame, address: Address, *, connect: bool) -> None:
        self._secret, self._on_frame, self._is_connected = secret, on_frame, connect
        self._peer = address if connect else None
        self._loop = asyncio.get_running_loop()
        self._socket = _open_socket(address)
        try:
            (self._socket.connect if connect else self._socket.bind)(address)
        except OSError:
            self._socket.close()
            raise
        self._burst = 0
        self.rejected = 0
        self._loop.add_reader(self._socket, self._read)

    @property
    def local_address(self) -> Address:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def _read(self) -> None:
        for _ in range(MAX_READS_PER_TURN):
            try:
                data, address = self._socket.recvfrom(MAX_DATAGRAM)
            except (
                OSError
            ):  # there is nothing more; or nobody was at the other end, and the datagram is lost like any other
                return
            frame = unseal(data, self._secret)
            if frame is None:
                self.rejected += 1
                continue
            if not self._is_connected:
                self._peer = address
            self._on_frame(frame)

    def send(self, frame: bytes) -> None:
        if self._peer is None:
            return
        self._burst += 1
        sealed = seal(frame, self._secret)
        with suppress(OSError):  # the system has no room, or nobody is there: it is lost like any other
            if self._is_connected:
                self._socket.send(sealed)
            else:
                self._socket.sendto(sealed, self._peer)

    @property
    def is_ready(self) -> bool:
        """False after a burst of frames, so that a receiver in this process can read them."""
        return self._burst < MAX_READS_PER_TURN // 2

    async def ready(self) -> None:
        self._burst = 0
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


def _open_socket(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    opened.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with suppress(OSError):  # it works with less, and loses more
            opened.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_BYTES)
    return opened


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
