"""A simple queue: strict order per key, blocking, in one file.

Rules
    - A queue is a topic and an ordered subscription of the same name. The engine decides the order.
    - An item is not served while an earlier one of its key is in the queue. Popped, committed and dead-lettered items have left
      it; rolled back, reserved and delayed ones have not.
    - ``pop`` settles an item before it returns, so a crash afterwards loses it. ``reserve`` keeps it until ``commit``, and
      returns it on ``rollback``, when its lease expires, or when the program ends.
    - While an item is reserved its lease is extended, up to ``max_reservation`` seconds.
    - A push that fails raises; its item is not in the queue, and others of its key are not affected.
    - Closing ends every call that waits for an item with QueueEmpty.
    - It is thread-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, TypeVar

from seriatim.client.blocking_facade import LoopThread
from seriatim.client.consumer import MIN_WAIT_S, ConsumeOptions, MessageStream, check_timeout
from seriatim.client.message import Message
from seriatim.client.publisher import outgoing
from seriatim.client.pubsub import PubSub
from seriatim.client.subscription import Subscription
from seriatim.core.lanes.types import RetryPolicy
from seriatim.core.validation import require_duration, shown
from seriatim.engine.broker import DeadLetter
from seriatim.engine.metrics import SubscriptionStats
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, QueueEmpty

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueSize:
    """The number of items: ready, blocked by an earlier item of their key, delayed, reserved, and in total."""

    ready: int
    blocked: int
    delayed: int
    reserved: int
    total: int


class Queue:
    """Items in order, per key. Use it as a context manager, or ``close`` it."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        reserve_time: float = 10.0,
        max_reservation: float = 3600.0,
        retry: RetryPolicy | None = None,
        dead_letter_topic: str | None = None,
    ) -> None:
        """Open the queue ``name`` in the store at ``url``, and create it if it does not exist.

        The options apply to a new queue; an existing one keeps its own.
        """
        self.name = name
        if max_reservation != inf:
            require_duration("max_reservation", max_reservation)
        self._one = ConsumeOptions(max_messages=1, max_extension=max_reservation)
        self._thread = LoopThread(opened_by="Queue(...) as queue")
        self._thread.start()
        options = {"ack_deadline": reserve_time, "retry": retry, "dead_letter_topic": dead_letter_topic}
        try:
            self._pubsub, self._subscription = self._run(_open(url, name, options))
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Return reserved items to the queue, and close the store. May be called more than once."""
        try:
            with suppress(FailedPrecondition):  # it is closed already
                self._run(self._pubsub.close())
        finally:
            self._thread.close()

    # -- items in, items out --------------------------------------------------------------------------------------------

    def push(
        self,
        data: bytes,
        key: str | None = None,
        *,
        delay: float = 0.0,
        attributes: Mapping[str, str] | None = None,
    ) -> str:
        """Append an item to its key, and return its id once it is durable."""

        async def publish() -> str:
            # Not through the topic's publisher, which holds back a whole key when one message fails: here whoever pushes waits
            # for each item, and knows.
            broker = self._pubsub.broker
            (message_id,) = await broker.publish(self.name, [outgoing(data, key, attributes, delay)])
            return message_id

        return self._run(publish())

    def pop(self, timeout: float | None = None) -> Message:
        """Remove and return the next item. Raises QueueEmpty if there is none within ``timeout`` seconds (None: no limit)."""
        item = self.reserve(timeout)
        item.commit()
        return item.message

    def reserve(self, timeout: float | None = None) -> Reservation:
        """Reserve the next item until it is committed or rolled back.

        As a context manager the reservation commits at the end of the block, and rolls back if the block raises.
        """
        check_timeout(timeout)
        message, stream = self._run(self._take(timeout))
        return Reservation(self, message, stream)

    def commit(self, item: Reservation) -> None:
        """Remove a reserved item, and return once that is durable. Raises StaleLease if the reservation was lost."""
        self._run(self._end(item, _reserved(item).ack_durable))

    def rollback(self, item: Reservation, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """Return a reserved item to its place, to be retried after ``delay`` seconds or as the retry policy says. Later items
        of its key wait for it.
        """

        message = _reserved(item)

        async def give_back() -> None:
            message.nack(delay, error)

        self._run(self._end(item, give_back))

    # -- looking and operating ------------------------------------------------------------------------------------------

    def size(self) -> QueueSize:
        """The number of items, by state."""
        found = self.stats()
        return QueueSize(found.ready, found.blocked, found.delayed, found.leased, found.total)

    def stats(self) -> SubscriptionStats:
        """The statistics of the queue's subscription."""
        return self._run(self._subscription.stats())

    def pause(self) -> None:
        """Hand out no items until ``resume``, also after a restart."""
        self._run(self._subscription.pause())

    def resume(self) -> None:
        """Hand out items again after ``pause``."""
        self._run(self._subscription.resume())

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every item is gone. Raises TimeoutError after ``timeout`` seconds."""
        check_timeout(timeout)

        async def wait() -> None:
            async with asyncio.timeout(timeout):
                await self._subscription.wait_until_empty()

        self._run(wait())

    def remove(self, item_id: str) -> None:
        """Drop an item, wherever it is in its key, unless it is reserved."""
        self._run(self._subscription.remove(item_id))

    def dead_letters(self) -> list[DeadLetter]:
        """Dead letters, ordered by id."""
        return self._run(self._subscription.dead_letters())

    def redrive(self, item_id: str, *, append: bool = False) -> str:
        """Return a dead letter to its original place, or with ``append`` to the end, and return its id there."""
        return self._run(self._subscription.redrive(item_id, append=append))

    # -- how ------------------------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    async def _take(self, wait_s: float | None) -> tuple[Message, MessageStream]:
        """One message, and the stream that holds its lease."""
        stream = self._subscription.messages(self._one)
        try:
            async with asyncio.timeout(None if wait_s is None else max(wait_s, MIN_WAIT_S)):
                message = await anext(stream)
        except TimeoutError:
            stream.close()
            raise QueueEmpty(f"queue {self.name!r} had no item ready within {wait_s} seconds") from None
        except StopAsyncIteration:
            raise QueueEmpty(f"queue {self.name!r} was closed before an item was ready") from None
        except BaseException:
            stream.close()
            raise
        stream.stop()
        return message, stream

    async def _end(self, item: Reservation, say: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Settle an item, and close its stream."""
        try:
            await say()
        finally:
            if not item.is_over:
                item.is_over = True
                item.stream.close()


