"""A member of a consumer group: a thread that polls and commits, and one that follows the group's state topic.

Rules
    - Polling never stops while handlers run; partitions with enough records in memory are paused instead. So a handler
      may take longer than ``max.poll.interval.ms`` and keep its partition, and memory is bounded while the event loop
      is blocked.
    - On revocation the polling thread waits for the event loop, for 1.5 times ``finishing`` seconds.
    - A commit names the assignments that it is for. Assignments that have ended are left out, and a program that is no
      longer the member to which the partitions were assigned commits nothing.
    - Offsets are never reset silently. Records that were removed from the log before they were fetched are reported; a
      log that ends before the offset is a different one, and is read from its beginning.
    - The threads report all events to the group, in the event loop.
    - Rebalancing is cooperative and sticky.

    One thread makes all calls that concern the group: calls from several would wait for each other. It alternates
    between polling and committing; while anything may have to be committed soon it waits for that and not for messages,
    and while a partition is being revoked it only commits.

    How far a partition was read is known from its records, and at its end from Kafka's end-of-partition event: after
    the last record there may be offsets without one, which transactions leave.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from random import randrange
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from seriatim.engine.consumer import Record
from seriatim.errors import NotFound, SeriatimError, StaleLease, StoreFailed, StoreLost
from seriatim.kafka.address import Address, error_of
from seriatim.kafka.catalog import READER, TIMEOUT_S
from seriatim.kafka.partition import Commit, Flow
from seriatim.kafka.progress import MAX_METADATA_BYTES, decode
from seriatim.kafka.records import Origin, record_of
from seriatim.kafka.state import OPTIONS, PartitionMemory, StateRecord, claim_record, state_topic
from seriatim.log import logger

if TYPE_CHECKING:
    from seriatim.kafka.group import Group

POLL_S, BUSY_POLL_S = 0.05, 0.002
BATCH = 500
FETCH_WAIT_MS = 100
CONFIGURATION: dict[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.wait.max.ms": FETCH_WAIT_MS,
}
CALL_TIMEOUT_S = 10.0
RETRY_S = 0.2
SERIAL_BITS = 32
"""Of an epoch: the bits above are the group's generation, in which a member may be assigned a partition again."""
MAX_FINISHING_S = 30.0
"""How long a revoked partition may finish what is in flight, at most."""
CLOSING_FACTOR = 1.6
"""How much longer than that the event loop may take until everything is committed as well."""

_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - its name in the library
_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001

T = TypeVar("T")


class Assigned(NamedTuple):
    """An assigned partition: the epoch of its claim, its committed offset, and the finished offsets beyond it."""

    number: int
    flow: Flow
    epoch: int
    offset: int
    finished: frozenset[int]


@dataclass(slots=True)
class _Followed:
    """A followed partition of the state topic. ``serial`` is 0 if it is read only for the options."""

    serial: int = 0
    epoch: int = 0
    memory: PartitionMemory | None = None  # until it was read to the claim


