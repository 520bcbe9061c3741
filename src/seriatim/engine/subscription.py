"""A subscription: its lanes, its consumers, its timer.

Rules
    - The lanes (``core.lanes``) decide what is given out and when. Nothing here decides order.
    - Consumers of one subscription share its lanes and are served in turn, each as far as it has room. Where a window allows
      several leases of a key, those that are out at a time belong to one consumer (rule 2 of the lanes).
    - What the lanes accepted (an ack, a dead letter) is an obligation of the group commit, and confirmed to the lanes when it
      is durable.
    - Dead letters have rules of their own: ``dead_letters.py``. What operators ask for is in ``operations.py``.
    - Lanes are replaced (other options) only while nothing is in flight and nobody operates on them (``steady``).
    - One timer, set to the lanes' next deadline. A subscription that waits for nothing costs nothing.
    - Where a subscription stands is changed (other options, a seek) by loading its lanes anew from the store, while nothing is
      in flight, nothing is given out, and what is published meanwhile is held back. When the store itself has to be opened
      again the lanes are abandoned at once: leases are fenced, and what was accepted and not written did not happen.

Theory of operation
    Whatever happens ends in ``wake``, and the engine then lets the subscription ``pump``: hand out messages, once at the end of
    the current turn of the event loop, or after a commit, however much happened in it. Payloads come from the topic's memory;
    when some are no longer there the whole batch waits for one read, and later batches of that consumer queue behind it, so
    that nothing overtakes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import attrgetter

from seriatim.core.delivery import (
    DeadLettered,
    Effect,
    Fenced,
    KeyPaused,
    Lease,
    Redriven,
    Release,
    Removed,
    Returned,
    Settled,
)
from seriatim.core.lanes import EXPIRED, Lanes
from seriatim.core.limits import reason_of
from seriatim.core.options import require_duration
from seriatim.engine.broker import SubscriptionInfo, Told
from seriatim.engine.commit import RETRY_PAUSE, Change, Commit, Log
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.dead_letters import DeadLetters
from seriatim.engine.loading import Loaded, load_lanes, passes_retries
from seriatim.engine.metrics import DeliveryCounts
from seriatim.engine.options import (
    Flaws,
    SubscriptionOptions,
    read_subscription_options,
    require_repaired,
    said_of,
)
from seriatim.engine.promises import Promises, all_of
from seriatim.engine.services import Services
from seriatim.engine.sieve import Sieve
from seriatim.engine.topic import TopicState
from seriatim.errors import DamagedStore, FailedPrecondition, StaleLease, StoreBroken, StoreError
from seriatim.log import logger
from seriatim.store.base import (
    Position,
    Record,
    StoreReader,
    SubscriptionRow,
    Transaction,
    TroubleRow,
)

SLICE = 256
"""After so many messages a commit may begin with what was acked, and is written while the next ones are handed out."""

OVERTAKEN_ACK = "an earlier message of its key failed, and it is delivered again after that one"


def _nothing(_: Transaction) -> None:
    """A change that only marks a place in the order of commits."""


_CLOSED = Commit(is_open=False)
_OFFSET, _NOT_BEFORE = attrgetter("offset"), attrgetter("not_before")
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class SubscriptionState:
    """What the engine knows of one subscription."""

    def __init__(self, row: SubscriptionRow, topic: TopicState, services: Services) -> None:
        self.id = row.id
        self.name = row.name
        self.topic = topic
        self.flaws: Flaws = {}  # what is wrong with the options that the store holds: then nothing is given out
        self.options = self.read_options(row)
        self.lanes = Lanes(self.options.delivery, services.first_token())
        self.sieve = Sieve(row.id, self.options.filter, services.commit)
        if self.options.detached:
            self.sieve.reject_all()
        self.counts = DeliveryCounts()
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._consumers: deque[Consumer] = deque()
        self._holders: dict[int, Consumer] = {}  # by offset
        self._commit = _CLOSED  # the one that takes acks, if it is still open,
        self._acks: list[int] = []  # and what it settles for this subscription
        self.dead_letters = DeadLetters(self, services)
        self.pause_reasons: dict[str | None, str | None] = {}
        self.steady = asyncio.Lock()  # held while somebody relies on the lanes not being replaced
        self._promises = Promises()
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._awake = False
        self._timer: asyncio.TimerHandle | None = None
        self._held_back: list[Record | Position] | None = None  # what comes while lanes are loaded anew
        self._quiet = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._changing = asyncio.Lock()
        self._exchanging = self._abandoned = False
        self._closed: BaseException | None = None  # why nothing can be taken or said any more

    def info(self) -> SubscriptionInfo:
        return SubscriptionInfo(self.name, self.topic.name, self.options, said_of(self.flaws))

    def read_options(self, row: SubscriptionRow) -> SubscriptionOptions:
        """The options that the store holds. When some of them can't be used, the subscription is stopped."""
        options, self.flaws = read_subscription_options(row.options)
        if self.flaws:
            logger.error("subscription %r is stopped, because it has %s", self.name, said_of(self.flaws))
        return options

    # -- messages in ----------------------------------------------------------------------------------------------------

    def push(self, records: Sequence[Record | Position]) -> None:
        """Queue messages that are durable."""
        if self._held_back is not None:
            self._held_back += records
            return
        wanted = self.sieve.sift(records)
        if any(map(_NOT_BEFORE, wanted)):
            self._push_delayed(wanted)
        elif self.options.ordering:
            self.lanes.push_all([(record.key, record.offset) for record in wanted])
        else:
            self.lanes.push_all(zip(repeat(None), map(_OFFSET, wanted)))
        self.wake()

    def _push_delayed(self, records: Sequence[Record | Position]) -> None:
        now, ordering, lanes = self._services.now(), self.options.ordering, self.lanes
        for record in records:
            lanes.push(record.key if ordering else None, record.offset, now, record.not_before - now)

    # -- standing somewhere else ----------------------------------------------------------------------------------------

    async def reconfigure(
        self, change: Callable[[SubscriptionOptions], SubscriptionOptions], names: Sequence[str] | None
    ) -> None:
        """Go on with what ``change`` makes of the options: changes are applied one after another, each to what the one before
        has left. Where they need other lanes, leases that are out finish first, and meanwhile nothing is given out.

        ``names`` are the options that are given anew, None: all. One that could not be used must be among them."""
        async with self._changing:
            require_repaired(f"subscription {self.name!r}", self.flaws, names)
            options = change(self.options)
            if self.flaws:
                self.sieve = Sieve(self.id, options.filter, self._services.commit)
            elif _shape(options) == _shape(self.options):
                await self._write_options(options)
                self.options = options
                self.lanes.set_retry(options.retry)
                self.wake()
                return
            await self._exchange_lanes(options)
            self.flaws = {}
            self.wake()
            if not options.ordering:
                self.dead_letters.give_up_places()

    async def cut_off(self) -> None:
        """Drop everything, and take nothing more. Leases that are out are fenced."""
        async with self._changing:
            options = replace(self.options, detached=True)
            self._fence_all()
            await self._exchange_lanes(options, lambda: self._write_detached(options))
            self.flaws = {}
            self.failed(FailedPrecondition(f"subscription {self.name!r} is detached: it gets no messages any more"))

    async def relocate(self, move: Callable[[], Awaitable[None]]) -> None:
        """Go on from wherever ``move`` puts the subscription in the store. Leases that are out are fenced; what was accepted of
        them is written before."""
        async with self._changing:
            self._fence_all()
            await self._exchange_lanes(None, move)

    async def _write_detached(self, options: SubscriptionOptions) -> None:
        await self._write_options(options)
        self.sieve.reject_all()

    async def _write_options(self, options: SubscriptionOptions) -> None:
        id_, values = self.id, options.to_json()
        await self._services.change(lambda work: work.update_subscription(id_, values))

    async def _exchange_lanes(
        self, options: SubscriptionOptions | None, move: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """``options`` None: those that are in force when ``move`` is done. The store may be opened again before."""
        self._exchanging, self._held_back, until = True, [], -1
        try:
            await self._until_quiet()
            async with self.steady:
                await self._until_quiet()  # once more: an operator may have been at work
                await self.accepted()  # what is noted about failed deliveries must be in the store
                loaded, options = await self._load_anew(options, move)
                await self.accepted()  # what was loaded and is not here yet comes before this
                self._use(loaded, options)
                until = loaded.until
        finally:
            # Also when it failed: then the lanes that there were go on. Abandoned ones do not: somebody loads them anew.
            self._exchanging = False
            if not self._abandoned:
                self._release_held_back(until)

    async def _until_quiet(self) -> None:
        self._require_open()  # it may have ended while this waited for its turn, and then nobody says when it is quiet
        while not self.lanes.is_quiet():
            self._quiet.clear()
            self.wake()
            await self._quiet.wait()
            self._require_open()

    async def _load_anew(
        self, given: SubscriptionOptions | None, move: Callable[[], Awaitable[None]] | None
    ) -> tuple[Loaded, SubscriptionOptions]:
        if move is not None:
            await move()
        options = given or self.options
        try:
            loaded = await self._services.load(lambda store: self.load(store, options))
        except StoreError as error:
            if move is not None:  # the store says something else than the lanes that there are: those must not go on
                self._services.failed(StoreBroken(f"subscription {self.name!r} could not be loaded again: {error}"))
            raise
        if move is None:  # written when everything else has succeeded: what fails before has changed nothing
            await self._write_options(options)
        return loaded, options

    def _use(self, loaded: Loaded, options: SubscriptionOptions) -> None:
        self.lanes, self.options = loaded.lanes, options
        self.topic.burn(
            loaded.floor
        )  # it may be above the last message: that one may have failed after it was counted on
        self.dead_letters.load(loaded.letters, options, loaded.lanes)
        self.pause_reasons = {row.key: row.reason for row in loaded.paused}
        self.sieve.settle_later(loaded.rejected)

    def _release_held_back(self, until: int) -> None:
        records, self._held_back = self._held_back or [], None
        self.push([record for record in records if record.offset > until])

    def _fence_all(self) -> None:
        """Take every lease back, and tell its consumer."""
        for offset, consumer in list(self._holders.items()):
            if (lease := consumer.leases.get(offset)) is not None and self._holders.get(offset) is consumer:
                self._apply(self.lanes.give_back(lease.token, self._services.now(), delay=0, count=False))
                consumer.fenced(lease)

    # -- when the store is opened again ---------------------------------------------------------------------------------

    def abandon(self, error: BaseException) -> None:
        """The store is lost for now: fence every lease, give out nothing, forget what was accepted and not written."""
        self._abandoned, self._held_back = True, []
        for task in self._tasks:
            task.cancel()
        for consumer in self._consumers:
            consumer.batches.clear()
        self.dead_letters.abandon()
        self.give_up(error)
        self.lanes = Lanes(self.options.delivery, self.lanes.next_token)
        for offset in list(self._holders):
            holder, lease = self._let_go(offset)
            if holder is not None and lease is not None:
                holder.fenced(lease)
        self.wake()

    def restart(self, options: SubscriptionOptions, loaded: Loaded) -> None:
        """Go on with what the store holds. An exchange of lanes that is under way goes on too, and is not disturbed."""
        self._abandoned = False
        self._use(loaded, options)
        if not self._exchanging:
            self._release_held_back(loaded.until)

    def load(self, store: StoreReader, options: SubscriptionOptions) -> Loaded:
        """What the store holds for this subscription, in lanes that nobody else uses yet. May run in a thread."""
        lanes = Lanes(options.delivery, max(self.lanes.next_token, self._services.first_token()))
        lanes.advance(self._services.now())  # so that what is due is not taken for delayed
        return load_lanes(lanes, store, self.id, self.topic.id, options, self.sieve)

    # -- messages out ---------------------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        self._require_open()
        self._consumers.append(consumer)
        if self.flaws:
            stopped = FailedPrecondition(f"subscription {self.name!r} is stopped, because it has {said_of(self.flaws)}")
            self._loop.call_soon(consumer.failed, stopped)
        consumer.wake = self.wake
        consumer.give_back = partial(self._give_back, consumer)
        self.wake()

    def detach(self, consumer: Consumer) -> None:
        """Take a consumer away. What it had is given out again at once, and counts as not tried."""
        if consumer not in self._consumers:  # the subscription was closed or deleted before
            return
        self._consumers.remove(consumer)
        consumer.batches.clear()
        self._give_back(consumer, list(consumer.leases.values()))

    def _give_back(self, consumer: Consumer, leases: Iterable[Lease], delay: float = 0) -> None:
        """Return what was not tried."""
        for lease in leases:
            if consumer.leases.get(lease.offset) is lease:  # not fenced, because one before it was given back
                self._apply(self.lanes.give_back(lease.token, self._services.now(), delay, count=False))
        self.wake()

    async def records(self, offsets: Iterable[int]) -> dict[int, Record]:
        """Messages by their offsets, without delivering them; those that are no longer kept are left out."""
        wanted = sorted(set(offsets))
        known = {offset: record for offset in wanted if (record := self.topic.recent(offset)) is not None}
        missing = [offset for offset in wanted if offset not in known]
        fetched = await self._services.fetch(self.topic.id, missing) if missing else []
        return known | {record.offset: record for record in fetched}

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    def wake(self) -> None:
        """Something happened: hand out soon what can be handed out."""
        if not self._awake:
            self._awake = True
            self._services.wake(self)

    async def wait_until_empty(self) -> None:
        """Return when nothing waits, nothing is in flight, and every ack is durable."""
        while not self._is_empty():
            self._drained.clear()
            await self._drained.wait()
            self._require_open()

    def _is_empty(self) -> bool:
        return self._held_back is None and not len(self.lanes) and self.lanes.is_quiet()

    def pump(self) -> None:
        """Hand out what can be handed out."""
        self._awake = False
        if self._closed is not None:
            return
        if not self._drained.is_set() and self._is_empty():
            self._drained.set()
        if self._held_back is not None or self.options.paused or self.flaws:
            if self.lanes.is_quiet():
                self._quiet.set()
            self._set_timer()
            return
        idle = given = 0
        while idle < len(self._consumers):
            if given >= SLICE:
                self.wake()
                break
            consumer = self._consumers[0]
            self._consumers.rotate(-1)
            room = consumer.room()
            lease_time = consumer.ack_deadline or self.options.ack_deadline
            leases = self.lanes.take(self._services.now(), lease_time, room, consumer) if room > 0 else []
            idle = 0 if leases else idle + 1
            if leases:
                given += len(leases)
                self._give(consumer, leases)
        self._set_timer()

    def _give(self, consumer: Consumer, leases: list[Lease]) -> None:
        offsets = list(map(_OFFSET, leases))
        consumer.leases.update(zip(offsets, leases, strict=True))
        self._holders.update(zip(offsets, repeat(consumer), strict=False))
        records = None if consumer.batches else self.topic.all_recent(offsets)
        if records is None:
            self._deliver_later(consumer, leases)
        else:
            self._hand_over(consumer, list(map(_make, repeat(Delivered), zip(leases, records, strict=True))))

    def _deliver(self, consumer: Consumer, leases: list[Lease], fetched: dict[int, Record]) -> None:
        delivered = []
        for lease in leases:
            record = fetched.get(lease.offset)
            if record is None:
                self._services.failed(
                    DamagedStore(f"message {lease.offset} of topic {self.topic.name!r} is not in its log")
                )
            elif consumer.leases.get(lease.offset) is lease:  # it may have been lost while it was read
                delivered.append(Delivered(lease, record))
        if delivered:
            self._hand_over(consumer, delivered)

    def _hand_over(self, consumer: Consumer, delivered: list[Delivered]) -> None:
        if (fitting := consumer.weigh(delivered)) < len(delivered):
            # The last one first: giving one back takes those of its key behind it back, too.
            self._give_back(consumer, [lease for lease, _ in reversed(delivered[fitting:])])
            delivered = delivered[:fitting]
        if self.options.retry.max_attempts is not None:
            for lease, _ in delivered:
                # Rides along and delays nothing: a delivery under way at a crash counts if this was written.
                self._note(lease.key, lease.offset, lease.attempt, 0.0, "the process ended during delivery")
        self._count(delivered)
        consumer.deliver(delivered)

    def _count(self, delivered: list[Delivered]) -> None:
        self.counts.delivered += len(delivered)
        if self.lanes.has_troubles:
            self.counts.redelivered += sum(one.lease.attempt > 1 for one in delivered)

    def _deliver_later(self, consumer: Consumer, leases: list[Lease]) -> None:
        consumer.batches.append(leases)
        if len(consumer.batches) == 1:
            self.run(self._read_and_deliver(consumer))

    async def _read_and_deliver(self, consumer: Consumer) -> None:
        while consumer.batches:
            leases = consumer.batches[0]
            try:
                records = await self.records(lease.offset for lease in leases)
            except StoreError as error:
                self._services.failed(error)
                records = None
            if not consumer.batches:  # it was detached meanwhile
                return
            if records is not None:
                self._deliver(consumer, leases, records)
            elif self._closed is None:
                self._give_back(consumer, leases, RETRY_PAUSE)
            consumer.batches.popleft()

    # -- what consumers say ---------------------------------------------------------------------------------------------

    def ack(self, lease: Lease, told: Told | None = None) -> None:
        """A message is done. ``told`` hears when that can't be undone any more, or that the lease was lost after all."""
        if self._closed is not None:
            self._require_open()
        if self._commit.is_open and not self.dead_letters.has_places:
            self.lanes.settle_into(self._acks, lease.token)
        else:
            self._take_settled(self.lanes.settle(lease.token))
        if told is not None:
            self._promises.expect(lease.offset, told)
        self._let_go(lease.offset)
        self.counts.acked += 1
        if not self._awake:
            self.wake()

    def _take_settled(self, settled: list[Settled]) -> None:
        """Let acks ride in the next commit, which takes those that follow directly."""
        if settled:
            self._commit = self._services.commit()
            self._acks = self._commit.settled_by(self)
            self._acks += map(_OFFSET, settled)
            self.dead_letters.settled(settled)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        """A message failed; it goes back to its place."""
        self._require_open()
        if delay is not None:
            require_duration("delay", delay)
        self._apply(self.lanes.give_back(lease.token, self._services.now(), delay, reason_of(error)))
        self.counts.nacked += 1
        self.wake()

    def extend(self, lease: Lease, seconds: float) -> float:
        self._require_open()
        require_duration("seconds", seconds)
        deadline = self.lanes.extend(lease.token, self._services.now(), seconds)
        self._set_timer()
        return deadline

    def confirmed(self, offsets: Sequence[int]) -> None:
        """Acks are durable."""
        if self.options.release is Release.DURABLE:
            self.lanes.confirm_all(offsets)
        self.topic.settled(offsets)
        if self._promises:
            for offset in offsets:
                self._promises.tell(offset, None)
        self.wake()

    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        """The store will never take what was decided about these messages. Their keys wait until it is opened again."""
        logger.error(
            "subscription %r: what became of the messages %s can't be stored; they are delivered again when the store is "
            "opened again, and their keys wait until then: %s",
            self.name,
            ", ".join(map(str, offsets)),
            error,
        )
        for offset in offsets:
            self._promises.tell(offset, error)
        self.failed(error)

    # -- what the lanes decided -----------------------------------------------------------------------------------------

    def _apply(self, effects: Iterable[Effect]) -> None:
        letters: list[DeadLettered] = []
        for effect in effects:
            consumer, lease = self._let_go(effect.offset)
            if isinstance(effect, Returned):
                self._note(effect.key, effect.offset, effect.attempts, effect.not_before, effect.error)
            elif isinstance(effect, Settled | Removed):
                self._settle(effect)
            elif isinstance(effect, DeadLettered):
                letters.append(effect)
            elif isinstance(effect, Redriven):
                self._unbury(effect)
            elif isinstance(effect, KeyPaused):
                self._note(effect.key, effect.offset, effect.attempts, 0.0, effect.error)
                self._pause(effect)
            elif isinstance(effect, Fenced):
                self._fence(effect, consumer, lease)
        if letters:
            self.dead_letters.bury(letters)

    def _settle(self, effect: Settled | Removed) -> None:
        self._services.commit().settle(self, [effect.offset])
        if isinstance(effect, Settled):
            self.dead_letters.settled([effect])

    def _unbury(self, effect: Redriven) -> None:
        id_, offsets = self.id, [effect.offset]
        refused = partial(self.refused, offsets)
        self._services.commit().oblige(lambda work: work.unbury(id_, offsets), lambda: self.confirmed(offsets), refused)

    def _fence(self, fenced: Fenced, consumer: Consumer | None, lease: Lease | None) -> None:
        """A lease is lost. One that was acked already, provisionally, is no longer with its consumer."""
        if consumer is not None and lease is not None:
            consumer.fenced(lease)
        if self.options.retry.max_attempts is not None and not self._abandoned:
            # The delivery was noted when it began, and does not count.
            failures, error = self.lanes.failures(fenced.offset)
            self._note(fenced.key, fenced.offset, failures, 0.0, error)
        stale = StaleLease(f"the ack of message {fenced.offset} came to nothing: {OVERTAKEN_ACK}")
        self._promises.tell(fenced.offset, self._closed or stale)

    # -- what is promised to be durable ---------------------------------------------------------------------------------

    def carry_out(self, effects: Sequence[Effect], change: Change = _nothing) -> Awaitable[None]:
        """Do at once what the lanes decided at an operator's word. Await the result to have it durable, and ``change`` too."""
        self._apply(effects)
        self.wake()
        confirmed = [
            self._promises.of(effect.offset)
            for effect in effects
            if isinstance(effect, Removed | DeadLettered | Redriven)
        ]
        return all_of(self.promise(change), *confirmed)

    def accepted(self) -> asyncio.Future[None]:
        """Await it to have everything that was accepted before durable."""
        return self.promise(_nothing)

    def promise(self, change: Change) -> asyncio.Future[None]:
        """Let a change ride in the next commit. The future tells when it, and all that was accepted before, is durable."""
        return self.promise_with(change, {})

    def promise_with(self, change: Change, copies: Mapping[Log, Sequence[Record]]) -> asyncio.Future[None]:
        """The same for a change with messages that belong to it."""
        commit = self._services.commit()  # first: when nothing can be written any more nothing is promised
        promise, tell = self._promises.new()
        commit.oblige(change, partial(tell, None), tell, copies)
        return promise

    def give_up(self, error: BaseException) -> None:
        """Nothing more becomes durable: tell everybody who waits for it."""
        self._promises.break_all(error)

    # -- trouble --------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """The store failed, or the subscription is no more: let consumers know."""
        for consumer in list(self._consumers):
            consumer.failed(error)

    def _let_go(self, offset: int) -> tuple[Consumer | None, Lease | None]:
        consumer = self._holders.pop(offset, None)
        return consumer, consumer.let_go(offset) if consumer is not None else None

    def _note(self, key: str | None, offset: int, failures: int, not_before: float, error: str | None) -> None:
        passes = passes_retries(key, self.options)
        self._services.commit().note_trouble(self.id, TroubleRow(offset, failures, not_before, error, passes))

    def _pause(self, paused: KeyPaused) -> None:
        reason = f"{paused.attempts} delivery attempts failed"
        self.pause_reasons[paused.key] = reason
        self._services.commit().oblige(lambda work: work.pause_key(self.id, paused.key, reason), lambda: None)

    # -- time -----------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadline = self.lanes.next_deadline()
        when = None if deadline is None else self._loop.time() + max(0.0, deadline - self._services.now())
        if self._timer is not None:
            if when is not None and self._timer.when() <= when:
                return  # it rings in time, and looks again then
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        effects = self.lanes.advance(self._services.now())
        self.counts.expired += sum(getattr(effect, "error", None) is EXPIRED for effect in effects)
        self._apply(effects)
        self.wake()

    def close(self, why: BaseException) -> None:
        """Stop: no timer, no read, no consumer. Who acks or nacks from now on is told why that can't be."""
        if self._closed is not None:
            return
        self._closed = why
        if self._services.can_write():
            for consumer in self._consumers:
                self._give_back(consumer, list(consumer.leases.values()))
        if self._timer is not None:
            self._timer.cancel()
        self._consumers.clear()
        self._quiet.set()
        self._drained.set()
        for task in self._tasks:
            task.cancel()

    def _require_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def run(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._services.failed(error)


def _shape(options: SubscriptionOptions) -> tuple[object, ...]:
    """What lanes are built for. Everything else can be changed while they are at work."""
    return options.ordering, options.window, options.release, options.retry.mode
