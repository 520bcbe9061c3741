"""The server: the services of the API on a port.

Rules
    - Two servers never share a port by accident.
    - A stopping server ends its streams with UNAVAILABLE, so that clients retry; leases are released before the store is
      closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Broker
from seriatim.errors import FailedPrecondition, StoreLost
from seriatim.server.access import Authorizer
from seriatim.server.calls import Calls
from seriatim.server.health import Health
from seriatim.server.iam import IamService
from seriatim.server.options import ServerOptions
from seriatim.server.publisher_service import PublisherService
from seriatim.server.resources import Resources
from seriatim.server.schemas import Schemas, SchemaService
from seriatim.server.subscriber_service import SubscriberService
from seriatim.wire.services import SERVICES

STOP_GRACE_S = 2.0
"""How long calls in progress may take to finish when the server stops."""

_CONNECTIONS = (
    # A client that does not finish the handshake, or never calls, is disconnected.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # What may arrive before it is read: gRPC would let this window grow to megabytes per call.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 128 * 1024),
    # Clients may ping as often as they like.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)

MAX_CALLS_PER_CONNECTION = 2000
"""Further calls wait in the client: enough for all its streams, and as many other calls."""

_MAX_METADATA_BYTES = 64 * 1024


class Tls(NamedTuple):
    """A certificate chain and its private key, in PEM."""

    certificate: bytes
    key: bytes


class Server:
    """The Google Pub/Sub API, served by a broker."""

    def __init__(self, broker: Broker, options: ServerOptions | None = None, access: Access | None = None) -> None:
        """Without ``access`` every client may do everything."""
        self._options = options or ServerOptions()
        resources = Resources(self._options)
        self._calls = Calls(Authorizer(access, broker, resources) if access is not None else None, self._options)
        self._schemas = Schemas(broker, self._options.project)
        self._subscriber = SubscriberService(broker, resources, self._options)
        max_bytes = self._options.max_publishing_bytes
        self._services = {
            "google.pubsub.v1.Publisher": PublisherService(broker, resources, self._schemas, max_bytes),
            "google.pubsub.v1.Subscriber": self._subscriber,
            "google.pubsub.v1.SchemaService": SchemaService(self._schemas),
            "google.iam.v1.IAMPolicy": IamService(broker),
            "seriatim.v1.Admin": AdminService(self),
        }
        self._health = Health(self._services)
        self._server: Any = None
        self.admin_address = ""

    async def start(self, host: str = "127.0.0.1", port: int = 8085, tls: Tls | None = None) -> int:
        """Start serving. Returns the port, which is chosen if it was 0."""
        self._server = grpc.aio.server(
            handlers=[
                *(self._handler(name, service) for name, service in self._services.items()),
                self._health.handler(),
            ],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._options.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
                *_CONNECTIONS,
                *_keep_alive(self._options.keepalive),
            ],
            maximum_concurrent_rpcs=self._options.max_calls,
        )
        port = self._listen(authority(host, port), tls)
        await self._schemas.start()
        await self._subscriber.start()
        await self._server.start()
        await self._health.start()
        return port

    def _listen(self, address: str, tls: Tls | None) -> int:
        try:
            if tls is None:
                return int(self._server.add_insecure_port(address))
            credentials = grpc.ssl_server_credentials([(tls.key, tls.certificate)])
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise FailedPrecondition(
                f"can't listen at {address}: free the port, or choose another ({error})"
            ) from error

    async def stop(self, grace: float = STOP_GRACE_S) -> None:
        """Accept no more calls, end the streams, and let calls in progress finish."""
        if self._server is not None:
            await self._health.stop()
            self._subscriber.end(StoreLost("the server is stopping: connect again"))
            await self._server.stop(grace)
            await self._subscriber.close()

    def _handler(self, name: str, service: Any) -> Any:
        methods = {method: self._calls.handler(service, method, kinds) for method, kinds in SERVICES[name].items()}
        return grpc.method_handlers_generic_handler(name, methods)


class AdminService:
    """Tells clients where the admin API of the server's store is."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def get_admin_address(self, _: Any) -> Any:
        return StringValue(value=self._server.admin_address)


def authority(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _keep_alive(seconds: float) -> Iterator[tuple[str, int]]:
    """A client whose machine is gone is detected after twice this time, and its messages are redelivered."""
    milliseconds = max(1, int(seconds * 1000))
    yield "grpc.keepalive_time_ms", milliseconds
    yield "grpc.keepalive_timeout_ms", milliseconds
    yield "grpc.http2.ping_timeout_ms", milliseconds
