"""Two ways to consume a subscription: handlers, which are called, and a stream, which is iterated over.

Rules
    - Handlers may be plain or async functions. Plain ones run in the event loop and must not block.
    - While an async handler runs, and while a message of a stream is neither acked nor nacked, its lease is extended, up to
      ``max_extension`` in total.
    - A handler that returns without ack or nack BLOCKS ITS KEY until the lease expires; then the message is redelivered. This
      is logged once per subscription. With ``ack="on-return"`` the message is acked when its handler returns.
    - If a handler raises, its message is nacked, unless it was acked or nacked before, and the error is reported. This holds
      for any exception: ``sys.exit()`` in a handler is a failure of this message and does not end the program, and so is a
      CancelledError that nobody sent. A handler whose task is cancelled from outside has not failed: its lease expires.
    - A handler is not started if the lease of its message is known to be lost.
    - Closing starts no more handlers and waits for running ones; their acks are accepted. Then unsettled messages are returned.
      A handler that closes its own subscription waits for the other handlers only; closing finishes after it has returned.
    - What a handler waits for must not depend on the end of the handler. So closing waits for acks that handlers wait for
      (``ack_durable``) only as long as they can become durable soon; after ``DURABLE_TIMEOUT_S`` they raise OutcomeUnknown. The
      store may be unavailable, or with a window an earlier message of the key may wait for its lease to expire.
    - Every reader of a closed stream ends, even one that starts later.
    - With ``batch`` a handler gets lists. By default each list has one key and one lease: an ack settles the messages up to its
      own, a nack or a dead letter ends the batch, and the core decides what a failure means (rule 9 of the lanes). With
      ``across_keys`` a list has the messages that arrived in the meantime, each with its own lease, one list at a time. If the
      handler raises, it is called again with each message of the list alone; a message that fails then has failed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal, get_args

from seriatim.client.handler_calls import HandlerCalls, inside_handler
from seriatim.client.leases import LeaseKeeper
from seriatim.client.message import Message
from seriatim.core.lanes.types import Lease
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import (
    MAX_DURATION_S,
    is_number,
    require_duration,
    require_kind,
    require_whole,
    shown,
)
from seriatim.engine.broker import Broker, OnDurable
from seriatim.engine.consumer import Consumer, Delivered, whole_leases
from seriatim.engine.outcomes import tell_future
from seriatim.errors import (
    InvalidArgument,
    OutcomeUnknown,
    SeriatimError,
    StaleLease,
    StoreBroken,
    StoreError,
    StoreLost,
)

MIN_WAIT_S = 0.1
"""The shortest wait for a message: even with a timeout of 0, a message that is there is found."""

DURABLE_TIMEOUT_S = 10.0
"""How long a handler waits for its ack to become durable once its consumer is closed."""

Handler = Callable[[Message], object]
BatchHandler = Callable[[list[Message]], object]
ErrorHandler = Callable[[BaseException], object]
AckMode = Literal["manual", "on-return"]


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """How a consumer receives messages.

    ``max_messages`` and ``max_bytes``: how much is in progress at once. ``max_extension``: how many seconds in total a lease is
    extended while the handler of its message runs. ``ack``: with ``"manual"`` the handler calls ``message.ack()`` or
    ``message.nack()``; if it doesn't, its key is blocked until the lease expires. With ``"on-return"`` the message is acked
    when its handler returns, unless the handler has settled it. A handler that raises nacks its message either way.
    ``batch``: call handlers with lists of up to that many messages, with the same key and one lease, or with ``across_keys``
    with any keys and a lease each.
    """

    max_messages: int = 1000
    max_bytes: float = inf
    max_extension: float = 3600.0
    ack: AckMode = "manual"
    batch: int | None = None
    across_keys: bool = False

    def __post_init__(self) -> None:
        require_whole("max_messages", self.max_messages, 1)
        if self.batch is not None:
            require_whole("batch", self.batch, 1, self.max_messages)
        require_kind("across_keys", bool, self.across_keys)
        if self.across_keys and self.batch is None:
            raise InvalidArgument("across_keys is about batches: say how large they may be, such as batch=100")
        if not is_number(self.max_bytes) or not self.max_bytes > 0:
            raise InvalidArgument(f"max_bytes must be above 0, not {shown(self.max_bytes)}")
        if self.max_extension != inf:
            require_duration("max_extension", self.max_extension)
        if self.ack not in get_args(AckMode):
            raise InvalidArgument(f"ack must be 'manual' or 'on-return', not {shown(self.ack)}")


def check_handler(handler: object, *, may_be_async: bool = True) -> None:
    """Refuse a handler that would be called without being run, while its messages would be acked anyway."""
    if not callable(handler):
        raise InvalidArgument(f"a handler must be a function, not {shown(handler)}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidArgument("a handler can't be a generator: remove its 'yield'")
    if inspect.iscoroutinefunction(handler) and not may_be_async:
        raise InvalidArgument("a handler of the blocking API can't be async: give a plain function, or use PubSub(...)")


def check_timeout(timeout: object) -> None:
    """Refuse invalid timeouts. None and infinity mean no limit; zero and negative numbers mean no wait."""
    if timeout is None or timeout == inf:
        return
    if not is_number(timeout) or not timeout <= MAX_DURATION_S:
        raise InvalidArgument(f"timeout must be a number of seconds up to 100 years, or None, not {shown(timeout)}")


class _Receiver:
    """What handlers and streams share: making messages of deliveries, and passing on their outcomes."""

    def __init__(self, broker: Broker, subscription: str, consuming: ConsumeOptions) -> None:
        self._consumer = Consumer(
            self._deliver,
            self._lost,
            consuming.max_messages,
            consuming.max_bytes,
            self._store_failed,
            batch=1 if consuming.across_keys else consuming.batch or 1,
        )
        self._has_batches = self._consumer.batch > 1
        self._attachment = broker.attach(subscription, self._consumer)
        self._keeper = LeaseKeeper(self._attachment, consuming.max_extension)

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        """Ack a delivery. ``on_durable`` is called with the outcome."""
        self._attachment.ack(lease, on_durable)
        if not self._has_batches:  # otherwise it may go on with the rest
            self._keeper.drop(lease)

    def ack_durable(self, lease: Lease) -> asyncio.Future[None]:
        """Ack a delivery. The future resolves once the ack is durable."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ack(lease, partial(tell_future, durable))
        return durable

    def nack(self, lease: Lease, delay: float | None, error: str | BaseException | None) -> None:
        """Return a delivery, to be repeated after a delay or the backoff of the retry policy."""
        self._attachment.nack(lease, delay, reason_of(error))
        self._keeper.drop(lease)

    def dead_letter(self, lease: Lease, reason: str | BaseException | None, rest: bool) -> None:
        """Dead-letter a delivery; with ``rest``, also the later messages of its key."""
        self._attachment.dead_letter(lease, reason_of(reason), rest=rest)
        self._keeper.drop(lease)

    def extend(self, lease: Lease, seconds: float) -> None:
        """Move the deadline of a lease to this many seconds from now."""
        self._attachment.extend(lease, seconds)
        self._keeper.extended(lease, seconds)

    def may_start(self, lease: Lease) -> bool:
        """Whether a message may be handled: its lease is not known to be lost."""
        return self._attachment.holds(lease)

    def _lost(self, lease: Lease) -> None:
        self._keeper.drop(lease)

    def _store_failed(self, error: BaseException) -> None:
        """The store failed: outcomes may have to wait."""

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        for one in delivered:
            self._take(Message(one, self), one[0])

    def _take(self, message: Message, lease: Lease) -> None:
        raise NotImplementedError

    def _detach(self) -> None:
        self._keeper.close()
        self._attachment.detach()


