"""The interface between programs and an engine: all its methods, regardless of where the engine runs.

``Engine`` implements it in this process, ``link`` forwards the calls to the process that owns the store, and the client's
``ServerBroker`` forwards them to a Pub/Sub server. Programs use this interface and do not know which one they have.

Rules
    - When a coroutine has returned, its effect is durable. A cancelled call takes effect as a whole or not at all.
    - Arguments are checked before anything changes, and raise InvalidArgument. Reasons and error texts are shortened instead
      (``core.text_checks.reason_of``).
    - Arguments and results are plain data: numbers, text, bytes, times, and the classes of this module, of ``metrics``,
      ``options`` and ``core.lanes.types``. Times are passed as seconds since 1970; results for operators have datetimes.
    - **Message ids are opaque text.** Only the broker that assigned an id knows what it stands for. Offsets appear where a
      program reads the log of a store itself: in ``TopicInfo`` and in the positions of readers.
    - An attached consumer receives messages through its callbacks, in the event loop. An ack, nack or extension of a lost lease
      raises StaleLease at once if that is known, and is reported to the callback otherwise.
    - A broker overrides the methods that it supports. The others raise NotSupported.
"""

from __future__ import annotations

# ruff: noqa: ARG002 - what a broker does not override takes its arguments and refuses
import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from seriatim.core.lanes.explanation import WaitsFor
from seriatim.core.publishing.message_limits import check_message
from seriatim.core.validation import require_duration
from seriatim.engine.metrics import CommitTimes, DeliveryCounts, Metrics, SubscriptionStats, TopicCounts
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import NotSupported
from seriatim.store.base import DEFAULT_RETENTION_S, DocumentRow, StagedFile

if TYPE_CHECKING:
    from seriatim.core.lanes.types import Lease
    from seriatim.engine.consumer import Consumer

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


OnDurable = Callable[[BaseException | None], None]
"""Called once: with None when something is durable, or with the reason why it did not happen."""


class Outgoing(NamedTuple):
    """A message to publish."""

    key: str | None
    data: bytes
    attributes: Mapping[str, str] | None = None
    delay: float = 0.0
    dedup_id: str | None = None


def check_outgoing(messages: Sequence[Outgoing]) -> None:
    """Raise InvalidArgument unless all of these messages can be published."""
    for key, data, attributes, delay, dedup_id in messages:
        check_message(data, key, attributes, dedup_id)
        if delay != 0:
            require_duration("delay", delay)


class WriterMove(NamedTuple):
    """A writer's position changes from ``start`` to ``end``."""

    writer: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. Its messages are those with offsets from ``earliest`` to below ``next_offset`` that are still kept.

    Offsets are None if a server does not provide them. ``problem`` says what is wrong with the stored options; nothing is
    removed until they are set again.
    """

    name: str
    options: TopicOptions
    earliest: int | None
    next_offset: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription. ``problem`` says what is wrong with the stored options; it is stopped until they are set again, and
    ``options`` has defaults instead."""

    name: str
    topic: str
    options: SubscriptionOptions
    problem: str | None = None


KeyOrder = Literal["trouble", "oldest", "deepest"]
"""How keys are listed: paused and failing ones first, by the age of their head, or by how many messages they have."""

KeyState = Literal["paused", "delayed", "leased", "settling", "ready"]

RANKED_KEYS = 10_000
"""The most keys that are sorted: listing a subscription with a million keys must not hold up its messages."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """The state of one key of a subscription. ``head`` is the id of its first message, and ``why`` explains what it waits for,
    in the sentence of ``explain``; None when nothing blocks it."""

    key: str | None
    state: str
    depth: int
    in_flight: int
    head: str | None
    head_age: float | None
    attempts: int
    not_before: datetime | None
    error: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a key is waiting for, and what would unblock it; ``sentence`` has all of it.

    ``since``: when it began to wait for this, None if it is not known (before a restart, or a seek). ``until``: when it
    continues by itself.
    """

    key: str | None
    waits_for: WaitsFor
    since: datetime | None
    until: datetime | None
    moved_by: str
    sentence: str


