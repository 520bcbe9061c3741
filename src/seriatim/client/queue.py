"""A queue for people who want a queue, not a topic: strict order per key, blocking, in one file.

Rules
    - A queue is a topic and a subscription of the same name, in order. Nothing here decides order.
    - An item is not served while an earlier one of its key is still there: popped, committed or dead-lettered it is gone;
      rolled back, reserved or delayed it is not.
    - ``pop`` takes an item for good: it is settled before ``pop`` returns, and a crash afterwards loses it. ``reserve`` keeps
      it until ``commit``, and gives it back on ``rollback``, when its time is over, or when the program ends.
    - While an item is reserved its lease is extended, up to ``max_reservation`` seconds.
    - A push that fails fails alone: it raises, its item is not in the queue, and others of its key go on.
    - Closing ends every call that waits for an item: it raises QueueEmpty.
    - Every thread of the program may use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, TypeVar

from seriatim.client.blocking import LoopThread
from seriatim.client.consumer import Consuming, MessageStream
from seriatim.client.message import Message
from seriatim.client.publisher import outgoing
from seriatim.client.pubsub import PubSub
from seriatim.client.subscription import Subscription
from seriatim.client.views import DeadLetter
from seriatim.core.delivery import RetryPolicy
from seriatim.core.options import LONGEST_DURATION_S, is_number, require_duration, shown
from seriatim.engine.metrics import SubscriptionStats
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, QueueEmpty

SHORTEST_WAIT = 0.1
"""So many seconds a question may take at least: with a timeout of 0 whatever is there is still found."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueSize:
    """How many items there are: free to take, behind another item of their key, delayed, and reserved."""

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
        """Open the queue ``name`` in the store at ``url``; it is created when it is not there.

        The options are those of a new queue; one that exists keeps its own.
        """
        self.name = name
        if max_reservation != inf:
            require_duration("max_reservation", max_reservation)
        self._one = Consuming(max_messages=1, max_extension=max_reservation)
        self._thread = LoopThread()
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
        """Give back what is reserved, and close the store. Closing again does no harm."""
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
        """Add an item behind the others of its key, and return its id when it is durable."""

        async def publish() -> str:
            # Not through the topic's publisher, which holds back a whole key when one message fails: here whoever pushes waits
            # for each item, and knows.
            (offset,) = await self._pubsub.broker.publish(self.name, [outgoing(data, key, attributes, delay)])
            return str(offset)

        return self._run(publish())

    def pop(self, timeout: float | None = None) -> Message:
        """Take the next item for good. Raises QueueEmpty when there is none within ``timeout`` seconds (None: wait)."""
        item = self.reserve(timeout)
        item.commit()
        return item.message

    def reserve(self, timeout: float | None = None) -> Reservation:
        """Take the next item and keep it from others until it is committed or rolled back.

        As a context manager it commits at the end of the block, and rolls back when the block raises.
        """
        _check_timeout(timeout)
        message, stream = self._run(self._take(timeout))
        return Reservation(self, message, stream)

    def commit(self, item: Reservation) -> None:
        """An item is done; returns when that is durable. Raises StaleLease when the reservation was lost."""
        self._run(self._end(item, item.message.ack_durable))

    def rollback(self, item: Reservation, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """Put an item back at its place, after ``delay`` seconds or as the retry policy says. Its key waits for it."""

        async def give_back() -> None:
            item.message.nack(delay, error)

        self._run(self._end(item, give_back))

    # -- looking, and an operator's hand --------------------------------------------------------------------------------

    def size(self) -> QueueSize:
        found = self.stats()
        return QueueSize(found.ready, found.blocked, found.delayed, found.leased, found.total)

    def stats(self) -> SubscriptionStats:
        return self._run(self._subscription.stats())

    def pause(self) -> None:
        """Serve nothing more, also after a restart, until ``resume``."""
        self._run(self._subscription.pause())

    def resume(self) -> None:
        self._run(self._subscription.resume())

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every item is gone. Raises TimeoutError after ``timeout`` seconds."""
        _check_timeout(timeout)

        async def wait() -> None:
            async with asyncio.timeout(timeout):
                await self._subscription.wait_until_empty()

        self._run(wait())

    def remove(self, item_id: str) -> None:
        """Take an item out, wherever it stands; one that is reserved can't be removed."""
        self._run(self._subscription.remove(item_id))

    def dead_letters(self) -> list[DeadLetter]:
        return self._run(self._subscription.dead_letters())

    def redrive(self, item_id: str, *, append: bool = False) -> str:
        """Put a dead letter back at its place, or at the end; returns its id then."""
        return self._run(self._subscription.redrive(item_id, append=append))

    # -- how ------------------------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    async def _take(self, patience: float | None) -> tuple[Message, MessageStream]:
        """One message, and the stream that holds its lease."""
        stream = self._subscription.messages(self._one)
        try:
            async with asyncio.timeout(None if patience is None else max(patience, SHORTEST_WAIT)):
                message = await anext(stream)
        except TimeoutError:
            stream.close()
            raise QueueEmpty(f"queue {self.name!r} had nothing to give within {patience} seconds") from None
        except StopAsyncIteration:
            raise QueueEmpty(f"queue {self.name!r} was closed before it had anything to give") from None
        except BaseException:
            stream.close()
            raise
        stream.stop()
        return message, stream

    async def _end(self, item: Reservation, say: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Say what became of an item, and let its stream go."""
        try:
            await say()
        finally:
            if not item.is_over:
                item.is_over = True
                item.stream.close()


def _check_timeout(timeout: object) -> None:
    """Seconds that are left to wait: None and infinity are for ever, and a time that is over already means not at all."""
    if timeout is None or timeout == inf:
        return
    if not is_number(timeout) or not timeout <= LONGEST_DURATION_S:
        raise InvalidArgument(f"timeout must be a number of seconds up to 100 years, or None, not {shown(timeout)}")


class Reservation:
    """An item that is kept from others. Commit it, or roll it back."""

    def __init__(self, queue: Queue, message: Message, stream: MessageStream) -> None:
        self._queue = queue
        self.message = message
        self.stream = stream
        self.is_over = False

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def data(self) -> bytes:
        return self.message.data

    @property
    def key(self) -> str | None:
        return self.message.ordering_key

    def commit(self) -> None:
        self._queue.commit(self)

    def rollback(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
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


async def _open(url: str, name: str, options: dict[str, Any]) -> tuple[PubSub, Subscription]:
    pubsub = await PubSub(url).__aenter__()
    try:
        topic = pubsub.topic(name)
        subscription = topic.subscription(name)
        with suppress(AlreadyExists):
            await topic.create()
        with suppress(AlreadyExists):
            await subscription.create(enable_message_ordering=True, **options)
    except BaseException:
        await pubsub.close()
        raise
    return pubsub, subscription
