"""The blocking API: the classes of the async API for programs without an event loop.

Written by ``make generate`` from the async classes; see ``blocking_facade.py`` for the rules.
"""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: A002, SLF001

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from seriatim.client import consumer, message, pubsub, subscription, topic
from seriatim.client.blocking_facade import DEFAULT_WORKERS, Facade, LoopThread, PublishResult
from seriatim.client.consumer import AckMode, ConsumeOptions
from seriatim.client.message import Publishable
from seriatim.client.publisher import PublishOptions
from seriatim.client.subscription import Limits, OptionChanges, SubscriptionSettings
from seriatim.client.topic import TopicSettings
from seriatim.core.lanes.types import Keep, ReleaseAfter, RetryPolicy
from seriatim.engine.broker import (
    DeadLetter,
    Explanation,
    KeyInfo,
    KeyOrder,
    PeekedMessage,
    SnapshotInfo,
    SubscriptionInfo,
    SupersededMessage,
    TopicInfo,
)
from seriatim.engine.metrics import Metrics, SubscriptionStats
from seriatim.engine.options import DEFAULT_RETENTION_S, SubscriptionOptions

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

Handler = Callable[["Message"], object]
BatchHandler = Callable[["list[Message]"], object]
AnyHandler = TypeVar("AnyHandler", bound=Callable[[Any], object])


class PubSub(Facade[pubsub.PubSub]):
    """Topics and subscriptions of one store, or of a Pub/Sub server. Use it as a context manager."""

    __slots__ = ()

    def __init__(
        self,
        url: str = "memory://",
        *,
        standby: bool = False,
        tracing: bool | TracerProvider = False,
        workers: int | None = None,
    ) -> None:
        """Nothing is opened yet. At most ``workers`` handlers run at once. See ``seriatim.PubSub``."""
        super().__init__(pubsub.PubSub(url, standby=standby, tracing=tracing), LoopThread(workers or DEFAULT_WORKERS))

    def __enter__(self) -> PubSub:
        self._thread.start()
        try:
            self._call(self._target.__aenter__)
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._thread.is_inherited:
                self._call(self._target.__aexit__, kind, error, trace)
        finally:
            self._thread.close()

    def close(self) -> None:
        """Start no more handlers, wait for the running ones and for pending publishes, and release the store. If the store
        can't be written at the moment, this waits for it, but not for long."""
        if not self._thread.is_inherited:
            self._call(self._target.close)

    def topic(self, name: str) -> Topic:
        """The topic of this name, whether it exists yet or not."""
        return self._call(self._target.topic, name)

    def subscription(self, name: str) -> Subscription:
        """A subscription that exists. To create one, begin with its topic: ``topic.subscription(name)``."""
        return self._call(self._target.subscription, name)

    def topics(self) -> list[TopicInfo]:
        """Every topic that exists."""
        return self._call(self._target.topics)

    def subscriptions(self) -> list[SubscriptionInfo]:
        """Every subscription that exists, with its topic and its options."""
        return self._call(self._target.subscriptions)

    def metrics(self) -> Metrics:
        """Counters since the store was opened, and the state of every subscription. For rates see ``Metrics.since``."""
        return self._call(self._target.metrics)

    def add_outbox(self, path: str | Path) -> None:
        """Publish the messages in the outbox of your own SQLite file (``seriatim.outbox``) while the store is open."""
        self._call(self._target.add_outbox, path)

    def remove_outbox(self, path: str | Path) -> None:
        """Stop publishing from a file. Messages that are still in it stay there."""
        self._call(self._target.remove_outbox, path)

    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that have not expired."""
        return self._call(self._target.snapshots)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot. Messages that only it retained may then be deleted, too."""
        self._call(self._target.delete_snapshot, name)

    def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the store while it is in use. An existing file is never overwritten."""
        self._call(self._target.backup, path)


class Topic(Facade[topic.Topic]):
    """A topic: publishes messages, and gives access to its subscriptions."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._wrap(self._target.name)

    def create(
        self,
        *,
        retention: float | None = DEFAULT_RETENTION_S,
        retain_settled: float | None = 0.0,
        dedup_window: float | None = None,
        dedup_max_ids: int | None = None,
    ) -> Topic:
        """Create the topic. Raises AlreadyExists if it exists."""
        return self._call(
            self._target.create,
            retention=retention,
            retain_settled=retain_settled,
            dedup_window=dedup_window,
            dedup_max_ids=dedup_max_ids,
        )

    def ensure(self, **options: Unpack[TopicSettings]) -> Topic:
        """Create the topic unless it exists. Takes the options of ``create``."""
        return self._call(self._target.ensure, **options)

    def delete(self) -> None:
        """Delete the topic with its messages and subscriptions."""
        self._call(self._target.delete)

    def subscription(self, name: str) -> Subscription:
        """The subscription of this name to this topic, whether it exists yet or not."""
        return self._call(self._target.subscription, name)

    def set_publish_options(self, options: PublishOptions) -> None:
        """Change how this topic publishes, from now on, including messages that are waiting in batches."""
        self._call(self._target.set_publish_options, options)

    def publish(
        self,
        data: bytes,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
        dedup_id: str | None = None,
    ) -> PublishResult:
        """Publish a message. The future resolves to its id once the message is durable; you need not wait for it."""
        return self._call(
            self._target.publish, data, ordering_key=ordering_key, attributes=attributes, delay=delay, dedup_id=dedup_id
        )

    def publish_message(
        self, message: Publishable, *, delay: float | None = None, dedup_id: str | None = None
    ) -> PublishResult:
        """Publish a ``PubSubMessage``, or a received ``Message`` again: as a new message, with a new id."""
        return self._call(self._target.publish_message, message, delay=delay, dedup_id=dedup_id)

    def publish_many(self, messages: Iterable[Publishable | bytes]) -> list[str]:
        """Publish messages, and return their ids, in the same order, once all of them are durable."""
        return self._call(self._target.publish_many, messages)

    def publish_json(
        self,
        value: Any,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
        dedup_id: str | None = None,
    ) -> PublishResult:
        """Publish a value as JSON."""
        return self._call(
            self._target.publish_json,
            value,
            ordering_key=ordering_key,
            attributes=attributes,
            delay=delay,
            dedup_id=dedup_id,
        )

    def flush(self) -> None:
        """Send all batches now, and wait until everything published so far is durable."""
        self._call(self._target.flush)

    def resume_publishing(self, ordering_key: str) -> None:
        """Accept messages of a key again after a publish of it failed."""
        self._call(self._target.resume_publishing, ordering_key)

    def paused_keys(self) -> tuple[str, ...]:
        """The keys for which a publish failed, and that need ``resume_publishing``."""
        return self._call(self._target.paused_keys)

    def close(self) -> None:
        """Send all batches, and wait until every message is durable or has failed."""
        self._call(self._target.close)


