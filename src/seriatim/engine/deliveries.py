"""The deliveries of a subscription: its consumers, their messages, and its timer.

Rules
    - Consumers share the lanes and are served in turn, as far as they have room. If a window allows several leases of a key,
      all of them belong to the same consumer at a time (rule 2 of the lanes).
    - One timer, set to the lanes' next deadline. An idle subscription uses no CPU.

Theory of operation
    Every event calls ``wake``, and the engine's pump then calls ``hand_out`` once, at the end of the current turn of the event
    loop or after a commit. Payloads come from the topic's memory. If some are no longer there, the whole batch waits for one
    read, and later batches of that consumer queue behind it, so that nothing overtakes. Only the lanes know which leases are
    live, and who holds them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Lease
from seriatim.engine.committer import RETRY_PAUSE_S
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.options import said_of
from seriatim.engine.subscription_states import LifeState
from seriatim.errors import DamagedStore, FailedPrecondition, StoreError
from seriatim.log import logger
from seriatim.store.base import Record

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine
    from seriatim.engine.subscription import SubscriptionState

SLICE = 256
"""After this many messages a commit of their acks may start, to be written while the next ones are delivered."""

_ACTIVE, _CLOSED = LifeState.ACTIVE, LifeState.CLOSED
_OFFSET = attrgetter("offset")
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


class Pump:
    """The subscriptions of an engine that are about to deliver messages."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._awake: list[Deliveries] = []

    def wake(self, deliveries: Deliveries) -> None:
        """Have a subscription deliver, at the end of this turn of the loop or as soon as a commit is done."""
        if not self._awake:
            self._loop.call_soon(self)
        self._awake.append(deliveries)

    def __call__(self) -> None:
        """Have all woken subscriptions deliver."""
        awake, self._awake = deque(self._awake), []
        try:
            while awake:
                self._let_hand_out(awake.popleft())
        finally:  # an interrupt has its way, and the others have their turn all the same
            for deliveries in awake:
                self.wake(deliveries)

    def _let_hand_out(self, deliveries: Deliveries) -> None:
        try:
            deliveries.hand_out()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - one subscription's trouble is not another's
            logger.error("handing out messages failed, and is tried again: %r", error, exc_info=error)
            self._loop.call_later(RETRY_PAUSE_S, deliveries.wake)


