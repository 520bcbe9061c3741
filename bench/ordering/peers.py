"""Everybody's client: publish all messages, then work them off. Each keeps order per key as well as its server allows.

A function takes the address of a server, the work and its journal, and returns the seconds of publishing, until everything is
acknowledged, and of the rest, until the last ack was sent or, where servers confirm acks, is confirmed.
Libraries are imported when they are used.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.ordered_drain.postgres_lanes import PGMQ, PUBLISH, SKIP_LOCKED, Recipe, prepare
from bench.ordering.work import Journal, Work

Times = tuple[float, float]
BATCH = 100
AHEAD = 5_000
"""How many messages a client of ours holds at most, so that a hot key does not hide the others."""


class Dispatcher:
    """Order per key in the client, for servers that don't know keys.

    One message of a key is handled at a time, the next one goes when the ack of the one before was taken, and a message that
    fails is tried again at once.
    """

    def __init__(self, journal: Journal, ack: Callable[[Any], Awaitable[object]]) -> None:
        self._journal = journal
        self._ack = ack
        self._queues: dict[str, deque[tuple[int, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.held = 0
        self.acked = 0
        self.changed = asyncio.Event()

    def add(self, number: int, message: Any) -> None:
        key = self._journal.work.keys[number]
        self.held += 1
        if (queue := self._queues.get(key)) is not None:
            queue.append((number, message))
            return
        self._queues[key] = deque([(number, message)])
        task = asyncio.create_task(self._work(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, key: str) -> None:
        queue = self._queues[key]
        while queue:
            number, message = queue[0]
            while not await self._journal.handle(number):
                pass
            await self._ack(message)
            queue.popleft()
            self.held -= 1
            self.acked += 1
            self.changed.set()
        del self._queues[key]

    async def room(self) -> None:
        while self.held >= AHEAD:
            self.changed.clear()
            await self.changed.wait()

    async def finish(self) -> None:
        while self.acked < self._journal.work.messages:
            self.changed.clear()
            await self.changed.wait()


def _number(data: bytes) -> int:
    return int(data[:10])


# -- ours ---------------------------------------------------------------------------------------------------------------


async def embedded(address: str, work: Work, journal: Journal) -> Times:
    """The public API, on a new SQLite file, or on PostgreSQL in a schema of its own: a topic, a subscription with the default
    options, an async handler."""
    from seriatim import Batching, Message, PublishOptions, PubSub, RetryPolicy

    async def handle(message: Message) -> None:
        if await journal.handle(_number(message.data)):
            message.ack()
        else:
            message.nack()

    with TemporaryDirectory(prefix="bench-ordering-") as folder:
        url = f"{address}&schema={work.run.replace('-', '_')}" if address else f"sqlite:///{Path(folder) / 'store.db'}"
        async with PubSub(url) as pubsub:
            topic = await pubsub.topic("events").create()
            topic.set_publish_options(PublishOptions(Batching(max_messages=BATCH, max_milliseconds=10)))
            # An immediate retry, as everybody else has it.
            subscription = await topic.subscription("worker").create(
                enable_message_ordering=True, retry=RetryPolicy(min_backoff=0, max_backoff=0)
            )
            begun = perf_counter()
            published = [topic.publish(work.payload(number), ordering_key=key) for number, key in enumerate(work.keys)]
            await topic.flush()
            await asyncio.gather(*published)
            middle = perf_counter()
            subscription.on("message", handle)
            subscription.open()
            await journal.all_done.wait()
            await subscription.wait_until_empty()
            return middle - begun, perf_counter() - middle


async def pubsub(address: str, work: Work, journal: Journal) -> Times:
    """Google's own Python client with ordering keys, on our server and on the emulator."""
    import os

    os.environ["PUBSUB_EMULATOR_HOST"] = address
    from google.cloud import pubsub_v1

    publisher = pubsub_v1.PublisherClient(
        batch_settings=pubsub_v1.types.BatchSettings(max_messages=BATCH, max_latency=0.01),
        publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True),
    )
    subscriber = pubsub_v1.SubscriberClient()
    topic, name = f"projects/bench/topics/{work.run}", f"projects/bench/subscriptions/{work.run}"
    publisher.create_topic(name=topic)
    subscriber.create_subscription(
        request={"name": name, "topic": topic, "enable_message_ordering": True, "ack_deadline_seconds": 60}
    )
    begun = perf_counter()
    sent = [publisher.publish(topic, work.payload(n), ordering_key=key) for n, key in enumerate(work.keys)]
    for future in sent:
        future.result(60)
    middle, over = perf_counter(), threading.Event()

    def handle(message: Any) -> None:
        if journal.handle_blocking(_number(message.data)):
            message.ack()
        else:
            message.nack()
        if journal.done >= work.messages:
            over.set()

    flow = pubsub_v1.types.FlowControl(max_messages=AHEAD)
    streaming = subscriber.subscribe(name, handle, flow_control=flow, await_callbacks_on_shutdown=True)
    try:
        await asyncio.to_thread(over.wait)
    finally:
        streaming.cancel()
        with suppress(Exception):  # how it ended is no matter: the journal is judged
            await asyncio.to_thread(streaming.result, 30)
    seconds = perf_counter() - middle
    subscriber.close()
    publisher.stop()
    return middle - begun, seconds