class Member:
    """Membership in the group of one subscription, from ``start`` to ``close``."""

    def __init__(self, address: Address, subscription: str, topic: str, group: Group) -> None:
        self._address = address
        self._topic = topic
        self._state_topic = state_topic(subscription)
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self._finishing = min(MAX_FINISHING_S, address.max_poll_interval / 2)
        config = CONFIGURATION | {
            "group.id": subscription,
            "isolation.level": address.isolation,
            "session.timeout.ms": int(address.session_timeout * 1000),
            "heartbeat.interval.ms": max(1, int(address.session_timeout * 1000 / 6)),
            "max.poll.interval.ms": int(max(address.max_poll_interval, address.session_timeout) * 1000),
        }
        if address.member is not None:
            config["group.instance.id"] = f"{address.member}-{subscription}"
        self._consumer = Consumer(address.config(**config))
        self._identity: str | None = None  # the member id at the time of the assignment
        self._owned: dict[int, Flow] = {}
        # A static member that comes again, and a group that was recreated, may have the same generation as before.
        self._serials = count(randrange(1, 1 << SERIAL_BITS - 1))
        self._commits: SimpleQueue[tuple[Sequence[Commit], asyncio.Future[set[int]]]] = SimpleQueue()
        self.metadata_bytes = MAX_METADATA_BYTES  # per commit; lowered when the broker refuses it
        self.is_busy = False  # whether a commit may be needed soon
        self._follower = Consumer(address.config(**(READER | {"fetch.wait.max.ms": FETCH_WAIT_MS})))
        self._following: SimpleQueue[Mapping[int, Assigned | None]] = SimpleQueue()
        """Partitions to follow for an assignment, or to follow no longer."""
        self._following.put({0: None})
        self._wanted: dict[int, Assigned | None] = {}  # still to be followed
        self._followed: dict[int, _Followed] = {}
        self._options: tuple[int, dict[str, Any] | None] = -1, None  # the newest, until reported, and their offset
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._poll, self._follow)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Leave the group. Messages in flight may finish; a Kafka that does not answer is not waited for."""
        self._is_closing = True
        limit = self._loop.time() + self._finishing * CLOSING_FACTOR + CALL_TIMEOUT_S
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.0, limit - self._loop.time()))
        if any(thread.is_alive() for thread in self._threads):
            logger.error("the group of topic %r was not left: Kafka does not answer", self._topic)
        with suppress(Empty):
            while True:
                _finish(self._commits.get_nowait()[1], StaleLease("this program has left the group"))

    async def commit(self, commits: Sequence[Commit]) -> set[int]:
        """Commit offsets and metadata. Returns the serials of the assignments that still existed."""
        done: asyncio.Future[set[int]] = self._loop.create_future()
        self._commits.put((commits, done))
        return await done

    # -- the polling thread ---------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        consumer = self._consumer
        consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        while not self._is_closing:
            try:
                self._control_flow()
                is_busy = self.is_busy
                self._serve_commits(BUSY_POLL_S if is_busy else 0)
                first = consumer.poll(0 if is_busy else POLL_S)
                if first is not None:
                    self._take([first])  # at once: if anything failed first, this message would be skipped
                    self._take(consumer.consume(BATCH, timeout=0))
            except KafkaException as failure:
                self._tell(self._group.failed, error_of(failure, "messages could not be fetched"))
                time.sleep(RETRY_S)
            except Exception as error:  # noqa: BLE001 - going on would pass over messages that were fetched
                logger.error("consuming from Kafka ends: %r", error, exc_info=error)
                self._tell(self._group.failed, StoreLost(f"consuming from Kafka has ended: {error!r}"))
                break
        consumer.close()

    def _serve_commits(self, seconds: float) -> None:
        """Commit everything that is waiting, or the first that comes within ``seconds``."""
        with suppress(Empty):
            while True:
                commits, done = self._commits.get(timeout=seconds) if seconds else self._commits.get_nowait()
                seconds = 0
                try:
                    self._tell(_finish, done, self._commit(commits))
                except KafkaException as failure:
                    if failure.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
                        self.metadata_bytes //= 2
                    self._tell(_finish, done, error_of(failure, "what is finished could not be committed"))

    def _commit(self, commits: Sequence[Commit]) -> set[int] | SeriatimError:
        serials = {flow.serial for flow in self._owned.values()} & {commit.serial for commit in commits}
        places = [
            TopicPartition(self._topic, commit.number, commit.offset, commit.metadata)
            for commit in commits
            if commit.serial in serials
        ]
        if places and self._consumer.memberid() != self._identity:
            # If the group has no members Kafka would accept it, and undo another member's later commit.
            return StaleLease("what is finished could not be committed: the session has ended")
        for place in (self._consumer.commit(offsets=places, asynchronous=False) or ()) if places else ():
            if place.error is not None:
                raise KafkaException(place.error)
        return serials

    def _control_flow(self) -> None:
        for number, flow in self._owned.items():
            if flow.exceeds(0.5 if flow.is_paused else 1) != flow.is_paused:
                flow.is_paused = not flow.is_paused
                place = [TopicPartition(self._topic, number)]
                self._consumer.pause(place) if flow.is_paused else self._consumer.resume(place)

    def _take(self, messages: Iterable[Message]) -> None:
        found: dict[int, list[tuple[Record, Origin | None]]] = {}
        ends, gone = dict[int, int](), dict[int, int]()
        for message in messages:
            error, number, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is not None and error.code() not in (_END, _OUT_OF_RANGE):
                self._report(error)
            elif (flow := self._owned.get(number)) is None:
                continue
            elif error is None:
                record, origin = record_of(message)
                flow.fetched += 1
                flow.fetched_bytes += len(record.data)
                found.setdefault(number, []).append((record, origin))
            else:
                (ends if error.code() == _END else gone)[number] = offset
        if found or ends:
            self._tell(self._group.fetched, found, ends)
        for number, offset in gone.items():
            self._find_again(number, offset)

    def _report(self, error: KafkaError) -> None:
        """An error of the topic or the membership, not of one partition."""
        if not error.retriable():
            found = error_of(error, "messages could not be fetched")
            # A broker that has just started may not know a new topic yet: retry.
            self._tell(self._group.failed, StoreFailed(str(found)) if isinstance(found, NotFound) else found)

    def _find_again(self, number: int, offset: int) -> None:
        """The log does not have the next offset: continue with its first one."""
        place = TopicPartition(self._topic, number)
        low, _ = self._insist(lambda: self._consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S)) or (0, 0)
        if offset < low:
            self._tell(self._group.removed, number, low)
        else:
            logger.error("partition %d of topic %r ends before offset %d: it begins anew", number, self._topic, offset)
            self._wait_for(_call(self._group.lost, self._give_up([number])))
            self._own([(number, low, frozenset())])
        self._consumer.incremental_unassign([place])  # seeking is not enough: it would fetch nothing more
        self._consumer.incremental_assign([TopicPartition(self._topic, number, low)])

    def _own(self, starts: Sequence[tuple[int, int, frozenset[int]]]) -> None:
        found, metadata = [], self._consumer.consumer_group_metadata()
        # The library's format: its version, and the generation. Documented as opaque; otherwise, epochs are counted.
        generation = int.from_bytes(metadata[7:11], "little") if metadata[:7] == b"CGMDv2:" else 0
        for number, offset, finished in starts:
            flow = Flow(next(self._serials))
            found.append(Assigned(number, flow, (generation << SERIAL_BITS) + flow.serial, offset, finished))
        self._owned |= {one.number: one.flow for one in found}
        self._tell(self._group.assigned, found)
        self._following.put({one.number: one for one in found})

    def _give_up(self, numbers: Sequence[int]) -> list[int]:
        """Stop committing these partitions. Returns the serials of the assignments that end."""
        self._following.put(dict.fromkeys(numbers))
        return [self._owned.pop(number).serial for number in numbers if number in self._owned]

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._identity = consumer.memberid()
        starts = [self._start_of(place) for place in places]
        self._own(starts)
        consumer.incremental_assign(
            [TopicPartition(self._topic, number, max(offset, OFFSET_BEGINNING)) for number, offset, _ in starts]
        )
        # If it was paused in an earlier assignment, it still is.
        consumer.resume(places)

    def _start_of(self, place: TopicPartition) -> tuple[int, int, frozenset[int]]:
        def committed() -> TopicPartition:
            (found,) = self._consumer.committed([place], timeout=CALL_TIMEOUT_S)
            if found.error is not None:
                raise KafkaException(found.error)
            return found

        found = self._insist(committed)
        if found is None or found.offset < 0:
            return place.partition, OFFSET_BEGINNING, frozenset()
        return place.partition, found.offset, decode(found.offset, found.metadata)

    def _insist(self, ask: Callable[[], T]) -> T | None:
        """Retry until there is an answer, or until this closes."""
        while True:
            try:
                return ask()
            except KafkaException as failure:
                if self._is_closing:
                    return None
                logger.warning("where to go on in topic %r is not known yet: %s", self._topic, failure)
                time.sleep(RETRY_S)

    def _on_revoke(self, _: Consumer, places: list[TopicPartition]) -> None:
        numbers = [place.partition for place in places]
        serials = [self._owned[number].serial for number in numbers if number in self._owned]
        self._wait_for(self._group.revoked(serials, self._finishing))
        self._give_up(numbers)

    def _on_lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        serials = self._give_up([place.partition for place in places])
        self._wait_for(_call(self._group.lost, serials))

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the event loop run a coroutine, and serve its commits meanwhile."""
        if self._loop.is_closed():  # closed without waiting for Kafka's answer
            work.close()
            return
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        deadline = time.monotonic() + self._finishing * CLOSING_FACTOR
        while not future.done() and time.monotonic() < deadline:
            self._serve_commits(BUSY_POLL_S)
        error = future.exception() if future.done() else TimeoutError()
        if error is not None:  # the partition is revoked regardless
            logger.error("a partition was given up before its messages were finished: %r", error)

    # -- the thread that follows the state topic ------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._is_closing:
            try:
                self._apply_following()
                for message in self._follower.consume(BATCH, timeout=POLL_S):
                    self._remember(message)
            except Exception as error:  # noqa: BLE001 - the partitions that it follows must go on
                logger.warning("the state of a group could not be read: %r", error)
                time.sleep(RETRY_S)
        self._follower.close()

    def _apply_following(self) -> None:
        with suppress(Empty):
            while True:
                self._wanted |= self._following.get_nowait()
        for number, assigned in list(self._wanted.items()):
            if self._followed.pop(number, None) is not None:  # if reassigned, it is read again from its beginning
                self._follower.incremental_unassign([TopicPartition(self._state_topic, number)])
            if assigned or not number:  # the options are in partition 0
                self._make_room(number)
                self._follower.incremental_assign([TopicPartition(self._state_topic, number, OFFSET_BEGINNING)])
                self._followed[number] = _Followed()
            if assigned:
                self._followed[number] = _Followed(assigned.flow.serial, assigned.epoch, PartitionMemory())
            del self._wanted[number]

    def _make_room(self, number: int) -> None:
        """Add partitions to the state topic, up to this number: the topic may have grown since."""
        known = self._follower.list_topics(self._state_topic, timeout=CALL_TIMEOUT_S).topics[self._state_topic]
        if known.error is None and number >= len(known.partitions):
            admin = AdminClient(self._address.config())
            more = [NewPartitions(self._state_topic, number + 1)]
            admin.create_partitions(more, operation_timeout=TIMEOUT_S)[self._state_topic].result()

    def _remember(self, message: Message) -> None:
        number, offset, error = message.partition() or 0, message.offset() or 0, message.error()
        if (followed := self._followed.get(number)) is None:
            return
        if error is not None:
            if error.code() == _END and number == 0 and (options := self._options[1]) is not None:
                # Everything read now is current. Before the end, it may be old: options that were replaced.
                self._options = self._options[0], None
                self._tell(self._group.reconfigured, options)
            return
        if (record := StateRecord.decoded(message.key(), message.value())) is None:
            return
        if record.key == OPTIONS and number == 0:
            if offset > self._options[0] and record.value is not None:
                self._options = offset, record.value
        elif (memory := followed.memory) is not None:
            memory.take(record)
            if record == claim_record(followed.epoch):
                self._reach_claim(followed, memory)
        elif record.key.startswith("command/"):
            self._tell(self._group.commanded, followed.serial, record)

    def _reach_claim(self, followed: _Followed, memory: PartitionMemory) -> None:
        if memory.epoch > followed.epoch:
            followed.epoch = memory.epoch + 1
            self._tell(self._group.superseded, followed.serial, followed.epoch)
        else:
            followed.memory = None
            self._tell(self._group.remembered, followed.serial, memory)

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)


def _finish(done: asyncio.Future[T], result: T | SeriatimError) -> None:
    if done.done():
        return
    if isinstance(result, SeriatimError):
        done.set_exception(result)
    else:
        done.set_result(result)


async def _call(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)
