"""The seam between programs and an engine: what may be asked of it, wherever it runs.

``Engine`` answers in this process; ``link`` carries the same questions to the process that owns the store. Fronts are written
against this seam and do not know which one they have.

Rules
    - What a coroutine has returned is durable. A caller that is cancelled before may or may not have had its way; what it
      asked for has happened as a whole or not at all.
    - Whatever goes in is checked before anything changes: InvalidArgument says what can never work. Reasons and error texts are
      made to fit instead (``core.limits.reason_of``).
    - Whatever goes in or comes out is plain data: numbers, text, bytes, and the classes of this module, of ``metrics``,
      ``options`` and ``core.delivery``. Times are seconds since 1970, offsets are whole numbers.
    - An attached consumer hears of messages through its callbacks, in the event loop. What it says (ack, nack, extend) about a
      lease that is lost raises StaleLease at once where that can be known, and is reported to the callback otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from seriatim.core.limits import check_message
from seriatim.core.options import require_duration
from seriatim.engine.metrics import Metrics, SubscriptionStats

if TYPE_CHECKING:
    from seriatim.core.delivery import Lease
    from seriatim.engine.consumer import Consumer
    from seriatim.engine.options import SubscriptionOptions, TopicOptions

RETIRED = "_deleted-topic_"
"""How the names of topics begin that only their subscriptions keep."""


def retired_name(topic_id: int, name: str) -> str:
    """What a topic is called when it is deleted and its subscriptions keep it."""
    return f"{RETIRED}/{topic_id}/{name}"


def former_name(name: str) -> str | None:
    """What a topic was called before it was deleted; the name itself of one that is not, None when that is not known."""
    if not name.startswith(RETIRED):
        return name
    _, _, former = name.removeprefix(f"{RETIRED}/").partition("/")
    return former or None  # versions before did not note it


Told = Callable[[BaseException | None], None]
"""Called once: with None when something is durable, or with the reason why it did not happen."""


class Outgoing(NamedTuple):
    """A message to publish."""

    key: str | None
    data: bytes
    attributes: Mapping[str, str] | None = None
    delay: float = 0.0


def check_outgoing(messages: Sequence[Outgoing]) -> None:
    """Raise InvalidArgument unless all of these messages can be published."""
    for key, data, attributes, delay in messages:
        check_message(data, key, attributes)
        if delay != 0:
            require_duration("delay", delay)


class Step(NamedTuple):
    """That a writer has come from ``start`` to ``end``."""

    writer: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. Its messages are those with offsets from ``earliest`` to below ``next_offset`` that are still kept.

    ``problem`` says what is wrong with the options that the store holds; nothing is removed until they are set anew.
    """

    name: str
    options: TopicOptions
    earliest: int
    next_offset: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription. ``problem`` says what is wrong with the options that the store holds; it is stopped until they are set
    anew, and ``options`` has defaults in their places."""

    name: str
    topic: str
    options: SubscriptionOptions
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """One key of a subscription as it stands. ``why`` says in words what it waits for, and is None when nothing blocks it."""

    key: str | None
    state: str
    depth: int
    in_flight: int
    head: int | None
    head_age: float | None
    attempts: int
    not_before: float | None
    error: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the log keeps it, looked at and not delivered."""

    offset: int
    key: str | None
    data: bytes
    attributes: Mapping[str, str]
    published: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that left its lane undelivered. ``returnable`` says whether it can still go back to its place."""

    offset: int
    key: str | None
    attempts: int
    time: float
    error: str | None
    copy_topic: str | None
    copy_offset: int | None
    returnable: bool


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    name: str
    topic: str
    expires: float
    resource: str | None = None


class StagedFile(NamedTuple):
    """A file with messages that wait to be appended (``store/staging.py``): how many, and the bytes of their data."""

    path: str
    messages: int
    size: int


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A registered reader of a topic's log: what is at or above its position is kept for it."""

    name: str
    topic: str
    position: int


@dataclass(frozen=True, slots=True)
class Document:
    """A text that a front keeps in the store, by its kind and name."""

    kind: str
    name: str
    text: str


