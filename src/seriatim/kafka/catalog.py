"""Topics and subscriptions on Kafka: which exist, and their options.

A subscription is a consumer group of the same name, and a state topic (``state.py``) whose first partition holds its options.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from seriatim.core.lanes.types import Keep
from seriatim.engine.broker import Broker, SubscriptionInfo, TopicInfo
from seriatim.engine.name_index import NameIndex
from seriatim.engine.options import SubscriptionOptions, TopicOptions, patched
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, NotSupported, StoreFailed
from seriatim.kafka.address import Address, error_of, no_connection
from seriatim.kafka.publishing import CONFIGURATION, KafkaProducer
from seriatim.kafka.state import OPTIONS, PREFIX, PartitionMemory, StateRecord, state_topic, subscription_of

T = TypeVar("T")

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

CONNECT_TIMEOUT_S, TIMEOUT_S = 8.0, 30.0
RETRY_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


_Described = tuple[SubscriptionInfo, int]
"""A subscription, and how many partitions its topic had when it was created; 0: not known."""


class Flaw(NamedTuple):
    """A problem, and how to fix it."""

    what: str
    advice: str
    is_failure: bool = True


class Catalog(Broker):
    """The part of the broker that manages topics and subscriptions."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._producer = KafkaProducer(address)
        self._admin = AdminClient(address.config(log_level=2))  # the producer's connections already log errors
        self._known: set[str] = set()  # topics known to exist
        self._has_connected = False

    async def close(self) -> None:
        """End the library's threads now, not at garbage collection."""
        await self._producer.close()
        del self._admin

    async def require_connection(self) -> None:
        """Raise Unauthenticated or StoreFailed unless Kafka has answered, or does so within ``CONNECT_TIMEOUT_S``."""
        if self._has_connected:
            return
        try:
            await asyncio.to_thread(self._admin.list_topics, timeout=CONNECT_TIMEOUT_S)
        except KafkaException as failure:
            raise no_connection(self._address, self._producer.trouble or failure.args[0]) from None
        self._has_connected, self._producer.trouble = True, None

    # -- topics ---------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo:
        options = options or TopicOptions()
        _check_topic_is_a_users(name)
        if (options.dedup_window, options.dedup_max_ids) != (None, None):
            raise NotSupported(
                "Kafka does not know messages by an id of yours: leave dedup_window and dedup_max_ids out"
            )
        if options.retain_settled not in (0.0, None) or options.resource is not None:
            raise NotSupported("Kafka keeps messages by their age, whoever has settled them: give retention alone")
        keep = "-1" if options.retention is None else str(int(options.retention * 1000))
        await self._create(name, self._address.partitions, {"retention.ms": keep})
        return TopicInfo(name, options, None, None)

    async def _create(self, name: str, partitions: int | None, config: dict[str, str]) -> None:
        await self.require_connection()
        new = NewTopic(name, partitions or -1, self._address.replication or -1, config=config)
        what = f"topic {name!r} can't be created"
        await _result(self._admin.create_topics([new], operation_timeout=TIMEOUT_S)[name], what)
        deadline = time.monotonic() + TIMEOUT_S
        while True:  # a topic is created before every broker knows it
            try:
                await self.partitions(name)
            except NotFound:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def delete_topic(self, name: str) -> None:
        _check_topic_is_a_users(name)
        for info in await self.list_subscriptions(topic=name):
            await self.delete_subscription(info.name)
        await self._delete(name)

    async def _delete(self, name: str) -> None:
        self._known.discard(name)
        await _result(self._admin.delete_topics([name], operation_timeout=TIMEOUT_S)[name], f"topic {name!r}")

    async def describe_topic(self, name: str) -> TopicInfo:
        await self.partitions(name)
        kept = int((await self._config(name))["retention.ms"].value)
        return TopicInfo(name, TopicOptions(retention=None if kept < 0 else kept / 1000), None, None)

    async def _config(self, topic: str) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return await _result(self._admin.describe_configs([resource])[resource], f"topic {topic!r}")

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        names = NameIndex(name for name in await self._topic_names() if not name.startswith((PREFIX, "__")))
        return [TopicInfo(name, TopicOptions(), None, None) for name in names.page(prefix, after, limit)]

    async def _topic_names(self) -> list[str]:
        await self.require_connection()
        return list((await blocking(lambda: self._admin.list_topics(timeout=TIMEOUT_S), "topics")).topics)

    async def partitions(self, name: str) -> int:
        """The number of partitions of a topic. Raises NotFound if there is none."""
        _check_name("topic", name)
        await self.require_connection()
        described = self._admin.describe_topics(TopicCollection([name]))[name]
        try:
            found = len((await _result(described, f"topic {name!r}")).partitions)
        except NotFound:
            raise NotFound(f"topic {name!r} does not exist") from None
        self._known.add(name)
        return found

    async def check_topic(self, name: str) -> None:
        """Raises NotFound for a missing topic: otherwise a broker may create it on the first write."""
        if name not in self._known:
            await self.partitions(name)

    # -- subscriptions --------------------------------------------------------------------------------------------------

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo:
        options = options or SubscriptionOptions()
        _check_name("subscription", name)
        _check_options(options)
        partitions = await self.partitions(topic)
        if options.dead_letter_topic is not None:
            await self.partitions(options.dead_letter_topic)
        try:
            await self._create(state_topic(name), partitions, STATE_TOPIC)
        except AlreadyExists:
            if await self._read_options([name]):
                raise AlreadyExists(f"subscription {name!r} exists") from None
            # Its creation was interrupted: complete it.
        if options.dead_letter_topic is None:
            with suppress(AlreadyExists):
                await self._create(dead_letter_topic(name, options), None, DEAD_LETTER_TOPIC)
        await self._begin_at_end(name, topic, partitions)
        info = SubscriptionInfo(name, topic, options)
        await self._save(info, partitions)
        return info

    async def _begin_at_end(self, group: str, topic: str, partitions: int) -> None:
        """A subscription gets messages published from now on."""
        wanted = {TopicPartition(topic, number): _LATEST for number in range(partitions)}
        found = self._admin.list_offsets(wanted)
        ends = [
            TopicPartition(topic, place.partition, (await _result(future, f"topic {topic!r}")).offset)
            for place, future in found.items()
        ]
        what = f"subscription {group!r} can't begin at the end of its topic"
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            moved = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, ends)])
            errors = [place.error for place in (await _result(moved[group], what)).topic_partitions if place.error]
            if not errors:
                return
            if errors[0].code() not in _PASSING or time.monotonic() > deadline:
                raise error_of(errors[0], what)
            await asyncio.sleep(RETRY_S)

    async def _save(self, info: SubscriptionInfo, partitions: int) -> None:
        said = {"topic": info.topic, "options": info.options.to_json(), "partitions": partitions}
        key, value = StateRecord(OPTIONS, said).encoded()
        await self._producer.write(state_topic(info.name), value, key, partition=0)

    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        """Members are notified. A new window or release policy applies when a partition is next assigned."""
        before, partitions = await self._described(name)
        after = replace(before, options=patched(before.options, options, fields))
        _check_options(after.options)
        if after.options.filter != before.options.filter:
            raise FailedPrecondition("the filter of a subscription can't be changed")
        await self._save(after, partitions)

    async def delete_subscription(self, name: str) -> None:
        await self.describe_subscription(name)
        with suppress(NotFound):  # it never committed anything
            await _result(self._admin.delete_consumer_groups([name])[name], f"subscription {name!r} is in use")
        await self._delete(state_topic(name))

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        return (await self._described(name))[0]

    async def _described(self, name: str) -> _Described:
        _check_name("subscription", name)
        found = await self._read_options([name])
        if not found:
            raise NotFound(f"subscription {name!r} does not exist")
        return found[0]

    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        known = {info.name: info for info, _ in await self._all_described() if topic in (None, info.topic)}
        return [known[name] for name in NameIndex(known).page(prefix, after, limit)]

    async def _all_described(self) -> list[_Described]:
        names = [name for known in await self._topic_names() if (name := subscription_of(known)) is not None]
        return await self._read_options(names)

    async def _read_options(self, names: Iterable[str]) -> list[_Described]:
        found: dict[str, _Described] = {}
        places = [TopicPartition(state_topic(name), 0) for name in names]
        for (topic, _), record in await self._read_state(places):
            name = subscription_of(topic)
            if record.key == OPTIONS and (value := record.value) is not None and name is not None:
                info = SubscriptionInfo(name, value["topic"], SubscriptionOptions.from_json(value["options"]))
                found[name] = info, value.get("partitions", 0)
        return [found[name] for name in sorted(found)]

    # -- state topics ---------------------------------------------------------------------------------------------------

    async def _read_state(self, places: Sequence[TopicPartition]) -> list[tuple[tuple[str, int], StateRecord]]:
        """All records of these partitions of state topics, with topic and partition."""

        def call() -> list[tuple[tuple[str, int], StateRecord]]:
            consumer = Consumer(self._address.config(**READER))
            try:
                return list(_read_to_end(consumer, places))
            finally:
                consumer.close()

        await self.require_connection()
        return await blocking(call, "the state of subscriptions") if places else []

    async def memories(self, subscription: str) -> defaultdict[int, PartitionMemory]:
        """What is remembered of the partitions of a subscription."""
        topic, memories = state_topic(subscription), defaultdict[int, PartitionMemory](PartitionMemory)
        places = [TopicPartition(topic, number) for number in range(await self.partitions(topic))]
        for (_, number), record in await self._read_state(places):
            memories[number].take(record)
        return memories

    async def members(self, subscription: str) -> list[tuple[str, list[int]]]:
        """The members of a subscription's group, described, and the partitions of each."""
        described = self._admin.describe_consumer_groups([subscription])[subscription]
        try:
            found = (await _result(described, f"subscription {subscription!r}")).members
        except NotFound:  # it has no members yet
            return []
        return [(_named(one), [place.partition for place in one.assignment.topic_partitions]) for one in found]

    async def flaws(self) -> AsyncIterator[Flaw]:
        """Problems of the subscriptions, and how to fix them: for ``store doctor``."""
        for info, partitions in await self._all_described():
            where, topic, letters = (
                f"subscription {info.name!r}",
                info.topic,
                dead_letter_topic(info.name, info.options),
            )
            if not (now := await self._partitions_or_none(topic)):
                yield Flaw(f"{where}: topic {topic!r} does not exist", "create the topic, or delete the subscription")
                continue
            if partitions not in (0, now):
                yield Flaw(
                    f"{where}: topic {topic!r} had {partitions} partitions when it was subscribed to, and has {now}",
                    "keys have moved: messages from before and after the change may be handled out of order",
                    is_failure=False,
                )
            if not await self._partitions_or_none(letters):
                yield Flaw(f"{where}: the dead-letter topic {letters!r} does not exist", "create it: dead letters wait")
            policy = (await self._config(state_topic(info.name)))["cleanup.policy"].value
            if policy != "compact":
                yield Flaw(
                    f"{where}: topic {state_topic(info.name)!r} is not compacted, but cleaned up by {policy!r}",
                    "set its cleanup.policy to compact: attempts, pauses and options are in it",
                )
            memories = await self.memories(info.name)
            if lost := sum(sum(memory.lost.values()) for memory in memories.values()):
                yield Flaw(
                    f"{where}: Kafka removed {lost} messages before they were finished",
                    "they are lost: give the topic a longer retention, or handle its messages faster",
                    is_failure=False,
                )

    async def _partitions_or_none(self, topic: str) -> int | None:
        try:
            return await self.partitions(topic)
        except NotFound:
            return None


