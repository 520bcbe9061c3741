"""A reference model of the map of lanes, written the slow and obvious way: one flat list of messages, searched every time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import inf

from seriatim.core.lanes.types import (
    DeadLettered,
    Delivery,
    Expired,
    Fenced,
    Keep,
    KeyPaused,
    LaneEffect,
    Lease,
    OnExhausted,
    ReleaseAfter,
    Removed,
    RetryMode,
    Returned,
    Settled,
    Superseded,
)

IN_A_BATCH = "delivered in a batch"
"""The error of a message that was out with others when a process crashed."""


@dataclass
class NaiveMessage:
    """One message of one lane, and everything about it."""

    key: str | None
    offset: int
    where: str = "waiting"  # or: aside, out, acked, and spent: attempts used up before a restart
    failures: int = 0
    not_before: float = -inf
    error: str | None = None
    token: int = 0
    lease: Lease | None = None
    deadline: float = inf
    consumer: object = None  # who has it, or had it last
    overtaken: bool = False  # it was dead-lettered after a later message of its key was settled
    batched: bool = False  # it went out with others under one lease


class NaiveLanes:
    """The map of lanes as one flat list of messages. Which ready lane is next is left open: ``takeable`` names them all."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.now = -inf
        self.messages: list[NaiveMessage] = []
        self.pending: list[tuple[str, NaiveMessage]] = []
        self.dead: list[NaiveMessage] = []
        self.paused: set[str | None] = set()
        self.settled: dict[str, int] = {}  # the highest offset settled since the last restart
        self.superseded: list[Superseded] = []
        self.alone_until: dict[str | None, int] = {}  # up to which message a key goes out one at a time

    # -- looking --------------------------------------------------------------------------------------------------------

    def of(self, key: str | None, *places: str) -> list[NaiveMessage]:
        found = [m for m in self.messages if m.key == key and (not places or m.where in places)]
        return sorted(found, key=lambda m: m.offset)

    def find(self, key: str | None, offset: int) -> NaiveMessage | None:
        return next((m for m in self.of(key) if m.offset == offset), None)

    def changing(self, key: str | None) -> list[NaiveMessage]:
        return [m for _, m in self.pending if m.key == key]

    def takeable(self, *consumers: object) -> list[tuple[str | None, int]]:
        """What ``take`` may give out next: to anybody, or to one of some consumers."""
        return [
            (key, offset)
            for key, offset in self.ready()
            if not consumers or (not self.is_full(key) and self._may_have(key, consumers))
        ]

    def _may_have(self, key: str | None, consumers: tuple[object, ...]) -> bool:
        return (holder := self.holder(key)) is None or holder.consumer in consumers

    def is_full(self, key: str | None) -> bool:
        """Whether the tenant of a key has its maximum number of messages in flight."""
        limit, separator = self.delivery.tenant_limit, self.delivery.tenant_separator
        if limit is None or key is None:
            return False
        out = [m.key for m in self.messages if m.key is not None and m.where == "out"]
        return sum(other.split(separator)[0] == key.split(separator)[0] for other in out) >= limit

    def holder(self, key: str | None) -> NaiveMessage | None:
        """A message of a key that is out; all of them are with one consumer."""
        return next(iter(self.of(key, "out", "acked")), None) if key is not None else None

    def ready(self) -> list[tuple[str | None, int]]:
        """The next message of every ready lane."""
        found: list[tuple[str | None, int]] = []
        for key in {m.key for m in self.messages} - self.paused:
            waiting = self.of(key, "waiting", *(["spent"] if key is not None else []))
            busy = len(self.of(key, "out", "acked")) + len(self.changing(key))
            if waiting and (key is None or busy < self.delivery.window) and self._may_go(waiting[0]):
                found.append((key, waiting[0].offset))
        return found

    def _may_go(self, message: NaiveMessage) -> bool:
        due = message.not_before <= self.now and message.where != "spent"
        return due and message not in self.changing(message.key)

    def newest(self, key: str | None) -> int:
        """The newest message of a key that is due or in flight, if only that one is kept."""
        if self.delivery.keep is Keep.ALL or key is None:
            return -1
        alive = [m for m in self.of(key) if m.where in ("out", "acked") or self._may_go(m)]
        return max((m.offset for m in alive), default=-1)

    def supersede(self) -> None:
        """What waits before the newest message leaves."""
        for message in sorted(self.messages, key=lambda m: m.offset):
            newest, waits = self.newest(message.key), message.where not in ("out", "acked")
            if waits and message.offset < newest and message not in self.changing(message.key):
                self._superseded(message, newest)

    def _superseded(self, message: NaiveMessage, newest: int) -> None:
        assert message.key is not None
        self.messages.remove(message)
        self.superseded.append(Superseded(message.key, message.offset, newest))

    # -- commands -------------------------------------------------------------------------------------------------------

    def push(self, key: str | None, offset: int, now: float, delay: float) -> None:
        message = NaiveMessage(key, offset)
        if delay > 0:
            message.not_before = max(now, self.now) + delay
            message.where = "aside" if key is None else "waiting"
        self.messages.append(message)
        self.supersede()

    def batch_of(self, key: str | None, offset: int, limit: int) -> list[int]:
        """What goes out under one lease with a message that can be taken."""
        first, *others = [m for m in self.of(key, "waiting", "spent") if m.offset >= offset]
        fitting = takewhile(lambda m: self._goes_with_others(m) and self._may_go(m), others)
        return [m.offset for m in (first, *(fitting if self._goes_with_others(first) else ()))][:limit]

    def _goes_with_others(self, message: NaiveMessage) -> bool:
        is_possible = self.delivery.window == 1 and self.delivery.tenant_limit is None and message.key is not None
        return is_possible and not message.failures and message.offset > self.alone_until.get(message.key, -1)

    def taken(self, lease: Lease, consumer: object = None) -> None:
        for offset in lease.offsets:
            message = self.find(lease.key, offset)
            assert message is not None
            message.where, message.token, message.deadline = "out", lease.token, lease.deadline
            message.lease, message.batched = lease, len(lease.offsets) > 1
            message.consumer = consumer

    def leased(self, token: int) -> NaiveMessage | None:
        """The first message that is under a lease."""
        return next(iter(self.batch(token)), None)

    def batch(self, token: int) -> list[NaiveMessage]:
        found = [m for m in self.messages if m.where == "out" and m.token == token]
        return sorted(found, key=lambda m: m.offset)

    def settle(self, token: int, through: int | None = None) -> list[LaneEffect]:
        batch = self.batch(token)
        done = [m for m in batch if through is None or m.offset <= through]
        for message in done:
            message.where = "acked"
        if done[0].key is None:
            self._leave("settled", done[0])
            return [Settled(None, done[0].offset)]
        effects = self._settle_front(done[0].key)
        self._shrink(batch[len(done) :])
        return effects

    @staticmethod
    def _shrink(left: list[NaiveMessage]) -> None:
        """A lease covers only these messages any more."""
        for message in left:
            assert message.lease is not None
            behind = tuple(m.offset for m in left[1:])
            message.lease = message.lease._replace(offset=left[0].offset, behind=behind)

    def _settle_front(self, key: str | None) -> list[LaneEffect]:
        effects: list[LaneEffect] = []
        for message in self._in_order_of_lease(key):
            if message.where != "acked":
                break
            self._leave("settled", message)
            effects.append(Settled(key, message.offset))
            if key is not None:
                self.settled[key] = max(message.offset, self.settled.get(key, -1))
        return effects

    def _in_order_of_lease(self, key: str | None) -> list[NaiveMessage]:
        return sorted(self.of(key, "out", "acked"), key=lambda m: (m.token, m.offset))

    def give_back(
        self, token: int, now: float, delay: float | None, error: str | None, count: bool, at: int | None = None
    ) -> list[LaneEffect]:
        batch = self.batch(token)
        now, retry, key = max(now, self.now), self.delivery.retry, batch[0].key
        passes = key is None or retry.mode is RetryMode.OVERTAKE
        if len(batch) > 1 and (at is None or not count):
            if count:
                self.alone_until[key] = batch[-1].offset
            return [self._put_back(m, now, (delay or 0) if m is batch[0] else 0, error) for m in batch]
        message = next(m for m in batch if at in (None, m.offset))
        effects: list[LaneEffect] = [self._put_back(m, now) for m in batch if m.offset > message.offset]
        message.where = "waiting"
        if count:
            self.alone_until.pop(key, None)
        if not passes:
            effects += self._fence_all([m for m in self._in_order_of_lease(key) if m.token > token])
        message.failures += count
        if count or error is not None:
            message.error = error
        if message.offset < (newest := self.newest(key)):
            self._superseded(message, newest)
        elif count and retry.max_attempts is not None and message.failures >= retry.max_attempts:
            effects += self._exhaust(message)
        else:
            if delay is None:
                doubled = [retry.min_backoff * 2**n for n in range(message.failures)] if count else [0]
                delay = min(retry.max_backoff, doubled[-1])
            message.not_before = now + delay if delay > 0 else -inf
            if passes and message.not_before > self.now:
                message.where = "aside"
            effects.append(Returned(key, message.offset, message.failures, now + max(delay, 0), message.error))
        effects += [self._put_back(m, now) for m in batch if m.offset < message.offset]
        effects += [] if key is None else self._settle_front(key)
        self.supersede()
        return effects

    def _put_back(self, message: NaiveMessage, now: float, delay: float = 0, error: str | None = None) -> LaneEffect:
        message.where, message.not_before = "waiting", now + delay if delay > 0 else -inf
        message.error = message.error if error is None else error
        return Returned(message.key, message.offset, message.failures, now + max(delay, 0), message.error)

    def give_up(
        self, token: int, error: str | None, rest: bool, at: int | None = None, now: float = 0
    ) -> list[LaneEffect]:
        batch, now = self.batch(token), max(now, self.now)
        message = next(m for m in batch if at in (None, m.offset))
        key, message.where, message.error = message.key, "waiting", error
        alone = key is None or self.delivery.retry.mode is RetryMode.OVERTAKE
        effects = [self._put_back(m, now) for m in batch if m.offset > message.offset]
        effects += [] if alone else self._fence_all([m for m in self._in_order_of_lease(key) if m.token > token])
        message.failures += 1
        self.alone_until.pop(key, None)
        policy = OnExhausted.DEAD_LETTER_REST if rest else OnExhausted.DEAD_LETTER
        effects += self._exhaust(message, policy)
        effects += [self._put_back(m, now) for m in batch if m.offset < message.offset]
        effects += [] if key is None else self._settle_front(key)
        self.supersede()
        return effects

    def _fence_all(self, messages: list[NaiveMessage]) -> list[LaneEffect]:
        """Take leases back; that of a batch is one."""
        fenced = {m.token: Fenced(m.lease, m.consumer if m.where == "out" else None) for m in messages if m.lease}
        for message in messages:
            message.where = "waiting"
        return list(fenced.values())

    def _exhaust(self, message: NaiveMessage, policy: OnExhausted | None = None) -> list[LaneEffect]:
        policy = policy or self.delivery.retry.on_exhausted
        if message.key is not None and policy is OnExhausted.PAUSE:
            self.paused.add(message.key)
            return [KeyPaused(message.key, message.offset, message.failures, message.error)]
        effects: list[LaneEffect] = [DeadLettered(message.key, message.offset, message.failures, message.error)]
        self._leave("dead", message)
        if message.key is not None and policy is OnExhausted.DEAD_LETTER_REST:
            reason = f"behind message {message.offset} of its key, which was dead-lettered"
            effects += self._dead_letter_waiting(message.key, reason)
        return effects

    def _dead_letter_waiting(
        self, key: str | None, error: str | None, tried: frozenset[int] = frozenset()
    ) -> list[LaneEffect]:
        effects: list[LaneEffect] = []
        for m in self.of(key, "waiting", "aside", "spent"):
            if m not in self.changing(key):
                self._leave("dead", m)
                attempts = m.failures + (m.offset in tried)
                effects.append(DeadLettered(key, m.offset, attempts, m.error if error is None else error))
        return effects

    def advance(self, now: float) -> list[LaneEffect]:
        self.now = now = max(now, self.now)
        effects: list[LaneEffect] = []
        overdue = [m for m in self.messages if m.where == "out" and m.deadline <= now]
        for message in sorted(overdue, key=lambda m: (m.deadline, m.token)):
            if message.where == "out":
                assert message.lease is not None
                effects.append(Expired(message.lease, message.consumer))
                effects += self.give_back(message.token, now, None, "lease expired", True)
        for message in self.messages:
            if message.where == "aside" and self._may_go(message):
                message.where = "waiting"
        for message in sorted(self.messages, key=lambda m: m.offset):
            if message.where == "spent" and message in self.messages:
                message.where = "waiting"
                effects += self._exhaust(message)
        self.supersede()
        return effects

    def dead_letter(self, key: str | None, error: str | None, rest: bool) -> list[LaneEffect]:
        out = self._in_order_of_lease(key) if key is not None else []
        tried = frozenset(m.offset for m in out if m.where == "out")
        effects = self._fence_all(out)
        if rest:
            return effects + self._dead_letter_waiting(key, error, tried)
        head = self.head(key, out)
        assert head is not None
        self._leave("dead", head)
        self.supersede()
        attempts = head.failures + (head.offset in tried)
        return [*effects, DeadLettered(key, head.offset, attempts, head.error if error is None else error)]

    def skip(self, key: str | None) -> list[LaneEffect]:
        out = self._in_order_of_lease(key) if key is not None else []
        effects = self._fence_all(out)
        head = self.head(key, out)
        assert head is not None
        self._leave("removed", head)
        self.supersede()
        return [*effects, Removed(key, head.offset)]

    def waiting_for_time(self, key: str | None) -> list[NaiveMessage]:
        """What ``retry`` lets go: the head, and what was overtaken, as far as it only waits for its time."""
        queue = self.of(key, "waiting", *(["spent"] if key is not None else []))[:1]
        found = [m for m in queue + self.of(key, "aside") if m.where != "spent" and m.not_before > self.now]
        return sorted(found, key=lambda m: m.offset)

    def retry(self, key: str | None, now: float) -> list[LaneEffect]:
        found = self.waiting_for_time(key)
        for message in found:
            message.where, message.not_before = "waiting", -inf
        self.supersede()
        return [Returned(key, m.offset, m.failures, max(now, self.now), m.error) for m in found]

    def resume(self, key: str | None) -> list[LaneEffect]:
        self.paused.remove(key)
        most, effects = self.delivery.retry.max_attempts, list[LaneEffect]()
        for message in self.of(key):
            if most is not None and message.failures >= most and message.where != "spent":
                message.failures = most - 1
                effects.append(Returned(key, message.offset, message.failures, 0.0, message.error))
        return effects

    def head(self, key: str | None, out: list[NaiveMessage] | None = None) -> NaiveMessage | None:
        if out is None:
            out = self._in_order_of_lease(key) if key is not None else []
        queued = ["waiting", "spent"] if key is not None else ["waiting"]
        candidates = out or self.of(key, *queued) or self.of(key, "aside", "spent")
        return candidates[0] if candidates else None

    def remove(self, message: NaiveMessage) -> None:
        self._leave("removed", message)

    def redrive(self, message: NaiveMessage) -> None:
        self.dead.remove(message)
        self.messages.append(message)
        message.where = "aside" if message.key is None else "waiting"
        self._note("redriven", message)

    def may_be_redriven(self, message: NaiveMessage) -> bool:
        if message.key is None or message not in self.dead:
            return message in self.dead
        in_flight = self._in_order_of_lease(message.key)
        if self.newest(message.key) > message.offset:
            return False
        return self.is_after_settled(message) and not any(m.offset > message.offset for m in in_flight)

    def is_after_settled(self, message: NaiveMessage) -> bool:
        return message.key is None or message.offset > self.settled.get(message.key, -1)

    # -- durability -----------------------------------------------------------------------------------------------------

    def _leave(self, change: str, message: NaiveMessage) -> None:
        self.messages.remove(message)
        message.overtaken = not self.is_after_settled(message)
        self._note(change, message)

    def _note(self, change: str, message: NaiveMessage) -> None:
        self.pending.append((change, message))
        if self.delivery.release is ReleaseAfter.RECEIPT:
            self.confirm(message.offset)

    def confirm(self, offset: int) -> None:
        change, message = next(pair for pair in self.pending if pair[1].offset == offset)
        self.pending.remove((change, message))
        if change == "settled" and message.key is not None:
            self.dead = [m for m in self.dead if m.key != message.key or m.offset > offset]
            for leaving in self.changing(message.key):
                leaving.overtaken |= leaving.offset < offset
        if change == "redriven":
            message.where = "waiting"
            self.supersede()
        if change == "dead" and not message.overtaken:
            self.dead.append(NaiveMessage(message.key, offset))

    def crash(self, count_leases: bool) -> None:
        """Leases are gone, and what was not confirmed did not happen."""
        for change, message in self.pending:
            if change == "redriven":
                self.messages.remove(message)
                self.dead.append(NaiveMessage(message.key, message.offset))
                continue
            self.messages.append(message)
            message.failures += count_leases and change == "settled" and not message.batched
            self._note_batched(message, count_leases and change == "settled")
            if change == "settled" or message.not_before <= self.now:
                message.where = "waiting"
        self.pending, self.settled = [], {}
        for message in self.messages:
            if message.where in ("out", "acked"):
                message.failures += count_leases and not message.batched
                self._note_batched(message, count_leases)
                message.where = "waiting"
            if message.where == "spent" or self._is_spent(message):
                message.where = "spent" if self._is_spent(message) else "waiting"
        self.supersede()
        self.alone_until = {}
        for message in self.messages:  # nobody knows any more why something was noted of it
            if not message.failures and message.error is not None:
                self.alone_until[message.key] = max(message.offset, self.alone_until.get(message.key, -1))

    @staticmethod
    def _note_batched(message: NaiveMessage, is_noted: bool) -> None:
        """The delivery in a batch was written down, and does not count."""
        if is_noted and message.batched:
            message.error = IN_A_BATCH

    def _is_spent(self, message: NaiveMessage) -> bool:
        retry = self.delivery.retry
        is_known = message.key in self.paused - {None} and retry.on_exhausted is OnExhausted.PAUSE
        return retry.max_attempts is not None and message.failures >= retry.max_attempts and not is_known
