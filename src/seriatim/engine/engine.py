"""The engine: topics, subscriptions and one store, in one event loop.

Rules
    - Whoever opens an engine owns its store until it is closed.
    - What a method has returned, or its future has been resolved with, is durable.
    - Offsets are given in the order in which messages are published; those of a publish that failed are not used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from seriatim.engine.commit import Commit, Committer
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.engine.subscription import SubscriptionState
from seriatim.engine.topic import TopicState
from seriatim.errors import AlreadyExists, NotFound, SeriatimError
from seriatim.log import logger
from seriatim.store import open_store
from seriatim.store.base import Cursor, Record, Store, SubscriptionRow, Transaction

EPOCH_BITS = 40
"""A token carries the epoch of its store's owner above so many bits, so that no token is ever given twice."""

UPKEEP_PAUSE = 1.0
"""Clean-up waits so many seconds after a change, so that it has something to do and disturbs little."""

UPKEEP_REST = 1.0
"""After a piece of clean-up it rests for so many times as long as the piece took, so that commits are not kept waiting."""

IDLE_UPKEEP_PAUSE = 3600.0
"""What expires with time alone is looked for this often."""

T = TypeVar("T")

_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class Outgoing(NamedTuple):
    """A message to publish."""

    key: str | None
    data: bytes
    attributes: Mapping[str, str] | None = None
    delay: float = 0.0