SUPERSEDED = 10_000
"""How many superseded messages of each subscription are remembered."""


@dataclass(frozen=True, slots=True)
class SupersededMessage:
    """A message that was settled undelivered, because a newer one of its key, ``by``, was there."""

    id: str
    ordering_key: str
    by: str
    time: datetime


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message that was read without being delivered."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str | None
    publish_time: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that left its key undelivered. ``returnable`` says whether it can still go back to its place;
    ``copy_topic`` and ``copy_id`` name its copy in a dead-letter topic, if it has one."""

    id: str
    ordering_key: str | None
    attempts: int
    time: datetime
    error: str | None
    copy_topic: str | None
    copy_id: str | None
    returnable: bool


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same error, in which numbers are written as ``#``. ``returnable``: how many of them could go back
    to their places; ``example`` is the id of the latest."""

    error: str
    letters: int
    returnable: int
    keys: int
    first: datetime
    last: datetime
    example: str


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Keys in one state that are blocked for the same reason: the last error of their heads, or why they were paused.

    Numbers in the reason are written as ``#``; ``example`` is one of the keys.
    """

    state: str
    reason: str
    keys: int
    example: str | None


@dataclass(frozen=True, slots=True)
class RedriveRefusal:
    """Why some dead letters can't go back to their places; ``example`` is the id of one of them."""

    reason: str
    letters: int
    example: str


@dataclass(frozen=True, slots=True)
class RedrivePreview:
    """What a redrive would do now: how many dead letters would go back in place, and why the others would not."""

    letters: int
    in_place: int
    refused: list[RedriveRefusal]


PositionState = Literal["settled", "dead-lettered", "leased", "delayed", "waiting"]


@dataclass(frozen=True, slots=True)
class LanePosition:
    """A message of a key, and its state."""

    id: str
    state: PositionState
    published: datetime
    size: int
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """Something that happened to a message of a key, or to the key (then ``id`` is None)."""

    time: datetime
    event: str
    id: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class KeyDetails:
    """Everything about a key: its state (None: it has no messages), why it is waiting, the messages around its head, and its
    events since the engine started (``since``), as far as they are remembered. The search for its messages began at the
    message ``searched_from``; None: at the earliest one that the topic keeps."""

    subscription: str
    topic: str
    info: KeyInfo | None
    explanation: Explanation
    positions: list[LanePosition]
    events: list[KeyEvent]
    since: datetime
    searched_from: str | None = None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a topic; ``next`` is where to continue, None at the end."""

    messages: list[PeekedMessage]
    next: str | None


Trouble = Literal["stopped", "paused", "deserted", "slow", "dead-lettered"]
"""What may be wrong with a subscription: its options can't be used; messages wait although it is paused, or has no consumer, or
for more than a minute although nothing keeps them from its consumers; it has dead letters."""


@dataclass(frozen=True, slots=True)
class Named:
    """How many subscriptions there are of a kind, and the names of the first few."""

    count: int
    names: list[str]


@dataclass(frozen=True, slots=True)
class Overview:
    """Statistics of a whole store: counters since the engine started, the backlog of all subscriptions, and the subscriptions
    with the most problems, or whose names match the search. ``oldest_age`` and ``troubles`` are about all subscriptions; with
    ``limit`` 0 they are missing."""

    time: datetime
    started: datetime
    topics: int
    subscriptions: int
    published: TopicCounts
    deliveries: DeliveryCounts
    messages: int
    leased: int
    dead_letters: int
    keys: int
    blocked_keys: int
    commits: CommitTimes
    worst: list[SubscriptionStats]
    oldest_age: float | None = None
    troubles: Mapping[Trouble, Named] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """A problem in a store."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The health of a store, as its owner knows it without a check. ``size`` is in bytes, None if it is not known.

    ``failing_since``: no commit has succeeded since then. ``down``: why the engine is down. ``last_problem``: the last failure
    of the store since its owner started. ``options``: unusable ones.
    """

    kind: str
    epoch: int
    topics: int
    subscriptions: int
    size: int | None
    commits: CommitTimes
    failing_since: datetime | None
    down: str | None
    last_problem: str | None
    last_problem_time: datetime | None
    options: list[StoreProblem]


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of a full check of a store: damage (then nothing is counted), or unusable options."""

    problems: list[StoreProblem]
    is_damaged: bool = False
    topics: int = 0
    subscriptions: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot: which messages of a topic were settled when it was taken."""

    name: str
    topic: str
    expires: float
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A registered reader of a topic's log: messages at or above its position are kept for it."""

    name: str
    topic: str
    position: int


