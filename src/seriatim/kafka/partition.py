"""One assigned partition: its lanes, its unfinished records, and its committed progress.

Rules
    - Nothing is delivered before the group's state topic was read to its end and the partition was claimed.
    - A record is finished when it is settled, skipped, filtered out, stored as a dead letter, or the repeat of a row
      that a Spark pipeline wrote before. It is durable when a commit covers it; only then may the next message of its
      key be delivered (``release="durable"``), and only then is its count of failures forgotten.
    - A revoked partition delivers nothing more; messages in flight may finish. A lost one is fenced at once.
    - Within a partition of Kafka, the rows that one query and partition of it (a *writer*) wrote have increasing places
      (batch, position), except for those of a batch that ran again. A row whose place is not beyond the highest before
      it is a repeat. The highest places are durable *before* the commit that passes the rows that reached them. So
      after a crash they belong to finished rows alone: rows read again below them are finished, or repeats.

    No IO: the caller writes and commits what it returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import DeadLettered, ReleaseAfter
from seriatim.engine.broker import OnDurable
from seriatim.engine.consumer import Record
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import NotFound
from seriatim.kafka.progress import MAX_METADATA_BYTES, Progress
from seriatim.kafka.records import OFFSET_BITS, Origin, message_id
from seriatim.kafka.state import (
    Command,
    Failure,
    PartitionMemory,
    StateRecord,
    failure_record,
    pause_record,
    replay_record,
)

TOKEN_BITS = 40
"""Tokens of one assignment: the bits above say which assignment it is."""

MAX_RECORDS, MAX_BYTES = 10_000, 64 * 1024 * 1024
"""How much of a partition is in memory before fetching pauses."""

Accepts = Callable[[Mapping[str, str] | None], bool]


@dataclass(slots=True)
class Flow:
    """One assignment of a partition, and how much of it is in memory.

    The polling thread counts what it fetched, the event loop what it released: neither changes the other's counters.
    """

    serial: int
    """Of the assignment: the same partition may come again."""
    fetched: int = 0
    fetched_bytes: int = 0
    released: int = 0
    released_bytes: int = 0
    is_paused: bool = False

    def exceeds(self, share: float) -> bool:
        """Whether more is in memory than a share of the limit."""
        records, size = self.fetched - self.released, self.fetched_bytes - self.released_bytes
        return records > MAX_RECORDS * share or size > MAX_BYTES * share


class Commit(NamedTuple):
    """What to commit for one assignment of a partition, and what becomes durable with it."""

    number: int
    serial: int
    offset: int
    metadata: str
    covered: list[int]


class Partition:
    """The state of one assignment of a partition, which is claimed with ``epoch``."""

    def __init__(
        self,
        number: int,
        flow: Flow,
        epoch: int,
        options: SubscriptionOptions,
        accepts: Accepts,
        offset: int,
        finished: frozenset[int],
        now: float,
    ) -> None:
        self.number = number
        self.serial = flow.serial
        self.epoch = epoch
        self.options = options
        self.lanes = Lanes(options.delivery, first_token=(flow.serial << TOKEN_BITS) + 1)
        self.lanes.advance(now)
        self.memory = PartitionMemory()
        self.is_ready = self.is_claimed = False  # records are queued; they may be delivered
        self.is_ending = self.is_dirty = False
        self.outbox: dict[str, StateRecord] = {}  # for the state topic: the newest of each key
        self.letters: list[DeadLettered] = []  # for the dead-letter topic
        self.writing: asyncio.Task[None] | None = None
        self.burying: asyncio.Task[None] | None = None
        self.beginning: asyncio.Task[None] | None = None
        self.deferred: dict[str, Command] = {}  # commands about messages that were not fetched yet
        self._flow = flow
        self._added = 0
        self._accepts = accepts
        self._progress = Progress(offset, finished)
        self._places: dict[str, tuple[int, int]] = {}  # the highest seen, by writer
        self._reached: deque[tuple[int, Origin]] = deque()  # offsets that set such a place, and are not passed yet
        self._early: list[tuple[Record, Origin | None, bool]] = []  # arrived before it was ready
        self._records: dict[int, Record] = {}
        self._settled: list[int] = []  # finished, but not covered by a commit yet
        self._waiters: dict[int, OnDurable] = {}
        self._last_commit: tuple[int, str] | None = None

    # -- records in -----------------------------------------------------------------------------------------------------

    def add(self, records: Iterable[tuple[Record, Origin | None]], now: float) -> None:
        for record, origin in records:
            self._added += 1
            offset = record.offset & (1 << OFFSET_BITS) - 1
            if offset < self._progress.next:
                self._flow.released_bytes += len(record.data)  # a repeat
                continue
            is_open = self._progress.see(offset)
            if self.is_ready:
                self._take(offset, record, origin, now, is_open=is_open)
            else:
                self._early.append((record, origin, is_open))
        self._release()

    def skip_to(self, end: int) -> int:
        """No more records will come below an offset. Returns how many passed offsets are not known to be finished."""
        before, passed = self._progress.lowest, self._progress.skip_to(end)
        self.is_dirty |= self._progress.lowest > before
        return passed

    def begin(self, memory: PartitionMemory, now: float) -> list[StateRecord]:
        """Its state is known: queue the records that arrived. Returns what must be written before delivery begins."""
        self.memory, self.is_ready = memory, True
        written = [StateRecord(name, None) for name in memory.void]
        for offset, (epoch, failure) in list(memory.failures.items()):
            if offset < self._progress.lowest:
                del memory.failures[offset]  # the previous member crashed before deleting it
            else:
                memory.failures[offset] = self.epoch, failure
                written.append(failure_record(offset, self.epoch, failure))
            written.append(failure_record(offset, epoch, None))
        for writer, (epoch, place) in list(memory.replays.items()):
            self._places[writer] = place
            written += [replay_record(writer, self.epoch, place), replay_record(writer, epoch, None)]
        for key, (epoch, reason) in memory.paused.items():
            self.lanes.pause(key)
            written += [pause_record(key, self.epoch, reason, is_paused=True)]
            written += [pause_record(key, epoch, None, is_paused=False)]
        early, self._early = self._early, []
        for record, origin, is_open in early:
            self._take(record.offset & (1 << OFFSET_BITS) - 1, record, origin, now, is_open=is_open)
        self._release()
        return written

    def _take(self, offset: int, record: Record, origin: Origin | None, now: float, *, is_open: bool) -> None:
        is_repeat = False
        if origin is not None:
            is_repeat = origin.place <= self._places.get(origin.writer, (-1, -1))
            if not is_repeat:
                self._places[origin.writer] = origin.place
                self._reached.append((offset, origin))
        if not is_open or is_repeat or not self._accepts(record.attributes):
            self._flow.released_bytes += len(record.data)
            if is_open:
                self._progress.finish(offset)
                self.is_dirty = True
            return
        self._records[offset] = record
        key = self.lane_of(offset)
        if (known := self.memory.failures.get(offset)) is not None:
            failure, passes = known[1], self.options.retry.lets_pass(key)
            not_before = failure.not_before or -inf
            self.lanes.admit(key, offset, failure.failures, not_before, failure.error, steps_aside=passes)
        else:
            self.lanes.push(key, offset, now, record.not_before - now)

    def _release(self) -> None:
        self._flow.released = self._added - len(self._progress)

    def record(self, offset: int) -> Record:
        return self._records[offset]

    def has_seen(self, offset: int) -> bool:
        return offset < self._progress.next

    def lane_of(self, offset: int) -> str | None:
        """The key of an unfinished message, as lanes know it."""
        if offset not in self._records:
            raise NotFound(f"message {message_id(self.number, offset)} is finished")
        return self._records[offset].key if self.options.message_ordering else None

    # -- progress -------------------------------------------------------------------------------------------------------

    def finish(self, offsets: Sequence[int]) -> None:
        """Mark messages as finished."""
        for offset in offsets:
            self._progress.finish(offset)
            self._flow.released_bytes += len(self._records.pop(offset).data)
        self._release()
        self._settled += offsets
        self.is_dirty = True

    def note(self, offset: int, failure: Failure, now: float) -> list[StateRecord]:
        """A message failed or is delayed: the records to write."""
        if offset not in self.memory.failures and not failure.failures and failure.not_before <= now:
            return []
        self.memory.failures[offset] = self.epoch, failure
        return [failure_record(offset, self.epoch, failure)]

    def wait(self, offset: int, on_durable: OnDurable) -> None:
        self._waiters[offset] = on_durable

    def passed(self, offset: int) -> list[StateRecord]:
        """What must be durable before an offset is committed: the places of the rows of Spark pipelines below it."""
        passed: dict[str, tuple[int, int]] = {}
        while self._reached and self._reached[0][0] < offset:
            _, origin = self._reached.popleft()
            passed[origin.writer] = origin.place
        return [replay_record(writer, self.epoch, place) for writer, place in passed.items()]

    def to_commit(self, metadata_bytes: int = MAX_METADATA_BYTES) -> Commit | None:
        """The commit that is due, if any."""
        self.is_dirty = False
        offset, encoded = self._progress.commit(metadata_bytes)
        if (offset, encoded.text) == self._last_commit:
            return None
        covered = [done for done in self._settled if done < offset or done <= encoded.last]
        return Commit(self.number, self.serial, offset, encoded.text, covered)

    def committed(self, commit: Commit) -> list[StateRecord]:
        """A commit succeeded. Returns the records that delete obsolete state."""
        self._last_commit = commit.offset, commit.metadata
        covered, forgotten = set(commit.covered), list[StateRecord]()
        self._settled = [offset for offset in self._settled if offset not in covered]
        if self.options.release is ReleaseAfter.DURABLE:
            self.lanes.confirm_all(commit.covered)
        for offset in commit.covered:
            if self.memory.failures.pop(offset, None) is not None:
                forgotten.append(failure_record(offset, self.epoch, None))
            self.tell(offset, None)
        return forgotten

    def tell(self, offset: int, error: BaseException | None) -> None:
        if (on_durable := self._waiters.pop(offset, None)) is not None:
            on_durable(error)

    @property
    def is_idle(self) -> bool:
        """Whether all outcomes are durable."""
        under_way = self.outbox or self.writing or self.letters or self.burying
        return not (self._settled or (self.is_dirty and self.is_ready) or under_way)

    def end(self, error: BaseException) -> None:
        """It is lost: fail the futures that wait for durability."""
        for offset in list(self._waiters):
            self.tell(offset, error)
