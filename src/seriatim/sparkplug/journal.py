"""Messages of edge nodes on their way into a topic, with the places of their nodes.

Rules
    - The messages of a node and its new bookmark are written in one transaction (``Broker.publish_at``): whoever reads the
      bookmark after a crash knows exactly what is in the topic.
    - A node's writer moves from where it stood. If somebody else has moved it, two hosts write under one name: the journal
      fails and the host stops, rather than to write a node's messages twice.
    - While one write is under way, what comes meanwhile is gathered for the next. So each node has one write at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from seriatim.core.edge_messages import Bookmark
from seriatim.engine.broker import Broker, Outgoing
from seriatim.sparkplug.intake import Counts
from seriatim.sparkplug.topics import NodeId

MAX_WAITING = 20_000
"""How many messages may wait to be written before no more are read from MQTT."""


class Journal:
    """Writes to one topic, for one host."""

    def __init__(
        self, broker: Broker, topic: str, host: str, counts: Counts, bookmark_of: Callable[[NodeId], Bookmark]
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._host = host
        self._counts = counts
        self._bookmark_of = bookmark_of
        self._standing: dict[NodeId, int] = {}
        self._waiting: dict[NodeId, list[Outgoing]] = {}
        self._count = 0
        self._ending = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    async def recall(self, node: NodeId) -> Bookmark | None:
        """Where a node stood when it was last written; None when it never was."""
        standing = self._standing[node] = await self._broker.position_of(self._writer(node))
        return Bookmark.unpack(standing) if standing else None

    def add(self, node: NodeId, message: Outgoing) -> None:
        """The next message of a node that was recalled."""
        self._waiting.setdefault(node, []).append(message)
        self._count += 1
        self._filled.set()

    @property
    def is_full(self) -> bool:
        return self._count >= MAX_WAITING

    async def room(self) -> None:
        """Return when more may be added."""
        while self.is_full:
            self._drained.clear()
            await self._drained.wait()

    async def run(self) -> None:
        """Write until ``end`` was called and nothing waits."""
        while self._waiting or not self._ending:
            await self._filled.wait()
            await self._flush()

    def end(self) -> None:
        """Nothing more is added. A write is never broken off: nobody would know what became of it."""
        self._ending = True
        self._filled.set()

    async def _flush(self) -> None:
        waiting, self._waiting, self._count = self._waiting, {}, 0
        self._filled.clear()
        # Every bookmark is taken now, at one with the messages: nothing is awaited in between.
        writes = [self._write(node, messages, self._bookmark_of(node).pack()) for node, messages in waiting.items()]
        await asyncio.gather(*writes)
        self._drained.set()

    async def _write(self, node: NodeId, messages: list[Outgoing], end: int) -> None:
        await self._broker.publish_at(self._topic, self._writer(node), self._standing[node], end, messages)
        self._standing[node] = end
        self._counts.stored += len(messages)

    def _writer(self, node: NodeId) -> str:
        return f"sparkplug {self._host} {self._topic} {node}"