class HandlerRunner(_Receiver):
    """Calls a handler with every message, many concurrently."""

    def __init__(
        self,
        broker: Broker,
        subscription: str,
        consuming: ConsumeOptions,
        handle: Callable[[Any], object],
        report: Callable[[BaseException, Message | list[Message] | None], object],
        report_unsettled: Callable[[Message | list[Message]], None],
    ) -> None:
        self.handle = handle
        self._report = report
        self._report_unsettled = report_unsettled
        self._acks_on_return = consuming.ack == "on-return"
        self._calls = HandlerCalls(self._detach_if_stopped)
        self._is_stopped = False
        self._unwritten: set[asyncio.Future[None]] = set()  # acks that handlers wait for
        self.detached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = (
            asyncio.get_running_loop().create_future()
        )  # fails when no more messages will come
        super().__init__(broker, subscription, consuming)
        self.ack = self._attachment.ack  # type: ignore[method-assign]  # what is kept of a lease ends with its handler

    def stop(self) -> None:
        """Start no more handlers, and detach when the running ones have ended."""
        if not self._is_stopped:
            self._is_stopped = True
            for durable in self._unwritten:
                self._limit_wait(durable)
            try:
                self._attachment.stop()
            finally:
                self._detach_if_stopped()

    async def close(self) -> None:
        """Stop, and wait for running handlers; inside a handler, only for the others."""
        self.stop()
        await self._calls.wait()
        if not inside_handler():
            await asyncio.shield(self.detached)

    def ack_durable(self, lease: Lease) -> asyncio.Future[None]:
        durable = super().ack_durable(lease)
        self._unwritten.add(durable)
        durable.add_done_callback(self._unwritten.discard)
        if self._is_stopped:
            self._limit_wait(durable)
        return durable

    def _limit_wait(self, durable: asyncio.Future[None]) -> None:
        unknown = OutcomeUnknown("the consumer was closed before this ack was durable: the message may come again")
        durable.get_loop().call_later(DURABLE_TIMEOUT_S, tell_future, durable, unknown)

    @property
    def is_over(self) -> bool:
        return self.detached.done()

    def may_start(self, lease: Lease) -> bool:
        return not self._is_stopped and super().may_start(lease)

    def _detach_if_stopped(self) -> None:
        if not self._is_stopped or self._calls or self.detached.done():
            return
        try:
            self._detach()
        except Exception as error:  # noqa: BLE001 - whoever waits for the end must hear of it
            self.detached.set_exception(error)
        else:
            self.detached.set_result(None)

    def _take(self, message: Message | list[Message], lease: Lease) -> None:
        if self._is_stopped or not self._attachment.holds(lease):
            return
        try:
            result = self.handle(message)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it is reported, and its message comes again
            self._failed(message, lease, error)
            return
        if result is not None and inspect.isawaitable(result):
            self._keeper.keep(lease)
            self._calls.start(
                self._finish(result if inspect.iscoroutine(result) else _wait_for(result), message, lease)
            )
        elif isinstance(message, list) or not message._is_acked:  # noqa: SLF001 - one of us
            self._returned(message, lease)

    async def _finish(
        self, result: Coroutine[Any, Any, object], message: Message | list[Message], lease: Lease
    ) -> None:
        try:
            if self.may_start(lease):  # it may have been lost since it came
                await result
                self._returned(message, lease)
        except BaseException as error:
            if isinstance(error, GeneratorExit) or is_cancelled(error):
                raise
            self._failed(message, lease, error)
        finally:
            result.close()
            self._keeper.drop(lease)

    def _returned(self, message: Message | list[Message], lease: Lease) -> None:
        """A handler has returned; most have settled their message."""
        if not self._attachment.holds(lease):
            return
        if self._acks_on_return:
            self.ack(lease)
        else:
            self._report_unsettled(message)

    def _store_failed(self, error: BaseException) -> None:
        self._report(error, None)
        if is_final(error) and not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # it is reported, whether ``run`` waits for it or not

    def _failed(self, message: Message | list[Message], lease: Lease, error: BaseException) -> None:
        try:
            self.nack(lease, None, error)
        except StaleLease:
            pass  # the handler said ack or nack before it raised, or its lease is lost
        except SeriatimError as failure:  # the store is gone, for example: the message comes again all the same
            self._report(failure, message)
        self._report(error, message)


