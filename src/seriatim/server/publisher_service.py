"""The Publisher service: topics, and messages that come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.empty_pb2 import Empty

from seriatim.engine.broker import Broker, Outgoing, TopicInfo
from seriatim.errors import ResourceExhausted
from seriatim.server.paging import page, page_of_project
from seriatim.server.resources import TOPIC_UPDATES, Resources, retained_by_subscriptions
from seriatim.server.schemas import Schemas
from seriatim.wire.masks import apply_mask
from seriatim.wire.messages import contents
from seriatim.wire.services import PUBLISHER, PublishResponse, SchemaSettings


class PublisherService:
    """One method for each of the API's, by the same name."""

    def __init__(self, broker: Broker, resources: Resources, schemas: Schemas, most_bytes: int) -> None:
        """``most_bytes``: how much may be on its way to the disk at once."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._broker = broker
        self._schemas = schemas
        self._resources = resources
        self._topics = resources.topics
        self._turns = resources.topic_turns

    async def create_topic(self, topic: Any) -> Any:
        name = self._topics.in_store(topic.name)
        self._schemas.check_settings(topic.schema_settings)
        options = self._resources.topic_options(topic)
        async with self._turns.of(name):
            info = await self._broker.create_topic(name, options)
            self._schemas.bind(name, topic.schema_settings)
        return self._described(info)

    async def get_topic(self, request: Any) -> Any:
        return self._described(await self._broker.describe_topic(self._topics.in_store(request.topic)))

    async def update_topic(self, request: Any) -> Any:
        name = self._topics.in_store(request.topic.name)
        async with self._turns.of(name):
            return await self._update(name, request)

    async def _update(self, name: str, request: Any) -> Any:
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
        label = self._resources.subscriptions.of
        mine = [info.name for info in await self._broker.list_subscriptions(topic=topic)]
        names, token = page(sorted(mine, key=label), request, label)
        return PUBLISHER["ListTopicSubscriptions"].response(subscriptions=map(label, names), next_page_token=token)

    async def list_topic_snapshots(self, request: Any) -> Any:
        topic = (await self._broker.describe_topic(self._topics.in_store(request.topic))).name
        label = self._resources.snapshots.of
        mine = [info.name for info in await self._broker.list_snapshots() if info.topic == topic]
        names, token = page(sorted(mine, key=label), request, label)
        return PUBLISHER["ListTopicSnapshots"].response(snapshots=map(label, names), next_page_token=token)

    async def delete_topic(self, request: Any) -> Any:
        name = self._topics.in_store(request.topic)
        async with self._turns.of(name):
            await self._broker.retire_topic(name)
            self._schemas.bind(name, SchemaSettings())
        return Empty()

    async def detach_subscription(self, request: Any) -> Any:
        await self._broker.detach_subscription(self._resources.subscriptions.in_store(request.subscription))
        return PUBLISHER["DetachSubscription"].response()

    async def publish(self, request: Any) -> Any:
        topic = self._topics.in_store(request.topic)
        self._broker.require_topic(topic)
        messages = [Outgoing(*content) for content in await self._schemas.checked(topic, contents(request))]
        offsets = await self._write(topic, messages, request.ByteSize())
        return PublishResponse(message_ids=map(str, offsets))

    async def _write(self, topic: str, messages: Sequence[Outgoing], size: int) -> range:
        if self._bytes + size > max(self._most_bytes, size):  # one is always taken, however large
            raise ResourceExhausted("more is published than can be written: slow down, and try again")
        self._bytes += size
        try:
            return await self._broker.publish(topic, messages)
        finally:
            self._bytes -= size

    def _described(self, info: TopicInfo) -> Any:
        topic = self._resources.topic(info)
        if topic.HasField("schema_settings"):
            self._schemas.settings_of(topic.schema_settings)
        return topic