# -- servers that don't know keys, with a dispatcher in the client ------------------------------------------------------


async def redis(address: str, work: Work, journal: Journal) -> Times:
    """One stream, one consumer group; acks of a round are one command, and the next message of a key waits for its reply."""
    Redis: Any = import_module("redis.asyncio").Redis  # noqa: N806

    host, port = address.split(":")
    async with (
        Redis(host=host, port=int(port), protocol=2) as client,
        Redis(host=host, port=int(port), protocol=2) as reader,
    ):
        await client.xgroup_create(work.run, "worker", "0", mkstream=True)
        begun = perf_counter()
        for batch in _batches(work):
            async with client.pipeline(transaction=False) as pipe:
                for number in batch:
                    pipe.xadd(work.run, {"d": work.payload(number)})
                await pipe.execute()
        middle = perf_counter()
        acks: list[tuple[bytes, asyncio.Future[None]]] = []
        wanted = asyncio.Event()

        async def acknowledge() -> None:
            while True:
                await wanted.wait()
                wanted.clear()
                some, acks[:] = acks[:], []
                await client.xack(work.run, "worker", *(identity for identity, _ in some))
                for _, done in some:
                    done.set_result(None)

        def ack(identity: bytes) -> asyncio.Future[None]:
            done = asyncio.get_running_loop().create_future()
            acks.append((identity, done))
            wanted.set()
            return done

        dispatcher, acknowledging = Dispatcher(journal, ack), asyncio.create_task(acknowledge())
        read = 0
        while read < work.messages:
            await dispatcher.room()
            for _, messages in await reader.xreadgroup("worker", "c", {work.run: ">"}, count=1000, block=1000) or ():
                read += len(messages)
                for identity, fields in messages:
                    dispatcher.add(_number(fields[b"d"]), identity)
        await dispatcher.finish()
        seconds = perf_counter() - middle
        acknowledging.cancel()
        return middle - begun, seconds


QUEUES = 8


