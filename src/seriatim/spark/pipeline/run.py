"""A running pipeline: one tagged stream, computed once per batch, and written to every sink.

Rules
    1. A batch is computed once. The output of the kernel is persisted until every sink has it: otherwise each sink would run
       the kernel again. (That would be correct, because every attempt writes the same state, but slow.) If a single topic gets
       the ordered rows, with unchanged columns, the tasks that put them in order stage them directly: they do not pass through
       Spark, and only the few other rows are persisted.
    2. Sinks are written one after another, in the order of the file, each under the name of the query and the number of the
       batch. Spark records a batch as done after the last one. After a crash before that, Spark runs the batch again, with the
       same rows; topics and tables that already have it add nothing.
    3. A pipeline that is stopped finishes the current batch. The next batch is refused before anything of it is computed, and
       is the first of the next run.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.sql.utils import is_remote

from seriatim.core.resequencing.options import Reason
from seriatim.core.validation import duration
from seriatim.errors import FailedPrecondition, InvalidArgument, SeriatimError, StateMismatch
from seriatim.spark.failures import unwrapped
from seriatim.spark.frames.columns import column
from seriatim.spark.frames.dispatch import prepared_stream
from seriatim.spark.frames.resequence import resequence
from seriatim.spark.frames.stream import observed, with_metrics
from seriatim.spark.identity import query_of
from seriatim.spark.pipeline.declaration import AVAILABLE_NOW, Declaration, Sink, Source
from seriatim.spark.pipeline.exactly_once import DELTA, ICEBERG, KAFKA, TOPIC, SinkBatch, has_connector, write
from seriatim.spark.pipeline.kafka import is_payload, source_options
from seriatim.spark.pipeline.parquet_table import cached
from seriatim.spark.pipeline.status import StatusKeeper, some_entries
from seriatim.spark.state.files import location_for_tasks
from seriatim.spark.state_admin import count_held
from seriatim.spark.tagged import EXPIRED, INVALID, METRICS, POSITION, Tag, ordered, tagged_as
from seriatim.spark.topics.datasource import register
from seriatim.spark.topics.sink import TaskStaging, checked_staging, require_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

REASONS = (*map(str, Reason), INVALID, EXPIRED)
MAX_RECENT_BATCHES = 100
"""Of how many batches Spark remembers the progress."""
POLL_INTERVAL_S = 0.1
"""How long it may take to notice that a stream waits for rows, seconds."""
STATES = ("keys", "held", "gaps")
"""Figures that say how it is after a batch, and are not added up over batches."""


@dataclass
class Totals:
    """What was read and written since the start of this run."""

    last_batch: int | None = None
    last_batch_at: float = 0.0
    """When it began, as seconds since 1970."""
    batches: int = 0
    rows_in: int = 0
    rate: float = 0.0
    held: int = 0
    """How many rows wait after the last batch."""
    rows: Counter[str] = field(default_factory=Counter)
    """By tag."""
    ledger: Counter[str] = field(default_factory=Counter)
    """Messages, or numbers that never came, by reason."""
    figures: Counter[str] = field(default_factory=Counter)
    """Everything that tasks reported (``frames.stream.figures_of``), added up."""


class StopRequested(Exception):
    """A batch was refused, because the pipeline is stopping."""


class Run:
    """A pipeline that is running."""

    def __init__(self, declaration: Declaration) -> None:
        self._secrets = declaration.secrets()
        self._declared = declaration.filled_in()
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # totals are read by the command and for Prometheus
        self._failure: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._direct: TaskStaging | None = None
        self._state = ""
        self._written: dict[int, Counter[str]] = {}
        self._totals = Totals()
        self._status = StatusKeeper(self._declared)

    # -- from the outside -----------------------------------------------------------------------------------------------

    @property
    def query(self) -> StreamingQuery:
        """Spark's query."""
        assert self._query is not None
        return self._query

    def start(self, spark: SparkSession) -> None:
        """Start the streaming query in a session."""
        if is_remote():
            raise FailedPrecondition(
                "a declared pipeline does not run in a session of Spark Connect: run 'seriatim pipeline run' or spark-submit "
                "where Spark is; resequence and format('seriatim') work here"
            )
        try:
            self._query = self._stream(spark).start()
        except (PySparkException, SeriatimError) as error:
            raise self._in_one_line(error) from error

    def totals(self) -> Totals:
        """What the batches that Spark has noted as done have read and written."""
        totals = self._totals
        with self._lock:
            for progress in self.query.recentProgress:
                counts = self._written.pop(progress.batchId, None)
                if counts is None:
                    continue
                totals.last_batch, totals.held = progress.batchId, counts["held"]
                totals.last_batch_at = datetime.fromisoformat(progress.timestamp).timestamp()
                totals.batches += 1
                totals.rows_in += progress.sources[0].numInputRows
                totals.rate = progress.processedRowsPerSecond
                totals.rows.update({str(tag): counts[tag] for tag in Tag})
                totals.ledger.update({reason: counts[f"{Tag.LEDGER}/{reason}"] for reason in REASONS})
                totals.figures.update({name: value for name, value in counts.items() if name not in STATES})
                for name in STATES:
                    totals.figures[name] = counts[name]
            if totals.last_batch is None and not self.query.isActive:  # there was nothing to read: no task has counted
                with suppress(
                    StateMismatch
                ):  # nothing was ever read, or the tasks of the next batch will say what is wrong
                    totals.held = count_held(self._state)
        return totals

    def wait(self, seconds: float) -> bool:
        """Wait up to this many seconds; True when it has ended. Raises what made it fail."""
        try:
            return bool(self.query.awaitTermination(seconds))  # type: ignore[arg-type]  # it takes fractions
        except PySparkException as error:
            if isinstance(self._failure, StopRequested):
                return True
            raise self._in_one_line(self._failure or error) from error

    def finish(self) -> None:
        """End it after the batch under way."""
        self._stopping.set()
        while not self.wait(POLL_INTERVAL_S):
            if not self.query.status["isTriggerActive"]:
                self.query.stop()

    # -- the stream -----------------------------------------------------------------------------------------------------

    def _stream(self, spark: SparkSession) -> DataStreamWriter:
        settings = self._declared.settings
        if TOPIC in {self._declared.source.format, *(sink.format for sink in self._declared.sinks)}:
            register(spark)
        frame, choices = read(spark, self._declared.source), resequence(**self._declared.order)
        self._state = location_for_tasks(choices.streaming.folder, lambda name: spark.conf.get(name, None))
        self._direct = task_staging(frame, self._declared)
        tagged = observed(with_metrics(*prepared_stream(frame, choices), deliver=self._direct), choices.streaming)
        stream = tagged.writeStream.queryName(settings.name).option("checkpointLocation", settings.checkpoint)
        if settings.trigger == AVAILABLE_NOW:
            stream = stream.trigger(availableNow=True)
        elif settings.trigger is not None:
            pause = duration("trigger", settings.trigger)
            stream = stream.trigger(processingTime=f"{round(pause * 1000)} milliseconds")
        return stream.foreachBatch(self._write)

    def _write(self, tagged: DataFrame, number: int) -> None:
        try:
            if self._stopping.is_set():
                raise StopRequested
            self._write_all(tagged, number)
        except BaseException as error:
            self._failure = error  # Spark would report it as text, inside a stack trace of Java
            raise

    def _write_all(self, tagged: DataFrame, number: int) -> None:
        query = query_of(tagged)
        with cached(tagged):
            reports = reports_of(tagged)
            counts = sum((Counter(report["figures"]) for report in reports), Counter[str]())
            for sink in self._declared.sinks:
                if self._direct is not None and sink.what == Tag.ORDERED:
                    self._direct.append(query, number, [report["delivered"] for report in reports])
                    continue
                rows = part(tagged, sink, self._declared.order["key"])
                batch = SinkBatch(rows, counts[sink.what], f"{query}:{sink.what}", number)
                write(batch, sink.format, sink.options)
            ledger = {reason: counts[f"{Tag.LEDGER}/{reason}"] for reason in REASONS}
            told = self._status.is_wanted and any(ledger.values())
            entries = some_entries(tagged, self._declared.order["key"]) if told else []
        self._written[number] = counts
        self._written.pop(number - MAX_RECENT_BATCHES, None)  # in case the totals are never read
        self._status.leave(number, counts[Tag.ORDERED], ledger, entries, self._state)

    def _in_one_line(self, error: BaseException) -> SeriatimError:
        """What happened, in one line that has no secret in it."""
        found = unwrapped(error)
        text = f"pipeline '{self._declared.settings.name}': {found}"
        for secret, name in self._secrets.items():
            text = text.replace(secret, name)
        return type(found)(text)


