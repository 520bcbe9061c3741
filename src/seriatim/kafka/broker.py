"""The broker of ``kafka://`` addresses.

Rules
    - Methods of ``Broker`` that Kafka can support work as elsewhere; differences are documented. The others are refused
      with a reason (``REFUSED``).
    - Order holds per key as long as the number of partitions stays the same: a change moves keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from uuid import uuid4

from confluent_kafka import KafkaException

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.types import Lease
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import MAX_INTEGER, one_of, require_whole, shown
from seriatim.engine.broker import (
    Attachment,
    DeadLetter,
    DeadLetterGroup,
    Explanation,
    KeyInfo,
    KeyOrder,
    KeyState,
    OnDurable,
    Outgoing,
    PeekedMessage,
    SubscriptionInfo,
    check_outgoing,
)
from seriatim.engine.consumer import Consumer
from seriatim.engine.dead_letters import group_of
from seriatim.engine.metrics import CommitTimes, Metrics, SubscriptionStats
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    NotSupported,
    RedriveRefused,
    SeriatimError,
    StaleLease,
)
from seriatim.kafka.address import Address, error_of
from seriatim.kafka.backlog import MAX_READ, RANKS, Backlog, Situation, explained, info_of, peeked, seen_here
from seriatim.kafka.catalog import READER, Catalog, blocking, dead_letter_topic
from seriatim.kafka.group import ATTEMPTS, ERROR, OURS, SUBSCRIPTION, Group
from seriatim.kafka.publishing import KafkaPublisher
from seriatim.kafka.records import RESERVED, headers_of, key_bytes, partition_of, place_of
from seriatim.kafka.records import message_id as id_at
from seriatim.kafka.state import Command, PartitionMemory, StateRecord, command_record, gone_record, state_topic

T = TypeVar("T")
Answer = Callable[..., None]

EMPTY_POLL_S = 0.2
"""How often it is looked whether a subscription is empty."""


def open_kafka(url: str) -> KafkaBroker:
    """The broker at a ``kafka://`` address. It connects on the first call."""
    try:
        return KafkaBroker(Address.parse(url))
    except KafkaException as failure:
        raise InvalidArgument(f"an option of the kafka address is wrong: {failure.args[0].str()}") from None


_OWN_STORE = "use a store of Seriatim's own where you need them"
REFUSED = {
    "seek": "seeking is not available on Kafka: stop the consumers and use kafka-consumer-groups --reset-offsets",
    "snapshot": f"snapshots are not available on Kafka: the group's commits are all that is kept; {_OWN_STORE}",
    "reader": f"registered readers are not available on Kafka: it keeps messages by age and size alone; {_OWN_STORE}",
    "read_messages": "reading a topic is not available on Kafka: use kafka-console-consumer, or a consumer of your own",
    "preview_redrive": "previews of a redrive are not available on Kafka: every dead letter goes to the end of its topic",
    "update_topic": "changing a topic is not available on Kafka: use kafka-configs",
    "backup": f"backups are not available on Kafka: its replicas and mirrors are the copies; {_OWN_STORE}",
    "outbox": f"outboxes are not available on Kafka: their messages need a transaction with the log; {_OWN_STORE}",
    "document": "documents of front ends are not available on Kafka: the server keeps them in a store of Seriatim's own",
    "overview": "the console's overview is not available on Kafka: use 'seriatim store stats'",
    "describe_key": "the history of a key is not available on Kafka: use 'seriatim keys why' and 'seriatim keys peek'",
    "group_keys": "blocked keys by reason are not available on Kafka: use 'seriatim keys list'",
    "superseded": "superseded messages are not available on Kafka: it keeps every message of a key",
    "health": "the health of a store is not available on Kafka: use 'seriatim store doctor'",
    "check": "checking a store is not available on Kafka: its brokers check their logs",
    "clean_up": "cleaning up is not available on Kafka: it removes messages by the retention of their topic",
}
"""What Kafka can't do, and why: by what the verb contains."""


