"""The engine: topics, subscriptions and one store, in one event loop.

Rules
    - An open engine owns its store until it is closed.
    - When a method has returned, or its future has been resolved, the result is durable.
    - A change takes effect both in the store and in memory, or in neither. So its part in memory is carried out by the commit's
      callback (``change``) or in a task of the engine (``finish``), and cancelling the caller can't separate the two. Changes
      are applied in memory in the same order as in the store.
    - Offsets are assigned in the order in which messages are published; those of a failed publish are not used again.
    - What happens when the store fails is decided in one place (``store_failure.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from seriatim.core.publishing.dedup import Claims, claims_of
from seriatim.core.text_checks import check_name, check_text
from seriatim.core.validation import MAX_INTEGER, require_whole
from seriatim.engine.broker import (
    Attachment,
    Broker,
    DeadLetter,
    DeadLetterGroup,
    Document,
    Explanation,
    KeyDetails,
    KeyGroup,
    KeyInfo,
    KeyOrder,
    KeyState,
    MessagePage,
    Outgoing,
    Overview,
    PeekedMessage,
    ReaderInfo,
    RedrivePreview,
    SnapshotInfo,
    StoreCheck,
    StoreHealth,
    SubscriptionInfo,
    SupersededMessage,
    TopicInfo,
    WriterMove,
    check_outgoing,
)
from seriatim.engine.commit import Commit, Log
from seriatim.engine.consumer import Consumer
from seriatim.engine.deliveries import LocalAttachment, Pump
from seriatim.engine.health import check_store, health_of
from seriatim.engine.key_history import History
from seriatim.engine.message_ids import offset_of
from seriatim.engine.metrics import Metrics, SubscriptionStats
from seriatim.engine.operator_actions import Operator
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.engine.outbox import Outbox
from seriatim.engine.overview import overview_of, read_page
from seriatim.engine.readers import advance, put, readers_in
from seriatim.engine.registry import Registry
from seriatim.engine.seeking import (
    Move,
    change_snapshot,
    snapshots_in,
    take_snapshot,
    to_offset,
    to_snapshot,
    to_time,
)
from seriatim.engine.store_failure import Recovery
from seriatim.engine.store_reopening import Opener
from seriatim.engine.subscription import SubscriptionState
from seriatim.engine.topic import TopicState
from seriatim.engine.uncancelled_wait import until_done
from seriatim.engine.upkeep import Upkeep
from seriatim.errors import (
    InvalidArgument,
    NotFound,
    StoreLost,
)
from seriatim.log import logger
from seriatim.store import absolute_url, open_store
from seriatim.store.base import (
    DEFAULT_RETENTION_S,
    Record,
    StagedFile,
    Standby,
    Store,
    StoreReader,
    Transaction,
)

EPOCH_BITS = 40
"""A token carries the epoch of the store's owner above this many bits, so that no token is ever given twice."""

MAX_WRITER_POSITION = 2**256
"""The highest position of a writer (``publish_once``): pipes put an epoch above the index, the Sparkplug host packs all that it
has to know of an edge node below the number of its messages (``Bookmark``: 170 bits)."""

T = TypeVar("T")


