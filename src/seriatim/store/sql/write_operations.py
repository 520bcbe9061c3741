"""Transactions on any SQL database.

Rules
    - A method that refuses (``NotFound``, ``AlreadyExists``, ``InvalidArgument``) does so before it changes anything.
    - One append is one pack, one settle is one row: the fewer pages a commit writes, the cheaper it is.
    - What the owner knows is not queried again: a commit of appends and settlements then only sends and waits for no answer,
      which on a server saves a round trip per call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from seriatim.core.publishing.dedup import MARK, Claims, Fresh, IdWindow
from seriatim.core.ranges import Range, RangeSet
from seriatim.core.text_checks import check_name
from seriatim.errors import AlreadyExists, DamagedStore, NotFound, StoreFailed
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
from seriatim.store.settled_set import encode_block, encode_cursor
from seriatim.store.sql.reader import read_floor, read_snapshot, staged_heads
from seriatim.store.sql.session import Row, Session
from seriatim.store.staged_messages import IN_DATABASE, read_staged
from seriatim.store.state_checksums import checksum_of
from seriatim.store.validation import (
    checked_letters,
    checked_troubles,
    decode_list,
    decode_options,
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

SETTLED, UNSETTLED = 0, 1


class Known:
    """What the owner remembers between transactions, because no other process can change it.

    After a failed transaction it is invalid: start with a new one.
    """

    def __init__(self) -> None:
        self.next_offsets: dict[int, int] = {}
        self.subscriptions: set[int] = set()
        self.untroubled: set[int] = set()
        """Subscriptions without trouble rows."""
        self.positions: dict[str, int] = {}
        """The positions of writers. A host that writes for a thousand nodes would query a thousand of them per transaction."""
        self.windows: dict[int, IdWindow] = {}
        """The ids that were published to topics."""

    def forget_topic(self) -> None:
        """Forget everything: the subscriptions of a deleted topic are deleted, too, and which they were is not known here."""
        self.next_offsets.clear()
        self.subscriptions.clear()
        self.untroubled.clear()

    def forget_subscription(self, subscription_id: int) -> None:
        self.subscriptions.discard(subscription_id)
        self.untroubled.discard(subscription_id)


class SqlTransaction:
    """A transaction on a session, which the caller begins and ends."""

    def __init__(self, session: Session, known: Known) -> None:
        self._session = session
        self._known = known
        self._fresh: dict[int, tuple[Fresh, float]] = {}

    def finish(self) -> None:
        """Write what was only noted so far: the ids of all publishes to a topic are one row."""
        for topic_id, (fresh, now) in self._fresh.items():
            window = self._known.windows[topic_id]
            window.add(fresh, now)
            if fresh:
                marks = b"".join(fresh.values())
                self._session.run("put_published_ids", topic_id, window.total, now, json.dumps(list(fresh)), marks)

    def topic(self, topic_id: int) -> TopicRow:
        next_offset = self._next_offset(topic_id)
        ((name, options),) = self._session.rows("topic", topic_id)
        return TopicRow(topic_id, name, decode_options(options, f"topic '{name}'"), next_offset)

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
            raise AlreadyExists(f"topic '{name}' already exists")
        (row,) = self._session.rows("create_topic", name, values)
        return TopicRow(row[0], name, dict(options), 0)

    def update_topic(self, topic_id: int, options: Options) -> None:
        _require_one(self._session.rows("update_topic", encode_options(options), topic_id), "topic", topic_id)
        if topic_id in self._known.windows:
            self._known.windows[topic_id].set_options(options)

    def rename_topic(self, topic_id: int, name: str) -> None:
        check_name("topic", name)
        if self._session.rows("topic_named", name):
            raise AlreadyExists(f"topic '{name}' already exists")
        _require_one(self._session.rows("rename_topic", name, topic_id), "topic", topic_id)

    def delete_topic(self, topic_id: int) -> None:
        _require_one(self._session.rows("delete_topic", topic_id), "topic", topic_id)
        self._known.forget_topic()
        self._known.windows.pop(topic_id, None)
        self._fresh.pop(topic_id, None)

    def create_subscription(self, topic_id: int, name: str, options: Options, cursor: Cursor) -> SubscriptionRow:
        check_name("subscription", name)
        require_cursor(cursor)
        values = encode_options(options)
        since = self._next_offset(topic_id)
        if self._session.rows("subscription_named", topic_id, name):
            raise AlreadyExists(f"subscription '{name}' already exists")
        checksum = checksum_of(cursor.floor, since)
        (row,) = self._session.rows("create_subscription", topic_id, name, values, cursor.floor, since, checksum)
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
        for staged, query, data in self._staged(file):
            head = PackHead(staged).stamped(first, published)
            pack = PackHead(head)
            last, size = first + pack.count - 1, len(head) + sum(pack.data_sizes)
            self._session.run(query, topic_id, first, last, pack.count, size, published, False, head, *data)
            self._known.next_offsets[topic_id] = first = last + 1
            if seen is not None:
                seen(pack.headers())

    def _staged(self, name: str) -> Iterator[tuple[bytes, str, Row]]:
        """The head of each staged pack, the query that appends it, and the data or the place of it."""
        if not name.startswith(IN_DATABASE):
            yield from ((head, "append_pack", (data,)) for head, data in read_staged(Path(name)))
            return
        attempt = name.removeprefix(IN_DATABASE)
        for place, head in staged_heads(self._session, attempt):
            yield head, "append_staged_pack", (attempt, place)

    def settle(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self._require_subscription(subscription_id)
        if offsets:
            self._session.run("settle", subscription_id, SETTLED, encode_offsets(offsets, subscription_id, SETTLED))
            self._forget_troubles(subscription_id, offsets)

    def note_troubles(self, subscription_id: int, troubles: Iterable[TroubleRow]) -> None:
        self._require_subscription(subscription_id)
        rows = [(subscription_id, *trouble) for trouble in checked_troubles(troubles)]
        self._session.run_many("note_trouble", [(*row, checksum_of(*row)) for row in rows])
        self._known.untroubled.discard(subscription_id)

    def pause_key(self, subscription_id: int, key: str | None, reason: str | None) -> None:
        self._require_subscription(subscription_id)
        require_pause(key, reason)
        row = (subscription_id, lane_of(key), reason)
        self._session.run("pause_key", *row, checksum_of(*row))

    def resume_key(self, subscription_id: int, key: str | None) -> None:
        self._require_subscription(subscription_id)
        require_pause(key, None)
        self._session.run("resume_key", subscription_id, lane_of(key))

    def bury(self, subscription_id: int, letters: Iterable[DeadLetterRow]) -> None:
        self._require_subscription(subscription_id)
        letters = checked_letters(letters)
        self._session.run_many("bury", [_row_of_letter(subscription_id, letter) for letter in letters])
        self._forget_troubles(subscription_id, [letter.offset for letter in letters])

    def overtake(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self._require_subscription(subscription_id)
        encode_offsets(offsets)
        self._session.run_many("overtake", [(subscription_id, offset) for offset in offsets])

    def unbury(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self._require_subscription(subscription_id)
        undone = encode_offsets(offsets, subscription_id, UNSETTLED)
        self._session.run_many("forget_dead_letter", [(subscription_id, offset) for offset in offsets])
        self._session.run("settle", subscription_id, UNSETTLED, undone)

    def purge(self, subscription_id: int, offsets: Sequence[int]) -> None:
        self.settle(subscription_id, offsets)
        self._session.run_many("forget_dead_letter", [(subscription_id, offset) for offset in offsets])

    def seek(self, subscription_id: int, cursor: Cursor) -> None:
        self._require_subscription(subscription_id)
        require_cursor(cursor)
        _, since = read_floor(self._session, subscription_id)
        set_floor(self._session, subscription_id, cursor.floor, since)
        self._session.run("pass_offsets", cursor.floor, subscription_id)
        self._known.next_offsets.clear()  # of which topic is not known here
        for query in ("forget_settlements", "delete_blocks", "forget_troubles"):
            self._session.run(query, subscription_id)
        self._put_blocks(subscription_id, cursor)

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

    def claim_ids(self, topic_id: int, claims: Claims, now: float) -> dict[int, int]:
        windows = self._known.windows
        if topic_id not in windows:
            windows[topic_id] = self._window(topic_id)
        fresh, _ = self._fresh[topic_id] = self._fresh.get(topic_id, ({}, now))
        return windows[topic_id].claim(claims, fresh, now)

    def _window(self, topic_id: int) -> IdWindow:
        window = IdWindow(self.topic(topic_id).options)
        for total, time, ids, marks in self._session.rows("published_ids", topic_id):
            names = decode_list(ids)
            if len(marks) != MARK.size * len(names):
                raise DamagedStore("the ids of published messages are damaged: restore a backup")
            starts = range(0, len(marks), MARK.size)
            window.add({name: marks[at : at + MARK.size] for name, at in zip(names, starts, strict=True)}, time)
            window.total = total
        return window

    def take_from_outbox(self, ids: Sequence[int]) -> None:
        if len(self._session.rows("take_from_outbox", list(ids))) != len(ids):
            raise StoreFailed("messages vanished from the outbox: somebody else deleted them")

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
        return [(lo, hi) for lo, hi in decode_list(found[0][0])] if found else []

    def _next_offset(self, topic_id: int) -> int:
        known = self._known.next_offsets
        self._session.require_unbroken()
        if topic_id not in known:
            found = self._session.rows("next_offset", topic_id)
            _require_one(found, "topic", topic_id)
            known[topic_id] = found[0][0]
        return known[topic_id]

    def _pass_offsets(self, topic_id: int, end: int) -> None:
        """No message is assigned an offset below ``end`` any more."""
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
        put_blocks(self._session, subscription_id, {block: bits for block, bits in cursor.blocks.items() if bits})


def put_blocks(session: Session, subscription_id: int, blocks: Mapping[int, int]) -> None:
    rows = [(subscription_id, block, encode_block(bits, subscription_id, block)) for block, bits in blocks.items()]
    session.run_many("put_block", rows)


def set_floor(session: Session, subscription_id: int, floor: int, since: int) -> None:
    session.run("set_floor", floor, checksum_of(floor, since), subscription_id)


def _row_of_letter(subscription_id: int, letter: DeadLetterRow) -> Row:
    *columns, overtaken = letter
    checksum = checksum_of(subscription_id, *columns)
    return (subscription_id, *letter, -1 - checksum if overtaken else checksum)


def write_pack(session: Session, topic_id: int, records: Sequence[Record], *, leftover: bool) -> None:
    """One row for records with rising offsets."""
    head, data = encode(records)
    first, last, newest = records[0].offset, records[-1].offset, max([record.published for record in records])
    size = len(head) + len(data)
    session.run("append_pack", topic_id, first, last, len(records), size, newest, leftover, head, data)


def _require_one(rows: Sequence[Row], what: str, which: object) -> None:
    if not rows:
        raise NotFound(f"{what} '{which}' does not exist")