class KafkaBroker(Catalog):
    """Topics and subscriptions on Kafka."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._loop = asyncio.get_running_loop()
        self._wall = time.time() - self._loop.time()
        self._publisher = KafkaPublisher(self._producer, self.check_topic, self._now)
        self._groups: dict[str, Group] = {}
        self._attachments: set[KafkaAttachment] = set()
        self._leaving: dict[str, asyncio.Task[None]] = {}

    def unsupported(self, verb: str) -> NotSupported:
        what = next((words for name, words in REFUSED.items() if name in verb), f"{verb!r} is not available on Kafka")
        return NotSupported(what)

    def _now(self) -> float:
        """Wall-clock time that does not jump while this is open."""
        return self._loop.time() + self._wall

    async def close(self) -> None:
        for attachment in list(self._attachments):
            attachment.detach()
        await asyncio.gather(*(group.close() for group in self._groups.values()), *self._leaving.values())
        self._groups.clear()
        await super().close()

    async def delete_subscription(self, name: str) -> None:
        if (group := self._groups.pop(name, None)) is not None:
            group.failed(NotFound(f"subscription {name!r} was deleted"))
            await group.close()
        if (leaving := self._leaving.get(name)) is not None:  # Kafka deletes no group that has members
            await asyncio.wait([leaving])
        await super().delete_subscription(name)

    # -- messages -------------------------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        check_outgoing(messages)
        if any(message.dedup_id is not None for message in messages):
            raise NotSupported("Kafka does not know messages by an id of yours: leave dedup_id out")
        if taken := [name for message in messages for name in message.attributes or () if name in RESERVED]:
            raise InvalidArgument(f"{taken[0]!r} is a header of Seriatim's own: give the attribute another name")
        return self._publisher.publish(topic, messages)

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """A subscription that does not exist is reported to the consumer."""
        attachment = KafkaAttachment(self, subscription, consumer)
        self._attachments.add(attachment)
        return attachment

    async def group(self, subscription: str) -> Group:
        """The group of a subscription, which this process joins."""
        info = await self.describe_subscription(subscription)
        if (leaving := self._leaving.get(subscription)) is not None:
            await asyncio.wait([leaving])  # a static member must not join twice
        known = self._groups.get(subscription)
        if known is None:
            known = self._groups[subscription] = Group(self._address, info, self._producer, self._now)
        return known

    def left(self, attachment: KafkaAttachment, group: Group | None) -> None:
        """A consumer was detached; with the last one of a subscription this process leaves the group."""
        self._attachments.discard(attachment)
        if group is not None and not group.consumers and self._groups.get(group.info.name) is group:
            del self._groups[group.info.name]
            task = self._leaving[group.info.name] = asyncio.create_task(group.close())
            task.add_done_callback(lambda _: self._leaving.pop(group.info.name, None))

    # -- operators ------------------------------------------------------------------------------------------------------

    async def stats(self, subscription: str) -> SubscriptionStats:
        """Messages that other members have in flight count as ready."""
        info, memories = await self._seen(subscription)
        keys = await self.list_keys(subscription, limit=MAX_READ)
        members = await self.members(subscription)
        total, group = sum(key.depth for key in keys), self._groups.get(subscription)
        leased = sum(known.lanes.counts().leased for known in group.partitions.values()) if group else 0
        delayed = sum(key.state == "delayed" for key in keys)
        blocked = sum(max(0, key.depth - 1) for key in keys if key.state != "ready")
        return SubscriptionStats(
            subscription=subscription,
            topic=info.topic,
            total=total,
            ready=max(0, total - leased - delayed - blocked),
            leased=leased,
            delayed=delayed,
            blocked=blocked,
            dead_letters=len(await self._letters(info, memories[0].gone)),
            keys=len(keys),
            blocked_keys=sum(key.state in ("paused", "delayed") for key in keys),
            paused_keys=sum(key.state == "paused" for key in keys),
            oldest_age=max((key.head_age for key in keys if key.head_age is not None), default=None),
            consumers=max(len(members), 0 if group is None else group.consumers),
            paused=info.options.paused,
        )

    async def metrics(self) -> Metrics:
        """The state of each subscription. There are no counters: members are separate programs that share the log."""
        names = [info.name for info in await self.list_subscriptions()]
        stats = {name: await self.stats(name) for name in names}
        return Metrics(self._now(), {}, {}, CommitTimes(), stats)

    async def wait_until_empty(self, subscription: str) -> None:
        info = await self.describe_subscription(subscription)
        while not await self._look(info, Backlog.is_empty):  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(EMPTY_POLL_S)

    async def list_keys(
        self,
        subscription: str,
        *,
        limit: int = 100,
        blocked_only: bool = False,
        order: KeyOrder = "trouble",
        state: KeyState | None = None,
        search: str = "",
        skip: int = 0,
    ) -> list[KeyInfo]:
        """As far as Kafka shows it: messages in flight in other programs are not seen."""
        require_whole("limit", limit, 0, MAX_INTEGER)
        require_whole("skip", skip, 0, MAX_INTEGER)
        if order not in RANKS:
            raise InvalidArgument(f"order is {', '.join(map(repr, RANKS))}, not {shown(order)}")
        wanted = {LaneState.PAUSED, LaneState.DELAYED} if blocked_only else set(LaneState)
        if state is not None:
            wanted &= {one_of("state", LaneState, state)}
        info, memories = await self._seen(subscription)
        standings = await self._look(info, lambda backlog: backlog.keys(memories))
        situation = await self._situation(info, memories)
        keys = [info_of(seen_here(one, situation), situation) for one in standings if search in (one.view.key or "")]
        return sorted((key for key in keys if key.state in wanted), key=RANKS[order])[skip:][:limit]

    async def explain(self, subscription: str, key: str | None) -> Explanation:
        info, memories = await self._seen(subscription)
        partition = None if key is None else partition_of(key, await self.partitions(info.topic))
        standings = await self._look(info, lambda backlog: backlog.keys(memories, partition))
        situation = await self._situation(info, memories)
        found = [seen_here(one, situation) for one in standings if one.view.key == key]
        return explained(key, found[0] if found else None, situation)

    async def _situation(self, info: SubscriptionInfo, memories: Mapping[int, PartitionMemory]) -> Situation:
        group, members = self._groups.get(info.name), await self.members(info.name)
        known = () if group is None else group.partitions.values()
        return Situation(
            memories,
            info.options.paused,
            {number: words for words, numbers in members for number in numbers},
            max(len(members), 0 if group is None else group.consumers),
            {partition.number: partition.lanes.view for partition in known if partition.is_claimed},
        )

    async def peek(self, subscription: str, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        require_whole("limit", limit, 0, MAX_INTEGER)
        info = await self.describe_subscription(subscription)
        partition = None if key is None else partition_of(key, await self.partitions(info.topic))
        return await self._look(info, lambda backlog: backlog.peek(key, partition, limit))

    async def _seen(self, subscription: str) -> tuple[SubscriptionInfo, Mapping[int, PartitionMemory]]:
        return await self.describe_subscription(subscription), await self.memories(subscription)

    async def _look(self, info: SubscriptionInfo, look: Callable[[Backlog], T]) -> T:
        partitions = await self.partitions(info.topic)

        def call() -> T:
            with Backlog(self._address, info.name, info.topic, partitions) as backlog:
                return look(backlog)

        found: T = await blocking(call, f"subscription {info.name!r}")
        return found

    async def retry_key(self, subscription: str, key: str | None) -> None:
        found = await self.peek(subscription, key, 1)
        if not found:
            raise NotFound(f"key {key!r} has no message to retry")
        await self._command(subscription, Command("retry", key, head=place_of(found[0].id)[1]))

    async def pause_key(self, subscription: str, key: str | None, reason: str | None = None) -> None:
        await self._command(subscription, Command("pause", key, reason_of(reason)))

    async def resume_key(self, subscription: str, key: str | None) -> None:
        await self._command(subscription, Command("resume", key))

    async def skip(self, subscription: str, key: str | None, *, head: str | None = None) -> str:
        found = await self._standing_at(subscription, key, head, 1)
        await self._command(subscription, Command("skip", key, head=place_of(found[0].id)[1]))
        return found[0].id

    async def dead_letter(
        self,
        subscription: str,
        key: str | None,
        error: str | None = None,
        *,
        rest: bool = False,
        head: str | None = None,
    ) -> list[str]:
        found = await self._standing_at(subscription, key, head, MAX_READ if rest else 1)
        offset = place_of(found[0].id)[1]
        await self._command(subscription, Command("dead-letter", key, reason_of(error), rest, offset))
        return [message.id for message in found]

    async def remove(self, subscription: str, message_id: str) -> None:
        partition, offset = place_of(message_id)
        await self.describe_subscription(subscription)
        command = command_record(uuid4().hex, Command("remove", None, head=offset))
        await self._note(subscription, command, partition)

    async def _standing_at(
        self, subscription: str, key: str | None, head: str | None, limit: int
    ) -> list[PeekedMessage]:
        found = await self.peek(subscription, key, limit)
        if not found:
            raise NotFound(f"key {key!r} has no message to skip or dead-letter")
        if head not in (None, found[0].id):
            raise FailedPrecondition(
                f"key {key!r} stands at message {found[0].id} now, no longer at {head}: look again"
            )
        return found

    async def pause(self, subscription: str) -> None:
        await self.update_subscription(subscription, SubscriptionOptions(paused=True), ["paused"])

    async def resume(self, subscription: str) -> None:
        await self.update_subscription(subscription, SubscriptionOptions(paused=False), ["paused"])

    async def _command(self, subscription: str, command: Command) -> None:
        """Send a command to the member that has the key's partition. It is carried out soon, or once there is one."""
        info = await self.describe_subscription(subscription)
        if command.key is None:
            raise NotSupported("messages without a key are in every partition of a Kafka topic: name a key")
        partition = partition_of(command.key, await self.partitions(info.topic))
        await self._note(subscription, command_record(uuid4().hex, command), partition)

    async def _note(self, subscription: str, record: StateRecord, partition: int) -> None:
        key, value = record.encoded()
        await self._producer.write(state_topic(subscription), value, key, partition=partition)

    # -- dead letters ---------------------------------------------------------------------------------------------------

    async def dead_letters(
        self, subscription: str, *, limit: int = 100, after: str | None = None, error: str | None = None
    ) -> list[DeadLetter]:
        require_whole("limit", limit, 0, MAX_INTEGER)
        info, memories = await self._seen(subscription)
        found = await self._letters(info, memories[0].gone)
        behind, topic = (-1, -1) if after is None else place_of(after), dead_letter_topic(info.name, info.options)
        letters = [_dead_letter(found[place], topic) for place in sorted(found) if place > behind]
        return [letter for letter in letters if error in (None, group_of(letter.error))][:limit]

    async def group_dead_letters(self, subscription: str, limit: int = 100) -> list[DeadLetterGroup]:
        groups: dict[str, list[DeadLetter]] = {}
        for letter in await self.dead_letters(subscription, limit=MAX_READ):
            groups.setdefault(group_of(letter.error), []).append(letter)
        largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))[:limit]
        return [_group(error, letters) for error, letters in largest]

    async def _letters(self, info: SubscriptionInfo, gone: set[str]) -> dict[tuple[int, int], PeekedMessage]:
        """The dead letters of a subscription, by partition and offset in their topic."""
        topic = dead_letter_topic(info.name, info.options)
        partitions = await self.partitions(topic)

        def call() -> list[PeekedMessage]:
            with Backlog(self._address, f"{READER['group.id']}", topic, partitions) as backlog:
                everything = (record for unfinished in backlog.standing() for record in backlog.records(unfinished))
                return [peeked(record) for record in everything]

        found: list[PeekedMessage] = await blocking(call, f"topic {topic!r}")
        ours = [one for one in found if one.attributes.get(SUBSCRIPTION) == info.name and one.id not in gone]
        return {place_of(one.id): one for one in ours}

    async def redrive(self, subscription: str, message_id: str, *, append: bool = False) -> str:
        """Put a dead letter at the end of its topic, under a new id: Kafka can't put it back in its place."""
        if not append:
            raise RedriveRefused(
                "on Kafka a dead letter can't go back to its place: use append, then it is a new message"
            )
        info, memories = await self._seen(subscription)
        letter = (await self._letters(info, memories[0].gone)).get(place_of(message_id))
        if letter is None:
            raise NotFound(f"subscription {subscription!r} has no dead letter {message_id!r}")
        attributes = {name: value for name, value in letter.attributes.items() if not name.startswith(OURS)}
        # Not as one of our own messages: other producers may have used an empty key, or one that is not UTF-8.
        key = key_bytes(letter.ordering_key)
        place = await self._producer.write(info.topic, letter.data, key, headers_of(attributes))
        await self._note(subscription, gone_record(message_id), 0)
        return id_at(*place)

    async def purge(self, subscription: str, message_ids: Sequence[str]) -> None:
        await self.describe_subscription(subscription)
        for message_id in message_ids:
            place_of(message_id)
            await self._note(subscription, gone_record(message_id), 0)


