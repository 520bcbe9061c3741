"""How a call is answered: parsed, let through, answered, and ended with the right status.

Rules
    - Whatever goes wrong ends the call with its status, and never the server. What is not one of our errors is INTERNAL, and
      logged.
    - Requests are parsed here and not by gRPC: bytes that are no such message are INVALID_ARGUMENT.
    - A call that changes resources is finished once it has begun, also when its caller hangs up half-way: what the store holds
      and what the engine knows must be the same. Messages are another matter; those calls can be broken off anywhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from re import sub
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from seriatim.errors import InvalidArgument, ResourceExhausted, SeriatimError
from seriatim.log import logger
from seriatim.pubsub.access import Gate
from seriatim.pubsub.ended import Client
from seriatim.pubsub.options import ServerOptions
from seriatim.pubsub.statuses import abort
from seriatim.wire.names import RELEASE_ON_CLOSE
from seriatim.wire.services import Method

Handler = Callable[[Any, Any], Any]
Answer = Callable[..., Any]

INTERRUPTIBLE = frozenset({"Publish", "Acknowledge", "ModifyAckDeadline"})


class Calls:
    """Makes handlers for gRPC of the methods of services."""

    def __init__(self, gate: Gate | None, options: ServerOptions) -> None:
        self._gate = gate
        self._most_streams = options.max_streams_per_client
        self._streams: Counter[str] = Counter()

    def handler(self, service: Any, name: str, method: Method) -> Any:
        """The handler of a method; the service has it under the same name, in small letters."""
        answer: Answer = getattr(service, sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        if method.is_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(answer, name, method), response_serializer=method.response.SerializeToString
            )
        if name == "Pull":
            handle = self._hasty(answer, name, method)
        else:
            handle = (self._interruptible if name in INTERRUPTIBLE else self._finished)(answer, name, method)
        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=method.response.SerializeToString)

    def _finished(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(data: bytes, context: Any) -> Any:
            async with statuses(context):
                work = asyncio.ensure_future(answer(await self._admit(name, method, data, context)))
                work.add_done_callback(_look_at)
                return await asyncio.shield(work)

        return handle

    def _interruptible(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(data: bytes, context: Any) -> Any:
            async with statuses(context):
                return await answer(await self._admit(name, method, data, context))

        return handle

    def _hasty(self, answer: Answer, name: str, method: Method) -> Handler:
        """One that wants to know how much time its caller has."""

        async def handle(data: bytes, context: Any) -> Any:
            async with statuses(context):
                return await answer(await self._admit(name, method, data, context), context.time_remaining())

        return handle

    def _streaming(self, answer: Answer, name: str, method: Method) -> Handler:
        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            async with statuses(context):
                first = await anext(requests, None)
                if first is None:
                    raise InvalidArgument("a stream begins with a request")
                request = _parse(method, first)
                client = _client(await self._caller(name, request, context), context)
                with self._counted(client.name):
                    await answer(request, (_parse(method, data) async for data in requests), context.write, client)

        return handle

    async def _admit(self, name: str, method: Method, data: bytes, context: Any) -> Any:
        request = _parse(method, data)
        if self._gate is not None:
            await self._gate.check(name, request, context.invocation_metadata())
        return request

    async def _caller(self, name: str, request: Any, context: Any) -> str:
        """Whose call it is: a token's, or an address's where there are no tokens."""
        if self._gate is not None:
            return await self._gate.check(name, request, context.invocation_metadata())
        return str(context.peer()).rpartition(":")[0]

    @contextmanager
    def _counted(self, caller: str) -> Any:
        if self._streams[caller] >= self._most_streams:
            raise ResourceExhausted(f"{caller} has {self._most_streams} streams already: end some")
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]


@asynccontextmanager
async def statuses(context: Any) -> AsyncIterator[None]:
    """Whatever goes wrong ends a call with its status."""
    try:
        yield
    except SeriatimError as error:
        await abort(context, error)
    except grpc.aio.InternalError as error:  # there was nobody any more to write to
        logger.debug("a client hung up: %s", error)
    except Exception:  # noqa: BLE001 - the client must hear of it, and the server go on
        logger.exception("a call failed")
        await context.abort(grpc.StatusCode.INTERNAL, "the server failed: see its log")


def _client(name: str, context: Any) -> Client:
    return Client(name, str(context.peer()), RELEASE_ON_CLOSE in map(tuple, context.invocation_metadata() or ()))


def _parse(method: Method, data: bytes) -> Any:
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is no {method.request.DESCRIPTOR.name}: {error}") from None


def _look_at(work: asyncio.Future[Any]) -> None:
    """An error that nobody waits for any more is not worth a warning."""
    if not work.cancelled():
        work.exception()
