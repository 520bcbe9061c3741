"""Which sinks get a batch exactly once, and by what means.

A batch that Spark runs again after a crash has the same rows under the same number. A sink that keeps the number together with
the rows can tell that it has them already. Who explains a pipeline asks here, and so does who runs it. Nothing here needs Spark
until something is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC, TABLE = "seriatim", "parquet"


class SinkBatch(NamedTuple):
    """The rows of one batch for one sink. ``writer`` names the query and what of it the sink gets."""

    rows: DataFrame
    row_count: int
    writer: str
    number: int


class ExactlyOnce(NamedTuple):
    """How a format takes each batch exactly once, and the options without which it can't."""

    why: str
    needs: tuple[str, ...]
    write: Callable[[SinkBatch, Mapping[str, str]], None]


def _write_to_topic(batch: SinkBatch, options: Mapping[str, str]) -> None:
    once = {"writerName": batch.writer, "batchId": str(batch.number)}
    batch.rows.write.format(TOPIC).options(**options, **once).mode("append").save()


def _write_to_table(batch: SinkBatch, options: Mapping[str, str]) -> None:
    from seriatim.spark.pipeline.parquet_table import write_batch

    write_batch(batch.rows, options["path"], batch.number, writer=batch.writer, rows=batch.row_count)


EXACTLY_ONCE = {
    TOPIC: ExactlyOnce(
        "a batch is appended in one transaction with its number; one that comes again adds nothing",
        ("url", "topic"),
        _write_to_topic,
    ),
    TABLE: ExactlyOnce(
        "a batch appears whole, with its number; one that comes again adds nothing", ("path",), _write_to_table
    ),
}
"""The formats that do, by name."""


def write(batch: SinkBatch, format_: str, options: Mapping[str, str]) -> None:
    """Write a batch: exactly once where the format can, and otherwise each time that it comes."""
    means = EXACTLY_ONCE.get(format_)
    if means is not None:
        means.write(batch, options)
    else:
        batch.rows.write.format(format_).options(**options).mode("append").save()
