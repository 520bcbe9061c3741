"""Topics as a source: ``spark.read`` and ``spark.readStream`` with ``format("seriatim")``.

Rules
    - An offset of a query is the end of what it has read: the next offset of the log, so ranges neither overlap nor leave gaps.
      A planned range is read to its end, exactly as planned, or the read fails.
    - A streaming query is a registered reader of its log: messages that it has not read are not removed, and it advances when
      Spark has completed a batch. The name of the reader is in the offsets, and so in the checkpoint: a query that continues
      the checkpoint continues the reader, and no other query does.
    - Messages that were removed before they were read are an error that names the earliest kept offset (``failOnDataLoss``).

Theory of operation
    Spark creates a reader in several processes: one on the driver is asked for offsets and ranges during the whole query, the
    others read one range each. Only the first one keeps anything in memory, and only data that can be read again from the
    checkpoint and the store.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from seriatim.errors import FailedPrecondition, InvalidArgument, SeriatimError
from seriatim.log import logger
from seriatim.spark.compatibility import (
    AVAILABLE_NOW_WRAPPER,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    require_spark,
    with_position,
)
from seriatim.spark.topics.address import TopicAddress, refuse_unknown, whole_number, yes_or_no
from seriatim.spark.topics.packs import read_batches
from seriatim.spark.topics.ranges import Range, divide, end_of

if TYPE_CHECKING:
    from seriatim.store.base import StoreReader, TopicRow

EARLIEST, LATEST = "earliest", "latest"
ROWS_PER_PARTITION = 250_000
ROWS_PER_BATCH = 1_000_000
"""How many rows a batch of a stream takes by default: workers need memory for all rows of a batch."""
MAX_PARTITIONS = 64

_READING = ("startingOffsets", "rowsPerPartition", "maxPartitions", "failOnDataLoss")
_BATCH = ("endingOffsets",)
_STREAMING = ("maxRowsPerTrigger", "readerName", "registerReader")


@dataclass(frozen=True, slots=True)
class Reading:
    """What batch and streaming reads have in common."""

    address: TopicAddress
    start: str
    rows_per_partition: int
    max_partitions: int
    fail_on_loss: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Reading:
        return cls(
            TopicAddress.of(options),
            options.get("startingOffsets", EARLIEST).lower(),
            whole_number(options, "rowsPerPartition", ROWS_PER_PARTITION),
            whole_number(options, "maxPartitions", MAX_PARTITIONS),
            yes_or_no(options, "failOnDataLoss", True),
        )

    def plan(self, store: StoreReader, topic: TopicRow, first: int, end: int) -> list[InputPartition]:
        ranges = divide(
            store.spans(topic.id, first, end), first, end, size=self.rows_per_partition, max_tasks=self.max_partitions
        )
        return [TopicRange(topic.id, one, socket.gethostname()) for one in ranges]

    def read(self, partition: TopicRange) -> Iterator[pa.RecordBatch]:
        planned, found = partition.range, 0
        self.address.require_one_machine(partition.planned_on)
        with self.address.open_reader() as store:
            packs = store.packs(partition.topic_id, planned.first, planned.end)
            for batch in read_batches(packs, planned.first, planned.end):
                found += batch.num_rows
                yield batch
        if found != planned.messages:
            self.lost(
                f"{planned.messages - found} of {planned.messages} messages from offset {planned.first} to {planned.end} of "
                f"topic {self.address.topic!r} were removed while they were being read"
            )

    def lost(self, what: str) -> None:
        """Messages are gone that should have been read."""
        if self.fail_on_loss:
            raise FailedPrecondition(f"{what}; to continue without them, set failOnDataLoss to false")
        logger.warning("%s", what)

    def require_kept(self, store: StoreReader, topic: TopicRow, first: int) -> None:
        earliest = store.earliest(topic.id)
        if first < earliest:
            self.lost(
                f"messages of topic {topic.name!r} from offset {first} on are no longer kept: the earliest offset is {earliest}"
            )


class TopicRange(InputPartition):
    """What one task reads, and the host where that was planned."""

    def __init__(self, topic_id: int, range_: Range, planned_on: str) -> None:
        super().__init__(range_)
        self.topic_id = topic_id
        self.range = range_
        self.planned_on = planned_on


def resolve(text: str, store: StoreReader, topic: TopicRow, option: str) -> int:
    """The offset that an option names."""
    if text == EARLIEST:
        return store.earliest(topic.id)
    if text == LATEST:
        return topic.next_offset
    if not text.isdecimal():
        raise InvalidArgument(f"option {option!r} must be {EARLIEST}, {LATEST} or an offset, not {text!r}")
    if int(text) > topic.next_offset:
        raise InvalidArgument(
            f"option {option!r}: offset {text} was not given to any message of topic {topic.name!r} yet: "
            f"the next one is {topic.next_offset}"
        )
    return int(text)


class TopicReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_unknown(options, (*_READING, *_BATCH))
        self._reading = Reading.of(options)
        self._end = options.get("endingOffsets", LATEST).lower()

    def partitions(self) -> list[InputPartition]:
        reading = self._reading
        with reading.address.open_reader() as store:
            topic = reading.address.find_topic(store)
            first = resolve(reading.start, store, topic, "startingOffsets")
            end = resolve(self._end, store, topic, "endingOffsets")
            if reading.start.isdecimal():
                reading.require_kept(store, topic, first)
            return reading.plan(store, topic, first, max(first, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange)
        return self._reading.read(partition)


Offset = dict[str, Any]
"""Where a query stands: ``offset``, of topic ``topic`` with the number ``id``, as reader ``reader`` if it is registered."""


@with_position
class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_unknown(options, (*_READING, *_STREAMING))
        self._reading = Reading.of(options)
        self._limit = whole_number(options, "maxRowsPerTrigger", ROWS_PER_BATCH)
        if "maxRowsPerTrigger" in options:
            require_spark((4, 2), "option 'maxRowsPerTrigger'", "leave it out, a batch then takes all that is there")
        self._is_registered = yes_or_no(options, "registerReader", True)
        self._name = options.get("readerName")
        self._begun: Offset | None = None
        self._begun_before: Offset | None = None
        self._stands: int | None = None  # where our reader does, once we know
        self._checked = False
        self._last: int | None = None

    # -- where to begin -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Where a new query begins. Spark asks until the first batch is there, and must always get the same answer."""
        if self._begun is None:
            self._begun = self._begin()
        return self._begun

    def _begin(self) -> Offset:
        with self._address.open_reader() as store:
            topic = self._address.find_topic(store)
            start = resolve(self._reading.start, store, topic, "startingOffsets")
        offset: Offset = {"topic": topic.name, "id": topic.id, "offset": start}
        if not self._is_registered:
            return self._within_what_is_kept(offset)
        name = offset["reader"] = self._name or f"spark-{uuid.uuid4().hex}"
        self._register(name, start)
        try:
            return self._within_what_is_kept(offset)
        except SeriatimError:
            self._address.ask(lambda broker: broker.delete_reader(name))  # or it would hold back clean-up
            raise

    def _register(self, name: str, position: int) -> None:
        self._address.ask(lambda broker: broker.register_reader(name, self._address.topic, position))
        self._stands = position

    def _within_what_is_kept(self, offset: Offset) -> Offset:
        """Looked at when the reader is registered: what goes before that is noticed here, and nothing goes after it."""
        with self._address.open_reader() as store:
            topic = self._address.find_topic(store)
            if self._reading.start in {EARLIEST, LATEST}:
                return {**offset, "offset": max(offset["offset"], store.earliest(topic.id))}
            self._reading.require_kept(store, topic, offset["offset"])
        return offset

    # -- batches --------------------------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        with self._address.open_reader() as store:
            self._last = self._address.find_topic(store).next_offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        with self._address.open_reader() as store:
            topic = self._continue(store, start)
            first, end = start["offset"], topic.next_offset
            if self._last is not None:
                end = max(first, min(end, self._last))
            if isinstance(limit, ReadMaxRows):
                end = end_of(store.spans(topic.id, first, end), end, limit.max_rows)
        return {**start, "offset": end}

    def reportLatestOffset(self) -> Offset:
        with self._address.open_reader() as store:
            topic = self._address.find_topic(store)
        return {"topic": topic.name, "id": topic.id, "offset": topic.next_offset}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._refuse_early_end(start.get("reader"), end.get("reader"))
        with self._address.open_reader() as store:
            start = self._as_begun_before(store, start, end.get("reader"))
            topic = self._continue(store, start)
            if start["offset"] == end["offset"]:
                return []
            return self._reading.plan(store, topic, start["offset"], end["offset"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange)
        return self._reading.read(partition)

    def commit(self, end: Offset) -> None:
        """Everything below ``end`` was processed, and will not be asked for again."""
        name, stands, offset = end.get("reader"), self._stands, end["offset"]
        if name is not None and stands is not None and stands < offset:
            self._address.ask(lambda broker: broker.move_reader(name, stands, offset))
            self._stands = offset

    # -- continuing -----------------------------------------------------------------------------------------------------

    @property
    def _address(self) -> TopicAddress:
        return self._reading.address

    def _continue(self, store: StoreReader, start: Offset) -> TopicRow:
        """The topic, when what a checkpoint says of it still holds. What must be looked at only once is looked at once."""
        topic = self._address.find_topic(store)
        _require_same(topic, start)
        if not self._checked:
            self._checked = True
            self._require_readable(store, topic, start)
        return topic

    def _require_readable(self, store: StoreReader, topic: TopicRow, start: Offset) -> None:
        name = start.get("reader")
        if name is None:
            self._reading.require_kept(store, topic, start["offset"])
            return
        position = self._position(store, name)
        if position is None:
            self._lost_reader(start)
        elif position > start["offset"]:
            raise FailedPrecondition(
                f"reader {name!r} has passed offset {start['offset']} and stands at {position}: another query moves it. "
                "Give each query its own checkpoint and its own readerName"
            )
        else:
            self._stands = position

    def _lost_reader(self, start: Offset) -> None:
        """Since it was deleted, clean-up did not wait for the query."""
        self._reading.lost(
            f"reader {start['reader']!r} of this query was deleted: messages of topic {self._address.topic!r} from offset "
            f"{start['offset']} on may be gone"
        )
        self._register(start["reader"], start["offset"])

    def _refuse_early_end(self, name: str | None, early: str | None) -> None:
        """Refuse an end that was found before the position of the query was known, as that of a reader begun just now."""
        if early not in (None, name) and self._begun is not None and early == self._begun.get("reader"):
            self._address.ask(lambda broker: broker.delete_reader(early))  # or it would hold back clean-up
            raise FailedPrecondition(
                "Spark asked for the end of the stream before it passed the position of the query: "
                f"unset {AVAILABLE_NOW_WRAPPER}"
            )

    def _as_begun_before(self, store: StoreReader, start: Offset, name: str | None) -> Offset:
        """Where the query first began, if this is its first batch once more.

        Spark does not note where that batch begins, and asks again: a second reader was registered, perhaps elsewhere. The
        first one is in the checkpoint, and still stands where it began.
        """
        again = start.get("reader")
        if name in (None, again) or self._begun is None or again != self._begun.get("reader"):
            return start
        if self._begun_before is None:
            self._address.ask(lambda broker: broker.delete_reader(str(again)))
            position = self._position(store, str(name))
            self._stands = start["offset"] if position is None else position
            self._begun_before = {**start, "reader": name, "offset": self._stands}
        return self._begun_before

    def _position(self, store: StoreReader, name: str) -> int | None:
        return next((row.position for row in store.catalog().readers if row.name == name), None)


def _require_same(topic: TopicRow, start: Offset) -> None:
    if (topic.name, topic.id) != (start["topic"], start["id"]):
        raise FailedPrecondition(
            f"the checkpoint belongs to another topic {start['topic']!r} (number {start['id']}) and not to {topic.name!r} "
            f"(number {topic.id}): use it with its own topic, or begin with a new checkpoint"
        )
    if start["offset"] > topic.next_offset:
        raise FailedPrecondition(
            f"the checkpoint stands at offset {start['offset']} and topic {topic.name!r} ends at {topic.next_offset}: the "
            "store is older than the checkpoint. Begin with a new checkpoint"
        )
