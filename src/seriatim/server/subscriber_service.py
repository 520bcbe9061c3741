"""The Subscriber service: subscriptions, snapshots, and messages that go out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from google.protobuf.empty_pb2 import Empty

from seriatim.engine.broker import Broker, SnapshotInfo
from seriatim.engine.consumer import Delivered
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, NotFound, SeriatimError
from seriatim.server.consumers import Failures, Members, check_seconds
from seriatim.server.ended import Client, EndedStreams
from seriatim.server.options import ServerOptions
from seriatim.server.paging import page, page_of_project
from seriatim.server.pulling import Puller
from seriatim.server.pushing import Pushers, push_config, require_pullable
from seriatim.server.resources import (
    SNAPSHOT_UPDATES,
    SUBSCRIPTION_UPDATES,
    Resources,
    retain,
    retained_by,
    snapshot_document,
)
from seriatim.server.statuses import AcksFailed
from seriatim.server.streams import Stream, Write
from seriatim.wire.documents import is_exactly_once
from seriatim.wire.masks import apply_mask
from seriatim.wire.messages import fill
from seriatim.wire.services import SUBSCRIBER, PullResponse
from seriatim.wire.times import seconds_of

LONGEST_PULL = 60.0
"""A pull for which nothing comes is answered after so many seconds, or shortly before its caller gives up."""

SHORTEST_PULL = 0.1
"""A pull that may not wait has so many seconds: what is there may have to be read from the disk."""

ENOUGH_TIME = 0.9
"""The share of a caller's deadline that a pull may use."""

MOST_AT_ONCE = 1000
"""What a pull gives at most, whatever was asked for."""


_SNAPSHOT_FIELDS = {"labels": "resource", "expire_time": "expires"}


