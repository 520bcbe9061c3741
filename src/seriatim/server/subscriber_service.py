"""The Subscriber service: subscriptions, snapshots and delivery."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from google.protobuf.empty_pb2 import Empty

from seriatim.engine.broker import Broker, SnapshotInfo
from seriatim.errors import InvalidArgument, NotFound, SeriatimError
from seriatim.server.consumers import ConsumerRegistry, check_seconds
from seriatim.server.ended_streams import Client, EndedStreams
from seriatim.server.grpc_status import AcksFailed
from seriatim.server.options import ServerOptions
from seriatim.server.paging import page, page_of_project
from seriatim.server.push_delivery import Pushers, push_config, require_pullable
from seriatim.server.resources import (
    SNAPSHOT_UPDATES,
    SUBSCRIPTION_UPDATES,
    Resources,
    retain,
    retained_by,
    snapshot_document,
)
from seriatim.server.streaming_pull import Stream, Write
from seriatim.server.unary_pull import Puller
from seriatim.wire.message_conversion import encode_message, encode_received
from seriatim.wire.resource_messages import apply_mask, is_exactly_once
from seriatim.wire.services import SUBSCRIBER
from seriatim.wire.times import seconds_of

MAX_PULL_WAIT_S = 60.0
"""An empty pull is answered after this long, or shortly before its caller's deadline."""

MIN_PULL_WAIT_S = 0.1
"""How long a pull with return_immediately waits: messages may have to be read from disk."""

PULL_DEADLINE_SHARE = 0.9
"""The share of a caller's deadline that a pull may use."""

MAX_PULL_MESSAGES = 1000
"""The most that one pull returns, whatever it asks for."""


_SNAPSHOT_FIELDS = {"labels": "resource", "expire_time": "expires"}


class SubscriberService:
    """One method for each of the API's, by the same name."""

    def __init__(self, broker: Broker, resources: Resources, options: ServerOptions) -> None:
        self._broker = broker
        self._resources = resources
        self._options = options
        self._names = resources.subscriptions
        self._locks = resources.subscription_locks
        self._members = ConsumerRegistry(broker)
        self._pullers: dict[str, Puller] = {}
        self._streams: set[Stream] = set()
        self._ended_streams = EndedStreams(self._members, options.max_streams_per_client)
        self._ended: SeriatimError | None = None
        self._pushers = Pushers(broker, self._members, self._names)

    async def start(self) -> None:
        """Start push delivery."""
        await self._pushers.start()

    async def close(self) -> None:
        """Release connections, after ``end`` and once no call is in progress."""
        await self._pushers.close()

    def end(self, error: SeriatimError) -> None:
        """End all streams and waiting pulls, including those that arrive later."""
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
        async with self._locks.hold(name):
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
        async with self._locks.hold(name):
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
        async with self._locks.hold(name):
            info = await self._broker.describe_subscription(name)
            await self._broker.delete_subscription(name)
            self._drop_puller(name)
            await self._retain(info.topic, 0.0, retained_by(info.options.resource))
            await self._pushers.follow(name)
        return Empty()

    async def _retain(self, topic: str, seconds: float, formerly: float) -> None:
        async with self._resources.topic_locks.hold(topic):
            await retain(self._broker, topic, seconds, formerly)

    # -- messages -------------------------------------------------------------------------------------------------------

    async def pull(self, request: Any, time_left: float | None) -> bytes:
        """A serialized PullResponse."""
        name = self._names.in_store(request.subscription)
        if request.max_messages < 1:
            raise InvalidArgument(f"max_messages must be 1 or more, not {request.max_messages}")
        if self._ended is not None:
            raise self._ended
        options = await require_pullable(self._broker, name)
        longest = MIN_PULL_WAIT_S if request.return_immediately else MAX_PULL_WAIT_S
        wait = min(longest, PULL_DEADLINE_SHARE * (time_left or MAX_PULL_WAIT_S))
        puller = self._pullers.get(name)
        if puller is None or puller.error is not None:
            self._drop_puller(name)
            puller = self._pullers[name] = Puller(self._members, name)
        counts_attempts = options.dead_letter_topic is not None
        return b"".join(
            encode_received(
                puller.member.ack_id(one.lease),
                encode_message(one.id, one.record, self._names),
                one.lease.attempt if counts_attempts else 0,
            )
            for one in await puller.pull(min(request.max_messages, MAX_PULL_MESSAGES), wait)
        )

    def _drop_puller(self, name: str) -> None:
        if (puller := self._pullers.pop(name, None)) is not None:
            self._members.leave(puller.member)

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
            if failures := await self._members.ack_exactly(name, request.ack_ids):
                raise AcksFailed(failures)
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
        if failures and is_exactly_once(options.resource):
            raise AcksFailed(failures)
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
            raise InvalidArgument("seek needs a target: a time or a snapshot")
        return SUBSCRIBER["Seek"].response()

    async def _find_snapshot(self, resource: str) -> SnapshotInfo:
        name = self._resources.snapshots.in_store(resource)
        for info in await self._broker.list_snapshots():
            if info.name == name:
                return info
        raise NotFound(f"snapshot {resource!r} does not exist, or has expired")
