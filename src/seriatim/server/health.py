"""The standard gRPC health service. It needs no token, so its use is limited per address and in total."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from seriatim.errors import InvalidArgument
from seriatim.server.admission import Quota, Reader, address_of
from seriatim.server.grpc_status import statuses

SERVICE = "grpc.health.v1.Health"

MAX_CALLS_PER_ADDRESS, MAX_CALLS = 32, 256
MAX_READS_PER_ADDRESS, MAX_READS, READ_TIMEOUT_S = 4, 16, 5.0

CLOSE_TIMEOUT_S = 1.0
"""How long watchers may take to read that the server stops."""


class Health:
    """Reports whether the services of this server are available."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = ("", *services)
        self._servicer = health.aio.HealthServicer()
        self._calls = Quota("health calls", MAX_CALLS_PER_ADDRESS, MAX_CALLS)
        self._reader = Reader(MAX_READS_PER_ADDRESS, MAX_READS, READ_TIMEOUT_S)

    def handler(self) -> Any:
        """The handler for gRPC of all methods."""
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                partial(self._handle, answer), response_serializer=HealthCheckResponse.SerializeToString
            )
            for name, answer in (("Check", self._check), ("Watch", self._servicer.Watch))
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def start(self) -> None:
        for name in self._services:
            await self._servicer.set(name, HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Tell all watchers that the server stops, waiting at most CLOSE_TIMEOUT_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._servicer.enter_graceful_shutdown()

    async def _handle(self, answer: Callable[[Any, Any], Awaitable[None]], _: Any, context: Any) -> None:
        async with statuses(context):
            with self._calls.one(address_of(context)):
                try:
                    request = HealthCheckRequest.FromString(await self._reader.read(address_of(context), context.read))
                except DecodeError:
                    raise InvalidArgument("the request is not a valid HealthCheckRequest") from None
                await answer(request, context)

    async def _check(self, request: Any, context: Any) -> None:
        await context.write(await self._servicer.Check(request, context))
