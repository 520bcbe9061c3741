"""The engine: topics, subscriptions and one store, in one event loop.

Rules
    - Whoever opens an engine owns its store until it is closed.
    - What a method has returned, or its future has been resolved with, is durable.
    - A change takes effect in the store and here, or in neither. So its part here is carried out by the commit's own callback
      (``change``) or in a task of the engine's own (``finish``), and a caller that is cancelled splits nothing. Changes are
      carried out here in the order in which the store has them.
    - Offsets are given in the order in which messages are published; those of a publish that failed are not used again.
    - A store that failed is opened again (``reopening.py``). Meanwhile leases are fenced, and whatever is asked waits. When
      somebody else owns it then, or it can't be used any more, the engine stays down, and says so to everybody who asks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from seriatim.core.limits import check_name, check_text
from seriatim.core.options import LARGEST_WHOLE, require_kind, require_whole, shown
from seriatim.engine.attachment import LocalAttachment
from seriatim.engine.broker import (
    RETIRED,
    Attachment,
    Document,
    Outgoing,
    StagedFile,
    Step,
    SubscriptionInfo,
    TopicInfo,
    check_outgoing,
    retired_name,
)
from seriatim.engine.commit import RETRY_PAUSE, Batch, Commit, Committer, Log
from seriatim.engine.consumer import Consumer
from seriatim.engine.metrics import Metrics
from seriatim.engine.names import NameIndex
from seriatim.engine.operations import Operations
from seriatim.engine.options import SubscriptionOptions, TopicOptions, patched, read_topic_options, require_repaired
from seriatim.engine.readers import Readers
from seriatim.engine.reopening import Opener, open_again
from seriatim.engine.seeking import Move, TimeTravel
from seriatim.engine.services import Wakeful
from seriatim.engine.subscription import SubscriptionState
from seriatim.engine.topic import TopicState
from seriatim.engine.waiting import until_done
from seriatim.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    SeriatimError,
    StoreBroken,
    StoreError,
    StoreLost,
)
from seriatim.log import logger
from seriatim.store import absolute_url, check_staged, open_store
from seriatim.store.base import (
    Catalog,
    Cursor,
    DocumentRow,
    Position,
    Record,
    Standby,
    Store,
    StoreReader,
    SubscriptionRow,
    TopicRow,
    Transaction,
)

EPOCH_BITS = 40
"""A token carries the epoch of its store's owner above so many bits, so that no token is ever given twice."""

UPKEEP_PAUSE = 1.0
"""Clean-up waits so many seconds after a change, so that it has something to do and disturbs little."""

UPKEEP_REST = 1.0
"""After a piece of clean-up it rests for so many times as long as the piece took, so that commits are not kept waiting."""

LARGEST_POSITION = 2**256
"""Up to where a writer may count (``publish_at``): pipes put an epoch above the index, and the Sparkplug host packs all that it
has to know of an edge node below the number of its messages (``Bookmark``: 170 bits)."""

IDLE_UPKEEP_PAUSE = 3600.0
"""What expires with time alone is looked for this often."""

T = TypeVar("T")

