"""The producer: messages and state records to Kafka, in order.

Rules
    - The producer is idempotent and waits for all replicas: an acknowledged record is stored once, in the order of
      writes. A future resolves when Kafka has acknowledged the message.
    - A batch is not atomic here: when some of its messages fail, others may be stored.
    - The next batch of a key is given to the producer when the one before was acknowledged. So no message overtakes a
      failed one of its key; the publisher then pauses the key.

    Theory of operation
        One thread polls the producer, which calls back for every record in that thread. The results are passed to the
        event loop together, once per turn of the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from seriatim.engine.broker import Outgoing
from seriatim.errors import InvalidArgument, OutcomeUnknown, PublishingPaused
from seriatim.kafka.address import Address, error_of
from seriatim.kafka.records import Headers, headers_of, key_bytes, message_id
from seriatim.log import logger

if TYPE_CHECKING:
    from confluent_kafka import Message

POLL_S = 0.1
FLUSH_TIMEOUT_S = 30.0
CONFIGURATION = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "message.timeout.ms": 60_000,
    "message.max.bytes": 12 * 1024 * 1024,
    "linger.ms": 0,
    "allow.auto.create.topics": False,  # do not recreate a deleted topic
}

_TELLING = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE}  # noqa: SLF001 - their names in the library
"""Errors that say more than that no broker answers."""

_Result = tuple[asyncio.Future[tuple[int, int]], "KafkaError | None", int, int]


class KafkaProducer:
    """Writes records; created and used in an event loop."""

    def __init__(self, address: Address) -> None:
        self.trouble: KafkaError | None = None
        """Why no broker answers, until one does."""
        self._producer = Producer(address.config(**CONFIGURATION, log_level=2, error_cb=self._on_error))
        self._loop = asyncio.get_running_loop()
        self._heard: deque[_Result] = deque()
        self._overflow: deque[tuple[Callable[[], None], str, asyncio.Future[tuple[int, int]]]] = deque()
        self._is_retrying = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._poll, name="seriatim-kafka-producer", daemon=True)
        self._thread.start()

    def _on_error(self, error: KafkaError) -> None:
        """A connection error, reported in the thread. The library repeats it on every retry."""
        known, code = self.trouble, error.code()
        if known is None or code in _TELLING:
            self.trouble = error
        if known is None or (code in _TELLING and known.code() != code):
            logger.error("Kafka: %s", error.str())

    def write(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> asyncio.Future[tuple[int, int]]:
        """Give one record to the producer. The future resolves to its partition and offset."""
        done: asyncio.Future[tuple[int, int]] = self._loop.create_future()

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._heard.append((done, error, message.partition() or 0, message.offset() or 0))

        more: dict[str, Any] = {"headers": headers} if headers else {}
        if partition >= 0:
            more["partition"] = partition
        produce = partial(self._producer.produce, topic, value, key, on_delivery=on_delivery, **more)
        self._overflow.append((produce, topic, done))
        self._give_out()
        return done

    async def look_up(self, topic: str) -> None:
        """Refresh the partitions of a topic, which are otherwise cached for minutes."""
        with suppress(KafkaException):
            await asyncio.to_thread(self._producer.list_topics, topic, timeout=FLUSH_TIMEOUT_S)

    def _give_out(self) -> None:
        """Give records to the producer, in order, while its queue has room; the thread empties it."""
        while self._overflow:
            produce, topic, done = self._overflow[0]
            try:
                produce()
            except BufferError:
                if not self._is_retrying:
                    self._is_retrying = True
                    self._loop.call_later(POLL_S, self._try_again)
                return
            except Exception as failure:  # noqa: BLE001 - it must not hold up what is behind it
                what = f"a message for topic {topic!r} was refused"
                if not done.done():  # the caller may have been cancelled
                    done.set_exception(
                        error_of(failure, what)
                        if isinstance(failure, KafkaException)
                        else InvalidArgument(f"{what}: {failure}")
                    )
            self._overflow.popleft()

    def _try_again(self) -> None:
        self._is_retrying = False
        self._give_out()

    async def close(self) -> None:
        """Wait for pending records, and end the thread."""
        while self._overflow:  # noqa: ASYNC110 - the producer tells nobody that it has room
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self._producer.flush, FLUSH_TIMEOUT_S)
        self._is_closing = True
        await asyncio.to_thread(self._thread.join)
        self._tell()
        del self._producer  # now, not at garbage collection

    def _poll(self) -> None:
        while not self._is_closing:
            self._producer.poll(POLL_S)
            if self._heard:
                with suppress(RuntimeError):  # the event loop is closed, and nobody closed this
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        while self._heard:
            done, error, partition, offset = self._heard.popleft()
            if done.done():
                continue
            if error is None:
                self.trouble = None
                done.set_result((partition, offset))
            else:
                # Unless it was refused: a broker received it, and the answer may be lost.
                done.set_exception(error_of(error, "a message could not be written", otherwise=OutcomeUnknown))


class KafkaPublisher:
    """Publishes batches, those of one key one at a time."""

    def __init__(
        self, producer: KafkaProducer, check_topic: Callable[[str], Awaitable[None]], now: Callable[[], float]
    ) -> None:
        self._producer = producer
        self._check_topic = check_topic
        self._now = now
        self._last: dict[tuple[str, str], asyncio.Task[Sequence[str]]] = {}  # by topic and key

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        keys = {(topic, message.key) for message in messages if message.key is not None}
        before = [task for name in keys if (task := self._last.get(name)) is not None]
        task = asyncio.create_task(self._publish(topic, messages, before))
        self._last |= dict.fromkeys(keys, task)

        def forget(_: object) -> None:
            for name in keys:
                if self._last.get(name) is task:
                    del self._last[name]

        task.add_done_callback(forget)
        return task

    async def _publish(
        self, topic: str, messages: Sequence[Outgoing], before: Sequence[asyncio.Task[Sequence[str]]]
    ) -> Sequence[str]:
        await self._check_topic(topic)
        if before:
            await asyncio.wait(before)
        for task in before:
            if task.cancelled() or task.exception() is not None:
                raise PublishingPaused("an earlier message of the key was not published")
        now, written = self._now(), list[asyncio.Future[tuple[int, int]]]()
        for message in messages:
            headers = headers_of(message.attributes, now + message.delay if message.delay else 0.0)
            written.append(self._producer.write(topic, message.data, key_bytes(message.key), headers))
            if written[-1].done() and written[-1].exception():  # it failed: nothing may overtake it
                break
        await asyncio.gather(*written, return_exceptions=True)
        if failed := [error for done in written if (error := done.exception()) is not None]:
            raise failed[0]
        return [message_id(*done.result()) for done in written]
