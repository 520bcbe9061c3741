"""The Publisher service: topics and publishing.

Rules of publishing
    - What Google Pub/Sub refuses is refused here with the same status: a message without data and attributes, attributes whose
      names begin with ``goog`` or of which there are too many, keys that are too long, requests that are too large.
    - One thing is allowed that Google refuses: messages of several keys in one publish request. They are stored in their order.
    - proto3 can't tell an empty ordering key from none, so it is none.
    - The attribute ``seriatim-dedup-id`` is the ``dedup_id`` of a message, and is not kept with the other attributes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from google.protobuf.empty_pb2 import Empty

from seriatim.core.publishing.dedup import DEDUP_ID
from seriatim.core.publishing.message_limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, check_message
from seriatim.engine.broker import Broker, Outgoing, TopicInfo
from seriatim.errors import InvalidArgument, ResourceExhausted
from seriatim.server.paging import page, page_of_project
from seriatim.server.resources import TOPIC_UPDATES, Resources, retained_by_subscriptions
from seriatim.server.schemas import Schemas
from seriatim.wire.resource_messages import apply_mask
from seriatim.wire.services import PUBLISHER, PublishResponse, SchemaSettings

MAX_MESSAGES = 1000
"""The most messages that a publish request may have."""

MAX_ATTRIBUTES = 100
SHORT_KEY_CHARACTERS = MAX_KEY_BYTES // 4
"""A key of this many characters is never too long: a character has at most four bytes in UTF-8."""

RESERVED_PREFIX = "goog"

_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class PublisherService:
    """One method for each of the API's, by the same name."""

    def __init__(self, broker: Broker, resources: Resources, schemas: Schemas, max_bytes: int) -> None:
        """``max_bytes``: how many bytes of messages may wait to be written at once."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._broker = broker
        self._schemas = schemas
        self._resources = resources
        self._topics = resources.topics
        self._locks = resources.topic_locks

    async def create_topic(self, topic: Any) -> Any:
        name = self._topics.in_store(topic.name)
        self._schemas.check_settings(topic.schema_settings)
        options = self._resources.topic_options(topic)
        async with self._locks.hold(name):
            info = await self._broker.create_topic(name, options)
            self._schemas.bind(name, topic.schema_settings)
        return self._described(info)

    async def get_topic(self, request: Any) -> Any:
        return self._described(await self._broker.describe_topic(self._topics.in_store(request.topic)))

    async def update_topic(self, request: Any) -> Any:
        name = self._topics.in_store(request.topic.name)
        async with self._locks.hold(name):
            topic = self._resources.topic(await self._broker.describe_topic(name))
            apply_mask(topic, request.topic, request.update_mask.paths, TOPIC_UPDATES)
            self._schemas.check_settings(topic.schema_settings)
            options, names = self._resources.topic_options(topic), ["resource"]
            if any(path.startswith("message_retention_duration") for path in request.update_mask.paths):
                kept = max(options.retain_settled or 0.0, await retained_by_subscriptions(self._broker, name))
                options, names = replace(options, retain_settled=kept), ["resource", "retention", "retain_settled"]
            await self._broker.update_topic(name, options, names)
            self._schemas.bind(name, topic.schema_settings)
            return self._described(await self._broker.describe_topic(name))

    async def list_topics(self, request: Any) -> Any:
        found, token = await page_of_project(self._topics, request.project, request, self._broker.list_topics)
        topics = [self._described(info) for info in found]
        return PUBLISHER["ListTopics"].response(topics=topics, next_page_token=token)

    async def list_topic_subscriptions(self, request: Any) -> Any:
        topic = (await self._broker.describe_topic(self._topics.in_store(request.topic))).name
        infos = await self._broker.list_subscriptions(topic=topic)
        names, token = page(sorted(self._resources.subscriptions.of(info.name) for info in infos), request, str)
        return PUBLISHER["ListTopicSubscriptions"].response(subscriptions=names, next_page_token=token)

    async def list_topic_snapshots(self, request: Any) -> Any:
        topic = (await self._broker.describe_topic(self._topics.in_store(request.topic))).name
        infos = [info for info in await self._broker.list_snapshots() if info.topic == topic]
        names, token = page(sorted(self._resources.snapshots.of(info.name) for info in infos), request, str)
        return PUBLISHER["ListTopicSnapshots"].response(snapshots=names, next_page_token=token)

    async def delete_topic(self, request: Any) -> Any:
        name = self._topics.in_store(request.topic)
        async with self._locks.hold(name):
            await self._broker.retire_topic(name)
            self._schemas.bind(name, SchemaSettings())
        return Empty()

    async def detach_subscription(self, request: Any) -> Any:
        await self._broker.detach_subscription(self._resources.subscriptions.in_store(request.subscription))
        return PUBLISHER["DetachSubscription"].response()

    async def publish(self, request: Any) -> Any:
        topic = self._topics.in_store(request.topic)
        self._broker.require_topic(topic)
        messages = await self._schemas.checked(topic, outgoing(request.messages))
        size = request.ByteSize()
        if self._bytes + size > max(self._max_bytes, size):  # one is always taken, however large
            raise ResourceExhausted("too many requests wait to be written: slow down, and try again")
        self._bytes += size
        try:
            return PublishResponse(message_ids=await self._broker.publish(topic, messages))
        finally:
            self._bytes -= size

    def _described(self, info: TopicInfo) -> Any:
        topic = self._resources.topic(info)
        if topic.HasField("schema_settings"):
            self._schemas.settings_of(topic.schema_settings)
        return topic


def outgoing(messages: Any) -> list[Outgoing]:
    """The messages of a publish request. Raises InvalidArgument unless all of them can be published."""
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise InvalidArgument(f"a publish request has 1 to {MAX_MESSAGES} messages, not {len(messages)}")
    found = []
    for message in messages:
        key, data = message.ordering_key, message.data
        if len(key) <= SHORT_KEY_CHARACTERS and 0 < len(data) <= MAX_MESSAGE_BYTES and not message.attributes:
            found.append(_make(Outgoing, (key or None, data, None, 0.0, None)))  # nearly every message
        else:
            found.append(_checked(key or None, data, dict(message.attributes)))
    return found


def _checked(key: str | None, data: bytes, attributes: dict[str, str]) -> Outgoing:
    check_message(data, key, attributes or None)
    if not data and not attributes:
        raise InvalidArgument("a message needs data, or an attribute at least")
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidArgument(f"a message has at most {MAX_ATTRIBUTES} attributes, not {len(attributes)}")
    for name in attributes:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidArgument(f"attribute {name!r} begins with {RESERVED_PREFIX!r}, which is reserved")
    dedup_id = attributes.pop(DEDUP_ID, None)
    return Outgoing(key, data, attributes or None, 0.0, dedup_id)
