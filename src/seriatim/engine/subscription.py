"""A subscription: its lanes, its consumers, its timer.

Rules
    - The lanes (``core.lanes``) decide what is given out and when. Nothing here decides order.
    - Consumers of one subscription share its lanes and are served in turn, each as far as it has room.
    - What the lanes accepted (an ack, a dead letter) is an obligation of the group commit, and confirmed to the lanes when it
      is durable.
    - A dead letter is copied to the dead-letter topic, if there is one, in the transaction that buries it; without one it stays
      buried where it is, and is never dropped.
    - One timer, set to the lanes' next deadline. A subscription that waits for nothing costs nothing.

Theory of operation
    Whatever happens ends in ``wake``, and the engine then lets the subscription ``pump``: hand out messages, once at the end of
    the current turn of the event loop, or after a commit, however much happened in it. Payloads come from the topic's memory;
    when some are no longer there the whole batch waits for one read, and later batches of that consumer queue behind it, so
    that nothing overtakes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import repeat
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from seriatim.core.delivery import (
    DeadLettered,
    Effect,
    Fenced,
    KeyPaused,
    Lease,
    Release,
    RetryMode,
    Returned,
    SavedMessage,
    Settled,
)
from seriatim.core.lanes import Lanes
from seriatim.engine.commit import Commit
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.topic import TopicState
from seriatim.errors import DamagedStore
from seriatim.store.base import DeadLetterRow, Position, Record, StoreReader, SubscriptionRow, TroubleRow

TURN = 64
"""How many messages a consumer gets before the next one has its turn."""

# What a dead letter says of itself in the dead-letter topic.
SOURCE, OFFSET, ATTEMPTS, ERROR = (
    "seriatim-dead-letter-subscription",
    "seriatim-dead-letter-offset",
    "seriatim-dead-letter-attempts",
    "seriatim-dead-letter-error",
)


_CLOSED = Commit(is_open=False)
_OFFSET, _NOT_BEFORE = attrgetter("offset"), attrgetter("not_before")
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class Delivered(NamedTuple):
    """A message given out under a lease."""

    lease: Lease
    record: Record


class Consumer:
    """Somebody who takes messages: ``deliver`` is called with them, ``fenced`` with leases that are lost.

    It has room while fewer than ``max_messages`` and less than ``max_bytes`` are outstanding.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Delivered]], None],
        fenced: Callable[[Lease], None] = lambda _: None,
        max_messages: int = 1000,
        max_bytes: float = inf,
    ) -> None:
        self.deliver = deliver
        self.fenced = fenced
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.outstanding = 0
        self.batches: deque[list[Lease]] = deque()  # what waits for a read
        self._sizes: dict[int, int] = {}
        self._bytes = 0

    def stop(self) -> None:
        """Take nothing more; what is outstanding goes on."""
        self._max_messages = 0

    def room(self) -> int:
        """How many messages it takes now."""
        if self._bytes >= self._max_bytes:
            return 0
        # With a limit on bytes one at a time: how large a message is, is known only when it is at hand.
        return min(self._max_messages - self.outstanding, TURN if self._max_bytes == inf else 1)

    def weigh(self, delivered: Sequence[Delivered]) -> None:
        """Count the bytes of what it gets, if they are limited."""
        if self._max_bytes < inf:
            for lease, record in delivered:
                self._sizes[lease.offset] = len(record.data)
                self._bytes += len(record.data)

    def let_go(self, offset: int) -> None:
        self.outstanding -= 1
        if self._sizes:
            self._bytes -= self._sizes.pop(offset, 0)


class Services(Protocol):
    """What a subscription needs of its engine."""

    def now(self) -> float: ...
    def wake(self, subscription: SubscriptionState) -> None: ...
    def commit(self) -> Commit: ...
    def drain(self) -> Awaitable[None]: ...
    def fetch(self, topic_id: int, offsets: Sequence[int]) -> Awaitable[list[Record]]: ...
    def topic(self, name: str) -> TopicState | None: ...
    def failed(self, error: BaseException) -> None: ...