class Engine(Broker):
    """The topics and subscriptions of one store."""

    def __init__(self, store: Store, opener: Opener | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.wall = time.time() - self._loop.time()
        self.pump = Pump()
        self.history = History(self.now())
        self._registry = Registry(self)
        self.require_topic = self._registry.topic  # type: ignore[method-assign, assignment]  # straight to who knows
        self._unfinished: set[asyncio.Task[None]] = set()
        self.recovery = Recovery(store, opener, self._registry, self.pump, self._load, self._begin)
        self._committer = self.recovery.committer
        self._upkeep = Upkeep(self, self._registry)
        self._outbox = Outbox(self)
        self._readers = ThreadPoolExecutor(1, "seriatim-reader")
        self._closing: asyncio.Task[None] | None = None
        self._is_given_back = False

    # -- life -----------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, url: str, standby: Standby | None = None) -> Self:
        """An engine on the store at ``url``, loaded and running. ``standby`` waits until no other process owns it."""
        url = absolute_url(url)  # it may be opened again later, when the program is in another folder
        first, again = partial(open_store, url, standby=standby), partial(open_store, url)
        engine = cls(await asyncio.get_running_loop().run_in_executor(None, first), again)
        try:
            await engine.start()
        except BaseException:
            await engine.close()  # or the store would stay owned by an engine that nobody has
            raise
        return engine

    async def start(self) -> None:
        """Load the contents of the store, or load them again."""
        catalog = await self._ask(lambda store: store.catalog())
        self._registry.take(catalog)
        rows = {row.id: row for row in catalog.subscriptions}
        loaded = []
        for subscription in self._registry.subscriptions.values():
            options = subscription.read_options(rows[subscription.id])
            loaded.append(
                (subscription, options, await self._ask(partial(subscription.placement.load, options=options)))
            )
        for subscription, options, lanes in loaded:
            subscription.resume(options, lanes)
        self._outbox.start()

    def begin_closing(self) -> None:
        self.recovery.begin_closing()

    async def close(self) -> None:
        """Write everything that was accepted, and release the store. Leases end with it, and their attempts do not count.

        In a forked child this does nothing, because engine and store belong to the parent.
        """
        if self._committer.is_forked:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="seriatim-engine-closing")
        try:
            await until_done(self._closing)
        finally:
            if not self._is_given_back:  # it was cancelled before it began
                await self._give_back_store()

    async def _close(self) -> None:
        try:
            await self.recovery.stop()
            self._upkeep.settle_rejected()
            for subscription in self._registry.subscriptions.values():
                subscription.close(StoreLost("the engine was closed: open another one"))
            await self._upkeep.stop()
            await self._outbox.stop()
        finally:  # whatever happens, the store is given back
            await self._give_back_store()

    async def _give_back_store(self) -> None:
        self._is_given_back = True
        try:
            await self._committer.close()
            for subscription in self._registry.subscriptions.values():
                subscription.outcomes.fail_waiting(StoreLost("the engine was closed before this could be written"))
            if self._unfinished:
                await asyncio.wait(self._unfinished)  # while the store is still there for them
        finally:
            self._readers.shutdown()
            await until_done(self._loop.run_in_executor(None, self._store.close))

    # -- topics and subscriptions ---------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo:
        return await self._registry.create_topic(name, options or TopicOptions())

    async def update_topic(self, name: str, options: TopicOptions, fields: Sequence[str] | None = None) -> None:
        await self._registry.update_topic(name, options, fields)

    async def delete_topic(self, name: str) -> None:
        await self._registry.delete_topic(name)

    async def retire_topic(self, name: str) -> None:
        await self._registry.retire_topic(name)

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo:
        return await self._registry.create_subscription(topic, name, options or SubscriptionOptions())

    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        await self.finish(self._registry.update_subscription(name, options, fields))

    async def detach_subscription(self, name: str) -> None:
        await self.finish(self.get_subscription(name).placement.detach())

    async def delete_subscription(self, name: str) -> None:
        await self._registry.delete_subscription(name)

    def get_topic(self, name: str) -> TopicState:
        return self._registry.topic(name)

    def get_subscription(self, name: str) -> SubscriptionState:
        return self._registry.subscription(name)

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        """Topics by name. Topics that are deleted meanwhile are replaced by the next ones, so only the last page is short."""
        found: list[TopicInfo] = []
        while True:
            missing = None if limit is None else limit - len(found)
            topics = self._registry.topics_page(prefix, after, missing)
            found += await self._described(topics)
            if missing is None or len(topics) < missing or len(found) == limit:
                return found
            after = topics[-1].name

    async def _described(self, topics: Sequence[TopicState]) -> list[TopicInfo]:
        """Those of the topics that still exist."""

        def ask(store: Store) -> dict[int, int]:
            found = {}
            for topic in topics:
                with suppress(NotFound):
                    found[topic.id] = store.earliest(topic.id)
            return found

        earliest = await self.read(ask)
        return [topic.info(earliest[topic.id]) for topic in topics if topic.id in earliest]

    async def describe_topic(self, name: str) -> TopicInfo:
        topic = self.get_topic(name)
        earliest = await self.read(lambda store: store.earliest(topic.id))
        return topic.info(earliest)

    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        return [found.info() for found in self._registry.subscriptions_page(topic, prefix, after, limit)]

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        return self.get_subscription(name).info()

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        return LocalAttachment(self.get_subscription(subscription), consumer)

    # -- publishing -----------------------------------------------------------------------------------------------------

    joins_batches = True

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        check_outgoing(messages)
        return self.publish_checked(topic, messages)

    def publish_checked(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        log, commit = self.get_topic(topic), self.commit()
        claims = claims_of(messages, log.next_offset)
        ids, records = log.number(messages, self.now())
        return self._append_new(commit, log, records, ids, claims) if claims.first else commit.append(log, records, ids)

    def _append_new(
        self, commit: Commit, log: TopicState, records: Sequence[Record], ids: Sequence[str], claims: Claims
    ) -> asyncio.Future[Sequence[str]]:
        """Append all but the messages that were published before, as the transaction determines."""
        now, appended = self.now(), dict[Log, Sequence[Record]]({log: records})

        def append(work: Transaction) -> Sequence[str]:
            first, appended[log] = work.claim_ids(log.id, claims, now), records
            if not first:
                return ids
            appended[log] = [record for record in records if record.offset not in first]
            return [str(first.get(record.offset, record.offset)) for record in records]

        return commit.request(append, appended)

    async def read_messages(
        self, topic: str, *, start: str = "0", limit: int = 100, key: str | None = None
    ) -> MessagePage:
        log, first = self.get_topic(topic).id, offset_of(start)
        require_whole("limit", limit, 1, MAX_INTEGER)
        return await self.load(lambda store: read_page(store, log, first, limit, key))

    async def append_batch(
        self, topic: str, writer: str, batch: int, files: Sequence[StagedFile]
    ) -> Sequence[str] | None:
        check_name("Writer", writer)
        require_whole("batch", batch, 0, MAX_INTEGER)
        await self._loop.run_in_executor(None, _check_all, self._store, files)
        return await self.commit().append_batch(self.get_topic(topic), writer, batch, files, self.now())

    async def publish_once(
        self,
        topic: str,
        moves: Sequence[WriterMove],
        messages: Sequence[Outgoing],
        beside: Mapping[str, Sequence[Outgoing]] | None = None,
    ) -> Sequence[str]:
        for writer, start, end in moves:
            check_name("Writer", writer)
            require_whole("start", start, 0, MAX_WRITER_POSITION)
            require_whole("end", end, 0, MAX_WRITER_POSITION)
        if len({move.writer for move in moves}) < len(moves):
            raise InvalidArgument("a writer makes one move at a time: name each of them once")
        log = self.get_topic(topic)
        for each in (messages, *(beside or {}).values()):
            check_outgoing(each)
        more = {self.get_topic(name): others for name, others in (beside or {}).items()}
        if log in more:
            raise InvalidArgument(f"what goes beside the messages of topic {topic!r} goes to another topic")
        commit = self.commit()
        ids, records = log.number(messages, self.now())
        together: dict[Log, Sequence[Record]] = {log: records}
        together |= {other: other.number(others, self.now())[1] for other, others in more.items()}

        def move(work: Transaction) -> Sequence[str]:
            for each in together:
                work.append(each.id, ())  # before anything is moved: the topic may have been deleted
            work.move_positions(moves)
            return ids

        return await commit.request(move, together)

    async def position_of(self, writer: str) -> int:
        check_name("Writer", writer)
        return await self.change(lambda work: work.position(writer))

    # -- operations -----------------------------------------------------------------------------------------------------

    def _operator(self, subscription: str) -> Operator:
        return Operator(self.get_subscription(subscription), self)

    async def stats(self, subscription: str) -> SubscriptionStats:
        return await self._operator(subscription).stats()

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
        return await self._operator(subscription).list_keys(
            limit=limit, blocked_only=blocked_only, order=order, state=state, search=search, skip=skip
        )

    async def group_keys(self, subscription: str, limit: int = 100) -> list[KeyGroup]:
        return await self._operator(subscription).group_keys(limit)

    async def describe_key(self, subscription: str, key: str | None, limit: int = 50) -> KeyDetails:
        return await self._operator(subscription).describe_key(key, limit)

    async def explain(self, subscription: str, key: str | None) -> Explanation:
        return await self._operator(subscription).explain(key)

    async def superseded(self, subscription: str, key: str | None = None, limit: int = 100) -> list[SupersededMessage]:
        return self._operator(subscription).superseded(key, limit)

    async def peek(self, subscription: str, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        return await self._operator(subscription).peek(key, limit)

    async def retry_key(self, subscription: str, key: str | None) -> None:
        await self._operator(subscription).retry_key(key)

    async def skip(self, subscription: str, key: str | None, *, head: str | None = None) -> str:
        return await self._operator(subscription).skip(key, head)

    async def remove(self, subscription: str, message_id: str) -> None:
        await self._operator(subscription).remove(message_id)

    async def pause_key(self, subscription: str, key: str | None, reason: str | None = None) -> None:
        await self._operator(subscription).pause_key(key, reason)

    async def resume_key(self, subscription: str, key: str | None) -> None:
        await self._operator(subscription).resume_key(key)

    async def pause(self, subscription: str) -> None:
        await self.finish(self._operator(subscription).set_paused(True))

    async def resume(self, subscription: str) -> None:
        await self.finish(self._operator(subscription).set_paused(False))

    async def dead_letter(
        self,
        subscription: str,
        key: str | None,
        error: str | None = None,
        *,
        rest: bool = False,
        head: str | None = None,
    ) -> list[str]:
        return await self._operator(subscription).dead_letter(key, error, rest=rest, head=head)

    async def dead_letters(
        self, subscription: str, *, limit: int = 100, after: str | None = None, error: str | None = None
    ) -> list[DeadLetter]:
        return await self._operator(subscription).dead_letters(limit=limit, after=after, error=error)

    async def group_dead_letters(self, subscription: str, limit: int = 100) -> list[DeadLetterGroup]:
        return await self._operator(subscription).group_dead_letters(limit)

    async def preview_redrive(
        self, subscription: str, message_ids: Sequence[str] | None = None, *, error: str | None = None
    ) -> RedrivePreview:
        return await self._operator(subscription).preview_redrive(message_ids, error=error)

    async def redrive(self, subscription: str, message_id: str, *, append: bool = False) -> str:
        return await self._operator(subscription).redrive(message_id, append=append)

    async def purge(self, subscription: str, message_ids: Sequence[str]) -> None:
        await self._operator(subscription).purge(message_ids)

    async def wait_until_empty(self, subscription: str) -> None:
        await self.get_subscription(subscription).deliveries.until_empty()

    # -- seeking, snapshots, readers ------------------------------------------------------------------------------------

    async def seek_to_message(self, subscription: str, message_id: str) -> None:
        state, offset = self.get_subscription(subscription), offset_of(message_id)
        await self._seek(state, to_offset(state.id, state.topic.id, offset, state.topic.next_offset))

    async def seek_to_time(self, subscription: str, time: float) -> None:
        state = self.get_subscription(subscription)
        await self._seek(state, to_time(state.id, state.topic.id, time, state.topic.next_offset))

    async def seek_to_snapshot(self, subscription: str, snapshot: str) -> None:
        state = self.get_subscription(subscription)
        await self._seek(state, to_snapshot(state.id, state.topic.id, snapshot, self.now()))

    async def _seek(self, state: SubscriptionState, move: Move[None]) -> None:
        await self.finish(state.placement.relocate(lambda: self.move(move)))

    async def create_snapshot(
        self, subscription: str, name: str, *, lasts: float = DEFAULT_RETENTION_S, resource: str | None = None
    ) -> SnapshotInfo:
        state, now = self.get_subscription(subscription), self.now()
        take = take_snapshot(state.id, state.topic.id, name, lasts, now, resource)
        state.filter.settle()
        await self.drain()  # acks that were accepted belong to it
        await self.move(take)
        return SnapshotInfo(name, state.topic.name, now + lasts, resource)

    async def update_snapshot(
        self, name: str, *, expires: float, resource: str | None, fields: Sequence[str] | None = None
    ) -> SnapshotInfo:
        return await self.move(change_snapshot(name, expires, resource, fields, self.now()))

    async def delete_snapshot(self, name: str) -> None:
        check_name("Snapshot name", name)
        await self.change(lambda work: work.delete_snapshot(name))

    async def list_snapshots(self) -> list[SnapshotInfo]:
        return snapshots_in(await self.load(lambda store: store.catalog()), self.now())

    async def register_reader(self, name: str, topic: str, position: int) -> ReaderInfo:
        await self.move(put(name, self.get_topic(topic), position))
        return ReaderInfo(name, topic, position)

    async def move_reader(self, name: str, start: int, end: int) -> None:
        await self.move(advance(name, start, end))

    async def delete_reader(self, name: str) -> None:
        check_name("Reader", name)
        await self.change(lambda work: work.delete_reader(name))

    async def list_readers(self) -> list[ReaderInfo]:
        return readers_in(await self.load(lambda store: store.catalog()))

    # -- what fronts keep -----------------------------------------------------------------------------------------------

    async def list_documents(self, kind: str) -> list[Document]:
        check_name("Document kind", kind)
        return await self.load(lambda store: store.documents(kind))

    async def put_document(self, document: Document) -> None:
        check_name("Document kind", document.kind)
        check_name("Document name", document.name)
        check_text("Document text", document.text)
        await self.change(lambda work: work.put_document(document))

    async def delete_document(self, kind: str, name: str) -> None:
        check_name("Document kind", kind)
        check_name("Document name", name)
        await self.change(lambda work: work.delete_document(kind, name))

    @property
    def is_volatile(self) -> bool:
        """Whether everything is lost with the process."""
        return self._store.url == "memory://"

    async def add_outbox(self, path: str) -> None:
        await self.finish(self._outbox.add_file(path))

    async def remove_outbox(self, path: str) -> None:
        await self.finish(self._outbox.remove_file(path))

    # -- figures --------------------------------------------------------------------------------------------------------

    async def overview(self, *, search: str = "", limit: int = 20, skip: int = 0) -> Overview:
        return await overview_of(self, self._registry, self._committer.times, search=search, limit=limit, skip=skip)

    async def metrics(self) -> Metrics:
        """Counters since the engine started, and the state of every subscription, except those deleted meanwhile."""
        stats = {}
        for name in list(self._registry.subscriptions):
            with suppress(NotFound):
                stats[name] = await self.stats(name)
        times = self._committer.times
        return Metrics(
            time=self.now(),
            topics={topic.name: replace(topic.counts) for topic in self._registry.topics.values()},
            subscriptions={known.name: replace(known.counts) for known in self._registry.subscriptions.values()},
            commits=replace(times, buckets=list(times.buckets)),
            stats=stats,
        )

    # -- services for the parts -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """Wall-clock time that does not jump while the engine runs."""
        return self._loop.time() + self.wall

    def commit(self) -> Commit:
        self._upkeep.changed.set()
        return self._committer.next()

    @property
    def epoch(self) -> int:
        """It rises each time the store is opened."""
        return self._store.epoch

    def first_token(self) -> int:
        """The first token of this owner. Earlier owners assigned lower ones only, and later owners assign higher ones."""
        return (self.epoch << EPOCH_BITS) + 1

    async def drain(self) -> None:
        """Wait until everything accepted so far is durable."""
        await self.change(lambda _: None)

    async def change(self, change: Callable[[Transaction], T], applied: Callable[[T], None] | None = None) -> T:
        """Make a change in the next commit, and wait until it is durable.

        ``applied`` is called with its result as soon as it is durable, even if the caller no longer waits.
        """
        return await self.commit().request(change, applied=applied)

    async def move(self, move: Move[T]) -> T:
        """Make a change that reads the store first, such as a seek, in the next commit."""
        return await self.change(lambda work: move(self._store, work))

    async def read(self, question: Callable[[Store], T]) -> T:
        """Read from the store, in the thread for reading."""
        await self.recovery.require_store()
        return await self._ask(question)

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> Coroutine[None, None, list[Record]]:
        return self.read(lambda store: store.fetch(topic_id, offsets))

    async def load(self, work: Callable[[StoreReader], T]) -> T:
        """Read from the store in another thread, because it may take long."""
        await self.recovery.require_store()
        return await self._loop.run_in_executor(None, work, self._store)

    def topic(self, name: str) -> TopicState | None:
        return self._registry.topics.get(name)

    def topic_name(self, topic_id: int | None) -> str | None:
        topic = None if topic_id is None else self._registry.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def can_write(self) -> bool:
        return not self._committer.is_broken

    async def health(self) -> StoreHealth:
        return await health_of(self, self._registry)

    async def check(self) -> StoreCheck:
        return await self.load(check_store)

    async def clean_up(self) -> None:
        await self._upkeep.clean_up()

    async def backup(self, path: str) -> None:
        await self.load(lambda store: store.backup(path))

    # -- how ------------------------------------------------------------------------------------------------------------

    async def finish(self, work: Coroutine[None, None, None]) -> None:
        """Wait for work that is completed even if the caller is cancelled."""
        await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # whoever asked may wait no longer
            logger.debug("a change that was begun failed: %s", error)

    async def _ask(self, question: Callable[[Store], T]) -> T:
        """Read from the current store, even if it is not in use yet."""
        return await self._loop.run_in_executor(self._readers, lambda: question(self._store))

    @property
    def _store(self) -> Store:
        return self._committer.store

    async def _load(self, store: Store) -> None:
        """Continue with a store that was reopened."""
        self._committer.store = store
        await self.start()


def _check_all(store: Store, files: Sequence[StagedFile]) -> None:
    for file in files:
        store.check_staged(file.path, file.messages)