# -- in -----------------------------------------------------------------------------------------------------------------


def read(spark: SparkSession, source: Source) -> DataFrame:
    frame = _opened(spark, source)
    return frame.selectExpr(*source.select) if source.select else frame


def _opened(spark: SparkSession, source: Source) -> DataFrame:
    options = source_options(source.options) if source.format == KAFKA else source.options
    if source.format in {DELTA, ICEBERG} and not has_connector(spark, source.format, options):
        from seriatim.spark.pipeline.table_stream import NAME, TableDataSource

        spark.dataSource.register(TableDataSource)
        return spark.readStream.format(NAME).options(kind=source.format, **options).load()
    reader = spark.readStream.format(source.format)
    if source.format in {DELTA, ICEBERG} and "table" in options:
        others = {name: value for name, value in options.items() if name != "table"}
        return reader.options(**others).table(options["table"])
    reader = reader.options(**options)
    return (reader.schema(source.schema) if source.schema is not None else reader).load()


# -- out ----------------------------------------------------------------------------------------------------------------


def reports_of(tagged: DataFrame) -> list[dict[str, Any]]:
    """What the tasks of a batch report. This is the action that computes the batch: what follows reads what was kept."""
    return [json.loads(row[0]) for row in tagged.filter(F.col("_tag") == METRICS).select("_detail").collect()]


