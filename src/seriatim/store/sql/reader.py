"""The reading methods of a store on any SQL database. A dialect adds how a short transaction is opened.

The functions at the end work on a session inside a transaction; writing and clean-up use them, too.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from seriatim.errors import DamagedStore, NotFound, StoreBroken, StoreLost
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    DocumentRow,
    MessageHeader,
    OutboxRow,
    Pack,
    PausedRow,
    Problem,
    ReaderRow,
    Record,
    SnapshotRow,
    Span,
    SubscriptionRow,
    TopicRow,
    TroubleRow,
)
from seriatim.store.pack import PackHead
from seriatim.store.settled_set import SettledSet, decode_block, decode_cursor
from seriatim.store.sql.pool import Pool
from seriatim.store.sql.session import Row, Session
from seriatim.store.state_checksums import require_checksum
from seriatim.store.validation import decode_list, decode_offsets, decode_options, end_of, key_of

MAX_PACKS_AT_A_TIME = 64
"""How many heads are read in one transaction, at most, while headers are listed."""

SPANS_AT_A_TIME = 1024
"""How many packs are looked at in one transaction while spans are listed."""

BYTES_AT_A_TIME = 4 * 1024 * 1024
"""A transaction that reads packs ends when it has read this many bytes."""

TAKEN_OVER = "another process has taken it over"


def lost_because(reason: str, kind: type[StoreLost] = StoreLost) -> StoreLost:
    return kind(f"the store can't be used any more, because {reason}: open it again")


class SqlReader(ABC):
    """Owns nothing and only reads. A handle belongs to the process that opened it."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool
        self._pid = os.getpid()
        self._unusable: str | None = None
        self._failed = False

    @property
    def epoch(self) -> int:
        with self.reading() as session:
            return int(session.rows("epoch")[0][0])

    def catalog(self) -> Catalog:
        with self.reading() as session:
            return Catalog(
                [
                    TopicRow(id_, name, decode_options(text, f"topic '{name}'"), after)
                    for id_, name, text, after in session.rows("topics")
                ],
                [
                    SubscriptionRow(id_, topic_id, name, decode_options(text, f"subscription '{name}'"))
                    for id_, topic_id, name, text in session.rows("subscriptions")
                ],
                [ReaderRow(*row) for row in session.rows("readers")],
                [read_snapshot(row) for row in session.rows("snapshots")],
            )

    def documents(self, kind: str) -> list[DocumentRow]:
        with self.reading() as session:
            return [DocumentRow(kind, name, text) for name, text in session.rows("documents", kind)]

    def outbox(self) -> list[OutboxRow] | None:
        return None

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        with self.reading() as session:
            return [(name, end_of(decode_list(batches))) for name, batches in session.rows("writers", prefix)]

    def cursor(self, subscription_id: int) -> Cursor:
        """The blocks, plus the settlements that clean-up has not folded into them yet."""
        with self.reading() as session:
            floor, _ = read_floor(session, subscription_id)
            rows = session.rows("blocks", subscription_id)
            settled = SettledSet(floor, [(block, decode_block(bits, subscription_id, block)) for block, bits in rows])
            for undone, offsets in session.rows("settlements", subscription_id):
                (settled.discard if undone else settled.add)(decode_offsets(offsets, subscription_id, undone))
        settled.raise_floor()
        return settled.cursor()

    def troubles(self, subscription_id: int) -> list[TroubleRow]:
        rows = self._rows_of("troubles", subscription_id)
        _require_intact("what is known of message", subscription_id, rows)
        return [TroubleRow(*row[:5])._replace(steps_aside=bool(row[4])) for row in rows]

    def paused_keys(self, subscription_id: int) -> list[PausedRow]:
        rows = self._rows_of("paused_keys", subscription_id)
        _require_intact("the pause of", subscription_id, rows)
        return [PausedRow(key_of(lane), reason) for lane, reason, _ in rows]

    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]:
        rows = self._rows_of("dead_letters", subscription_id)
        _require_intact("the dead letter", subscription_id, ((*row[:7], row[8]) for row in rows))
        return [DeadLetterRow(*row[:8])._replace(overtaken=bool(row[7])) for row in rows]

    def _rows_of(self, query: str, subscription_id: int) -> list[Row]:
        with self.reading() as session:
            read_floor(session, subscription_id)
            return session.rows(query, subscription_id)

    def headers(self, topic_id: int, first: int = 0) -> Iterator[Sequence[MessageHeader]]:
        packs_at_a_time = 1  # whoever reads may stop soon
        while True:
            with self.reading() as session:
                read_next_offset(session, topic_id)
                heads = session.rows("heads_from", topic_id, first, packs_at_a_time)
                packs = [PackHead(head).headers() for _, head in heads]
            if not packs:
                return
            if packs[0][0].offset < first:
                packs[0] = [header for header in packs[0] if header.offset >= first]
                if not packs[0]:
                    raise DamagedStore("a pack is listed with messages that it does not hold: restore a backup")
            first = packs[-1][-1].offset + 1
            yield from packs
            packs_at_a_time = min(2 * packs_at_a_time, MAX_PACKS_AT_A_TIME)

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        """Pack by pack, each read once however many of its messages are wanted."""
        found: list[Record] = []
        done = 0
        with self.reading() as session:
            read_next_offset(session, topic_id)
            while done < len(offsets) and (rows := session.rows("pack_from", topic_id, offsets[done])):
                last, head, data = rows[0]
                wanted = [offset for offset in offsets[done : done + last - offsets[done] + 1] if offset <= last]
                found += PackHead(head).select(data, wanted)
                done += len(wanted)
        return found

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        found: list[Record] = []
        with self.reading() as session:
            read_next_offset(session, topic_id)
            while len(found) < limit and (rows := session.rows("pack_from", topic_id, first)):
                last, head, data = rows[0]
                found += [record for record in PackHead(head).records(data) if record.offset >= first]
                first = last + 1
        return found[:limit]

    def spans(self, topic_id: int, first: int, end: int) -> Iterator[Span]:
        while first < end:
            with self.reading() as session:
                read_next_offset(session, topic_id)
                rows = session.rows("packs_from", topic_id, first, SPANS_AT_A_TIME)
                spans = [_span(session, row, first, end) for row in rows if row[1] < end]
            found = [span for span in spans if span.messages]
            if not found:
                return
            first = found[-1].last + 1
            yield from found

    def packs(self, topic_id: int, first: int, end: int) -> Iterator[Pack]:
        while first < end:
            found: list[Pack] = []
            size = 0
            with self.reading() as session:
                read_next_offset(session, topic_id)
                while first < end and size < BYTES_AT_A_TIME and (rows := session.rows("pack_from", topic_id, first)):
                    last, head, data = rows[0]
                    if PackHead(head).offsets[0] >= end:
                        break
                    found.append(Pack(bytes(head), bytes(data)))
                    size += len(data)
                    first = last + 1
            if not found:
                return
            yield from found

    def earliest(self, topic_id: int) -> int:
        with self.reading() as session:
            next_offset = read_next_offset(session, topic_id)
            found = first_kept(session, topic_id, 0)
        return next_offset if found is None else found

    def size(self) -> int | None:
        with self.reading() as session:
            return int(session.rows("size")[0][0])

    def check(self) -> Iterator[Problem]:
        from seriatim.store.sql.integrity import find_problems  # it knows this class

        return find_problems(self)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._unusable = self._unusable or "it was closed"
            self._pool.close()

    @abstractmethod
    def reading(self) -> AbstractContextManager[Session]:
        """A session in a transaction with a consistent view of the store."""

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreLost("the store was opened before a fork: open it again in this process")
        if self._unusable:
            raise lost_because(self._unusable, StoreBroken if self._failed else StoreLost)

    def _break(self, why: str) -> None:
        """This handle failed; a new one may work."""
        self._unusable, self._failed = why, True


