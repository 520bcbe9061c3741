"""Two ways to consume a subscription: handlers that are called, and a stream that is iterated over.

Rules
    - Handlers may be plain or async functions. Plain ones run in the event loop and must not block.
    - While an async handler runs, and while a message of a stream is neither acked nor nacked, its lease is extended, up to
      ``max_extension`` in all. A handler that returned without ack or nack lets the lease expire, and the message comes again.
    - A handler that raises nacks its message, unless it said ack or nack before, and is reported. That holds for whatever it
      raises: ``sys.exit()`` in a handler is a failure of this message and does not end the program, nor does a CancelledError
      that nobody sent. A handler whose task is cancelled from outside has not failed: its lease is left to expire.
    - A handler is started only while the lease of its message is not known to be lost.
    - Closing starts nothing more and waits for the handlers that run; their acks are accepted. Then what was delivered and not
      settled is given back. A handler that closes its own subscription waits for the others only, and the end follows its own.
    - Every reader of a closed stream ends, also one that asks later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from seriatim.client.leases import LeaseKeeper
from seriatim.client.message import Message
from seriatim.client.running import Calls, inside_handler
from seriatim.core.delivery import Lease
from seriatim.core.limits import reason_of
from seriatim.core.options import is_number, require_duration, require_whole, shown
from seriatim.engine.broker import Broker, Told
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.errors import InvalidArgument, SeriatimError, StaleLease, StoreBroken, StoreError, StoreLost

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
        if self.max_extension != inf:
            require_duration("max_extension", self.max_extension)


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

    def may_start(self, lease: Lease) -> bool:
        """Whether it makes sense to begin with a message: its lease is not known to be lost."""
        return self._attachment.holds(lease)

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
        self.handle = handle
        self._report = report
        self._calls = Calls(self._leave_if_stopped)
        self._is_stopped = False
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(broker, subscription, consuming)

    def stop(self) -> None:
        """Start no more handlers, and leave when those that run have ended."""
        if not self._is_stopped:
            self._is_stopped = True
            try:
                self._attachment.stop()
            finally:
                self._leave_if_stopped()

    async def close(self) -> None:
        """Stop, and wait for the end; inside a handler only for the other ones, because the end comes after it."""
        self.stop()
        await self._calls.wait()
        if not inside_handler():
            await asyncio.shield(self._left)

    @property
    def is_over(self) -> bool:
        return self._left.done()

    def may_start(self, lease: Lease) -> bool:
        return not self._is_stopped and super().may_start(lease)

    def _leave_if_stopped(self) -> None:
        if not self._is_stopped or self._calls or self._left.done():
            return
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - whoever waits for the end must hear of it
            self._left.set_exception(error)
        else:
            self._left.set_result(None)

    def _take(self, message: Message, lease: Lease) -> None:
        if not self.may_start(lease):
            return
        try:
            result = self.handle(message)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it is reported, and its message comes again
            self._failed(lease, error)
            return
        if result is not None and inspect.iscoroutine(result):
            self._keeper.keep(lease)
            self._calls.start(self._finish(result, lease))

    async def _finish(self, result: Coroutine[Any, Any, object], lease: Lease) -> None:
        try:
            if self.may_start(lease):  # it may have been lost since it came
                await result
        except BaseException as error:
            if isinstance(error, GeneratorExit) or is_cancelled(error):
                raise
            self._failed(lease, error)
        finally:
            result.close()
            self._keeper.drop(lease)

    def _store_failed(self, error: BaseException) -> None:
        self._report(error)

    def _failed(self, lease: Lease, error: BaseException) -> None:
        try:
            self.nack(lease, None, error)
        except StaleLease:
            pass  # the handler said ack or nack before it raised, or its lease is lost
        except SeriatimError as trouble:  # the store is gone, for example: the message comes again all the same
            self._report(trouble)
        self._report(error)


def is_cancelled(error: BaseException) -> bool:
    """Whether an error means that somebody cancels the task that runs, rather than that the code in it failed."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class MessageStream(_Source):
    """An async iterator of messages; it ends when it is closed, and raises when there will be no more."""

    def __init__(self, broker: Broker, subscription: str, consuming: Consuming) -> None:
        self._queue: asyncio.Queue[tuple[Message, Lease] | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._is_over = False
        self.is_closed = False
        super().__init__(broker, subscription, consuming)

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Message:
        while (delivery := await self._queue.get()) is not None:
            message, lease = delivery
            if self.may_start(lease):  # it may have been lost while it waited here, and comes again then
                return message
        self._queue.put_nowait(None)  # for the next reader, and for whoever asks again
        raise self._error or StopAsyncIteration

    def stop(self) -> None:
        """Take no more messages; those that are out go on."""
        self._attachment.stop()

    def end(self) -> None:
        """Hand out nothing more, so that the iteration ends. Messages that were handed out can still be settled."""
        if self._is_over:
            return
        self._is_over = True
        while not self._queue.empty():  # nobody has taken it: it is given back by close
            self._queue.get_nowait()
        self._queue.put_nowait(None)
        self._attachment.stop()

    def close(self) -> None:
        """Give back what is not settled, and end the iteration."""
        if self.is_closed:
            return
        self.is_closed, self._error = True, None
        try:
            self.end()
        finally:
            self._leave()

    def _store_failed(self, error: BaseException) -> None:
        passes = isinstance(error, StoreError) and (not isinstance(error, StoreLost) or isinstance(error, StoreBroken))
        if not passes and not self._is_over:
            self._is_over, self._error = True, error
            self._queue.put_nowait(None)

    def _take(self, message: Message, lease: Lease) -> None:
        if not self._is_over:
            self._keeper.keep(lease)
            self._queue.put_nowait((message, lease))