class SubscriberService:
    """One method for each of the API's, by the same name."""

    def __init__(self, broker: Broker, resources: Resources, options: ServerOptions) -> None:
        self._broker = broker
        self._resources = resources
        self._options = options
        self._names = resources.subscriptions
        self._turns = resources.subscription_turns
        self._members = Members(broker)
        self._pullers: dict[str, Puller] = {}
        self._streams: set[Stream] = set()
        self._ended_streams = EndedStreams(self._members, options.max_streams_per_client)
        self._ended: SeriatimError | None = None
        self._pushers = Pushers(broker, self._members, self._names)

    async def start(self) -> None:
        """Push what is to be pushed."""
        await self._pushers.start()

    async def close(self) -> None:
        """After ``end``, when no call is under way any more."""
        await self._pushers.close()

    def end(self, error: SeriatimError) -> None:
        """Let every stream end, also those that come now, and every pull that waits."""
        self._ended = error
        for stream in self._streams:
            stream.end(error)
        for puller in self._pullers.values():
            puller.fail(error)
        self._ended_streams.stop()
        self._pushers.stop()

    # -- subscriptions --------------------------------------------------------------------------------------------------

    async def create_subscription(self, subscription: Any) -> Any:
        name, topic = self._names.in_store(subscription.name), self._resources.topics.in_store(subscription.topic)
        options = self._resources.subscription_options(subscription)
        async with self._turns.of(name):
            info = await self._broker.create_subscription(topic, name, options)
            await self._retain(topic, retained_by(options.resource), 0.0)
            await self._pushers.follow(name)
        return self._resources.subscription(info)

    async def get_subscription(self, request: Any) -> Any:
        name = self._names.in_store(request.subscription)
        return self._resources.subscription(await self._broker.describe_subscription(name))

    async def update_subscription(self, request: Any) -> Any:
        return await self._update(request.subscription, request.update_mask.paths)

    async def modify_push_config(self, request: Any) -> Any:
        wanted = SUBSCRIBER["CreateSubscription"].request(name=request.subscription, push_config=request.push_config)
        await self._update(wanted, ["push_config"])
        return Empty()

    async def _update(self, wanted: Any, paths: Sequence[str]) -> Any:
        name = self._names.in_store(wanted.name)
        async with self._turns.of(name):
            return await self._update_in_turn(name, wanted, paths)

    async def _update_in_turn(self, name: str, wanted: Any, paths: Sequence[str]) -> Any:
        before = await self._broker.describe_subscription(name)
        subscription = self._resources.subscription(before)
        apply_mask(subscription, wanted, paths, SUBSCRIPTION_UPDATES)
        options, names = self._resources.changed_options(subscription, paths)
        await self._broker.update_subscription(name, options, names)
        await self._retain(before.topic, retained_by(options.resource), retained_by(before.options.resource))
        if push_config(before.options).push_endpoint or subscription.push_config.push_endpoint:
            await self._pushers.follow(name)
        return self._resources.subscription(await self._broker.describe_subscription(name))

    async def list_subscriptions(self, request: Any) -> Any:
        infos, token = await page_of_project(self._names, request.project, request, self._broker.list_subscriptions)
        found = [self._resources.subscription(info) for info in infos]
        return SUBSCRIBER["ListSubscriptions"].response(subscriptions=found, next_page_token=token)

    async def delete_subscription(self, request: Any) -> Any:
        name = self._names.in_store(request.subscription)
        async with self._turns.of(name):
            info = await self._broker.describe_subscription(name)
            await self._broker.delete_subscription(name)
            self._drop_puller(name)
            await self._retain(info.topic, 0.0, retained_by(info.options.resource))
            await self._pushers.follow(name)
        return Empty()

    async def _retain(self, topic: str, seconds: float, formerly: float) -> None:
        async with self._resources.topic_turns.of(topic):
            await retain(self._broker, topic, seconds, formerly)

    # -- messages -------------------------------------------------------------------------------------------------------

    async def pull(self, request: Any, time_left: float | None) -> Any:
        name = self._names.in_store(request.subscription)
        if request.max_messages < 1:
            raise InvalidArgument(f"max_messages must be 1 or more, not {request.max_messages}")
        if self._ended is not None:
            raise self._ended
        options = await require_pullable(self._broker, name)
        longest = SHORTEST_PULL if request.return_immediately else LONGEST_PULL
        wait = min(longest, ENOUGH_TIME * (time_left or LONGEST_PULL))
        puller = self._puller(name)
        delivered = await puller.pull(min(request.max_messages, MOST_AT_ONCE), wait)
        return self._pulled(puller, delivered, options)

    def _puller(self, name: str) -> Puller:
        puller = self._pullers.get(name)
        if puller is not None and puller.error is not None:
            self._drop_puller(name)
            puller = None
        if puller is None:
            puller = self._pullers[name] = Puller(self._members, name)
        return puller

    def _drop_puller(self, name: str) -> None:
        if (puller := self._pullers.pop(name, None)) is not None:
            self._members.leave(puller.member)

    def _pulled(self, puller: Puller, delivered: Sequence[Delivered], options: SubscriptionOptions) -> Any:
        response = PullResponse()
        for lease, record in delivered:
            received = response.received_messages.add(ack_id=puller.member.ack_id(lease))
            fill(received.message, record, self._names)
            if options.dead_letter_topic is not None:
                received.delivery_attempt = lease.attempt
        return response

    async def streaming_pull(self, first: Any, requests: AsyncIterator[Any], write: Write, client: Client) -> None:
        if self._ended is not None:
            raise self._ended
        stream = Stream(self._broker, self._members, self._resources, self._options, first)
        self._streams.add(stream)
        try:
            await stream.run(requests, write, partial(self._ended_streams.add, client=client))
        finally:
            self._streams.discard(stream)

    async def acknowledge(self, request: Any) -> Any:
        name = self._names.in_store(request.subscription)
        options = (await self._broker.describe_subscription(name)).options
        if is_exactly_once(options.resource):
            _require_all(await self._members.ack_exactly(name, request.ack_ids))
        elif options.window == 1:
            await self._members.ack_durably(name, request.ack_ids)
        else:
            self._members.ack(name, request.ack_ids)
        return Empty()

    async def modify_ack_deadline(self, request: Any) -> Any:
        name = self._names.in_store(request.subscription)
        check_seconds(request.ack_deadline_seconds)
        options = (await self._broker.describe_subscription(name)).options
        failures = self._members.modify(name, request.ack_ids, request.ack_deadline_seconds)
        if is_exactly_once(options.resource):
            _require_all(failures)
        return Empty()

    # -- snapshots ------------------------------------------------------------------------------------------------------

    async def create_snapshot(self, request: Any) -> Any:
        subscription = self._names.in_store(request.subscription)
        project = self._names.of(subscription).partition("/subscriptions/")[0]
        resource = request.name or f"{project}/snapshots/snapshot-{uuid.uuid4().hex}"
        name, document = self._resources.snapshots.in_store(resource), snapshot_document(request.labels)
        return self._resources.snapshot(await self._broker.create_snapshot(subscription, name, resource=document))

    async def get_snapshot(self, request: Any) -> Any:
        return self._resources.snapshot(await self._find_snapshot(request.snapshot))

    async def update_snapshot(self, request: Any) -> Any:
        info = await self._find_snapshot(request.snapshot.name)
        snapshot, paths = self._resources.snapshot(info), request.update_mask.paths
        apply_mask(snapshot, request.snapshot, paths, SNAPSHOT_UPDATES)
        expires, document = seconds_of(snapshot.expire_time), snapshot_document(snapshot.labels)
        fields = sorted({_SNAPSHOT_FIELDS[path.partition(".")[0]] for path in paths})
        info = await self._broker.update_snapshot(info.name, expires=expires, resource=document, fields=fields)
        return self._resources.snapshot(info)

    async def list_snapshots(self, request: Any) -> Any:
        known = {info.name: info for info in await self._broker.list_snapshots()}
        names = self._resources.snapshots
        found, token = page(names.listed(request.project, known), request, names.of)
        snapshots = [self._resources.snapshot(known[name]) for name in found]
        return SUBSCRIBER["ListSnapshots"].response(snapshots=snapshots, next_page_token=token)

    async def delete_snapshot(self, request: Any) -> Any:
        await self._broker.delete_snapshot(self._resources.snapshots.in_store(request.snapshot))
        return Empty()

    async def seek(self, request: Any) -> Any:
        name = self._names.in_store(request.subscription)
        target = request.WhichOneof("target")
        if target == "time":
            await self._broker.seek_to_time(name, max(0.0, seconds_of(request.time)))
        elif target == "snapshot":
            await self._broker.seek_to_snapshot(name, self._resources.snapshots.in_store(request.snapshot))
        else:
            raise InvalidArgument("say where to seek: a time or a snapshot")
        return SUBSCRIBER["Seek"].response()

    async def _find_snapshot(self, resource: str) -> SnapshotInfo:
        name = self._resources.snapshots.in_store(resource)
        for info in await self._broker.list_snapshots():
            if info.name == name:
                return info
        raise NotFound(f"snapshot {resource!r} does not exist, or has expired")


def _require_all(failures: Failures) -> None:
    if failures:
        raise AcksFailed(failures)