def read_snapshot(row: Row) -> SnapshotRow:
    name, topic_id, cursor, expires, options = row
    return SnapshotRow(name, topic_id, decode_cursor(cursor), expires, decode_options(options, f"snapshot '{name}'"))


def read_next_offset(session: Session, topic_id: int) -> int:
    rows = session.rows("next_offset", topic_id)
    if not rows:
        raise NotFound(f"topic '{topic_id}' does not exist")
    return int(rows[0][0])


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


def _span(session: Session, row: Row, first: int, end: int) -> Span:
    """The part of a pack within a range. Only a pack with holes that extends beyond the range must be read."""
    id_, low, high, messages = row[:4]
    if first <= low and high < end:
        return Span(low, high, messages)
    if messages == high - low + 1:
        low, high = max(low, first), min(high, end - 1)
        return Span(low, high, high - low + 1)
    offsets = PackHead(session.rows("pack_head", id_)[0][0]).offsets
    kept = offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]
    return Span(kept[0], kept[-1], len(kept)) if kept else Span(first, first, 0)


def staged_heads(session: Session, attempt: str) -> Iterator[tuple[int, bytes]]:
    """The packs that an attempt staged in the database, by their places; some of them are in memory at a time."""
    last = -1
    while rows := session.rows("staged_heads", attempt, last, MAX_PACKS_AT_A_TIME):
        yield from ((place, head) for place, head in rows)
        last = rows[-1][0]


def read_floor(session: Session, subscription_id: int) -> tuple[int, int]:
    """The floor of a subscription, and the next offset of its topic when it began."""
    rows = session.rows("floor", subscription_id)
    if not rows:
        raise NotFound(f"subscription '{subscription_id}' does not exist")
    return intact_floor(subscription_id, *rows[0])


def _require_intact(what: str, subscription_id: int, rows: Iterable[Row]) -> None:
    """``rows`` end with their checksums."""
    for *columns, checksum in rows:
        require_checksum(
            checksum, f"{what} {columns[0]!r} in subscription {subscription_id}", subscription_id, *columns
        )


def intact_floor(subscription_id: int, floor: int, since: int, checksum: int) -> tuple[int, int]:
    require_checksum(checksum, f"the floor of subscription {subscription_id}", floor, since)
    return floor, since
