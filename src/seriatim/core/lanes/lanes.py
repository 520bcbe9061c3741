"""The map of lanes: every key's strict queue, and the order of turns.

Rules
-----
1. Each key has its own lane (``lane.py``); its trouble never blocks another key. Keyless messages share a loose lane.
2. Ready lanes form a ring and are served in turn, so a ready lane waits at most one turn of each other ready lane. If a
   window allows several leases of a key, all live ones belong to one consumer: its *holder*. While there is one, only
   the holder can get the next message of the key; a holder without room delays that key and no other. After the last
   lease any consumer can take the key, and its wait starts again. Keyless messages have no holder.
3. Every lease has a token; tokens rise and are never reused. A live lease is in one place, by its token: ``_leased``.
   Settling, returning or extending an unknown token raises StaleLease and changes nothing.
4. A delivery attempt counts when it fails: by a return (nack) or because its lease expires. A message that has used up
   ``max_attempts`` is dead-lettered, alone or with the rest of its key, or its key is paused; resuming the key gives
   the message one more attempt. The consumer of a lease may give its message up: it is dead-lettered at once,
   regardless of the policy. When a crash used up the attempts, or undid the consequences, the first ``advance`` after
   the restart reports it, and the message is not delivered again.
5. Time passes only in ``advance(now)``; all other commands only record times, and nothing falls due in them. Time never
   runs backwards: an earlier ``now`` counts as the latest one seen.
6. A dead letter may be redriven to its place as long as no later message of its key is settled or leased. This is
   recorded only here; ``overtaken`` lists those that lost their places, to be stored with those that passed them.
7. A drained key costs nothing: its lane is removed.
8. If only the latest message of a key is kept (``Keep.LATEST``), a message that is due or in flight supersedes all that
   wait before it in its lane, also while the key is paused; ``superseded`` lists them. A lease is never affected. When
   a delivery fails and there is a newer message, the failed one is superseded: it is not retried or dead-lettered, and
   pauses nothing. A delayed message supersedes when it is due. A redrive that would be superseded at once is refused.
9. A consumer may take batches: one lease for consecutive messages of a key that are due and have not failed. An ack
   settles it up to the message that it names, and the lease continues with the rest. Any other outcome ends the lease,
   and every message that it still covers returns to its place. A failure that names its message counts for that one
   alone. If the failed message is unknown, or the lease expires, no attempt counts, and these messages are delivered
   one at a time until one of them fails: that one counts. So a message that can't be handled affects only itself.
   Messages without a key, those of a window of more than 1 and those of limited tenants are delivered in batches of
   one.

Theory of operation
-------------------
No command scans a backlog or other keys. The ring is a deque of lanes; a lane is in it at most once, and one that is no
longer ready is skipped in its turn. Lease deadlines and delays are two schedules (``Deadlines``), keyed by token and by
offset. A ready lane that has a holder is in the holder's own queue instead of the ring; a consumer gets whichever of
the two fronts became ready first, so no consumer examines lanes that it can't have.

If only one transition is possible it is made directly, without ``_refresh``, because nearly every message takes that
path; tests verify that states still match ``_state_of``, and that the table is exact. Changes that must become durable
are recorded in ``_unconfirmed`` until ``confirm(offset)``. After a crash the map is rebuilt from the store (``push``,
``admit``, ``pause``, ``remember_dead_letter``): changes that were not confirmed did not happen.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Literal

from seriatim.core.deadlines import Deadlines, LeaseDeadlines
from seriatim.core.lanes.lane import TABLE, Lane, LaneEvent, LaneState, LooseLane
from seriatim.core.lanes.offset_queue import OffsetQueue
from seriatim.core.lanes.types import (
    Counts,
    DeadLettered,
    Delivery,
    Expired,
    Fenced,
    Holder,
    Keep,
    KeyPaused,
    LaneEffect,
    LaneView,
    Lease,
    OnExhausted,
    Redriven,
    ReleaseAfter,
    Removed,
    RetryPolicy,
    Returned,
    Settled,
    Superseded,
)
from seriatim.core.validation import require_finite
from seriatim.errors import (
    FailedPrecondition,
    IllegalTransition,
    NotFound,
    RedriveRefused,
    StaleLease,
)


class _Change(StrEnum):
    """A change that is not durable yet."""

    SETTLED = "settled"
    DEAD_LETTERED = "dead-lettered"
    REMOVED = "removed"
    REDRIVEN = "redriven"


EXPIRED = "lease expired"

# Used for every message: a module's name is several times faster to look up than a member of an enum.
_EMPTY, _READY, _LEASED = LaneState.EMPTY, LaneState.READY, LaneState.LEASED
_SETTLING, _DELAYED, _PAUSED = LaneState.SETTLING, LaneState.DELAYED, LaneState.PAUSED
_PUSH, _TAKE, _SETTLE, _CONFIRM = LaneEvent.PUSH, LaneEvent.TAKE, LaneEvent.SETTLE, LaneEvent.CONFIRM
_LEGAL = frozenset(TABLE)
_SETTLED, _REDRIVEN = _Change.SETTLED, _Change.REDRIVEN
_make = tuple.__new__  # creates named tuples in C: twice as fast as calling their class


@dataclass(slots=True)
class _Trouble:
    """Data of a message that has failed or is delayed: failed deliveries, a delay, the last error."""

    lane: Lane
    failures: int = 0
    not_before: float = -inf
    error: str | None = None
    steps_aside: bool = False
    spent: bool = False  # its attempts were used up before a restart
    since: float = -inf  # when it returned to its lane, if it did since the start


class Lanes:
    """Many strict ordered queues behind one ``take``. See the module's rules."""

    _is_plain = True  # one ring of lanes: see ``tenants.py`` for others

    def __init__(self, delivery: Delivery | None = None, first_token: int = 1) -> None:
        self._delivery = delivery or Delivery()
        self._waits_for_commit = self._delivery.release is ReleaseAfter.DURABLE
        self._keeps_latest = self._delivery.keep is Keep.LATEST
        self._now = -inf
        self._next_token = first_token
        self._lanes: dict[str | None, Lane] = {}
        self._ring: deque[Lane] = deque()
        self._held: dict[Holder, OrderedDict[Lane, None]] = {}  # ready lanes with leases out, by holder
        self._turns = 0  # counts how often a lane became ready, or had its turn and stayed so
        self._leased: dict[int, Lease] = {}  # the live leases
        self._expiry = LeaseDeadlines(self._leased)
        self._given: dict[int, float] = {}  # delivery times for lanes with several leases, by token
        self._delays: Deadlines[int] = Deadlines()
        self._troubles: dict[int, _Trouble] = {}
        self._unconfirmed: dict[int, tuple[Lane, _Change]] = {}
        self._dead: dict[str | None, list[int]] = {}  # redrivable dead letters, by key
        self.overtaken: list[int] = []  # those that were passed since; the caller stores and clears them
        self.superseded: list[Superseded] = []  # superseded since; the caller stores and clears them
        self._total = 0
        self._in_flight = 0
        self.ready_lanes = 0  # how many lanes can deliver a message now
        self._blocked: dict[Lane, None] = {}  # delayed or paused lanes, longest first
        self._ghosts = 0

    # -- messages in, messages out --------------------------------------------------------------------------------------

    def push(self, key: str | None, offset: int, now: float, delay: float = 0) -> None:
        """Queue a message after the others of its key. ``delay`` blocks only its own key, until it has passed."""
        if delay <= 0:
            self.push_all(((key, offset),))
            return
        require_finite("delay", delay)
        lane = self._lanes.get(key) or self._new_lane(key)
        trouble = _Trouble(lane, not_before=max(now, self._now) + delay, steps_aside=key is None)
        if key is None:
            self._queue_again(offset, trouble)
        else:
            lane.waiting.push(offset)
            self._troubles[offset] = trouble
            if self._keeps_latest:  # its time matters wherever it is
                self._delays.set(offset, trouble.not_before)
        self._total += 1
        if lane.state is not _READY:
            self._refresh(lane, _PUSH, now)

    def push_all(self, messages: Iterable[tuple[str | None, int]]) -> None:
        """Queue messages, keys and offsets, that are not delayed."""
        lanes, keeps_latest = self._lanes, self._keeps_latest
        for key, offset in messages:
            lane = lanes.get(key) or self._new_lane(key)
            lane.waiting.push(offset)
            self._total += 1
            if keeps_latest:
                self._supersede(lane, offset)
            # Behind others, a message does not affect the head: the state stays the same.
            if lane.state is _EMPTY and not self._troubles:
                self._make_ready(lane)
            elif lane.state is not _READY and lane.in_flight + lane.pending < lane.window:
                self._refresh(lane, _PUSH, -inf)

    def _make_ready(self, lane: Lane) -> None:
        """The lane can only be ready now."""
        lane.state = _READY
        self.ready_lanes += 1
        if not lane.in_ring:
            self._queue_up(lane)

    def take(
        self, now: float, lease_time: float, limit: int = 1, consumer: Holder = None, batch: int = 1
    ) -> list[Lease]:
        """Lease up to ``limit`` messages to a consumer, up to ``batch`` at a time from each ready lane in turn."""
        if not -inf < lease_time < inf:
            require_finite("lease_time", lease_time)
        deadline, first, token, room = max(now, self._now) + lease_time, self._next_token, self._next_token, limit
        leases: list[Lease] = []
        leased, troubles, ring = self._leased, self._troubles, self._ring
        in_turn = self._is_plain and self._delivery.window == 1
        behind: tuple[int, ...] = ()
        while room > 0:
            if not in_turn:
                lane = self._next_lane(consumer, now)
                if lane is None:
                    break
            elif ring:
                lane = ring.popleft()
                lane.in_ring = False
                if lane.state is not _READY:
                    continue
            else:
                break
            offset = lane.waiting.pop()
            trouble = troubles.get(offset) if troubles else None
            if batch > 1:
                behind = self._take_behind(lane, offset, min(batch, room))
            lease = _make(Lease, (token, lane.key, offset, trouble.failures + 1 if trouble else 1, deadline, behind))
            leased[token] = lease
            leases.append(lease)
            room -= 1 + len(behind)
            if lane.window == 1:
                # It was ready, so nothing else was in flight or pending: no other state is possible.
                lane.flight = (token,)
                lane.in_flight = 1 + len(behind)
                lane.holder = consumer
                lane.since = now
                lane.state = _LEASED
                self.ready_lanes -= 1
            else:
                lane.since = self._given[token] = now
                lane.give_out(token, consumer)
                self._refresh(lane, _TAKE, now)
            token += 1
        if leases:
            self._next_token = token
            self._in_flight += limit - room
            self._expiry.add(range(first, self._next_token), deadline)
        return leases

    def _take_behind(self, lane: Lane, offset: int, limit: int) -> tuple[int, ...]:
        """Take the messages that can be in one batch with this one: its successors, unless it must be alone."""
        behind: list[int] = []
        if lane.window == 1 and self._is_plain and offset > lane.alone_until and not self.failures(offset)[0]:
            while (
                len(behind) + 1 < limit
                and (next_ := lane.waiting.front) is not None
                and self._is_due(next_)
                and not self.failures(next_)[0]
            ):
                behind.append(lane.waiting.pop())
        return tuple(behind)

    def _next_lane(self, consumer: Holder, now: float) -> Lane | None:  # noqa: ARG002 - see ``tenants.py``
        """Remove the ready lane that is next for a consumer from its queue, and return it."""
        ring = self._ring
        while ring and ring[0].state is not _READY:
            ring.popleft().in_ring = False
        held = self._held.get(consumer) if self._held else None
        if held and not (ring and ring[0].turn < next(iter(held)).turn):
            lane = next(iter(held))
            self._unhold(lane)
            return lane
        if not ring:
            return None
        lane = ring.popleft()
        lane.in_ring = False
        return lane

    def settle(self, token: int, through: int | None = None, now: float | None = None) -> list[Settled]:
        """Apply an ack. Returns what it settles, in order: nothing while an earlier message of the key is in flight."""
        lease, settled = self.lease(token), list[int]()
        self.settle_into(settled, token, through, now)
        return [Settled(lease.key, offset) for offset in settled] if lease else []

    def settle_into(
        self, settled: list[int], token: int, through: int | None = None, now: float | None = None
    ) -> Holder:
        """Apply an ack, and append the offsets that it settles to a list, in order. Returns the consumer of the lease.
        Of a batch, all messages are settled, or those up to and including ``through``."""
        lease = self._leased.get(token)
        if lease is None or lease.behind or (through is not None and through != lease.offset):
            return self._settle_batch(settled, self._covering(token, through), through, now)
        del self._leased[token]
        lane = self._lanes[lease.key]
        if lane.window == 1 and lane.state is _LEASED and self._waits_for_commit and self._is_plain:
            # Nearly every message: leased, alone in its lane, and settling until this is durable.
            offset, holder = lease.offset, lane.holder
            settled.append(offset)
            lane.flight = ()
            lane.in_flight = 0
            lane.pending += 1
            if self._dead:
                self._overtake(lane, offset)
            if offset > lane.last_settled:  # noqa: PLR1730 - a call of max would be felt here
                lane.last_settled = offset
            lane.state = _SETTLING
            lane.since = now
            lane.holder = None
            self._unconfirmed[offset] = (lane, _SETTLED)
            self._in_flight -= 1
            self._total -= 1
            return holder
        holder = lane.holder_of(token)
        self._given.pop(token, None)
        done = lane.ack(lease)
        self._leave_settled(lane, done)
        settled += done
        # A ready lane stays ready, because its window has only got more room; but other consumers may now take it.
        if lane.state is not _READY or not lane.in_flight:
            self._refresh(lane, _SETTLE, now)
        return holder

    def _settle_batch(self, settled: list[int], lease: Lease, through: int | None, now: float | None) -> Holder:
        lane, offsets = self._lanes[lease.key], lease.offsets
        holder, count = lane.holder, len(offsets) if through is None else offsets.index(through) + 1
        if left := offsets[count:]:
            self._leased[lease.token] = lease._replace(offset=left[0], behind=left[1:])
        else:
            del self._leased[lease.token]
            lane.flight = ()
        lane.in_flight -= count
        self._leave_settled(lane, offsets[:count])
        settled += offsets[:count]
        self._refresh(lane, _SETTLE, now)
        return holder

    def give_back(
        self,
        token: int,
        now: float,
        delay: float | None = None,
        error: str | None = None,
        count: bool = True,
        at: int | None = None,
    ) -> list[LaneEffect]:
        """Return a message to its place (nack).

        ``delay`` overrides the retry policy's backoff. ``count=False`` is for an unprocessed delivery: its consumer was
        detached, or the process is shutting down. ``at`` is the message of a batch that failed, if known.
        """
        if delay is not None:
            require_finite("delay", delay)
        return self._fail(token, max(now, self._now), delay, error, count, at=at)

    def give_up(
        self, token: int, now: float, error: str | None = None, rest: bool = False, at: int | None = None
    ) -> list[LaneEffect]:
        """Dead-letter a message in flight, alone or with all later ones of its key. In a batch: the first, or
        ``at``."""
        policy = OnExhausted.DEAD_LETTER_REST if rest else OnExhausted.DEAD_LETTER
        at = self._covering(token, at).offset if at is None else at
        return self._fail(token, max(now, self._now), None, error, True, policy, at)

    def extend(self, token: int, now: float, lease_time: float) -> float:
        """Move a lease's deadline to ``lease_time`` from now, and return it."""
        if token not in self._leased:
            raise self.stale(token)
        require_finite("lease_time", lease_time)
        deadline = max(now, self._now) + lease_time
        self._expiry.move(token, deadline)
        return deadline

    def advance(self, now: float) -> list[LaneEffect]:
        """Let time pass: leases expire, delayed messages fall due."""
        self._now = now = max(now, self._now)
        effects: list[LaneEffect] = []
        for token in self._expiry.pop_due(now):
            # A lease due at the same time may have been fenced by this one's failure.
            if (lease := self._leased.get(token)) is not None:
                effects.append(Expired(lease, self._lanes[lease.key].holder_of(token)))
                effects += self._fail(token, now, None, EXPIRED, count=True)
        for offset in self._delays.pop_due(now):
            effects += self._fall_due(offset)
        return effects

    def set_retry(self, retry: RetryPolicy) -> None:
        """Use another policy for failures from now on. Its ``mode`` can't be changed this way."""
        if retry.mode is not self._delivery.retry.mode:
            raise IllegalTransition("lanes are made for one retry mode: load them anew")
        self._delivery = replace(self._delivery, retry=retry)

    def next_deadline(self) -> float | None:
        """When ``advance`` has something to do; None: never."""
        expiry = self._expiry.next() if self._leased else None
        delay = self._delays.next() if self._troubles else None
        if expiry is None or delay is None:
            return delay if expiry is None else expiry
        return min(expiry, delay)

    def confirm(self, offset: int, now: float | None = None) -> None:
        """A change (Settled, DeadLettered, Removed, Redriven) is durable."""
        self.confirm_all((offset,), now)

    def confirm_all(self, offsets: Iterable[int], now: float | None = None) -> None:
        """Changes are durable."""
        unconfirmed = self._unconfirmed
        for offset in offsets:
            pending = unconfirmed.pop(offset, None)
            if pending is None:
                raise IllegalTransition(f"nothing about offset {offset} waits to be confirmed")
            lane, change = pending
            lane.pending -= 1
            if change is not _SETTLED or self._troubles or self._dead:
                self._finish(lane, offset, change, now)
                if lane.state is not _READY:
                    self._refresh(lane, _CONFIRM, now)
            elif lane.state is _SETTLING and not lane.pending:
                # Nearly every message: nothing is in flight, delayed or set aside, so its lane is ready or empty now.
                if lane.waiting.front is not None:
                    lane.since = now
                    self._make_ready(lane)
                else:
                    lane.state = _EMPTY
                    self._drop(lane)
            elif lane.state is not _READY:  # a ready one stays ready: its window has only got more room
                self._refresh(lane, _CONFIRM, now)

    # -- operators ------------------------------------------------------------------------------------------------------

    def pause(self, key: str | None, now: float | None = None) -> None:
        """Stop delivering ``key`` until it is resumed. Live leases continue."""
        lane = self._lanes.get(key)
        TABLE.targets(lane.state if lane else _EMPTY, LaneEvent.PAUSE)
        lane = lane or self._new_lane(key)
        lane.paused = True
        self._refresh(lane, LaneEvent.PAUSE, now)

    def resume(self, key: str | None, now: float | None = None) -> list[Returned]:
        """Deliver ``key`` again. Each message that had used up its attempts gets one more; returns those messages."""
        lane = self._lanes.get(key)
        TABLE.targets(lane.state if lane else _EMPTY, LaneEvent.RESUME)
        assert lane is not None
        lane.paused = False
        granted = self._grant_attempts(lane)
        self._refresh(lane, LaneEvent.RESUME, now)
        return granted

    def _grant_attempts(self, lane: Lane) -> list[Returned]:
        """Give each message without attempts one more: also after a restart, it is to be delivered."""
        retry, granted = self._delivery.retry, list[Returned]()
        for offset, trouble in sorted(self._troubles.items(), key=itemgetter(0)):
            is_here = trouble.lane is lane and offset not in self._unconfirmed
            if is_here and not trouble.spent and retry.is_exhausted(trouble.failures):
                assert retry.max_attempts is not None
                trouble.failures = retry.max_attempts - 1
                granted.append(Returned(lane.key, offset, trouble.failures, 0.0, trouble.error))
        return granted

    def dead_letter(
        self, key: str | None, error: str | None = None, rest: bool = False, now: float | None = None
    ) -> list[LaneEffect]:
        """Dead-letter the head of a key, or all of it. Leases of the key are fenced: operators take precedence."""
        lane, head = self._standing_at(key, "dead-letter")
        if not rest:
            self._check_confirmed(head)
        leases = [lease for token in lane.flight if (lease := self._leased.get(token)) is not None]
        tried = {offset for lease in leases for offset in lease.offsets}
        effects: list[LaneEffect] = [*self._fence(lane, lane.take_back_all())]
        if not rest:
            self._take_out(lane, head)
        offsets = self._take_out_all(lane) if rest else [head]
        effects += [self._dead_letter_one(lane, offset, error, offset in tried) for offset in offsets]
        self._leave_latest(lane)
        self._refresh(lane, LaneEvent.DEAD_LETTER, now)
        return effects

    def skip(self, key: str | None, now: float | None = None) -> list[LaneEffect]:
        """Settle the head of a key without delivery. Leases of the key are fenced: operators take precedence."""
        lane, head = self._standing_at(key, "skip")
        self._check_confirmed(head)
        effects: list[LaneEffect] = [*self._fence(lane, lane.take_back_all())]
        self._take_out(lane, head)
        self._await_confirmation(lane, head, _Change.REMOVED)
        self._leave_latest(lane)
        self._refresh(lane, LaneEvent.SKIP, now)
        return [*effects, Removed(key, head)]

    def retry(self, key: str | None, now: float) -> list[Returned]:
        """Make delayed messages due now: the head of a key, and all that were overtaken."""
        lane = self._lanes.get(key)
        waiting = self._waiting_for_time(lane) if lane else []
        if lane is None or not waiting:
            raise FailedPrecondition(f"key {key!r} has no message that waits for a retry or a delay")
        now = max(now, self._now)
        for offset, trouble in waiting:
            trouble.since, trouble.not_before = now, -inf
            self._delays.discard(offset)
            lane.rejoin(offset)
        self._leave_latest(lane)
        self._refresh(lane, LaneEvent.RETRY, now)
        return [Returned(key, offset, trouble.failures, now, trouble.error) for offset, trouble in waiting]

    def _waiting_for_time(self, lane: Lane) -> list[tuple[int, _Trouble]]:
        head = lane.waiting.front
        offsets = [*([] if head is None else [head]), *(lane.aside or ())]
        troubles = [(offset, self._troubles.get(offset)) for offset in sorted(offsets)]
        return [
            (offset, trouble)
            for offset, trouble in troubles
            if trouble is not None and trouble.not_before > self._now and not trouble.spent
        ]

    def _standing_at(self, key: str | None, purpose: str) -> tuple[Lane, int]:
        """A lane and its head."""
        lane = self._lanes.get(key)
        head = self._head(lane) if lane else None
        if lane is None or head is None:
            lane_name = "the lane without a key" if key is None else f"key {key!r}"
            raise NotFound(f"{lane_name} has no message to {purpose}")
        return lane, head

    def remove(self, key: str | None, offset: int, now: float | None = None) -> Removed:
        """Remove a message from its lane, wherever it is. One in flight can't be removed."""
        self._check_confirmed(offset)
        lane = self._lanes.get(key)
        if lane is None or not self._take_out(lane, offset):
            if any(lease.key == key and offset in lease.offsets for lease in self._leased.values()):
                raise FailedPrecondition(f"message {offset} is in flight: ack it, or return it first")
            raise NotFound(f"key {key!r} has no message {offset} waiting")
        self._await_confirmation(lane, offset, _Change.REMOVED)
        self._refresh(lane, LaneEvent.REMOVE, now)
        return Removed(key, offset)

    def _check_confirmed(self, offset: int) -> None:
        if offset in self._unconfirmed:
            raise FailedPrecondition(f"message {offset} is just being {self._unconfirmed[offset][1]}: try again")

    def redrive(self, key: str | None, offset: int, now: float | None = None) -> Redriven:
        """Put a dead letter back in its original place, or refuse with the reason."""
        lane = self._lanes.get(key)
        self._check_redrive(key, lane, offset)
        self.forget_dead_letter(key, offset)
        lane = lane or self._new_lane(key)
        lane.hold(offset)
        self._total += 1
        self._await_confirmation(lane, offset, _REDRIVEN, now)
        self._refresh(lane, LaneEvent.REDRIVE, now)
        return Redriven(key, offset)

    def _check_redrive(self, key: str | None, lane: Lane | None, offset: int) -> None:
        if offset in self._unconfirmed:
            raise RedriveRefused(f"message {offset} is just being {self._unconfirmed[offset][1]}: try again")
        if not self._is_dead(key, offset) or (lane and lane.last_settled > offset):
            raise RedriveRefused(
                f"message {offset} can't go back to its place in key {key!r}, because a later message of the key was settled "
                "since: append it at the end instead"
            )
        if lane and self._is_behind(lane, offset):
            raise RedriveRefused(
                f"message {offset} can't go back to its place in key {key!r}: there is a newer one, and the subscription keeps "
                "the latest only; append it at the end instead"
            )
        later = [out for out in self._out(lane) if out > offset] if lane and key is not None else []
        if later:
            raise RedriveRefused(
                f"message {offset} can't go back to its place in key {key!r} while the later message {later[0]} is in flight; "
                "pause the key and try again, or append it at the end"
            )

    def remember_dead_letter(self, key: str | None, offset: int) -> None:
        """A message was dead-lettered before a restart, and may still be redriven."""
        insort(self._dead.setdefault(key, []), offset)

    def forget_dead_letter(self, key: str | None, offset: int) -> None:
        """A dead letter was purged or moved: it can't be redriven any more."""
        if self._is_dead(key, offset):
            dead = self._dead[key]
            del dead[bisect_left(dead, offset)]
            if not dead:
                del self._dead[key]

    # -- inspection -----------------------------------------------------------------------------------------------------

    def redrive_problem(self, key: str | None, offset: int) -> str | None:
        """Why a dead letter could not be redriven now; None if it could."""
        try:
            self._check_redrive(key, self._lanes.get(key), offset)
        except RedriveRefused as error:
            return str(error)
        return None

    def is_returnable(self, key: str | None, offset: int) -> bool:
        """Whether a dead letter could return to its place if nothing later of its key were in flight."""
        lane = self._lanes.get(key)
        return self._is_dead(key, offset) and not (lane and lane.last_settled > offset)

    @property
    def key_count(self) -> int:
        """The number of keys that have messages or are paused."""
        return len(self._lanes)

    @property
    def blocked_key_count(self) -> int:
        """The number of keys that are delayed or paused."""
        return len(self._blocked)

    def keys(self, limit: int | None = None) -> list[str | None]:
        """The keys that have messages or are paused, ordered by how long they have not been empty, longest first."""
        return list(islice(self._lanes, limit))

    def blocked_keys(self, limit: int | None = None) -> list[str | None]:
        """The keys that are delayed or paused, longest first."""
        return [lane.key for lane in islice(self._blocked, limit)]

    def oldest(self, keys: Iterable[str | None]) -> int | None:
        """The oldest message of some keys."""
        lanes = [lane for key in keys if (lane := self._lanes.get(key)) is not None]
        return min((offset for lane in lanes if (offset := self._oldest(lane)) is not None), default=None)

    def _oldest(self, lane: Lane) -> int | None:
        first = lane.waiting.front
        if not lane.in_flight and not lane.aside:
            return first
        waiting = () if first is None else (first,)
        return min([*waiting, *(lane.aside or ()), *self._out(lane)], default=None)

    def offsets(self, key: str | None, limit: int) -> list[int]:
        """The first unsettled messages of a key, including those in flight."""
        lane = self._lanes.get(key)
        if lane is None:
            return []
        return sorted([*islice(lane.waiting, limit), *(lane.aside or ()), *self._out(lane)])[:limit]

    def standing_of(self, key: str | None, offset: int) -> Literal["settled", "leased", "delayed", "waiting"]:
        """The state of a message that is not a dead letter."""
        lane = self._lanes.get(key)
        if lane is None or not (offset in lane.waiting or offset in (lane.aside or ()) or offset in self._out(lane)):
            return "settled"
        if offset in self._out(lane):
            return "leased"
        return "waiting" if self._is_due(offset) else "delayed"

    def _out(self, lane: Lane) -> list[int]:
        """The offsets in flight, in the order of delivery; loose ones in any order."""
        tokens = lane.holders if isinstance(lane, LooseLane) else lane.flight
        return [offset for token in tokens for offset in self._lease_in(lane, token).offsets]

    def _lease_in(self, lane: Lane, token: int) -> Lease:
        """A lease of a lane, live or acked provisionally."""
        return lane.acked[token] if lane.acked and token in lane.acked else self._leased[token]

    def lease(self, token: int) -> Lease | None:
        """A live lease."""
        return self._leased.get(token)

    def covered(self, token: int) -> int:
        """The number of messages that a lease covers; 0 if it is not live."""
        lease = self._leased.get(token)
        return 0 if lease is None else 1 + len(lease.behind)

    def holder(self, token: int) -> Holder:
        """The consumer of a live lease."""
        if (lease := self._leased.get(token)) is None:
            raise self.stale(token)
        return self._lanes[lease.key].holder_of(token)

    def leases(self) -> list[Lease]:
        """All live leases, oldest first."""
        return list(self._leased.values())

    def counts(self) -> Counts:
        loose = self._lanes.get(None)
        # The loose lane counts as one ready lane, but all of its waiting messages can be taken.
        more = len(loose.waiting) - 1 if loose and loose.state is _READY else 0
        ready, delayed = self.ready_lanes + more, len(self._delays)
        blocked = self._total - ready - delayed - self._in_flight
        return Counts(self._total, ready, self._in_flight, delayed, blocked)

    def is_quiet(self) -> bool:
        """Whether nothing is in flight and nothing is unconfirmed."""
        return not self._in_flight and not self._unconfirmed

    def full_tenant(self, key: str | None) -> str | None:  # noqa: ARG002 - see ``tenants.py``
        """The tenant of a key, if it has its maximum number of messages in flight."""
        return None

    def room_changed(self, key: str | None) -> float | None:  # noqa: ARG002 - see ``tenants.py``
        """When the tenant of a key last reached its limit, or got room again: -inf if never, None if unknown."""
        return -inf

    @property
    def has_troubles(self) -> bool:
        """Whether any message has failed before, or is delayed."""
        return bool(self._troubles)

    @property
    def now(self) -> float:
        """The latest time that passed."""
        return self._now

    @property
    def next_token(self) -> int:
        """The token of the next lease."""
        return self._next_token

    def failures(self, offset: int) -> tuple[int, str | None]:
        """The number of failed deliveries of a message, and the last error."""
        trouble = self._troubles.get(offset)
        return (trouble.failures, trouble.error) if trouble else (0, None)

    def view(self, key: str | None) -> LaneView | None:
        """The state of a key; None if it has no messages and is not paused."""
        lane = self._lanes.get(key)
        return self._view(lane) if lane else None

    def sort_values(self, key: str | None) -> tuple[LaneState, int, int, int | None] | None:
        """What keys are sorted by: the state, attempts, depth and head of a key. Several times cheaper than a view."""
        lane = self._lanes.get(key)
        if lane is None:
            return None
        head = self._head(lane)
        trouble = self._troubles.get(head) if self._troubles and head is not None else None
        return lane.state, (trouble.failures if trouble else 0) + bool(lane.flight), lane.depth, head

    def views(self) -> Iterator[LaneView]:
        """Every key that has messages or is paused."""
        return (self._view(lane) for lane in self._lanes.values())

    def _view(self, lane: Lane) -> LaneView:
        head, token = self._head(lane), next(iter(lane.holders if isinstance(lane, LooseLane) else lane.flight), None)
        first = None if token is None else self._leased.get(token)
        trouble = self._troubles.get(head) if head is not None else None
        return LaneView(
            key=lane.key,
            state=lane.state,
            depth=lane.depth,
            in_flight=lane.in_flight,
            head=head,
            attempts=(trouble.failures if trouble else 0) + bool(lane.flight),
            not_before=trouble.not_before if trouble and trouble.not_before > self._now else None,
            error=trouble.error if trouble else None,
            since=self._since(lane, first),
            deadline=self._expiry.of(first.token, first.deadline) if first else None,
            next=lane.waiting.front,
        )

    def _since(self, lane: Lane, first: Lease | None) -> float | None:
        if lane.state is _LEASED and first is not None:
            return self._given.get(first.token, lane.since)
        trouble = self._troubles.get(-1 if lane.waiting.front is None else lane.waiting.front)
        if lane.state is not _READY or lane.since is None or trouble is None:
            return lane.since
        return max(lane.since, trouble.since, trouble.not_before)

    def __len__(self) -> int:
        return self._total

    # -- leaving flight -------------------------------------------------------------------------------------------------

    def _covering(self, token: int, offset: int | None) -> Lease:
        """A live lease which, if an offset is given, covers that message."""
        lease = self._leased.get(token)
        if lease is None or (offset is not None and offset not in lease.offsets):
            raise self.stale(token)
        return lease

    def _end_lease(self, token: int, offset: int | None = None) -> Lease:
        lease = self._covering(token, offset)
        del self._leased[token]
        self._given.pop(token, None)
        return lease

    @staticmethod
    def stale(token: int) -> StaleLease:
        """The error of an unknown token."""
        return StaleLease(
            f"lease {token} is not held any more: it was settled or returned, it expired, or it was fenced; "
            "the message is delivered again if it is not settled"
        )

    def _leave_settled(self, lane: Lane, offsets: Sequence[int]) -> None:
        self._in_flight -= len(offsets)
        self._total -= len(offsets)
        for offset in offsets:
            if self._dead:
                self._overtake(lane, offset)
            if offset > lane.last_settled and lane.key is not None:
                lane.last_settled = offset
            self._await_confirmation(lane, offset, _SETTLED)

    def _fail(
        self,
        token: int,
        now: float,
        delay: float | None,
        error: str | None,
        count: bool,
        give_up: OnExhausted | None = None,
        at: int | None = None,
    ) -> list[LaneEffect]:
        """A delivery ended without an ack. ``give_up``: how the message leaves if it must not be retried."""
        lease, retry = self._end_lease(token, at), self._delivery.retry
        lane, offset, passes = self._lanes[lease.key], lease.offset, retry.lets_pass(lease.key)
        effects: list[LaneEffect] = []
        earlier: tuple[int, ...] = ()
        if not lease.behind:
            effects += self._fence(lane, lane.take_back(token, alone=passes))
            self._in_flight -= 1
            if effects:
                lane.since = now  # the next message, whichever it is, has returned
        elif at is None or not count:
            return self._return_batch(lane, lease, now, delay or 0, error, suspect=count)
        else:
            offset, place = at, lease.offsets.index(at)
            earlier, later = lease.offsets[:place], lease.offsets[place + 1 :]
            self._end_batch(lane, lease)
            effects += [self._put_back(lane, each, now) for each in later]
        trouble = self._troubles.get(offset) or _Trouble(lane)
        trouble.failures += count
        trouble.since = now
        if count:
            lane.alone_until = -1  # if there was a failure to be found, this is it
        if count or error is not None:
            trouble.error = error
        if give_up or (count and retry.is_exhausted(trouble.failures) and not self._is_behind(lane, offset)):
            self._troubles[offset] = trouble
            effects += self._exhaust(lane, offset, trouble, give_up or retry.on_exhausted)
        elif self._is_behind(lane, offset):
            self._leave_superseded(lane, offset, self._newest(lane))
        else:
            if delay is None:
                delay = retry.backoff(trouble.failures) if count else 0
            trouble.not_before = now + delay if delay > 0 else -inf
            trouble.steps_aside = passes
            self._queue_again(offset, trouble)
            effects.append(Returned(lane.key, offset, trouble.failures, now + max(delay, 0), trouble.error))
        effects += [self._put_back(lane, each, now) for each in earlier]
        settled = lane.settle_acked_front()
        self._leave_settled(lane, settled)
        effects += [Settled(lane.key, later) for later in settled]
        self._leave_latest(lane)
        self._refresh(lane, LaneEvent.RETURN, now)
        return effects

    def _return_batch(
        self, lane: Lane, lease: Lease, now: float, delay: float, error: str | None, suspect: bool
    ) -> list[LaneEffect]:
        """A batch returns, and no attempt counts. If it failed, one is ``suspect``: deliver them one at a time."""
        self._end_batch(lane, lease)
        if suspect:
            lane.alone_until = lease.behind[-1]
        effects: list[LaneEffect] = [self._put_back(lane, lease.offset, now, delay, error)]
        effects += [self._put_back(lane, each, now, error=error) for each in lease.behind]
        self._refresh(lane, LaneEvent.RETURN, now)
        return effects

    def _end_batch(self, lane: Lane, lease: Lease) -> None:
        lane.flight, lane.in_flight = (), 0
        self._in_flight -= len(lease.offsets)

    def _put_back(self, lane: Lane, offset: int, now: float, delay: float = 0, error: str | None = None) -> Returned:
        """A message of a batch returns to its place, without counting the attempt."""
        trouble = self._troubles.get(offset) or _Trouble(lane)
        trouble.since, trouble.not_before = now, now + delay if delay > 0 else -inf
        trouble.error = trouble.error if error is None else error
        self._queue_again(offset, trouble)
        return Returned(lane.key, offset, trouble.failures, now + max(delay, 0), trouble.error)

    def _fence(self, lane: Lane, tokens: Sequence[int]) -> list[Fenced]:
        """Take leases back, and return their messages to their places, last one first: each goes to the front."""
        fenced: list[Fenced] = []
        for token in reversed(tokens):
            if lane.acked and token in lane.acked:
                fenced.append(Fenced(lane.acked.pop(token)))
            else:
                fenced.append(Fenced(self._end_lease(token), lane.holder))
            for offset in reversed(fenced[-1].lease.offsets):
                lane.waiting.insert(offset)
                self._in_flight -= 1
        return fenced[::-1]

    def _queue_again(self, offset: int, trouble: _Trouble) -> None:
        self._troubles[offset] = trouble
        waits = trouble.not_before > self._now
        if waits and trouble.steps_aside:
            trouble.lane.set_aside(offset)
        else:
            trouble.lane.waiting.insert(offset)
        if waits and (trouble.steps_aside or self._keeps_latest):
            self._delays.set(offset, trouble.not_before)

    def _exhaust(self, lane: Lane, offset: int, trouble: _Trouble, policy: OnExhausted) -> list[LaneEffect]:
        if lane.key is not None and policy is OnExhausted.PAUSE:
            lane.waiting.insert(offset)
            lane.paused = True
            return [KeyPaused(lane.key, offset, trouble.failures, trouble.error)]
        self._total -= 1
        effects: list[LaneEffect] = [self._dead_letter_one(lane, offset, None, tried=False)]
        if lane.key is not None and policy is OnExhausted.DEAD_LETTER_REST:
            error = f"behind message {offset} of its key, which was dead-lettered"
            effects += [self._dead_letter_one(lane, later, error, tried=False) for later in self._take_out_all(lane)]
        return effects

    def _dead_letter_one(self, lane: Lane, offset: int, error: str | None, tried: bool) -> DeadLettered:
        trouble = self._troubles.get(offset)
        attempts = (trouble.failures if trouble else 0) + tried
        if error is None and trouble is not None:
            error = trouble.error
        if lane.key is None or offset > lane.last_settled:
            self.remember_dead_letter(lane.key, offset)
        self._await_confirmation(lane, offset, _Change.DEAD_LETTERED)
        return DeadLettered(lane.key, offset, attempts, error)

    # -- removal --------------------------------------------------------------------------------------------------------

    def _take_out(self, lane: Lane, offset: int) -> bool:
        """Remove a waiting message from its lane; False if it is not waiting there."""
        if not lane.unqueue(offset):
            return False
        self._delays.discard(offset)
        self._total -= 1
        return True

    def _take_out_all(self, lane: Lane) -> list[int]:
        """Remove all waiting messages, except those that are being redriven."""
        waiting = sorted([*lane.waiting, *(lane.aside or ())])
        leaving = [offset for offset in waiting if offset not in self._unconfirmed]
        lane.waiting = OffsetQueue(offset for offset in lane.waiting if offset in self._unconfirmed)
        lane.aside = {offset for offset in lane.aside or () if offset in self._unconfirmed}
        for offset in leaving:
            self._delays.discard(offset)
        self._total -= len(leaving)
        return leaving

    def _newest(self, lane: Lane) -> int:
        """The newest message of a key that is due or in flight; -1 if there is none, or for the keyless lane."""
        if lane.key is None:
            return -1
        due = [offset for offset in (*lane.waiting, *(lane.aside or ())) if self._is_due(offset)]
        return max([*due, *self._out(lane)], default=-1)

    def _is_behind(self, lane: Lane, offset: int) -> bool:
        """Whether a newer message of the key supersedes this one."""
        return self._keeps_latest and self._newest(lane) > offset

    def _leave_latest(self, lane: Lane) -> None:
        """Messages returned or became due: if only the latest is kept, the newest supersedes the others."""
        if self._keeps_latest:
            self._supersede(lane, self._newest(lane))

    def _supersede(self, lane: Lane, newest: int) -> None:
        """A message is due or in flight: remove those that wait before it, except those that are being redriven."""
        if lane.key is None:
            return
        before = [offset for offset in lane.aside or () if offset < newest]
        while (front := lane.waiting.front) is not None and front < newest:
            before.append(lane.waiting.pop())
        for offset in sorted(before):
            if offset in self._unconfirmed:
                lane.waiting.insert(offset)
                continue
            if lane.aside:
                lane.aside.discard(offset)
            self._delays.discard(offset)
            self._leave_superseded(lane, offset, newest)

    def _leave_superseded(self, lane: Lane, offset: int, newest: int) -> None:
        assert lane.key is not None
        self._total -= 1
        self._troubles.pop(offset, None)
        self.superseded.append(Superseded(lane.key, offset, newest))

    def _head(self, lane: Lane) -> int | None:
        """The head of the lane: in flight, or next; an overtaken message only if nothing else is left."""
        if lane.flight:
            return self._lease_in(lane, lane.flight[0]).offset
        head = lane.waiting.front
        return min(lane.aside) if head is None and lane.aside else head

    # -- durability -----------------------------------------------------------------------------------------------------

    def _await_confirmation(self, lane: Lane, offset: int, change: _Change, now: float | None = None) -> None:
        if self._waits_for_commit:
            self._unconfirmed[offset] = (lane, change)
            lane.pending += 1
        else:
            self._finish(lane, offset, change, now)

    def _finish(self, lane: Lane, offset: int, change: _Change, now: float | None) -> None:
        if self._troubles and change is not _REDRIVEN:
            self._troubles.pop(offset, None)
        if change is _SETTLED:
            if self._dead and lane.key is not None:
                self._forget_dead_letters_before(lane.key, offset)
        elif change is _REDRIVEN:
            lane.rejoin(offset)
            self._leave_latest(lane)
            if lane.state is _READY and lane.waiting.front == offset:
                lane.since = now

    def _overtake(self, lane: Lane, offset: int) -> None:
        """A message is settled: record the dead letters of its key that it is the first to pass."""
        dead = self._dead.get(lane.key) if lane.key is not None else None
        if dead:
            self.overtaken += dead[bisect_left(dead, lane.last_settled) : bisect_left(dead, offset)]

    def _is_dead(self, key: str | None, offset: int) -> bool:
        dead = self._dead.get(key, [])
        index = bisect_left(dead, offset)
        return index < len(dead) and dead[index] == offset

    def _forget_dead_letters_before(self, key: str, offset: int) -> None:
        """A later message is settled: earlier dead letters can't return to their places any more."""
        dead = self._dead.get(key, [])
        del dead[: bisect_left(dead, offset)]
        if not dead:
            self._dead.pop(key, None)

    # -- turns ----------------------------------------------------------------------------------------------------------

    def _new_lane(self, key: str | None) -> Lane:
        lane = LooseLane() if key is None else Lane(key, self._delivery.window)
        self._lanes[key] = lane
        return lane

    def _fall_due(self, offset: int) -> list[LaneEffect]:
        trouble = self._troubles.get(offset)
        if trouble is None:  # it was removed with the rest of its key, just now
            return []
        if trouble.spent:
            return self._spend(trouble.lane, offset, trouble)
        lane = trouble.lane
        lane.rejoin(offset)
        if self._keeps_latest:
            self._supersede(lane, offset)
        # It may have become due while another message was in flight, and the lane waits only since then.
        self._refresh(lane, LaneEvent.DUE, max(lane.since or trouble.not_before, trouble.not_before))
        return []

    def _spend(self, lane: Lane, offset: int, trouble: _Trouble) -> list[LaneEffect]:
        """A message used up its attempts before a restart."""
        trouble.spent = False
        if not lane.unqueue(offset):  # it was removed with the rest of its key, just now
            return []
        self._delays.discard(offset)  # set again when the previous one left
        effects = self._exhaust(lane, offset, trouble, self._delivery.retry.on_exhausted)
        self._leave_latest(lane)
        self._refresh(lane, LaneEvent.RETURN, self._now)
        return effects

    def _refresh(self, lane: Lane, event: LaneEvent, now: float | None) -> None:
        """Update a lane's state after an event, and its place in the ring. For ``now`` see ``Lane.since``; -inf stands
        for the time at which its next message was published."""
        before, state = lane.state, self._state_of(lane)
        if (before, event, state) not in _LEGAL:
            TABLE.check(before, event, state)
        if state is not before:
            lane.state, lane.since = state, now
            if before is _READY:
                self.ready_lanes -= 1
            elif state is _READY:
                self.ready_lanes += 1
            self._note_blocked(lane)
            if state is _EMPTY:
                self._drop(lane)
        if lane.is_held and not (state is _READY and lane.in_flight):
            self._unhold(lane)
        if not lane.in_flight:
            lane.holder = None
        if state is _READY and not lane.in_ring and not lane.is_held:
            self._queue_up(lane)

    def _note_blocked(self, lane: Lane) -> None:
        if lane.state is _DELAYED or lane.state is _PAUSED:
            self._blocked[lane] = None
        elif self._blocked:
            self._blocked.pop(lane, None)

    def _queue_up(self, lane: Lane) -> None:
        """Queue a ready lane: with its holder, or in the ring."""
        if lane.window > 1:  # otherwise no lane has a holder, and the ring alone says whose turn it is
            self._turns += 1
            lane.turn = self._turns
        if lane.in_flight and lane.key is not None:
            lane.is_held = True
            self._held.setdefault(lane.holder, OrderedDict())[lane] = None
        else:
            lane.in_ring = True
            self._ring.append(lane)

    def _unhold(self, lane: Lane) -> None:
        held = self._held[lane.holder]
        del held[lane]
        lane.is_held = False
        if not held:
            del self._held[lane.holder]

    def _state_of(self, lane: Lane) -> LaneState:
        if lane.paused:
            return _PAUSED
        busy = lane.in_flight + lane.pending
        if busy < lane.window and (head := lane.waiting.front) is not None and self._may_go(head):
            return _READY
        if busy:
            return _LEASED if lane.in_flight else _SETTLING
        return _DELAYED if lane.depth else _EMPTY

    def _may_go(self, head: int) -> bool:
        """Whether the next message of a lane can be delivered now; if it is delayed, its time is scheduled."""
        if self._is_due(head):
            return True
        if head not in self._delays and head not in self._unconfirmed:
            self._delays.set(head, self._troubles[head].not_before)
        return False

    def _is_due(self, offset: int) -> bool:
        """Whether a message waits only for its turn."""
        if offset in self._unconfirmed:
            return False
        trouble = self._troubles.get(offset) if self._troubles else None
        return trouble is None or (trouble.not_before <= self._now and not trouble.spent)

    def _drop(self, lane: Lane) -> None:
        """Remove a drained lane. Its entry in the ring is skipped, and removed before such entries accumulate."""
        del self._lanes[lane.key]
        if lane.in_ring:
            self._ghosts += 1
            if self._ghosts * 2 > len(self._ring):
                self._ring = deque(known for known in self._ring if known.state is not _EMPTY)
                self._ghosts = 0

    # -- loading from the store -----------------------------------------------------------------------------------------

    def admit(
        self,
        key: str | None,
        offset: int,
        failures: int,
        not_before: float = -inf,
        error: str | None = None,
        *,
        steps_aside: bool = False,
    ) -> None:
        """Queue a message that failed before a restart. Messages of a key must be admitted in order."""
        lane = self._lanes.get(key) or self._new_lane(key)
        trouble, retry = _Trouble(lane, failures, not_before, error, steps_aside), self._delivery.retry
        is_known = lane.paused and lane.key is not None and retry.on_exhausted is OnExhausted.PAUSE
        if retry.is_exhausted(failures) and not is_known:
            trouble.spent = True  # it must not be delivered again; the next ``advance`` finds it
            self._troubles[offset] = trouble
            self._delays.set(offset, self._now)
            lane.hold(offset)
        else:
            self._queue_again(offset, trouble)
            if not failures:  # it may have been in a batch
                lane.alone_until = offset
        self._total += 1
        if self._keeps_latest and self._is_due(offset):
            self._supersede(lane, offset)
        self._refresh(lane, _PUSH, None)