class BatchRunner(HandlerRunner):
    """Calls a handler with batches of one key, many concurrently."""

    def _deliver(self, delivered: Sequence[Delivered]) -> None:
        messages: dict[int, list[Message]] = {}
        for one in delivered:
            messages.setdefault(one.lease.token, []).append(Message(one, self))
        for lease in whole_leases(delivered):
            self._take(messages[lease.token], lease)


class BulkRunner(HandlerRunner):
    """Calls a handler with batches of any keys, one after the other: messages that arrive in the meantime are the next one."""

    def __init__(self, broker: Broker, subscription: str, consuming: ConsumeOptions, *handling: Any) -> None:
        self._limit = consuming.batch or 1
        self._gathered: deque[tuple[Message, Lease]] = deque()
        self._is_working = False
        super().__init__(broker, subscription, consuming, *handling)

    def _take(self, message: Any, lease: Lease) -> None:
        self._keeper.keep(lease)
        self._gathered.append((message, lease))
        if not self._is_working:
            self._is_working = True
            self._calls.start(self._work())

    async def _work(self) -> None:
        try:
            while batch := self._next_batch():
                await self._handle(batch)
        finally:
            self._is_working = False

    def _next_batch(self) -> list[tuple[Message, Lease]]:
        batch: list[tuple[Message, Lease]] = []
        while self._gathered and len(batch) < self._limit:
            one = self._gathered.popleft()
            if self.may_start(one[1]):  # otherwise it is given back, or comes again
                batch.append(one)
        return batch

    async def _handle(self, batch: list[tuple[Message, Lease]]) -> None:
        try:
            result = self.handle([message for message, _ in batch])
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            if isinstance(error, GeneratorExit) or is_cancelled(error):
                raise
            await self._look_for_failure(batch, error)
        else:
            for message, lease in batch:
                self._returned(message, lease)
        finally:
            for _, lease in batch:
                self._keeper.drop(lease)

    async def _look_for_failure(self, batch: list[tuple[Message, Lease]], error: BaseException) -> None:
        """A batch failed: retry the rest of it one by one, unless the consumer is stopping."""
        left = [one for one in batch if self._attachment.holds(one[1])]
        if len(batch) == 1 or not left:
            self._failed(*batch[0], error)
            return
        self._report(error, None)
        for one in left:
            if self.may_start(one[1]):
                await self._handle([one])


