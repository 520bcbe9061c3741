"""Two ways to consume a subscription: handlers that are called, and a stream that is iterated over.

Rules
    - Handlers may be plain or async functions. Plain ones run in the event loop and must not block.
    - While an async handler runs, and while a message of a stream is neither acked nor nacked, its lease is extended, up to
      ``max_extension`` in all. A handler that returned without ack or nack lets the lease expire, and the message comes again.
    - A handler that raises nacks its message, unless it said ack or nack before, and is reported.
    - Closing waits for the handlers that run. What was delivered and not settled is given back at once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from seriatim.client.leases import LeaseKeeper
from seriatim.client.message import Message
from seriatim.core.delivery import Lease
from seriatim.core.limits import reason_of
from seriatim.core.options import is_number, require_whole, shown
from seriatim.engine.broker import Broker, Told
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.errors import InvalidArgument, NotFound, StaleLease, StoreBroken, StoreLost

Handler = Callable[[Message], object]
ErrorHandler = Callable[[BaseException], object]


@dataclass(frozen=True, slots=True)
class Consuming:
    """How much a consumer takes at once, and for how long it may keep a message."""

    max_messages: int = 1000
    max_bytes: float = inf
    max_extension: float = 3600.0

    def __post_init__(self) -> None:
        require_whole("max_messages", self.max_messages, 1)
        if not is_number(self.max_bytes) or not self.max_bytes > 0:
            raise InvalidArgument(f"max_bytes must be above 0, not {shown(self.max_bytes)}")
        if not is_number(self.max_extension) or not self.max_extension >= 0:
            raise InvalidArgument(f"max_extension must be 0 seconds or more, not {shown(self.max_extension)}")


class _Source:
    """What both ways share: messages made of deliveries, and what they say."""

    def __init__(self, broker: Broker, subscription: str, consuming: Consuming) -> None:
        consumer = Consumer(self._deliver, self._lost, consuming.max_messages, consuming.max_bytes, self._store_failed)
        self._attachment = broker.attach(subscription, consumer)
        self._keeper = LeaseKeeper(self._attachment, consuming.max_extension)

    def ack(self, lease: Lease, told: Told | None = None) -> None:
        self._attachment.ack(lease, told)
        self._keeper.drop(lease)

    def nack(self, lease: Lease, delay: float | None, error: str | BaseException | None) -> None:
        self._attachment.nack(lease, delay, reason_of(error))
        self._keeper.drop(lease)

    def extend(self, lease: Lease, seconds: float) -> None:
        self._attachment.extend(lease, seconds)
        self._keeper.extended(lease, seconds)

    def _lost(self, lease: Lease) -> None:
        self._keeper.drop(lease)

    def _store_failed(self, error: BaseException) -> None:
        """The store failed, and what was said about messages may have to wait."""

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        for one in delivered:
            self._take(Message(one, self), one.lease)

    def _take(self, message: Message, lease: Lease) -> None:
        raise NotImplementedError

    def _leave(self) -> None:
        self._keeper.close()
        self._attachment.detach()


class HandlerRunner(_Source):
    """Calls a handler with every message, many at once."""

    def __init__(
        self, broker: Broker, subscription: str, consuming: Consuming, handle: Handler, report: ErrorHandler
    ) -> None:
        self._handle = handle
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__(broker, subscription, consuming)

    async def close(self) -> None:
        self._attachment.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._leave()

    def _take(self, message: Message, lease: Lease) -> None:
        try:
            result = self._handle(message)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything; it is reported, and its message comes again
            self._failed(lease, error)
            return
        if result is not None and inspect.iscoroutine(result):
            self._keeper.keep(lease)
            task = self._loop.create_task(self._finish(result, lease))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish(self, result: Coroutine[Any, Any, object], lease: Lease) -> None:
        try:
            await result
        except Exception as error:  # noqa: BLE001 - see _take
            self._failed(lease, error)
        finally:
            self._keeper.drop(lease)

    def _store_failed(self, error: BaseException) -> None:
        self._report(error)

    def _failed(self, lease: Lease, error: Exception) -> None:
        # Stale when the handler said ack or nack before it raised, or its lease is lost.
        with suppress(StaleLease):
            self.nack(lease, None, error)
        self._report(error)


class MessageStream(_Source):
    """An async iterator of messages; it ends when it is closed, and raises when there will be no more."""

    def __init__(self, broker: Broker, subscription: str, consuming: Consuming) -> None:
        self._queue: asyncio.Queue[tuple[Message, Lease] | BaseException] = asyncio.Queue()
        self.is_closed = False
        super().__init__(broker, subscription, consuming)

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Message:
        while not isinstance(delivery := await self._queue.get(), BaseException):
            message, lease = delivery
            if self._keeper.keeps(lease):  # it may have been lost while it waited here, and comes again then
                return message
        raise delivery

    def stop(self) -> None:
        """Take no more messages; those that are out go on."""
        self._attachment.stop()

    def close(self) -> None:
        """Give back what is not settled, and end the iteration."""
        if self.is_closed:
            return
        self.is_closed = True
        self._leave()
        while not self._queue.empty():  # what nobody has taken was given back just now
            self._queue.get_nowait()
        self._queue.put_nowait(StopAsyncIteration())

    def _store_failed(self, error: BaseException) -> None:
        if isinstance(error, StoreLost | NotFound) and not isinstance(error, StoreBroken):  # others pass
            self._queue.put_nowait(error)

    def _take(self, message: Message, lease: Lease) -> None:
        self._keeper.keep(lease)
        self._queue.put_nowait((message, lease))