class Attachment(Protocol):
    """A consumer at work on a subscription."""

    @property
    def ack_deadline(self) -> float:
        """How long a lease lasts unless it is extended."""

    def holds(self, lease: Lease) -> bool:
        """Whether a lease is the consumer's, as far as can be known here at once."""

    def ack(self, lease: Lease, told: Told | None = None) -> None:
        """A message is done. ``told`` hears when that is durable, or that the lease was lost."""

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        """A message failed; it goes back to its place."""

    def extend(self, lease: Lease, seconds: float) -> None:
        """Keep a message for ``seconds`` from now."""

    def stop(self) -> None:
        """Take nothing more; what is outstanding goes on."""

    def detach(self) -> None:
        """Go away. What is outstanding is given out again at once, and counts as not tried."""


class Broker(Protocol):
    """Everything that can be asked."""

    # -- topics and subscriptions ---------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo: ...
    async def update_topic(self, name: str, options: TopicOptions, fields: Sequence[str] | None = None) -> None:
        """Change options: those that ``fields`` names, all without it. What is not named stays as it is at that moment, whoever
        else changes it: updates are applied one after another, in the order in which they were asked for."""

    async def delete_topic(self, name: str) -> None: ...
    async def retire_topic(self, name: str) -> None:
        """Delete a topic, and leave its subscriptions what they have: they keep its log, under a name that begins with
        ``RETIRED``, until the last of them is deleted."""

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        """Topics by name: those whose names begin with ``prefix`` and come after ``after``, ``limit`` of them
        at most."""

    async def describe_topic(self, name: str) -> TopicInfo: ...

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo: ...
    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        """Change options like ``update_topic``. A field may go one level down, such as ``retry.max_attempts``."""

    async def detach_subscription(self, name: str) -> None:
        """Drop what a subscription has, and give it nothing more; leases that are out are fenced. There is no way back."""

    async def delete_subscription(self, name: str) -> None: ...
    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        """Subscriptions, of one topic or of all, in the order of their names and page by page like ``list_topics``."""

    async def describe_subscription(self, name: str) -> SubscriptionInfo: ...

    # -- messages in, messages out --------------------------------------------------------------------------------------

    def require_topic(self, name: str) -> None:
        """Raise NotFound when it is known at once that there is no such topic."""

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[range]:
        """Write messages, all or none of them. The future has their offsets when they are durable."""

    async def publish_at(
        self,
        topic: str,
        writer: str,
        start: int,
        end: int,
        messages: Sequence[Outgoing],
        beside: Mapping[str, Sequence[Outgoing]] | None = None,
    ) -> range:
        """Write messages, and that ``writer`` has come from ``start`` to ``end``, in one transaction.

        Refused, and nothing written, when the writer stands elsewhere: so what is written twice is written once. Without
        messages only the position moves. ``beside`` has messages for other topics that belong to the same transaction.
        """

    async def publish_steps(
        self,
        topic: str,
        steps: Sequence[Step],
        messages: Sequence[Outgoing],
        beside: Mapping[str, Sequence[Outgoing]] | None = None,
    ) -> range:
        """``publish_at`` for many writers at once: all of them take their steps, or none does and nothing is written."""

    async def position_of(self, writer: str) -> int:
        """Where a writer stands, by ``publish_at``; 0 when it never wrote."""

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """Give a consumer messages from now on."""

    async def append_batch(self, topic: str, writer: str, batch: int, files: Sequence[StagedFile]) -> range | None:
        """Write the messages of staged files, all or none of them, once for each number that a writer gives its batches.

        Returns their offsets, or None when that batch was written before: then nothing is added. Asking again is safe.
        """

    # -- readers of the log ---------------------------------------------------------------------------------------------

    async def register_reader(self, name: str, topic: str, position: int) -> ReaderInfo:
        """From now on keep what is at or above ``position`` for a reader. One of that name on the same topic is replaced."""

    async def move_reader(self, name: str, start: int, end: int) -> None:
        """A reader that stands at ``start`` has passed everything below ``end``. Refused when it stands elsewhere."""

    async def delete_reader(self, name: str) -> None: ...
    async def list_readers(self) -> list[ReaderInfo]: ...

    # -- an operator's hand ---------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """What was counted since the engine began, and how every subscription stands."""

    async def stats(self, subscription: str) -> SubscriptionStats: ...

    async def wait_until_empty(self, subscription: str) -> None:
        """Return when nothing waits, nothing is in flight, and every ack is durable."""

    async def list_keys(self, subscription: str, *, limit: int = 100, blocked_only: bool = False) -> list[KeyInfo]:
        """Keys that have messages or are paused, those in trouble first."""

    async def peek(self, subscription: str, key: str | None, limit: int = 10) -> list[StoredMessage]:
        """The first messages of a key, in order, without delivering them."""

    async def retry_key(self, subscription: str, key: str | None) -> None:
        """Let what waits for its retry, or for its delay, go out now: the head of a key, and what was overtaken."""

    async def skip(self, subscription: str, key: str | None) -> int:
        """Settle the head of a key unseen, and return its offset. A lease of it is fenced."""

    async def remove(self, subscription: str, offset: int) -> None:
        """Take a message out of its lane, wherever it stands. One that is in flight can't be removed."""

    async def pause_key(self, subscription: str, key: str | None, reason: str | None = None) -> None:
        """Give out nothing more of a key; leases that are out go on. Survives a restart."""

    async def resume_key(self, subscription: str, key: str | None) -> None:
        """Give messages of a key out again. One that had used up its attempts gets one more."""

    async def pause(self, subscription: str) -> None:
        """Give out nothing more; leases that are out go on. Survives a restart."""

    async def resume(self, subscription: str) -> None: ...

    async def dead_letter(
        self, subscription: str, key: str | None, error: str | None = None, *, rest: bool = False
    ) -> list[int]:
        """Dead-letter the head of a key, or all of it; returns the offsets."""

    async def dead_letters(self, subscription: str, *, limit: int = 100, after: int = -1) -> list[DeadLetter]: ...

    async def redrive(self, subscription: str, offset: int, *, append: bool = False) -> int:
        """Put a dead letter back at its place, or at the end under a new offset; returns its offset then."""

    async def purge(self, subscription: str, offsets: Sequence[int]) -> None:
        """Give dead letters up for good."""

    # -- time travel ----------------------------------------------------------------------------------------------------

    async def seek_to_offset(self, subscription: str, offset: int) -> None:
        """Deliver what is at or above an offset (again). Refused below what is kept, naming the earliest offset."""

    async def seek_to_time(self, subscription: str, time: float) -> None:
        """Deliver what was published at or after a time (again)."""

    async def seek_to_snapshot(self, subscription: str, snapshot: str) -> None: ...
    async def create_snapshot(
        self, subscription: str, name: str, *, lasts: float = 7 * 24 * 3600.0, resource: str | None = None
    ) -> SnapshotInfo: ...
    async def update_snapshot(
        self, name: str, *, expires: float, resource: str | None, fields: Sequence[str] | None = None
    ) -> SnapshotInfo:
        """Let a snapshot last until another time, with another resource; or change one of them only (``fields``)."""

    async def delete_snapshot(self, name: str) -> None: ...
    async def list_snapshots(self) -> list[SnapshotInfo]: ...

    # -- what fronts keep -----------------------------------------------------------------------------------------------

    async def list_documents(self, kind: str) -> list[Document]:
        """The documents of a kind, by name."""

    async def put_document(self, document: Document) -> None:
        """Keep a document, or replace the one of its name."""

    async def delete_document(self, kind: str, name: str) -> None: ...

    # -- the store ------------------------------------------------------------------------------------------------------

    async def clean_up(self) -> None:
        """Remove what nobody needs any more, now."""

    async def backup(self, path: str) -> None:
        """A consistent copy of the store, while it is in use."""

    async def close(self) -> None: ...
