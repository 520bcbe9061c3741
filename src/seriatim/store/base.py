"""The storage interface: what the engine needs from a store.

A store keeps topics (append-only logs), subscriptions (which messages of a topic are settled), and everything else that must
survive a crash. It makes no decisions about order: it records what the core decided, and returns it on demand.

Rules
-----
1. **A transaction is atomic, and committed means durable**: once it has ended without an error, no crash of the process or of
   the machine can undo it.
2. A transaction that raises has changed nothing, unless it raises ``OutcomeUnknown``: then its fate is unknown. Close the
   store, reopen it, and load what it contains.
3. The caller assigns offsets, rising within a topic. Appending an offset that is not above the last one is refused, and so is
   an offset that a cursor (``create_subscription``, ``seek``) or a reader passed when it was placed: it would look settled.
4. The store cleans up after itself (``upkeep``): messages that every subscription has settled and every reader has passed are
   removed, and what remains among them is packed together. Messages in trouble, dead letters, and messages pinned by a snapshot
   stay. The topic options ``retain_settled`` and, for messages published before any subscription began, ``retention`` (seconds;
   None: for ever) set how long messages stay at least; see ``retention.py``.
5. A store has one owner. Its epoch rises with every opening, and a former owner can change nothing (``StoreLost``).
6. All methods may be called from any thread, one transaction at a time. Reads may run during a transaction, even inside its
   block, and see what was committed before they began.
7. A method that refuses its arguments (``NotFound``, ``AlreadyExists``, ``InvalidArgument``) has changed nothing, and its
   transaction may continue. After any other error the transaction can only be abandoned.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from seriatim.core.publishing.dedup import Claims

Options = Mapping[str, Any]
"""Options of a topic or subscription as plain JSON values, which only the engine interprets."""

DEFAULT_RETENTION_S = 7 * 24 * 3600.0
"""The default for how long a topic keeps messages from before its first subscription, and for how long a snapshot lasts."""


class Record(NamedTuple):
    """A message as the log keeps it. ``attributes`` is None, not empty, when there are none."""

    offset: int
    key: str | None
    data: bytes
    attributes: Mapping[str, str] | None = None
    published: float = 0.0
    not_before: float = 0.0


class MessageHeader(NamedTuple):
    """What lanes and filters need of a message: everything except its data."""

    offset: int
    key: str | None
    attributes: Mapping[str, str] | None
    not_before: float


@dataclass(frozen=True, slots=True)
class TopicRow:
    id: int
    name: str
    options: Options
    next_offset: int


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    id: int
    topic_id: int
    name: str
    options: Options


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a subscription has settled: every offset below ``floor``, and the set bits of ``blocks``.

    Block b covers the offsets from ``b * BLOCK`` to ``(b + 1) * BLOCK - 1``, the lowest bit first. For messages that are no
    longer kept, a cursor is meaningless. A dead letter is not settled: it is in ``dead_letters`` until it is purged.
    """

    floor: int
    blocks: Mapping[int, int] = field(default_factory=dict)

    def has(self, offset: int) -> bool:
        """Whether a message is settled."""
        return offset < self.floor or bool(self.blocks.get(offset // BLOCK, 0) >> offset % BLOCK & 1)


BLOCK = 4096


class TroubleRow(NamedTuple):
    """A message whose delivery has failed: how often, until when it is delayed, and the last error."""

    offset: int
    failures: int
    not_before: float
    error: str | None
    steps_aside: bool


class PausedRow(NamedTuple):
    """A key that waits for an operator."""

    key: str | None
    reason: str | None


class DeadLetterRow(NamedTuple):
    """A message that left its lane undelivered. It stays in its log until it is redriven or purged.

    ``copy_topic_id`` and ``copy_offset`` say where its copy in a dead-letter topic is, if it has one. ``overtaken`` says that a
    later message of its key was settled since, so that it can't go back to its place.
    """

    offset: int
    key: str | None
    attempts: int
    time: float
    error: str | None
    copy_topic_id: int | None = None
    copy_offset: int | None = None
    overtaken: bool = False


class ReaderRow(NamedTuple):
    """A registered reader of a log: messages at or above its position are kept for it."""

    name: str
    topic_id: int
    position: int


class SnapshotRow(NamedTuple):
    """A named cursor; the messages that it has not settled are kept until it expires."""

    name: str
    topic_id: int
    cursor: Cursor
    expires: float
    options: Options


class OutboxRow(NamedTuple):
    """A message that another program committed, and that is not in its topic's log yet."""

    id: int
    topic: str
    key: str | None
    data: bytes
    attributes: Mapping[str, str] | None


class DocumentRow(NamedTuple):
    """A text that a front stores under a kind and a name, and that only the front interprets."""

    kind: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything that is not about single messages."""

    topics: Sequence[TopicRow]
    subscriptions: Sequence[SubscriptionRow]
    readers: Sequence[ReaderRow]
    snapshots: Sequence[SnapshotRow]


class Pack(NamedTuple):
    """Messages of a log packed together, as described in ``pack.py``."""

    head: bytes
    data: bytes


class Span(NamedTuple):
    """A stretch of a log: the number of kept messages from offset ``first`` to ``last``, both of which are kept."""

    first: int
    last: int
    messages: int


class StagedFile(NamedTuple):
    """Messages that wait to be appended (``staged_messages.py``): where, how many, and the bytes of their data."""

    path: str
    messages: int
    size: int


class UpkeepReport(NamedTuple):
    """What a round of clean-up did."""

    messages_removed: int
    packs_removed: int
    packs_rewritten: int
    more_to_do: bool


class Problem(NamedTuple):
    """A problem that ``check`` found."""

    where: str
    what: str


Seen = Callable[[Sequence[MessageHeader]], object]


class Transaction(Protocol):
    """One unit of work, invisible to everybody else until it is committed.

    Its own reading methods see every change made earlier in the transaction. A partial update reads and writes here, so that
    nothing can come in between.
    """

    def topic(self, topic_id: int) -> TopicRow: ...
    def has_subscriptions(self, topic_id: int) -> bool: ...
    def reader(self, name: str) -> ReaderRow | None: ...
    def snapshot(self, name: str) -> SnapshotRow | None: ...

    def create_topic(self, name: str, options: Options) -> TopicRow: ...
    def update_topic(self, topic_id: int, options: Options) -> None: ...
    def rename_topic(self, topic_id: int, name: str) -> None: ...
    def delete_topic(self, topic_id: int) -> None:
        """Remove a topic with its messages, subscriptions, readers and snapshots."""

    def create_subscription(self, topic_id: int, name: str, options: Options, cursor: Cursor) -> SubscriptionRow: ...
    def update_subscription(self, subscription_id: int, options: Options) -> None: ...
    def delete_subscription(self, subscription_id: int) -> None: ...

    def append(self, topic_id: int, records: Sequence[Record]) -> None:
        """Write messages at the end of a log. Records of one call are kept together."""

    def append_staged(self, topic_id: int, file: str, first: int, published: float, seen: Seen | None = None) -> None:
        """Write staged messages (``staged_messages.py``) at the end of a log, under offsets from ``first`` on.

        They stay in their packs, and one pack at a time is in memory. ``seen`` is called with the headers of each.
        """

    def settle(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Messages are done for a subscription; their trouble rows are deleted."""

    def note_troubles(self, subscription_id: int, troubles: Iterable[TroubleRow]) -> None:
        """Insert or replace the trouble rows of single messages."""

    def pause_key(self, subscription_id: int, key: str | None, reason: str | None) -> None: ...
    def resume_key(self, subscription_id: int, key: str | None) -> None: ...

    def bury(self, subscription_id: int, letters: Iterable[DeadLetterRow]) -> None:
        """Dead-letter messages: they leave the lane, and stay in the log. Their trouble rows are deleted."""

    def overtake(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Later messages of their keys are settled, so these dead letters can't return to their places."""

    def unbury(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Return dead letters to their places, neither settled nor buried."""

    def purge(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Give dead letters up for good: settle them."""

    def seek(self, subscription_id: int, cursor: Cursor) -> None:
        """Replace what is settled; trouble rows are deleted, paused keys and dead letters stay."""

    def put_reader(self, reader: ReaderRow) -> None: ...
    def delete_reader(self, name: str) -> None: ...
    def put_snapshot(self, snapshot: SnapshotRow) -> None: ...
    def delete_snapshot(self, name: str) -> None: ...

    def put_document(self, document: DocumentRow) -> None:
        """Store a document, or replace the one with its name."""

    def delete_document(self, kind: str, name: str) -> None: ...

    def claim_batch(self, writer: str, batch: int) -> bool:
        """True the first time that ``writer`` claims ``batch``, False from then on: a replayed batch adds nothing."""

    def claim_ids(self, topic_id: int, claims: Claims, now: float) -> dict[int, int]:
        """For each claim whose id another message has, the offset of that message by the claimed one. The others are new.

        AlreadyExists, and nothing is claimed, when that one has another payload. ``core.publishing.dedup`` says for how long an
        id is known; the topic options ``dedup_window`` (seconds) and ``dedup_max_ids`` change that.
        """

    def take_from_outbox(self, ids: Sequence[int]) -> None:
        """Remove messages from the outbox. FailedPrecondition unless all of them are there."""

    def position(self, writer: str) -> int:
        """One past the highest number that ``writer`` has claimed; 0 if it has claimed none."""

    def move_positions(self, steps: Sequence[tuple[str, int, int]]) -> None:
        """For each (writer, start, end): claim everything below ``end`` for the writer, whose position is ``start``.

        Raises FailedPrecondition, and moves no writer, if one has another position. Each writer is named once.
        """


class StoreReader(Protocol):
    """The methods that only read, available without owning the store."""

    @property
    def url(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def catalog(self) -> Catalog: ...
    def documents(self, kind: str) -> list[DocumentRow]:
        """All documents of a kind, in order of name."""

    def outbox(self) -> list[OutboxRow] | None:
        """The first messages that other programs committed, in order; None when this kind of store has no outbox."""

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        """The writers whose names begin with ``prefix``, in order of name, each with its position."""

    def cursor(self, subscription_id: int) -> Cursor: ...
    def troubles(self, subscription_id: int) -> list[TroubleRow]: ...
    def paused_keys(self, subscription_id: int) -> list[PausedRow]: ...
    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]: ...

    def headers(self, topic_id: int, first: int = 0) -> Iterator[Sequence[MessageHeader]]:
        """Every kept message from ``first`` on, in order, pack by pack, without its data."""

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        """The messages with these rising offsets, without those that are no longer kept."""

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        """Up to ``limit`` kept messages from ``first`` on, in order."""

    def spans(self, topic_id: int, first: int, end: int) -> Iterator[Span]:
        """What is kept from ``first`` to below ``end``, pack by pack, without reading it."""

    def packs(self, topic_id: int, first: int, end: int) -> Iterator[Pack]:
        """The packs with messages from ``first`` to below ``end``, whole: the first and the last may hold others, too."""

    def earliest(self, topic_id: int) -> int:
        """The lowest offset that is still kept, or the next one to be assigned if the log is empty."""

    def size(self) -> int | None:
        """How many bytes the store takes, None where that is not known."""

    def check(self) -> Iterator[Problem]:
        """Check everything, and report every problem."""

    def backup(self, path: str) -> None:
        """Make a consistent copy of the whole store while it is in use. An existing file is never overwritten."""

    def close(self) -> None: ...


class Store(StoreReader, Protocol):
    """A store in the hands of its one owner."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commits at the end of the block, and rolls back if the block raises."""

    def check_staged(self, file: str, messages: int) -> None:
        """Raise unless what was staged is whole and holds ``messages`` messages, so that a damaged file fails no commit."""

    def upkeep(self, now: float) -> UpkeepReport:
        """Do a bounded piece of clean-up. Call it again immediately while there is more to do."""


class Standby:
    """A wait until a store is free. ``cancel`` ends it from any thread.

    Close it (or use it as a context manager) when the wait is over.
    """

    def __init__(self) -> None:
        self._cancelled, self._signal = socket.socketpair()
        self.is_cancelled = False

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cancelled.close()
        self._signal.close()

    def cancel(self) -> None:
        self.is_cancelled = True
        with suppress(OSError):  # the wait is over already
            self._signal.send(b".")

    def wait(self, seconds: float, file: int | None = None) -> bool:
        """Wait until a file is readable (True), or until the time is over or the wait is cancelled (False)."""
        poller = select.poll()
        poller.register(self._cancelled, select.POLLIN)
        if file is not None:
            poller.register(file, select.POLLIN)
        ready = dict(poller.poll(seconds * 1000))
        return not self.is_cancelled and file in ready
