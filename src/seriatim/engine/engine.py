"""The engine: topics, subscriptions and one store, in one event loop.

Rules
    - Whoever opens an engine owns its store until it is closed.
    - What a method has returned, or its future has been resolved with, is durable.
    - Offsets are given in the order in which messages are published; those of a publish that failed are not used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from seriatim.engine.attachment import LocalAttachment
from seriatim.engine.broker import Attachment, Outgoing, SubscriptionInfo, TopicInfo
from seriatim.engine.commit import Commit, Committer
from seriatim.engine.metrics import Metrics
from seriatim.engine.operations import Operations
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.engine.services import Wakeful
from seriatim.engine.subscription import Consumer, SubscriptionState
from seriatim.engine.topic import TopicState
from seriatim.errors import AlreadyExists, InvalidArgument, NotFound, OutcomeUnknown, SeriatimError, StoreLost
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


class Engine(Operations):
    """Everything that one store holds, at work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._wall = time.time() - self._loop.time()
        self._awake: list[Wakeful] = []
        self._committer = Committer(store, self._pump, self.failed)
        self._readers = ThreadPoolExecutor(1, "seriatim-reader")
        self._topics: dict[str, TopicState] = {}
        self._subscriptions: dict[str, SubscriptionState] = {}
        self._being_created: set[str] = set()
        self._upkeep = asyncio.create_task(self._keep_up(), name="seriatim-upkeep")
        self._changed = asyncio.Event()

    # -- life -----------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, url: str) -> Self:
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
        for subscription in self._subscriptions.values():
            subscription.give_up(StoreLost("the engine was closed before this could be written"))
        self._readers.shutdown()
        await self._loop.run_in_executor(None, self._store.close)

    # -- topics and subscriptions ---------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo:
        values = (options or TopicOptions()).to_json()
        row = await self.change(lambda work: work.create_topic(name, values))
        self._topics[name] = TopicState(row)
        return TopicInfo(name, self._topics[name].options, 0, 0)

    async def update_topic(self, name: str, options: TopicOptions) -> None:
        topic, values = self.get_topic(name), options.to_json()
        await self.change(lambda work: work.update_topic(topic.id, values))
        topic.options = options

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo:
        """A subscription to what is published from now on. Its name is its own, whatever topic it belongs to."""
        log, options = self.get_topic(topic), options or SubscriptionOptions()
        self._check_dead_letter_topic(log, options)
        subscription = await self._create_subscription(log, name, options)
        return subscription.info()

    async def _create_subscription(
        self, topic: TopicState, name: str, options: SubscriptionOptions
    ) -> SubscriptionState:
        values = options.to_json()
        if name in self._subscriptions or name in self._being_created:
            raise AlreadyExists(f"subscription {name!r} exists already: choose another name")
        start, meanwhile = Cursor(topic.next_offset), _Meanwhile()
        topic.followers.append(meanwhile)
        self._being_created.add(name)
        try:
            row = await self.change(lambda work: work.create_subscription(topic.id, name, values, start))
        finally:
            self._being_created.remove(name)
            topic.followers.remove(meanwhile)
        subscription = self._add_subscription(row, topic)
        subscription.push([record for record in meanwhile.records if record.offset >= start.floor])
        return subscription

    async def update_subscription(self, name: str, options: SubscriptionOptions) -> None:
        """Change the options of a subscription. Leases that are out finish first."""
        subscription = self.get_subscription(name)
        self._check_dead_letter_topic(subscription.topic, options)
        await subscription.reconfigure(options, self._store)

    async def delete_subscription(self, name: str) -> None:
        subscription = self.get_subscription(name)
        await self.change(lambda work: work.delete_subscription(subscription.id))
        self._forget(subscription)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, with its messages and its subscriptions."""
        topic = self.get_topic(name)
        await self.change(lambda work: work.delete_topic(topic.id))
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

    def require_topic(self, name: str) -> None:
        self.get_topic(name)

    async def list_topics(self) -> list[TopicInfo]:
        topics = list(self._topics.values())
        earliest = await self.read(lambda: [self._store.earliest(topic.id) for topic in topics])
        return [
            TopicInfo(topic.name, topic.options, first, topic.next_offset)
            for topic, first in zip(topics, earliest, strict=True)
        ]

    async def list_subscriptions(self) -> list[SubscriptionInfo]:
        return [subscription.info() for subscription in self._subscriptions.values()]

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        return self.get_subscription(name).info()

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """Give a consumer messages from now on."""
        return LocalAttachment(self.get_subscription(subscription), consumer)

    def _check_dead_letter_topic(self, topic: TopicState, options: SubscriptionOptions) -> None:
        """It must exist when it is named. When it is deleted later, dead letters stay where they are."""
        if options.dead_letter_topic is None:
            return
        if self.get_topic(options.dead_letter_topic) is topic:
            raise InvalidArgument(
                f"topic {topic.name!r} can't be the dead-letter topic of its own subscription: "
                "what fails would come again for ever"
            )

    def _add_subscription(self, row: SubscriptionRow, topic: TopicState) -> SubscriptionState:
        subscription = SubscriptionState(row, topic, self, first_token=(self._store.epoch << EPOCH_BITS) + 1)
        self._subscriptions[row.name] = subscription
        topic.followers.append(subscription)
        return subscription

    def _forget(self, subscription: SubscriptionState) -> None:
        subscription.close()
        subscription.give_up(NotFound(f"subscription {subscription.name!r} was deleted"))
        subscription.topic.followers.remove(subscription)
        del self._subscriptions[subscription.name]

    # -- publishing -----------------------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[range]:
        """Write messages, all or none of them. The future has their offsets when they are durable."""
        log, now = self.get_topic(topic), self.now()
        commit = self.commit()
        offsets = range(first := log.reserve(len(messages)), first + len(messages))
        records = [
            _make(Record, (offset, key, data, attributes, now, now + delay if delay else 0.0))
            for offset, (key, data, attributes, delay) in zip(offsets, messages, strict=True)
        ]
        future: asyncio.Future[range] = self._loop.create_future()
        commit.append(log, records, partial(_resolve, future, lambda: offsets))
        return future

    # -- figures --------------------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """What was counted since the engine began, and how every subscription stands."""
        stats = {name: await self.stats(name) for name in list(self._subscriptions)}
        times = self._committer.times
        return Metrics(
            time=self.now(),
            topics={topic.name: replace(topic.counts) for topic in self._topics.values()},
            subscriptions={known.name: replace(known.counts) for known in self._subscriptions.values()},
            commits=replace(times, buckets=list(times.buckets)),
            stats=stats,
        )

    # -- services for the parts -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """Wall-clock time that does not jump while the engine runs."""
        return self._loop.time() + self._wall

    def commit(self) -> Commit:
        self._changed.set()
        return self._committer.next()

    def wake(self, sleeper: Wakeful) -> None:
        """Let somebody pump, at the end of this turn of the loop or as soon as a commit is done."""
        if not self._awake:
            self._loop.call_soon(self._pump)
        self._awake.append(sleeper)

    def _pump(self) -> None:
        awake, self._awake = self._awake, []
        for sleeper in awake:
            sleeper.pump()

    async def change(self, change: Callable[[Transaction], T]) -> T:
        """Let a change ride in the next commit, and wait until it is durable."""
        results: list[T] = []
        future: asyncio.Future[T] = self._loop.create_future()
        self.commit().request(lambda work: results.append(change(work)), partial(_resolve, future, results.pop))
        return await future

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> asyncio.Future[list[Record]]:
        return self._loop.run_in_executor(self._readers, self._store.fetch, topic_id, offsets)

    def read(self, question: Callable[[], T]) -> asyncio.Future[T]:
        """Ask the store something, in the thread that reads."""
        return self._loop.run_in_executor(self._readers, question)

    def topic(self, name: str) -> TopicState | None:
        return self._topics.get(name)

    def topic_name(self, topic_id: int | None) -> str | None:
        return next((topic.name for topic in self._topics.values() if topic.id == topic_id), None)

    def failed(self, error: BaseException) -> None:
        """Something went wrong that no caller waits for: log it, and let every consumer know."""
        logger.error("the store failed: %s", error)
        for subscription in self._subscriptions.values():
            subscription.failed(error)
            if isinstance(error, OutcomeUnknown | StoreLost):
                subscription.give_up(error)

    # -- clean-up -------------------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Let the store clean up a while after something changed, in small pieces between which others may write."""
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event, and close would hang.
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

    async def backup(self, path: str) -> None:
        """A consistent copy of the store, while it is in use."""
        await self.read(lambda: self._store.backup(path))


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
