"""The map of lanes: every key's strict queue, and whose turn it is.

Rules
-----
1. Each key has its own lane (see ``lane.py``); one key's trouble never stops another's. Keyless messages share a loose lane.
2. Ready lanes stand in a ring and are served in turn, so a ready lane waits at most one turn of each other ready lane.
   Where a window allows several leases of a key, all that are out at a time belong to one consumer: its *holder*. While any is
   out, the next message of the key goes to the holder or to nobody; a holder without room delays that key and no other. When
   none is out any more, the key is free for whoever takes it next, and begins to wait anew. Keyless messages have no holder.
3. Every lease carries a token that rises and is never given twice. Settling, returning or extending with a token that is not
   held raises StaleLease and changes nothing.
4. A delivery attempt counts when it fails: by a return (nack) or because its lease expires. A message that used up
   ``max_attempts`` is dead-lettered, alone or with the rest of its key, or its key is paused; who resumes the key gives the
   message one more attempt. When a crash used them up, or
   undid what followed from that, the first ``advance`` after the restart says so, and the message is not given out again.
5. Time passes only in ``advance(now)``; every other command stamps what it must and lets nothing fall due. Time never runs
   backwards: an earlier ``now`` counts as the latest one seen.
6. A dead letter may be redriven to its place as long as no later message of its key is settled or leased.
7. A drained key costs nothing: its lane is dropped.

Theory of operation
-------------------
No command looks at a backlog or at other keys. The ring is a deque of lanes; a lane stands in it at most once, and one that
stopped being ready is passed over when its turn comes. Lease deadlines and delays are two schedules (``Deadlines``), keyed
by token and by offset. A ready lane that has a holder stands in the holder's own queue instead of the ring; a consumer is given
whichever of the two fronts became ready first, so nobody looks at lanes that it can't have.

Where only one transition is possible it is made directly, without asking ``_refresh``, because that is the way of nearly every
message; the tests see to it that states still are what ``_state_of`` says, and the table is exact.
Changes that must become durable are noted in ``_unconfirmed`` until ``confirm(offset)``; what is saved
meanwhile is the state without them, so restoring a saved map *is* what a crash at that moment would leave.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from math import inf
from operator import attrgetter, itemgetter

from seriatim.core.deadlines import Deadlines, LeaseDeadlines
from seriatim.core.delivery import (
    Counts,
    DeadLettered,
    Delivery,
    Effect,
    Fenced,
    KeyPaused,
    LaneView,
    Lease,
    OnExhausted,
    Redriven,
    Release,
    Removed,
    RetryMode,
    RetryPolicy,
    Returned,
    SavedLanes,
    SavedMessage,
    Settled,
    Survey,
)
from seriatim.core.lane import TABLE, Lane, LaneEvent, LaneState, LooseLane
from seriatim.core.offsets import OffsetQueue
from seriatim.core.options import require_finite
from seriatim.errors import (
    FailedPrecondition,
    IllegalTransition,
    NotFound,
    RedriveRefused,
    StaleLease,
)


class _Change(StrEnum):
    """What is not durable yet."""

    SETTLED = "settled"
    DEAD_LETTERED = "dead-lettered"
    REMOVED = "removed"
    REDRIVEN = "redriven"


EXPIRED = "lease expired"

# Looked up for every message: a name of this module is found several times faster than a member of an enum.
_EMPTY, _READY, _LEASED = LaneState.EMPTY, LaneState.READY, LaneState.LEASED
_SETTLING, _DELAYED, _PAUSED = LaneState.SETTLING, LaneState.DELAYED, LaneState.PAUSED
_PUSH, _TAKE, _SETTLE, _CONFIRM = LaneEvent.PUSH, LaneEvent.TAKE, LaneEvent.SETTLE, LaneEvent.CONFIRM
_LEGAL = frozenset(TABLE)
_SETTLED, _REDRIVEN = _Change.SETTLED, _Change.REDRIVEN
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


@dataclass(slots=True)
class _Trouble:
    """What a message carries besides its offset: failed deliveries, a delay, the last error."""

    lane: Lane
    failures: int = 0
    not_before: float = -inf
    error: str | None = None
    steps_aside: bool = False
    spent: bool = False  # its attempts were used up before a restart


class Lanes:
    """Many strict ordered queues behind one ``take``. See the module's rules."""

    def __init__(self, delivery: Delivery | None = None, first_token: int = 1) -> None:
        self._delivery = delivery or Delivery()
        self._waits_for_commit = self._delivery.release is Release.DURABLE
        self._now = -inf
        self._next_token = first_token
        self._lanes: dict[str | None, Lane] = {}
        self._ring: deque[Lane] = deque()
        self._held: dict[Hashable, OrderedDict[Lane, None]] = {}  # ready lanes with leases out, by holder
        self._turns = 0  # counts how often a lane became ready, or had its turn and stayed so
        self._leased: dict[int, Lane] = {}
        self._expiry = LeaseDeadlines(self._leased)
        self._delays: Deadlines[int] = Deadlines()
        self._troubles: dict[int, _Trouble] = {}
        self._unconfirmed: dict[int, tuple[Lane, _Change]] = {}
        self._dead: dict[str | None, list[int]] = {}
        self._total = 0
        self._in_flight = 0
        self._ready_lanes = 0
        self._ghosts = 0

    # -- messages in, messages out --------------------------------------------------------------------------------------

    def push(self, key: str | None, offset: int, now: float, delay: float = 0) -> None:
        """Queue a message behind the others of its key. ``delay`` blocks its own key only, until it has passed."""
        if delay <= 0:
            self.push_all(((key, offset),))
            return
        require_finite("delay", delay)
        lane = self._lanes.get(key) or self._new_lane(key)
        self._push_delayed(lane, offset, max(now, self._now) + delay)
        self._total += 1
        if lane.state is not _READY:
            self._refresh(lane, _PUSH)

    def push_all(self, messages: Iterable[tuple[str | None, int]]) -> None:
        """Queue messages, keys and offsets, that are not delayed."""
        lanes = self._lanes
        for key, offset in messages:
            lane = lanes.get(key) or self._new_lane(key)
            lane.waiting.push(offset)
            self._total += 1
            # Behind others, a message changes nothing for the head: no state needs to be looked at.
            if lane.state is not _READY and lane.in_flight + lane.pending < lane.window:
                self._refresh(lane, _PUSH)

    def take(self, now: float, lease_time: float, limit: int = 1, consumer: Hashable = None) -> list[Lease]:
        """Lease up to ``limit`` messages to a consumer, one from each ready lane in turn."""
        require_finite("lease_time", lease_time)
        deadline, first = max(now, self._now) + lease_time, self._next_token
        leases: list[Lease] = []
        while len(leases) < limit and (lane := self._next_lane(consumer)) is not None:
            if lane.key is not None and lane.window > 1:
                lane.holder = consumer
            leases.append(self._lease(lane, deadline))
        if leases:
            self._in_flight += len(leases)
            self._expiry.add(range(first, self._next_token), deadline)
        return leases

    def _next_lane(self, consumer: Hashable) -> Lane | None:
        """Take the ready lane whose turn it is for a consumer out of its queue."""
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

    def _lease(self, lane: Lane, deadline: float) -> Lease:
        offset, token = lane.waiting.pop(), self._next_token
        self._next_token = token + 1
        trouble = self._troubles.get(offset) if self._troubles else None
        lease = _make(Lease, (token, lane.key, offset, trouble.failures + 1 if trouble else 1, deadline))
        self._leased[token] = lane
        lane.give_out(lease)
        if lane.window > 1:
            self._refresh(lane, _TAKE)
        else:
            # It was ready, so nothing else was in flight or pending: no other state is possible.
            lane.state = _LEASED
            self._ready_lanes -= 1
        return lease

    def settle(self, token: int) -> list[Settled]:
        """Take an ack. Returns what is thereby settled, in order: nothing while an earlier message of the key is out."""
        lane, settled = self._leased.get(token), list[int]()
        self.settle_into(settled, token)
        return [Settled(lane.key, offset) for offset in settled] if lane else []

    def settle_into(self, settled: list[int], token: int) -> None:
        """Take an ack, and add the offsets that are thereby settled to a list, in order."""
        lane = self._leased.pop(token, None) or self._end_lease(token)
        if lane.window == 1 and lane.state is _LEASED and self._waits_for_commit:
            # The way of nearly every message: leased, alone in its lane, and settling until this is durable.
            offset = lane.flight.pop().offset
            settled.append(offset)
            lane.in_flight = 0
            lane.pending += 1
            if offset > lane.last_settled:  # noqa: PLR1730 - a call of max would be felt here
                lane.last_settled = offset
            lane.state = _SETTLING
            self._unconfirmed[offset] = (lane, _SETTLED)
            self._in_flight -= 1
            self._total -= 1
            return
        done = lane.ack(token)
        self._leave_settled(lane, done)
        settled += done
        # A lane that is ready stays so, for its window has only got more room; but it may be free for others now.
        if lane.state is not _READY or not lane.in_flight:
            self._refresh(lane, _SETTLE)

    def give_back(
        self, token: int, now: float, delay: float | None = None, error: str | None = None, count: bool = True
    ) -> list[Effect]:
        """Return a message to its place (nack).

        ``delay`` overrides the retry policy's backoff. ``count=False`` is for a delivery that nobody tried: its consumer went
        away, or the process is shutting down.
        """
        if delay is not None:
            require_finite("delay", delay)
        return self._fail(token, max(now, self._now), delay, error, count)

    def extend(self, token: int, now: float, lease_time: float) -> float:
        """Move a lease's deadline to ``lease_time`` from now, and return it."""
        if token not in self._leased:
            raise self._stale(token)
        require_finite("lease_time", lease_time)
        deadline = max(now, self._now) + lease_time
        self._expiry.move(token, deadline)
        return deadline

    def advance(self, now: float) -> list[Effect]:
        """Let time pass: leases expire, delayed messages fall due."""
        self._now = now = max(now, self._now)
        effects: list[Effect] = []
        for token in self._expiry.pop_due(now):
            # A lease that fell due with this one may have been fenced by its failure meanwhile.
            if token in self._leased:
                effects += self._fail(token, now, None, EXPIRED, count=True)
        for offset in self._delays.pop_due(now):
            effects += self._fall_due(offset)
        return effects

    def set_retry(self, retry: RetryPolicy) -> None:
        """Judge failures by another policy from now on. Whether others pass a message that waits can't be changed so."""
        if retry.mode is not self._delivery.retry.mode:
            raise IllegalTransition("lanes are made for one retry mode: load them anew")
        self._delivery = replace(self._delivery, retry=retry)

    def next_deadline(self) -> float | None:
        """When ``advance`` has something to do, or None."""
        deadlines = [when for when in (self._expiry.next(), self._delays.next()) if when is not None]
        return min(deadlines, default=None)

    def confirm(self, offset: int) -> None:
        """A change (Settled, DeadLettered, Removed, Redriven) is durable."""
        self.confirm_all((offset,))

    def confirm_all(self, offsets: Iterable[int]) -> None:
        """Changes are durable."""
        unconfirmed = self._unconfirmed
        for offset in offsets:
            pending = unconfirmed.pop(offset, None)
            if pending is None:
                raise IllegalTransition(f"nothing about offset {offset} waits to be confirmed")
            lane, change = pending
            lane.pending -= 1
            if change is not _SETTLED or self._troubles or self._dead:
                self._finish(lane, offset, change)
            # A lane that is ready stays so: its window has only got more room.
            if lane.state is not _READY:
                self._refresh(lane, _CONFIRM)

    # -- an operator's hand ---------------------------------------------------------------------------------------------

    def pause(self, key: str | None) -> None:
        """Give out nothing more of ``key`` until it is resumed. Leases that are out go on."""
        lane = self._lanes.get(key)
        TABLE.targets(lane.state if lane else _EMPTY, LaneEvent.PAUSE)
        lane = lane or self._new_lane(key)
        lane.paused = True
        self._refresh(lane, LaneEvent.PAUSE)

    def resume(self, key: str | None) -> list[Returned]:
        """Give messages of ``key`` out again. Each that had used up its attempts gets one more; returns those messages."""
        lane = self._lanes.get(key)
        TABLE.targets(lane.state if lane else _EMPTY, LaneEvent.RESUME)
        assert lane is not None
        lane.paused = False
        granted = self._grant_attempts(lane)
        self._refresh(lane, LaneEvent.RESUME)
        return granted

    def _grant_attempts(self, lane: Lane) -> list[Returned]:
        """Give back the last attempt of every message that has none left: after a restart, too, it is to be delivered."""
        retry, granted = self._delivery.retry, list[Returned]()
        for offset, trouble in sorted(self._troubles.items(), key=itemgetter(0)):
            is_here = trouble.lane is lane and offset not in self._unconfirmed
            if is_here and not trouble.spent and retry.is_exhausted(trouble.failures):
                assert retry.max_attempts is not None
                trouble.failures = retry.max_attempts - 1
                granted.append(Returned(lane.key, offset, trouble.failures, 0.0, trouble.error))
        return granted

    def dead_letter(self, key: str | None, error: str | None = None, rest: bool = False) -> list[Effect]:
        """Dead-letter the head of a key, or all of it. Leases of the key are fenced: the operator's word wins."""
        lane, head = self._standing_at(key, "dead-letter")
        if not rest:
            self._check_confirmed(head)
        tried = {lease.offset for lease in lane.flight if lease.token in self._leased}
        effects: list[Effect] = [*self._fence(lane, lane.take_back_all())]
        offsets = self._take_out_all(lane) if rest else [self._take_out_one(lane, head)]
        effects += [self._dead_letter_one(lane, offset, error, offset in tried) for offset in offsets]
        self._refresh(lane, LaneEvent.DEAD_LETTER)
        return effects

    def skip(self, key: str | None) -> list[Effect]:
        """Settle the head of a key unseen. Leases of the key are fenced: the operator's word wins."""
        lane, head = self._standing_at(key, "skip")
        self._check_confirmed(head)
        effects: list[Effect] = [*self._fence(lane, lane.take_back_all())]
        self._take_out(lane, head)
        self._await_confirmation(lane, head, _Change.REMOVED)
        self._refresh(lane, LaneEvent.SKIP)
        return [*effects, Removed(key, head)]

    def retry(self, key: str | None, now: float) -> list[Returned]:
        """Let what waits for its time go now: the head of a key, and everything that was overtaken."""
        lane = self._lanes.get(key)
        waiting = self._waiting_for_time(lane) if lane else []
        if lane is None or not waiting:
            raise FailedPrecondition(f"nothing of key {key!r} waits for its retry or for its delay")
        for offset, trouble in waiting:
            trouble.not_before = -inf
            self._delays.discard(offset)
            lane.rejoin(offset)
        self._refresh(lane, LaneEvent.RETRY)
        now = max(now, self._now)
        return [Returned(key, offset, trouble.failures, now, trouble.error) for offset, trouble in waiting]

    def _waiting_for_time(self, lane: Lane) -> list[tuple[int, _Trouble]]:
        head = lane.waiting.peek()
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
            raise NotFound(f"key {key!r} has no message to {purpose}")
        return lane, head

    def remove(self, key: str | None, offset: int) -> Removed:
        """Take a message out of its lane, wherever it stands. One that is in flight can't be removed."""
        self._check_confirmed(offset)
        lane = self._lanes.get(key)
        if lane is None or not self._take_out(lane, offset):
            if lane and any(lease.offset == offset and lease.token in self._leased for lease in lane.leases()):
                raise FailedPrecondition(f"message {offset} is in flight: ack it, or return it first")
            raise NotFound(f"key {key!r} has no message {offset} waiting")
        self._await_confirmation(lane, offset, _Change.REMOVED)
        self._refresh(lane, LaneEvent.REMOVE)
        return Removed(key, offset)

    def _check_confirmed(self, offset: int) -> None:
        if offset in self._unconfirmed:
            raise FailedPrecondition(f"message {offset} is just being {self._unconfirmed[offset][1]}: try again")

    def redrive(self, key: str | None, offset: int) -> Redriven:
        """Put a dead letter back at its original place, or refuse with the reason."""
        lane = self._lanes.get(key)
        self._check_redrive(key, lane, offset)
        self._forget_dead_letter(key, offset)
        lane = lane or self._new_lane(key)
        lane.hold(offset)
        self._total += 1
        self._await_confirmation(lane, offset, _REDRIVEN)
        self._refresh(lane, LaneEvent.REDRIVE)
        return Redriven(key, offset)

    def _check_redrive(self, key: str | None, lane: Lane | None, offset: int) -> None:
        if offset in self._unconfirmed:
            raise RedriveRefused(f"message {offset} is just being {self._unconfirmed[offset][1]}: try again")
        if not self._is_dead(key, offset) or (lane and lane.last_settled > offset):
            raise RedriveRefused(
                f"message {offset} can't go back to its place in key {key!r}: a later message of the key is settled, or it "
                "is no dead letter of this lane; append it at the end instead"
            )
        later = [lease.offset for lease in lane.flight if lease.offset > offset] if lane else []
        if later:
            raise RedriveRefused(
                f"message {offset} can't go back to its place in key {key!r} while the later message {later[0]} is in flight; "
                "pause the key and try again, or append it at the end"
            )

    def remember_dead_letter(self, key: str | None, offset: int) -> None:
        """A message was dead-lettered in an earlier life, and may still be redriven."""
        insort(self._dead.setdefault(key, []), offset)

    def forget_dead_letter(self, key: str | None, offset: int) -> None:
        """A dead letter was given up, or went elsewhere: it can't be redriven any more."""
        if self._is_dead(key, offset):
            self._forget_dead_letter(key, offset)

    # -- looking --------------------------------------------------------------------------------------------------------

    def is_returnable(self, key: str | None, offset: int) -> bool:
        """Whether a dead letter could go back to its place, if nothing later of its key were in flight."""
        lane = self._lanes.get(key)
        return self._is_dead(key, offset) and not (lane and lane.last_settled > offset)

    def keys(self) -> list[str | None]:
        """Every key that has messages or is paused."""
        return list(self._lanes)

    def survey(self, keys: Iterable[str | None]) -> Survey:
        """Some of the keys in figures."""
        lanes = [lane for key in keys if (lane := self._lanes.get(key)) is not None]
        blocked = sum(lane.state is _DELAYED or lane.state is _PAUSED for lane in lanes)
        paused = sum(lane.paused for lane in lanes)
        oldest = [offset for lane in lanes if (offset := self._oldest(lane)) is not None]
        return Survey(len(lanes), blocked, paused, min(oldest, default=None))

    def _oldest(self, lane: Lane) -> int | None:
        first = lane.waiting.peek()
        waiting = () if first is None else (first,)
        return min([*waiting, *(lane.aside or ()), *(lease.offset for lease in lane.leases())], default=None)

    def offsets(self, key: str | None, limit: int) -> list[int]:
        """The first messages of a key that are not settled, whether in flight or not."""
        lane = self._lanes.get(key)
        if lane is None:
            return []
        out = [lease.offset for lease in lane.leases()]
        return sorted([*islice(lane.waiting, limit), *(lane.aside or ()), *out])[:limit]

    def counts(self) -> Counts:
        loose = self._lanes.get(None)
        # The loose lane counts as one ready lane, but all of its waiting messages can be taken.
        more = len(loose.waiting) - 1 if loose and loose.state is _READY else 0
        ready, delayed = self._ready_lanes + more, len(self._delays)
        blocked = self._total - ready - delayed - self._in_flight
        return Counts(self._total, ready, self._in_flight, delayed, blocked)

    def is_quiet(self) -> bool:
        """Whether nothing is in flight and nothing waits to be confirmed."""
        return not self._in_flight and not self._unconfirmed

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
        """The token that the next lease will carry."""
        return self._next_token

    def failures(self, offset: int) -> tuple[int, str | None]:
        """How many deliveries of a message failed, and the last error."""
        trouble = self._troubles.get(offset)
        return (trouble.failures, trouble.error) if trouble else (0, None)

    def view(self, key: str | None) -> LaneView | None:
        """A key as it stands, or None when it has no messages and is not paused."""
        lane = self._lanes.get(key)
        return self._view(lane) if lane else None

    def views(self) -> Iterator[LaneView]:
        """Every key that has messages or is paused."""
        return (self._view(lane) for lane in self._lanes.values())

    def _view(self, lane: Lane) -> LaneView:
        head = self._head(lane)
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
        )

    def __len__(self) -> int:
        return self._total

    # -- leaving flight -------------------------------------------------------------------------------------------------

    def _end_lease(self, token: int) -> Lane:
        lane = self._leased.pop(token, None)
        if lane is None:
            raise self._stale(token)
        return lane

    @staticmethod
    def _stale(token: int) -> StaleLease:
        return StaleLease(
            f"lease {token} is not held any more: it was settled or returned, it expired, or it was fenced; "
            "the message is delivered again if it is not settled"
        )

    def _leave_settled(self, lane: Lane, offsets: list[int]) -> None:
        self._in_flight -= len(offsets)
        self._total -= len(offsets)
        for offset in offsets:
            if offset > lane.last_settled and lane.key is not None:
                lane.last_settled = offset
            self._await_confirmation(lane, offset, _SETTLED)

    def _fail(self, token: int, now: float, delay: float | None, error: str | None, count: bool) -> list[Effect]:
        """A delivery ended without an ack."""
        lane, retry = self._end_lease(token), self._delivery.retry
        passes = retry.mode is RetryMode.OVERTAKE or lane.key is None
        lease, after = lane.take_back(token, alone=passes)
        effects: list[Effect] = [*self._fence(lane, after)]
        offset = lease.offset
        self._in_flight -= 1
        trouble = self._troubles.get(offset) or _Trouble(lane)
        trouble.failures += count
        if count or error is not None:
            trouble.error = error
        if count and retry.is_exhausted(trouble.failures):
            self._troubles[offset] = trouble
            effects += self._exhaust(lane, offset, trouble)
        else:
            if delay is None:
                delay = retry.backoff(trouble.failures) if count else 0
            trouble.not_before = now + delay if delay > 0 else -inf
            self._put_back(offset, trouble, passes)
            effects.append(Returned(lane.key, offset, trouble.failures, now + max(delay, 0), trouble.error))
        settled = lane.settle_acked_front()
        self._leave_settled(lane, settled)
        effects += [Settled(lane.key, later) for later in settled]
        self._refresh(lane, LaneEvent.RETURN)
        return effects

    def _fence(self, lane: Lane, leases: list[Lease]) -> list[Fenced]:
        """Take leases back, and put their messages at their places, the last one first: each then goes to the front."""
        for lease in reversed(leases):
            lane.waiting.insert(lease.offset)
            if not lane.unack(lease.token):
                self._end_lease(lease.token)
        self._in_flight -= len(leases)
        return [Fenced(lease.token, lane.key, lease.offset) for lease in leases]

    def _put_back(self, offset: int, trouble: _Trouble, passes: bool) -> None:
        trouble.steps_aside = passes
        self._queue_again(offset, trouble)

    def _queue_again(self, offset: int, trouble: _Trouble) -> None:
        self._troubles[offset] = trouble
        if trouble.steps_aside and trouble.not_before > self._now:
            trouble.lane.set_aside(offset)
            self._delays.set(offset, trouble.not_before)
        else:
            trouble.lane.waiting.insert(offset)

    def _exhaust(self, lane: Lane, offset: int, trouble: _Trouble) -> list[Effect]:
        policy = self._delivery.retry.on_exhausted
        if lane.key is not None and policy is OnExhausted.PAUSE:
            lane.waiting.insert(offset)
            lane.paused = True
            return [KeyPaused(lane.key, offset, trouble.failures, trouble.error)]
        self._total -= 1
        effects: list[Effect] = [self._dead_letter_one(lane, offset, None, tried=False)]
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

    # -- leaving the queue ----------------------------------------------------------------------------------------------

    def _take_out(self, lane: Lane, offset: int) -> bool:
        """Take a waiting message out of its lane; False when it is not waiting there."""
        if not lane.unqueue(offset):
            return False
        self._delays.discard(offset)
        self._total -= 1
        return True

    def _take_out_one(self, lane: Lane, offset: int) -> int:
        self._take_out(lane, offset)
        return offset

    def _take_out_all(self, lane: Lane) -> list[int]:
        """Take out everything that waits, but for what is just being redriven."""
        waiting = sorted([*lane.waiting, *(lane.aside or ())])
        leaving = [offset for offset in waiting if offset not in self._unconfirmed]
        lane.waiting = OffsetQueue(offset for offset in lane.waiting if offset in self._unconfirmed)
        lane.aside = {offset for offset in lane.aside or () if offset in self._unconfirmed}
        for offset in leaving:
            self._delays.discard(offset)
        self._total -= len(leaving)
        return leaving

    @staticmethod
    def _head(lane: Lane) -> int | None:
        """The message that the lane stands at: in flight, or next; one that was overtaken only when nothing else is left."""
        if lane.flight:
            return lane.flight[0].offset
        head = lane.waiting.peek()
        return min(lane.aside) if head is None and lane.aside else head

    # -- durability -----------------------------------------------------------------------------------------------------

    def _await_confirmation(self, lane: Lane, offset: int, change: _Change) -> None:
        if self._waits_for_commit:
            self._unconfirmed[offset] = (lane, change)
            lane.pending += 1
        else:
            self._finish(lane, offset, change)

    def _finish(self, lane: Lane, offset: int, change: _Change) -> None:
        if self._troubles and change is not _REDRIVEN:
            self._troubles.pop(offset, None)
        if change is _SETTLED:
            if self._dead and lane.key is not None:
                self._forget_dead_letters_before(lane.key, offset)
        elif change is _REDRIVEN:
            lane.rejoin(offset)

    def _is_dead(self, key: str | None, offset: int) -> bool:
        dead = self._dead.get(key, [])
        index = bisect_left(dead, offset)
        return index < len(dead) and dead[index] == offset

    def _forget_dead_letter(self, key: str | None, offset: int) -> None:
        dead = self._dead[key]
        del dead[bisect_left(dead, offset)]
        if not dead:
            del self._dead[key]

    def _forget_dead_letters_before(self, key: str, offset: int) -> None:
        """A later message is settled: earlier dead letters can't go back to their places any more."""
        dead = self._dead.get(key, [])
        del dead[: bisect_left(dead, offset)]
        if not dead:
            self._dead.pop(key, None)

    # -- whose turn it is -----------------------------------------------------------------------------------------------

    def _new_lane(self, key: str | None) -> Lane:
        lane = LooseLane() if key is None else Lane(key, self._delivery.window)
        self._lanes[key] = lane
        return lane

    def _push_delayed(self, lane: Lane, offset: int, not_before: float) -> None:
        trouble = _Trouble(lane, not_before=not_before, steps_aside=lane.key is None)
        if lane.key is None:
            self._queue_again(offset, trouble)
        else:
            lane.waiting.push(offset)
            self._troubles[offset] = trouble

    def _fall_due(self, offset: int) -> list[Effect]:
        trouble = self._troubles.get(offset)
        if trouble is None:  # it left with the rest of its key, in this very moment
            return []
        if trouble.spent:
            return self._spend(trouble.lane, offset, trouble)
        trouble.lane.rejoin(offset)
        self._refresh(trouble.lane, LaneEvent.DUE)
        return []

    def _spend(self, lane: Lane, offset: int, trouble: _Trouble) -> list[Effect]:
        """A message came out of a restart with its attempts used up."""
        trouble.spent = False
        if not lane.unqueue(offset):  # it left with the rest of its key, in this very moment
            return []
        self._delays.discard(offset)  # noted again when the one before it left
        effects = self._exhaust(lane, offset, trouble)
        self._refresh(lane, LaneEvent.RETURN)
        return effects

    def _refresh(self, lane: Lane, event: LaneEvent) -> None:
        """Something happened to a lane: give it the state that it is in now, and its place in the ring."""
        before, state = lane.state, self._state_of(lane)
        if (before, event, state) not in _LEGAL:
            TABLE.check(before, event, state)
        if state is not before:
            lane.state = state
            if before is _READY:
                self._ready_lanes -= 1
            elif state is _READY:
                self._ready_lanes += 1
            if state is _EMPTY:
                self._drop(lane)
        if lane.is_held and not (state is _READY and lane.in_flight):
            self._unhold(lane)
        if not lane.in_flight:
            lane.holder = None
        if state is _READY and not lane.in_ring and not lane.is_held:
            self._queue_up(lane)

    def _queue_up(self, lane: Lane) -> None:
        """Let a ready lane wait for its turn: with its holder, or with all that are free."""
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
        if busy < lane.window and (head := lane.waiting.peek()) is not None and self._may_go(head):
            return _READY
        if busy:
            return _LEASED if lane.in_flight else _SETTLING
        return _DELAYED if lane.depth else _EMPTY

    def _may_go(self, head: int) -> bool:
        """Whether the next message of a lane may go out now; if not for its delay, its time is noted."""
        if head in self._unconfirmed:
            return False
        trouble = self._troubles.get(head) if self._troubles else None
        if trouble is None or (trouble.not_before <= self._now and not trouble.spent):
            return True
        if head not in self._delays:
            self._delays.set(head, trouble.not_before)
        return False

    def _drop(self, lane: Lane) -> None:
        """A drained key costs nothing. Its place in the ring is passed over, and cleared away before such places add up."""
        del self._lanes[lane.key]
        if lane.in_ring:
            self._ghosts += 1
            if self._ghosts * 2 > len(self._ring):
                self._ring = deque(known for known in self._ring if known.state is not _EMPTY)
                self._ghosts = 0

    # -- state as data --------------------------------------------------------------------------------------------------

    def save(self, count_leases: bool = True) -> SavedLanes:
        """What a crash now would leave: nothing is leased, and what was not confirmed did not happen.

        ``count_leases`` says whether the record of each lease had been written; its delivery then counts as an attempt.
        """
        changes = {offset: change for offset, (_, change) in self._unconfirmed.items()}
        in_flight = [(key, lease.offset) for key, lane in self._lanes.items() for lease in lane.leases()]
        leaving = [(lane.key, offset) for offset, (lane, _) in self._unconfirmed.items()]
        tried = {offset for _, offset in in_flight}
        tried |= {offset for offset, change in changes.items() if change is _SETTLED}
        queued = [*self._queued(), *in_flight, *leaving]
        messages = [
            self._saved(key, offset, count_leases and offset in tried)
            for key, offset in queued
            if changes.get(offset) is not _REDRIVEN
        ]
        dead = [(key, offset) for key, offsets in self._dead.items() for offset in offsets if offset not in changes]
        dead += [(lane.key, at) for at, (lane, change) in self._unconfirmed.items() if change is _REDRIVEN]
        return SavedLanes(
            now=self._now,
            next_token=self._next_token,
            messages=tuple(sorted(messages, key=attrgetter("offset"))),
            paused=tuple(lane.key for lane in self._lanes.values() if lane.paused),
            dead_letters=tuple(sorted(dead, key=itemgetter(1))),
        )

    def _queued(self) -> Iterator[tuple[str | None, int]]:
        for key, lane in self._lanes.items():
            yield from ((key, offset) for offset in (*lane.waiting, *(lane.aside or ())))

    def _saved(self, key: str | None, offset: int, tried: bool) -> SavedMessage:
        trouble = self._troubles.get(offset)
        if trouble is None:
            return SavedMessage(key, offset, failures=int(tried))
        failures = trouble.failures + tried
        return SavedMessage(key, offset, failures, trouble.not_before, trouble.error, trouble.steps_aside)

    @classmethod
    def restore(cls, saved: SavedLanes, delivery: Delivery | None = None) -> Lanes:
        """A map of lanes that goes on where the saved one was."""
        self = cls(delivery, saved.next_token)
        self._now = saved.now
        for paused_key in saved.paused:
            self.pause(paused_key)
        for message in saved.messages:
            self.admit(message)
        for key, offset in saved.dead_letters:
            self.remember_dead_letter(key, offset)
        return self

    def admit(self, message: SavedMessage) -> None:
        """Queue a message as it was saved. Messages of a key must be admitted in order."""
        lane = self._lanes.get(message.key) or self._new_lane(message.key)
        if message == SavedMessage(message.key, message.offset):
            lane.waiting.push(message.offset)
        else:
            trouble = _Trouble(lane, message.failures, message.not_before, message.error, message.steps_aside)
            retry = self._delivery.retry
            is_known = lane.paused and lane.key is not None and retry.on_exhausted is OnExhausted.PAUSE
            if retry.is_exhausted(message.failures) and not is_known:
                self._hold_spent(message.offset, trouble)
            else:
                self._queue_again(message.offset, trouble)
        self._total += 1
        self._refresh(lane, _PUSH)

    def _hold_spent(self, offset: int, trouble: _Trouble) -> None:
        """Keep a message whose attempts are used up from going out; the next ``advance`` finds it."""
        trouble.spent = True
        self._troubles[offset] = trouble
        self._delays.set(offset, self._now)
        trouble.lane.hold(offset)