def _named(member: Any) -> str:
    name = f" {member.group_instance_id!r}" if member.group_instance_id else ""
    return f"the member{name} at {member.host.removeprefix('/')}"


def _read_to_end(consumer: Consumer, places: Sequence[TopicPartition]) -> Iterator[tuple[tuple[str, int], StateRecord]]:
    """All records of the partitions that exist."""
    filled = {(place.topic, place.partition) for place in places if _holds_records(consumer, place)}
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in filled])
    deadline = time.monotonic() + TIMEOUT_S
    while filled:
        if time.monotonic() > deadline:
            raise StoreFailed("the state of subscriptions could not be read in time")
        for message in consumer.consume(1000, timeout=0.02):
            error, where = message.error(), (message.topic() or "", message.partition() or 0)
            if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
                filled.discard(where)
            elif error is None and (record := StateRecord.decoded(message.key(), message.value())):
                yield where, record


def _holds_records(consumer: Consumer, place: TopicPartition) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        except KafkaException as failure:
            if failure.args[0].code() in _MISSING:
                return False
            if failure.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return bool(high > low)


ANY_SIZE = {"max.message.bytes": str(CONFIGURATION["message.max.bytes"])}
"""What fits into the producer fits into a topic of ours: a dead letter has more headers than its message, for example."""
DEAD_LETTER_TOPIC = {"retention.ms": "-1", **ANY_SIZE}
STATE_TOPIC = {
    **ANY_SIZE,
    "cleanup.policy": "compact",
    # This is read at every assignment, so keep it small: compact old segments soon.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
READER = {
    "group.id": "seriatim-reader",  # required by the library; it never joins the group
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,  # at the end, wait only this long for more
}
# Errors of a broker that has just started, or has just become a leader.
_PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001


def dead_letter_topic(subscription: str, options: SubscriptionOptions) -> str:
    """The topic for dead letters of a subscription."""
    return options.dead_letter_topic or f"{PREFIX}{subscription}.dead-letters"


def _check_options(options: SubscriptionOptions) -> None:
    if options.keep is not Keep.ALL:
        raise NotSupported("a subscription on Kafka can't keep only the latest message of a key: compact its topic")
    if options.tenant_limit is not None:
        raise NotSupported("a subscription on Kafka has no limit for tenants: its partitions are handed out separately")


def _check_name(what: str, name: object) -> None:
    limit = 249 if what == "topic" else 200  # topics of a subscription have longer names
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", "..") or len(name) > limit:
        raise InvalidArgument(
            f"{name!r} can't be a {what} on Kafka: use 1 to {limit} letters, digits, '.', '_' and '-'"
        )


def _check_topic_is_a_users(name: str) -> None:
    _check_name("topic", name)
    for prefix, owner in ((PREFIX, "Seriatim's"), ("__", "Kafka's")):
        if name.startswith(prefix):
            raise InvalidArgument(f"topics that begin with {prefix!r} are {owner} own: choose another name")


async def _result(future: Future[T], what: str) -> T:
    try:
        return await asyncio.wrap_future(future)
    except KafkaException as failure:
        raise error_of(failure, what) from None


async def blocking(call: Callable[[], T], what: str) -> Any:
    try:
        return await asyncio.to_thread(call)
    except KafkaException as failure:
        raise error_of(failure, what) from None
