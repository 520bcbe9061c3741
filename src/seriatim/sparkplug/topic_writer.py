"""Writes the messages of edge nodes to a topic, and entries to the ledger, together with the bookmarks of the nodes.

Rules
    - The messages of a node, its ledger entries, its new bookmark and its session are written in one transaction
      (``Broker.publish_once``): after a crash, the bookmark tells exactly what is in both topics.
    - The position of a node's writer is compared before it is moved. If another process has moved it, two hosts use one name:
      the journal fails and the host stops, rather than write a node's messages twice.
    - A *stray* entry, about something malformed that belongs to no node's stream, moves no bookmark.
    - During a write, new messages are gathered for the next one. So each node has one write at a time.
    - The size of a write is limited, because the store may be behind a link. What exceeds it is in another *chunk* of the node,
      written after the first. Each chunk has the bookmark of its last message: a crash between two of them repeats nothing, and
      what is then missing shows as a gap.
    - An abandoned journal completes the write in progress, and writes nothing more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias, TypeVar

from seriatim.core.resequencing.options import LedgerEntry, Reason
from seriatim.core.sparkplug.messages import OF_DATA, Bookmark, DeathIgnored, EdgeMessage, Flag, Kind, Ordered
from seriatim.engine.broker import Broker, Outgoing, WriterMove
from seriatim.errors import FailedPrecondition
from seriatim.sparkplug.intake import Counts
from seriatim.sparkplug.topics import NodeId
from seriatim.sparkplug.writer_names import BOOKMARKS, SESSIONS, NodeSession, writer_name

MAX_WAITING = 20_000
"""How many messages may wait to be written before the host reads no more."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""And how many bytes."""
MAX_WRITTEN = 4_096
"""How many messages are written at once: each has at most 4 KiB in addition to its data."""
MAX_WRITTEN_BYTES = 8 * 1024 * 1024
"""How many bytes of data are written at once. A single larger message is written alone."""
PAUSE_S = 0.02
"""Seconds between two writes. A commit costs as much as many messages, so a busy host makes fewer and larger ones."""

T = TypeVar("T")
Written: TypeAlias = Ordered[Any] | LedgerEntry[EdgeMessage[Any]] | DeathIgnored[Any]
"""What moves the bookmark of a node when it is written."""


class _Standing(NamedTuple):
    """The positions of a node's writers."""

    bookmark: int
    session: int