def _group(error: str, letters: Sequence[DeadLetter]) -> DeadLetterGroup:
    times, keys = [letter.time for letter in letters], {letter.ordering_key for letter in letters}
    return DeadLetterGroup(error, len(letters), 0, len(keys), min(times), max(times), letters[-1].id)


def _dead_letter(letter: PeekedMessage, topic: str) -> DeadLetter:
    return DeadLetter(
        id=letter.id,
        ordering_key=letter.ordering_key,
        attempts=int(letter.attributes.get(ATTEMPTS, "0")),
        time=letter.publish_time,
        error=letter.attributes.get(ERROR),
        copy_topic=topic,
        copy_id=letter.id,
        returnable=False,
    )


class KafkaAttachment:
    """An attached consumer. It joins the group as soon as Kafka has returned the subscription's options.

    Until then it has no messages, and no leases.
    """

    def __init__(self, broker: KafkaBroker, subscription: str, consumer: Consumer) -> None:
        self._broker = broker
        self._consumer = consumer
        self._group: Group | None = None
        self._is_gone = False
        self.stop = consumer.stop
        self.holds: Callable[[Lease], bool] = lambda _: False
        self._answer_by(_refuse, _refuse, _refuse, _refuse)
        self._joining = asyncio.create_task(self._join(subscription))

    def _answer_by(self, ack: Answer, nack: Answer, dead_letter: Answer, extend: Answer) -> None:
        self._ack, self.nack, self.dead_letter, self.extend = ack, nack, dead_letter, extend

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        """Consumers keep a reference to this method from before the group was joined."""
        self._ack(lease, on_durable)

    async def _join(self, subscription: str) -> None:
        try:
            group = await self._broker.group(subscription)
            if not self._is_gone:
                self.holds = group.holds
                self._answer_by(group.ack, group.nack, group.dead_letter, group.extend)
                group.attach(self._consumer)
                self._group = group
        except SeriatimError as error:
            self._consumer.failed(error)
        except KafkaException as failure:
            self._consumer.failed(error_of(failure, f"the group of subscription {subscription!r} can't be joined"))

    @property
    def ack_deadline(self) -> float:
        return 10.0 if self._group is None else self._group.info.options.ack_deadline

    def detach(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._joining.cancel()
            if self._group is not None:
                self._group.detach(self._consumer)
            self._broker.left(self, self._group)


def _refuse(*_: object, **__: object) -> None:
    raise StaleLease("this consumer has no messages")
