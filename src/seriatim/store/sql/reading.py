"""The verbs that read, on any SQL database. Each needs a session inside one short transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence

from seriatim.errors import NotFound
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    PausedRow,
    Position,
    ReaderRow,
    Record,
    SnapshotRow,
    SubscriptionRow,
    TopicRow,
    TroubleRow,
)
from seriatim.store.columns import decode_column
from seriatim.store.pack import PackHead
from seriatim.store.rules import key_of
from seriatim.store.settled import SettledSet, decode_block, decode_cursor
from seriatim.store.sql.session import Session

PACKS_AT_A_TIME = 64
"""How many heads are read in one transaction while all positions are listed."""


def read_catalog(session: Session) -> Catalog:
    return Catalog(
        [TopicRow(id_, name, json.loads(options), after) for id_, name, options, after in session.rows("topics")],
        [SubscriptionRow(row[0], row[1], row[2], json.loads(row[3])) for row in session.rows("subscriptions")],
        [ReaderRow(*row) for row in session.rows("readers")],
        [
            SnapshotRow(name, topic_id, decode_cursor(cursor), expires, json.loads(options))
            for name, topic_id, cursor, expires, options in session.rows("snapshots")
        ],
        session.rows("next_token")[0][0],
    )


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
