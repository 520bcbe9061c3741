"""``PubSub``, ``Topic`` and ``Subscription``: the async API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from seriatim.client.consumer import Consuming, ErrorHandler, Handler, HandlerRunner, MessageStream
from seriatim.client.message import Message
from seriatim.client.publisher import Publisher, PublishFuture, PublishOptions
from seriatim.core.delivery import Release, RetryPolicy
from seriatim.engine.broker import Broker
from seriatim.engine.opening import open_broker
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.log import logger


class PubSub:
    """Topics and subscriptions of one store. Use it as an async context manager."""

    def __init__(self, url: str = "memory://") -> None:
        self._url = url
        self._broker: Broker | None = None
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[str, Subscription] = {}

    async def __aenter__(self) -> PubSub:
        self._broker = await open_broker(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for handlers that run and for what was published, and give the store back."""
        for subscription in self._subscriptions.values():
            await subscription.close()
        for topic in self._topics.values():
            await topic.close()
        broker, self._broker = self.broker, None
        await broker.close()

    @property
    def broker(self) -> Broker:
        """Whom everything is asked: an engine in this process, or a way to one elsewhere."""
        if self._broker is None:
            raise FailedPrecondition("this PubSub is not open: use it inside 'async with PubSub(...) as pubsub'")
        return self._broker

    def topic(self, name: str) -> Topic:
        """The topic of this name, whether it exists yet or not."""
        return self._topics.setdefault(name, Topic(self, name))

    def subscription(self, name: str) -> Subscription:
        """A subscription that exists. To create one, begin with its topic: ``topic.subscription(name)``."""
        return self._subscriptions.setdefault(name, Subscription(self, name, None))

    def subscription_of(self, topic: Topic, name: str) -> Subscription:
        known = self._subscriptions.get(name)
        if known is None or known.topic is None:
            known = self._subscriptions[name] = Subscription(self, name, topic)
        return known


class Topic:
    """A topic by its name."""

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._pubsub.broker, self.name)
        return self._publisher

    async def create(self, **options: Any) -> Topic:
        """Create it. Options: ``retention`` and ``retain_settled`` in seconds."""
        await self._pubsub.broker.create_topic(self.name, TopicOptions(**options))
        return self

    async def delete(self) -> None:
        """Delete it, with its messages and its subscriptions."""
        await self._pubsub.broker.delete_topic(self.name)

    def subscription(self, name: str) -> Subscription:
        return self._pubsub.subscription_of(self, name)

    def set_publish_options(self, options: PublishOptions) -> None:
        self.publisher.set_options(options)

    def publish(
        self,
        data: bytes,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
    ) -> PublishFuture:
        """Publish a message. Await the result for its id; not awaiting it is fine."""
        self._pubsub.broker.require_topic(self.name)
        return self.publisher.publish(data, ordering_key=ordering_key, attributes=attributes, delay=delay)

    def publish_json(
        self,
        value: Any,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
    ) -> PublishFuture:
        """Publish a value as JSON."""
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        return self.publish(data, ordering_key=ordering_key, attributes=attributes, delay=delay)

    async def flush(self) -> None:
        """Send what waits in batches now, and wait until everything published before is durable."""
        await self.publisher.flush()

    def resume_publishing(self, ordering_key: str) -> None:
        """Publish a key again after a publish of it failed."""
        self.publisher.resume(ordering_key)

    def paused_keys(self) -> tuple[str, ...]:
        """The keys that wait for ``resume_publishing``."""
        return self.publisher.paused_keys()

    async def close(self) -> None:
        if self._publisher is not None:
            await self._publisher.close()


class Subscription:
    """A subscription by its name."""

    def __init__(self, pubsub: PubSub, name: str, topic: Topic | None) -> None:
        self._pubsub = pubsub
        self.name = name
        self.topic = topic
        self._handlers: list[Handler] = []
        self._error_handlers: list[ErrorHandler] = []
        self._runner: HandlerRunner | None = None
        self._streams: list[MessageStream] = []

    async def create(
        self,
        *,
        enable_message_ordering: bool = False,
        ack_deadline: float = 10.0,
        retry: RetryPolicy | None = None,
        window: int = 1,
        release: Release = Release.DURABLE,
        dead_letter_topic: str | None = None,
    ) -> Subscription:
        """Create it; it gets what is published from now on."""
        if self.topic is None:
            raise FailedPrecondition(f"subscription {self.name!r} has no topic: use topic.subscription({self.name!r})")
        options = SubscriptionOptions(
            enable_message_ordering, ack_deadline, retry or RetryPolicy(), window, release, dead_letter_topic
        )
        await self._pubsub.broker.create_subscription(self.topic.name, self.name, options)
        return self

    async def set_options(
        self,
        *,
        message_ordering: bool | None = None,
        ack_deadline: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Change what is given and keep the rest. Messages that are out finish first."""
        broker = self._pubsub.broker
        options = (await broker.describe_subscription(self.name)).options
        if message_ordering is not None:
            options = replace(options, ordering=message_ordering)
        if ack_deadline is not None:
            options = replace(options, ack_deadline=ack_deadline)
        if retry is not None:
            options = replace(options, retry=retry)
        await broker.update_subscription(self.name, options)

    async def delete(self) -> None:
        await self.close()
        await self._pubsub.broker.delete_subscription(self.name)

    def on(self, event: Literal["message", "error"], handler: Callable[[Any], object]) -> None:
        """Call ``handler`` with every message, or with every error of a handler. It may be a plain or an async function."""
        if event == "message":
            self._handlers.append(handler)
        elif event == "error":
            self._error_handlers.append(handler)
        else:
            raise InvalidArgument(f"there is no event {event!r}: use 'message' or 'error'")

    def open(self, consuming: Consuming | None = None) -> None:
        """Begin to call the handlers."""
        if self._runner is not None:
            raise FailedPrecondition(f"subscription {self.name!r} is open already")
        if not self._handlers:
            raise FailedPrecondition(f"subscription {self.name!r} has no handler: call on('message', handler) first")
        handle = self._handlers[0] if len(self._handlers) == 1 else self._handle_all
        self._runner = HandlerRunner(self._pubsub.broker, self.name, consuming or Consuming(), handle, self._report)

    async def close(self) -> None:
        """Take no more messages, wait for the handlers that run, and end every iteration."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()
        while self._streams:
            self._streams.pop().close()

    def messages(self, consuming: Consuming | None = None) -> MessageStream:
        """An async iterator of messages. Close it (``close()``) to give back what was not settled."""
        # A stream is worked off one by one: taking many messages would only keep them from others.
        stream = MessageStream(self._pubsub.broker, self.name, consuming or Consuming(max_messages=16))
        self._streams.append(stream)
        return stream

    async def __aiter__(self) -> AsyncIterator[Message]:
        stream = self.messages()
        try:
            async for message in stream:
                yield message
        finally:
            if stream in self._streams:
                self._streams.remove(stream)
                stream.close()

    async def _handle_all(self, message: Message) -> None:
        for handler in self._handlers:
            result = handler(message)
            if asyncio.iscoroutine(result):
                await result

    def _report(self, error: BaseException) -> None:
        for handler in self._error_handlers:
            handler(error)
        if not self._error_handlers:
            logger.error("a handler of subscription %r failed: %s", self.name, error, exc_info=error)