_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class Engine(Operations, TimeTravel, Readers):
    """Everything that one store holds, at work."""

    def __init__(self, store: Store, opener: Opener | None = None) -> None:
        super().__init__()
        self._store = store
        self._opener = opener
        self._loop = asyncio.get_running_loop()
        self._wall = time.time() - self._loop.time()
        self._awake: list[Wakeful] = []
        self._committer = Committer(store, self._pump, self.failed)
        self._readers = ThreadPoolExecutor(1, "seriatim-reader")
        self._topics: dict[str, TopicState] = {}
        self._topics_by_id: dict[int, TopicState] = {}
        self._topic_names = NameIndex()
        self._subscriptions: dict[str, SubscriptionState] = {}
        self._subscription_names = NameIndex()
        self._being_created: set[str] = set()
        self._unfinished: set[asyncio.Task[None]] = set()
        self._reopening: asyncio.Task[None] | None = None
        self._in_order = asyncio.Event()  # not set while the store is opened again
        self._in_order.set()
        self._down: BaseException | None = None
        self._upkeep = asyncio.create_task(self._keep_up(), name="seriatim-upkeep")
        self._changed = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._is_given_back = False

    # -- life -----------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, url: str, standby: Standby | None = None) -> Self:
        """An engine on the store at ``url``, loaded and at work. ``standby`` waits until nobody else owns it."""
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
        """Load what the store holds, or load it again."""
        catalog = await self._ask(lambda store: store.catalog())
        self._know(catalog)
        rows = {row.id: row for row in catalog.subscriptions}
        loaded = []
        for subscription in self._subscriptions.values():
            options = subscription.read_options(rows[subscription.id])
            loaded.append((subscription, options, await self._ask(partial(subscription.load, options=options))))
        for subscription, options, lanes in loaded:
            subscription.restart(options, lanes)

    async def close(self) -> None:
        """Write what was accepted, and give the store back. Leases that are out end with it, and count as not tried.

        In a forked child this does nothing: engine and store are the parent's.
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
            await self._stop_reopening()
            self._settle_rejected()
            for subscription in self._subscriptions.values():
                subscription.close(StoreLost("the engine was closed: open another one"))
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        finally:  # whatever happens, the store is given back
            await self._give_back_store()

    async def _give_back_store(self) -> None:
        self._is_given_back = True
        try:
            await self._committer.close()
            for subscription in self._subscriptions.values():
                subscription.give_up(StoreLost("the engine was closed before this could be written"))
            if self._unfinished:
                await asyncio.wait(self._unfinished)  # while the store is still there for them
        finally:
            self._readers.shutdown()
            await until_done(self._loop.run_in_executor(None, self._store.close))

    # -- topics and subscriptions ---------------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions | None = None) -> TopicInfo:
        check_name("Topic name", name)
        options = options or TopicOptions()
        require_kind("options", TopicOptions, options)
        values = options.to_json()
        row = await self.change(lambda work: work.create_topic(name, values), self._add_topic)
        return TopicInfo(name, TopicOptions.from_json(row.options), 0, 0)

    async def update_topic(self, name: str, options: TopicOptions, fields: Sequence[str] | None = None) -> None:
        topic = self.get_topic(name)
        require_kind("options", TopicOptions, options)

        def update(work: Transaction) -> TopicOptions:
            before, flaws = read_topic_options(_named_topic(work, topic.id, name).options)
            require_repaired(f"topic {name!r}", flaws, fields)
            after = patched(before, options, fields)
            work.update_topic(topic.id, after.to_json())
            return after

        await self.change(update, topic.set_options)

    async def create_subscription(
        self, topic: str, name: str, options: SubscriptionOptions | None = None
    ) -> SubscriptionInfo:
        """A subscription to what is published from now on. Its name is its own, whatever topic it belongs to."""
        check_name("Subscription name", name)
        log, options = self.get_topic(topic), options or SubscriptionOptions()
        require_kind("options", SubscriptionOptions, options)
        self._check_dead_letter_topic(log, options)
        await self._create_subscription(log, name, options)
        return SubscriptionInfo(name, topic, options)

    def _create_subscription(
        self, topic: TopicState, name: str, options: SubscriptionOptions
    ) -> asyncio.Future[SubscriptionRow]:
        topic_name, values = topic.name, options.to_json()
        if name in self._subscriptions or name in self._being_created:
            raise AlreadyExists(f"subscription {name!r} exists already: choose another name")
        start, meanwhile = Cursor(topic.next_offset), _Meanwhile()

        def create(work: Transaction) -> SubscriptionRow:
            _named_topic(work, topic.id, topic_name)
            return work.create_subscription(topic.id, name, values, start)

        def created(row: SubscriptionRow) -> None:
            subscription = self._add_subscription(row, topic)
            subscription.push([record for record in meanwhile.records if record.offset >= start.floor])

        def is_over() -> None:
            self._being_created.remove(name)
            topic.unfollow(meanwhile)

        creating = self._request(create, created, is_over)
        topic.follow(meanwhile)
        self._being_created.add(name)
        return creating

    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        """Change the options of a subscription. Leases that are out finish first."""
        subscription = self.get_subscription(name)
        require_kind("options", SubscriptionOptions, options)
        self._changed_options(subscription, options, fields, subscription.options)  # what can be refused is refused now
        await self.finish(
            subscription.reconfigure(partial(self._changed_options, subscription, options, fields), fields)
        )

    def _changed_options(
        self,
        subscription: SubscriptionState,
        given: SubscriptionOptions,
        fields: Sequence[str] | None,
        current: SubscriptionOptions,
    ) -> SubscriptionOptions:
        require_repaired(f"subscription {subscription.name!r}", subscription.flaws, fields)
        options = replace(patched(current, given, fields), detached=current.detached)
        if options.filter != current.filter and "filter" not in subscription.flaws:
            raise InvalidArgument(
                f"the filter of subscription {subscription.name!r} can't be changed: create another subscription"
            )
        if options.dead_letter_topic != current.dead_letter_topic or fields is None:
            self._check_dead_letter_topic(subscription.topic, options)
        return options

    async def detach_subscription(self, name: str) -> None:
        """Drop what a subscription has, and give it nothing more."""
        await self.finish(self.get_subscription(name).cut_off())

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription, and with the last one of a retired topic that topic."""
        subscription = self.get_subscription(name)
        topic = subscription.topic

        def delete(work: Transaction) -> bool:
            work.delete_subscription(subscription.id)
            is_last = work.topic(topic.id).name.startswith(RETIRED) and not work.has_subscriptions(topic.id)
            if is_last:
                work.delete_topic(topic.id)
            return is_last

        def deleted(is_last: bool) -> None:
            self._forget(subscription)
            if is_last:
                self._forget_topic(topic)

        try:
            await self.change(delete, deleted)
        except NotFound:  # the store knows it by its number
            raise NotFound(f"subscription {name!r} does not exist: it was just deleted") from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, with its messages and its subscriptions."""
        topic = self.get_topic(name)

        def delete(work: Transaction) -> None:
            _named_topic(work, topic.id, name)
            work.delete_topic(topic.id)

        await self.change(delete, lambda _: self._forget_topic(topic))

    async def retire_topic(self, name: str) -> None:
        """Delete a topic, and leave its subscriptions what they have."""
        topic = self.get_topic(name)
        retired = retired_name(topic.id, name)

        def retire(work: Transaction) -> bool:
            _named_topic(work, topic.id, name)
            if is_kept := work.has_subscriptions(topic.id):
                work.rename_topic(topic.id, retired)
            else:
                work.delete_topic(topic.id)
            return is_kept

        def applied(is_kept: bool) -> None:
            if is_kept:
                self._rename(topic, retired)
            else:
                self._forget_topic(topic)

        await self.change(retire, applied)

    def _rename(self, topic: TopicState, name: str) -> None:
        self._drop_topic(topic)
        topic.name = name
        self._keep_topic(topic)

    def _forget_topic(self, topic: TopicState) -> None:
        self._drop_topic(topic)
        for name in topic.subscriptions.page():
            self._forget(self._subscriptions[name])

    def _keep_topic(self, topic: TopicState) -> None:
        self._topics[topic.name] = self._topics_by_id[topic.id] = topic
        self._topic_names.add(topic.name)

    def _drop_topic(self, topic: TopicState) -> None:
        del self._topics[topic.name], self._topics_by_id[topic.id]
        self._topic_names.remove(topic.name)

    def get_topic(self, name: str) -> TopicState:
        try:
            return self._topics[name]
        except (KeyError, TypeError):
            raise NotFound(f"topic {shown(name)} does not exist: create it first") from None

    def get_subscription(self, name: str) -> SubscriptionState:
        try:
            return self._subscriptions[name]
        except (KeyError, TypeError):
            raise NotFound(f"subscription {shown(name)} does not exist: create it first") from None

    def require_topic(self, name: str) -> None:
        self.get_topic(name)

    async def list_topics(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[TopicInfo]:
        """Topics by name. Others take the places of those that are deleted meanwhile: a short page is the last one."""
        found: list[TopicInfo] = []
        while True:
            missing = None if limit is None else limit - len(found)
            topics = [self._topics[name] for name in self._topic_names.page(prefix, after, missing)]
            found += await self._described(topics)
            if missing is None or len(topics) < missing or len(found) == limit:
                return found
            after = topics[-1].name

    async def _described(self, topics: Sequence[TopicState]) -> list[TopicInfo]:
        """Those of some topics that exist."""

        def ask() -> dict[int, int]:
            found = {}
            for topic in topics:
                with suppress(NotFound):
                    found[topic.id] = self._store.earliest(topic.id)
            return found

        earliest = await self.read(ask)
        return [topic.info(earliest[topic.id]) for topic in topics if topic.id in earliest]

    async def describe_topic(self, name: str) -> TopicInfo:
        topic = self.get_topic(name)
        earliest = await self.read(lambda: self._store.earliest(topic.id))
        return topic.info(earliest)

    async def list_subscriptions(
        self, *, topic: str | None = None, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        names = self._subscription_names if topic is None else self.get_topic(topic).subscriptions
        return [self._subscriptions[name].info() for name in names.page(prefix, after, limit)]

    async def describe_subscription(self, name: str) -> SubscriptionInfo:
        return self.get_subscription(name).info()

    def attach(self, subscription: str, consumer: Consumer) -> Attachment:
        """Give a consumer messages from now on."""
        return LocalAttachment(self.get_subscription(subscription), consumer)

    def _check_dead_letter_topic(self, topic: TopicState, options: SubscriptionOptions) -> None:
        """It must exist when it is named. When it is deleted later, dead letters stay where they are."""
        if options.dead_letter_topic is None:
            return
        if self.get_topic(options.dead_letter_topic) is topic:
            raise InvalidArgument(
                f"topic {topic.name!r} can't be the dead-letter topic of its own subscription: "
                "what fails would come again for ever"
            )

    def _add_subscription(self, row: SubscriptionRow, topic: TopicState) -> SubscriptionState:
        subscription = SubscriptionState(row, topic, self)
        self._subscriptions[row.name] = subscription
        self._subscription_names.add(row.name)
        topic.subscriptions.add(row.name)
        topic.follow(subscription)
        return subscription

    def _add_topic(self, row: TopicRow) -> None:
        self._keep_topic(TopicState(row))

    def _forget(self, subscription: SubscriptionState) -> None:
        deleted = NotFound(f"subscription {subscription.name!r} was deleted")
        subscription.failed(deleted)
        subscription.close(deleted)
        subscription.give_up(deleted)
        subscription.topic.unfollow(subscription)
        subscription.topic.subscriptions.remove(subscription.name)
        self._subscription_names.remove(subscription.name)
        del self._subscriptions[subscription.name]

    # -- publishing -----------------------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[range]:
        """Write messages, all or none of them. The future has their offsets when they are durable."""
        log = self.get_topic(topic)
        check_outgoing(messages)
        commit = self.commit()
        offsets, records = self._number(log, messages)
        future: asyncio.Future[range] = self._loop.create_future()
        commit.append(log, records, partial(_resolve, future, lambda: offsets))
        return future

    async def append_batch(self, topic: str, writer: str, batch: int, files: Sequence[StagedFile]) -> range | None:
        """Write the messages of staged files, once for each number that a writer gives its batches."""
        check_name("Writer", writer)
        require_whole("batch", batch, 0, LARGEST_WHOLE)
        await self._loop.run_in_executor(None, _check_all, files)
        future: asyncio.Future[range | None] = self._loop.create_future()

        def answer(offsets: range | None, error: BaseException | None) -> None:
            _resolve(future, lambda: offsets, error)

        self.commit().append_batch(Batch(self.get_topic(topic), writer, batch, files, self.now(), answer))
        return await future

    async def publish_at(
        self,
        topic: str,
        writer: str,
        start: int,
        end: int,
        messages: Sequence[Outgoing],
        beside: Mapping[str, Sequence[Outgoing]] | None = None,
    ) -> range:
        """Write messages, and how far their writer has come with them, or nothing when it stands elsewhere."""
        return await self.publish_steps(topic, [Step(writer, start, end)], messages, beside)

    async def publish_steps(
        self,
        topic: str,
        steps: Sequence[Step],
        messages: Sequence[Outgoing],
        beside: Mapping[str, Sequence[Outgoing]] | None = None,
    ) -> range:
        """Write messages, and how far their writers have come with them, or nothing when one stands elsewhere."""
        for writer, start, end in steps:
            check_name("Writer", writer)
            require_whole("start", start, 0, LARGEST_POSITION)
            require_whole("end", end, 0, LARGEST_POSITION)
        if len({step.writer for step in steps}) < len(steps):
            raise InvalidArgument("a writer takes one step at a time: name each of them once")
        log = self.get_topic(topic)
        for each in (messages, *(beside or {}).values()):
            check_outgoing(each)
        more = {self.get_topic(name): others for name, others in (beside or {}).items()}
        if log in more:
            raise InvalidArgument(f"what goes beside the messages of topic {topic!r} goes to another topic")
        commit = self.commit()
        offsets, records = self._number(log, messages)
        together: dict[Log, Sequence[Record]] = {log: records}
        together |= {other: self._number(other, others)[1] for other, others in more.items()}

        def move(work: Transaction) -> None:
            for each in together:
                work.append(each.id, ())  # before anything is moved: the topic may have been deleted
            work.move_positions(steps)

        future: asyncio.Future[range] = self._loop.create_future()
        commit.append_if(move, together, partial(_resolve, future, lambda: offsets))
        return await future

    async def position_of(self, writer: str) -> int:
        check_name("Writer", writer)
        return await self.change(lambda work: work.position(writer))

    def _number(self, log: TopicState, messages: Sequence[Outgoing]) -> tuple[range, list[Record]]:
        """Messages as the log keeps them, with the next offsets."""
        now = self.now()
        offsets = range(first := log.reserve(len(messages)), first + len(messages))
        return offsets, [
            _make(
                Record,
                (offset, key, data, dict(attributes) if attributes else None, now, now + delay if delay else 0.0),
            )
            for offset, (key, data, attributes, delay) in zip(offsets, messages, strict=True)
        ]

    # -- what fronts keep -----------------------------------------------------------------------------------------------

    async def list_documents(self, kind: str) -> list[Document]:
        check_name("Document kind", kind)
        return [Document(*row) for row in await self.load(lambda store: store.documents(kind))]

    async def put_document(self, document: Document) -> None:
        check_name("Document kind", document.kind)
        check_name("Document name", document.name)
        check_text("Document text", document.text)
        row = DocumentRow(document.kind, document.name, document.text)
        await self.change(lambda work: work.put_document(row))

    async def delete_document(self, kind: str, name: str) -> None:
        check_name("Document kind", kind)
        check_name("Document name", name)
        await self.change(lambda work: work.delete_document(kind, name))

    # -- figures --------------------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """What was counted since the engine began, and how every subscription stands. What is deleted meanwhile is left out."""
        stats = {}
        for name in list(self._subscriptions):
            with suppress(NotFound):
                stats[name] = await self.stats(name)
        times = self._committer.times
        return Metrics(
            time=self.now(),
            topics={topic.name: replace(topic.counts) for topic in self._topics.values()},
            subscriptions={known.name: replace(known.counts) for known in self._subscriptions.values()},
            commits=replace(times, buckets=list(times.buckets)),
            stats=stats,
        )

    # -- services for the parts -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """Wall-clock time that does not jump while the engine runs."""
        return self._loop.time() + self._wall

    def commit(self) -> Commit:
        self._changed.set()
        return self._committer.next()

    def wake(self, sleeper: Wakeful) -> None:
        """Let somebody pump, at the end of this turn of the loop or as soon as a commit is done."""
        if not self._awake:
            self._loop.call_soon(self._pump)
        self._awake.append(sleeper)

    def _pump(self) -> None:
        awake, self._awake = deque(self._awake), []
        try:
            while awake:
                self._pump_one(awake.popleft())
        finally:  # an interrupt has its way, and the others have their turn all the same
            for sleeper in awake:
                self.wake(sleeper)

    def _pump_one(self, sleeper: Wakeful) -> None:
        try:
            sleeper.pump()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - one subscription's trouble is not another's
            logger.error("handing out messages failed, and is tried again: %r", error, exc_info=error)
            self._loop.call_later(RETRY_PAUSE, sleeper.wake)

    def first_token(self) -> int:
        """The first token of this owner: no other owner of the store, before or after, gives it or one above it."""
        return (self._store.epoch << EPOCH_BITS) + 1

    async def drain(self) -> None:
        """Wait until everything accepted so far is durable."""
        await self.change(lambda _: None)

    async def change(self, change: Callable[[Transaction], T], applied: Callable[[T], None] | None = None) -> T:
        """Let a change ride in the next commit, and wait until it is durable.

        ``applied`` is called with its result the moment it is durable, whether or not somebody still waits for it.
        """
        return await self._request(change, applied)

    def _request(
        self,
        change: Callable[[Transaction], T],
        applied: Callable[[T], None] | None = None,
        is_over: Callable[[], None] | None = None,
    ) -> asyncio.Future[T]:
        """``change``, asked for at once. ``is_over`` is called before ``applied``, and also when the change failed."""
        results: list[T] = []
        future: asyncio.Future[T] = self._loop.create_future()

        def answer(error: BaseException | None) -> None:
            if is_over is not None:
                is_over()
            if error is None and applied is not None:
                applied(results[0])
            _resolve(future, results.pop, error)

        def ask(work: Transaction) -> None:
            # Perhaps for a second time, after a commit that was refused for something else in it.
            results[:] = [change(work)]

        self.commit().request(ask, answer)
        return future

    async def move(self, move: Move[T]) -> T:
        """Let a seek, or whatever else has to look at the store first, ride in the next commit."""
        return await self.change(lambda work: move(self._store, work))

    async def read(self, question: Callable[[], T]) -> T:
        """Ask the store something, in the thread that reads."""
        await self.require_store()
        return await self._loop.run_in_executor(self._readers, question)

    async def require_store(self) -> None:
        """Wait while the store is opened again."""
        await self._in_order.wait()
        if self._down is not None:
            raise self._down

    def fetch(self, topic_id: int, offsets: Sequence[int]) -> Coroutine[None, None, list[Record]]:
        return self.read(lambda: self._store.fetch(topic_id, offsets))

    async def load(self, work: Callable[[StoreReader], T]) -> T:
        """Ask the store something that may take long, in a thread of its own."""
        await self.require_store()
        return await self._loop.run_in_executor(None, work, self._store)

    def topic(self, name: str) -> TopicState | None:
        return self._topics.get(name)

    def topic_name(self, topic_id: int | None) -> str | None:
        topic = None if topic_id is None else self._topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def failed(self, error: BaseException) -> None:
        """Something went wrong that no caller waits for: log it, and let every consumer know.

        When nothing can be written any more, nothing more is given out either.
        """
        logger.error("the store failed: %s", error)
        self._tell_consumers(error)
        if isinstance(error, OutcomeUnknown | StoreBroken) and self._opener is not None:
            self._open_again(error)
        elif isinstance(error, OutcomeUnknown | StoreLost):
            self._go_down(error)

    def _tell_consumers(self, error: BaseException) -> None:
        for subscription in self._subscriptions.values():
            subscription.failed(error)

    # -- a store that failed --------------------------------------------------------------------------------------------

    def _open_again(self, error: BaseException) -> None:
        if self._in_order.is_set() and self._down is None:
            self._in_order.clear()
            self._committer.suspend(error)
            if self._committer.at_rest:
                self._abandon_all(error)
            self._reopening = self._loop.create_task(self._reopen(error), name="seriatim-reopening")

    async def _reopen(self, error: BaseException) -> None:
        """Let go of the old store, find a new one, and go on from what it holds."""
        assert self._opener is not None
        await self._come_to_rest(error)
        try:
            self._store = await open_again(self._store, self._opener, self._load_from)
        except StoreError as lost:
            self._tell_consumers(lost)
            self._go_down(lost)
            return
        logger.warning("the store was opened again")
        self._committer.resume(self._store)
        self._in_order.set()

    async def _load_from(self, store: Store) -> None:
        self._store = store
        await self.start()

    def _go_down(self, error: BaseException) -> None:
        """Nothing can be done any more: everybody who asks, or waits, hears why."""
        self._down = self._down or error
        self._committer.give_up(self._down)
        self._in_order.set()
        if self._committer.at_rest:
            self._close_all(self._down)
        else:
            self._begin(self._come_to_an_end(self._down))
        logger.error("the engine is down: %s", self._down)

    async def _come_to_rest(self, error: BaseException) -> None:
        """Fence every lease, once nothing is being written that could still be confirmed."""
        await self._committer.come_to_rest(error)
        self._abandon_all(error)

    async def _come_to_an_end(self, error: BaseException) -> None:
        await self._committer.come_to_rest(error)
        self._close_all(error)

    def _close_all(self, error: BaseException) -> None:
        self._abandon_all(error)
        for subscription in self._subscriptions.values():
            subscription.close(error)

    def _abandon_all(self, error: BaseException) -> None:
        for subscription in self._subscriptions.values():
            subscription.abandon(error)

    async def _stop_reopening(self) -> None:
        if self._reopening is not None and not self._reopening.done():
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
            self._go_down(StoreLost("the engine was closed before its store could be opened again"))

    def _know(self, catalog: Catalog) -> None:
        """Take note of what there is. Offsets that were given to publishes that failed are not given again."""
        rows = {row.id: row for row in catalog.topics}
        if any(known.next_offset < rows[known.id].next_offset for known in self._topics.values() if known.id in rows):
            raise StoreLost(
                "another process has published to the store since it failed: end this program, and start it again"
            )
        for topic in [known for known in self._topics.values() if known.id not in rows]:
            self._forget_topic(topic)
        for topic in [known for known in self._topics.values() if known.name != rows[known.id].name]:
            self._rename(topic, rows[topic.id].name)
        for row in catalog.topics:
            if row.id in self._topics_by_id:
                self._topics_by_id[row.id].update(row)
            else:
                self._add_topic(row)
        subscription_ids = {row.id for row in catalog.subscriptions}
        for gone in [known for known in self._subscriptions.values() if known.id not in subscription_ids]:
            self._forget(gone)
        for subscription_row in catalog.subscriptions:
            if subscription_row.name not in self._subscriptions:
                self._add_subscription(subscription_row, self._topics_by_id[subscription_row.topic_id])

    def can_write(self) -> bool:
        return not self._committer.is_broken

    # -- clean-up -------------------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Let the store clean up a while after something changed, in small pieces between which others may write."""
        while self._down is None:
            with suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the event.
                async with asyncio.timeout(IDLE_UPKEEP_PAUSE):
                    await self._changed.wait()
            await asyncio.sleep(UPKEEP_PAUSE)
            self._changed.clear()
            try:
                await self.clean_up()
            except SeriatimError as error:
                self.failed(error)
            except Exception:  # noqa: BLE001 - nobody else would clean up
                logger.exception("clean-up failed and will be tried again after the next change")

    async def clean_up(self) -> None:
        """Remove what nobody needs any more. This happens by itself; call it to have it done now."""
        if self._settle_rejected():
            await self.drain()
        while True:
            begin = self._loop.time()
            report = await self.read(lambda: self._store.upkeep(self.now()))
            if not report.more_to_do:
                return
            await asyncio.sleep((self._loop.time() - begin) * UPKEEP_REST)

    def _settle_rejected(self) -> bool:
        """Let what filters rejected ride in the next commit; False when there is nothing, or nothing can be written."""
        try:
            return sum(subscription.sieve.settle() for subscription in self._subscriptions.values()) > 0
        except StoreError:
            return False

    async def wait_until_empty(self, subscription: str) -> None:
        await self.get_subscription(subscription).wait_until_empty()

    async def backup(self, path: str) -> None:
        """A consistent copy of the store, while it is in use."""
        await self.load(lambda store: store.backup(path))

    # -- how ------------------------------------------------------------------------------------------------------------

    async def finish(self, work: Coroutine[None, None, None]) -> None:
        """Wait for work that is finished once it has begun, also when nobody waits for it any more."""
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
        """Ask the present store, also one that is not in use yet."""
        return await self._loop.run_in_executor(self._readers, question, self._store)


class _Meanwhile:
    """Collects what is published while a subscription is being created."""

    def __init__(self) -> None:
        self.records: list[Record | Position] = []

    def push(self, records: Sequence[Record | Position]) -> None:
        self.records += records


def _named_topic(work: Transaction, topic_id: int, name: str) -> TopicRow:
    """A topic as it stands in a transaction. Somebody else may have deleted or retired it since it was looked up."""
    with suppress(NotFound):
        row = work.topic(topic_id)
        if row.name == name:
            return row
    raise NotFound(f"topic {name!r} does not exist: it was just deleted")


def _check_all(files: Sequence[StagedFile]) -> None:
    for file in files:
        check_staged(file.path, file.messages)


def _resolve(future: asyncio.Future[T], result: Callable[[], T], error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result())
    else:
        future.set_exception(error)