def task_staging(frame: DataFrame, declared: Declaration) -> TaskStaging | None:
    """How the tasks themselves stage the ordered rows of a frame: if one topic gets them, with columns as they are."""
    sinks = [sink for sink in declared.sinks if sink.what == Tag.ORDERED]
    if len(sinks) != 1 or sinks[0].format != TOPIC:
        return None
    sink = sinks[0]
    own = {"key": declared.order["key"], "data": payload_of(frame) or "", "attributes": "attributes"}
    columns = sink.columns or {name: one for name, one in own.items() if one in frame.columns}
    types = {field.name: field.dataType for field in frame.schema.fields}
    schema = StructType([StructField(name, types[one]) for name, one in columns.items() if one in types])
    try:
        require_columns(schema)
    except InvalidArgument:  # a cast will do, or whoever writes the rows says what is wrong
        return None
    if schema.names != [*columns]:  # some are expressions
        return None
    return TaskStaging(checked_staging(sink.options, ("staging",), schema), sink.what, dict(columns))


def part(tagged: DataFrame, sink: Sink, key: str) -> DataFrame:
    """The rows of one sink, with the columns that it wants."""
    rows = ordered(tagged) if sink.what == Tag.ORDERED else tagged_as(tagged, sink.what).drop(POSITION.name)
    if sink.columns is not None:
        return rows.select(*(F.expr(expression).alias(name) for name, expression in sink.columns.items()))
    return rows.select(*as_messages(rows, sink, key)) if sink.format in {TOPIC, KAFKA} else rows


def payload_of(rows: DataFrame) -> str | None:
    """The column with the messages of a topic or of Kafka, as they came."""
    return next((name for name in rows.columns if name == "data" or is_payload(rows, name)), None)


def as_messages(rows: DataFrame, sink: Sink, key: str) -> Iterator[Column]:
    """Rows as messages: those of a topic or of Kafka as they came, all others as JSON."""
    key_kept = sink.format == KAFKA and isinstance(rows.schema[key].dataType, BinaryType)
    yield (column(key) if key_kept else column(key).cast("string")).alias("key")
    payload = payload_of(rows)
    data = "value" if sink.format == KAFKA else "data"
    if sink.what != Tag.ORDERED or payload is None:
        yield F.to_json(F.struct(*map(column, rows.columns))).alias(data)
        return
    yield F.col(payload).alias(data)
    others = "headers" if sink.format == KAFKA else "attributes"
    if others in rows.columns:
        yield F.col(others)
