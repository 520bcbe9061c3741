"""The storage seam: what an engine asks of a store, in the words of the domain.

A store keeps topics (append-only logs), subscriptions (what of a topic is settled), and whatever else must survive a crash. It
decides nothing about order: it writes down what the core decided and gives it back.

Rules
-----
1. **A transaction is all or nothing, and committed means durable**: when it has ended without an error, a crash of the process
   or of the machine takes nothing of it back.
2. A transaction that raises has changed nothing, unless it raises ``OutcomeUnknown``: then nobody can know. Close the store,
   open it again, and load what is there.
3. Offsets are given by the caller and rise within a topic. Appending one that is not above the last is refused, and so is one
   that a cursor (``create_subscription``, ``seek``) or a reader has passed when it was put there: it would look settled.
4. Clean-up belongs to the store (``upkeep``): what every subscription has settled and every reader has passed is removed, and
   what is left over among it is packed together. What is in trouble, dead-lettered or pinned by a snapshot stays. The topic
   options ``retain_settled`` and, for what was published before any of them began, ``retention`` (seconds; None: for ever) say
   how long it stays at least; see ``retention.py``.
5. A store has one owner. Its epoch rises with every opening, and a former owner can change nothing (``StoreLost``).
6. All methods may be called from any thread, one transaction at a time; reads may run beside a transaction and see what was
   committed before they began, also inside the block of a transaction.
7. A verb that refuses what it was asked (``NotFound``, ``AlreadyExists``, ``InvalidArgument``) has changed nothing, and its
   transaction may go on. After any other error the transaction can only be left.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Options = Mapping[str, Any]
"""Options of a topic or subscription as plain JSON values; what they mean is the engine's business."""


class Record(NamedTuple):
    """A message as the log keeps it. ``attributes`` is None, not empty, when there are none."""

    offset: int
    key: str | None
    data: bytes
    attributes: Mapping[str, str] | None = None
    published: float = 0.0
    not_before: float = 0.0