async def rabbitmq(address: str, work: Work, journal: Journal) -> Times:
    """Durable queues by the hash of the key, each with a single active consumer; persistent messages, publisher confirms."""
    aio_pika: Any = import_module("aio_pika")

    async with await aio_pika.connect(f"amqp://guest:guest@{address}/") as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=AHEAD // QUEUES)
        names = [f"{work.run}-{number}" for number in range(QUEUES)]
        queues = [
            await channel.declare_queue(name, durable=True, arguments={"x-single-active-consumer": True})
            for name in names
        ]
        begun = perf_counter()
        for batch in _batches(work):
            sent = []
            for number in batch:
                message = aio_pika.Message(work.payload(number), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                name = names[zlib.crc32(work.keys[number].encode()) % QUEUES]
                sent.append(channel.default_exchange.publish(message, name))
            await asyncio.gather(*sent)
        middle = perf_counter()
        dispatcher = Dispatcher(journal, lambda message: message.ack())

        async def take(message: Any) -> None:
            dispatcher.add(_number(message.body), message)

        for queue in queues:
            await queue.consume(take)
        await dispatcher.finish()
        return middle - begun, perf_counter() - middle


async def nats(address: str, work: Work, journal: Journal) -> Times:
    """One stream on disk, a subject for each key, one durable pull consumer."""
    library: Any = import_module("nats")

    client = await library.connect(f"nats://{address}")
    stream = client.jetstream(timeout=30, publish_async_max_pending=10_000)
    await stream.add_stream(name=work.run, subjects=[f"{work.run}.*"])
    begun = perf_counter()
    for batch in _batches(work):
        await asyncio.gather(*(stream.publish(f"{work.run}.{work.keys[n]}", work.payload(n)) for n in batch))
    middle = perf_counter()
    config = library.js.api.ConsumerConfig(max_ack_pending=2 * AHEAD, ack_wait=60)
    subscription = await stream.pull_subscribe(f"{work.run}.*", durable="worker", config=config)
    dispatcher, read = Dispatcher(journal, lambda message: message.ack()), 0
    while read < work.messages:
        await dispatcher.room()
        messages = await subscription.fetch(min(500, work.messages - read), timeout=30)
        read += len(messages)
        for message in messages:
            dispatcher.add(_number(message.data), message)
    await dispatcher.finish()
    await client.flush()
    seconds = perf_counter() - middle
    await client.close()
    return middle - begun, seconds


def _batches(work: Work) -> Iterator[range]:
    for start in range(0, work.messages, BATCH):
        yield range(start, min(start + BATCH, work.messages))


# -- PostgreSQL ---------------------------------------------------------------------------------------------------------

_TAKEN = 200


def _filled(address: str, work: Work, recipe: Recipe) -> float:
    """A table with all messages; returns how long publishing took."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        prepare(connection, recipe, work.keys)
        begun = perf_counter()
        for batch in _batches(work):
            payloads = [work.payload(number) for number in batch]
            connection.execute(PUBLISH, (list(batch), [work.keys[number] for number in batch], payloads))
        seconds = perf_counter() - begun
        connection.execute("VACUUM ANALYZE messages")
    return seconds


async def _until_done(journal: Journal, number: int) -> int:
    while not await journal.handle(number):
        pass
    return number


async def skip_locked(address: str, work: Work, journal: Journal) -> Times:
    """Two workers lock free lanes, delete the first message of each, work them off, and commit, which is the ack."""
    return await _work_off(address, work, journal, SKIP_LOCKED)


async def pgmq(address: str, work: Work, journal: Journal) -> Times:
    """As pgmq reads grouped messages: the head of each key becomes invisible for a while, and is deleted when it is done."""
    return await _work_off(address, work, journal, PGMQ)


async def _work_off(address: str, work: Work, journal: Journal, recipe: Recipe) -> Times:
    import psycopg

    async def worker() -> None:
        alone = recipe.done is not None  # a statement is a transaction
        async with await psycopg.AsyncConnection.connect(address, autocommit=alone) as connection:
            while journal.done < work.messages:
                taken = await (await connection.execute(recipe.take, (_TAKEN,), prepare=True)).fetchall()
                done: Sequence[int] = await asyncio.gather(
                    *(_until_done(journal, number) for number, *_ in sorted(taken))
                )
                if recipe.done is not None and done:
                    await connection.execute(recipe.done, (list(done),), prepare=True)
                await connection.commit()
                if not taken:
                    await asyncio.sleep(0.001)

    publishing = _filled(address, work, recipe)
    begun = perf_counter()
    await asyncio.gather(worker(), worker())
    return publishing, perf_counter() - begun


async def procrastinate(address: str, work: Work, journal: Journal) -> Times:
    """The library itself: one job for each message, with the key as its lock; ten jobs at a time."""
    library: Any = import_module("procrastinate")

    app = library.App(connector=library.PsycopgConnector(conninfo=address, max_size=12))

    async def work_off(number: int) -> None:
        if not await journal.handle(number):
            raise RuntimeError("by order")

    handle = app.task(name="handle", retry=library.RetryStrategy(max_attempts=5, wait=0))(work_off)

    async with app.open_async():
        await app.connector.execute_query_async("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await app.schema_manager.apply_schema_async()
        begun = perf_counter()
        for batch in _batches(work):
            for number in batch:
                await handle.configure(lock=work.keys[number]).defer_async(number=number)
        middle = perf_counter()
        while not journal.all_done.is_set():  # a worker ends when all jobs that are left wait for another of their lock
            await app.run_worker_async(concurrency=10, install_signal_handlers=False, wait=False)
        return middle - begun, perf_counter() - middle
