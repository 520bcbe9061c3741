"""A running pipeline: one tagged stream, computed once a batch, and written to every sink.

Rules
    1. A batch is computed once. What the kernel gives out is kept until every sink has it: an action for each sink would run
       the kernel as often. (Running it again would do no harm, every attempt writes the same state; it would take the time.)
    2. Sinks are written one after another, in the order of the file, each under the name of the query and the number of the
       batch. Spark notes a batch as done after the last one. A crash before that runs the batch again, with the same rows;
       topics and tables that have it already add nothing.
    3. A pipeline that is told to stop finishes the batch under way. The next one is turned away before anything of it is
       computed, and is the first of the next run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.options import duration
from seriatim.core.resequencing import Reason
from seriatim.errors import SeriatimError, StateMismatch
from seriatim.spark.failures import unwrapped
from seriatim.spark.frames.columns import column
from seriatim.spark.frames.resequence import resequence
from seriatim.spark.identity import query_of
from seriatim.spark.pipeline.declaration import AVAILABLE_NOW, Declaration, Sink, Source
from seriatim.spark.pipeline.exactly_once import TABLE, TOPIC, SinkBatch, write
from seriatim.spark.pipeline.parquet_table import cached
from seriatim.spark.state_admin import held_rows
from seriatim.spark.tagged import EXPIRED, INVALID, POSITION, Tag, ordered, tagged_as
from seriatim.spark.topics.datasource import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

REASONS = (*map(str, Reason), INVALID, EXPIRED)
MAX_RECENT_BATCHES = 100
"""Of how many batches Spark remembers the progress."""
LOOK_INTERVAL_S = 0.1
"""How long it may take to notice that a stream waits for rows, seconds."""


WITHOUT_MESSAGE = frozenset({str(Reason.LOST), EXPIRED})
"""Reasons of entries about something that never came."""


@dataclass
class Totals:
    """What was read and written since the start of this run."""

    last_batch: int | None = None
    batches: int = 0
    rows_in: int = 0
    rate: float = 0.0
    held_before: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """By tag."""
    ledger: Counter[str] = field(default_factory=Counter)
    """Messages, or numbers that never came, by reason."""

    @property
    def held(self) -> int:
        """How many rows wait: those that came and neither went out nor into the ledger."""
        gone = self.rows[Tag.ORDERED] + sum(self.ledger[reason] for reason in REASONS if reason not in WITHOUT_MESSAGE)
        return max(0, self.held_before + self.rows_in - gone)


class StopRequested(Exception):
    """A batch was turned away, because the pipeline is to stop."""


class Run:
    """A pipeline that was started."""

    def __init__(self, declaration: Declaration) -> None:
        self._secrets = declaration.secrets()
        self._declared = declaration.filled_in()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._written: dict[int, dict[str, int]] = {}
        self._totals = Totals()

    # -- from the outside -----------------------------------------------------------------------------------------------

    @property
    def query(self) -> StreamingQuery:
        assert self._query is not None
        return self._query

    def count_held(self) -> None:
        """Let the totals begin with what was held before; that reads all of the state."""
        self._totals.held_before = rows_held(self._declared.order["state"])

    def start(self, spark: SparkSession) -> None:
        try:
            self._query = self._stream(spark).start()
        except (PySparkException, SeriatimError) as error:
            raise self._in_one_line(error) from error

    def totals(self) -> Totals:
        """What the batches that Spark has noted as done have read and written."""
        for progress in self.query.recentProgress:
            counts = self._written.pop(progress.batchId, None)
            if counts is not None:
                self._add(progress, counts)
        return self._totals

    def _add(self, progress: StreamingQueryProgress, counts: dict[str, int]) -> None:
        totals = self._totals
        totals.last_batch = progress.batchId
        totals.batches += 1
        totals.rows_in += progress.sources[0].numInputRows
        totals.rate = progress.processedRowsPerSecond
        totals.rows.update({str(tag): counts[tag] for tag in Tag})
        totals.ledger.update({reason: counts[f"{Tag.LEDGER}/{reason}"] for reason in REASONS})

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
        while not self.wait(LOOK_INTERVAL_S):
            if not self.query.status["isTriggerActive"]:
                self.query.stop()

    # -- the stream -----------------------------------------------------------------------------------------------------

    def _stream(self, spark: SparkSession) -> DataStreamWriter:
        settings = self._declared.settings
        if TOPIC in {self._declared.source.format, *(sink.format for sink in self._declared.sinks)}:
            register(spark)
        tagged = read(spark, self._declared.source).transform(resequence(**self._declared.order))
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
            self._failure = error  # Spark would tell of it as text, inside a stack trace of Java
            raise

    def _write_all(self, tagged: DataFrame, number: int) -> None:
        query = query_of(tagged)
        with cached(tagged):
            counts = count(tagged)
            for sink in self._declared.sinks:
                # An empty table has columns; other sinks need no empty batch.
                if counts[sink.what] or sink.format == TABLE:
                    rows = part(tagged, sink, self._declared.order["key"])
                    batch = SinkBatch(rows, counts[sink.what], f"{query}:{sink.what}", number)
                    write(batch, sink.format, sink.options)
        self._written[number] = counts
        self._written.pop(number - MAX_RECENT_BATCHES, None)  # in case the totals are never read

    def _in_one_line(self, error: BaseException) -> SeriatimError:
        """What happened, in one line that has no secret in it."""
        found = unwrapped(error)
        text = f"pipeline '{self._declared.settings.name}': {found}"
        for secret, name in self._secrets.items():
            text = text.replace(secret, name)
        return type(found)(text)


def rows_held(state: str) -> int:
    """How many rows wait in the state of a stream; none where there is no state yet."""
    try:
        return sum(table.num_rows for table in held_rows(state))
    except StateMismatch:  # the tasks of the first batch will say whether that is right
        return 0


# -- in -----------------------------------------------------------------------------------------------------------------


def read(spark: SparkSession, source: Source) -> DataFrame:
    reader = spark.readStream.format(source.format).options(**source.options)
    frame = (reader.schema(source.schema) if source.schema is not None else reader).load()
    return frame.selectExpr(*source.select) if source.select else frame


# -- out ----------------------------------------------------------------------------------------------------------------


def count(tagged: DataFrame) -> dict[str, int]:
    """How many rows there are by tag, and how many messages each reason of the ledger is about.

    This is the action that computes the batch: what follows reads what was kept.
    """
    tag, reason = F.col("_tag"), F.col("_reason")
    size = F.greatest(F.col("_size"), F.lit(1))  # an entry about a key that expired is about no message
    rows = [F.count_if(tag == kind).alias(kind) for kind in Tag]
    entries = [
        F.coalesce(F.sum(F.when((tag == Tag.LEDGER) & (reason == name), size)), F.lit(0)).alias(f"{Tag.LEDGER}/{name}")
        for name in REASONS
    ]
    found = tagged.agg(*rows, *entries).first()
    assert found is not None  # an aggregate of everything has one row
    return {name: int(value) for name, value in found.asDict().items()}


def part(tagged: DataFrame, sink: Sink, key: str) -> DataFrame:
    """The rows of one sink, with the columns that it wants."""
    rows = ordered(tagged) if sink.what == Tag.ORDERED else tagged_as(tagged, sink.what).drop(POSITION.name)
    if sink.columns is not None:
        return rows.select(*(F.expr(expression).alias(name) for name, expression in sink.columns.items()))
    return rows.select(*as_messages(rows, sink, key)) if sink.format == TOPIC else rows


def as_messages(rows: DataFrame, sink: Sink, key: str) -> Iterator[Column]:
    """Rows as messages: those of a topic as they came, all others as JSON."""
    yield column(key).cast("string").alias("key")
    if sink.what == Tag.ORDERED and "data" in rows.columns:
        yield F.col("data")
        if "attributes" in rows.columns:
            yield F.col("attributes")
    else:
        yield F.to_json(F.struct(*map(column, rows.columns))).alias("data")
