"""``Topic``: publishing, and the subscriptions of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from seriatim.client.message import Publishable, PubSubMessage
from seriatim.client.publisher import Publisher, PublishFuture, PublishOptions
from seriatim.client.subscription import Subscription, require_known_options, require_same_options
from seriatim.engine.broker import Broker
from seriatim.engine.options import DEFAULT_RETENTION_S, TopicOptions
from seriatim.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from seriatim.client.pubsub import PubSub
    from seriatim.telemetry.tracing import Tracing


class TopicSettings(TypedDict, total=False):
    """The options of ``Topic.create``."""

    retention: float | None
    retain_settled: float | None
    dedup_window: float | None
    dedup_max_ids: int | None


class Topic:
    """A topic: publishes messages, and gives access to its subscriptions.

    It need not exist yet: ``create`` or ``ensure`` makes it.
    """

    def __init__(self, pubsub: PubSub, name: str, tracing: Tracing | None = None) -> None:
        self._pubsub = pubsub
        self._tracing = tracing
        self.name = name
        self._options: PublishOptions | None = None
        self._publisher: Publisher | None = None  # forgotten together with the broker that it was made for
        if tracing is not None:  # and whoever wants no traces has none of this in the way
            self.publish = partial(tracing.publish, name, self.publish)  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def _broker(self) -> Broker:
        return self._pubsub.broker

    def _open_publisher(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._broker, self.name, self._options)
        return self._publisher

    async def create(
        self,
        *,
        retention: float | None = DEFAULT_RETENTION_S,
        retain_settled: float | None = 0.0,
        dedup_window: float | None = None,
        dedup_max_ids: int | None = None,
    ) -> Topic:
        """Create the topic. Raises AlreadyExists if it exists.

        ``retention``: for how many seconds messages are kept that were published before there was a subscription.
        ``retain_settled``: for how many seconds messages are kept after all subscriptions have acked them. None: without limit.
        ``dedup_window``, ``dedup_max_ids``: for how many seconds ``dedup_id`` values are remembered, and at most how many of
        them. None: 10 minutes, and a million.
        """
        options = TopicOptions(retention, retain_settled, dedup_window=dedup_window, dedup_max_ids=dedup_max_ids)
        await self._broker.create_topic(self.name, options)
        return self

    async def ensure(self, **options: Unpack[TopicSettings]) -> Topic:
        """Create the topic unless it exists. Takes the options of ``create``.

        Raises AlreadyExists if the topic exists with another value of an option that was given.
        """
        require_known_options("ensure", options, TopicSettings)
        wanted = TopicOptions(**options)
        try:
            await self._broker.create_topic(self.name, wanted)
        except AlreadyExists:
            if options:
                info = await self._broker.describe_topic(self.name)
                require_same_options(
                    f"topic {self.name!r}",
                    info.options,
                    wanted,
                    options,
                    f"leave them out to use it as it is, or change them with 'seriatim topics update {self.name}'",
                )
        return self

    async def delete(self) -> None:
        """Delete the topic with its messages and subscriptions."""
        await self._broker.delete_topic(self.name)

    def subscription(self, name: str) -> Subscription:
        """The subscription of this name to this topic, whether it exists yet or not."""
        return self._pubsub._subscription_of(self, name)  # noqa: SLF001 - one of us

    def set_publish_options(self, options: PublishOptions) -> None:
        """Change how this topic publishes, from now on, including messages that are waiting in batches."""
        self._open_publisher().set_options(options)
        self._options = options

    def publish(
        self,
        data: bytes,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
        dedup_id: str | None = None,
    ) -> PublishFuture:
        """Publish a message. The future resolves to its id once the message is durable; you need not wait for it.

        With a ``dedup_id`` it is stored once: publishing it again within the topic's ``dedup_window`` returns the id of the
        first message, or raises AlreadyExists if the key or the data differ. If the outcome of a publish with a ``dedup_id`` is
        unknown, the client repeats it.
        """
        return (self._publisher or self._open_publisher()).publish(
            data, ordering_key=ordering_key, attributes=attributes, delay=delay, dedup_id=dedup_id
        )

    def publish_message(
        self, message: Publishable, *, delay: float | None = None, dedup_id: str | None = None
    ) -> PublishFuture:
        """Publish a ``PubSubMessage``, or a received ``Message`` again: as a new message, with a new id.

        ``delay`` and ``dedup_id`` default to those of the ``PubSubMessage``.
        """
        data, key, attributes, own_delay, own_id = _fields(message)
        return self.publish(
            data,
            ordering_key=key,
            attributes=attributes,
            delay=own_delay if delay is None else delay,
            dedup_id=own_id if dedup_id is None else dedup_id,
        )

    async def publish_many(self, messages: Iterable[Publishable | bytes]) -> list[str]:
        """Publish messages, and return their ids, in the same order, once all of them are durable.

        Each is a ``PubSubMessage``, a ``Message``, or the data of a message without a key. Messages of a key keep their order.
        An invalid message raises before any of them is published. If some fail later, PublishFailed is raised; its
        ``results`` hold the id or the error of each message.
        """
        publisher = self._open_publisher()
        publisher.broker.require_topic(self.name)
        _require_several(messages)
        whole = (PubSubMessage(message) if isinstance(message, bytes) else message for message in messages)
        checked = [publisher.checked(*_fields(message)) for message in whole]
        if self._tracing is None:
            return await publisher.publish_all(checked)
        return await publisher.ids_of(
            [
                self.publish(data, ordering_key=key, attributes=attributes, delay=delay, dedup_id=dedup_id)
                for key, data, attributes, delay, dedup_id in checked
            ]
        )

    def publish_json(
        self,
        value: Any,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0.0,
        dedup_id: str | None = None,
    ) -> PublishFuture:
        """Publish a value as JSON."""
        try:
            data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"this value can't be published as JSON: {error}") from error
        return self.publish(data, ordering_key=ordering_key, attributes=attributes, delay=delay, dedup_id=dedup_id)

    async def flush(self) -> None:
        """Send all batches now, and wait until everything published so far is durable."""
        await self._open_publisher().flush()

    def resume_publishing(self, ordering_key: str) -> None:
        """Accept messages of a key again after a publish of it failed."""
        self._open_publisher().resume(ordering_key)

    def paused_keys(self) -> tuple[str, ...]:
        """The keys for which a publish failed, and that need ``resume_publishing``."""
        return self._open_publisher().paused_keys()

    async def close(self) -> None:
        """Send all batches, and wait until every message is durable or has failed."""
        if self._publisher is not None:
            await self._publisher.close()


def _require_several(messages: object) -> None:
    if not isinstance(messages, Iterable) or isinstance(messages, bytes | str):
        raise InvalidArgument(
            f"publish_many takes several messages, such as a list, not {type(messages).__name__}: for one, call publish"
        )


def _fields(message: Publishable) -> tuple[bytes, str | None, Mapping[str, str] | None, float, str | None]:
    """The arguments of ``publish``, in the order in which a publisher checks them."""
    if isinstance(message, PubSubMessage):
        return message.data, message.ordering_key, message.attributes or None, message.delay, message.dedup_id
    if not isinstance(message, Publishable):
        raise InvalidArgument(f"a {type(message).__name__} can't be published: give a PubSubMessage or a Message")
    return message.data, message.ordering_key, message.attributes or None, 0.0, None
