"""A connection to a Pub/Sub server: calls methods by name, and raises our own errors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
    StoreFailed,
    Unauthenticated,
)
from seriatim.wire.names import RELEASE_ON_CLOSE
from seriatim.wire.services import SERVICES, Method

CALL_TIMEOUT_S = 60.0
"""How many seconds a call may take, including the time to connect."""

CONNECT_TIMEOUT_S = 10.0
"""How many seconds ``require_connection`` waits for a server that neither accepts nor refuses a connection."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 30.0, 10.0
"""How often an idle connection is pinged, and how long the reply may take. This detects a server whose machine is gone."""

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
    """The address of a server: ``pubsub://HOST:PORT/PROJECT?token=…&tls=true&ca=FILE``. Errors never repeat it, because it may
    contain a token."""

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
            raise InvalidArgument(
                "the token of a pubsub address has characters that can't be sent: use printable ASCII"
            )
        return cls(parts.netloc, project, token, _is_secure(given.get("tls"), ca), ca)


def _parameters(query: str) -> dict[str, str]:
    """The parameters of an address. A plus sign is a plus sign: only ``%`` is special."""
    given: dict[str, str] = {}
    for parameter in query.split("&") if query else ():
        name, _, value = parameter.partition("=")
        if name not in {"token", "tls", "ca"}:
            raise InvalidArgument(f"a pubsub address has the options token, tls and ca, not {name[:20]!r}")
        if name in given or not value:
            raise InvalidArgument(f"a pubsub address has one {name} with a value: {name}=…")
        given[name] = unquote(value)
    return given


def _is_secure(tls: str | None, ca: str | None) -> bool:
    if tls is None:
        return ca is not None
    if tls not in _BOOLEANS:
        raise InvalidArgument(f"tls in a pubsub address must be true or false (1 or 0), not {tls[:20]!r}")
    if ca is not None and not _BOOLEANS[tls]:
        raise InvalidArgument("ca in a pubsub address needs TLS: remove tls=false")
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
        self._target = address.target
        if address.is_secure:
            credentials = grpc.ssl_channel_credentials(_read_certificate(address.ca) if address.ca else None)
            self._channel = grpc.aio.secure_channel(address.target, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(address.target, options)
        self._metadata = [("authorization", f"Bearer {address.token}")] if address.token else None
        self._calls: dict[str, Any] = {}

    async def call(self, name: str, request: Any = None, /, **fields: Any) -> Any:
        """Make a call, with a request or its fields, and return the response."""
        path, method = _METHODS[name]
        if name not in self._calls:
            self._calls[name] = self._channel.unary_unary(
                path, method.request.SerializeToString, method.response.FromString
            )
        request = request or method.request(**fields)
        try:
            return await self._calls[name](
                request, timeout=CALL_TIMEOUT_S, metadata=self._metadata, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and (reason := await self._why_unconnected()):
                raise OutcomeUnknown(f"{reason}; the call may or may not have taken effect") from None
            raise error_of(error) from None

    async def require_connection(self) -> None:
        """Raise StoreFailed, which says why, unless a first try or two reach the server."""
        state = self._channel.get_state(try_to_connect=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while state in {grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING}:
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        if reason := await self._why_unconnected():
            raise StoreFailed(reason)

    async def _why_unconnected(self) -> str | None:
        """Why there is no connection to the server; None if there is one. A call that fails fast returns the reason."""
        if self._channel.get_state() is grpc.ChannelConnectivity.READY:
            return None
        path, method = _METHODS["GetAdminAddress"]
        call = self._channel.unary_unary(path, method.request.SerializeToString, method.response.FromString)
        try:
            await call(method.request(), timeout=1.0, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                return None  # it was the server that answered
            cause = (error.details() or "").rpartition("last error: ")[2]
            return (
                f"no server answers at {self._target} ({cause}): start it with 'seriatim serve', or correct its address, "
                "also tls and ca"
            )
        return None

    def stream(self) -> Any:
        """A new StreamingPull."""
        path, method = _METHODS["StreamingPull"]
        call = self._channel.stream_stream(path, method.request.SerializeToString, method.response.FromString)
        return call(metadata=[*(self._metadata or ()), RELEASE_ON_CLOSE], wait_for_ready=True)

    async def close(self) -> None:
        await self._channel.close()


def _read_certificate(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"the ca of a pubsub address, '{path}', can't be read: {error.strerror}") from error


def error_of(error: grpc.aio.AioRpcError) -> SeriatimError:
    """A gRPC error as one of our own errors."""
    kind = _ERRORS.get(error.code())
    if kind is not None:
        return kind(error.details())
    return OutcomeUnknown(
        f"the server did not answer ({error.code().name}: {error.details()}): the call may or may not have taken effect"
    )
