"""The verbs that write, on any SQL database.

Rules
    - A verb that refuses (``NotFound``, ``AlreadyExists``, ``InvalidArgument``) does so before it changes anything.
    - One append is one pack, one settle is one row: what counts is how few pages ride in each commit.
    - What the owner knows is not asked again: a commit of appends and settlements then only sends, and waits for no answer,
      which on a server saves a round trip for each verb.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from seriatim.core.limits import check_name
from seriatim.core.ranges import Range, RangeSet
from seriatim.errors import AlreadyExists, NotFound
from seriatim.store.base import (
    Cursor,
    DeadLetterRow,
    DocumentRow,
    Options,
    ReaderRow,
    Record,
    Seen,
    SnapshotRow,
    SubscriptionRow,
    TopicRow,
    TroubleRow,
)
from seriatim.store.pack import PackHead, encode
from seriatim.store.rules import (
    checked_letters,
    checked_troubles,
    encode_offsets,
    encode_options,
    end_of,
    lane_of,
    require_batch,
    require_cursor,
    require_document,
    require_new,
    require_pause,
    require_position,
    require_reader,
    require_rising,
    require_snapshot,
    require_times,
)
from seriatim.store.settled import encode_block, encode_cursor
from seriatim.store.sql.reader import read_snapshot
from seriatim.store.sql.session import Row, Session
from seriatim.store.staging import read_staged

SETTLED, UNSETTLED = 0, 1


class Known:
    """What an owner remembers from one transaction to the next, because nobody else can change it.

    After a transaction that failed it is worth nothing: begin with a new one.
    """

    def __init__(self) -> None:
        self.next_offsets: dict[int, int] = {}
        self.subscriptions: set[int] = set()
        self.untroubled: set[int] = set()
        """Subscriptions that have no trouble to forget."""
        self.positions: dict[str, int] = {}
        """Where writers stand. A host that writes for a thousand nodes would ask a thousand times in each transaction."""

    def forget_topic(self) -> None:
        """Subscriptions go with a topic, and which ones is not known here."""
        self.next_offsets.clear()
        self.subscriptions.clear()
        self.untroubled.clear()

    def forget_subscription(self, subscription_id: int) -> None:
        self.subscriptions.discard(subscription_id)
        self.untroubled.discard(subscription_id)


class SqlTransaction:
    """One unit of work on a session whose transaction the caller begins and ends."""

    def __init__(self, session: Session, known: Known) -> None:
        self._session = session
        self._known = known

    def topic(self, topic_id: int) -> TopicRow:
        next_offset = self._next_offset(topic_id)
        ((name, options),) = self._session.rows("topic", topic_id)
        return TopicRow(topic_id, name, json.loads(options), next_offset)

    def has_subscriptions(self, topic_id: int) -> bool:
        return bool(self._session.rows("subscriptions_of_topic", topic_id))

    def reader(self, name: str) -> ReaderRow | None:
        found = self._session.rows("reader", name)
        return ReaderRow(*found[0]) if found else None

    def snapshot(self, name: str) -> SnapshotRow | None:
        found = self._session.rows("snapshot", name)
        return read_snapshot(found[0]) if found else None

    def create_topic(self, name: str, options: Options) -> TopicRow:
        check_name("topic", name)
        values = encode_options(options)
        if self._session.rows("topic_named", name):
            raise AlreadyExists(f"topic '{name}' exists already")
        (row,) = self._session.rows("create_topic", name, values)
        return TopicRow(row[0], name, dict(options), 0)

    def update_topic(self, topic_id: int, options: Options) -> None:
        _require_one(self._session.rows("update_topic", encode_options(options), topic_id), "topic", topic_id)

    def rename_topic(self, topic_id: int, name: str) -> None:
        check_name("topic", name)
        if self._session.rows("topic_named", name):
            raise AlreadyExists(f"topic '{name}' exists already")
        _require_one(self._session.rows("rename_topic", name, topic_id), "topic", topic_id)

    def delete_topic(self, topic_id: int) -> None:
        _require_one(self._session.rows("delete_topic", topic_id), "topic", topic_id)
        self._known.forget_topic()

    def create_subscription(self, topic_id: int, name: str, options: Options, cursor: Cursor) -> SubscriptionRow:
        check_name("subscription", name)
        require_cursor(cursor)
        values = encode_options(options)
        since = self._next_offset(topic_id)
        if self._session.rows("subscription_named", topic_id, name):
            raise AlreadyExists(f"subscription '{name}' exists already")
        (row,) = self._session.rows("create_subscription", topic_id, name, values, cursor.floor, since)
        self._pass_offsets(topic_id, cursor.floor)
        self._put_blocks(row[0], cursor)
        return SubscriptionRow(row[0], topic_id, name, dict(options))

    def update_subscription(self, subscription_id: int, options: Options) -> None:
        changed = self._session.rows("update_subscription", encode_options(options), subscription_id)
        _require_one(changed, "subscription", subscription_id)

    def delete_subscription(self, subscription_id: int) -> None:
        _require_one(self._session.rows("delete_subscription", subscription_id), "subscription", subscription_id)
        self._known.forget_subscription(subscription_id)

    def append(self, topic_id: int, records: Sequence[Record]) -> None:
        next_offset = self._next_offset(topic_id)
        if records:
            require_rising(records, next_offset)
            require_times(records)
            write_pack(self._session, topic_id, records, leftover=False)
            self._known.next_offsets[topic_id] = records[-1].offset + 1

    def append_staged(self, topic_id: int, file: str, first: int, published: float, seen: Seen | None = None) -> None:
        require_new(first, self._next_offset(topic_id))
        for staged, data in read_staged(Path(file)):
            head = PackHead(staged).stamped(first, published)
            pack = PackHead(head)
            last, size = first + pack.count - 1, len(head) + len(data)
            self._session.run("append_pack", topic_id, first, last, pack.count, size, published, False, head, data)
            self._known.next_offsets[topic_id] = first = last + 1
            if seen is not None:
                seen(pack.positions())

    def settle(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self._require_subscription(subscription_id)
        if offsets:
            self._session.run("settle", subscription_id, SETTLED, encode_offsets(offsets))
            self._forget_troubles(subscription_id, offsets)

    def note_troubles(self, subscription_id: int, troubles: Iterable[TroubleRow]) -> None:
        self._require_subscription(subscription_id)
        rows = [(subscription_id, *trouble) for trouble in checked_troubles(troubles)]
        self._session.run_many("note_trouble", rows)
        self._known.untroubled.discard(subscription_id)

    def pause_key(self, subscription_id: int, key: str | None, reason: str | None) -> None:
        self._require_subscription(subscription_id)
        require_pause(key, reason)
        self._session.run("pause_key", subscription_id, lane_of(key), reason)

    def resume_key(self, subscription_id: int, key: str | None) -> None:
        self._require_subscription(subscription_id)
        require_pause(key, None)
        self._session.run("resume_key", subscription_id, lane_of(key))

    def bury(self, subscription_id: int, letters: Iterable[DeadLetterRow]) -> None:
        self._require_subscription(subscription_id)
        letters = checked_letters(letters)
        self._session.run_many("bury", [(subscription_id, *letter) for letter in letters])
        self._forget_troubles(subscription_id, [letter.offset for letter in letters])

    def overtake(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self._require_subscription(subscription_id)
        encode_offsets(offsets)
        self._session.run_many("overtake", [(subscription_id, offset) for offset in offsets])

    def unbury(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self._require_subscription(subscription_id)
        undone = encode_offsets(offsets)
        self._session.run_many("forget_dead_letter", [(subscription_id, offset) for offset in offsets])
        self._session.run("settle", subscription_id, UNSETTLED, undone)

    def purge(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self.settle(subscription_id, offsets)
        self._session.run_many("forget_dead_letter", [(subscription_id, offset) for offset in offsets])

    def seek(self, subscription_id: int, cursor: Cursor) -> None:
        self._require_subscription(subscription_id)
        require_cursor(cursor)
        self._session.run("set_floor", cursor.floor, subscription_id)
        self._session.run("pass_offsets", cursor.floor, subscription_id)
        self._known.next_offsets.clear()  # of which topic is not known here
        for query in ("forget_settlements", "delete_blocks", "forget_troubles"):
            self._session.run(query, subscription_id)
        self._put_blocks(subscription_id, cursor)

    def reserve_tokens(self, next_token: int) -> None:
        self._session.run("reserve_tokens", next_token)

    def put_reader(self, reader: ReaderRow) -> None:
        require_reader(reader)
        since = self._next_offset(reader.topic_id)
        self._session.run("put_reader", *reader, since)
        self._pass_offsets(reader.topic_id, reader.position)

    def delete_reader(self, name: str) -> None:
        check_name("reader", name)
        _require_one(self._session.rows("delete_reader", name), "reader", name)

    def put_document(self, document: DocumentRow) -> None:
        require_document(document)
        self._session.run("put_document", *document)

    def delete_document(self, kind: str, name: str) -> None:
        check_name("kind", kind)
        check_name("name", name)
        _require_one(self._session.rows("delete_document", kind, name), kind, name)

    def put_snapshot(self, snapshot: SnapshotRow) -> None:
        require_snapshot(snapshot)
        name, topic_id, cursor, expires, options = snapshot
        values = encode_options(options)
        self._next_offset(topic_id)
        self._session.run("put_snapshot", name, topic_id, encode_cursor(cursor), expires, values)

    def delete_snapshot(self, name: str) -> None:
        check_name("snapshot", name)
        _require_one(self._session.rows("delete_snapshot", name), "snapshot", name)

    def claim_batch(self, writer: str, batch: int) -> bool:
        require_batch(writer, batch)
        batches = RangeSet(self._batches(writer))
        if batch in batches:
            return False
        batches.add(batch)
        self._known.positions.pop(writer, None)
        self._session.run("put_batches_of_writer", writer, json.dumps(list(batches)))
        return True

    def position(self, writer: str) -> int:
        self._session.require_unbroken()
        known = self._known.positions
        if writer not in known:
            check_name("writer", writer)
            known[writer] = end_of(self._batches(writer))
        return known[writer]

    def move_positions(self, steps: Sequence[tuple[str, int, int]]) -> None:
        for writer, start, end in steps:
            require_position(writer, self.position(writer), start, end)
        self._known.positions.update((writer, end) for writer, _, end in steps)
        rows = [(writer, f"[[0, {end - 1}]]" if end else "[]") for writer, _, end in steps]
        self._session.run_many("put_batches_of_writer", rows)

    def _batches(self, writer: str) -> list[Range]:
        found = self._session.rows("batches_of_writer", writer)
        return [(lo, hi) for lo, hi in json.loads(found[0][0])] if found else []

    def _next_offset(self, topic_id: int) -> int:
        known = self._known.next_offsets
        self._session.require_unbroken()
        if topic_id not in known:
            found = self._session.rows("next_offset", topic_id)
            _require_one(found, "topic", topic_id)
            known[topic_id] = found[0][0]
        return known[topic_id]

    def _pass_offsets(self, topic_id: int, end: int) -> None:
        """No message gets an offset below ``end`` any more."""
        if end > self._next_offset(topic_id):
            self._session.run("remember_next_offset", end, topic_id)
            self._known.next_offsets[topic_id] = end

    def _require_subscription(self, subscription_id: int) -> None:
        self._session.require_unbroken()
        if subscription_id not in self._known.subscriptions:
            _require_one(self._session.rows("floor", subscription_id), "subscription", subscription_id)
            self._known.subscriptions.add(subscription_id)

    def _forget_troubles(self, subscription_id: int, offsets: Sequence[int]) -> None:
        if subscription_id in self._known.untroubled:
            return
        if self._session.rows("has_troubles", subscription_id):
            self._session.run_many("forget_trouble", [(subscription_id, offset) for offset in offsets])
        else:
            self._known.untroubled.add(subscription_id)

    def _put_blocks(self, subscription_id: int, cursor: Cursor) -> None:
        blocks = [(subscription_id, block, encode_block(bits)) for block, bits in cursor.blocks.items() if bits]
        self._session.run_many("put_block", blocks)


def write_pack(session: Session, topic_id: int, records: Sequence[Record], *, leftover: bool) -> None:
    """One row for records with rising offsets."""
    head, data = encode(records)
    first, last, newest = records[0].offset, records[-1].offset, max([record.published for record in records])
    size = len(head) + len(data)
    session.run("append_pack", topic_id, first, last, len(records), size, newest, leftover, head, data)


def _require_one(rows: Sequence[Row], what: str, which: object) -> None:
    if not rows:
        raise NotFound(f"{what} '{which}' does not exist")
