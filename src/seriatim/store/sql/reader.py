"""The reading verbs of a store on any SQL database. A dialect adds how a short transaction is opened.

The functions at the end need a session inside one short transaction; those who write and clean up use some of them, too.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from seriatim.errors import NotFound, StoreBroken, StoreLost
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    DocumentRow,
    Pack,
    PausedRow,
    Position,
    Problem,
    ReaderRow,
    Record,
    SnapshotRow,
    Span,
    SubscriptionRow,
    TopicRow,
    TroubleRow,
)
from seriatim.store.columns import decode_column
from seriatim.store.pack import PackHead
from seriatim.store.rules import end_of, key_of
from seriatim.store.settled import SettledSet, decode_block, decode_cursor
from seriatim.store.sql.session import Row, Session

PACKS_AT_A_TIME = 64
"""How many heads are read in one transaction while all positions are listed."""

SPANS_AT_A_TIME = 1024
"""How many packs are looked at in one transaction while spans are listed."""

BYTES_AT_A_TIME = 4 * 1024 * 1024
"""A transaction that reads packs ends when it has read so many bytes."""

TAKEN_OVER = "another process has taken it over"


def lost_because(reason: str, kind: type[StoreLost] = StoreLost) -> StoreLost:
    return kind(f"the store can't be used any more, because {reason}: open it again")


class SqlReader(ABC):
    """Owns nothing and only reads. A handle belongs to the process that opened it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._unusable: str | None = None
        self._failed = False

    @property
    def epoch(self) -> int:
        with self._reading() as session:
            return int(session.rows("epoch")[0][0])

    def catalog(self) -> Catalog:
        with self._reading() as session:
            return read_catalog(session)

    def documents(self, kind: str) -> list[DocumentRow]:
        with self._reading() as session:
            return [DocumentRow(kind, name, text) for name, text in session.rows("documents", kind)]

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        with self._reading() as session:
            return read_writers(session, prefix)

    def cursor(self, subscription_id: int) -> Cursor:
        with self._reading() as session:
            return read_cursor(session, subscription_id)

    def troubles(self, subscription_id: int) -> list[TroubleRow]:
        with self._reading() as session:
            return read_troubles(session, subscription_id)

    def paused_keys(self, subscription_id: int) -> list[PausedRow]:
        with self._reading() as session:
            return read_paused_keys(session, subscription_id)

    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]:
        with self._reading() as session:
            return read_dead_letters(session, subscription_id)

    def positions(self, topic_id: int, first: int = 0) -> Iterator[Sequence[Position]]:
        while True:
            with self._reading() as session:
                packs = read_positions(session, topic_id, first)
            if not packs:
                return
            first = packs[-1][-1].offset + 1
            yield from packs

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        with self._reading() as session:
            return fetch_records(session, topic_id, offsets)

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        with self._reading() as session:
            return read_records(session, topic_id, first, limit)

    def spans(self, topic_id: int, first: int, end: int) -> Iterator[Span]:
        while first < end:
            with self._reading() as session:
                spans = read_spans(session, topic_id, first, end)
            if not spans:
                return
            first = spans[-1].last + 1
            yield from spans

    def packs(self, topic_id: int, first: int, end: int) -> Iterator[Pack]:
        while first < end:
            with self._reading() as session:
                packs, first = read_packs(session, topic_id, first, end)
            if not packs:
                return
            yield from packs

    def earliest(self, topic_id: int) -> int:
        with self._reading() as session:
            return read_earliest(session, topic_id)

    def check(self) -> Iterator[Problem]:
        from seriatim.store.sql.integrity import find_problems  # it reads what is read here

        return find_problems(self._reading)

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Session]:
        """A session in a transaction that sees one moment of the store."""

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreLost("the store was opened before a fork: open it again in this process")
        if self._unusable:
            raise lost_because(self._unusable, StoreBroken if self._failed else StoreLost)

    def _break(self, why: str) -> None:
        """This handle failed; another one may do better."""
        self._unusable, self._failed = why, True


def read_catalog(session: Session) -> Catalog:
    return Catalog(
        [TopicRow(id_, name, json.loads(options), after) for id_, name, options, after in session.rows("topics")],
        [SubscriptionRow(row[0], row[1], row[2], json.loads(row[3])) for row in session.rows("subscriptions")],
        [ReaderRow(*row) for row in session.rows("readers")],
        [read_snapshot(row) for row in session.rows("snapshots")],
        session.rows("next_token")[0][0],
    )


def read_snapshot(row: Row) -> SnapshotRow:
    name, topic_id, cursor, expires, options = row
    return SnapshotRow(name, topic_id, decode_cursor(cursor), expires, json.loads(options))


def read_writers(session: Session, prefix: str) -> list[tuple[str, int]]:
    return [(name, end_of(json.loads(batches))) for name, batches in session.rows("writers", prefix)]


def read_cursor(session: Session, subscription_id: int) -> Cursor:
    """The blocks, and on top of them what clean-up has not folded in yet."""
    blocks = [(block, decode_block(bits)) for block, bits in session.rows("blocks", subscription_id)]
    settled = SettledSet(_floor(session, subscription_id), blocks)
    for undone, offsets in session.rows("settlements", subscription_id):
        (settled.discard if undone else settled.add)(decode_column("Q", offsets))
    settled.raise_floor()
    return settled.cursor()


