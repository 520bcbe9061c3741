"""Clean-up, on any SQL database: in bounded pieces, each one transaction.

Theory of operation
    A **sweep** goes once through every topic. Each piece first folds settlement rows into the blocks of their subscriptions,
    oldest first, because nothing may be judged while a message that was unsettled again still looks settled. Then it walks the
    packs of a topic from the lowest on, a slice at a time, with only those blocks in memory that the slice needs:

    - a pack of which nothing is needed is deleted;
    - a pack of which at least half of the bytes may go is written anew without them, together with its neighbours of the same
      kind, so that one blocked key can't pin the rest, and leftovers do not stay scattered in many small packs; but not while
      it is young, because the rest of it will most likely be settled in a moment;
    - blocks in which no message is kept any more are dropped: what they say means nothing.

    A piece ends after so many settlement rows, packs or bytes; where it ended is remembered, and the next one goes on there.
    When the sweep is over, the next call begins a new one. A sweep that finds nothing to do changes nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seriatim.store.base import BLOCK, Options, Record, UpkeepReport
from seriatim.store.columns import decode_column
from seriatim.store.pack import PackHead
from seriatim.store.retention import LEFTOVER_BYTES, LEFTOVER_MESSAGES, Follower, Retention, is_mostly_removable
from seriatim.store.settled import SettledSet, decode_block, decode_cursor, encode_block
from seriatim.store.sql.reader import first_kept, read_next_offset
from seriatim.store.sql.session import Row, Session
from seriatim.store.sql.transaction import write_pack

# A piece keeps commits waiting, so it is kept to a few milliseconds.
SETTLEMENTS_A_PIECE = 200
OFFSETS_A_PIECE = 20_000
PACKS_A_PIECE = 64
BYTES_A_PIECE = 1024 * 1024
BLOCKS_A_RISE = 256

REWRITING_AGE = 10.0
"""Seconds for which a pack is left as it is, or deleted whole."""


class PackRow(NamedTuple):
    """What is known of a pack without reading it."""

    id: int
    first: int
    last: int
    messages: int
    bytes: int
    newest: float
    leftover: int

    @property
    def is_dense(self) -> bool:
        return self.messages == self.last - self.first + 1

    @property
    def is_small_leftover(self) -> bool:
        return bool(self.leftover) and self.bytes < LEFTOVER_BYTES // 2 and self.messages < LEFTOVER_MESSAGES // 2


@dataclass(slots=True)
class Walk:
    """How far a sweep has come in one topic."""

    topic_id: int
    position: int = 0
    kept_block: int = -1
    """The last block that is known to hold a kept message."""


@dataclass(slots=True)
class Tally:
    """What one piece has done."""

    messages: int = 0
    removed: int = 0
    rewritten: int = 0
    bytes: int = 0


class Sweep:
    """Remembers between the pieces of a sweep how far it has come."""

    def __init__(self) -> None:
        self._walks: deque[Walk] = deque()

    def piece(self, session: Session, now: float) -> UpkeepReport:
        """Do a bounded piece inside the caller's transaction."""
        tally = Tally()
        if not self._walks:
            session.run("delete_expired_snapshots", now)
            self._walks.extend(Walk(row[0]) for row in session.rows("topics"))
        more = fold_settlements(session)
        budget = 0 if more else PACKS_A_PIECE
        while self._walks and budget > 0 and tally.bytes < BYTES_A_PIECE:
            topic = _Topic.load(session, self._walks[0], tally)
            walked = topic.clean(budget, now) if topic else 0
            budget -= max(walked, 1)  # a topic without packs costs a look too
            if not walked:
                self._walks.popleft()
        return UpkeepReport(tally.messages, tally.removed, tally.rewritten, more or bool(self._walks))


def fold_settlements(session: Session) -> bool:
    """Write the oldest settlement rows into blocks; True when there are more of them."""
    by_subscription: dict[int, list[Row]] = defaultdict(list)
    rows = session.rows("oldest_settlements", SETTLEMENTS_A_PIECE)
    offsets = folded = 0
    for _, subscription_id, undone, blob in rows:
        by_subscription[subscription_id].append((undone, decode_column("Q", blob)))
        offsets += len(blob) // 8
        folded += 1
        if offsets >= OFFSETS_A_PIECE:
            break
    for subscription_id, changes in by_subscription.items():
        _fold(session, subscription_id, changes)
    if rows:
        session.run("forget_settlements_until", rows[folded - 1][0])
    return folded < len(rows) or len(rows) == SETTLEMENTS_A_PIECE


