"""Where a subscription stands can be moved: to an offset, to a time, to a snapshot.

Rules
    - A seek replaces what is settled, in one transaction. Leases are fenced and attempts forgotten; dead letters and paused
      keys stay. What was accepted before it is written before it, what is published after it is delivered.
    - Seeking back delivers what is still kept: what every subscription has settled may be gone, unless the topic's
      ``retain_settled`` or a snapshot kept it. An offset below everything that is kept is refused, and the earliest one named.
      A *time* before that means "from the earliest", as with Google Pub/Sub: a time names no message that could be missing.
    - Seeking forward settles what is passed. Past the end there is nothing to settle: an offset that was not given yet is
      refused, and a time in the future means "from now on".
    - A snapshot is what a subscription had settled, by name. It keeps the messages that it has not settled until it
      expires, and serves every subscription of its topic.

Theory of operation
    What is kept is looked up inside the transaction that moves the cursor: clean-up can't run meanwhile, so what a seek
    promised is there. A time is found by binary search over offsets; each step reads one message. That relies on messages
    being published in the order of time, which holds unless the clock of the machine was set back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeAlias, TypeVar

from seriatim.core.limits import check_name, check_text
from seriatim.core.options import require_duration, require_time, require_whole
from seriatim.engine.broker import SnapshotInfo
from seriatim.engine.options import WEEK
from seriatim.engine.subscription import SubscriptionState
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import Cursor, SnapshotRow, StoreReader, Transaction

T = TypeVar("T")

Move: TypeAlias = Callable[[StoreReader, Transaction], T]
"""What a seek, or whatever else looks at the store first, does in its transaction."""


def to_offset(subscription_id: int, topic_id: int, offset: int, end: int) -> Move[None]:
    """Deliver what is at or above an offset. ``end`` is the first one that was not given yet."""
    require_whole("offset", offset, 0)
    if offset > end:
        raise InvalidArgument(f"offset {offset} was not given to any message yet: the next one is {end}")

    def move(store: StoreReader, work: Transaction) -> None:
        earliest = store.earliest(topic_id)
        if offset < earliest:
            raise FailedPrecondition(
                f"messages from offset {offset} on are no longer kept: the earliest offset is {earliest}"
            )
        work.seek(subscription_id, Cursor(_within(work, topic_id, offset)))

    return move


def to_time(subscription_id: int, topic_id: int, time: float, end: int) -> Move[None]:
    """Deliver what was published at or after a time, and whatever gets ``end`` or a higher offset."""
    require_time("time", time)

    def move(store: StoreReader, work: Transaction) -> None:
        first = first_published(store, topic_id, time, end)
        work.seek(subscription_id, Cursor(_within(work, topic_id, first)))

    return move


def to_snapshot(subscription_id: int, topic_id: int, name: str, now: float) -> Move[None]:
    def move(_: StoreReader, work: Transaction) -> None:
        snapshot = find_snapshot(work, name, now)
        if snapshot.topic_id != topic_id:
            raise InvalidArgument(
                f"snapshot {name!r} belongs to another topic: only its own subscriptions can go back to it"
            )
        work.seek(subscription_id, snapshot.cursor)

    return move


def _within(work: Transaction, topic_id: int, offset: int) -> int:
    """Not past the last message: what failed to be published leaves offsets that the log knows nothing of."""
    return min(offset, work.topic(topic_id).next_offset)


def first_published(store: StoreReader, topic_id: int, time: float, end: int) -> int:
    """The offset of the first kept message below ``end`` that was published at or after a time; ``end`` when there is none."""
    offsets = range(store.earliest(topic_id), end)

    def is_late_enough(offset: int) -> bool:
        found = store.read(topic_id, offset, 1)
        return not found or found[0].published >= time

    return end if not offsets else offsets[0] + bisect_left(offsets, True, key=is_late_enough)


def find_snapshot(work: Transaction, name: str, now: float) -> SnapshotRow:
    row = work.snapshot(name)
    if row is None or row.expires <= now:
        raise NotFound(f"snapshot {name!r} does not exist, or has expired")
    return row


def take_snapshot(
    subscription_id: int, topic_id: int, name: str, expires: float, now: float, resource: str | None = None
) -> Move[None]:
    """Write down what a subscription has settled."""

    def take(store: StoreReader, work: Transaction) -> None:
        if (known := work.snapshot(name)) is not None and known.expires > now:
            raise AlreadyExists(f"snapshot {name!r} exists already: choose another name, or delete it first")
        options = {} if resource is None else {"resource": resource}
        work.put_snapshot(SnapshotRow(name, topic_id, store.cursor(subscription_id), expires, options))

    return take


SNAPSHOT_FIELDS = ("expires", "resource")


def change_snapshot(
    name: str, expires: float, resource: str | None, fields: Sequence[str], now: float
) -> Move[SnapshotInfo]:
    """Let a snapshot last until another time, with another resource. What it stands for stays."""
    if unknown := set(fields) - set(SNAPSHOT_FIELDS):
        raise InvalidArgument(f"a snapshot has no field {min(unknown)!r}: use {', '.join(SNAPSHOT_FIELDS)}")

    def change(_: StoreReader, work: Transaction) -> SnapshotInfo:
        row = find_snapshot(work, name, now)
        if "expires" in fields:
            row = row._replace(expires=expires)
        if "resource" in fields:
            row = row._replace(options={**row.options, "resource": resource})
        work.put_snapshot(row)
        return SnapshotInfo(name, work.topic(row.topic_id).name, row.expires, row.options.get("resource"))

    return change


def _check_resource(resource: str | None) -> None:
    if resource is not None:
        check_text("resource", resource)


class TimeTravel(ABC):
    """The part of a broker that moves subscriptions, on top of an engine that knows them."""

    @abstractmethod
    def get_subscription(self, name: str) -> SubscriptionState: ...

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    async def drain(self) -> None: ...

    @abstractmethod
    async def load(self, work: Callable[[StoreReader], T]) -> T: ...

    @abstractmethod
    async def finish(self, work: Coroutine[None, None, None]) -> None:
        """Wait for work that is finished once it has begun."""

    @abstractmethod
    async def move(self, move: Move[T]) -> T:
        """Let a move ride in the next commit, and wait until it is durable."""

    async def seek_to_offset(self, subscription: str, offset: int) -> None:
        """Deliver what is at or above an offset (again)."""
        state = self.get_subscription(subscription)
        await self._seek(state, to_offset(state.id, state.topic.id, offset, state.topic.next_offset))

    async def seek_to_time(self, subscription: str, time: float) -> None:
        """Deliver what was published at or after a time (again)."""
        state = self.get_subscription(subscription)
        await self._seek(state, to_time(state.id, state.topic.id, time, state.topic.next_offset))

    async def seek_to_snapshot(self, subscription: str, snapshot: str) -> None:
        """Deliver what a snapshot had not settled, and what was published since (again)."""
        state = self.get_subscription(subscription)
        check_name("Snapshot name", snapshot)
        await self._seek(state, to_snapshot(state.id, state.topic.id, snapshot, self.now()))

    async def _seek(self, subscription: SubscriptionState, move: Move[None]) -> None:
        await self.finish(subscription.relocate(lambda: self.move(move)))

    async def create_snapshot(
        self, subscription: str, name: str, *, lasts: float = WEEK, resource: str | None = None
    ) -> SnapshotInfo:
        """Keep what a subscription has settled under a name, and what it has not settled in its log, for ``lasts`` seconds."""
        state, now = self.get_subscription(subscription), self.now()
        check_name("Snapshot name", name)
        require_duration("lasts", lasts)
        _check_resource(resource)
        state.sieve.settle()
        await self.drain()  # acks that were accepted belong to it
        await self.move(take_snapshot(state.id, state.topic.id, name, now + lasts, now, resource))
        return SnapshotInfo(name, state.topic.name, now + lasts, resource)

    async def update_snapshot(
        self, name: str, *, expires: float, resource: str | None, fields: Sequence[str] | None = None
    ) -> SnapshotInfo:
        """Let a snapshot last until another time, with another resource."""
        check_name("Snapshot name", name)
        require_time("expires", expires)
        _check_resource(resource)
        return await self.move(change_snapshot(name, expires, resource, fields or SNAPSHOT_FIELDS, self.now()))

    async def delete_snapshot(self, name: str) -> None:
        check_name("Snapshot name", name)
        await self.move(lambda _, work: work.delete_snapshot(name))

    async def list_snapshots(self) -> list[SnapshotInfo]:
        catalog, now = await self.load(lambda store: store.catalog()), self.now()
        topics = {row.id: row.name for row in catalog.topics}
        return [
            SnapshotInfo(row.name, topics[row.topic_id], row.expires, row.options.get("resource"))
            for row in catalog.snapshots
            if row.expires > now
        ]
