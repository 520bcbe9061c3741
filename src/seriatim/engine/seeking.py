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

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from seriatim.core.text_checks import check_name, check_text
from seriatim.core.validation import require_duration, require_time, require_whole
from seriatim.engine.broker import SnapshotInfo
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import Catalog, Cursor, SnapshotRow, StoreReader, Transaction

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
    """Deliver what a snapshot had not settled, and what was published since."""
    check_name("Snapshot name", name)

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
    subscription_id: int, topic_id: int, name: str, lasts: float, now: float, resource: str | None = None
) -> Move[None]:
    """Write down what a subscription has settled."""
    check_name("Snapshot name", name)
    require_duration("lasts", lasts)
    _check_resource(resource)

    def take(store: StoreReader, work: Transaction) -> None:
        if (known := work.snapshot(name)) is not None and known.expires > now:
            raise AlreadyExists(f"snapshot {name!r} already exists: choose another name, or delete it first")
        options = {} if resource is None else {"resource": resource}
        work.put_snapshot(SnapshotRow(name, topic_id, store.cursor(subscription_id), now + lasts, options))

    return take


SNAPSHOT_FIELDS = ("expires", "resource")


def change_snapshot(
    name: str, expires: float, resource: str | None, fields: Sequence[str] | None, now: float
) -> Move[SnapshotInfo]:
    """Let a snapshot last until another time, with another resource. What it stands for stays."""
    check_name("Snapshot name", name)
    require_time("expires", expires)
    _check_resource(resource)
    fields = fields or SNAPSHOT_FIELDS
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


def snapshots_in(catalog: Catalog, now: float) -> list[SnapshotInfo]:
    """The snapshots that have not expired."""
    topics = {row.id: row.name for row in catalog.topics}
    return [
        SnapshotInfo(row.name, topics[row.topic_id], row.expires, row.options.get("resource"))
        for row in catalog.snapshots
        if row.expires > now
    ]
