"""Serves the console on a port of its own, beside the rest of the process.

Loopback needs no TLS; other addresses need TLS and tokens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from seriatim.console.app import Console
from seriatim.console.security import LOOPBACK_HOSTS
from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Broker
from seriatim.errors import FailedPrecondition, InvalidArgument

MAX_CONNECTIONS, HEADERS_TIMEOUT_S = 200, 10.0
"""How many connections there may be, and how long the headers of a request may take. (uvicorn has no limit for either.)"""

STOP_GRACE_S = 2


class _Protocol(H11Protocol):
    """Closes connections when there are too many, or when they send a request too slowly. If there are too many, it
    closes the one that has been idle for longest, so that idle connections can't lock others out."""

    _deadline: asyncio.TimerHandle | None = None
    idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline, self.idle_since = self.loop.call_later(HEADERS_TIMEOUT_S, transport.abort), self.loop.time()
        others = [one for one in self.connections if isinstance(one, _Protocol) and not one.transport.is_closing()]
        if len(others) > MAX_CONNECTIONS:
            idle = [one for one in others if one is not self and one.is_idle()]
            min(idle, key=attrgetter("idle_since"), default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        # What follows an answer, too, is the start of a request, or the rest of an unread body.
        if self._deadline is None and self.is_idle():
            self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)
        super().data_received(data)
        if not self.is_idle():
            self.idle_since = self.loop.time()
            self._cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close every connection, including those that were just accepted: asyncio does not close a connection whose
        server is closed between its acceptance and its first turn."""
        loop = asyncio.get_running_loop()
        for listener in [one for listening in self.servers for one in listening.sockets]:
            loop.remove_reader(listener)
        await asyncio.sleep(0)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if isinstance(connection, _Protocol):
                connection.transport.abort()
        await asyncio.sleep(0)  # the event loop closes them in its next turn

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by the program."""
        yield


class ConsoleServer:
    """A console served at ``host:port``. Without ``access`` it generates a token, which ``url`` contains."""

    def __init__(
        self,
        broker: Broker | None,
        host: str = "127.0.0.1",
        port: int = 8086,
        *,
        access: Access | None = None,
        tls: tuple[Path, Path] | None = None,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self.host, self.port = host.strip("[]"), port
        self._tls = None if tls is None else _context(*tls)
        if not is_loopback(self.host) and (self._tls is None or access is None):
            raise InvalidArgument(
                f"the console at {host} can be reached by others: give a certificate, its key, and tokens (--tls-cert, "
                "--tls-key, --tokens)"
            )
        self.token: str | None = None
        if access is None:
            access, self.token = Access.generate()
        hosts = names | {self.host} | (LOOPBACK_HOSTS if is_loopback(self.host) else frozenset())
        self.console = Console(broker, access, hosts=frozenset(name.lower() for name in hosts))
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address, without a token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL to open in a browser."""
        return self.address if self.token is None else f"{self.address}/login?token={self.token}"

    async def start(self) -> None:
        """Listen, and serve until ``stop``."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise FailedPrecondition(
                f"can't serve the console at {self.host}:{self.port}: {error}; choose another port"
            ) from error
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.console,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=_Protocol,
            ws="none",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
        config.load()
        config.ssl = self._tls
        self._server = _Server(config)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))
        await self._server.is_ready.wait()
        self.console.sampler.start()

    async def stop(self) -> None:
        """Stop serving after open requests are answered."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        self.console.stop_pages()
        await self._serving
        await self.console.close()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _context(certificate: Path, key: Path) -> SSLContext:
    context = SSLContext(PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # otherwise it would prompt at the terminal
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the certificate or its key can't be used: {error}") from error
    return context
