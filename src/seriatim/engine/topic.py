"""A topic: its log, and the messages that are still in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from sys import getsizeof
from typing import Protocol

from seriatim.engine.broker import Outgoing, TopicInfo
from seriatim.engine.message_ids import MessageIds
from seriatim.engine.metrics import TopicCounts
from seriatim.engine.name_index import NameIndex
from seriatim.engine.options import TopicOptions, read_topic_options, said_of
from seriatim.store.base import MessageHeader, Record, TopicRow

CACHED_BYTES = 64 * 1024 * 1024
"""How much memory the recent messages of a topic may take, with everything that belongs to them."""

RECORD_BYTES = 320
"""The memory of a message apart from its data, key and attributes: the record, its numbers, its entry in the dict."""

ENTRY_BYTES = 64
"""The memory of an attribute apart from its name and value: its entry in a dict that is never full."""

_OFFSET, _KEY, _DATA, _ATTRIBUTES = map(itemgetter, range(4))
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class Follower(Protocol):
    """Receives every message of a topic once it is durable."""

    def push(self, records: Sequence[Record | MessageHeader]) -> None: ...


class TopicState:
    """The engine's state of one topic.

    Recently published messages stay in memory until newer ones need the room, so that a subscriber who keeps up never waits
    for a read, unless the topic has no subscriptions. If there is only one subscription, settled messages leave at once.
    """

    def __init__(self, row: TopicRow) -> None:
        self.id = row.id
        self.name = row.name
        self.options, self.flaws = read_topic_options(row.options)
        self.next_offset = row.next_offset
        self.counts = TopicCounts()
        self.followers: dict[Follower, None] = {}
        self.subscriptions = NameIndex()
        self._recent: dict[int, Record] = {}
        self._recent_bytes = 0

    def info(self, earliest: int) -> TopicInfo:
        return TopicInfo(self.name, self.options, earliest, self.next_offset, said_of(self.flaws))

    def follow(self, follower: Follower) -> None:
        """Pass it every message from now on."""
        self.followers[follower] = None

    def unfollow(self, follower: Follower) -> None:
        del self.followers[follower]

    def set_options(self, options: TopicOptions) -> None:
        self.options, self.flaws = options, {}

    def update(self, row: TopicRow) -> None:
        """Adopt the stored row. An assigned offset is never assigned again."""
        self.options, self.flaws = read_topic_options(row.options)
        self.skip_offsets_below(row.next_offset)

    def skip_offsets_below(self, below: int) -> None:
        """Assign no offset below this one."""
        self.next_offset = max(self.next_offset, below)

    def reserve(self, count: int) -> int:
        """Reserve ``count`` offsets, and return the first."""
        first = self.next_offset
        self.next_offset = first + count
        return first

    def number(self, messages: Sequence[Outgoing], now: float) -> tuple[MessageIds, list[Record]]:
        """Messages as records of the log, with the next offsets."""
        first = self.next_offset
        self.next_offset = first + len(messages)
        offsets = range(first, self.next_offset)
        return MessageIds(offsets), [
            _make(
                Record,
                (offset, key, data, dict(attributes) if attributes else None, now, now + delay if delay else 0.0),
            )
            for offset, (key, data, attributes, delay, _) in zip(offsets, messages, strict=True)
        ]

    def appended(self, records: Sequence[Record]) -> None:
        """Messages are durable: keep them in memory, and pass them to all followers."""
        size = sum(map(len, map(_DATA, records)))
        self.counts.published += len(records)
        self.counts.bytes += size
        if not self.followers:  # nobody will ask for them soon, and who comes later can read the store
            return
        self._recent.update(zip(map(_OFFSET, records), records, strict=True))
        self._recent_bytes += memory_of(records)
        if self._recent_bytes > CACHED_BYTES:
            self._make_room()
        for follower in self.followers:
            follower.push(records)

    @property
    def is_followed(self) -> bool:
        return bool(self.followers)

    def batch_appended(self, positions: Sequence[MessageHeader], messages: int, size: int) -> None:
        """Many messages are durable at once: their data is read from the store when needed."""
        self.counts.published += messages
        self.counts.bytes += size
        for follower in self.followers:
            follower.push(positions)

    def settled(self, offsets: Iterable[int]) -> None:
        """A subscription has settled messages."""
        if len(self.followers) == 1:
            self._forget(offsets)

    def recent(self, offset: int) -> Record | None:
        """A message, if it is still in memory."""
        return self._recent.get(offset)

    def all_recent(self, offsets: Iterable[int]) -> list[Record] | None:
        """Messages, if all of them are still in memory."""
        found = list(map(self._recent.get, offsets))
        return found if all(found) else None  # type: ignore[return-value]  # no record is empty

    def _make_room(self) -> None:
        """Drop the oldest, an eighth of all at a time: a dict whose first entries were deleted is slow to find the next."""
        surplus, oldest = self._recent_bytes - CACHED_BYTES * 7 // 8, list[int]()
        for offset, record in self._recent.items():
            if surplus <= 0:
                break
            surplus -= memory_of([record])
            oldest.append(offset)
        self._forget(oldest)

    def _forget(self, offsets: Iterable[int]) -> None:
        found = map(self._recent.pop, offsets, repeat(None))
        self._recent_bytes -= memory_of([record for record in found if record is not None])


def memory_of(records: Sequence[Record]) -> int:
    """The approximate size of messages in memory, in bytes."""
    size = (
        RECORD_BYTES * len(records) + sum(map(getsizeof, map(_DATA, records))) + sum(map(getsizeof, map(_KEY, records)))
    )
    for attributes in filter(None, map(_ATTRIBUTES, records)):
        entries = sum(ENTRY_BYTES + getsizeof(name) + getsizeof(value) for name, value in attributes.items())
        size += ENTRY_BYTES + entries
    return size
