"""A store in memory: for tests, for experiments, and for work that may be lost.

Rules
    - It behaves like the other stores in everything but durability, and passes the same contract suite.

Theory of operation
    The catalog (topics, subscriptions, readers, snapshots) is a small ``_Draft`` that a transaction copies and changes.
    Changes to messages are validated immediately and applied when the transaction commits: until then they are invisible, and
    a transaction that raises has nothing to undo. A lock gives each commit and each read one consistent moment.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from seriatim.core.publishing.dedup import Claims, Fresh, IdWindow
from seriatim.core.ranges import RangeSet
from seriatim.core.text_checks import check_name
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, StoreLost
from seriatim.store.base import (
    Catalog,
    Cursor,
    DeadLetterRow,
    DocumentRow,
    MessageHeader,
    Options,
    Pack,
    PausedRow,
    Problem,
    ReaderRow,
    Record,
    Seen,
    SnapshotRow,
    Span,
    SubscriptionRow,
    TopicRow,
    Transaction,
    TroubleRow,
    UpkeepReport,
)
from seriatim.store.pack import PackHead, encode, require_encodable
from seriatim.store.retention import Follower, Retention
from seriatim.store.settled_set import SettledSet
from seriatim.store.staged_messages import check_staged, read_staged
from seriatim.store.validation import (
    checked_letters,
    checked_troubles,
    decode_options,
    encode_offsets,
    encode_options,
    end_of,
    key_of,
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

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Reader(NamedTuple):
    """A reader, and the next offset of its topic when it began."""

    row: ReaderRow
    since: int


@dataclass(slots=True)
class _Draft:
    """Everything apart from messages."""

    topics: dict[int, TopicRow] = field(default_factory=dict)
    subscriptions: dict[int, SubscriptionRow] = field(default_factory=dict)
    readers: dict[str, _Reader] = field(default_factory=dict)
    snapshots: dict[str, SnapshotRow] = field(default_factory=dict)
    documents: dict[tuple[str, str], DocumentRow] = field(default_factory=dict)
    batches: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    last_id: int = 0

    def copy(self) -> _Draft:
        return _Draft(
            dict(self.topics),
            dict(self.subscriptions),
            dict(self.readers),
            dict(self.snapshots),
            dict(self.documents),
            dict(self.batches),
            self.last_id,
        )

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def pass_offsets(self, topic_id: int, end: int) -> None:
        """No message gets an offset below ``end`` any more."""
        topic = self.topic(topic_id)
        self.topics[topic_id] = replace(topic, next_offset=max(topic.next_offset, end))

    def topic(self, topic_id: int) -> TopicRow:
        return _found(self.topics, topic_id, "topic")

    def subscription(self, subscription_id: int) -> SubscriptionRow:
        return _found(self.subscriptions, subscription_id, "subscription")


@dataclass(slots=True)
class _Log:
    """The kept messages of a topic, in the packs in which they were appended."""

    ids: IdWindow
    packs: list[list[Record]] = field(default_factory=list)

    def packs_from(self, first: int) -> Iterator[list[Record]]:
        start = bisect_left(self.packs, first, key=lambda pack: pack[-1].offset)
        for index in range(start, len(self.packs)):
            pack = self.packs[index]
            yield pack if pack[0].offset >= first else pack[_place(pack, first) :]

    def find(self, offset: int) -> Record | None:
        index = bisect_left(self.packs, offset, key=lambda pack: pack[-1].offset)
        if index == len(self.packs):
            return None
        record = self.packs[index][_place(self.packs[index], offset)]
        return record if record.offset == offset else None


def _place(pack: list[Record], offset: int) -> int:
    """The index in a pack of the first message at or above an offset."""
    return bisect_left(pack, offset, key=lambda record: record.offset)


@dataclass(slots=True)
class _Lanes:
    """The state of messages within one subscription."""

    settled: SettledSet
    since: int
    troubles: dict[int, TroubleRow] = field(default_factory=dict)
    paused: dict[str, str | None] = field(default_factory=dict)
    buried: dict[int, DeadLetterRow] = field(default_factory=dict)

    def settle(self, offsets: Sequence[int]) -> None:
        self.settled.add(offsets)
        _forget(self.troubles, offsets)

    def bury(self, letters: Sequence[DeadLetterRow]) -> None:
        self.buried.update((letter.offset, letter) for letter in letters)
        _forget(self.troubles, (letter.offset for letter in letters))

    def overtake(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if offset in self.buried:
                self.buried[offset] = self.buried[offset]._replace(overtaken=True)

    def unbury(self, offsets: Sequence[int]) -> None:
        _forget(self.buried, offsets)
        self.settled.discard(offsets)

    def seek(self, cursor: Cursor) -> None:
        self.settled = SettledSet.of(cursor)
        self.troubles.clear()


class MemoryTransaction:
    """One unit of work: a changed draft, and the changes to messages that its commit applies."""

    def __init__(self, draft: _Draft, logs: dict[int, _Log], lanes: dict[int, _Lanes]) -> None:
        self._draft = draft
        self._logs = logs
        self._lanes = lanes
        self._changes: list[Callable[[], object]] = []
        self._fresh: dict[int, Fresh] = {}
        self._over = False

    def end(self) -> tuple[_Draft, list[Callable[[], object]]]:
        """What is to be committed. The transaction can't be used any more."""
        self._over = True
        return self._draft, self._changes

    def topic(self, topic_id: int) -> TopicRow:
        return self._open_draft().topic(topic_id)

    def has_subscriptions(self, topic_id: int) -> bool:
        return any(row.topic_id == topic_id for row in self._open_draft().subscriptions.values())

    def reader(self, name: str) -> ReaderRow | None:
        known = self._open_draft().readers.get(name)
        return None if known is None else known.row

    def snapshot(self, name: str) -> SnapshotRow | None:
        return self._open_draft().snapshots.get(name)

    def create_topic(self, name: str, options: Options) -> TopicRow:
        draft, values = self._open_draft(), _plain(options)
        check_name("topic", name)
        if any(topic.name == name for topic in draft.topics.values()):
            raise AlreadyExists(f"topic '{name}' already exists")
        row = TopicRow(draft.new_id(), name, values, 0)
        draft.topics[row.id] = row
        self._later(lambda: self._logs.update({row.id: _Log(IdWindow(values))}))
        return row

    def update_topic(self, topic_id: int, options: Options) -> None:
        draft = self._open_draft()
        draft.topics[topic_id] = replace(draft.topic(topic_id), options=_plain(options))
        self._later(lambda: self._logs[topic_id].ids.set_options(options))

    def rename_topic(self, topic_id: int, name: str) -> None:
        draft = self._open_draft()
        topic = draft.topic(topic_id)
        check_name("topic", name)
        if any(known.name == name for known in draft.topics.values()):
            raise AlreadyExists(f"topic '{name}' already exists")
        draft.topics[topic_id] = replace(topic, name=name)

    def delete_topic(self, topic_id: int) -> None:
        draft = self._open_draft()
        draft.topic(topic_id)
        for id_ in [row.id for row in draft.subscriptions.values() if row.topic_id == topic_id]:
            self.delete_subscription(id_)
        draft.readers = {name: known for name, known in draft.readers.items() if known.row.topic_id != topic_id}
        draft.snapshots = {name: row for name, row in draft.snapshots.items() if row.topic_id != topic_id}
        del draft.topics[topic_id]
        self._later(lambda: self._logs.pop(topic_id))

    def create_subscription(self, topic_id: int, name: str, options: Options, cursor: Cursor) -> SubscriptionRow:
        draft, values = self._open_draft(), _plain(options)
        check_name("subscription", name)
        require_cursor(cursor)
        since = draft.topic(topic_id).next_offset
        if any((row.topic_id, row.name) == (topic_id, name) for row in draft.subscriptions.values()):
            raise AlreadyExists(f"subscription '{name}' already exists")
        row = SubscriptionRow(draft.new_id(), topic_id, name, values)
        draft.subscriptions[row.id] = row
        draft.pass_offsets(topic_id, cursor.floor)
        self._later(lambda: self._lanes.update({row.id: _Lanes(SettledSet.of(cursor), since)}))
        return row

    def update_subscription(self, subscription_id: int, options: Options) -> None:
        draft = self._open_draft()
        draft.subscriptions[subscription_id] = replace(draft.subscription(subscription_id), options=_plain(options))

    def delete_subscription(self, subscription_id: int) -> None:
        draft = self._open_draft()
        draft.subscription(subscription_id)
        del draft.subscriptions[subscription_id]
        self._later(lambda: self._lanes.pop(subscription_id))

    def append(self, topic_id: int, records: Sequence[Record]) -> None:
        draft = self._open_draft()
        topic = draft.topic(topic_id)
        if records:
            require_rising(records, topic.next_offset)
            require_times(records)
            require_encodable(records)
            draft.topics[topic_id] = replace(topic, next_offset=records[-1].offset + 1)
            pack = list(records)
            self._later(lambda: self._logs[topic_id].packs.append(pack))

    def append_staged(self, topic_id: int, file: str, first: int, published: float, seen: Seen | None = None) -> None:
        require_new(first, self._open_draft().topic(topic_id).next_offset)
        for staged, data in read_staged(Path(file)):
            pack = PackHead(PackHead(staged).stamped(first, published))
            self.append(topic_id, pack.records(data))
            first += pack.count
            if seen is not None:
                seen(pack.headers())

    def settle(self, subscription_id: int, offsets: Sequence[int]) -> None:
        done = _checked(offsets)
        self._change_lanes(subscription_id, lambda lanes: lanes.settle(done))

    def note_troubles(self, subscription_id: int, troubles: Iterable[TroubleRow]) -> None:
        noted = {trouble.offset: trouble for trouble in checked_troubles(troubles)}
        self._change_lanes(subscription_id, lambda lanes: lanes.troubles.update(noted))

    def pause_key(self, subscription_id: int, key: str | None, reason: str | None) -> None:
        require_pause(key, reason)
        self._change_lanes(subscription_id, lambda lanes: lanes.paused.update({lane_of(key): reason}))

    def resume_key(self, subscription_id: int, key: str | None) -> None:
        require_pause(key, None)
        self._change_lanes(subscription_id, lambda lanes: lanes.paused.pop(lane_of(key), None))

    def bury(self, subscription_id: int, letters: Iterable[DeadLetterRow]) -> None:
        buried = checked_letters(letters)
        self._change_lanes(subscription_id, lambda lanes: lanes.bury(buried))

    def overtake(self, subscription_id: int, offsets: Sequence[int]) -> None:
        passed = _checked(offsets)
        self._change_lanes(subscription_id, lambda lanes: lanes.overtake(passed))

    def unbury(self, subscription_id: int, offsets: Sequence[int]) -> None:
        back = _checked(offsets)
        self._change_lanes(subscription_id, lambda lanes: lanes.unbury(back))

    def purge(self, subscription_id: int, offsets: Sequence[int]) -> None:
        gone = _checked(offsets)
        self.settle(subscription_id, gone)
        self._change_lanes(subscription_id, lambda lanes: _forget(lanes.buried, gone))

    def seek(self, subscription_id: int, cursor: Cursor) -> None:
        require_cursor(cursor)
        draft = self._open_draft()
        draft.pass_offsets(draft.subscription(subscription_id).topic_id, cursor.floor)
        self._change_lanes(subscription_id, lambda lanes: lanes.seek(cursor))

    def put_reader(self, reader: ReaderRow) -> None:
        draft = self._open_draft()
        require_reader(reader)
        since = draft.topic(reader.topic_id).next_offset
        known = draft.readers.get(reader.name)
        if known is not None and known.row.topic_id == reader.topic_id:
            since = known.since
        draft.readers[reader.name] = _Reader(reader, since)
        draft.pass_offsets(reader.topic_id, reader.position)

    def delete_reader(self, name: str) -> None:
        check_name("reader", name)
        draft = self._open_draft()
        _found(draft.readers, name, "reader")
        del draft.readers[name]

    def put_document(self, document: DocumentRow) -> None:
        require_document(document)
        self._open_draft().documents[document.kind, document.name] = document

    def delete_document(self, kind: str, name: str) -> None:
        check_name("kind", kind)
        check_name("name", name)
        draft = self._open_draft()
        if draft.documents.pop((kind, name), None) is None:
            raise NotFound(f"{kind} '{name}' does not exist")

    def put_snapshot(self, snapshot: SnapshotRow) -> None:
        draft = self._open_draft()
        require_snapshot(snapshot)
        values = _plain(snapshot.options)
        draft.topic(snapshot.topic_id)
        draft.snapshots[snapshot.name] = snapshot._replace(options=values)

    def delete_snapshot(self, name: str) -> None:
        check_name("snapshot", name)
        draft = self._open_draft()
        _found(draft.snapshots, name, "snapshot")
        del draft.snapshots[name]

    def claim_batch(self, writer: str, batch: int) -> bool:
        draft = self._open_draft()
        require_batch(writer, batch)
        batches = RangeSet(draft.batches.get(writer, ()))
        if batch in batches:
            return False
        batches.add(batch)
        draft.batches[writer] = tuple(batches)
        return True

    def claim_ids(self, topic_id: int, claims: Claims, now: float) -> dict[int, int]:
        topic = self._open_draft().topic(topic_id)
        log = self._logs.get(topic_id)  # None of a topic that this transaction creates
        if topic_id not in self._fresh:
            fresh = self._fresh[topic_id] = {}
            self._later(lambda: self._logs[topic_id].ids.add(fresh, now))
        return (log.ids if log else IdWindow(topic.options)).claim(claims, self._fresh[topic_id], now)

    def take_from_outbox(self, ids: Sequence[int]) -> None:
        raise FailedPrecondition(f"a store in memory has no outbox, so {list(ids)} are not in it")

    def position(self, writer: str) -> int:
        check_name("writer", writer)
        return end_of(self._open_draft().batches.get(writer, ()))

    def move_positions(self, steps: Sequence[tuple[str, int, int]]) -> None:
        for writer, start, end in steps:
            require_position(writer, self.position(writer), start, end)
        batches = self._open_draft().batches
        batches.update((writer, ((0, end - 1),) if end else ()) for writer, _, end in steps)

    def _open_draft(self) -> _Draft:
        if self._over:
            raise FailedPrecondition("this transaction is over: begin a new one")
        return self._draft

    def _change_lanes(self, subscription_id: int, change: Callable[[_Lanes], object]) -> None:
        self._open_draft().subscription(subscription_id)
        self._later(lambda: change(self._lanes[subscription_id]))

    def _later(self, change: Callable[[], object]) -> None:
        self._changes.append(change)


