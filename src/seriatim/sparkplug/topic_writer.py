"""Messages of edge nodes on their way into a topic, and entries into the ledger, with the places of their nodes.

Rules
    - The messages of a node, its entries in the ledger, its new bookmark and its session are written in one transaction
      (``Broker.publish_steps``): whoever reads the bookmark after a crash knows exactly what is in both topics.
    - A node's writer moves from where it stood. If somebody else has moved it, two hosts write under one name: the journal
      fails and the host stops, rather than to write a node's messages twice.
    - What no node has said moves no bookmark: a *stray* entry, of something malformed.
    - While one write is under way, what comes meanwhile is gathered for the next. So each node has one write at a time.
    - A write has a limit, because a link may lead to the store. What a node has beyond it is in a *chunk* of its own, which is
      written behind the one before. Each chunk has the bookmark that belongs to its last message: a crash between two of them
      repeats nothing, and what is missing then is noticed as a gap.
    - A journal that is abandoned writes nothing more than what is under way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from seriatim.core.edge_messages import Bookmark, DeathIgnored, EdgeMessage, Flag, Kind, Ordered
from seriatim.core.resequencing import LedgerEntry, Reason
from seriatim.engine.broker import Broker, Outgoing, Step
from seriatim.sparkplug.intake import Counts
from seriatim.sparkplug.topics import NodeId
from seriatim.sparkplug.writers import BOOKMARKS, SESSIONS, Session, writer_name

MAX_WAITING = 20_000
"""How many messages may wait to be written before the host reads no more."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""And how many bytes of them."""
MAX_WRITTEN = 4_096
"""How many messages are written at once: each has at most 4 KiB beside its data."""
MAX_WRITTEN_BYTES = 8 * 1024 * 1024
"""How many bytes of data are written at once. Only one message can be longer than that, and is then written alone."""
PAUSE = 0.02
"""The seconds between two writes. A commit costs as much as many messages: so a busy host makes fewer, and fuller ones."""

Written: TypeAlias = Ordered[Any] | LedgerEntry[EdgeMessage[Any]] | DeathIgnored[Any]
"""What moves the place of a node when it is written."""


class _Standing(NamedTuple):
    """The positions of a node's writers."""

    bookmark: int
    session: int


@dataclass(slots=True)
class _Load:
    """How much something is, and whether a write has room for it."""

    count: int = 0
    size: int = 0

    def has_room_for(self, count: int, size: int) -> bool:
        fits = self.count + count <= MAX_WRITTEN and self.size + size <= MAX_WRITTEN_BYTES
        return fits or not self.count

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.size += size


@dataclass(slots=True)
class _Chunk:
    """What waits to be written for one node, as much as one write may have, and where the node stands behind it."""

    place: Bookmark
    session: Session
    messages: list[Outgoing] = field(default_factory=list)
    entries: list[Outgoing] = field(default_factory=list)
    load: _Load = field(default_factory=_Load)


