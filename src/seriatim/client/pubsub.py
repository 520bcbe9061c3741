"""``PubSub``: where the async API begins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet

from seriatim.client.addresses import open_address
from seriatim.client.handler_calls import inside_handler, leave_handler
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.core.text_checks import check_address, check_name
from seriatim.engine.broker import Broker, SnapshotInfo, SubscriptionInfo, TopicInfo
from seriatim.engine.metrics import Metrics
from seriatim.errors import FailedPrecondition, InvalidArgument, StoreLost

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from seriatim.client.blocking import PubSub as BlockingPubSub
    from seriatim.telemetry.tracing import Tracing


class PubSub:
    """Topics and subscriptions of one store, or of a Pub/Sub server. Use it as an async context manager."""

    def __init__(
        self, url: str = "memory://", *, standby: bool = False, tracing: bool | TracerProvider = False
    ) -> None:
        """Nothing is opened until it is entered. With ``standby``, entering waits while another process owns the store, which
        must be in PostgreSQL.

        With ``tracing``, publishes and handlers become OpenTelemetry spans, of the given provider or of the global one.
        """
        check_address("The address of a store", url)
        self._tracing = _tracing(tracing)
        self._url = url
        self._standby = standby
        self._broker: Broker | None = None
        self._is_opening = False
        self._pid = os.getpid()
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[str, dict[str | None, Subscription]] = {}  # by name, and by topic if that is known
        self._closing: asyncio.Task[None] | None = None

    @staticmethod
    def blocking(
        url: str = "memory://",
        *,
        standby: bool = False,
        tracing: bool | TracerProvider = False,
        workers: int | None = None,
    ) -> BlockingPubSub:
        """The same API for programs without an event loop: ``with PubSub.blocking(url) as pubsub``.

        Handlers are plain functions that may block; at most ``workers`` of them run at once.
        """
        from seriatim.client.blocking import PubSub as BlockingPubSub

        return BlockingPubSub(url, standby=standby, tracing=tracing, workers=workers)

    async def __aenter__(self) -> PubSub:
        if self._pid == os.getpid() and (self._broker is not None or self._is_opening):
            raise FailedPrecondition("this PubSub is already open: use another one, or close this one first")
        self._is_opening = True
        try:
            self._broker, self._pid, self._closing = (
                await open_address(self._url, standby=self._standby),
                os.getpid(),
                None,
            )
        finally:
            self._is_opening = False
        _open.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    if not TYPE_CHECKING:  # type checkers find this mistake by themselves

        def __enter__(self) -> None:
            raise TypeError(
                "a PubSub is opened with 'async with'; in a program without asyncio use 'with PubSub.blocking(...) as pubsub'"
            )

        def __exit__(self, *_: object) -> None:
            """Only so that ``with`` asks ``__enter__``."""

    async def close(self) -> None:
        """Start no more handlers, wait for the running ones and for pending publishes, and release the store. If the store
        can't be written at the moment, this waits for it, but not for long.

        Everything is closed and the store is released even if something fails; the first failure is raised afterwards. If the
        wait is cancelled, closing continues. May be called more than once; a closed PubSub can be opened again. A handler that
        calls this waits for the other handlers only; the rest is closed once it has returned. In a forked child this only
        forgets the store, which belongs to the parent.
        """
        if self._pid != os.getpid():
            self._closing = None
            self._forget_broker()
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
        broker.begin_closing()
        failures: list[BaseException] = []
        for subscription in self._all_subscriptions():
            with _collecting(failures):
                subscription.stop()
        for subscription in self._all_subscriptions():
            with _collecting(failures):
                await subscription.close()
        for topic in list(self._topics.values()):
            with _collecting(failures):
                await topic.close()
        try:
            await broker.close()
        finally:
            self._forget_broker()
        if failures:
            raise failures[0]

    def _forget_broker(self) -> None:
        self._broker = None
        self._forget_publishers()

    def _forget_publishers(self) -> None:
        """Drop the publishers, so that the next publish creates new ones."""
        for topic in self._topics.values():
            topic._publisher = None  # noqa: SLF001 - one of us

    @property
    def broker(self) -> Broker:
        """The engine in this process, or a connection to one elsewhere. Pipes and Sparkplug hosts take it as an argument."""
        if self._broker is None:
            raise FailedPrecondition("this PubSub is not open: use it inside 'async with PubSub(...) as pubsub'")
        if self._pid != os.getpid():
            raise StoreLost("this PubSub was opened before a fork: open another one in this process")
        return self._broker

    @property
    def _consumer_broker(self) -> Broker:
        """The same for consumers, which are refused while this is being closed."""
        if self._closing is not None:
            raise FailedPrecondition("this PubSub is being closed: open another one to receive messages")
        return self.broker

    def topic(self, name: str) -> Topic:
        """The topic of this name, whether it exists yet or not."""
        check_name("Topic name", name)
        return self._topics.setdefault(name, Topic(self, name, self._tracing))

    def subscription(self, name: str) -> Subscription:
        """A subscription that exists. To create one, begin with its topic: ``topic.subscription(name)``."""
        check_name("Subscription name", name)
        known = self._subscriptions.setdefault(name, {})
        return next(iter(known.values()), None) or known.setdefault(None, Subscription(self, name, None, self._tracing))

    def _subscription_of(self, topic: Topic, name: str) -> Subscription:
        check_name("Subscription name", name)
        known = self._subscriptions.setdefault(name, {})
        if None in known:  # it was asked for without its topic before
            known[topic.name] = known.pop(None)
            known[topic.name].topic = topic
        return known.setdefault(topic.name, Subscription(self, name, topic, self._tracing))

    def _all_subscriptions(self) -> list[Subscription]:
        return [subscription for known in self._subscriptions.values() for subscription in known.values()]

    async def topics(self) -> list[TopicInfo]:
        """Every topic that exists."""
        return await self.broker.list_topics()

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """Every subscription that exists, with its topic and its options."""
        return await self.broker.list_subscriptions()

    async def metrics(self) -> Metrics:
        """Counters since the store was opened, and the state of every subscription. For rates see ``Metrics.since``."""
        return await self.broker.metrics()

    async def add_outbox(self, path: str | Path) -> None:
        """Publish the messages in the outbox of your own SQLite file (``seriatim.outbox``) while the store is open."""
        await self.broker.add_outbox(_absolute(path))

    async def remove_outbox(self, path: str | Path) -> None:
        """Stop publishing from a file. Messages that are still in it stay there."""
        await self.broker.remove_outbox(_absolute(path))

    async def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that have not expired."""
        return await self.broker.list_snapshots()

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot. Messages that only it retained may then be deleted, too."""
        await self.broker.delete_snapshot(name)

    async def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the store while it is in use. An existing file is never overwritten."""
        check_address("The path of a backup", str(path))
        await self.broker.backup(str(path))


_open: WeakSet[PubSub] = WeakSet()


def _forget_in_child() -> None:
    """A forked child must not use the publishers that it inherited."""
    for pubsub in list(_open):
        pubsub._forget_publishers()  # noqa: SLF001 - one of us


os.register_at_fork(after_in_child=_forget_in_child)


def _absolute(path: str | Path) -> str:
    if not isinstance(path, str | Path):
        raise InvalidArgument(f"an outbox is a file: give its path, not {path!r}")
    return os.path.abspath(path)  # noqa: PTH100 - it asks the system for nothing


def _tracing(wanted: bool | TracerProvider) -> Tracing | None:
    if wanted is False:
        return None
    if wanted is not True and not hasattr(wanted, "get_tracer"):
        raise InvalidArgument(f"tracing must be True, False or a TracerProvider of OpenTelemetry, not {wanted!r}")
    from seriatim.telemetry.tracing import Tracing

    return Tracing(None if wanted is True else wanted)


@contextmanager
def _collecting(failures: list[BaseException]) -> Iterator[None]:
    """Continue after a failure or a cancellation, which is raised at the end."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - everything else has to be closed, too
        failures.append(error)