Document: TypeAlias = DocumentRow
"""A text that a front end keeps in the store, by its kind and name."""


class Attachment(Protocol):
    """An attached consumer of a subscription."""

    @property
    def ack_deadline(self) -> float:
        """How long a lease lasts unless it is extended."""

    def holds(self, lease: Lease) -> bool:
        """Whether the consumer holds a lease, as far as this process knows."""

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        """Ack a message. ``on_durable`` is called when that is durable, or with the error if the lease was lost."""

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        """Nack a message: it returns to its place."""

    def dead_letter(self, lease: Lease, reason: str | None = None, *, rest: bool = False) -> None:
        """Dead-letter a message at once, with ``rest`` together with the waiting messages of its key."""

    def extend(self, lease: Lease, seconds: float) -> None:
        """Extend a lease to ``seconds`` from now."""

    def stop(self) -> None:
        """Accept nothing more; outstanding messages are not affected."""

    def detach(self) -> None:
        """Detach the consumer. Its messages are redelivered at once, and the attempts do not count."""


class Broker:
    """All methods of an engine. Those that an implementation does not support raise NotSupported."""

    def unsupported(self, verb: str) -> NotSupported:
        """The error of a verb that this kind of broker does not have."""
        return NotSupported(f"{type(self).__name__} does not support {verb}")

    # -- topics and subscriptions ---------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo:
        """Create a topic. Raises AlreadyExists if it exists."""
        raise self.unsupported("create_topic")

    async def update_topic(self, name: str, options: TopicOptions, fields: Sequence[str] | None = None) -> None:
        """Change the options that ``fields`` names, or all of them. Other options keep their current values, even with
        concurrent updates: these are applied one after another, in the order of the requests."""
        raise self.unsupported("update_topic")

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, with its messages and its subscriptions."""
        raise self.unsupported("delete_topic")

    async def retire_topic(self, name: str) -> None:
        """Delete a topic, but keep its messages for its subscriptions: its log remains, under another name,
        until the last of them is deleted."""
        raise self.unsupported("retire_topic")

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        """At most ``limit`` topics whose names begin with ``prefix`` and come after ``after``, ordered by name."""
        raise self.unsupported("list_topics")

    async def describe_topic(self, name: str) -> TopicInfo:
        """A topic and its options."""
        raise self.unsupported("describe_topic")

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo:
        """Create a subscription, which receives messages published from now on. Names are unique across topics."""
        raise self.unsupported("create_subscription")

    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        """Change options like ``update_topic``. A field may be nested one level, such as ``retry.max_attempts``. If the
        lanes have to be rebuilt, outstanding leases finish first."""
        raise self.unsupported("update_subscription")

    async def detach_subscription(self, name: str) -> None:
        """Drop the backlog of a subscription and deliver nothing more. This can't be undone; outstanding leases are fenced."""
        raise self.unsupported("detach_subscription")

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription. Deleting the last one of a retired topic deletes that topic, too."""
        raise self.unsupported("delete_subscription")

    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        """Subscriptions of one topic or of all, ordered by name and paged like ``list_topics``."""
        raise self.unsupported("list_subscriptions")

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        """A subscription and its options."""
        raise self.unsupported("describe_subscription")

    # -- messages in, messages out --------------------------------------------------------------------------------------

    def require_topic(self, name: str) -> None:
        """Raise NotFound if it is known at once that there is no such topic."""

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        """Write messages, all or none of them. The future resolves to their ids when they are durable.

        A message with a ``dedup_id`` is stored once: while that is known, the id of the first message is the answer, and
        AlreadyExists if that one has another key or other data.
        """
        raise self.unsupported("publish")

    joins_batches = False
    """Whether one call of ``publish`` may have messages of many batches; elsewhere a call has limits of its own."""

    def publish_checked(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        """Like ``publish``, with messages that have passed ``check_outgoing``."""
        return self.publish(topic, messages)

    async def publish_once(
        self,
        topic: str,
        moves: Sequence[WriterMove],
        messages: Sequence[Outgoing],
        beside: Mapping[str, Sequence[Outgoing]] | None = None,
    ) -> Sequence[str]:
        """Write messages and move the positions of their writers, in one transaction.

        Refused, with nothing written, when a writer stands elsewhere: a retry can't write twice. Without messages only
        the positions move. ``beside`` holds messages for other topics that belong to the same transaction.
        """
        raise self.unsupported("publish_once")

    async def position_of(self, writer: str) -> int:
        """The position of a writer that uses ``publish_once``; 0 when it never wrote."""
        raise self.unsupported("position_of")

    async def append_batch(
        self, topic: str, writer: str, batch: int, files: Sequence[StagedFile]
    ) -> Sequence[str] | None:
        """Write the messages of staged files, all or none of them, once for each batch number of a writer.

        Returns their ids, or None when that batch was written before: then nothing is added. Retrying is safe.
        """
        raise self.unsupported("append_batch")

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """Deliver messages to a consumer from now on."""
        raise self.unsupported("attach")

    async def read_messages(
        self, topic: str, *, start: str = "0", limit: int = 100, key: str | None = None
    ) -> MessagePage:
        """Messages of a topic from an id on, of one key or of all, whether delivered or not. A page may have fewer than
        ``limit`` messages although there are more: ``next`` is where to continue."""
        raise self.unsupported("read_messages")

    # -- readers of the log ---------------------------------------------------------------------------------------------

    async def register_reader(self, name: str, topic: str, position: int) -> ReaderInfo:
        """Keep everything at or above ``position`` for a reader. One of that name on the same topic is replaced."""
        raise self.unsupported("register_reader")

    async def move_reader(self, name: str, start: int, end: int) -> None:
        """Move a reader that stands at ``start`` to ``end``. Refused when it stands elsewhere."""
        raise self.unsupported("move_reader")

    async def delete_reader(self, name: str) -> None:
        """Delete a reader. Messages that only it retained may then be deleted, too."""
        raise self.unsupported("delete_reader")

    async def list_readers(self) -> list[ReaderInfo]:
        """All registered readers, with their positions."""
        raise self.unsupported("list_readers")

    # -- operations -----------------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """Counters since the engine started, and the state of every subscription."""
        raise self.unsupported("metrics")

    async def overview(self, *, search: str = "", limit: int = 20, skip: int = 0) -> Overview:
        """Statistics of the whole store, and of the subscriptions with the most problems, after the first ``skip``."""
        raise self.unsupported("overview")

    async def stats(self, subscription: str) -> SubscriptionStats:
        """Counts of the messages and keys of a subscription, and the age of its oldest message."""
        raise self.unsupported("stats")

    async def wait_until_empty(self, subscription: str) -> None:
        """Return when nothing waits, nothing is in flight, and every ack is durable."""
        raise self.unsupported("wait_until_empty")

    async def list_keys(
        self,
        subscription: str,
        *,
        limit: int = 100,
        blocked_only: bool = False,
        order: KeyOrder = "trouble",
        state: KeyState | None = None,
        search: str = "",
        skip: int = 0,
    ) -> list[KeyInfo]:
        """Keys that have messages or are paused, in this order, after the first ``skip``; optionally only those in one state,
        or containing a text. If more than 10,000 match, only that many are sorted: blocked ones first, then those that
        have not been empty for the longest time."""
        raise self.unsupported("list_keys")

    async def group_keys(self, subscription: str, limit: int = 100) -> list[KeyGroup]:
        """Paused and delayed keys grouped by reason, the largest groups first. If there are more than 10,000, those
        that have been blocked for the longest time are grouped."""
        raise self.unsupported("group_keys")

    async def describe_key(self, subscription: str, key: str | None, limit: int = 50) -> KeyDetails:
        """A key with at most ``limit`` of its messages and events."""
        raise self.unsupported("describe_key")

    async def explain(self, subscription: str, key: str | None) -> Explanation:
        """What a key is waiting for, since when, and what would unblock it."""
        raise self.unsupported("explain")

    async def superseded(self, subscription: str, key: str | None = None, limit: int = 100) -> list[SupersededMessage]:
        """Messages that were superseded by newer ones (``keep="latest"``), the latest first, of one key or of all (None).
        The last 10,000 of each subscription are remembered, until the engine ends."""
        raise self.unsupported("superseded")

    async def peek(self, subscription: str, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        """The first messages of a key, in order, without delivering them."""
        raise self.unsupported("peek")

    async def retry_key(self, subscription: str, key: str | None) -> None:
        """Deliver now what waits for a retry or a delay: the head of a key, and messages that were overtaken."""
        raise self.unsupported("retry_key")

    async def skip(self, subscription: str, key: str | None, *, head: str | None = None) -> str:
        """Settle the head of a key without delivering it, and return its id. If it is leased, the lease is fenced. With
        ``head``, the id of the expected message, the call is refused if the key has moved on to another message."""
        raise self.unsupported("skip")

    async def remove(self, subscription: str, message_id: str) -> None:
        """Remove a message from its key, at any position. A message in flight can't be removed."""
        raise self.unsupported("remove")

    async def pause_key(self, subscription: str, key: str | None, reason: str | None = None) -> None:
        """Stop delivering a key; outstanding leases stay valid. Pausing again replaces the reason. Survives a restart."""
        raise self.unsupported("pause_key")

    async def resume_key(self, subscription: str, key: str | None) -> None:
        """Deliver messages of a key again. A message that has used up its attempts gets one more."""
        raise self.unsupported("resume_key")

    async def pause(self, subscription: str) -> None:
        """Stop delivery; outstanding leases stay valid. Survives a restart."""
        raise self.unsupported("pause")

    async def resume(self, subscription: str) -> None:
        """Deliver the messages of a paused subscription again."""
        raise self.unsupported("resume")

    async def dead_letter(
        self,
        subscription: str,
        key: str | None,
        error: str | None = None,
        *,
        rest: bool = False,
        head: str | None = None,
    ) -> list[str]:
        """Dead-letter the head of a key, or all of it, and return the ids. Leases of the key are fenced. ``head``: as for
        ``skip``."""
        raise self.unsupported("dead_letter")

    async def dead_letters(
        self, subscription: str, *, limit: int = 100, after: str | None = None, error: str | None = None
    ) -> list[DeadLetter]:
        """Dead letters in the order of the log; ``after`` is the last id of the page before. ``error``: only those of that
        group (``group_dead_letters``)."""
        raise self.unsupported("dead_letters")

    async def group_dead_letters(self, subscription: str, limit: int = 100) -> list[DeadLetterGroup]:
        """Dead letters grouped by error, the largest groups first."""
        raise self.unsupported("group_dead_letters")

    async def preview_redrive(
        self, subscription: str, message_ids: Sequence[str] | None = None, *, error: str | None = None
    ) -> RedrivePreview:
        """What a redrive of these dead letters, of a group, or of all would do now. Nothing is changed."""
        raise self.unsupported("preview_redrive")

    async def redrive(self, subscription: str, message_id: str, *, append: bool = False) -> str:
        """Put a dead letter back in its place and return its id; with ``append``, put it at the end, under a new id."""
        raise self.unsupported("redrive")

    async def purge(self, subscription: str, message_ids: Sequence[str]) -> None:
        """Delete dead letters. This can't be undone."""
        raise self.unsupported("purge")

    # -- seeking --------------------------------------------------------------------------------------------------------

    async def seek_to_message(self, subscription: str, message_id: str) -> None:
        """Move the subscription to a message, or to the end with the id after the last one. Refused if it is no longer kept."""
        raise self.unsupported("seek_to_message")

    async def seek_to_time(self, subscription: str, time: float) -> None:
        """Move the subscription to the first message published at or after a time."""
        raise self.unsupported("seek_to_time")

    async def seek_to_snapshot(self, subscription: str, snapshot: str) -> None:
        """Restore which messages were settled when a snapshot was taken."""
        raise self.unsupported("seek_to_snapshot")

    async def create_snapshot(
        self, subscription: str, name: str, *, lasts: float = DEFAULT_RETENTION_S, resource: str | None = None
    ) -> SnapshotInfo:
        """Save which messages a subscription has settled, and keep the unsettled ones for ``lasts`` seconds."""
        raise self.unsupported("create_snapshot")

    async def update_snapshot(
        self, name: str, *, expires: float, resource: str | None, fields: Sequence[str] | None = None
    ) -> SnapshotInfo:
        """Change when a snapshot expires and its resource, or only what ``fields`` names."""
        raise self.unsupported("update_snapshot")

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot. Messages that only it retained may then be deleted, too."""
        raise self.unsupported("delete_snapshot")

    async def list_snapshots(self) -> list[SnapshotInfo]:
        """All snapshots."""
        raise self.unsupported("list_snapshots")

    # -- documents of front ends ----------------------------------------------------------------------------------------

    async def list_documents(self, kind: str) -> list[Document]:
        """The documents of a kind, ordered by name."""
        raise self.unsupported("list_documents")

    async def put_document(self, document: Document) -> None:
        """Save a document, or replace the one of that name."""
        raise self.unsupported("put_document")

    async def delete_document(self, kind: str, name: str) -> None:
        """Delete a document."""
        raise self.unsupported("delete_document")

    # -- the store ------------------------------------------------------------------------------------------------------

    async def add_outbox(self, path: str) -> None:
        """Publish the messages in the outbox of a SQLite file, now and whenever the store is open."""
        raise self.unsupported("add_outbox")

    async def remove_outbox(self, path: str) -> None:
        """Stop publishing from the outbox of a SQLite file."""
        raise self.unsupported("remove_outbox")

    async def health(self) -> StoreHealth:
        """The health of the store: commits, failures, size, and unusable options."""
        raise self.unsupported("health")

    async def check(self) -> StoreCheck:
        """Verify everything in the store: the database, every message, every cursor and all options. This may take long."""
        raise self.unsupported("check")

    async def clean_up(self) -> None:
        """Remove messages that are no longer needed, now. This also happens automatically."""
        raise self.unsupported("clean_up")

    async def backup(self, path: str) -> None:
        """Write a consistent copy of the store while it is in use."""
        raise self.unsupported("backup")

    def begin_closing(self) -> None:
        """Announce a close: from now on, nothing waits for long for an unavailable store."""

    async def close(self) -> None:
        """Make everything durable that was accepted, then release the store."""
        raise self.unsupported("close")
