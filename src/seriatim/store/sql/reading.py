"""The verbs that read, on any SQL database. Each needs a session inside one short transaction."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence

from seriatim.errors import NotFound
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    Pack,
    PausedRow,
    Position,
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