def read_troubles(session: Session, subscription_id: int) -> list[TroubleRow]:
    _floor(session, subscription_id)
    rows = session.rows("troubles", subscription_id)
    return [TroubleRow(*row)._replace(steps_aside=bool(row[4])) for row in rows]


def read_paused_keys(session: Session, subscription_id: int) -> list[PausedRow]:
    _floor(session, subscription_id)
    return [PausedRow(key_of(lane), reason) for lane, reason in session.rows("paused_keys", subscription_id)]


def read_dead_letters(session: Session, subscription_id: int) -> list[DeadLetterRow]:
    _floor(session, subscription_id)
    rows = session.rows("dead_letters", subscription_id)
    return [DeadLetterRow(*row)._replace(overtaken=bool(row[7])) for row in rows]


def read_positions(session: Session, topic_id: int, first: int) -> list[list[Position]]:
    """The positions of some packs from ``first`` on; nothing when there are no more."""
    read_next_offset(session, topic_id)
    packs = [PackHead(head).positions() for _, head in session.rows("heads_from", topic_id, first, PACKS_AT_A_TIME)]
    if packs and packs[0][0].offset < first:
        packs[0] = [position for position in packs[0] if position.offset >= first]
    return packs


def fetch_records(session: Session, topic_id: int, offsets: Sequence[int]) -> list[Record]:
    """Pack by pack, each read once however many of its messages are wanted."""
    found: list[Record] = []
    done = 0
    read_next_offset(session, topic_id)
    while done < len(offsets):
        rows = session.rows("pack_from", topic_id, offsets[done])
        if not rows:
            break
        last, head, data = rows[0]
        wanted = [offset for offset in offsets[done : done + last - offsets[done] + 1] if offset <= last]
        found += PackHead(head).select(data, wanted)
        done += len(wanted)
    return found


def read_records(session: Session, topic_id: int, first: int, limit: int) -> list[Record]:
    found: list[Record] = []
    read_next_offset(session, topic_id)
    while len(found) < limit and (rows := session.rows("pack_from", topic_id, first)):
        last, head, data = rows[0]
        found += [record for record in PackHead(head).records(data) if record.offset >= first]
        first = last + 1
    return found[:limit]


def read_spans(session: Session, topic_id: int, first: int, end: int) -> list[Span]:
    """The spans of some packs from ``first`` on; nothing when there are no more below ``end``."""
    read_next_offset(session, topic_id)
    rows = session.rows("packs_from", topic_id, first, SPANS_AT_A_TIME)
    spans = [_span(session, row, first, end) for row in rows if row[1] < end]
    return [span for span in spans if span.messages]


def _span(session: Session, row: Row, first: int, end: int) -> Span:
    """The part of a pack within a range. Only a pack with holes that stands out of it must be looked into."""
    id_, low, high, messages = row[:4]
    if first <= low and high < end:
        return Span(low, high, messages)
    if messages == high - low + 1:
        low, high = max(low, first), min(high, end - 1)
        return Span(low, high, high - low + 1)
    offsets = PackHead(session.rows("pack_head", id_)[0][0]).offsets
    kept = offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]
    return Span(kept[0], kept[-1], len(kept)) if kept else Span(first, first, 0)


def read_packs(session: Session, topic_id: int, first: int, end: int) -> tuple[list[Pack], int]:
    """Some packs that hold messages from ``first`` to below ``end``, and where to go on; no packs when there are no more."""
    found: list[Pack] = []
    size = 0
    read_next_offset(session, topic_id)
    while first < end and size < BYTES_AT_A_TIME and (rows := session.rows("pack_from", topic_id, first)):
        last, head, data = rows[0]
        if PackHead(head).offsets[0] >= end:
            break
        found.append(Pack(bytes(head), bytes(data)))
        size += len(data)
        first = last + 1
    return found, first


def first_kept(session: Session, topic_id: int, first: int) -> int | None:
    """The lowest kept offset from ``first`` on."""
    rows = session.rows("first_kept", topic_id, first)
    if not rows:
        return None
    start, last, messages, id_ = rows[0]
    if first <= start or messages == last - start + 1:
        return max(int(start), first)
    offsets = PackHead(session.rows("pack_head", id_)[0][0]).offsets
    return next(offset for offset in offsets if offset >= first)


def read_earliest(session: Session, topic_id: int) -> int:
    next_offset = read_next_offset(session, topic_id)
    found = first_kept(session, topic_id, 0)
    return next_offset if found is None else found


def read_next_offset(session: Session, topic_id: int) -> int:
    rows = session.rows("next_offset", topic_id)
    if not rows:
        raise NotFound(f"topic '{topic_id}' does not exist")
    return int(rows[0][0])


def _floor(session: Session, subscription_id: int) -> int:
    rows = session.rows("floor", subscription_id)
    if not rows:
        raise NotFound(f"subscription '{subscription_id}' does not exist")
    return int(rows[0][0])