class Reservation:
    """An item that is kept from others. Commit it, or roll it back."""

    def __init__(self, queue: Queue, message: Message, stream: MessageStream) -> None:
        self._queue = queue
        self.message = message
        self.stream = stream
        self.is_over = False

    @property
    def id(self) -> str:
        """The item's id."""
        return self.message.id

    @property
    def data(self) -> bytes:
        """What was pushed."""
        return self.message.data

    @property
    def key(self) -> str | None:
        """The item's key, or None."""
        return self.message.ordering_key

    def commit(self) -> None:
        """Remove the item, and return once that is durable."""
        self._queue.commit(self)

    def rollback(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """Return the item to its place, to be retried."""
        self._queue.rollback(self, delay, error)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_over:  # said inside the block
            return
        if error is None:
            self.commit()
        else:
            self.rollback(error=error)


def _reserved(item: object) -> Message:
    if not isinstance(item, Reservation):
        raise InvalidArgument(f"commit and rollback take what reserve returned, not {shown(item)}")
    return item.message


async def _open(url: str, name: str, options: dict[str, Any]) -> tuple[PubSub, Subscription]:
    pubsub = await PubSub(url).__aenter__()
    try:
        topic = pubsub.topic(name)
        subscription = topic.subscription(name)
        await topic.ensure()
        with suppress(AlreadyExists):
            await subscription.create(**options)
    except BaseException:
        await pubsub.close()
        raise
    return pubsub, subscription
