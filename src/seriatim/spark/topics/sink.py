"""Topics as a sink: ``df.write`` and ``df.writeStream`` with ``format("seriatim")``.

Rules
    - Every attempt of a task stages its rows in a file of its own. The driver hands the files of the attempts that count to the
      owner of the store, which appends all of them in one transaction, together with the name of the writer and the number
      of the batch: a batch that comes again adds nothing, whatever rows it has then.
    - A streaming query is the writer, by its id, which belongs to its checkpoint. A batch write is a writer of its own, unless
      ``writerName`` and ``batchId`` say otherwise, as they should within ``foreachBatch``.
    - Rows of one partition are appended in their order. Partitions follow each other by their number. Nothing is sorted.
    - What was staged is removed when its batch is done, and what attempts of this and earlier batches left behind with it.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from seriatim.engine.broker import StagedFile
from seriatim.errors import FailedPrecondition, InvalidArgument, OutcomeUnknown
from seriatim.log import logger
from seriatim.spark.identity import task_identity
from seriatim.spark.topics.address import TopicAddress, refuse_unknown
from seriatim.spark.topics.packs import pack_batch
from seriatim.store.pack import PackHead
from seriatim.store.staging import write_staged

if TYPE_CHECKING:
    from seriatim.store.base import Pack

MAX_APPEND_TRIES = 3
"""How often a batch is handed over while its outcome is unknown. It is written once, however often that is."""


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """What one task staged: nothing when it had no rows."""

    writer: str
    partition: int
    host: str
    file: StagedFile | None


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder where rows wait: ``<folder>/<writer>/<batch>/<attempt>``."""

    address: TopicAddress
    folder: Path

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Staging:
        place = TopicAddress.of(options)
        given = options.get("staging")
        if given is not None:
            return cls(place, Path(given).absolute())
        if place.file is None:
            raise InvalidArgument(
                "a store that is not in a file needs the option 'staging': a folder that every machine sees"
            )
        return cls(place, Path(f"{place.file}.staging"))

    def stage(self, writer: str, batch: int, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """Write the rows of a task attempt down."""
        context = TaskContext.get()
        path = self._folder_of(writer) / str(batch) / uuid.uuid4().hex
        counter = _Counter()
        packs = counter.count(pack for rows in batches for pack in pack_batch(rows))
        first = next(packs, None)
        file = None
        if first is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_staged(path, _chain(first, packs))
            file = StagedFile(str(path), counter.messages, counter.size)
        return StagedRows(writer, context.partitionId() if context else 0, socket.gethostname(), file)

    def append(self, writer: str, batch: int, staged: Sequence[StagedRows]) -> None:
        """Let the owner append what was staged, and remove it."""
        files = [one.file for one in sorted(staged, key=lambda one: one.partition) if one.file is not None]
        if files:
            self._require_visible(staged)
            self._append(writer, batch, files)
        self.clear(writer, batch)

    def _append(self, writer: str, batch: int, files: Sequence[StagedFile]) -> None:
        topic = self.address.topic
        for left in reversed(range(MAX_APPEND_TRIES)):
            try:
                offsets = self.address.ask(
                    lambda broker: broker.append_batch(topic, f"spark:{writer}:{topic}", batch, files)
                )
            except OutcomeUnknown:
                if not left:
                    raise
            else:
                if offsets is None:
                    logger.info(
                        "batch %d of %s was written to topic %r before: nothing was added", batch, writer, topic
                    )
                return

    def _require_visible(self, staged: Sequence[StagedRows]) -> None:
        for one in staged:
            self.address.require_one_machine(one.host)
            if one.file is not None and not Path(one.file.path).is_file():
                raise FailedPrecondition(
                    f"'{one.file.path}' was staged on {one.host} and can't be seen on {socket.gethostname()}: set the option "
                    "'staging' to a folder that every machine sees"
                )

    def clear(self, writer: str, batch: int) -> None:
        """Remove what was staged for a batch and those before it: they will not be asked for again."""
        folder = self._folder_of(writer)
        for old in list(folder.iterdir()) if folder.is_dir() else ():
            if old.name.isdecimal() and int(old.name) <= batch:
                shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # the next batch has begun, or there was nothing
            folder.rmdir()

    def _folder_of(self, writer: str) -> Path:
        """Names are the user's, and a topic has its own; a folder can't have every name."""
        return self.folder / hashlib.sha256(f"{writer}\0{self.address.topic}".encode()).hexdigest()[:32]


class _Counter:
    """Counts what passes."""

    def __init__(self) -> None:
        self.messages = self.size = 0

    def count(self, packs: Iterator[Pack]) -> Iterator[Pack]:
        for pack in packs:
            self.messages += PackHead(pack.head).count
            self.size += len(pack.data)
            yield pack


def _chain(first: Pack, rest: Iterator[Pack]) -> Iterator[Pack]:
    yield first
    yield from rest


# -- what Spark calls ---------------------------------------------------------------------------------------------------

_COMMON = ("staging",)
_BATCH = ("writerName", "batchId")


class TopicWriter(DataSourceArrowWriter):
    """The rows of one job."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        refuse_unknown(options, (*_COMMON, *_BATCH))
        require_columns(schema)
        if overwrite:
            raise InvalidArgument("a topic can't be overwritten: write with mode('append')")
        self._staging = Staging.of(options)
        self._writer, self._batch = _name_of(options)
        self._staging.address.require_topic()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._staging.stage(self._writer, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._staging.append(self._writer, self._batch, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's own name
        self._staging.clear(self._writer, self._batch)


def _name_of(options: Mapping[str, str]) -> tuple[str, int]:
    """Under which name and number rows are written: given, or used never again."""
    writer, batch = options.get("writerName"), options.get("batchId")
    if (writer is None) != (batch is None):
        raise InvalidArgument("options 'writerName' and 'batchId' belong together: give both, or none")
    if writer is None or batch is None:
        return uuid.uuid4().hex, 0
    if not batch.isdecimal():
        raise InvalidArgument(f"option 'batchId' must be a whole number of 0 or more, not {batch!r}")
    return writer, int(batch)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The rows of a streaming query, batch after batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        refuse_unknown(options, _COMMON)
        require_columns(schema)
        if overwrite:
            raise InvalidArgument("a topic can't be overwritten: write with outputMode('append')")
        self._staging = Staging.of(options)
        self._staging.address.require_topic()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = task_identity()
        return self._staging.stage(task.query, task.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if staged:
            self._staging.append(staged[0].writer, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for one in _staged(messages)[:1]:
            self._staging.clear(one.writer, batchId)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message for message in messages if isinstance(message, StagedRows)]


# -- columns ------------------------------------------------------------------------------------------------------------


def require_columns(schema: StructType) -> None:
    """Refuse rows that are no messages, naming the column. Columns of other names are not written."""
    types = {field.name: field.dataType for field in schema.fields}
    if "data" not in types:
        raise InvalidArgument(
            f"column 'data' is missing: rows need it to be messages, and there are {', '.join(types)}"
        )
    _require_type(types, "data", (BinaryType, StringType), "binary or string")
    _require_type(types, "key", (StringType,), "string")
    _require_type(types, "attributes", (MapType,), "map<string,string>")
    attributes = types.get("attributes")
    if isinstance(attributes, MapType):
        for part in (attributes.keyType, attributes.valueType):
            _require_type({"attributes": part}, "attributes", (StringType,), "map<string,string>")


def _require_type(types: Mapping[str, DataType], name: str, allowed: tuple[type[DataType], ...], words: str) -> None:
    if name in types and not isinstance(types[name], allowed):
        raise InvalidArgument(f"column {name!r} must be {words}, not {types[name].simpleString()}")
