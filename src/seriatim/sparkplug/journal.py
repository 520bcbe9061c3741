"""Messages of edge nodes on their way into a topic, and entries into the ledger, with the places of their nodes.

Rules
    - The messages of a node, its entries in the ledger and its new bookmark are written in one transaction
      (``Broker.publish_steps``): whoever reads the bookmark after a crash knows exactly what is in both topics.
    - A node's writer moves from where it stood. If somebody else has moved it, two hosts write under one name: the journal
      fails and the host stops, rather than to write a node's messages twice.
    - What no node has said moves no bookmark: a *stray* entry, of something malformed.
    - While one write is under way, what comes meanwhile is gathered for the next. So each node has one write at a time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from seriatim.core.edge_messages import Bookmark
from seriatim.engine.broker import Broker, Outgoing, Step
from seriatim.sparkplug.intake import Counts
from seriatim.sparkplug.topics import NodeId

MAX_WAITING = 20_000
"""How many messages may wait to be written before no more are read from MQTT."""
MAX_WRITTEN_BYTES = 8 * 1024 * 1024
"""After so many bytes a write is closed, and the next one takes the nodes that are left."""
PAUSE = 0.02
"""The seconds between two writes. A commit costs as much as many messages: so a busy host makes fewer, and fuller ones."""


@dataclass(slots=True)
class _Gathered:
    """What waits to be written for one node."""

    messages: list[Outgoing] = field(default_factory=list)
    entries: list[Outgoing] = field(default_factory=list)


_Part: TypeAlias = dict[NodeId, _Gathered]


@dataclass(frozen=True, slots=True)
class Topics:
    """Where a host writes: messages in order, and the ledger, if it keeps one."""

    ordered: str
    ledger: str | None


class Journal:
    """Writes for one host."""

    def __init__(
        self, broker: Broker, topics: Topics, host: str, counts: Counts, bookmark_of: Callable[[NodeId], Bookmark]
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._host = host
        self._counts = counts
        self._bookmark_of = bookmark_of
        self._standing: dict[NodeId, int] = {}
        self._waiting: defaultdict[NodeId, _Gathered] = defaultdict(_Gathered)
        self._strays: list[Outgoing] = []
        self._count = 0
        self._ending = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    async def recall(self, node: NodeId) -> Bookmark | None:
        """Where a node stood when it was last written; None when it never was."""
        standing = self._standing[node] = await self._broker.position_of(self._writer(node))
        return Bookmark.unpack(standing) if standing else None

    def forget(self, node: NodeId) -> None:
        """Nothing is to be written for a node that was recalled, because no more nodes can be known."""
        del self._standing[node]

    def add(self, node: NodeId, message: Outgoing) -> None:
        """The next message of a node that was recalled."""
        self._waiting[node].messages.append(message)
        self._gathered()

    def enter(self, node: NodeId, entry: Outgoing) -> None:
        """The next entry in the ledger about a node that was recalled."""
        self._waiting[node].entries.append(entry)
        self._gathered()

    def enter_stray(self, entry: Outgoing) -> None:
        """An entry in the ledger that has nothing to do with the place of any node."""
        self._strays.append(entry)
        self._gathered()

    def _gathered(self) -> None:
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
        while self._count or not self._ending:
            await self._filled.wait()
            await self._flush()
            if not self._ending:
                await asyncio.sleep(PAUSE)

    def end(self) -> None:
        """Nothing more is added. A write is never broken off: nobody would know what became of it."""
        self._ending = True
        self._filled.set()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(_Gathered)
        strays, self._strays, self._count = self._strays, [], 0
        self._filled.clear()
        # Every bookmark is taken now, at one with the messages: nothing is awaited in between.
        writes = [self._write(self._take_steps(part), part) for part in _parts(waiting)]
        await asyncio.gather(*writes, self._write_strays(strays))
        self._drained.set()

    def _take_steps(self, part: _Part) -> list[Step]:
        steps = []
        for node in part:
            start, end = self._standing[node], self._bookmark_of(node).pack()
            self._standing[node] = end
            steps.append(Step(self._writer(node), start, end))
        return steps

    async def _write(self, steps: list[Step], part: _Part) -> None:
        messages = [message for gathered in part.values() for message in gathered.messages]
        entries = [entry for gathered in part.values() for entry in gathered.entries]
        ordered, ledger = self._topics.ordered, self._topics.ledger
        await self._broker.publish_steps(ordered, steps, messages, {ledger: entries} if ledger and entries else None)
        self._counts.stored += len(messages)
        self._counts.entries += len(entries)

    async def _write_strays(self, entries: list[Outgoing]) -> None:
        if entries and self._topics.ledger:
            await self._broker.publish(self._topics.ledger, entries)
            self._counts.entries += len(entries)

    def _writer(self, node: NodeId) -> str:
        return f"sparkplug {self._host} {self._topics.ordered} {node}"


def _parts(waiting: _Part) -> Iterator[_Part]:
    """What waits, some nodes at a time: the bytes of one write have a limit where a link leads to the store."""
    part: _Part = {}
    size = 0
    for node, gathered in waiting.items():
        part[node] = gathered
        size += sum(len(record.data) for record in (*gathered.messages, *gathered.entries))
        if size > MAX_WRITTEN_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part
