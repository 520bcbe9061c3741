"""The standard health service, for anybody who can connect. So it is bounded: nobody can keep the others from asking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from seriatim.errors import InvalidArgument
from seriatim.server.admission import Quota, Reader, address_of
from seriatim.server.statuses import statuses

SERVICE = "grpc.health.v1.Health"

MAX_CALLS_PER_ADDRESS, MAX_CALLS = 32, 256
MAX_READS_PER_ADDRESS, MAX_READS, READ_TIMEOUT_S = 4, 16, 5.0

FAREWELL_S = 1.0
"""How long watchers may take to read that the server stops."""


class Health:
    """Whether the services of this server are served."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = ("", *services)
        self._servicer = health.aio.HealthServicer()
        self._calls = Quota("health calls", MAX_CALLS_PER_ADDRESS, MAX_CALLS)
        self._reader = Reader(MAX_READS_PER_ADDRESS, MAX_READS, READ_TIMEOUT_S)

    def handler(self) -> Any:
        """The handler for gRPC of all methods."""
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                handle, response_serializer=HealthCheckResponse.SerializeToString
            )
            for name, handle in (("Check", self._check), ("Watch", self._watch))
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def start(self) -> None:
        for name in self._services:
            await self._servicer.set(name, HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Tell everybody who watches, as far as he reads."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._servicer.enter_graceful_shutdown()

    async def _check(self, _: Any, context: Any) -> None:
        async with statuses(context):
            with self._calls.one(address_of(context)):
                await context.write(await self._servicer.Check(await self._request(context), context))

    async def _watch(self, _: Any, context: Any) -> None:
        async with statuses(context):
            with self._calls.one(address_of(context)):
                await self._servicer.Watch(await self._request(context), context)

    async def _request(self, context: Any) -> Any:
        try:
            return HealthCheckRequest.FromString(await self._reader.read(address_of(context), context.read))
        except DecodeError:
            raise InvalidArgument("the request is no HealthCheckRequest") from None
