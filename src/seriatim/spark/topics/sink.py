"""Topics as a sink: ``df.write`` and ``df.writeStream`` with ``format("seriatim")``.

Rules
    - Every attempt of a task stages its own rows: in a file, or, for a store in PostgreSQL, in its database, which every
      machine of a cluster can reach. The driver passes the staged rows of the successful attempts to the owner of the store,
      which appends all of them in one transaction, together with the name of the writer and the number of the batch. A repeated
      batch adds nothing, even if its rows differ.
    - A streaming query is the writer, by its id, which belongs to its checkpoint. Each batch write is a separate writer, unless
      ``writerName`` and ``batchId`` are set, as they should be within ``foreachBatch``.
    - Rows of one partition are appended in their order, partition by partition. Nothing is sorted.
    - Staged rows are removed when their batch is done, together with what attempts of this and earlier batches left behind.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from seriatim.errors import FailedPrecondition, InvalidArgument, OutcomeUnknown
from seriatim.extras import require_extra
from seriatim.log import logger
from seriatim.spark.compatibility import DataSourceStreamArrowWriter
from seriatim.spark.identity import TaskIdentity, task_identity
from seriatim.spark.topics.address import TopicAddress, refuse_unknown
from seriatim.spark.topics.packs import pack_batch
from seriatim.store.base import StagedFile
from seriatim.store.pack import PackHead
from seriatim.store.staged_messages import write_staged

if TYPE_CHECKING:
    from seriatim.store.base import Pack

STAGED_ROWS = 100_000
"""How many rows of a task are made into packs at a time."""
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
class StagingFolder:
    """Rows wait in files: ``<folder>/<writer>/<batch>/<attempt>``."""

    folder: Path

    def write(self, writer: str, batch: int, packs: Iterator[Pack]) -> str:
        path = self.folder / writer / str(batch) / uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        write_staged(path, packs)
        return str(path)

    def require_visible(self, file: StagedFile, host: str) -> None:
        if not Path(file.path).is_file():
            raise FailedPrecondition(
                f"'{file.path}' was staged on {host} and can't be seen on {socket.gethostname()}: set the option "
                "'staging' to a folder that every machine sees"
            )

    def clear(self, writer: str, batch: int) -> None:
        folder = self.folder / writer
        for old in list(folder.iterdir()) if folder.is_dir() else ():
            if old.name.isdecimal() and int(old.name) <= batch:
                shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # the next batch has begun, or there was nothing
            folder.rmdir()


@dataclass(frozen=True, slots=True)
class StagingTable:
    url: str

    def write(self, writer: str, batch: int, packs: Iterator[Pack]) -> str:
        require_extra("postgres", "psycopg", what="a store in PostgreSQL")
        from seriatim.store.postgres.staging import stage

        return stage(self.url, writer, batch, packs)

    def require_visible(self, file: StagedFile, host: str) -> None:
        """The owner looks there itself."""

    def clear(self, writer: str, batch: int) -> None:
        from seriatim.store.postgres.staging import forget_staged

        forget_staged(self.url, writer, batch)


@dataclass(frozen=True, slots=True)
class Staging:
    """A topic, and where rows for it wait until they are appended."""

    address: TopicAddress
    place: StagingFolder | StagingTable

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Staging:
        address, folder = TopicAddress.of(options), options.get("staging")
        if folder is None and address.file is None:
            return cls(address, StagingTable(address.url))
        return cls(address, StagingFolder(Path(folder or f"{address.file}.staging").absolute()))

    def stage(self, writer: str, batch: int, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """Write the rows of a task attempt down."""
        context = TaskContext.get()
        counter = _Counter()
        packs = counter.count(pack for rows in batches for pack in pack_batch(rows))
        first = next(packs, None)
        file = None
        if first is not None:
            name = self.place.write(self._name_of(writer), batch, chain([first], packs))
            file = StagedFile(name, counter.messages, counter.size)
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
            if one.file is not None:
                self.place.require_visible(one.file, one.host)

    def clear(self, writer: str, batch: int) -> None:
        """Remove what was staged for a batch and those before it: they will not be asked for again."""
        self.place.clear(self._name_of(writer), batch)

    def _name_of(self, writer: str) -> str:
        """Names are the user's, and a topic has its own; a folder can't have every name."""
        return hashlib.sha256(f"{writer}\0{self.address.topic}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TaskStaging:
    """Stages rows in the task that has put them in order (``frames.stream.Delivery``): they never pass through Spark.

    ``columns`` has the columns of a message, and from which columns of a row they come as they are.
    """

    staging: Staging
    what: str
    columns: dict[str, str]

    def __call__(self, task: TaskIdentity, rows: pa.Table) -> dict[str, Any]:
        messages = rows.select([*self.columns.values()]).rename_columns([*self.columns])
        batches = messages.to_batches(max_chunksize=STAGED_ROWS)
        staged = self.staging.stage(self._writer(task.query), task.batch, iter(batches))
        return {"host": staged.host, "partition": staged.partition, "file": staged.file and staged.file._asdict()}

    def append(self, query: str, batch: int, delivered: Iterable[dict[str, Any]]) -> None:
        """Append what the tasks of a batch staged."""
        writer = self._writer(query)
        staged = [
            StagedRows(writer, one["partition"], one["host"], one["file"] and StagedFile(**one["file"]))
            for one in delivered
        ]
        self.staging.append(writer, batch, staged)

    def _writer(self, query: str) -> str:
        return f"{query}:{self.what}"


class _Counter:
    def __init__(self) -> None:
        self.messages = self.size = 0

    def count(self, packs: Iterator[Pack]) -> Iterator[Pack]:
        for pack in packs:
            self.messages += PackHead(pack.head).count
            self.size += len(pack.data)
            yield pack


# -- what Spark calls ---------------------------------------------------------------------------------------------------


def checked_staging(
    options: Mapping[str, str], known: tuple[str, ...], schema: StructType, overwrite: bool = False
) -> Staging:
    """Where rows are staged, once nothing speaks against writing them."""
    refuse_unknown(options, known)
    require_columns(schema)
    if overwrite:
        raise InvalidArgument("a topic can't be overwritten: write with mode('append') or outputMode('append')")
    staging = Staging.of(options)
    staging.address.require_topic()
    return staging


class TopicWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._staging = checked_staging(options, ("staging", "writerName", "batchId"), schema, overwrite)
        self._writer, self._batch = _name_of(options)

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
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._staging = checked_staging(options, ("staging",), schema, overwrite)

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
