"""How a call is handled: admitted, parsed, authorized, answered, and ended with the right status.

Rules
    - Any error ends the call with its status, never the server. An unexpected exception is INTERNAL, and logged.
    - Requests are parsed here and not by gRPC: malformed bytes are INVALID_ARGUMENT, and so are times outside the range of
      protobuf.
    - The caller is known from the headers, before a request is read (``admission``).
    - A call that changes resources is completed once it has begun, even if its caller hangs up: store and engine must agree.
      Calls that publish or settle messages can be cancelled at any point.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from re import sub
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from seriatim.engine.access_tokens import Rights
from seriatim.errors import InvalidArgument
from seriatim.server.access import Authorizer
from seriatim.server.admission import Quota, Reader, address_of
from seriatim.server.ended_streams import Client
from seriatim.server.grpc_status import statuses
from seriatim.server.options import ServerOptions
from seriatim.wire.names import RELEASE_ON_CLOSE
from seriatim.wire.services import Method
from seriatim.wire.times import check_times

Handler = Callable[[Any, Any], Any]
Answer = Callable[..., Any]

MAX_READS_PER_CLIENT, MAX_READS = 16, 32
"""Requests that are read at the same time. Each may have the maximal size."""

INTERRUPTIBLE = frozenset({"Publish", "Acknowledge", "ModifyAckDeadline"})


class Calls:
    """Turns the methods of services into gRPC handlers.

    gRPC reads the request of a unary call before its handler runs. So all requests are declared as streams, and our handlers
    look at the headers first and then read; on the wire there is no difference. The response of a unary call is not declared
    as a stream: it is sent together with the status, so that a publisher gets its confirmation as early as possible.
    """

    def __init__(self, gate: Authorizer | None, options: ServerOptions) -> None:
        self._authorizer = gate
        self._calls = Quota("calls", options.max_calls_per_client)
        self._streams = Quota("streams", options.max_streams_per_client)
        self._reader = Reader(MAX_READS_PER_CLIENT, MAX_READS, options.request_timeout)
        self._first_reader = Reader(MAX_READS_PER_CLIENT, MAX_READS, options.first_request_timeout)

    def handler(self, service: Any, name: str, method: Method) -> Any:
        """The handler of a method, which the service implements under the same name in snake case."""
        answer: Answer = getattr(service, sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        make, handle = grpc.stream_unary_rpc_method_handler, self._unary
        if method.is_streaming:
            make, handle = grpc.stream_stream_rpc_method_handler, self._streaming
        return make(handle(answer, name, method), response_serializer=_serialized)

    def _unary(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(_: Any, context: Any) -> Any:
            async with statuses(context):
                caller, rights = self._caller(context)
                with self._calls.one(caller):
                    request = _parse(method, await self._reader.read(caller, context.read))
                    if rights is not None and self._authorizer is not None:
                        await self._authorizer.check(rights, name, request)
                    if name == "Pull":
                        return await answer(request, context.time_remaining())
                    return await (answer(request) if name in INTERRUPTIBLE else _uninterrupted(answer(request)))

        return handle

    def _streaming(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            async with statuses(context):
                caller, rights = self._caller(context)
                with self._calls.one(caller), self._streams.one(caller):
                    first = await self._first_reader.read(caller, lambda: anext(requests, grpc.aio.EOF))
                    request = _parse(method, first)
                    if rights is not None and self._authorizer is not None:
                        await self._authorizer.check(rights, name, request)
                    later = (_parse(method, data) async for data in requests)
                    releases = RELEASE_ON_CLOSE in map(tuple, context.invocation_metadata() or ())
                    await answer(request, later, context.write, Client(caller, str(context.peer()), releases))

        return handle

    def _caller(self, context: Any) -> tuple[str, Rights | None]:
        """Who is calling: a token, or an address where there are no tokens. Only headers are needed."""
        if self._authorizer is None:
            return address_of(context), None
        rights = self._authorizer.authenticate(context.invocation_metadata())
        return rights.name, rights


def _serialized(response: Any) -> bytes:
    """A response on the wire. Those with messages are serialized already."""
    return response if type(response) is bytes else bytes(response.SerializeToString())


def _parse(method: Method, data: bytes) -> Any:
    try:
        request = method.request.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a valid {method.request.DESCRIPTOR.name}: {error}") from None
    check_times(request)
    return request


async def _uninterrupted(work: Coroutine[Any, Any, Any]) -> Any:
    """Wait for work that continues if the wait is cancelled. Its error then counts as handled, or asyncio would complain."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