class MemoryStore:
    """Everything is lost with the process."""

    def __init__(self) -> None:
        self._draft = _Draft()
        self._logs: dict[int, _Log] = {}
        self._lanes: dict[int, _Lanes] = {}
        self._state = threading.Lock()
        self._turn = threading.Lock()
        self._writing_thread: int | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def epoch(self) -> int:
        return 1

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        if self._writing_thread == threading.get_ident():
            raise FailedPrecondition("a transaction is under way in this thread: end it first")
        with self._turn:
            self._require_open()
            transaction = MemoryTransaction(self._draft.copy(), self._logs, self._lanes)
            self._writing_thread = threading.get_ident()
            try:
                yield transaction
            finally:
                self._writing_thread = None
                draft, changes = transaction.end()
            with self._state:
                self._draft = draft
                for change in changes:
                    change()

    def catalog(self) -> Catalog:
        with self._reading():
            draft = self._draft
            return Catalog(
                list(draft.topics.values()),
                list(draft.subscriptions.values()),
                [draft.readers[name].row for name in sorted(draft.readers)],
                [draft.snapshots[name] for name in sorted(draft.snapshots)],
            )

    def documents(self, kind: str) -> list[DocumentRow]:
        with self._reading():
            return sorted(row for row in self._draft.documents.values() if row.kind == kind)

    def outbox(self) -> None:
        return None

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        with self._reading():
            batches = self._draft.batches
            return [(name, end_of(batches[name])) for name in sorted(batches) if name.startswith(prefix)]

    def cursor(self, subscription_id: int) -> Cursor:
        with self._reading():
            settled = self._lanes_of(subscription_id).settled
            settled.raise_floor()
            return settled.cursor()

    def troubles(self, subscription_id: int) -> list[TroubleRow]:
        with self._reading():
            return sorted(self._lanes_of(subscription_id).troubles.values())

    def paused_keys(self, subscription_id: int) -> list[PausedRow]:
        with self._reading():
            paused = self._lanes_of(subscription_id).paused
            return [PausedRow(key_of(lane), paused[lane]) for lane in sorted(paused)]

    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]:
        with self._reading():
            buried = self._lanes_of(subscription_id).buried
            return [buried[offset] for offset in sorted(buried)]

    def headers(self, topic_id: int, first: int = 0) -> Iterator[Sequence[MessageHeader]]:
        with self._reading():
            packs = list(self._log(topic_id).packs_from(first))
        for pack in packs:
            yield [MessageHeader(record.offset, record.key, record.attributes, record.not_before) for record in pack]

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        with self._reading():
            log = self._log(topic_id)
            return [record for offset in offsets if (record := log.find(offset))]

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        with self._reading():
            records = chain.from_iterable(self._log(topic_id).packs_from(first))
            return [record for _, record in zip(range(limit), records, strict=False)]

    def spans(self, topic_id: int, first: int, end: int) -> Iterator[Span]:
        with self._reading():
            packs = list(self._log(topic_id).packs_from(first))
        for pack in packs:
            if part := pack[: _place(pack, end)]:
                yield Span(part[0].offset, part[-1].offset, len(part))

    def packs(self, topic_id: int, first: int, end: int) -> Iterator[Pack]:
        with self._reading():
            packs = list(self._log(topic_id).packs_from(first))
        yield from (encode(pack) for pack in packs if pack[0].offset < end)

    def earliest(self, topic_id: int) -> int:
        with self._reading():
            packs = self._log(topic_id).packs
            return packs[0][0].offset if packs else self._draft.topic(topic_id).next_offset

    def size(self) -> int | None:
        return None

    def check_staged(self, file: str, messages: int) -> None:
        check_staged(Path(file), messages)

    def upkeep(self, now: float) -> UpkeepReport:
        """Everything at once, because removing from memory is quick."""
        with self._turn, self._reading():
            snapshots = self._draft.snapshots
            self._draft.snapshots = {name: row for name, row in snapshots.items() if row.expires > now}
            reports = [self._clean(topic, now) for topic in self._draft.topics.values()]
            for lanes in self._lanes.values():
                lanes.settled.raise_floor()
        messages, removed, rewritten = (sum(column) for column in zip((0, 0, 0), *reports, strict=True))
        return UpkeepReport(messages, removed, rewritten, more_to_do=False)

    def _clean(self, topic: TopicRow, now: float) -> tuple[int, int, int]:
        """Messages removed, packs removed, packs made smaller."""
        retention, log, packs = self._retention(topic), self._logs[topic.id], []
        log.ids.forget(now)
        for pack in log.packs:
            newest = max(record.published for record in pack)
            needed = frozenset(retention.needed([record.offset for record in pack], newest, now))
            packs.append([record for record in pack if record.offset in needed])
        lengths = [(len(before), len(after)) for before, after in zip(log.packs, packs, strict=True)]
        log.packs = [pack for pack in packs if pack]
        removed = sum(not after for _, after in lengths)
        return sum(a - b for a, b in lengths), removed, sum(a > b > 0 for a, b in lengths)

    def _retention(self, topic: TopicRow) -> Retention:
        draft = self._draft
        lanes = [self._lanes[row.id] for row in draft.subscriptions.values() if row.topic_id == topic.id]
        readers = [known for known in draft.readers.values() if known.row.topic_id == topic.id]
        return Retention(
            topic.options,
            [
                *(Follower(each.settled, each.since) for each in lanes),
                *(Follower(SettledSet(known.row.position), known.since) for known in readers),
            ],
            [SettledSet.of(row.cursor) for row in draft.snapshots.values() if row.topic_id == topic.id],
            [offset for each in lanes for offset in each.buried],
        )

    def check(self) -> Iterator[Problem]:
        with self._reading():
            names = {topic.id: topic.name for topic in self._draft.topics.values()}
            logs = {id_: [record.offset for pack in log.packs for record in pack] for id_, log in self._logs.items()}
        for id_, offsets in logs.items():
            if offsets != sorted(set(offsets)):
                yield Problem(f"topic '{names[id_]}'", "has offsets that do not rise")

    def backup(self, path: str) -> None:
        raise InvalidArgument(f"memory:// can't be copied to '{path}': use a store with a file")

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._require_open()
        with self._state:
            yield

    def _require_open(self) -> None:
        if self._closed:
            raise StoreLost("the store can't be used any more, because it was closed: open it again")

    def _log(self, topic_id: int) -> _Log:
        return _found(self._logs, topic_id, "topic")

    def _lanes_of(self, subscription_id: int) -> _Lanes:
        return _found(self._lanes, subscription_id, "subscription")


def _forget(rows: dict[int, Value], offsets: Iterable[int]) -> None:
    for offset in offsets:
        rows.pop(offset, None)


def _plain(options: Options) -> Options:
    """Options as they would be read back from JSON."""
    return decode_options(encode_options(options), "a row")


def _checked(offsets: Sequence[int]) -> list[int]:
    encode_offsets(offsets)
    return list(offsets)


def _found(rows: dict[Key, Value], key: Key, what: str) -> Value:
    """The row, or NotFound."""
    if key not in rows:
        raise NotFound(f"{what} '{key}' does not exist")
    return rows[key]
