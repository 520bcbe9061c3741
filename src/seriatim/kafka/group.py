"""A subscription in this process: its consumers, its partitions, and delivery.

Rules
    - This process is a member of the group while it has consumers of the subscription.
    - Consumers are served in turn, each as far as it has room; partitions likewise.
    - The effects of lanes are carried out here: failures and pauses go to the state topic, dead letters to their topic,
      and finished offsets into the next commit. Commits run back to back while there is something to commit.
    - A dead letter counts as finished when Kafka has acknowledged its copy. It is never lost; after a crash there may
      be two copies, with the same ``seriatim-source``.
    - Records that Kafka has not acknowledged are written again as long as this member has the partition; of several
      states of one thing only the newest. A failure is forgotten, and a skip done, when the commit that covers the
      message has succeeded.
    - Operators' commands come through the state topic, and are carried out by the member that has the partition.
    - A claim that follows a higher one is void. Either this member has lost the partition, and will be told so, or the
      group was recreated and counts its generations from the beginning. Kafka refuses a commit in the first case.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from logging import LoggerAdapter
from typing import Any

from seriatim.core.filters import compile_filter
from seriatim.core.lanes.types import (
    DeadLettered,
    Expired,
    Fenced,
    KeyPaused,
    LaneEffect,
    Lease,
    Removed,
    Returned,
    Settled,
)
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import require_duration
from seriatim.engine.broker import OnDurable, SubscriptionInfo
from seriatim.engine.consumer import Consumer, Record
from seriatim.engine.options import read_subscription_options
from seriatim.errors import FailedPrecondition, NotFound, SeriatimError, StaleLease, StoreLost
from seriatim.kafka.address import Address
from seriatim.kafka.catalog import dead_letter_topic
from seriatim.kafka.member import RETRY_S, Assigned, Member
from seriatim.kafka.partition import TOKEN_BITS, Partition
from seriatim.kafka.publishing import KafkaProducer
from seriatim.kafka.records import KafkaDelivered, Origin, headers_of, id_of, key_bytes
from seriatim.kafka.state import (
    Command,
    Failure,
    PartitionMemory,
    StateRecord,
    claim_record,
    command_record,
    lost_record,
    pause_record,
    state_topic,
)
from seriatim.log import logger

OURS = "seriatim-"
"""How the attributes begin that dead letters get."""
SOURCE, SUBSCRIPTION, ATTEMPTS, ERROR = (f"{OURS}{name}" for name in ("source", "subscription", "attempts", "error"))
"""Where a dead letter comes from (topic, partition and offset), whose it is, and why it is one."""

REFUSED_S = 1.0
"""How long what Kafka has refused waits. What may pass soon, the producer tries again itself."""


class Group:
    """This process's share of a subscription."""

    def __init__(
        self, address: Address, info: SubscriptionInfo, producer: KafkaProducer, now: Callable[[], float]
    ) -> None:
        self.info = info
        self._log = LoggerAdapter(logger, {"subscription": info.name})
        self._producer = producer
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._consumers: deque[Consumer] = deque()
        self.partitions: dict[int, Partition] = {}
        self._by_serial: dict[int, Partition] = {}
        self._turn: deque[Partition] = deque()
        self._accepts = (lambda _: True) if info.options.filter is None else compile_filter(info.options.filter)
        self._is_awake = False
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()  # set when something became durable or a lease ended
        self._member = Member(address, info.name, info.topic, self)
        self._committing = asyncio.create_task(self._commit_forever())
        self._member.start()

    async def close(self) -> None:
        """Leave the group: messages in flight may finish, and what is finished is committed."""
        await self._member.close()
        self.lost(list(self._by_serial))  # some are left if Kafka did not answer
        self._committing.cancel()
        await asyncio.gather(self._committing, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    # -- consumers ------------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> int:
        """The number of consumers."""
        return len(self._consumers)

    def attach(self, consumer: Consumer) -> None:
        if consumer.batch > 1:
            self.info.options.require_batches(self.info.name)
        self._consumers.append(consumer)
        consumer.wake = self.wake
        consumer.lease = lambda token: self._lease_of(consumer, token)
        consumer.give_back = self._give_back
        self.wake()

    def detach(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            leases = [(known, lease) for known in self.partitions.values() for lease in known.lanes.leases()]
            self._give_back([lease for known, lease in leases if known.lanes.holder(lease.token) is consumer])

    def _lease_of(self, consumer: Consumer, token: int) -> Lease | None:
        partition = self._by_serial.get(token >> TOKEN_BITS)
        if partition is None or (lease := partition.lanes.lease(token)) is None:
            return None
        return lease if partition.lanes.holder(token) is consumer else None

    def _held(self, lease: Lease) -> Partition:
        partition = self._by_serial.get(lease.token >> TOKEN_BITS)
        if partition is None:
            raise StaleLease(
                "the partition of this message was assigned to another program: the message is delivered again there"
            )
        return partition

    def holds(self, lease: Lease) -> bool:
        partition = self._by_serial.get(lease.token >> TOKEN_BITS)
        return partition is not None and partition.lanes.lease(lease.token) is not None

    def ack(self, lease: Lease, on_durable: OnDurable | None = None) -> None:
        partition, settled, through = self._held(lease), list[int](), lease.offsets[-1]
        holder = partition.lanes.settle_into(settled, lease.token, through)
        if on_durable is not None:
            partition.wait(through, on_durable)
        self._finish(partition, settled)
        holder.let_go(lease, partition.lanes.covered(lease.token))
        self.wake()

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        if delay is not None:
            require_duration("delay", delay)
        self._return(self._held(lease), lease, delay, reason_of(error))
        self.wake()

    def dead_letter(self, lease: Lease, reason: str | None = None, *, rest: bool = False) -> None:
        partition = self._held(lease)
        holder = partition.lanes.holder(lease.token)
        effects = partition.lanes.give_up(lease.token, self._now(), reason_of(reason), rest, lease.offset)
        holder.let_go(lease)
        self._apply(partition, effects)
        self.wake()

    def extend(self, lease: Lease, seconds: float) -> None:
        require_duration("seconds", seconds)
        self._held(lease).lanes.extend(lease.token, self._now(), seconds)
        self._set_timer()

    def _give_back(self, leases: Iterable[Lease]) -> None:
        """Return messages that were not processed."""
        for lease in leases:
            if self.holds(lease):  # not fenced, because an earlier one of its key was given back
                self._return(self._held(lease), lease, 0, None, count=False)
        self.wake()

    def _return(
        self, partition: Partition, lease: Lease, delay: float | None, error: str | None, *, count: bool = True
    ) -> None:
        holder, at = partition.lanes.holder(lease.token), None if lease.behind else lease.offset
        effects = partition.lanes.give_back(lease.token, self._now(), delay, error, count, at)
        holder.let_go(lease)
        self._apply(partition, effects)

    # -- delivery -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a delivery round, after any change."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_awake = False
        self._moved.set()
        idle = 0
        while self._consumers and idle < len(self._consumers) and not self.info.options.paused:
            consumer = self._consumers[0]
            self._consumers.rotate(-1)
            idle = 0 if self._serve(consumer) else idle + 1
        self._set_timer()
        self._member.is_busy = not all(known.lanes.is_quiet() for known in self.partitions.values())

    def _serve(self, consumer: Consumer) -> bool:
        """Deliver what a consumer has room for, from each partition in turn."""
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            self._turn.rotate(-1)
            room = consumer.room()
            if room <= 0:
                return False
            if not partition.is_claimed or partition.is_ending or not partition.lanes.ready_lanes:
                continue
            seconds = consumer.ack_deadline or self.info.options.ack_deadline
            leases = partition.lanes.take(self._now(), seconds, room, consumer, consumer.batch)
            if leases:
                self._deliver(partition, consumer, leases)
                return True
        return False

    def _deliver(self, partition: Partition, consumer: Consumer, leases: list[Lease]) -> None:
        messages = [KafkaDelivered(lease, partition.record(lease.offset)) for lease in consumer.lend(leases)]
        if (fitting := consumer.weigh(messages)) < len(messages):
            # The last one first: giving back a message also takes back the later ones of its key.
            self._give_back([lease for lease, _ in reversed(messages[fitting:])])
            messages = messages[:fitting]
        if self.info.options.retry.max_attempts is not None:
            for lease, _ in messages:  # a crash during delivery counts as a failure, except in a batch
                failures = lease.attempt - (partition.lanes.covered(lease.token) > 1)
                self._note(partition, lease.key, lease.offset, failures, 0.0, "the process ended during delivery")
        consumer.deliver(messages)

    # -- time -----------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadlines = [due for known in self.partitions.values() if (due := known.lanes.next_deadline()) is not None]
        when = self._loop.time() + max(0.0, min(deadlines) - self._now()) if deadlines else None
        if self._timer is not None:
            if when is not None and self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        for partition in list(self.partitions.values()):
            self._apply(partition, partition.lanes.advance(self._now()))
        self.wake()

    # -- effects of lanes -----------------------------------------------------------------------------------------------

    def _apply(self, partition: Partition, effects: Iterable[LaneEffect]) -> None:
        for effect in effects:
            match effect:
                case Returned():
                    self._note(partition, *effect)
                case Settled() | Removed():
                    self._finish(partition, [effect.offset])
                case DeadLettered():
                    # If this member can't write it, the next one does: with the last error, and not as a crash.
                    self._note(partition, effect.key, effect.offset, effect.attempts, 0.0, effect.error)
                    partition.letters.append(effect)
                    if partition.burying is None:
                        partition.burying = asyncio.create_task(self._bury(partition))
                case KeyPaused():
                    self._note(partition, effect.key, effect.offset, effect.attempts, 0.0, effect.error)
                    reason = f"{effect.attempts} delivery attempts failed"
                    self._write(partition, [pause_record(effect.key, partition.epoch, reason, is_paused=True)])
                case Expired():
                    effect.holder.let_go(effect.lease)
                case Fenced():
                    self._fence(partition, effect)

    def _fence(self, partition: Partition, fenced: Fenced) -> None:
        """A lease is lost. If it was already acked provisionally, its consumer no longer has it."""
        lease = fenced.lease
        if fenced.holder is not None:
            fenced.holder.let_go(lease)
            fenced.holder.fenced(lease)
        for offset in lease.offsets:
            if self.info.options.retry.max_attempts is not None:
                # The delivery was recorded when it began, and does not count.
                failures, error = partition.lanes.failures(offset)
                self._note(partition, lease.key, offset, failures, 0.0, error)
            partition.tell(offset, StaleLease("an earlier message of the key failed: this one is delivered again"))

    def _finish(self, partition: Partition, offsets: Sequence[int]) -> None:
        partition.finish(offsets)
        self._changed.set()

    def _note(
        self, partition: Partition, key: str | None, offset: int, failures: int, not_before: float, error: str | None
    ) -> None:
        self._write(partition, partition.note(offset, Failure(key, failures, not_before, error), self._now()))

    def _owns(self, partition: Partition) -> bool:
        return self.partitions.get(partition.number) is partition

    def _write(self, partition: Partition, records: Iterable[StateRecord]) -> None:
        """Queue records for the state topic."""
        partition.outbox |= {record.key: record for record in records}
        if partition.outbox and partition.writing is None:
            partition.writing = asyncio.create_task(self._empty_outbox(partition))

    async def _empty_outbox(self, partition: Partition) -> None:
        while partition.outbox and self._owns(partition):
            records, partition.outbox = partition.outbox, {}
            topic, encoded = state_topic(self.info.name), [record.encoded() for record in records.values()]
            writes = [self._producer.write(topic, value, key, partition=partition.number) for key, value in encoded]
            errors = await self._failures(writes, "its state can't be written yet")
            if refused := {
                name: record for (name, record), error in zip(records.items(), errors, strict=True) if error
            }:
                partition.outbox = refused | partition.outbox
                await self._producer.look_up(topic)  # it may have got more partitions
                await asyncio.sleep(REFUSED_S)
        partition.writing = None
        self.wake()

    async def _bury(self, partition: Partition) -> None:
        """Write dead letters to their topic. During a revocation, failed writes are left to the next member."""
        while partition.letters and self._owns(partition):
            letters, partition.letters = partition.letters, []
            errors = await self._failures([self._copy(partition, letter) for letter in letters], "dead letters wait")
            if not self._owns(partition):
                break
            written = {letter.offset for letter, error in zip(letters, errors, strict=True) if error is None}
            self._finish(partition, sorted(written))
            if refused := [letter for letter in letters if letter.offset not in written]:
                if partition.is_ending:
                    break
                partition.letters = refused + partition.letters
                await asyncio.sleep(REFUSED_S)
        partition.burying = None
        self.wake()

    def _copy(self, partition: Partition, letter: DeadLettered) -> asyncio.Future[tuple[int, int]]:
        record, target = partition.record(letter.offset), dead_letter_topic(self.info.name, self.info.options)
        attributes = {**(record.attributes or {}), SOURCE: f"{self.info.topic}/{id_of(record)}"}
        attributes |= {SUBSCRIPTION: self.info.name, ATTEMPTS: str(letter.attempts)}
        attributes |= {ERROR: letter.error[:1000]} if letter.error is not None else {}
        return self._producer.write(target, record.data, key_bytes(record.key), headers_of(attributes))

    async def _failures(self, writes: Sequence[asyncio.Future[Any]], what: str) -> list[BaseException | None]:
        results = await asyncio.gather(*writes, return_exceptions=True)
        errors = [result if isinstance(result, BaseException) else None for result in results]
        if (first := next(filter(None, errors), None)) is not None:
            self._log.error("subscription %r: %s: %s", self.info.name, what, first)
        return errors

    # -- commits --------------------------------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._commit([known for known in self.partitions.values() if known.is_dirty and known.is_ready])
            except Exception as error:
                self._log.error("committing to Kafka ends: %r", error, exc_info=error)
                self.failed(StoreLost(f"committing to Kafka has ended: {error!r}"))
                raise

    async def _commit(self, partitions: Sequence[Partition]) -> None:
        limit = self._member.metadata_bytes
        commits = {known: commit for known in partitions if (commit := known.to_commit(limit)) is not None}
        for partition, commit in commits.items():
            self._write(partition, passed := partition.passed(commit.offset))
            if passed and partition.writing is not None:
                await partition.writing
        try:
            there = await self._member.commit(list(commits.values())) if commits else set()
        except SeriatimError as error:
            self._log.warning("subscription %r: %s", self.info.name, error)
            for partition in commits:
                partition.is_dirty = True
            self._loop.call_later(RETRY_S, self._changed.set)
            return
        for partition, commit in commits.items():
            if self._owns(partition) and partition.serial in there:
                self._write(partition, partition.committed(commit))
        self.wake()

    # -- events of the member -------------------------------------------------------------------------------------------

    def assigned(self, partitions: Sequence[Assigned]) -> None:
        for number, flow, epoch, offset, finished in partitions:
            if (before := self.partitions.get(number)) is not None:  # the event loop was blocked when that one ended
                self.lost([before.serial])
            known = Partition(number, flow, epoch, self.info.options, self._accepts, offset, finished, self._now())
            self.partitions[number] = self._by_serial[flow.serial] = known
            self._turn.append(known)
            self._write(known, [claim_record(epoch)])

    def fetched(self, found: Mapping[int, Sequence[tuple[Record, Origin | None]]], ends: Mapping[int, int]) -> None:
        """Records were fetched, or it is known up to which offset there is nothing else."""
        for number in {*found, *ends}:
            if (partition := self.partitions.get(number)) is not None:
                partition.add(found.get(number, ()), self._now())
                partition.skip_to(ends.get(number, 0))
                deferred, partition.deferred = partition.deferred, {}
                for identity, command in deferred.items():
                    self._carry_out(partition, identity, command)
                if partition.is_dirty:
                    self._changed.set()
        self.wake()

    def removed(self, partition: int, end: int) -> None:
        """Kafka removed unfetched records below an offset. Offsets without a message count, too."""
        if (known := self.partitions.get(partition)) is not None and (lost := known.skip_to(end)):
            what = (
                "subscription %r: %d messages of partition %d were removed from the log before they were finished: lost"
            )
            self._log.error(what, self.info.name, lost, partition)
            self._write(known, [lost_record(end, lost)])
            self._changed.set()

    def superseded(self, serial: int, epoch: int) -> None:
        if (known := self._by_serial.get(serial)) is not None:
            known.beginning = asyncio.create_task(self._claim_again(known, epoch))

    async def _claim_again(self, partition: Partition, epoch: int) -> None:
        """The claim of an assignment is void: claim the partition with a higher epoch if this member still has it."""
        while self._owns(partition):
            commit = partition.to_commit(self._member.metadata_bytes)
            try:
                if commit is None or partition.serial in await self._member.commit([commit]):
                    partition.epoch = epoch
                    self._write(partition, [claim_record(epoch)])
                    return
            except SeriatimError as error:
                self._log.warning("subscription %r: %s", self.info.name, error)
            await asyncio.sleep(RETRY_S)

    def remembered(self, serial: int, memory: PartitionMemory) -> None:
        if (known := self._by_serial.get(serial)) is not None:  # the assignment has not ended
            self._write(known, known.begin(memory, self._now()))
            known.beginning = asyncio.create_task(self._begin(known))

    async def _begin(self, partition: Partition) -> None:
        """Start delivering a partition once its inherited state is written again under this claim."""
        if partition.writing is not None:
            await partition.writing
        if not self._owns(partition):
            return  # the partition's new member carries out operators' commands
        partition.is_claimed = True
        for identity, command in partition.memory.commands.items():
            self._carry_out(partition, identity, command)
        if partition.is_dirty:
            self._changed.set()
        self.wake()

    async def revoked(self, serials: Sequence[int], seconds: float) -> None:
        """Assignments are ending: let messages in flight finish and become durable, and fence the rest."""
        going = [known for serial in serials if (known := self._by_serial.get(serial)) is not None]
        for partition in going:
            partition.is_ending = True
        try:
            if not await self._until(lambda: not any(self._owns(one) and one.lanes.leases() for one in going), seconds):
                what = "subscription %r: a handler did not end before its partition was given up"
                self._log.warning(what, self.info.name)
            if not await self._until(lambda: all(one.is_idle for one in going if self._owns(one)), seconds / 2):
                self._log.error("subscription %r: not everything was written before a partition went", self.info.name)
        finally:
            self.lost(serials)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    def lost(self, serials: Sequence[int]) -> None:
        """Assignments have ended: nothing of them may be committed."""
        for serial in serials:
            partition = self._by_serial.pop(serial, None)
            if partition is None:
                continue
            del self.partitions[partition.number]
            self._turn.remove(partition)
            for lease in partition.lanes.leases():
                holder = partition.lanes.holder(lease.token)
                holder.let_go(lease)
                holder.fenced(lease)
            partition.end(StaleLease("the partition was assigned to another program before this became durable"))
        self.wake()

    def failed(self, error: SeriatimError) -> None:
        for consumer in list(self._consumers):
            consumer.failed(error)
        self._log.error("subscription %r: %s", self.info.name, error)

    # -- operators ------------------------------------------------------------------------------------------------------

    def commanded(self, serial: int, record: StateRecord) -> None:
        if (known := self._by_serial.get(serial)) is not None and record.value is not None:
            with suppress(TypeError):  # not one of our records
                identity, command = record.key.removeprefix("command/"), Command(**record.value)
                if known.is_claimed:
                    self._carry_out(known, identity, command)
                else:  # after those that were there before
                    known.memory.commands[identity] = command

    def _carry_out(self, partition: Partition, identity: str, command: Command) -> None:
        """Carry out an operator's command. If lanes refuse it, because another command came first, that is logged."""
        lanes, key, obeyed = partition.lanes, command.key, [command_record(identity, None)]
        if command.head is not None and not partition.has_seen(command.head):
            partition.deferred[identity] = command
            return
        try:
            match command.verb:
                case "pause":
                    if (view := lanes.view(key)) is None or view.state != "paused":
                        lanes.pause(key)
                    self._write(partition, [pause_record(key, partition.epoch, command.text, is_paused=True)])
                case "resume":
                    self._apply(partition, lanes.resume(key))
                    self._write(partition, [pause_record(key, partition.epoch, None, is_paused=False)])
                case "retry":
                    self._apply(partition, lanes.retry(key, self._now()))
                case "skip" | "dead-letter" | "remove" if command.head is not None:
                    self._apply(partition, _taken_out(partition, command, command.head))
                    done, obeyed = obeyed, []
                    partition.wait(command.head, lambda error: None if error else self._write(partition, done))
        except (FailedPrecondition, NotFound) as error:
            self._log.warning("subscription %r: an operator's %s was refused: %s", self.info.name, command.verb, error)
        self._write(partition, obeyed)
        self.wake()

    def reconfigured(self, value: dict[str, Any]) -> None:
        """The options were changed. Existing lanes keep their window and release policy."""
        options = read_subscription_options(value.get("options") or {})[0]
        self.info = replace(self.info, options=options)
        for partition in self.partitions.values():
            if partition.options.retry.mode is options.retry.mode:
                partition.lanes.set_retry(options.retry)
        self.wake()


def _taken_out(partition: Partition, command: Command, offset: int) -> list[LaneEffect]:
    """Take a message out of its key's lane; all commands but a removal require it to be the first one."""
    lanes, key = partition.lanes, command.key
    if command.verb == "remove":
        return [lanes.remove(partition.lane_of(offset), offset)]
    if (view := lanes.view(key)) is None or view.head != offset:
        raise FailedPrecondition(f"key {key!r} stands at another message now")
    return lanes.skip(key) if command.verb == "skip" else lanes.dead_letter(key, command.text, command.rest)