class Engine:
    """Everything that one store holds, at work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._wall = time.time() - self._loop.time()
        self._awake: list[SubscriptionState] = []
        self._committer = Committer(store, self._pump, self.failed)
        self._readers = ThreadPoolExecutor(1, "seriatim-reader")
        self._topics: dict[str, TopicState] = {}
        self._subscriptions: dict[str, SubscriptionState] = {}
        self._being_created: set[str] = set()
        self._upkeep = asyncio.create_task(self._keep_up(), name="seriatim-upkeep")
        self._changed = asyncio.Event()

    # -- life -----------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, url: str) -> Engine:
        """An engine on the store at ``url``, loaded and at work."""
        store = await asyncio.get_running_loop().run_in_executor(None, open_store, url)
        engine = cls(store)
        await engine.start()
        return engine

    async def start(self) -> None:
        """Load what the store holds."""
        catalog = await self._loop.run_in_executor(self._readers, self._store.catalog)
        for row in catalog.topics:
            self._topics[row.name] = TopicState(row)
        topics = {topic.id: topic for topic in self._topics.values()}
        for subscription_row in catalog.subscriptions:
            subscription = self._add_subscription(subscription_row, topics[subscription_row.topic_id])
            await self._loop.run_in_executor(self._readers, subscription.load, self._store)

    async def close(self) -> None:
        """Write what was accepted, and give the store back. Leases that are out end with it."""
        for subscription in self._subscriptions.values():
            subscription.close()
        self._upkeep.cancel()
        await asyncio.wait([self._upkeep])
        await self._committer.close()
        self._readers.shutdown()
        await self._loop.run_in_executor(None, self._store.close)

    # -- topics and subscriptions ---------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicState:
        values = (options or TopicOptions()).to_json()
        row = await self._change(lambda work: work.create_topic(name, values))
        topic = self._topics[name] = TopicState(row)
        return topic

    async def create_subscription(
        self, topic_name: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionState:
        """A subscription to what is published from now on. Its name is its own, whatever topic it belongs to."""
        topic, values = self.get_topic(topic_name), (options or SubscriptionOptions()).to_json()
        if name in self._subscriptions or name in self._being_created:
            raise AlreadyExists(f"subscription {name!r} exists already: choose another name")
        start, meanwhile = Cursor(topic.next_offset), _Meanwhile()
        topic.followers.append(meanwhile)
        self._being_created.add(name)
        try:
            row = await self._change(lambda work: work.create_subscription(topic.id, name, values, start))
        finally:
            self._being_created.remove(name)
            topic.followers.remove(meanwhile)
        subscription = self._add_subscription(row, topic)
        subscription.push([record for record in meanwhile.records if record.offset >= start.floor])
        return subscription

    async def update_subscription(self, name: str, options: SubscriptionOptions) -> None:
        """Change the options of a subscription. Leases that are out finish first."""
        subscription, values = self.get_subscription(name), options.to_json()
        await self._change(lambda work: work.update_subscription(subscription.id, values))
        await subscription.reconfigure(options, self._store)

    async def delete_subscription(self, name: str) -> None:
        subscription = self.get_subscription(name)
        await self._change(lambda work: work.delete_subscription(subscription.id))
        self._forget(subscription)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, with its messages and its subscriptions."""
        topic = self.get_topic(name)
        await self._change(lambda work: work.delete_topic(topic.id))
        del self._topics[name]
        for subscription in [known for known in self._subscriptions.values() if known.topic is topic]:
            self._forget(subscription)

    def get_topic(self, name: str) -> TopicState:
        try:
            return self._topics[name]
        except KeyError:
            raise NotFound(f"topic {name!r} does not exist: create it first") from None

    def get_subscription(self, name: str) -> SubscriptionState:
        try:
            return self._subscriptions[name]
        except KeyError:
            raise NotFound(f"subscription {name!r} does not exist: create it first") from None

    def topics(self) -> list[TopicState]:
        return list(self._topics.values())

    def subscriptions(self) -> list[SubscriptionState]:
        return list(self._subscriptions.values())

    def _add_subscription(self, row: SubscriptionRow, topic: TopicState) -> SubscriptionState:
        subscription = SubscriptionState(row, topic, self, first_token=(self._store.epoch << EPOCH_BITS) + 1)
        self._subscriptions[row.name] = subscription
        topic.followers.append(subscription)
        return subscription

    def _forget(self, subscription: SubscriptionState) -> None:
        subscription.close()
        subscription.topic.followers.remove(subscription)
        del self._subscriptions[subscription.name]

    # -- publishing -----------------------------------------------------------------------------------------------------

    def publish(self, topic_name: str, messages: Sequence[Outgoing]) -> asyncio.Future[range]:
        """Write messages, all or none of them. The future has their offsets when they are durable."""
        topic, now = self.get_topic(topic_name), self.now()
        commit = self.commit()
        offsets = range(first := topic.reserve(len(messages)), first + len(messages))
        records = [
            _make(Record, (offset, key, data, attributes, now, now + delay if delay else 0.0))
            for offset, (key, data, attributes, delay) in zip(offsets, messages, strict=True)
        ]
        future: asyncio.Future[range] = self._loop.create_future()
        commit.append(topic, records, partial(_resolve, future, lambda: offsets))
        return future

    # -- services for the parts -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """Wall-clock time that does not jump while the engine runs."""
        return self._loop.time() + self._wall

    def commit(self) -> Commit:
        self._changed.set()
        return self._committer.next()

    def wake(self, subscription: SubscriptionState) -> None:
        """Let a subscription hand out messages, at the end of this turn of the loop or as soon as a commit is done."""
        if not self._awake:
            self._loop.call_soon(self._pump)
        self._awake.append(subscription)

    def _pump(self) -> None:
        awake, self._awake = self._awake, []
        for subscription in awake:
            subscription.pump()

    def drain(self) -> Coroutine[None, None, None]:
        """Wait until everything accepted so far is durable."""
        return self._committer.drain()

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> asyncio.Future[list[Record]]:
        return self._loop.run_in_executor(self._readers, self._store.fetch, topic_id, offsets)

    def topic(self, name: str) -> TopicState | None:
        return self._topics.get(name)

    def failed(self, error: BaseException) -> None:
        logger.error("the store failed: %s", error)

    # -- clean-up -------------------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Let the store clean up a while after something changed, in small pieces between which others may write."""
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event, and close waits for ever.
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_UPKEEP_PAUSE):
                    await self._changed.wait()
            await asyncio.sleep(UPKEEP_PAUSE)
            self._changed.clear()
            try:
                await self.clean_up()
            except SeriatimError as error:
                self.failed(error)

    async def clean_up(self) -> None:
        """Remove what nobody needs any more. This happens by itself; call it to have it done now."""
        while True:
            begin = self._loop.time()
            report = await self._loop.run_in_executor(self._readers, self._store.upkeep, self.now())
            if not report.more_to_do:
                return
            await asyncio.sleep((self._loop.time() - begin) * UPKEEP_REST)

    # -- how ------------------------------------------------------------------------------------------------------------

    async def _change(self, change: Callable[[Transaction], T]) -> T:
        """Let a change ride in the next commit, and wait until it is durable."""
        results: list[T] = []
        future: asyncio.Future[T] = self._loop.create_future()
        self.commit().request(lambda work: results.append(change(work)), partial(_resolve, future, results.pop))
        return await future


class _Meanwhile:
    """Collects what is published while a subscription is being created."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def push(self, records: Sequence[Record]) -> None:
        self.records += records


def _resolve(future: asyncio.Future[T], result: Callable[[], T], error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result())
    else:
        future.set_exception(error)
