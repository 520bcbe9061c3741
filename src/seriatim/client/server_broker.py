"""A broker behind the Pub/Sub API: ``PubSub("pubsub://HOST:PORT/PROJECT")``.

Rules
    - Every method of ``Broker`` that the API offers works as it does elsewhere; the others raise NotSupported.
    - A call without an answer may have taken effect: no call is repeated automatically.
    - ``delete_topic`` leaves subscriptions what they have, because the API's does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from seriatim.client.channel import Address, Channel
from seriatim.client.server_stream import ServerAttachment
from seriatim.core.lanes.types import Keep, ReleaseAfter, RetryPolicy
from seriatim.core.publishing.dedup import DEDUP_ID
from seriatim.engine.broker import Attachment, Broker, Outgoing, SnapshotInfo, SubscriptionInfo, TopicInfo
from seriatim.engine.consumer import Consumer
from seriatim.engine.name_index import NameIndex
from seriatim.engine.options import DEFAULT_RETENTION_S, SubscriptionOptions, TopicOptions
from seriatim.errors import NotSupported, PermissionDenied
from seriatim.wire.names import KEEP_LABEL, WINDOW_LABEL, Names
from seriatim.wire.services import SUBSCRIBER, PubsubMessage, Subscription, Topic
from seriatim.wire.times import seconds_of, set_seconds

_CALLS = {
    "backup": "back up a store",
    "dead_letters": "list dead letters",
    "explain": "explain what a key waits for",
    "health": "show the health of a store",
    "metrics": "show metrics",
    "overview": "show an overview",
    "stats": "show statistics",
    "superseded": "list superseded messages",
}
"""What calls do whose names are not enough of a sentence."""

_CHANGEABLE = ("ack_deadline", "retry", "dead_letter_topic", "window", "message_ordering", "release", "keep")
"""The options that an update can name."""


class ServerBroker(Broker):
    """The ``Broker`` of a Pub/Sub server."""

    def __init__(self, address: Address) -> None:
        self._channel = Channel(address)
        self._project = f"projects/{address.project}"
        self._topics = Names("topics", address.project)
        self._subscriptions = Names("subscriptions", address.project)
        self._snapshots = Names("snapshots", address.project)
        self._attachments: list[ServerAttachment] = []

    def unsupported(self, verb: str) -> NotSupported:
        what = _CALLS.get(verb, verb.replace("_", " "))
        return NotSupported(
            f"the Pub/Sub API can't {what}: give the server an admin API with 'seriatim serve --console', or use its store "
            "instead"
        )

    async def require_connection(self) -> None:
        """Raise StoreFailed if the server can't be reached. Other calls wait for it, for a minute."""
        await self._channel.require_connection()

    async def admin_address(self) -> str | None:
        """The address of the server's admin API; None if it has none, or is another kind of server."""
        try:
            return (await self._channel.call("GetAdminAddress")).value or None
        except (NotSupported, PermissionDenied):
            return None

    async def close(self) -> None:
        for attachment in self._attachments:
            attachment.detach()
        try:
            await asyncio.gather(*(attachment.wait_closed() for attachment in self._attachments))
        finally:
            await self._channel.close()

    # -- topics ---------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo:
        topic = Topic(name=self._topics.of(name))
        if options is not None and not options.dedup_window is options.dedup_max_ids is None:
            raise NotSupported("the Pub/Sub API has no options for dedup ids: set them where the server's store is")
        if options is not None and options.retain_settled:
            set_seconds(topic.message_retention_duration, options.retain_settled)
        await self._channel.call("CreateTopic", topic)
        return TopicInfo(name, options or TopicOptions(), None, None)

    async def describe_topic(self, name: str) -> TopicInfo:
        """Both retentions are the topic's ``message_retention_duration``; it has no offsets."""
        found = await self._channel.call("GetTopic", topic=self._topics.of(name))
        if not found.HasField("message_retention_duration"):
            return TopicInfo(name, TopicOptions(), None, None)
        kept = seconds_of(found.message_retention_duration)
        return TopicInfo(name, TopicOptions(kept, kept), None, None)

    async def delete_topic(self, name: str) -> None:
        await self._channel.call("DeleteTopic", topic=self._topics.of(name))

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        found = NameIndex(self._topics.in_store(topic.name) for topic in await self._list_all("ListTopics", "topics"))
        return [TopicInfo(name, TopicOptions(resource=None), None, None) for name in found.page(prefix, after, limit)]

    def require_topic(self, name: str) -> None:
        """Unknown before the server answers: a publish to a missing topic fails."""

    # -- subscriptions --------------------------------------------------------------------------------------------------

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo:
        wanted = self._message(name, options or SubscriptionOptions())
        wanted.topic = self._topics.of(topic)
        return self._info(await self._channel.call("CreateSubscription", wanted))

    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        """Order can't be turned on or off later: the server refuses that.

        ``window`` and ``keep`` are labels, and the API replaces all labels at once: concurrent changes of labels may be
        overwritten.
        """
        names = _CHANGEABLE if fields is None else fields
        if unknown := set(names) - set(_CHANGEABLE):
            raise NotSupported(f"the Pub/Sub API has no option {', '.join(sorted(unknown))}")
        wanted = self._message(name, options)
        paths = _plain_paths(options, names)
        if options.retry.max_attempts is not None:
            wanted.dead_letter_policy.max_delivery_attempts = options.retry.max_attempts
        if not {"window", "keep", "message_ordering"}.isdisjoint(names):
            before = await self._channel.call("GetSubscription", subscription=self._subscriptions.of(name))
            paths += _paths_from(before, wanted, names)
        if paths:
            await self._channel.call("UpdateSubscription", subscription=wanted, update_mask={"paths": paths})

    async def delete_subscription(self, name: str) -> None:
        await self._channel.call("DeleteSubscription", subscription=self._subscriptions.of(name))

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        return self._info(await self._channel.call("GetSubscription", subscription=self._subscriptions.of(name)))

    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        found = [self._info(message) for message in await self._list_all("ListSubscriptions", "subscriptions")]
        known = {info.name: info for info in found if topic in {None, info.topic}}
        return [known[name] for name in NameIndex(known).page(prefix, after, limit)]

    def _message(self, name: str, options: SubscriptionOptions) -> Any:
        if options.release is not ReleaseAfter.DURABLE:
            raise NotSupported("the Pub/Sub API has no option release: it is always 'durable'")
        if options.tenant_limit is not None:
            raise NotSupported("the Pub/Sub API has no option tenant_limit: set it in the process that owns the store")
        message = Subscription(
            name=self._subscriptions.of(name),
            enable_message_ordering=options.message_ordering,
            ack_deadline_seconds=ceil(options.ack_deadline),
            filter=options.filter or "",
        )
        retry = options.retry
        if retry.min_backoff:
            set_seconds(message.retry_policy.minimum_backoff, retry.min_backoff)
            set_seconds(message.retry_policy.maximum_backoff, retry.max_backoff)
        if options.dead_letter_topic is not None:
            message.dead_letter_policy.dead_letter_topic = self._topics.of(options.dead_letter_topic)
            message.dead_letter_policy.max_delivery_attempts = retry.max_attempts or 0
        # Exactly-once delivery is what makes the server say that an ack came too late; it goes with a window of 1 only.
        message.enable_exactly_once_delivery = options.window == 1
        if options.window > 1:
            message.labels[WINDOW_LABEL] = str(options.window)
        if options.keep is not Keep.ALL:
            message.labels[KEEP_LABEL] = str(options.keep)
        return message

    def _info(self, found: Any) -> SubscriptionInfo:
        retry, dead, backoff = RetryPolicy.immediate(), found.dead_letter_policy, found.retry_policy
        if found.HasField("retry_policy"):
            retry = RetryPolicy(seconds_of(backoff.minimum_backoff), seconds_of(backoff.maximum_backoff))
        if found.HasField("dead_letter_policy"):
            retry = replace(retry, max_attempts=dead.max_delivery_attempts)
        options = SubscriptionOptions(
            message_ordering=found.enable_message_ordering,
            ack_deadline=float(found.ack_deadline_seconds),
            retry=retry,
            window=int(found.labels.get(WINDOW_LABEL, "1")),
            keep=Keep(found.labels.get(KEEP_LABEL, Keep.ALL)),
            dead_letter_topic=self._short(dead.dead_letter_topic) if dead.dead_letter_topic else None,
            filter=found.filter or None,
            detached=found.detached,
        )
        return SubscriptionInfo(self._subscriptions.in_store(found.name), self._short(found.topic), options)

    def _short(self, topic: str) -> str:
        return self._topics.in_store(topic) if "/" in topic else topic  # one that was deleted has no resource name

    # -- messages -------------------------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        return asyncio.ensure_future(self._publish(topic, messages))

    async def _publish(self, topic: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        if any(message.delay for message in messages):
            raise NotSupported("the Pub/Sub API can't delay messages: publish later")
        contents = [
            PubsubMessage(
                data=data,
                ordering_key=key or "",
                attributes=attributes if dedup_id is None else {**(attributes or {}), DEDUP_ID: dedup_id},
            )
            for key, data, attributes, _, dedup_id in messages
        ]
        answer = await self._channel.call("Publish", topic=self._topics.of(topic), messages=contents)
        return list(answer.message_ids)

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """A subscription that does not exist is reported to the consumer."""
        if consumer.batch > 1:
            raise NotSupported(
                "the Pub/Sub API has one lease per message, and none for a batch of a key: use across_keys=True"
            )
        attachment = ServerAttachment(self._channel, self._subscriptions.of(subscription), consumer)
        self._attachments = [known for known in self._attachments if not known.is_closed] + [attachment]
        return attachment

    # -- time travel ----------------------------------------------------------------------------------------------------

    async def seek_to_time(self, subscription: str, time: float) -> None:
        wanted = SUBSCRIBER["Seek"].request(subscription=self._subscriptions.of(subscription))
        set_seconds(wanted.time, time)
        await self._channel.call("Seek", wanted)

    async def seek_to_snapshot(self, subscription: str, snapshot: str) -> None:
        names = {"subscription": self._subscriptions.of(subscription), "snapshot": self._snapshots.of(snapshot)}
        await self._channel.call("Seek", **names)

    async def create_snapshot(
        self, subscription: str, name: str, *, lasts: float = DEFAULT_RETENTION_S, resource: str | None = None
    ) -> SnapshotInfo:
        """Its lifetime is set by the server."""
        if lasts != DEFAULT_RETENTION_S or resource is not None:
            raise NotSupported("the Pub/Sub API has no option for a snapshot's lifetime: leave lasts out")
        names = {"name": self._snapshots.of(name), "subscription": self._subscriptions.of(subscription)}
        return self._snapshot_info(await self._channel.call("CreateSnapshot", **names))

    async def delete_snapshot(self, name: str) -> None:
        await self._channel.call("DeleteSnapshot", snapshot=self._snapshots.of(name))

    async def list_snapshots(self) -> list[SnapshotInfo]:
        return [self._snapshot_info(found) for found in await self._list_all("ListSnapshots", "snapshots")]

    def _snapshot_info(self, found: Any) -> SnapshotInfo:
        name, topic = self._snapshots.in_store(found.name), self._short(found.topic)
        return SnapshotInfo(name, topic, seconds_of(found.expire_time))

    # -- how ------------------------------------------------------------------------------------------------------------

    async def _list_all(self, method: str, field: str) -> list[Any]:
        """Every page of a list."""
        found: list[Any] = []
        token = ""
        while True:
            page = await self._channel.call(method, project=self._project, page_token=token)
            found += getattr(page, field)
            token = page.next_page_token
            if not token:
                return found


def _plain_paths(options: SubscriptionOptions, names: Sequence[str]) -> list[str]:
    """The fields of the API for options that can be changed without reading the current ones."""
    paths = []
    if "ack_deadline" in names:
        paths.append("ack_deadline_seconds")
    if "retry" in names:
        paths.append("retry_policy")
    if "dead_letter_topic" in names:
        kept = options.dead_letter_topic is not None
        paths.append("dead_letter_policy.dead_letter_topic" if kept else "dead_letter_policy")
    if "retry" in names and options.retry.max_attempts is not None and "dead_letter_policy" not in paths:
        paths.append("dead_letter_policy.max_delivery_attempts")
    return paths


def _paths_from(before: Any, wanted: Any, names: Sequence[str]) -> list[str]:
    """The same for options that depend on the current ones; other labels are kept."""
    paths = []
    if "message_ordering" in names and wanted.enable_message_ordering != before.enable_message_ordering:
        paths.append("enable_message_ordering")
    ours = {label for name, label in (("window", WINDOW_LABEL), ("keep", KEEP_LABEL)) if name in names}
    if ours:
        paths.append("labels")
        for label, value in before.labels.items():
            if label not in ours:
                wanted.labels[label] = value
        for label in {WINDOW_LABEL, KEEP_LABEL} - ours - before.labels.keys():
            wanted.labels.pop(label, None)
    if "window" in names:
        paths.append("enable_exactly_once_delivery")
    return paths


def open_server(url: str) -> ServerBroker:
    """The broker at a ``pubsub://`` address. It connects when it is first asked."""
    return ServerBroker(Address.parse(url))