class Deliveries:
    """The consumers of a subscription, and delivery to them."""

    def __init__(self, host: SubscriptionState, engine: Engine) -> None:
        self._host = host
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._consumers: deque[Consumer] = deque()
        self._is_awake = False
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    # -- consumers ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._consumers)

    def attach(self, consumer: Consumer) -> None:
        host = self._host
        host.life.require_open()
        if consumer.batch > 1:
            host.options.require_batches(host.name)
        self._consumers.append(consumer)
        if host.flaws:
            stopped = FailedPrecondition(f"subscription {host.name!r} is stopped, because it has {said_of(host.flaws)}")
            self._loop.call_soon(consumer.failed, stopped)
        consumer.wake = self.wake
        consumer.lease = partial(self._lease, consumer)
        consumer.give_back = self._give_back
        consumer.ack_all = host.outcomes.ack_all
        self.wake()

    def detach(self, consumer: Consumer) -> None:
        """Detach a consumer. Its messages are redelivered at once, and the attempts do not count."""
        if consumer not in self._consumers:  # the subscription was closed or deleted before
            return
        self._consumers.remove(consumer)
        consumer.batches.clear()
        self._give_back(self._leases_of(consumer))

    def _lease(self, consumer: Consumer, token: int) -> Lease | None:
        lease = self._host.lanes.lease(token)
        return lease if lease is not None and self._host.lanes.holder(token) is consumer else None

    def _leases_of(self, consumer: Consumer) -> list[Lease]:
        lanes = self._host.lanes
        return (
            [lease for lease in lanes.leases() if lanes.holder(lease.token) is consumer] if consumer.outstanding else []
        )

    def _give_back(self, leases: Iterable[Lease], delay: float = 0) -> None:
        """Return messages that were not tried."""
        for lease in leases:
            if self._host.lanes.lease(lease.token) is not None:  # not fenced, because one before it was given back
                self._host.outcomes.give_back(lease, delay, count=False)
        self.wake()

    def report(self, error: BaseException) -> None:
        """The store failed, or the subscription is gone: notify the consumers."""
        for consumer in list(self._consumers):
            consumer.failed(error)

    def fence_all(self) -> None:
        """Fence every lease, and notify its consumer."""
        lanes = self._host.lanes
        for lease in lanes.leases():
            if lanes.lease(lease.token) is not None:
                consumer = lanes.holder(lease.token)
                self._host.outcomes.give_back(lease, delay=0, count=False)
                consumer.fenced(lease)

    def lose_all(self, lanes: Lanes) -> None:
        """The lanes are gone, and with them every lease."""
        for consumer in self._consumers:
            consumer.batches.clear()
        for lease in lanes.leases():
            consumer = lanes.holder(lease.token)
            consumer.let_go(lease)
            consumer.fenced(lease)
        self.wake()

    def close(self) -> None:
        """Serve no consumer any more."""
        if self._engine.can_write():
            for consumer in self._consumers:
                self._give_back(self._leases_of(consumer))
            self._host.dead_letters.leave_burials()
        if self._timer is not None:
            self._timer.cancel()
        self._consumers.clear()
        self._quiet.set()
        self._empty.set()

    # -- waiting for an end ---------------------------------------------------------------------------------------------

    async def until_empty(self) -> None:
        """Return when nothing waits, nothing is in flight, and every ack is durable."""
        while not self._is_empty():
            self._host.life.require_open()  # it may have ended before, and then nobody says when it is empty
            self._empty.clear()
            await self._empty.wait()
        self._host.life.require_open()

    def _is_empty(self) -> bool:
        host = self._host
        return host.life.state is _ACTIVE and not len(host.lanes) and self._is_quiet()

    async def until_quiet(self) -> None:
        """Return when nothing is in flight and every ack is durable. Only for use while nothing is delivered."""
        self._host.life.require_open()  # it may have ended before, and then nobody says when it is quiet
        while not self._is_quiet():
            self._quiet.clear()
            self.wake()
            await self._quiet.wait()
            self._host.life.require_open()

    def _is_quiet(self) -> bool:
        """Whether nothing is in flight, and every decision is part of a commit."""
        return self._host.lanes.is_quiet() and not self._host.dead_letters.is_burying

    # -- handing out ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Deliver soon: something has changed."""
        if not self._is_awake:
            self._is_awake = True
            self._engine.pump.wake(self)

    def hand_out(self) -> None:
        """Deliver as much as possible."""
        self._is_awake = False
        host = self._host
        if host.life.state is _CLOSED:
            return
        if not self._empty.is_set() and self._is_empty():
            self._empty.set()
        if host.life.state is not _ACTIVE or host.options.paused or host.flaws:
            if self._is_quiet():
                self._quiet.set()
        elif host.lanes.ready_lanes:
            self._serve_consumers(host.lanes, host.options.ack_deadline)
        self.set_timer()

    def _serve_consumers(self, lanes: Lanes, ack_deadline: float) -> None:
        consumers, now = self._consumers, self._loop.time() + self._engine.wall
        idle = given = 0
        while lanes.ready_lanes and idle < len(consumers):
            if given >= SLICE:
                self.wake()
                break
            consumer = consumers[0]
            consumers.rotate(-1)
            room = consumer.room()
            seconds = consumer.ack_deadline or ack_deadline
            leases = lanes.take(now, seconds, room, consumer, consumer.batch) if room > 0 else []
            if leases:
                idle = 0
                given += self._give(consumer, leases)
            else:
                idle += 1

    def _give(self, consumer: Consumer, leases: list[Lease]) -> int:
        leases = consumer.lend(leases)
        records = None if consumer.batches else self._host.topic.all_recent(map(_OFFSET, leases))
        if records is not None:
            self._hand_over(consumer, list(map(_make, repeat(Delivered), zip(leases, records, strict=True))))
            return len(leases)
        consumer.batches.append(leases)
        if len(consumer.batches) == 1:
            self._host.run(self._read_and_deliver(consumer))
        return len(leases)

    def _hand_over(self, consumer: Consumer, messages: list[Delivered]) -> None:
        host = self._host
        if (fitting := consumer.weigh(messages)) < len(messages):
            # The last one first: giving one back takes those of its key behind it back, too.
            self._give_back([lease for lease, _ in reversed(messages[fitting:])])
            messages = messages[:fitting]
        if host.options.retry.max_attempts is not None:
            host.outcomes.note_attempts(messages)
        host.counts.delivered += len(messages)
        if host.watched.is_active:
            host.watched.delivered(self._engine.now(), messages)
        if host.lanes.has_troubles:
            host.counts.redelivered += sum(lease.attempt > 1 for lease, _ in messages)
        consumer.deliver(messages)

    async def _read_and_deliver(self, consumer: Consumer) -> None:
        while consumer.batches:
            leases = consumer.batches[0]
            try:
                records = await self._host.records(lease.offset for lease in leases)
            except StoreError as error:
                self._engine.recovery.failed(error)
                records = None
            if not consumer.batches:  # it was detached meanwhile
                return
            if records is not None:
                self._deliver(consumer, leases, records)
            elif self._host.life.state is not _CLOSED:
                self._give_back(leases, RETRY_PAUSE_S)
            consumer.batches.popleft()

    def _deliver(self, consumer: Consumer, leases: list[Lease], records: dict[int, Record]) -> None:
        messages = []
        for lease in leases:
            if (
                self._host.lanes.lease(lease.token) is None
            ):  # lost while it was read, and what a seek passed may be removed
                continue
            if (record := records.get(lease.offset)) is None:
                where = f"topic {self._host.topic.name!r}"
                self._engine.recovery.failed(DamagedStore(f"message {lease.offset} of {where} is not in its log"))
            else:
                messages.append(Delivered(lease, record))
        if messages:
            self._hand_over(consumer, messages)

    # -- time -----------------------------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """Set the timer to the lanes' next deadline. An earlier timer is kept, and is set again when it fires."""
        deadline = self._host.lanes.next_deadline()
        when = None if deadline is None else max(self._loop.time(), deadline - self._engine.wall)
        if self._timer is not None:
            if when is not None and self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.let_time_pass()

    def let_time_pass(self) -> None:
        """Process deadlines that have passed."""
        self._host.outcomes.apply(self._host.lanes.advance(self._engine.now()))
        self.wake()


class LocalAttachment:
    """An attached consumer: its acks and nacks go directly to the owner of the outcomes."""

    def __init__(self, subscription: SubscriptionState, consumer: Consumer) -> None:
        self._subscription = subscription
        self._consumer = consumer
        self.ack = subscription.outcomes.ack
        self.nack = subscription.outcomes.nack
        self.dead_letter = subscription.outcomes.dead_letter
        self.stop = consumer.stop
        subscription.deliveries.attach(consumer)

    @property
    def ack_deadline(self) -> float:
        return self._subscription.options.ack_deadline

    def holds(self, lease: Lease) -> bool:
        return self._subscription.lanes.lease(lease.token) is not None

    def extend(self, lease: Lease, seconds: float) -> None:
        self._subscription.outcomes.extend(lease, seconds)

    def detach(self) -> None:
        self._subscription.deliveries.detach(self._consumer)
