"""``PubSub``: where the async API begins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from seriatim.client.running import inside_handler, leave_handler
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.core.limits import check_address
from seriatim.engine.broker import Broker, SnapshotInfo, SubscriptionInfo, TopicInfo
from seriatim.engine.metrics import Metrics
from seriatim.engine.opening import open_broker
from seriatim.errors import FailedPrecondition, StoreLost
from seriatim.extras import require_extra

if TYPE_CHECKING:
    from seriatim.client.blocking import Blocking


SERVED = "pubsub://"


class PubSub:
    """Topics and subscriptions of one store, or of a Pub/Sub server. Use it as an async context manager."""

    def __init__(self, url: str = "memory://", *, standby: bool = False) -> None:
        """Nothing is opened yet. With ``standby``, entering waits until nobody else owns a store in PostgreSQL."""
        check_address("The address of a store", url)
        self._url = url
        self._standby = standby
        self._broker: Broker | None = None
        self._is_opening = False
        self._pid = os.getpid()
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[str, dict[str | None, Subscription]] = {}  # by name, and by topic if that is known
        self._closing: asyncio.Task[None] | None = None

    @staticmethod
    def blocking(url: str = "memory://", *, standby: bool = False, workers: int | None = None) -> Blocking:
        """The same names for programs without an event loop: ``with PubSub.blocking(url) as pubsub``.

        Handlers are plain functions that may block; at most ``workers`` of them run at once.
        """
        from seriatim.client.blocking import WORKERS, Blocking, LoopThread

        return Blocking(PubSub(url, standby=standby), LoopThread(workers or WORKERS))

    async def __aenter__(self) -> PubSub:
        if self._pid == os.getpid() and (self._broker is not None or self._is_opening):
            raise FailedPrecondition("this PubSub is open already: use another one, or close this one first")
        self._is_opening = True
        try:
            self._broker, self._pid, self._closing = await self._open(), os.getpid(), None
        finally:
            self._is_opening = False
        return self

    async def _open(self) -> Broker:
        if not self._url.startswith(SERVED):
            return await open_broker(self._url, standby=self._standby)
        require_extra("server", "grpc", "google.cloud.pubsub", what=f"an address that begins with {SERVED}")
        from seriatim.client.served import open_served

        return open_served(self._url)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Start no more handlers, wait for those that run and for what was published, and give the store back.

        Everything is closed and the store is given back whatever fails on the way; the first failure is raised afterwards. When
        the wait is cancelled closing goes on. Closing again does no harm; what was closed can be opened again. When a handler
        calls this, it waits for the other handlers only, and the rest follows when it has returned. In a forked child this
        forgets the store, which is the parent's.
        """
        if self._pid != os.getpid():
            self._broker = self._closing = None
        if self._broker is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(self._broker), name="seriatim-closing")
        if inside_handler():
            for subscription in self._all_subscriptions():
                await subscription.close()
        else:
            await asyncio.shield(self._closing)

    async def _close(self, broker: Broker) -> None:
        leave_handler()
        failures: list[BaseException] = []
        for subscription in self._all_subscriptions():
            with _noting(failures):
                subscription.stop()
        for subscription in self._all_subscriptions():
            with _noting(failures):
                await subscription.close()
        for topic in list(self._topics.values()):
            with _noting(failures):
                await topic.close()
        try:
            await broker.close()
        finally:
            self._broker = None
        if failures:
            raise failures[0]

    @property
    def broker(self) -> Broker:
        """Whom everything is asked: an engine in this process, or a way to one elsewhere."""
        if self._broker is None:
            raise FailedPrecondition("this PubSub is not open: use it inside 'async with PubSub(...) as pubsub'")
        if self._pid != os.getpid():
            raise StoreLost("this PubSub was opened before a fork: open another one in this process")
        return self._broker

    @property
    def broker_for_consumers(self) -> Broker:
        """The same for whoever wants messages, which nobody gets any more while this is being closed."""
        if self._closing is not None:
            raise FailedPrecondition("this PubSub is being closed: open another one to take messages")
        return self.broker

    def topic(self, name: str) -> Topic:
        """The topic of this name, whether it exists yet or not."""
        return self._topics.setdefault(name, Topic(self, name))

    def subscription(self, name: str) -> Subscription:
        """A subscription that exists. To create one, begin with its topic: ``topic.subscription(name)``."""
        known = self._subscriptions.setdefault(name, {})
        return next(iter(known.values()), None) or known.setdefault(None, Subscription(self, name, None))

    def subscription_of(self, topic: Topic, name: str) -> Subscription:
        known = self._subscriptions.setdefault(name, {})
        if None in known:  # it was asked for without its topic before
            known[topic.name] = known.pop(None)
            known[topic.name].topic = topic
        return known.setdefault(topic.name, Subscription(self, name, topic))

    def _all_subscriptions(self) -> list[Subscription]:
        return [subscription for known in self._subscriptions.values() for subscription in known.values()]

    async def topics(self) -> list[TopicInfo]:
        """Every topic that exists."""
        return await self.broker.list_topics()

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """Every subscription that exists, with its topic and its options."""
        return await self.broker.list_subscriptions()

    async def metrics(self) -> Metrics:
        """What was counted since the store was opened, and how every subscription stands. See ``Metrics.since`` for rates."""
        return await self.broker.metrics()

    async def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that have not expired."""
        return await self.broker.list_snapshots()

    async def delete_snapshot(self, name: str) -> None:
        """Let go of a snapshot, and of the messages that only it keeps."""
        await self.broker.delete_snapshot(name)

    async def backup(self, path: str | Path) -> None:
        """A consistent copy of the store, while it is in use. A file that exists is never overwritten."""
        check_address("The path of a backup", str(path))
        await self.broker.backup(str(path))


@contextmanager
def _noting(failures: list[BaseException]) -> Iterator[None]:
    """Go on after a failure, which is raised at the end; also when somebody is tired of waiting."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - everything else has to be closed, too
        failures.append(error)
