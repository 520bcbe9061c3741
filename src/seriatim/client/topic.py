"""``Topic``: publishing, and the subscriptions of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seriatim.client.message import Publishable
from seriatim.client.publisher import Publisher, PublishFuture, PublishOptions
from seriatim.client.subscription import Subscription
from seriatim.engine.options import TopicOptions
from seriatim.errors import InvalidArgument

if TYPE_CHECKING:
    from seriatim.client.pubsub import PubSub


class Topic:
    """A topic by its name."""

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name
        self._options: PublishOptions | None = None
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        broker = self._pubsub.broker
        if self._publisher is None or self._publisher.sink is not broker:  # it was opened again since
            self._publisher = Publisher(broker, self.name, self._options)
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
        """Apply them from now on, to what waits in batches, too."""
        self.publisher.set_options(options)
        self._options = options

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

    def publish_message(self, message: Publishable, *, delay: float = 0.0) -> PublishFuture:
        """Publish a ``PubSubMessage``, or what somebody else published: it is a new message, with an id of its own."""
        if not isinstance(message, Publishable):
            raise InvalidArgument(f"a {type(message).__name__} can't be published: give a PubSubMessage or a Message")
        return self.publish(
            message.data, ordering_key=message.ordering_key, attributes=message.attributes or None, delay=delay
        )

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
        """Send what waits in batches, and wait until it is durable or has failed."""
        if self._publisher is not None:
            await self._publisher.close()
