"""The outcomes of a subscription's messages, and when they are durable: acks, failures, dead letters, operators' changes.

Rules
    - A change that the lanes accepted (an ack, a dead letter) is an obligation of the group commit. The lanes get a
      confirmation when it is durable.
    - Callers that wait for durability are notified once: of success, or of the reason why it failed.
    - When settling a message takes the place of a dead letter, both are in the same transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from seriatim.core.lanes.types import (
    DeadLettered,
    Expired,
    Fenced,
    KeyPaused,
    LaneEffect,
    Lease,
    Redriven,
    ReleaseAfter,
    Removed,
    Returned,
    Settled,
)
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import require_duration
from seriatim.engine.broker import OnDurable
from seriatim.engine.commit import Change, Commit, Log
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.errors import StaleLease
from seriatim.log import logger
from seriatim.store.base import Record, Transaction, TroubleRow

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine
    from seriatim.engine.subscription import SubscriptionState

OVERTAKEN_ACK = "an earlier message of its key failed, and it is delivered again after that one"

_CLOSED_COMMIT = Commit(is_open=False)
_NO_COPIES: Mapping[Log, Sequence[Record]] = {}


def _nothing(_: Transaction) -> None:
    """An empty change, which only marks a position in the order of commits."""


class Outcomes:
    """Settles, returns and dead-letters messages, and notifies those who wait for it."""

    def __init__(self, host: SubscriptionState, engine: Engine) -> None:
        self.id = host.id
        self._host = host
        self._engine = engine
        self._commit = _CLOSED_COMMIT  # the one that takes acks, if it is still open,
        self._acks: list[int] = []  # and what it settles for this subscription
        self._waiters = Waiters()

    # -- what consumers say ---------------------------------------------------------------------------------------------

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        """Ack a message, and those before it in its batch. ``on_durable`` is called when that can't be undone, or with the
        error if the lease was lost after all."""
        if self.ack_all((lease,)):
            raise self._host.lanes.stale(lease.token)
        if on_durable is not None:
            self._waiters.expect(lease.behind[-1] if lease.behind else lease.offset, on_durable)

    def ack_all(self, leases: Iterable[Lease]) -> list[Lease]:
        """Ack several. Returns those whose leases were already lost, which are unchanged."""
        host = self._host
        if host.life.ended is not None:
            raise host.life.ended
        lanes, rides, acked, now = host.lanes, self._commit.is_open, 0, self._engine.now()
        settled: list[int] = self._acks if rides else []
        lost: list[Lease] = []
        for lease in leases:
            try:
                through = lease.behind[-1] if lease.behind else lease.offset
                consumer = lanes.settle_into(settled, lease.token, through, now)
            except StaleLease:
                lost.append(lease)
            else:
                acked += consumer.let_go(lease, lanes.covered(lease.token) if consumer.batch > 1 else 0)
        if settled and not rides:
            self._commit = self._engine.commit()
            self._acks = self._commit.settled_by(self)
            self._acks += settled
        if lanes.overtaken:
            host.dead_letters.write_overtaken()
        host.counts.acked += acked
        host.deliveries.wake()
        return lost

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        """Nack a message: it returns to its place."""
        self._host.life.require_open()
        if delay is not None:
            require_duration("delay", delay)
        self.give_back(lease, delay, reason_of(error))
        self._host.counts.nacked += 1
        self._host.deliveries.wake()

    def dead_letter(self, lease: Lease, reason: str | None = None, *, rest: bool = False) -> None:
        """Dead-letter a message at once, with ``rest`` together with the waiting messages of its key."""
        self._host.life.require_open()
        lanes, reason = self._host.lanes, reason_of(reason)
        consumer = lanes.holder(lease.token)
        self._ended(lease, consumer, lanes.give_up(lease.token, self._engine.now(), reason, rest, lease.offset))
        self._host.deliveries.wake()

    def extend(self, lease: Lease, seconds: float) -> float:
        """Extend a lease to ``seconds`` from now; returns its new deadline."""
        self._host.life.require_open()
        require_duration("seconds", seconds)
        deadline = self._host.lanes.extend(lease.token, self._engine.now(), seconds)
        self._host.deliveries.set_timer()
        return deadline

    def give_back(self, lease: Lease, delay: float | None, error: str | None = None, *, count: bool = True) -> None:
        """End a lease without an ack; ``count=False`` if there was no attempt. The lease of a whole batch names no message in
        it."""
        lanes, at = self._host.lanes, None if lease.behind else lease.offset
        consumer = lanes.holder(lease.token)
        self._ended(lease, consumer, lanes.give_back(lease.token, self._engine.now(), delay, error, count, at))

    def _ended(self, lease: Lease, consumer: Consumer, effects: Sequence[LaneEffect]) -> None:
        consumer.let_go(lease)
        self.apply(effects)

    # -- what the lanes decided -----------------------------------------------------------------------------------------

    def apply(self, effects: Iterable[LaneEffect]) -> None:  # noqa: C901 - one case for each effect
        letters: list[DeadLettered] = []
        for effect in effects:
            self._engine.history.note(self._engine.now(), self._host.watched, effect)
            match effect:
                case Returned():
                    self.note_failure(effect.key, effect.offset, effect.attempts, effect.not_before, effect.error)
                case Settled() | Removed():
                    self._engine.commit().settle(self, [effect.offset])
                case DeadLettered():
                    letters.append(effect)
                case Redriven():
                    self._unbury(effect)
                case KeyPaused():
                    self.note_failure(effect.key, effect.offset, effect.attempts, 0.0, effect.error)
                    self._pause(effect)
                case Expired():
                    effect.holder.let_go(effect.lease)
                    self._host.counts.expired += 1
                case Fenced():
                    self._fence(effect)
        if self._host.lanes.overtaken:
            self._host.dead_letters.write_overtaken()
        self.write_superseded()
        if letters:
            self._host.dead_letters.bury(letters)

    def write_superseded(self) -> None:
        """Settle superseded messages, not later than the acks of the newer ones, so that no restart redelivers them."""
        host = self._host
        if not host.lanes.superseded:
            return
        left, host.lanes.superseded = host.lanes.superseded, []
        for key, offset, by in left if logger.isEnabledFor(logging.DEBUG) else ():
            logger.debug(
                "subscription %r, key %r: message %s is superseded by message %s",
                host.name,
                key,
                offset,
                by,
                extra={"subscription": host.name, "ordering_key": key, "message_id": str(offset)},
            )
        host.counts.superseded += len(left)
        host.watched.superseded(self._engine.now(), left)
        id_, offsets = self.id, [superseded.offset for superseded in left]
        self._engine.commit().oblige(
            lambda work: work.settle(id_, offsets), lambda: host.topic.settled(offsets), partial(self.refused, offsets)
        )

    def _unbury(self, effect: Redriven) -> None:
        id_, offsets = self.id, [effect.offset]
        refused = partial(self.refused, offsets)
        self._engine.commit().oblige(
            lambda work: work.unbury(id_, offsets), lambda: self.confirmed(offsets, []), refused
        )

    def _fence(self, fenced: Fenced) -> None:
        """A lease is lost. If it was acked provisionally, its consumer no longer has it."""
        host, lease = self._host, fenced.lease
        if fenced.holder is not None:
            fenced.holder.let_go(lease)
            fenced.holder.fenced(lease)
        for offset in lease.offsets:
            if host.options.retry.max_attempts is not None:
                # The delivery was noted when it began, and does not count.
                failures, error = host.lanes.failures(offset)
                self.note_failure(lease.key, offset, failures, 0.0, error)
            stale = StaleLease(f"the ack of message {offset} came to nothing: {OVERTAKEN_ACK}")
            self._waiters.tell(offset, host.life.ended or stale)

    def note_attempts(self, messages: Iterable[Delivered]) -> None:
        """Deliveries start. This is noted in a commit that takes place anyway: a delivery that a crash ends counts if the note
        was written, and a batch that a crash ended is then delivered one message at a time."""
        for lease, _ in messages:
            failures = lease.attempt - (self._host.lanes.covered(lease.token) > 1)
            self.note_failure(lease.key, lease.offset, failures, 0.0, "the process ended during delivery")

    def note_failure(self, key: str | None, offset: int, failures: int, not_before: float, error: str | None) -> None:
        passes = self._host.options.retry.lets_pass(key)
        self._engine.commit().note_trouble(self, TroubleRow(offset, failures, not_before, error, passes))

    def _pause(self, paused: KeyPaused) -> None:
        reason = f"{paused.attempts} delivery attempts failed"
        self._host.pause_reasons[paused.key] = reason
        self._engine.commit().oblige(lambda work: work.pause_key(self.id, paused.key, reason), lambda: None)

    # -- what is durable ------------------------------------------------------------------------------------------------

    def confirmed(self, offsets: Sequence[int], acked: Sequence[int] | None = None) -> None:
        """Outcomes are durable: acks, and others unless only these."""
        host = self._host
        if host.options.release is ReleaseAfter.DURABLE:
            host.lanes.confirm_all(offsets, self._engine.now())
            self.write_superseded()
        host.topic.settled(offsets)
        if host.watched.leased:
            host.watched.settled(self._engine.now(), offsets if acked is None else acked)
        if self._waiters:
            for offset in offsets:
                self._waiters.tell(offset, None)
        host.deliveries.wake()

    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        """The store refuses these outcomes for good. Their keys wait until the store is reopened."""
        logger.error(
            "subscription %r: what became of the messages %s can't be stored; they are delivered again when the store is "
            "opened again, and their keys wait until then: %s",
            self._host.name,
            ", ".join(map(str, offsets)),
            error,
            extra={"subscription": self._host.name, "message_ids": list(map(str, offsets))},
        )
        for offset in offsets:
            self._waiters.tell(offset, error)
        self._host.deliveries.report(error)

    def forgotten(self, offsets: Sequence[int], error: BaseException) -> None:
        """The store refuses the notes about failed deliveries of these messages for good."""
        logger.error(
            "subscription %r: what is to be known about the messages %s can't be stored, and is forgotten when the store is "
            "opened again: %s",
            self._host.name,
            ", ".join(map(str, offsets)),
            error,
            extra={"subscription": self._host.name, "message_ids": list(map(str, offsets))},
        )

    def carry_out(self, effects: Sequence[LaneEffect], change: Change = _nothing) -> Awaitable[None]:
        """Carry out at once what the lanes decided for an operator. Await the result for it to be durable, and ``change``
        too."""
        self.apply(effects)
        self._host.deliveries.wake()
        written = self.write(change)  # first: when nothing can be written any more nobody waits for the others
        confirmed = [
            self._waiters.of(effect.offset)
            for effect in effects
            if isinstance(effect, Removed | DeadLettered | Redriven)
        ]
        return all_of(written, *confirmed)

    def accepted(self) -> asyncio.Future[None]:
        """A future for when everything accepted before is durable."""
        return self.write(_nothing)

    def write(self, change: Change, copies: Mapping[Log, Sequence[Record]] = _NO_COPIES) -> asyncio.Future[None]:
        """Make a change in the next commit, with messages that belong to it. The future is done when it, and everything
        accepted before, is durable."""
        commit = self._engine.commit()  # first: when nothing can be written any more nobody waits for it
        durable, tell = self._waiters.new()
        commit.oblige(change, partial(tell, None), tell, copies)
        return durable

    def fail_waiting(self, error: BaseException) -> None:
        """Nothing more becomes durable: notify all who wait for it."""
        self._waiters.fail_all(error)


class Waiters:
    """Callers that wait for single messages, by offset, or for whole commits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callbacks: dict[int, OnDurable] = {}
        self._open: dict[asyncio.Future[None], None] = {}  # in the order in which they were made

    def __bool__(self) -> bool:
        """Whether a caller waits for a message."""
        return bool(self._callbacks)

    def expect(self, offset: int, on_durable: OnDurable) -> None:
        """Call back with the outcome of a message."""
        self._callbacks[offset] = on_durable

    def of(self, offset: int) -> asyncio.Future[None]:
        """The outcome of a message."""
        future, self._callbacks[offset] = self.new()
        return future

    def new(self) -> tuple[asyncio.Future[None], OnDurable]:
        """A future, and what to call when it is over."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._open[future] = None
        future.add_done_callback(self._open.pop)
        return future, partial(tell_future, future)

    def tell(self, offset: int, error: BaseException | None) -> None:
        """A message is settled for good, or has failed to be."""
        if (on_durable := self._callbacks.pop(offset, None)) is not None:
            on_durable(error)

    def fail_all(self, error: BaseException) -> None:
        """Nothing more becomes durable."""
        for offset in list(self._callbacks):
            self.tell(offset, error)
        for future in list(self._open):
            tell_future(future, error)


def tell_future(future: asyncio.Future[None], error: BaseException | None) -> None:
    """Resolve a future: something is durable, or failed with this error."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def all_of(*futures: asyncio.Future[None]) -> None:
    await asyncio.gather(*futures)
