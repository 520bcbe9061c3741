"""Clean-up on any SQL database, in bounded pieces of one transaction each.

Theory of operation
    A **sweep** visits every topic once. Each piece first folds settlement rows into the blocks of their subscriptions, oldest
    first: until then, a message that was unsettled again still looks settled. Then it walks the packs of a topic in order, a
    slice at a time, with only the blocks in memory that the slice needs:

    - A pack of which nothing is needed is deleted.
    - A pack of which at least half of the bytes may go is rewritten without them, together with neighbours of the same kind, so
      that one blocked key can't pin the rest and leftovers do not stay scattered in many small packs. A young pack is left
      alone, because the rest of it will most likely be settled in a moment.
    - Blocks without any kept message are dropped, because they are meaningless.

    A piece is limited in settlement rows, packs and bytes; the next one continues where it ended. When the sweep is over, the
    next call begins a new one. A sweep that finds nothing to do changes nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seriatim.core.publishing.dedup import limits_of
from seriatim.store.base import BLOCK, Options, Record, UpkeepReport
from seriatim.store.pack import PackHead
from seriatim.store.retention import LEFTOVER_BYTES, LEFTOVER_MESSAGES, Follower, Retention, is_mostly_removable
from seriatim.store.settled_set import SettledSet, decode_block, decode_cursor
from seriatim.store.sql.reader import first_kept, intact_floor, read_floor, read_next_offset
from seriatim.store.sql.session import Row, Session
from seriatim.store.sql.write_operations import put_blocks, set_floor, write_pack
from seriatim.store.validation import decode_offsets, decode_options

# Commits wait for a piece, so it takes about a millisecond. Some ten commits are written between two pieces, each with a row of
# settlements for each subscription: a piece takes more of them than that, or clean-up would fall behind.
SETTLEMENTS_A_PIECE = 64
OFFSETS_A_PIECE = 4_000
PACKS_A_PIECE = 16
BYTES_A_PIECE = 256 * 1024
BLOCKS_A_RISE = 64

REWRITING_AGE = 10.0
"""Younger packs, in seconds, are never rewritten, only deleted whole."""


class PackRow(NamedTuple):
    """A pack without its content."""

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
    """The progress of a sweep in one topic."""

    topic_id: int
    position: int = 0
    kept_block: int = -1
    """The last block that is known to hold a kept message."""


@dataclass(slots=True)
class Tally:
    """What a piece has done."""

    messages: int = 0
    removed: int = 0
    rewritten: int = 0
    bytes: int = 0


class Sweep:
    """A sweep, which remembers its progress between pieces."""

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
            budget -= max(walked, 1)  # a topic without packs has a cost, too
            if not walked:
                self._walks.popleft()
        return UpkeepReport(tally.messages, tally.removed, tally.rewritten, more or bool(self._walks))


def fold_settlements(session: Session) -> bool:
    """Fold the oldest settlement rows into blocks; True if there are more of them."""
    by_subscription: dict[int, list[Row]] = defaultdict(list)
    rows = session.rows("oldest_settlements", SETTLEMENTS_A_PIECE)
    offsets = folded = 0
    for _, subscription_id, undone, blob in rows:
        by_subscription[subscription_id].append((undone, decode_offsets(blob, subscription_id, undone)))
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
    floor, since = read_floor(session, subscription_id)
    touched = {offset // BLOCK for _, offsets in changes for offset in offsets}
    if any(undone for undone, _ in changes):  # the floor may be lowered, and its block is then rewritten
        touched.add(floor // BLOCK)
    settled = _load(session, subscription_id, floor, _runs(touched))
    for undone, offsets in changes:
        (settled.discard if undone else settled.add)(offsets)
    put_blocks(session, subscription_id, settled.blocks)
    session.run_many("delete_block", [(subscription_id, block) for block in touched - settled.blocks.keys()])
    if settled.floor != floor:
        set_floor(session, subscription_id, settled.floor, since)


def _load(session: Session, subscription_id: int, floor: int, runs: Iterable[tuple[int, int]]) -> SettledSet:
    """What a subscription has settled, as far as these runs of blocks say."""
    rows = [row for first, last in runs for row in session.rows("blocks_between", subscription_id, first, last)]
    return SettledSet(floor, [(block, decode_block(bits, subscription_id, block)) for block, bits in rows])


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
    """What clean-up needs of a subscription; ``since``: see ``Follower``."""

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
        self._subscriptions = [
            _Subscription(row[0], *intact_floor(*row)) for row in session.rows("subscriptions_of_topic", walk.topic_id)
        ]

    @classmethod
    def load(cls, session: Session, walk: Walk, tally: Tally) -> _Topic | None:
        """The topic of a walk; None if it has been deleted."""
        found = session.rows("topic_options", walk.topic_id)
        if not found:
            return None
        options = decode_options(found[0][0], f"topic {walk.topic_id}")
        return cls(session, walk, options, read_next_offset(session, walk.topic_id), tally)

    def clean(self, limit: int, now: float) -> int:
        """Clean the next packs. Returns how many were examined, 0 at the end of the log."""
        walk = self._walk
        if not walk.position:
            self._raise_floors()
            seconds, most = limits_of(self._options)
            self._session.run("forget_published_ids", walk.topic_id, now - seconds, most)
        rows = [PackRow(*row) for row in self._session.rows("packs_from", walk.topic_id, walk.position, limit)]
        if not rows:
            self._drop_blocks(set(), self._next_offset)
            return 0
        retention = self._retention(rows[0].first, rows[-1].last)
        cleaner = _PackCleaner(self._session, walk.topic_id, self._next_offset, self._tally)
        looked_at = 0
        for row in rows:
            cleaner.look_at(row, retention, now)
            looked_at += 1
            if self._tally.bytes >= BYTES_A_PIECE:
                break
        cleaner.finish()
        self._drop_blocks(cleaner.kept_blocks, rows[looked_at - 1].last + 1)
        return looked_at

    def _retention(self, first: int, last: int) -> Retention:
        session, topic_id = self._session, self._walk.topic_id
        span = [(first // BLOCK, last // BLOCK)]
        readers = session.rows("reader_positions", topic_id)
        return Retention(
            self._options,
            [
                *(Follower(_load(session, id_, floor, span), since) for id_, floor, since in self._subscriptions),
                *(Follower(SettledSet(position), since) for position, since in readers),
            ],
            [SettledSet.of(decode_cursor(row[0])) for row in session.rows("snapshot_cursors", topic_id)],
            [row[0] for row in session.rows("buried_between", topic_id, first, last)],
        )

    def _drop_blocks(self, kept: set[int], position: int) -> None:
        """Advance to ``position``, and drop the blocks on the way in which nothing is kept."""
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
                block = raised // BLOCK
                settled = _load(self._session, id_, raised, [(block, block)])
                settled.set_floor(raised)  # after which the block is empty, unless something above the floor is settled
                set_floor(self._session, id_, raised, since)
                self._session.run("delete_blocks_below", id_, block if settled.blocks else block + 1)
                self._session.run("forget_troubles_below", id_, raised)
                self._subscriptions[index] = _Subscription(id_, raised, since)

    def _risen(self, subscription_id: int, floor: int) -> int:
        for _ in range(BLOCKS_A_RISE):
            if floor >= self._next_offset:
                break
            block = floor // BLOCK
            settled = _load(self._session, subscription_id, floor, [(block, block)])
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
        self._doomed: list[PackRow] = []  # adjacent, none of them needed
        self._sources: list[PackRow] = []
        self._leftovers: list[Record] = []
        self._leftover_bytes = 0
        self.kept_blocks: set[int] = set()

    def look_at(self, pack: PackRow, retention: Retention, now: float) -> None:
        """Keep, rewrite or delete a pack; a young one is not rewritten."""
        offsets = range(pack.first, pack.last + 1) if pack.is_dense else self._head(pack).offsets
        needed = retention.needed(offsets, pack.newest, now)
        if not needed:
            self._doomed.append(pack)
            self._tally.removed += 1
            self._tally.messages += pack.messages
            self._tally.bytes += pack.bytes // 4  # freeing pages costs less than reading or writing them
            return
        self._delete_doomed()
        is_old = pack.newest + REWRITING_AGE <= now
        if is_old and (pack.is_small_leftover or self._is_mostly_removable(pack, offsets, needed)):
            self._note_blocks(needed)
            self._gather(pack, needed)
        else:
            self._note_blocks(offsets)  # also of settled messages, which must stay settled
            self.write_leftovers()

    def finish(self) -> None:
        """Complete what was begun: no more packs follow."""
        self._delete_doomed()
        self.write_leftovers()

    def write_leftovers(self) -> None:
        """Replace the gathered packs by one with what is needed of them."""
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
        """Delete a run of packs with one statement, because commits wait for a piece."""
        if not self._doomed:
            return
        self._remember_end(self._doomed[-1])
        self._session.run("delete_packs_between", self._topic_id, self._doomed[0].last, self._doomed[-1].last)
        self._doomed = []

    def _remember_end(self, pack: PackRow) -> None:
        """Called before the end of a log is removed, so that no offset is assigned twice."""
        if pack.last + 1 == self._next_offset:
            self._session.run("remember_next_offset", self._next_offset, self._topic_id)

    def _note_blocks(self, offsets: Sequence[int]) -> None:
        if isinstance(offsets, range):
            self.kept_blocks.update(range(offsets[0] // BLOCK, offsets[-1] // BLOCK + 1))
        else:
            self.kept_blocks.update(offset // BLOCK for offset in offsets)