class SubscriptionState:
    """What the engine knows of one subscription."""

    def __init__(self, row: SubscriptionRow, topic: TopicState, services: Services, first_token: int) -> None:
        self.id = row.id
        self.name = row.name
        self.topic = topic
        self.options = SubscriptionOptions.from_json(row.options)
        self.lanes = Lanes(self.options.delivery, first_token)
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._consumers: deque[Consumer] = deque()
        self._holders: dict[int, tuple[Consumer, Lease]] = {}  # by offset
        self._commit = _CLOSED  # the one that takes acks, if it is still open,
        self._acks: list[int] = []  # and what it settles for this subscription
        self._durable: dict[int, Callable[[], None]] = {}  # who waits for an ack to be durable, by offset
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = False
        self._timer: asyncio.TimerHandle | None = None
        self._held_back: list[Record] | None = None  # what comes while options are changed
        self._quiet = asyncio.Event()
        self._changing = asyncio.Lock()

    # -- messages in ----------------------------------------------------------------------------------------------------

    def push(self, records: Sequence[Record]) -> None:
        """Queue messages that are durable."""
        if self._held_back is not None:
            self._held_back += records
            return
        if any(map(_NOT_BEFORE, records)):
            self._push_delayed(records)
        elif self.options.ordering:
            self.lanes.push_all([(record.key, record.offset) for record in records])
        else:
            self.lanes.push_all(zip(repeat(None), map(_OFFSET, records)))
        self.wake()

    def _push_delayed(self, records: Sequence[Record]) -> None:
        now, ordering, lanes = self._services.now(), self.options.ordering, self.lanes
        for record in records:
            delay = record.not_before - now if record.not_before else 0
            lanes.push(record.key if ordering else None, record.offset, now, delay)

    async def reconfigure(self, options: SubscriptionOptions, store: StoreReader) -> None:
        """Go on with other options. Leases that are out finish first; meanwhile nothing is given out."""
        async with self._changing:
            self._held_back, loaded_until = [], -1
            self._quiet.clear()
            self.wake()
            try:
                await self._quiet.wait()
                await self._services.drain()  # what is noted about failed deliveries must be in the store
                lanes = Lanes(options.delivery, self.lanes.next_token)
                loaded_until = await self._loop.run_in_executor(None, self._load, lanes, options, store)
                self.lanes, self.options = lanes, options
            finally:
                # Also when it failed: then the lanes that there were go on.
                records, self._held_back = self._held_back, None
                self.push([record for record in records if record.offset > loaded_until])

    def load(self, store: StoreReader) -> None:
        """Queue what the store holds for this subscription. Runs in a thread, before anybody knows of the subscription."""
        self._load(self.lanes, self.options, store)

    def _load(self, lanes: Lanes, options: SubscriptionOptions, store: StoreReader) -> int:
        """Queue what the store holds in lanes that nobody else uses yet, and return the last offset that was looked at."""
        lanes.advance(self._services.now())  # so that what is due is not taken for delayed
        cursor, last = store.cursor(self.id), -1
        troubles = {row.offset: row for row in store.troubles(self.id)}
        buried = {row.offset for row in store.dead_letters(self.id)}
        for row in store.paused_keys(self.id):
            lanes.pause(row.key)
        for positions in store.positions(self.topic.id, cursor.floor):
            for position in positions:
                if not cursor.has(position.offset) and position.offset not in buried:
                    self._load_one(lanes, options, position, troubles.get(position.offset))
            last = positions[-1].offset
        return last

    def _load_one(
        self, lanes: Lanes, options: SubscriptionOptions, position: Position, trouble: TroubleRow | None
    ) -> None:
        key, now = position.key if options.ordering else None, self._services.now()
        if trouble is None:
            lanes.push(key, position.offset, now, position.not_before - now if position.not_before else 0)
        else:
            # Whether others may pass it is decided anew: it may have been noted while other options were in force.
            passes = trouble.steps_aside and _passes(key, options)
            lanes.admit(SavedMessage(key, *trouble[:4], steps_aside=passes))

    # -- messages out ---------------------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        self.wake()

    def detach(self, consumer: Consumer) -> None:
        """Take a consumer away. What it had is given out again at once, and counts as not tried."""
        self._consumers.remove(consumer)
        consumer.batches.clear()
        for lease in [lease for holder, lease in self._holders.values() if holder is consumer]:
            self._apply(self.lanes.give_back(lease.token, self._services.now(), delay=0, count=False))
        self.wake()

    def wake(self) -> None:
        """Something happened: hand out soon what can be handed out."""
        if not self._awake:
            self._awake = True
            self._services.wake(self)

    def pump(self) -> None:
        """Hand out what can be handed out."""
        self._awake = False
        if self._held_back is not None:
            if self.lanes.is_quiet():
                self._quiet.set()
            self._set_timer()
            return
        idle = 0
        while idle < len(self._consumers):
            consumer = self._consumers[0]
            self._consumers.rotate(-1)
            room = consumer.room()
            leases = self.lanes.take(self._services.now(), self.options.ack_deadline, room) if room > 0 else []
            idle = 0 if leases else idle + 1
            if leases:
                self._give(consumer, leases)
        self._set_timer()

    def _give(self, consumer: Consumer, leases: list[Lease]) -> None:
        consumer.outstanding += len(leases)
        offsets = list(map(_OFFSET, leases))
        self._holders.update(zip(offsets, zip(repeat(consumer), leases), strict=False))
        if self.options.retry.max_attempts is not None:
            for lease in leases:
                # Rides along and delays nothing: a delivery under way at a crash counts if this was written.
                self._note(lease.key, lease.offset, lease.attempt, 0.0, "the process ended during delivery")
        records = None if consumer.batches else self.topic.all_recent(offsets)
        if records is None:
            self._deliver_later(consumer, leases)
        else:
            self._hand_over(consumer, list(map(_make, repeat(Delivered), zip(leases, records, strict=True))))

    def _deliver(self, consumer: Consumer, leases: list[Lease], fetched: dict[int, Record]) -> None:
        delivered = []
        for lease in leases:
            record = self.topic.recent(lease.offset) or fetched.get(lease.offset)
            if record is None:
                self._services.failed(
                    DamagedStore(f"message {lease.offset} of topic {self.topic.name!r} is not in its log")
                )
            elif self._holders.get(lease.offset) == (consumer, lease):  # it may have been lost while it was read
                delivered.append(Delivered(lease, record))
        if delivered:
            self._hand_over(consumer, delivered)

    def _hand_over(self, consumer: Consumer, delivered: list[Delivered]) -> None:
        consumer.weigh(delivered)
        consumer.deliver(delivered)

    def _deliver_later(self, consumer: Consumer, leases: list[Lease]) -> None:
        consumer.batches.append(leases)
        if len(consumer.batches) == 1:
            self._run(self._read_and_deliver(consumer))

    async def _read_and_deliver(self, consumer: Consumer) -> None:
        while consumer.batches:
            leases = consumer.batches[0]
            missing = sorted(lease.offset for lease in leases if self.topic.recent(lease.offset) is None)
            fetched = {record.offset: record for record in await self._services.fetch(self.topic.id, missing)}
            if consumer.batches:  # it may have been detached meanwhile
                self._deliver(consumer, leases, fetched)
                consumer.batches.popleft()

    # -- what consumers say ---------------------------------------------------------------------------------------------

    def ack(self, lease: Lease, durable: Callable[[], None] | None = None) -> None:
        """A message is done. ``durable`` is called when that can't be undone any more."""
        if self._commit.is_open:
            self.lanes.settle_into(self._acks, lease.token)
        else:
            self._settle_in_next_commit(lease)
        if durable is not None:
            self._durable[lease.offset] = durable
        self._let_go(lease.offset)
        if not self._awake:
            self.wake()

    def _settle_in_next_commit(self, lease: Lease) -> None:
        settled: list[int] = []
        self.lanes.settle_into(settled, lease.token)
        if settled:
            self._commit = self._services.commit()
            self._acks = self._commit.settled_by(self)
            self._acks += settled

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        """A message failed; it goes back to its place."""
        self._apply(self.lanes.give_back(lease.token, self._services.now(), delay, error))
        self.wake()

    def extend(self, lease: Lease, seconds: float) -> float:
        deadline = self.lanes.extend(lease.token, self._services.now(), seconds)
        self._set_timer()
        return deadline

    def confirmed(self, offsets: Sequence[int]) -> None:
        """Acks are durable."""
        if self.options.release is Release.DURABLE:
            self.lanes.confirm_all(offsets)
        self.topic.settled(offsets)
        if self._durable:
            for offset in offsets:
                if (durable := self._durable.pop(offset, None)) is not None:
                    durable()
        self.wake()

    # -- what the lanes decided -----------------------------------------------------------------------------------------

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            consumer, lease = self._let_go(effect.offset)
            if isinstance(effect, Returned):
                self._note(effect.key, effect.offset, effect.attempts, effect.not_before, effect.error)
            elif isinstance(effect, Settled):
                self._services.commit().settle(self, [effect.offset])
            elif isinstance(effect, DeadLettered):
                self._bury(effect)
            elif isinstance(effect, KeyPaused):
                self._note(effect.key, effect.offset, effect.attempts, 0.0, effect.error)
                self._pause(effect)
            elif isinstance(effect, Fenced):
                self._fence(effect, consumer, lease)

    def _fence(self, fenced: Fenced, consumer: Consumer | None, lease: Lease | None) -> None:
        """A lease is lost. One that was acked already, provisionally, is no longer with its consumer."""
        if consumer is not None and lease is not None:
            consumer.fenced(lease)
        if self.options.retry.max_attempts is not None:
            # The delivery was noted when it began, and does not count.
            failures, error = self.lanes.failures(fenced.offset)
            self._note(fenced.key, fenced.offset, failures, 0.0, error)

    def _let_go(self, offset: int) -> tuple[Consumer | None, Lease | None]:
        holder = self._holders.pop(offset, None)
        if holder is None:
            return None, None
        holder[0].let_go(offset)
        return holder

    def _note(self, key: str | None, offset: int, failures: int, not_before: float, error: str | None) -> None:
        passes = _passes(key, self.options)
        self._services.commit().note_trouble(self.id, TroubleRow(offset, failures, not_before, error, passes))

    def _pause(self, paused: KeyPaused) -> None:
        reason = f"{paused.attempts} delivery attempts failed"
        self._services.commit().oblige(lambda work: work.pause_key(self.id, paused.key, reason), lambda: None)

    def _bury(self, letter: DeadLettered) -> None:
        """Dead-letter a message. Its copy for a dead-letter topic needs its payload, which may have to be read first."""
        target = self._services.topic(self.options.dead_letter_topic or "")
        record = self.topic.recent(letter.offset)
        if target is None or record is not None:
            self._write_burial(letter, target, record)
        else:
            self._run(self._read_and_bury(letter, target))

    async def _read_and_bury(self, letter: DeadLettered, target: TopicState) -> None:
        records = await self._services.fetch(self.topic.id, [letter.offset])
        self._write_burial(letter, target, records[0] if records else None)

    def _write_burial(self, letter: DeadLettered, target: TopicState | None, record: Record | None) -> None:
        commit, now = self._services.commit(), self._services.now()
        row = DeadLetterRow(letter.offset, letter.key, letter.attempts, now, letter.error)
        if target is not None and record is not None:
            copy = Record(target.reserve(1), record.key, record.data, self._epitaph(record, letter), now)
            commit.copy(target, copy)
            row = row._replace(copy_topic_id=target.id, copy_offset=copy.offset)
        commit.oblige(lambda work: work.bury(self.id, [row]), lambda: self.confirmed([letter.offset]))

    def _epitaph(self, record: Record, letter: DeadLettered) -> dict[str, str]:
        said = {
            SOURCE: self.name,
            OFFSET: str(letter.offset),
            ATTEMPTS: str(letter.attempts),
            ERROR: letter.error or "",
        }
        return {**(record.attributes or {}), **said}

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
        self._apply(self.lanes.advance(self._services.now()))
        self.wake()

    def close(self) -> None:
        """Stop: no timer, no read, no consumer."""
        if self._timer is not None:
            self._timer.cancel()
        self._consumers.clear()
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._services.failed(error)


def _passes(key: str | None, options: SubscriptionOptions) -> bool:
    """Whether later messages pass one that waits for its retry."""
    return key is None or options.retry.mode is RetryMode.OVERTAKE
