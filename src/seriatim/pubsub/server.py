"""The server: the services of the API on a port.

Rules
    - Whatever goes wrong ends the call with its status, and never the server. What is not one of our errors is INTERNAL, and
      logged.
    - Requests are parsed here and not by gRPC: bytes that are no such message are INVALID_ARGUMENT.
    - Two servers never share a port by accident.
    - A server that stops ends its streams with UNAVAILABLE, so that clients try again; leases are released before the store is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from re import sub
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from seriatim.engine.broker import Broker
from seriatim.errors import FailedPrecondition, InvalidArgument, SeriatimError, StoreLost
from seriatim.log import logger
from seriatim.pubsub.iam import IamService
from seriatim.pubsub.options import ServerOptions
from seriatim.pubsub.publishing import PublisherService
from seriatim.pubsub.resources import Resources
from seriatim.pubsub.schemas import Schemas, SchemaService
from seriatim.pubsub.statuses import abort
from seriatim.pubsub.subscribing import SubscriberService
from seriatim.wire.services import SERVICES, Method

GRACE = 2.0
"""So many seconds calls that are under way have when the server stops."""

Handler = Callable[[bytes, Any], Any]

_LONGEST_METADATA = 64 * 1024


class Tls(NamedTuple):
    """A certificate chain and its private key, in PEM."""

    certificate: bytes
    key: bytes


class Server:
    """The Google Pub/Sub API, served by a broker."""

    def __init__(self, broker: Broker, options: ServerOptions | None = None) -> None:
        self._options = options or ServerOptions()
        resources = Resources(self._options)
        self._schemas = Schemas(broker, self._options.project)
        self._subscriber = SubscriberService(broker, resources, self._options)
        self._services = {
            "google.pubsub.v1.Publisher": PublisherService(broker, resources, self._schemas),
            "google.pubsub.v1.Subscriber": self._subscriber,
            "google.pubsub.v1.SchemaService": SchemaService(self._schemas),
            "google.iam.v1.IAMPolicy": IamService(broker),
        }
        self._health = health.aio.HealthServicer()
        self._server: Any = None

    async def start(self, host: str = "127.0.0.1", port: int = 8085, tls: Tls | None = None) -> int:
        """Serve from now on; returns the port, which was chosen if it was 0."""
        self._server = grpc.aio.server(
            handlers=[self._handler(name, service) for name, service in self._services.items()],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._options.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _LONGEST_METADATA),
            ],
        )
        add_HealthServicer_to_server(self._health, self._server)
        port = self._listen(f"{host}:{port}", tls)
        await self._schemas.start()
        await self._subscriber.start()
        await self._server.start()
        for name in ("", *self._services):
            await self._health.set(name, HealthCheckResponse.SERVING)
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

    async def stop(self, grace: float = GRACE) -> None:
        """Take no more calls, end the streams, and let what is under way finish."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            stopping = self._server.stop(grace)
            self._subscriber.end_streams(StoreLost("the server is stopping: connect again"))
            await stopping

    def _handler(self, name: str, service: Any) -> Any:
        methods = {method: _method_handler(service, method, kinds) for method, kinds in SERVICES[name].items()}
        return grpc.method_handlers_generic_handler(name, methods)


def _method_handler(service: Any, name: str, method: Method) -> Any:
    answer = getattr(service, sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    if method.is_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _streaming(answer, method), response_serializer=method.response.SerializeToString
        )
    handle = _HANDLERS.get(name, _finished)(answer, method)
    return grpc.unary_unary_rpc_method_handler(handle, response_serializer=method.response.SerializeToString)


def _finished(answer: Callable[..., Any], method: Method) -> Handler:
    """A method that is finished once it has begun, also when its caller hangs up half-way."""

    async def handle(data: bytes, context: Any) -> Any:
        async with _statuses(context):
            work = asyncio.ensure_future(answer(_parse(method, data)))
            work.add_done_callback(_look_at)
            return await asyncio.shield(work)

    return handle


def _interruptible(answer: Callable[..., Any], method: Method) -> Handler:
    """A method that can be broken off anywhere."""

    async def handle(data: bytes, context: Any) -> Any:
        async with _statuses(context):
            return await answer(_parse(method, data))

    return handle


def _hasty(answer: Callable[..., Any], method: Method) -> Handler:
    """The same for one that wants to know how much time its caller has."""

    async def handle(data: bytes, context: Any) -> Any:
        async with _statuses(context):
            return await answer(_parse(method, data), context.time_remaining())

    return handle


_HANDLERS: Mapping[str, Callable[[Callable[..., Any], Method], Handler]] = {
    "Publish": _interruptible,
    "Acknowledge": _interruptible,
    "ModifyAckDeadline": _interruptible,
    "Pull": _hasty,
}


def _look_at(work: asyncio.Future[Any]) -> None:
    """An error that nobody waits for any more is not worth a warning."""
    if not work.cancelled():
        work.exception()


def _streaming(answer: Callable[..., Any], method: Method) -> Callable[[AsyncIterator[bytes], Any], Any]:
    async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
        async with _statuses(context):
            await answer((_parse(method, data) async for data in requests), context.write)

    return handle


@asynccontextmanager
async def _statuses(context: Any) -> AsyncIterator[None]:
    """Whatever goes wrong ends a call with its status."""
    try:
        yield
    except SeriatimError as error:
        await abort(context, error)
    except Exception:  # noqa: BLE001 - the client must hear of it, and the server go on
        logger.exception("a call failed")
        await context.abort(grpc.StatusCode.INTERNAL, "the server failed: see its log")


def _parse(method: Method, data: bytes) -> Any:
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is no {method.request.DESCRIPTOR.name}: {error}") from None
