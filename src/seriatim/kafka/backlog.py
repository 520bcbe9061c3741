"""The unfinished messages of a subscription, seen from outside: for operators, who belong to no group.

It is read from Kafka itself: the group's commits, the topic's records after them, and the group's state topic. Messages
that members have in flight, or have finished but not yet committed, can't be seen from here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from confluent_kafka import Consumer, KafkaError, TopicPartition

from seriatim.core.lanes.explanation import explain
from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.types import LaneView
from seriatim.engine.broker import Explanation, KeyInfo, KeyState, PeekedMessage
from seriatim.engine.consumer import Record
from seriatim.errors import StoreFailed
from seriatim.kafka.address import Address
from seriatim.kafka.catalog import READER, TIMEOUT_S
from seriatim.kafka.progress import decode
from seriatim.kafka.records import OFFSET_BITS, id_of, message_id, record_of
from seriatim.kafka.state import PartitionMemory

MAX_READ = 200_000
"""How many records of a partition are looked at, at most."""


class Unfinished(NamedTuple):
    """A group's progress in a partition: what is not finished, from ``lowest`` to below ``end``."""

    number: int
    lowest: int
    end: int
    finished: frozenset[int]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left, not even an offset without a message."""
        return self.end - self.lowest <= len(self.finished)


class KeyStanding(NamedTuple):
    """The state of a key, its partition, and when its first message was published."""

    view: LaneView
    partition: int
    published: float | None


class Situation(NamedTuple):
    """What determines the state of keys: the subscription's options, what is remembered, and the members."""

    memories: Mapping[int, PartitionMemory]
    is_paused: bool
    members: Mapping[int, str]
    """The members of the group, in words, by the partitions that they have."""
    consumers: int
    here: Mapping[int, Callable[[str | None], LaneView | None]]
    """The lanes of partitions that this program has: of these it is known what is in flight."""


