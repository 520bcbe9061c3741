"""A connection to a Pub/Sub server: calls by name, and errors of our own tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import grpc

from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    PermissionDenied,
    ResourceExhausted,
    SeriatimError,
    Unauthenticated,
)
from seriatim.wire.names import RELEASE_ON_CLOSE
from seriatim.wire.services import SERVICES, Method

PATIENCE = 60.0
"""So many seconds a call may take, with the time until the server can be reached."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 30.0, 10.0
"""How often a silent connection is tested, and how long the answer may take: a server whose machine is gone says nothing."""

_ERRORS: dict[grpc.StatusCode, type[SeriatimError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.UNIMPLEMENTED: NotSupported,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
}
_METHODS: dict[str, tuple[str, Method]] = {
    name: (f"/{service}/{name}", method) for service, methods in SERVICES.items() for name, method in methods.items()
}


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how to talk to it: ``pubsub://HOST:PORT/PROJECT?token=…&tls=true&ca=FILE``. Errors never repeat an
    address, because it may have a token in it."""

    target: str
    project: str
    token: str | None = field(default=None, repr=False)
    is_secure: bool = False
    ca: str | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        project = "" if host is None else parts.path.strip("/")
        if not host or not project or "/" in project or "@" in parts.netloc or parts.fragment:
            raise InvalidArgument("this is not the address of a Pub/Sub server: write pubsub://HOST:PORT/PROJECT")
        given = _parameters(parts.query)
        token, ca = given.get("token"), given.get("ca")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidArgument("the token of a pubsub address has signs that can't be sent: use printable ASCII")
        return cls(parts.netloc, project, token, _is_secure(given.get("tls"), ca), ca)


def _parameters(query: str) -> dict[str, str]:
    """The parameters of an address. A plus sign is a plus sign: only ``%`` is special."""
    given: dict[str, str] = {}
    for parameter in query.split("&") if query else ():
        name, _, value = parameter.partition("=")
        if name not in {"token", "tls", "ca"}:
            raise InvalidArgument(f"a pubsub address knows token, tls and ca, not {name[:20]!r}")
        if name in given or not value:
            raise InvalidArgument(f"a pubsub address has one {name} with a value: {name}=…")
        given[name] = unquote(value)
    return given


def _is_secure(tls: str | None, ca: str | None) -> bool:
    if tls is None:
        return ca is not None
    if tls not in _BOOLEANS:
        raise InvalidArgument(f"tls of a pubsub address is true or false (1 or 0), not {tls[:20]!r}")
    if ca is not None and not _BOOLEANS[tls]:
        raise InvalidArgument("a pubsub address has a ca, and tls=false: a certificate is trusted with TLS only")
    return _BOOLEANS[tls]


class Channel:
    """Calls to one server."""

    def __init__(self, address: Address) -> None:
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
            ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        if address.is_secure:
            roots = Path(address.ca).read_bytes() if address.ca else None
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.aio.secure_channel(address.target, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(address.target, options)
        self._metadata = [("authorization", f"Bearer {address.token}")] if address.token else None
        self._calls: dict[str, Any] = {}

    async def call(self, name: str, request: Any = None, /, **fields: Any) -> Any:
        """Ask something, by a request or by its fields, and wait for the answer."""
        path, method = _METHODS[name]
        if name not in self._calls:
            self._calls[name] = self._channel.unary_unary(
                path, method.request.SerializeToString, method.response.FromString
            )
        request = request or method.request(**fields)
        async with translated():
            return await self._calls[name](request, timeout=PATIENCE, metadata=self._metadata, wait_for_ready=True)

    def stream(self) -> Any:
        """A new StreamingPull."""
        path, method = _METHODS["StreamingPull"]
        call = self._channel.stream_stream(path, method.request.SerializeToString, method.response.FromString)
        return call(metadata=[*(self._metadata or ()), RELEASE_ON_CLOSE], wait_for_ready=True)

    async def close(self) -> None:
        await self._channel.close()


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Whatever a server answers is one of our errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None


def error_of(error: grpc.aio.AioRpcError) -> SeriatimError:
    kind = _ERRORS.get(error.code())
    if kind is not None:
        return kind(error.details())
    return OutcomeUnknown(
        f"the server did not answer ({error.code().name}: {error.details()}): what was asked may have happened or not"
    )