def _fold(session: Session, subscription_id: int, changes: Sequence[Row]) -> None:
    floor = session.rows("floor", subscription_id)[0][0]
    touched = {offset // BLOCK for _, offsets in changes for offset in offsets}
    if any(undone for undone, _ in changes):  # the floor may be lowered, and its block is then written anew
        touched.add(floor // BLOCK)
    settled = SettledSet(floor, _load_blocks(session, subscription_id, _runs(touched)))
    for undone, offsets in changes:
        (settled.discard if undone else settled.add)(offsets)
    put = [(subscription_id, block, encode_block(bits)) for block, bits in settled.blocks.items()]
    session.run_many("put_block", put)
    session.run_many("delete_block", [(subscription_id, block) for block in touched - settled.blocks.keys()])
    if settled.floor != floor:
        session.run("set_floor", settled.floor, subscription_id)


def _load_blocks(session: Session, subscription_id: int, runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [
        (block, decode_block(bits))
        for first, last in runs
        for block, bits in session.rows("blocks_between", subscription_id, first, last)
    ]


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as inclusive ranges."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


class _Subscription(NamedTuple):
    """What clean-up has to know of a subscription; ``since``: see ``Follower``."""

    id: int
    floor: int
    since: int


class _Topic:
    """One topic during one piece."""

    def __init__(self, session: Session, walk: Walk, options: Options, next_offset: int, tally: Tally) -> None:
        self._session = session
        self._walk = walk
        self._options = options
        self._next_offset = next_offset
        self._tally = tally
        self._subscriptions = [_Subscription(*row) for row in session.rows("subscriptions_of_topic", walk.topic_id)]

    @classmethod
    def load(cls, session: Session, walk: Walk, tally: Tally) -> _Topic | None:
        """The topic under a walk; None when it was deleted meanwhile."""
        found = session.rows("topic_options", walk.topic_id)
        if not found:
            return None
        return cls(session, walk, json.loads(found[0][0]), read_next_offset(session, walk.topic_id), tally)

    def clean(self, limit: int, now: float) -> int:
        """Clean the next packs; how many were looked at, 0 at the end of the log."""
        walk = self._walk
        if not walk.position:
            self._raise_floors()
        rows = [PackRow(*row) for row in self._session.rows("packs_from", walk.topic_id, walk.position, limit)]
        if not rows:
            self._drop_blocks(set(), self._next_offset)
            return 0
        retention = self._retention(rows[0].first, rows[-1].last)
        cleaner = _PackCleaner(self._session, walk.topic_id, self._next_offset, self._tally)
        looked_at = 0
        for row in rows:
            young = row.newest + REWRITING_AGE > now
            cleaner.look_at(row, retention, now, young)
            looked_at += 1
            if self._tally.bytes >= BYTES_A_PIECE:
                break
        cleaner.finish()
        self._drop_blocks(cleaner.kept_blocks, rows[looked_at - 1].last + 1)
        return looked_at

    def _retention(self, first: int, last: int) -> Retention:
        session, topic_id = self._session, self._walk.topic_id
        span = [(first // BLOCK, last // BLOCK)]
        subscriptions = [
            Follower(SettledSet(floor, _load_blocks(session, id_, span)), since)
            for id_, floor, since in self._subscriptions
        ]
        readers = [
            Follower(SettledSet(position), since) for position, since in session.rows("reader_positions", topic_id)
        ]
        return Retention(
            self._options,
            [*subscriptions, *readers],
            [SettledSet.of(decode_cursor(row[0])) for row in session.rows("snapshot_cursors", topic_id)],
            [row[0] for row in session.rows("buried_between", topic_id, first, last)],
        )

    def _drop_blocks(self, kept: set[int], position: int) -> None:
        """Go on to ``position``, and forget the blocks on the way there in which nothing is kept."""
        walk = self._walk
        kept.add(walk.kept_block)
        first, last = walk.position // BLOCK, position // BLOCK - 1
        for id_, _, _ in self._subscriptions:
            found = self._session.rows("block_numbers_between", id_, first, last)
            dropped = [(id_, row[0]) for row in found if row[0] not in kept]
            self._session.run_many("delete_block", dropped)
        walk.position, walk.kept_block = position, max(kept)

    def _raise_floors(self) -> None:
        """Raise each floor over what is settled or no longer kept."""
        for index, (id_, floor, since) in enumerate(self._subscriptions):
            raised = self._risen(id_, floor)
            if raised != floor:
                self._session.run("set_floor", raised, id_)
                self._session.run("delete_blocks_below", id_, self._first_block_above(id_, raised))
                self._session.run("forget_troubles_below", id_, raised)
                self._subscriptions[index] = _Subscription(id_, raised, since)

    def _first_block_above(self, subscription_id: int, floor: int) -> int:
        """The block that a floor is in, or the next one when nothing above the floor is settled in it."""
        block = floor // BLOCK
        settled = SettledSet(floor, _load_blocks(self._session, subscription_id, [(block, block)]))
        settled.set_floor(floor)
        return block if settled.blocks else block + 1

    def _risen(self, subscription_id: int, floor: int) -> int:
        for _ in range(BLOCKS_A_RISE):
            if floor >= self._next_offset:
                break
            block = floor // BLOCK
            settled = SettledSet(floor, _load_blocks(self._session, subscription_id, [(block, block)]))
            unsettled = settled.first_unsettled_in_block(floor)
            if unsettled // BLOCK == block:
                kept = first_kept(self._session, self._walk.topic_id, unsettled)
                if kept == unsettled:
                    return unsettled
                unsettled = self._next_offset if kept is None else kept
            floor = unsettled
        return floor


class _PackCleaner:
    """Removes and rewrites packs of one slice, and gathers what is left over."""

    def __init__(self, session: Session, topic_id: int, next_offset: int, tally: Tally) -> None:
        self._session = session
        self._topic_id = topic_id
        self._next_offset = next_offset
        self._tally = tally
        self._doomed: list[PackRow] = []  # one after another, none of them needed
        self._sources: list[PackRow] = []
        self._leftovers: list[Record] = []
        self._leftover_bytes = 0
        self.kept_blocks: set[int] = set()

    def look_at(self, pack: PackRow, retention: Retention, now: float, young: bool) -> None:
        """Decide about one pack; a young one is not rewritten."""
        offsets = range(pack.first, pack.last + 1) if pack.is_dense else self._head(pack).offsets
        needed = retention.needed(offsets, pack.newest, now)
        if not needed:
            self._doomed.append(pack)
            self._tally.removed += 1
            self._tally.messages += pack.messages
            self._tally.bytes += pack.bytes // 4  # freeing pages costs less than reading or writing them
            return
        self._delete_doomed()
        if not young and (pack.is_small_leftover or self._is_mostly_removable(pack, offsets, needed)):
            self._note_blocks(needed)
            self._gather(pack, needed)
        else:
            self._note_blocks(offsets)  # also of what is settled: it stays with the others, and must stay settled
            self.write_leftovers()

    def finish(self) -> None:
        """Nothing more is looked at."""
        self._delete_doomed()
        self.write_leftovers()

    def write_leftovers(self) -> None:
        """Replace the packs that were gathered by one with what is needed of them."""
        before = sum(pack.messages for pack in self._sources)
        if len(self._sources) > 1 or before > len(self._leftovers):
            self._remember_end(self._sources[-1])
            self._session.run_many("delete_pack", [(pack.id,) for pack in self._sources])
            write_pack(self._session, self._topic_id, self._leftovers, leftover=True)
            self._tally.rewritten += len(self._sources)
            self._tally.messages += before - len(self._leftovers)
        self._sources, self._leftovers, self._leftover_bytes = [], [], 0

    def _gather(self, pack: PackRow, needed: Sequence[int]) -> None:
        (row,) = self._session.rows("pack_data", pack.id)
        kept = self._head(pack).select(row[0], needed)
        self._tally.bytes += pack.bytes
        self._sources.append(pack)
        self._leftovers += kept
        self._leftover_bytes += sum(len(record.data) for record in kept)
        if self._leftover_bytes >= LEFTOVER_BYTES or len(self._leftovers) >= LEFTOVER_MESSAGES:
            self.write_leftovers()

    def _is_mostly_removable(self, pack: PackRow, offsets: Sequence[int], needed: Sequence[int]) -> bool:
        return len(needed) < pack.messages and is_mostly_removable(self._head(pack).data_sizes, offsets, needed)

    def _head(self, pack: PackRow) -> PackHead:
        (row,) = self._session.rows("pack_head", pack.id)
        self._tally.bytes += len(row[0])
        return PackHead(row[0])

    def _delete_doomed(self) -> None:
        """Delete a run of packs at once: while a piece lasts everybody else waits, and each statement is a step of its own."""
        if not self._doomed:
            return
        self._remember_end(self._doomed[-1])
        self._session.run("delete_packs_between", self._topic_id, self._doomed[0].last, self._doomed[-1].last)
        self._doomed = []

    def _remember_end(self, pack: PackRow) -> None:
        """Before the end of a log is removed, so that no offset is given twice."""
        if pack.last + 1 == self._next_offset:
            self._session.run("remember_next_offset", self._next_offset, self._topic_id)

    def _note_blocks(self, offsets: Sequence[int]) -> None:
        if isinstance(offsets, range):
            self.kept_blocks.update(range(offsets[0] // BLOCK, offsets[-1] // BLOCK + 1))
        else:
            self.kept_blocks.update(offset // BLOCK for offset in offsets)
