"""How a call is answered: parsed, let through, answered, and ended with the right status.

Rules
    - Whatever goes wrong ends the call with its status, and never the server. What is not one of our errors is INTERNAL, and
      logged.
    - Requests are parsed here and not by gRPC: bytes that are no such message are INVALID_ARGUMENT, and so are times that
      protobuf does not allow.
    - Who calls is known from the headers, before a request is read (``admission``).
    - A call that changes resources is finished once it has begun, also when its caller hangs up half-way: what the store holds
      and what the engine knows must be the same. Messages are another matter; those calls can be broken off anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from re import sub
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from seriatim.errors import InvalidArgument
from seriatim.server.access import Gate, Rights
from seriatim.server.admission import Quota, Reader, address_of
from seriatim.server.ended import Client
from seriatim.server.options import ServerOptions
from seriatim.server.statuses import statuses
from seriatim.wire.names import RELEASE_ON_CLOSE
from seriatim.wire.services import Method
from seriatim.wire.times import check_times

Handler = Callable[[Any, Any], Any]
Answer = Callable[..., Any]

MAX_READS_PER_CLIENT, MAX_READS = 16, 32
"""Requests that are read at the same time. Each may be as large as a request can be."""

INTERRUPTIBLE = frozenset({"Publish", "Acknowledge", "ModifyAckDeadline"})


class Calls:
    """Makes handlers for gRPC of the methods of services.

    gRPC reads the request of a unary call before its handler runs. So all requests are streams to gRPC, on which our handlers
    look at the headers first and then read; on the wire there is no difference. The answer to a unary call is not one: it goes
    out together with the status, and a publisher hears of its message no later than necessary.
    """

    def __init__(self, gate: Gate | None, options: ServerOptions) -> None:
        self._gate = gate
        self._calls = Quota("calls", options.max_calls_per_client)
        self._streams = Quota("streams", options.max_streams_per_client)
        self._reader = Reader(MAX_READS_PER_CLIENT, MAX_READS, options.request_timeout)
        self._first_reader = Reader(MAX_READS_PER_CLIENT, MAX_READS, options.first_request_timeout)

    def handler(self, service: Any, name: str, method: Method) -> Any:
        """The handler of a method; the service has it under the same name, in small letters."""
        answer: Answer = getattr(service, sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        serialize = method.response.SerializeToString
        if method.is_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(answer, name, method), response_serializer=serialize
            )
        if name == "Pull":
            handle = self._hasty(answer, name, method)
        else:
            handle = (self._interruptible if name in INTERRUPTIBLE else self._finished)(answer, name, method)
        return grpc.stream_unary_rpc_method_handler(handle, response_serializer=serialize)

    def _finished(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(_: Any, context: Any) -> Any:
            async with statuses(context), self._admitted(name, method, context) as request:
                work = asyncio.ensure_future(answer(request))
                work.add_done_callback(_look_at)
                return await asyncio.shield(work)

        return handle

    def _interruptible(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(_: Any, context: Any) -> Any:
            async with statuses(context), self._admitted(name, method, context) as request:
                return await answer(request)

        return handle

    def _hasty(self, answer: Answer, name: str, method: Method) -> Handler:
        """One that wants to know how much time its caller has."""

        async def handle(_: Any, context: Any) -> Any:
            async with statuses(context), self._admitted(name, method, context) as request:
                return await answer(request, context.time_remaining())

        return handle

    def _streaming(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            async with statuses(context):
                caller, rights = self._caller(context)
                with self._calls.one(caller), self._streams.one(caller):
                    first = await self._first_reader.read(caller, lambda: anext(requests, grpc.aio.EOF))
                    request = _parse(method, first)
                    await self._require(rights, name, request)
                    later = (_parse(method, data) async for data in requests)
                    await answer(request, later, context.write, _client(caller, context))

        return handle

    @asynccontextmanager
    async def _admitted(self, name: str, method: Method, context: Any) -> AsyncIterator[Any]:
        """The request of a call that is allowed."""
        caller, rights = self._caller(context)
        with self._calls.one(caller):
            request = _parse(method, await self._reader.read(caller, context.read))
            await self._require(rights, name, request)
            yield request

    def _caller(self, context: Any) -> tuple[str, Rights | None]:
        """Whose call it is: a token's, or an address's where there are no tokens. The headers say so, and nothing is read."""
        if self._gate is None:
            return address_of(context), None
        rights = self._gate.who(context.invocation_metadata())
        return rights.name, rights

    async def _require(self, rights: Rights | None, name: str, request: Any) -> None:
        if self._gate is not None and rights is not None:
            await self._gate.check(rights, name, request)


def _client(name: str, context: Any) -> Client:
    return Client(name, str(context.peer()), RELEASE_ON_CLOSE in map(tuple, context.invocation_metadata() or ()))


def _parse(method: Method, data: bytes) -> Any:
    try:
        request = method.request.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is no {method.request.DESCRIPTOR.name}: {error}") from None
    check_times(request)
    return request


def _look_at(work: asyncio.Future[Any]) -> None:
    """An error that nobody waits for any more is not worth a warning."""
    if not work.cancelled():
        work.exception()