class Subscription(Facade[subscription.Subscription]):
    """A subscription: it receives every message of its topic, independently of other subscriptions."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._wrap(self._target.name)

    @property
    def topic(self) -> Topic | None:
        """Its topic. None if it was opened by its own name alone."""
        return self._wrap(self._target.topic)

    def create(
        self,
        *,
        enable_message_ordering: bool = True,
        ack_deadline: float = 10.0,
        retry: RetryPolicy | None = None,
        window: int = 1,
        release: ReleaseAfter | Literal["durable", "receipt"] = ReleaseAfter.DURABLE,
        dead_letter_topic: str | None = None,
        filter: str | None = None,
        keep: Keep | Literal["all", "latest"] = Keep.ALL,
        tenant_limit: int | None = None,
        tenant_separator: str = "/",
    ) -> Subscription:
        """Create the subscription, which receives messages published from now on. Raises AlreadyExists if it exists."""
        return self._call(
            self._target.create,
            enable_message_ordering=enable_message_ordering,
            ack_deadline=ack_deadline,
            retry=retry,
            window=window,
            release=release,
            dead_letter_topic=dead_letter_topic,
            filter=filter,
            keep=keep,
            tenant_limit=tenant_limit,
            tenant_separator=tenant_separator,
        )

    def ensure(self, **options: Unpack[SubscriptionSettings]) -> Subscription:
        """Create the subscription unless it exists. Takes the options of ``create``."""
        return self._call(self._target.ensure, **options)

    def options(self) -> SubscriptionOptions:
        """The options that the subscription has now."""
        return self._call(self._target.options)

    def set_options(self, **changes: Unpack[OptionChanges]) -> None:
        """Change the given options and keep the others."""
        self._call(self._target.set_options, **changes)

    def delete(self) -> None:
        """Close and delete the subscription."""
        self._call(self._target.delete)

    def on(self, event: Literal["message", "error"], handler: Callable[[Any], object]) -> None:
        """Register a handler that is called with every message, or with every error of a handler or of the store."""
        self._call(self._target.on, event, self._in_worker(handler))

    def open(self, consuming: ConsumeOptions | None = None, **limits: Unpack[Limits]) -> None:
        """Start calling the handlers, with as many messages at once as ``ConsumeOptions`` or the limits allow."""
        self._call(self._target.open, consuming, **limits)

    def handler(self, function: AnyHandler) -> AnyHandler:
        """Register a message handler, as a decorator: like ``on("message", function)``."""
        self.on("message", function)
        return function

    def run(
        self,
        handler: Handler | BatchHandler | None = None,
        *,
        concurrency: int = 100,
        ack: AckMode = "manual",
        max_bytes: float = inf,
        max_extension: float = 3600.0,
        batch: int | None = None,
        across_keys: bool = False,
    ) -> None:
        """Call ``handler``, or the registered handlers, with every message until cancelled. A handler must ack or nack: if it
        returns without either, ITS KEY IS BLOCKED until the lease expires. With ``ack="on-return"``, returning acks."""
        self._run_until_signal(
            self._target.run(
                None if handler is None else self._in_worker(handler),
                concurrency=concurrency,
                ack=ack,
                max_bytes=max_bytes,
                max_extension=max_extension,
                batch=batch,
                across_keys=across_keys,
            ),
            self._target._stop_by_signal,
        )

    def pull(self, max_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """Receive up to ``max_messages``, waiting up to ``timeout`` seconds (None: without limit) for the first one."""
        return self._call(self._target.pull, max_messages, timeout)

    def stop(self) -> None:
        """Start no more handlers and end every iteration. Running handlers continue; ``close`` waits for them."""
        self._call(self._target.stop)

    def close(self) -> None:
        """Start no more handlers, end every iteration, and wait for the running handlers. May be called more than once."""
        self._call(self._target.close)

    def messages(self, consuming: ConsumeOptions | None = None, **limits: Unpack[Limits]) -> MessageStream:
        """The messages, to be iterated over. Its ``close`` returns unsettled ones to the subscription."""
        return self._call(self._target.messages, consuming, **limits)

    def __iter__(self) -> Iterator[Message]:
        return self._iterate()

    def wait_until_empty(self) -> None:
        """Wait until no message is waiting or in flight, and every ack is durable."""
        self._call(self._target.wait_until_empty)

    def stats(self) -> SubscriptionStats:
        """The number of messages by state, and the age of the oldest."""
        return self._call(self._target.stats)

    def keys(self, *, limit: int = 100, blocked_only: bool = False, order: KeyOrder = "trouble") -> list[KeyInfo]:
        """Keys that have messages or are paused, and why they wait; by ``order``, those in trouble first by default."""
        return self._call(self._target.keys, limit=limit, blocked_only=blocked_only, order=order)

    def explain(self, key: str | None) -> Explanation:
        """Why a key is waiting, since when, and what would unblock it: as data, and as one ``sentence``."""
        return self._call(self._target.explain, key)

    def superseded(self, key: str | None = None, limit: int = 100) -> list[SupersededMessage]:
        """Messages that were superseded by newer ones (``keep="latest"``), the latest first, of one key or of all (None). The
        last 10,000 are remembered, until the process that owns the store exits."""
        return self._call(self._target.superseded, key, limit)

    def peek(self, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        """The first messages of a key, in order, without delivering them. ``None`` stands for messages without a key."""
        return self._call(self._target.peek, key, limit)

    def pause(self) -> None:
        """Deliver nothing until ``resume``, also after a restart. Messages in flight can still be settled."""
        self._call(self._target.pause)

    def resume(self) -> None:
        """Deliver again after ``pause``."""
        self._call(self._target.resume)

    def pause_key(self, key: str | None, reason: str | None = None) -> None:
        """Deliver nothing of a key until ``resume_key``, also after a restart."""
        self._call(self._target.pause_key, key, reason)

    def resume_key(self, key: str | None) -> None:
        """Deliver a key again after it was paused."""
        self._call(self._target.resume_key, key)

    def retry(self, key: str | None) -> None:
        """Deliver the first message of a key now if it is waiting for its retry or its delay."""
        self._call(self._target.retry, key)

    def skip(self, key: str | None) -> str:
        """Drop the first message of a key, and return its id. If it is in flight, its ack raises StaleLease."""
        return self._call(self._target.skip, key)

    def remove(self, message_id: str) -> None:
        """Drop a message, wherever it is in its key, unless it is in flight."""
        self._call(self._target.remove, message_id)

    def dead_letter(self, key: str | None, error: str | None = None, *, rest: bool = False) -> list[str]:
        """Dead-letter the first message of a key, or with ``rest`` all of them, and return the ids."""
        return self._call(self._target.dead_letter, key, error, rest=rest)

    def dead_letters(self, *, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Dead letters, ordered by id. For the next page, pass the last id as ``after``."""
        return self._call(self._target.dead_letters, limit=limit, after=after)

    def redrive(self, message_id: str, *, append: bool = False) -> str:
        """Return a dead letter to its original place in its key, and return its id."""
        return self._call(self._target.redrive, message_id, append=append)

    def purge(self, *message_ids: str) -> None:
        """Delete dead letters."""
        self._call(self._target.purge, *message_ids)

    def seek(
        self, *, time: datetime | float | None = None, message_id: str | None = None, snapshot: str | None = None
    ) -> None:
        """Move the subscription, back or forward, to a time, a message or a snapshot. Acks of messages that are in flight then
        raise StaleLease."""
        self._call(self._target.seek, time=time, message_id=message_id, snapshot=snapshot)

    def snapshot(self, name: str, *, lasts: float = DEFAULT_RETENTION_S) -> SnapshotInfo:
        """Save under a name which messages are settled, for ``lasts`` seconds; ``seek(snapshot=name)`` restores that."""
        return self._call(self._target.snapshot, name, lasts=lasts)