def runner_of(consuming: ConsumeOptions) -> type[HandlerRunner]:
    if consuming.batch is None:
        return HandlerRunner
    return BulkRunner if consuming.across_keys else BatchRunner


async def _wait_for(result: Awaitable[object]) -> None:
    """Wait for an awaitable that a handler returned, such as a task that it started."""
    await result


def is_final(error: BaseException) -> bool:
    """Whether a consumer gets no more messages after this error. After a store failure it waits for the store."""
    return not isinstance(error, StoreError) or (isinstance(error, StoreLost) and not isinstance(error, StoreBroken))


def is_cancelled(error: BaseException) -> bool:
    """Whether an error means that the current task is being cancelled, rather than that its code failed."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class MessageStream(_Receiver):
    """An async iterator over messages. It ends when it is closed, and raises if the subscription can't deliver any more."""

    def __init__(self, broker: Broker, subscription: str, consuming: ConsumeOptions) -> None:
        if consuming.batch is not None:
            raise InvalidArgument("iteration yields one message at a time: use a handler for batches")
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
        """Take no more messages; those in flight are not affected."""
        self._attachment.stop()

    def end(self) -> None:
        """Deliver nothing more, so that the iteration ends. Delivered messages can still be settled."""
        if self._is_over:
            return
        self._is_over = True
        while not self._queue.empty():  # nobody has taken it: it is given back by close
            self._queue.get_nowait()
        self._queue.put_nowait(None)
        self._attachment.stop()

    def close(self) -> None:
        """Return unsettled messages to the subscription, and end the iteration."""
        if self.is_closed:
            return
        self.is_closed, self._error = True, None
        try:
            self.end()
        finally:
            self._detach()

    def _store_failed(self, error: BaseException) -> None:
        if is_final(error) and not self._is_over:
            self._is_over, self._error = True, error
            self._queue.put_nowait(None)

    def _take(self, message: Message, lease: Lease) -> None:
        if not self._is_over:
            self._keeper.keep(lease)
            self._queue.put_nowait((message, lease))


class PulledMessages(MessageStream):
    """The messages of one ``pull``. It stays attached until all of them are settled or lost, and extends no lease."""

    def __init__(self, broker: Broker, subscription: str, max_messages: int) -> None:
        self._outstanding: dict[int, Lease] = {}  # by token
        super().__init__(broker, subscription, ConsumeOptions(max_messages, max_extension=0.0))

    async def take(self, timeout: float | None) -> list[Message]:  # noqa: ASYNC109
        """The messages that are ready; waits for the first one, and is empty if none arrives in time."""
        found: list[Message] = []
        try:
            async with asyncio.timeout(None if timeout is None else max(timeout, MIN_WAIT_S)):
                found.append(await anext(self))
        except (TimeoutError, StopAsyncIteration):
            pass
        except BaseException:
            self.close()
            raise
        while not self._queue.empty() and (delivery := self._queue.get_nowait()) is not None:
            if self.may_start(delivery[1]):
                found.append(delivery[0])
        self.end()
        self._close_if_settled()
        return found

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        super().ack(lease, on_durable)
        self._settled(lease)

    def nack(self, lease: Lease, delay: float | None, error: str | BaseException | None) -> None:
        super().nack(lease, delay, error)
        self._settled(lease)

    def dead_letter(self, lease: Lease, reason: str | BaseException | None, rest: bool) -> None:
        super().dead_letter(lease, reason, rest)
        self._settled(lease)

    def _lost(self, lease: Lease) -> None:
        super()._lost(lease)
        self._settled(lease)

    def _take(self, message: Message, lease: Lease) -> None:
        if self._is_over:  # it came after ``take`` returned
            self._consumer.give_back([lease])
        else:
            self._outstanding[lease.token] = lease
            self._queue.put_nowait((message, lease))

    def _settled(self, lease: Lease) -> None:
        self._outstanding.pop(lease.token, None)
        self._close_if_settled()

    def _close_if_settled(self) -> None:
        if self._is_over and not self._outstanding:
            self.close()