class Position(NamedTuple):
    """What lanes and filters need to know of a message: everything but its data."""

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

    Block b covers the offsets from ``b * BLOCK`` to ``(b + 1) * BLOCK - 1``, the lowest bit first. What a cursor says of a
    message that is no longer kept means nothing. A dead letter is not settled: it is in ``dead_letters`` until it is purged.
    """

    floor: int
    blocks: Mapping[int, int] = field(default_factory=dict)

    def has(self, offset: int) -> bool:
        """Whether a message is settled."""
        return offset < self.floor or bool(self.blocks.get(offset // BLOCK, 0) >> offset % BLOCK & 1)


BLOCK = 4096


class TroubleRow(NamedTuple):
    """A message that does not simply wait: failed deliveries, a delay after them, the last error."""

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
    """A registered reader of a log: what is at or above its position is kept for it."""

    name: str
    topic_id: int
    position: int


class SnapshotRow(NamedTuple):
    """A cursor kept by name; what it has not settled is kept for it until it expires."""

    name: str
    topic_id: int
    cursor: Cursor
    expires: float
    options: Options


class DocumentRow(NamedTuple):
    """A text that a front keeps, by its kind and name. Nobody else looks inside."""

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
    next_token: int


class Pack(NamedTuple):
    """Messages of a log packed together; ``pack.py`` says how."""

    head: bytes
    data: bytes


class Span(NamedTuple):
    """A stretch of a log: so many kept messages from offset ``first`` to ``last``, which are both kept."""

    first: int
    last: int
    messages: int


class UpkeepReport(NamedTuple):
    """What a round of clean-up did."""

    messages_removed: int
    packs_removed: int
    packs_rewritten: int
    more_to_do: bool


class Problem(NamedTuple):
    """Something that ``check`` found wrong."""

    where: str
    what: str


Seen = Callable[[Sequence[Position]], object]


class Transaction(Protocol):
    """One unit of work. Nobody sees anything of it before it is committed.

    Its own reading verbs do: what they return includes every change that was made in this transaction before. A partial
    update reads and writes here, so that nothing comes in between.
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
        """Write the messages of a staged file (``staging.py``) at the end of a log, under the offsets from ``first`` on.

        They stay in their packs, and one pack at a time is in memory. ``seen`` is given the positions of each.
        """

    def settle(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Messages are done for a subscription; what is noted about them (trouble) is forgotten."""

    def note_troubles(self, subscription_id: int, troubles: Iterable[TroubleRow]) -> None:
        """Write down, or overwrite, what is to be known about single messages."""

    def pause_key(self, subscription_id: int, key: str | None, reason: str | None) -> None: ...
    def resume_key(self, subscription_id: int, key: str | None) -> None: ...

    def bury(self, subscription_id: int, letters: Iterable[DeadLetterRow]) -> None:
        """Dead-letter messages: they leave the lane, and stay in the log. Trouble is forgotten."""

    def overtake(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Later messages of their keys are settled: these dead letters can't go back to their places."""

    def unbury(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Dead letters go back to their places, neither settled nor buried."""

    def purge(self, subscription_id: int, offsets: Sequence[int]) -> None:
        """Dead letters are given up for good: settled."""

    def seek(self, subscription_id: int, cursor: Cursor) -> None:
        """Replace what is settled; trouble is forgotten, paused keys and dead letters stay."""

    def reserve_tokens(self, next_token: int) -> None:
        """Tokens below ``next_token`` may have been given out; they are never given again."""

    def put_reader(self, reader: ReaderRow) -> None: ...
    def delete_reader(self, name: str) -> None: ...
    def put_snapshot(self, snapshot: SnapshotRow) -> None: ...
    def delete_snapshot(self, name: str) -> None: ...

    def put_document(self, document: DocumentRow) -> None:
        """Keep a document, or replace the one of its name."""

    def delete_document(self, kind: str, name: str) -> None: ...

    def claim_batch(self, writer: str, batch: int) -> bool:
        """True the first time that ``writer`` writes ``batch``, False ever after: a replayed batch adds nothing."""

    def position(self, writer: str) -> int:
        """One past the highest number that ``writer`` has claimed; 0 when it never did."""

    def move_positions(self, steps: Sequence[tuple[str, int, int]]) -> None:
        """For each writer, start and end: claim everything below ``end`` for the writer, which stands at ``start``.

        FailedPrecondition, and nobody has moved, when one stands elsewhere. A writer is named once.
        """


class StoreReader(Protocol):
    """What may be asked of a store, also by somebody who does not own it."""

    @property
    def url(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def catalog(self) -> Catalog: ...
    def documents(self, kind: str) -> list[DocumentRow]:
        """All documents of a kind, in the order of their names."""

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        """The writers whose names begin with ``prefix``, in the order of their names, each with its position."""

    def cursor(self, subscription_id: int) -> Cursor: ...
    def troubles(self, subscription_id: int) -> list[TroubleRow]: ...
    def paused_keys(self, subscription_id: int) -> list[PausedRow]: ...
    def dead_letters(self, subscription_id: int) -> list[DeadLetterRow]: ...

    def positions(self, topic_id: int, first: int = 0) -> Iterator[Sequence[Position]]:
        """Every kept message from ``first`` on, in order, pack by pack, without its data."""

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> list[Record]:
        """The messages with these rising offsets; those that are no longer kept are left out."""

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        """Up to ``limit`` kept messages from ``first`` on, in order."""

    def spans(self, topic_id: int, first: int, end: int) -> Iterator[Span]:
        """What is kept from ``first`` to below ``end``, pack by pack, without reading it."""

    def packs(self, topic_id: int, first: int, end: int) -> Iterator[Pack]:
        """The packs that hold messages from ``first`` to below ``end``, whole: the outer ones may hold others, too."""

    def earliest(self, topic_id: int) -> int:
        """The lowest offset that is still kept (the next one to be given when the log is empty)."""

    def check(self) -> Iterator[Problem]:
        """Look at everything and say what is wrong with it."""

    def backup(self, path: str) -> None:
        """A consistent copy of the whole store, while it is in use. A file that exists is never overwritten."""

    def close(self) -> None: ...


class Store(StoreReader, Protocol):
    """A place that survives, and its one owner."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commits when the block ends, and rolls back when it raises."""

    def upkeep(self, now: float) -> UpkeepReport:
        """Do a bounded piece of clean-up. Call again at once while there is more to do."""


class Standby:
    """The patience of somebody who waits until a store is free; ``cancel`` ends it, from any thread.

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
        with suppress(OSError):  # nobody waits any more
            self._signal.send(b".")

    def wait(self, seconds: float, file: int | None = None) -> bool:
        """Until a file can be read (True), or the time is over or the wait was cancelled (False)."""
        poller = select.poll()
        poller.register(self._cancelled, select.POLLIN)
        if file is not None:
            poller.register(file, select.POLLIN)
        ready = dict(poller.poll(seconds * 1000))
        return not self.is_cancelled and file in ready