class Message(Facade[message.Message]):
    """A delivered message. Call ``ack`` when it is handled, or ``nack`` when that failed; both raise StaleLease if its lease
    is lost."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The message's id, unique in its topic."""
        return self._wrap(self._target.id)

    @property
    def data(self) -> bytes:
        """What was published."""
        return self._wrap(self._target.data)

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes, read-only; empty if there are none."""
        return self._wrap(self._target.attributes)

    @property
    def ordering_key(self) -> str | None:
        """The key, or None."""
        return self._wrap(self._target.ordering_key)

    @property
    def publish_time(self) -> datetime:
        """When the message was published, in UTC."""
        return self._wrap(self._target.publish_time)

    @property
    def delivery_attempt(self) -> int:
        """Which delivery of the message this is: 1 for the first."""
        return self._wrap(self._target.delivery_attempt)

    def ack(self) -> None:
        """Mark the message as handled. The next one of its key is then delivered."""
        self._call(self._target.ack)

    def ack_durable(self) -> None:
        """Ack the message, and wait until that is durable: it will not be delivered again. Raises StaleLease if the lease is
        lost, and OutcomeUnknown if its consumer is closed and can't wait any longer."""
        self._call(self._target.ack_durable)

    def nack(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """Mark the delivery as failed. The message is delivered again, in its place, after ``delay`` seconds, or as the retry
        policy says."""
        self._call(self._target.nack, delay, error)

    def dead_letter(self, reason: str | BaseException | None = None, *, rest: bool = False) -> None:
        """Dead-letter the message now, regardless of its remaining attempts. Its key continues with the next message."""
        self._call(self._target.dead_letter, reason, rest=rest)

    def extend(self, seconds: float) -> None:
        """Extend the lease to ``seconds`` from now."""
        self._call(self._target.extend, seconds)

    def json(self) -> Any:
        """The data, decoded as JSON."""
        return self._call(self._target.json)

    def __enter__(self) -> Message:
        return self._call(self._target.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._target.__aexit__, kind, error, trace)


class MessageStream(Facade[consumer.MessageStream]):
    """A iterator over messages. It ends when it is closed, and raises if the subscription can't deliver any more."""

    __slots__ = ()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._wrap(self._target.is_closed)

    def __iter__(self) -> Iterator[Message]:
        return self._iterate()

    def stop(self) -> None:
        """Take no more messages; those in flight are not affected."""
        self._call(self._target.stop)

    def end(self) -> None:
        """Deliver nothing more, so that the iteration ends. Delivered messages can still be settled."""
        self._call(self._target.end)

    def close(self) -> None:
        """Return unsettled messages to the subscription, and end the iteration."""
        self._call(self._target.close)


Facade._facades.update(
    {
        topic.Topic: Topic,
        subscription.Subscription: Subscription,
        message.Message: Message,
        consumer.MessageStream: MessageStream,
    }
)