_Part: TypeAlias = dict[NodeId, _Chunk]


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
        self._standing: dict[NodeId, _Standing] = {}
        self._places: dict[NodeId, tuple[Bookmark, Session]] = {}
        """Where each node stands behind everything that was added, while writes may still be under way."""
        self._waiting: defaultdict[NodeId, list[_Chunk]] = defaultdict(list)
        self._strays: list[Outgoing] = []
        self._load = _Load()
        self._ending = self._abandoned = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    async def recall(self, node: NodeId) -> Bookmark | None:
        """Where a node stood when it was last written; None when it never was."""
        bookmark = await self._broker.position_of(self._writer(BOOKMARKS, node))
        session = await self._broker.position_of(self._writer(SESSIONS, node))
        self._standing[node] = _Standing(bookmark, session)
        self._places[node] = Bookmark.unpack(bookmark), Session.unpack(session)
        return Bookmark.unpack(bookmark) if bookmark else None

    def forget(self, node: NodeId) -> None:
        """Nothing is to be written for a node that was recalled, because no more nodes can be known."""
        del self._standing[node], self._places[node]

    def add(self, node: NodeId, message: Outgoing, ordered: Ordered[Any]) -> None:
        """The next message of a node that was recalled."""
        self._chunk_for(node, message, ordered).messages.append(message)

    def enter(self, node: NodeId, entry: Outgoing, about: Written | None = None) -> None:
        """The next entry in the ledger about a node that was recalled."""
        self._chunk_for(node, entry, about).entries.append(entry)

    def enter_stray(self, entry: Outgoing) -> None:
        """An entry in the ledger that has nothing to do with the place of any node."""
        self._strays.append(entry)
        self._gathered(entry)

    def _chunk_for(self, node: NodeId, record: Outgoing, written: Written | None) -> _Chunk:
        """Where the next record of a node goes, moved on to where the node stands behind it."""
        chunks, size = self._waiting[node], len(record.data)
        if not chunks or not chunks[-1].load.has_room_for(1, size):
            chunks.append(_Chunk(*self._places[node]))
        chunk = chunks[-1]
        chunk.load.add(1, size)
        if written is not None:
            chunk.place = place_behind(chunk.place, written)
        if isinstance(written, Ordered):
            chunk.session = chunk.session.behind(written)
        self._places[node] = chunk.place, chunk.session
        self._gathered(record)
        return chunk

    def _gathered(self, record: Outgoing) -> None:
        self._load.add(1, len(record.data))
        self._filled.set()

    @property
    def is_full(self) -> bool:
        return self._load.count >= MAX_WAITING or self._load.size >= MAX_WAITING_BYTES

    async def room(self) -> None:
        """Return when more may be added."""
        while self.is_full:
            self._drained.clear()
            await self._drained.wait()

    async def run(self) -> None:
        """Write until ``end`` was called and nothing waits, or until it is abandoned."""
        while self._load.count or not self._ending:
            await self._filled.wait()
            if self._abandoned:
                return
            await self._flush()
            if not self._ending:
                await asyncio.sleep(PAUSE)

    def end(self) -> None:
        """Nothing more is added. A write is never broken off: nobody would know what became of it."""
        self._ending = True
        self._filled.set()

    def abandon(self) -> None:
        """Write nothing of what waits: nodes have moved on without all that they said having been added."""
        self._abandoned = True
        self.end()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(list)
        strays, self._strays, self._load = self._strays, [], _Load()
        self._filled.clear()
        for node, chunks in waiting.items():
            chunks[-1].place = self._bookmark_of(node)  # now, at one with the messages: nothing was awaited in between
            self._places[node] = chunks[-1].place, chunks[-1].session
        await asyncio.gather(self._write_parts(waiting), self._write_strays(strays))
        self._drained.set()

    async def _write_parts(self, waiting: dict[NodeId, list[_Chunk]]) -> None:
        for part in _parts(waiting):
            await self._write(self._take_steps(part), part)

    def _take_steps(self, part: _Part) -> list[Step]:
        steps = []
        for node, chunk in part.items():
            start, end = self._standing[node], _Standing(chunk.place.pack(), chunk.session.pack())
            self._standing[node] = end
            steps.append(Step(self._writer(BOOKMARKS, node), start.bookmark, end.bookmark))
            if end.session != start.session:
                steps.append(Step(self._writer(SESSIONS, node), start.session, end.session))
        return steps

    async def _write(self, steps: list[Step], part: _Part) -> None:
        messages = [message for chunk in part.values() for message in chunk.messages]
        entries = [entry for chunk in part.values() for entry in chunk.entries]
        ordered, ledger = self._topics.ordered, self._topics.ledger
        await self._broker.publish_steps(ordered, steps, messages, {ledger: entries} if ledger and entries else None)
        self._counts.stored += len(messages)
        self._counts.entries += len(entries)

    async def _write_strays(self, strays: list[Outgoing]) -> None:
        if self._topics.ledger is None:
            return
        for entries in _slices(strays):
            await self._broker.publish(self._topics.ledger, entries)
            self._counts.entries += len(entries)

    def _writer(self, what: str, node: NodeId) -> str:
        return writer_name(what, self._host, self._topics.ordered, node)


def place_behind(place: Bookmark, written: Written) -> Bookmark:
    """Where a node stands when what it has said next is written, and what comes behind that is not."""
    given = place.given + 1
    if isinstance(written, DeathIgnored):
        return place._replace(given=given)
    if isinstance(written, LedgerEntry):
        passed = written.reason in (Reason.LOST, Reason.DEAD_LETTER, Reason.DISCARDED)
        expected = (written.last + 1) % 256 if passed else place.expected
        return place._replace(given=given, epoch=max(place.epoch, written.epoch), expected=expected)
    message = written.message
    if message.kind is Kind.NDEATH or message.seq is None:
        return place._replace(given=given, born=False)
    is_birth = message.kind is Kind.NBIRTH
    bd_seq = message.bd_seq if is_birth and message.bd_seq is not None else place.bd_seq
    stamps = [stamp for stamp in (message.timestamp, None if is_birth else place.newest) if stamp is not None]
    born = written.flag is not Flag.BEFORE_BIRTH
    return Bookmark(given, written.epoch, bd_seq, (message.seq + 1) % 256, born, max(stamps, default=None))


def _parts(waiting: dict[NodeId, list[_Chunk]]) -> Iterator[_Part]:
    """What waits, as much at a time as one write may have: all first chunks, then all second ones, and so on."""
    for chunks in zip_longest(*waiting.values()):
        part: _Part = {}
        load = _Load()
        for node, chunk in zip(waiting, chunks, strict=True):
            if chunk is None:
                continue
            if not load.has_room_for(chunk.load.count, chunk.load.size):
                yield part
                part, load = {}, _Load()
            part[node] = chunk
            load.add(chunk.load.count, chunk.load.size)
        yield part


def _slices(entries: list[Outgoing]) -> Iterator[list[Outgoing]]:
    """The same for entries that move no bookmark."""
    part: list[Outgoing] = []
    load = _Load()
    for entry in entries:
        if not load.has_room_for(1, len(entry.data)):
            yield part
            part, load = [], _Load()
        part.append(entry)
        load.add(1, len(entry.data))
    if part:
        yield part
