"""The rules of giving out messages, held against every lease that the owners of a store gave out.

| finding | rule |
|---|---|
| given out too early | a message waits for the delay of its publish, and for the backoff or the delay of its last failure |
| given out while paused | nothing is given out while its subscription, or its key, is paused |
| wrong lease time | a lease lasts for the ack deadline that is in force |
| wrong attempt | a delivery is the first one, or counts one more than the failures that are known |
| attempts exceeded | a message whose attempts are used up is not given out, unless somebody resumes its key |
| given out twice | a message is not given out again while its lease holds, or after its ack was accepted |
| given out before it was written | what is given out is durable |
| given out after it was taken out | what an operator skipped or dead-lettered is gone |
| batched again | after a batch failed, and nobody knows where, its messages go out one at a time until one fails |
| superseded without reason | where only the latest of a key is kept, a message leaves when a newer one of its key is due |
| given out although a newer one is there | and from then on it is not given out |
| over the limit of a tenant | no more messages of a tenant are out than it may have |

Operators may interfere: whoever lets a key be retried ends its delays. What an owner knew and had not written when it died is
forgotten. So a rule is held against a lease only where no operation, and no write whose outcome is unknown, could excuse it.
A subscription that is moved about, as ``FREE`` is in some programs, is judged only by what no seek can change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from math import inf

from seriatim import RetryPolicy
from seriatim.engine.dead_letters import REDRIVEN
from seriatim.options import OnExhausted
from seriatim.store.base import Record
from tests.simulation.program import FREE, SUBSCRIPTIONS
from tests.simulation.truth import ROUNDING_S, Given
from tests.simulation.world import World

MOVING = {"seek", "seek_to_message", "seek_to_snapshot", "redrive", "purge", "set_loose_options"}


def judge_leases(world: World, sub: str) -> Iterator[str]:
    """Everything that is wrong with the leases of a subscription."""
    by_offset: dict[int, list[Given]] = defaultdict(list)
    for (name, _, _), given in sorted(world.leases.given.items()):
        if name == sub:
            by_offset[given.offset].append(given)
    judge = _Judge(world, sub)
    for offset in sorted(by_offset):
        yield from judge.judge(offset, by_offset[offset])
    if world.plan.options[sub].get("keep") == "latest":
        yield from _judge_superseded(world, sub, by_offset)
    if is_steady(world, sub) and "tenant_limit" in world.plan.options[sub]:
        yield from _judge_tenants(world, sub, world.plan.options[sub]["tenant_limit"])


def _judge_tenants(world: World, sub: str, limit: int) -> Iterator[str]:
    """Count the leases of each tenant that hold at a time."""
    changes: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for (name, _, _), given in world.leases.given.items():
        if name == sub and given.key is not None:
            changes[given.epoch, given.key.partition("/")[0]] += [(given.stamp, 1), (given.ended_stamp, -1)]
    for (epoch, tenant), each in sorted(changes.items()):
        most = max(accumulate(change for _, change in sorted(each)))
        if most > limit:
            yield f"over the limit of a tenant: {sub} {tenant}: {most} at a time instead of {limit}, epoch {epoch}"


def _judge_superseded(world: World, sub: str, by_offset: Mapping[int, Sequence[Given]]) -> Iterator[str]:
    """Hold what was left behind, and what was given out, against the newer messages of its key."""
    topic, operations = SUBSCRIPTIONS[sub], world.operations
    log = {offset: record for (name, offset), record in world.disk.log.items() if name == topic}
    for (name, offset), left in world.leases.superseded.items():
        if name != sub:
            continue
        newer, key = log.get(left.by), log[offset].key
        is_newer = newer is not None and left.by > offset and newer.key == key is not None
        if newer is None or not is_newer or not _is_due(world, sub, newer, left.at, left.stamp):
            yield f"superseded without reason: {sub} {log[offset]} by {newer} at {left.at:.3f}"
    if not is_steady(world, sub) or world.plan.options[sub].get("window", 1) > 1:
        return
    for offset, leases in by_offset.items():
        key = log[offset].key
        behind = [other for other in log if other > offset and log[other].key == key is not None]
        if operations.on_key(sub, key, "skip", "remove", "dead_letter"):
            continue
        for lease in leases:
            for other in behind:
                stamp, is_published = world.fates.get(int(log[other].data), (inf, False))
                has_failed = any(one.has_failed and one.ended_stamp < lease.stamp for one in by_offset.get(other, ()))
                if (
                    is_published
                    and stamp < lease.stamp
                    and not has_failed
                    and _is_due(world, sub, log[other], lease.at, None)
                ):
                    yield f"given out although a newer one is there: {lease}, and {log[other]} since {stamp}"


def _is_due(world: World, sub: str, record: Record, at: float, stamp: int | None) -> bool:
    """Whether a message may be given out at a time: for certain, or with a stamp perhaps."""
    published = world.published[int(record.data)]
    if published.at + published.delay <= at + (ROUNDING_S if stamp is not None else -ROUNDING_S):
        return True
    retries = [*world.operations.on_key(sub, record.key, "retry"), *world.operations.of(sub, "seek", "redrive")]
    return stamp is not None and any(retry.overlaps(published.stamp, stamp) for retry in retries)


def policy_of(world: World, sub: str) -> RetryPolicy:
    policy = world.plan.options[sub].get("retry", RetryPolicy())
    assert isinstance(policy, RetryPolicy)
    return policy


def is_steady(world: World, sub: str) -> bool:
    """Whether nothing but its messages happens to a subscription: nobody moves it, or changes what it promises."""
    return sub != FREE or not MOVING & {step.verb for step in world.program.steps}


def failures_known(world: World, sub: str, leases: Sequence[Given], epoch: int) -> set[int]:
    """How many failures of a message an opening of the store may know, after these leases of it.

    A failure is known from its end on. Where attempts are limited, a delivery counts from its beginning, if that was written
    when its owner dies; a lease that is taken back does not count after all.
    """
    policy, known = policy_of(world, sub), {0}
    for of, of_one in groupby(leases, lambda lease: lease.epoch):
        notes = [note for lease in of_one for note in _notes(policy, lease)]
        if of == epoch:
            known = {notes[-1][1]} if notes else known
            continue
        synced = world.disk.synced.get(of, -1)
        written = sum(stamp < synced for stamp, _ in notes)
        known = {failures for _, failures in notes[max(written - 1, 0) :]} | (set() if written else known)
    is_resumed = bool(world.operations.on_key(sub, leases[-1].key, "resume_key"))
    if is_resumed and policy.on_exhausted is OnExhausted.PAUSE and policy.max_attempts is not None:
        known.add(policy.max_attempts - 1)
    return known


def _notes(policy: RetryPolicy, lease: Given) -> Iterator[tuple[float, int]]:
    """What is written about the failures of a message under a lease, and when."""
    if policy.max_attempts is not None and lease.handed_stamp < inf:
        yield lease.handed_stamp, lease.attempt - (lease.covered > 1)
    if lease.has_failed:
        yield lease.ended_stamp, lease.attempt
    elif lease.ended_by == "taken back":
        yield lease.ended_stamp, lease.attempt - 1


class _Judge:
    def __init__(self, world: World, sub: str) -> None:
        self._world = world
        self._sub = sub
        self._operations = world.operations
        self._policy = policy_of(world, sub)
        self._moves = self._operations.of(sub, "seek", "redrive")
        self._is_steady = is_steady(world, sub) and world.plan.options[sub].get("window", 1) == 1
        self._taken_out = [
            (operation.ended, int(id_))
            for operation in self._operations.of(sub, "skip", "remove", "dead_letter")
            for id_ in operation.result or ()
        ]

    def judge(self, offset: int, leases: Sequence[Given]) -> Iterator[str]:
        for lease in leases:
            yield from self._judge_one(lease)
        for before, lease in pairwise(leases):
            yield from self._judge_delay(before, lease)
            yield from self._judge_batching(before, lease)
        if self._is_steady:
            for number, lease in enumerate(leases):
                yield from self._judge_attempt(leases[:number], lease)
            yield from self._judge_taking_out(offset, leases)

    def _judge_one(self, lease: Given) -> Iterator[str]:
        if self._operations.is_paused(self._sub, lease.stamp):
            yield f"given out while paused: {lease}"
        if self._operations.is_key_paused(self._sub, lease.key, lease.stamp):
            yield f"given out while paused: the key of {lease}"
        deadlines = self._operations.ack_deadlines(
            self._sub, self._world.plan.options[self._sub]["ack_deadline"], lease.stamp
        )
        if not any(abs(lease.lasts - seconds) < ROUNDING_S for seconds in deadlines):
            yield f"wrong lease time: {lease} instead of {sorted(deadlines)} s"
        yield from self._judge_first_delay(lease)

    def _judge_first_delay(self, lease: Given) -> Iterator[str]:
        """A message waits for the delay with which it was published; a copy of it (a dead letter, appended) does not."""
        topic = SUBSCRIPTIONS[self._sub]
        record = self._world.disk.log.get((topic, lease.offset))
        if record is None:
            yield f"given out before it was written: {lease}"
            return
        published = self._world.published[int(record.data)]
        if published.topic != topic or REDRIVEN in (record.attributes or {}):
            return
        due = published.at + published.delay
        if published.delay and lease.at < due - ROUNDING_S and not self._is_freed(lease, published.stamp):
            yield f"given out too early: {lease}, which was to be delayed until {due:.3f}"

    def _is_freed(self, lease: Given, since: float) -> bool:
        """Whether an operator may have ended the delay of a message."""
        retries = self._operations.on_key(self._sub, lease.key, "retry")
        return any(freed.overlaps(since, lease.stamp) for freed in [*retries, *self._moves])

    def _judge_delay(self, before: Given, lease: Given) -> Iterator[str]:
        seconds = self._delay_after(before)
        is_noted = before.epoch == lease.epoch or (
            self._policy.max_attempts is None and lease.attempt == before.attempt + 1
        )
        if not seconds or not is_noted or self._is_freed(lease, before.ended_stamp):
            return
        if lease.at < before.ended_at + seconds - ROUNDING_S:
            yield f"given out too early: {lease} after {before}, and {seconds} s had to pass"

    def _delay_after(self, lease: Given) -> float:
        """How long a message has to wait after a failure. After the last one it waits for an operator alone."""
        policy = self._policy
        if policy.on_exhausted is OnExhausted.PAUSE and policy.is_exhausted(lease.attempt):
            return 0.0
        if lease.said is not None and lease.said.delay is not None:
            return lease.said.delay
        if lease.ended_by not in ("nacked", "expired") or not self._is_steady:
            return 0.0
        return float(min(policy.max_backoff, policy.min_backoff * 2 ** (lease.attempt - 1)))

    def _judge_attempt(self, before: Sequence[Given], lease: Given) -> Iterator[str]:
        if before and before[-1].epoch == lease.epoch and before[-1].ended_by in ("", "acked", "given up"):
            yield f"given out twice: {lease} after {before[-1]}"
            return
        known = failures_known(self._world, self._sub, before, lease.epoch) if before else {0}
        if lease.attempt - 1 not in known:
            yield f"wrong attempt: {lease}, and {sorted(known)} failures are known of {list(before)}"
        most = self._policy.max_attempts
        if most is not None and lease.attempt > most:
            yield f"attempts exceeded: {lease}"

    def _judge_batching(self, before: Given, lease: Given) -> Iterator[str]:
        is_held = self._is_steady and before.is_suspect and before.epoch == lease.epoch and lease.covered > 1
        if not is_held or any(
            change.overlaps(before.stamp, lease.stamp) for change in self._operations.of(self._sub, "options")
        ):  # lanes that are made anew suspect nobody
            return
        if not any(
            other.has_failed and before.ended_stamp < other.ended_stamp < lease.stamp
            for other in self._world.leases.given.values()
            if (other.sub, other.key) == (self._sub, lease.key)
        ):
            yield f"batched again: {lease} after {before}"

    def _judge_taking_out(self, offset: int, leases: Sequence[Given]) -> Iterator[str]:
        for stamp, gone in self._taken_out:
            for lease in leases if gone == offset else ():
                if lease.stamp > stamp:
                    yield f"given out after it was taken out: {lease}"