@dataclass(slots=True)
class _Load:
    """A number of messages and bytes, and whether a write has room for more."""

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
    """What is to be written for one node, within the limits of one write, and the bookmark after it.

    The bookmark of a chunk that another one follows is computed from what was ``written``; that of the last one is the
    node's own.
    """

    place: Bookmark
    session: NodeSession
    written: list[Written] = field(default_factory=list)
    messages: list[Outgoing] = field(default_factory=list)
    entries: list[Outgoing] = field(default_factory=list)
    load: _Load = field(default_factory=_Load)


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a host: for ordered messages, and for the ledger, if it keeps one."""

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
        self._places: dict[NodeId, tuple[Bookmark, NodeSession]] = {}
        """The bookmark and session of each node after all writes, including those in progress."""
        self._waiting: defaultdict[NodeId, list[_Chunk]] = defaultdict(list)
        self._strays: list[Outgoing] = []
        self._load = _Load()
        self._ending = self._abandoned = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    async def recall(self, node: NodeId) -> Bookmark | None:
        """The stored bookmark of a node; None if it has none."""
        bookmark = await self._broker.position_of(self._writer(BOOKMARKS, node))
        session = await self._broker.position_of(self._writer(SESSIONS, node))
        self._standing[node] = _Standing(bookmark, session)
        self._places[node] = Bookmark.unpack(bookmark), NodeSession.unpack(session)
        return Bookmark.unpack(bookmark) if bookmark else None

    def forget(self, node: NodeId) -> None:
        """Forget a recalled node for which nothing will be written, because no more nodes are accepted."""
        del self._standing[node], self._places[node]

    def add(self, node: NodeId, message: Outgoing, ordered: Ordered[Any]) -> None:
        """Add the next message of a recalled node."""
        self._chunk_for(node, message, ordered).messages.append(message)

    def enter(self, node: NodeId, entry: Outgoing, about: Written | None = None) -> None:
        """Add the next ledger entry about a recalled node."""
        self._chunk_for(node, entry, about).entries.append(entry)

    def enter_stray(self, entry: Outgoing) -> None:
        """Add a ledger entry that moves no bookmark."""
        self._strays.append(entry)
        self._gathered(entry)

    def _chunk_for(self, node: NodeId, record: Outgoing, written: Written | None) -> _Chunk:
        """The chunk for the next record of a node, with the bookmark advanced past the record."""
        chunks, size = self._waiting[node], len(record.data)
        if not chunks:
            chunks.append(_Chunk(*self._places[node]))
        elif not chunks[-1].load.has_room_for(1, size):
            full = chunks[-1]
            full.place = reduce(place_behind, full.written, full.place)
            chunks.append(_Chunk(full.place, full.session))
        chunk = chunks[-1]
        chunk.load.count += 1
        chunk.load.size += size
        if written is not None:
            chunk.written.append(written)
            if isinstance(written, Ordered) and written.message.kind not in OF_DATA:
                chunk.session = chunk.session.behind(written)
        self._gathered(record)
        return chunk

    def _gathered(self, record: Outgoing) -> None:
        self._load.add(1, len(record.data))
        self._filled.set()

    @property
    def is_full(self) -> bool:
        return self._load.count >= MAX_WAITING or self._load.size >= MAX_WAITING_BYTES

    async def room(self) -> None:
        """Wait until more may be added."""
        while self.is_full:
            self._drained.clear()
            await self._drained.wait()

    async def run(self) -> None:
        """Write until ``end`` has been called and nothing is left, or until the journal is abandoned."""
        while self._load.count or not self._ending:
            await self._filled.wait()
            if self._abandoned:
                return
            await self._flush()
            if not self._ending:
                await asyncio.sleep(PAUSE_S)

    def end(self) -> None:
        """Nothing more will be added. A write is never cancelled, because its outcome would be unknown."""
        self._ending = True
        self._filled.set()

    def abandon(self) -> None:
        """Discard what waits: the nodes have advanced past messages that were not added."""
        self._abandoned = True
        self.end()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(list)
        strays, self._strays, self._load = self._strays, [], _Load()
        self._filled.clear()
        for node, chunks in waiting.items():
            chunks[-1].place = self._bookmark_of(node)  # consistent with the messages: nothing was awaited in between
            self._places[node] = chunks[-1].place, chunks[-1].session
        await asyncio.gather(self._write_chunks(waiting), self._write_strays(strays))
        self._drained.set()

    async def _write_chunks(self, waiting: dict[NodeId, list[_Chunk]]) -> None:
        """Write all first chunks, then all second ones, and so on."""
        for chunks in zip_longest(*waiting.values()):
            of_nodes = [(node, chunk) for node, chunk in zip(waiting, chunks, strict=True) if chunk is not None]
            for part in _parts(of_nodes, lambda pair: pair[1].load):
                await self._write(part)

    async def _write(self, part: list[tuple[NodeId, _Chunk]]) -> None:
        moves = []
        for node, chunk in part:
            start, end = self._standing[node], _Standing(chunk.place.pack(), chunk.session.pack())
            self._standing[node] = end
            moves.append(WriterMove(self._writer(BOOKMARKS, node), start.bookmark, end.bookmark))
            if end.session != start.session:
                moves.append(WriterMove(self._writer(SESSIONS, node), start.session, end.session))
        messages = [message for _, chunk in part for message in chunk.messages]
        entries = [entry for _, chunk in part for entry in chunk.entries]
        ordered, ledger = self._topics.ordered, self._topics.ledger
        try:
            await self._broker.publish_once(ordered, moves, messages, {ledger: entries} if ledger and entries else None)
        except FailedPrecondition as error:
            if any([await self._broker.position_of(move.writer) != move.start for move in moves]):
                raise FailedPrecondition(
                    f"another host named {self._host!r} writes to topic {ordered!r}: stop one of the two, or give this one "
                    "another name with --host-id"
                ) from error
            raise
        self._counts.stored += len(messages)
        self._counts.entries += len(entries)

    async def _write_strays(self, strays: list[Outgoing]) -> None:
        if self._topics.ledger is None:
            return
        for entries in _parts(strays, lambda entry: _Load(1, len(entry.data))):
            await self._broker.publish(self._topics.ledger, entries)
            self._counts.entries += len(entries)

    def _writer(self, what: str, node: NodeId) -> str:
        return writer_name(what, self._host, self._topics.ordered, node)


def place_behind(place: Bookmark, written: Written) -> Bookmark:
    """The bookmark of a node after this effect, and before any that follow."""
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


def _parts(things: Iterable[T], load_of: Callable[[T], _Load]) -> Iterator[list[T]]:
    """As many of the things at a time as one write may have."""
    part: list[T] = []
    load = _Load()
    for thing in things:
        more = load_of(thing)
        if not load.has_room_for(more.count, more.size):
            yield part
            part, load = [], _Load()
        part.append(thing)
        load.add(more.count, more.size)
    if part:
        yield part