class Backlog:
    """A reader of one subscription's unfinished messages. Its methods block."""

    def __init__(self, address: Address, subscription: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._consumer = Consumer(
            address.config(**(READER | {"group.id": subscription, "isolation.level": address.isolation}))
        )

    def __enter__(self) -> Backlog:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def standing(self) -> list[Unfinished]:
        places = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        found = []
        for place in self._consumer.committed(places, timeout=TIMEOUT_S):
            low, high = self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            offset = place.offset if place.offset >= 0 else low
            lowest = max(low, offset)
            finished = frozenset(done for done in decode(offset, place.metadata) if done >= lowest)
            found.append(Unfinished(place.partition, lowest, high, finished))
        return found

    def is_empty(self) -> bool:
        """Whether no message is left. Offsets without one, which transactions leave, don't count."""
        return not any(True for unfinished in self.standing() for _ in self.records(unfinished))

    def records(self, unfinished: Unfinished) -> Iterator[Record]:
        """The unfinished messages, in order."""
        if unfinished.is_empty:
            return
        place = TopicPartition(self._topic, unfinished.number, unfinished.lowest)
        self._consumer.assign([place])
        deadline, read = time.monotonic() + TIMEOUT_S, 0
        while read < MAX_READ:
            for message in self._consumer.consume(1000, timeout=0.02):
                error, offset = message.error(), message.offset() or 0
                if offset >= unfinished.end or (error is not None and error.code() == KafkaError._PARTITION_EOF):  # noqa: SLF001
                    return
                if error is None:
                    read += 1
                    if offset not in unfinished.finished:
                        yield record_of(message)[0]
            if time.monotonic() > deadline:
                raise StoreFailed(f"topic {self._topic!r} could not be read in time")

    def peek(self, key: str | None, partition: int | None, limit: int) -> list[PeekedMessage]:
        """The first messages of a key, or of those without a key, which may be in any partition."""
        found: list[PeekedMessage] = []
        for unfinished in self.standing():
            if partition not in (None, unfinished.number):
                continue
            for record in self.records(unfinished):
                if len(found) == limit:
                    return found
                if record.key == key:
                    found.append(peeked(record))
        return found

    def keys(self, memories: Mapping[int, PartitionMemory], partition: int | None = None) -> list[KeyStanding]:
        """The state of all keys that have messages or are paused, in all partitions or in one."""
        depths, found = Counter[str | None](), dict[str | None, KeyStanding]()
        for unfinished in self.standing():
            if partition not in (None, unfinished.number):
                continue
            memory = memories[unfinished.number]
            for record in self.records(unfinished):
                depths[record.key] += 1
                if record.key not in found:
                    view = _view(record.key, record, memory)
                    found[record.key] = KeyStanding(view, unfinished.number, record.published)
            for paused in memory.paused:
                found.setdefault(paused, KeyStanding(_view(paused, None, memory), unfinished.number, None))
        return [one._replace(view=replace(one.view, depth=depths[key])) for key, one in found.items()]


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def peeked(record: Record) -> PeekedMessage:
    attributes = dict(record.attributes or {})
    return PeekedMessage(id_of(record), record.data, attributes, record.key, moment(record.published))


def _view(key: str | None, head: Record | None, memory: PartitionMemory) -> LaneView:
    """A key, from its first message, if it has any, and what is remembered of that."""
    failure, offset, not_before = None, None, 0.0
    if head is not None:
        offset = head.offset & (1 << OFFSET_BITS) - 1
        failure = memory.failures.get(offset, (0, None))[1]
        not_before = max(failure.not_before if failure else 0.0, head.not_before)
    is_delayed = not_before > time.time()
    return LaneView(
        key=key,
        state=LaneState.PAUSED if key in memory.paused else LaneState.DELAYED if is_delayed else LaneState.READY,
        depth=0,
        in_flight=0,
        head=offset,
        attempts=failure.failures if failure else 0,
        not_before=not_before if is_delayed else None,
        error=failure.error if failure else None,
    )


def seen_here(standing: KeyStanding, situation: Situation) -> KeyStanding:
    """The state of a key, from the lanes of its partition if this process has it."""
    lanes = situation.here.get(standing.partition)
    view = None if lanes is None else lanes(standing.view.key)
    return standing if view is None else standing._replace(view=replace(view, depth=standing.view.depth))


def explained(key: str | None, standing: KeyStanding | None, situation: Situation) -> Explanation:
    partition = -1 if standing is None else standing.partition
    found = explain(
        None if standing is None else standing.view,
        pause_reason=situation.memories[partition].paused.get(key, (0, None))[1]
        if partition in situation.memories
        else None,
        halted="the subscription is paused" if situation.is_paused else None,
        consumers=situation.consumers,
        elsewhere=None if partition in situation.here else situation.members.get(partition),
        clock=lambda seconds: f"{moment(seconds):%Y-%m-%d %H:%M:%S UTC}",
        named=lambda offset: message_id(partition, offset),
    )
    since, until = (None if seconds is None else moment(seconds) for seconds in (found.since, found.until))
    return Explanation(key, found.waits_for, since, until, found.moved_by, found.sentence)


def info_of(standing: KeyStanding, situation: Situation) -> KeyInfo:
    view, partition, published = standing
    is_told = situation.is_paused or view.state != LaneState.READY
    return KeyInfo(
        key=view.key,
        state=str(view.state),
        depth=view.depth,
        in_flight=view.in_flight,
        head=None if view.head is None else message_id(partition, view.head),
        head_age=None if published is None else max(0.0, time.time() - published),
        attempts=view.attempts,
        not_before=None if view.not_before is None else moment(view.not_before),
        error=view.error,
        why=explained(view.key, standing, situation).sentence if is_told else None,
    )


STATES: tuple[KeyState, ...] = get_args(KeyState)
RANKS: dict[str, Callable[[KeyInfo], Any]] = {
    "trouble": lambda info: (STATES.index(info.state), -info.attempts, -(info.head_age or 0.0)),
    "oldest": lambda info: -(info.head_age or 0.0),
    "deepest": lambda info: -info.depth,
}
