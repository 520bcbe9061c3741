"""Seriatim itself, at two levels: the engine, with batches and a consumer, and the public API, message by message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.ordered_drain.workload import BACKLOG, BATCH, Workload, check_order
from seriatim import Batching, PublishOptions, PubSub, PubSubMessage
from seriatim.client.message import Message
from seriatim.core.lanes.types import ReleaseAfter
from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions

# A lease outlives the longest run: what a blocked key holds must stay blocked.
DURABLE = SubscriptionOptions(message_ordering=True, ack_deadline=600)
RECEIPT = SubscriptionOptions(message_ordering=True, ack_deadline=600, release=ReleaseAfter.RECEIPT)
WINDOW = SubscriptionOptions(message_ordering=True, ack_deadline=600, window=16)

MANY, CALLS = 1_000, 4
"""How many messages a call of ``publish_many`` has, and how many calls are under way."""

Level = Callable[[str, Workload, SubscriptionOptions], Awaitable[float]]


def rate(level: Level, workload: Workload, options: SubscriptionOptions, url: str | None = None) -> float:
    """Messages per second from the first publish until the last ack is durable."""
    with TemporaryDirectory(prefix="ordered-drain-") as folder:
        seconds = asyncio.run(level(url or f"sqlite:///{Path(folder) / 'store.db'}", workload, options))
    return workload.messages / seconds


@asynccontextmanager
async def opened(url: str, options: SubscriptionOptions) -> AsyncIterator[Engine]:
    """An engine with a topic and a subscription."""
    engine = await Engine.open(url)
    try:
        await engine.create_topic("events")
        await engine.create_subscription("events", "worker", options)
        yield engine
    finally:
        await engine.close()


class Progress:
    """How far delivery has come, and the bound on how far publishing may run ahead of it."""

    def __init__(self, messages: int) -> None:
        self.numbers: list[int] = []
        self._messages = messages
        self._room = asyncio.Event()
        self._done = asyncio.Event()

    def delivered(self) -> None:
        self._room.set()
        if len(self.numbers) >= self._messages:
            self._done.set()

    async def room_for(self, published: int) -> None:
        """Let what was published be sent, and wait until there is room for more."""
        await asyncio.sleep(0)
        while published - len(self.numbers) > BACKLOG - BATCH:
            self._room.clear()
            await self._room.wait()

    async def finish(self) -> None:
        await self._done.wait()


async def engine_level(url: str, workload: Workload, options: SubscriptionOptions) -> float:
    """``Engine.publish`` with batches of a hundred, and a ``Consumer`` that acks what it gets."""
    async with opened(url, options) as engine:
        seconds, numbers = await consume(engine, workload)
    check_order(workload, numbers)
    return seconds


async def consume(engine: Engine, workload: Workload) -> tuple[float, list[int]]:
    """Publish and consume at once: how long it took, and which messages came, by their numbers, in which order."""
    progress, subscription = Progress(workload.messages), engine.get_subscription("worker")

    def deliver(delivered: Sequence[Delivered]) -> None:
        progress.numbers += [int(record.data[:10]) for _, record in delivered]
        subscription.outcomes.ack_all([lease for lease, _ in delivered])
        progress.delivered()

    subscription.deliveries.attach(Consumer(deliver))
    batches, published = workload.batches(), 0
    begin = perf_counter()
    for batch in batches:
        if published % (10 * BATCH) == 0:
            await progress.room_for(published)
        engine.publish("events", outgoing(batch))
        published += len(batch)
    await progress.finish()
    await until_durable(engine)
    return perf_counter() - begin, progress.numbers


async def until_durable(engine: Engine) -> None:
    """Wait until everything accepted before is durable: commits are written one after another."""
    await engine.change(lambda _: None)


def outgoing(batch: Sequence[tuple[str, bytes]]) -> list[Outgoing]:
    return [Outgoing(key, data) for key, data in batch]


async def api_level(url: str, workload: Workload, options: SubscriptionOptions) -> float:
    """``topic.publish`` for each message, and a handler that acks each."""
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("events").create()
        topic.set_publish_options(PublishOptions(Batching(max_messages=BATCH, max_milliseconds=10)))
        subscription = await topic.subscription("worker").create(
            enable_message_ordering=options.message_ordering, window=options.window, release=options.release
        )
        progress = Progress(workload.messages)

        def handle(message: Message) -> None:
            progress.numbers.append(int(message.data[:10]))
            message.ack()
            progress.delivered()

        subscription.on("message", handle)
        subscription.open()
        batches, published = workload.batches(), 0
        begin = perf_counter()
        for batch in batches:
            await progress.room_for(published)
            for key, data in batch:
                topic.publish(data, ordering_key=key)
            published += len(batch)
        await topic.flush()
        await progress.finish()
        engine = pubsub.broker
        assert isinstance(engine, Engine)
        await until_durable(engine)
        seconds = perf_counter() - begin
    check_order(workload, progress.numbers)
    return seconds


async def batch_level(
    url: str, workload: Workload, options: SubscriptionOptions, *, across_keys: bool = False
) -> float:
    """``topic.publish_many`` with a thousand messages, four calls at a time, and a handler of batches of one key or many."""
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("events").create()
        subscription = await topic.subscription("worker").create(release=options.release)
        progress = Progress(workload.messages)

        def handle(messages: list[Message]) -> None:
            progress.numbers += [int(message.data[:10]) for message in messages]
            progress.delivered()

        subscription.on("message", handle)
        subscription.open(batch=BATCH, across_keys=across_keys, ack="on-return")
        batches, published = workload.batches(), 0
        calls: deque[asyncio.Task[list[str]]] = deque()
        begin = perf_counter()
        for start in range(0, len(batches), MANY // BATCH):
            messages = [
                PubSubMessage(data, key) for batch in batches[start : start + MANY // BATCH] for key, data in batch
            ]
            await progress.room_for(published)
            if len(calls) == CALLS:
                await calls.popleft()
            calls.append(asyncio.create_task(topic.publish_many(messages)))
            published += len(messages)
        await asyncio.gather(*calls)
        await progress.finish()
        await subscription.wait_until_empty()
        seconds = perf_counter() - begin
    check_order(workload, progress.numbers)
    return seconds
