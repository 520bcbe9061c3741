"""A topic: its log, and the messages that are still in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from seriatim.engine.metrics import TopicCounts
from seriatim.engine.options import TopicOptions
from seriatim.store.base import Record, TopicRow

CACHED_BYTES = 64 * 1024 * 1024


class Follower(Protocol):
    """Whoever wants to see every message of a topic once it is durable."""

    def push(self, records: Sequence[Record]) -> None: ...


class TopicState:
    """What the engine knows of one topic.

    Messages that were just published stay in memory until newer ones need the room, so that a subscriber who keeps up never
    waits for a read.
    """

    def __init__(self, row: TopicRow) -> None:
        self.id = row.id
        self.name = row.name
        self.options = TopicOptions.from_json(row.options)
        self.next_offset = row.next_offset
        self.counts = TopicCounts()
        self.followers: list[Follower] = []
        self._recent: OrderedDict[int, Record] = OrderedDict()
        self._recent_bytes = 0

    def update(self, row: TopicRow) -> None:
        """Take over what the store says. An offset that was given out is never given again."""
        self.options = TopicOptions.from_json(row.options)
        self.burn(row.next_offset)

    def burn(self, below: int) -> None:
        """Give none of the offsets below this one to a message."""
        self.next_offset = max(self.next_offset, below)

    def reserve(self, count: int) -> int:
        """The first of ``count`` offsets, which nobody else gets."""
        first = self.next_offset
        self.next_offset = first + count
        return first

    def appended(self, records: Sequence[Record]) -> None:
        """Messages are durable: remember them, and show them to everybody who follows."""
        before = self._recent_bytes
        for record in records:
            self._recent[record.offset] = record
            self._recent_bytes += len(record.data)
        self.counts.published += len(records)
        self.counts.bytes += self._recent_bytes - before
        while self._recent_bytes > CACHED_BYTES:
            _, oldest = self._recent.popitem(last=False)
            self._recent_bytes -= len(oldest.data)
        for follower in self.followers:
            follower.push(records)

    def recent(self, offset: int) -> Record | None:
        """A message, if it is still in memory."""
        return self._recent.get(offset)
