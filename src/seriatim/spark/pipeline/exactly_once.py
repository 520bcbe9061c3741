"""Which sinks get a batch exactly once, and how.

A batch that Spark repeats after a crash has the same rows and the same number. A sink that stores the number together with the
rows can detect the repeat. Both ``explain`` and ``run`` use this module. It needs Spark only for writing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from seriatim.errors import FailedPrecondition
from seriatim.extras import require_extra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

TOPIC, TABLE, DELTA, ICEBERG, KAFKA = "seriatim", "parquet", "delta", "iceberg", "kafka"

MARK = "seriatim-batch"
"""The property of a snapshot that names its writer and its batch."""


class SinkBatch(NamedTuple):
    """The rows of one batch for one sink. ``writer`` names the query and what of it the sink gets."""

    rows: DataFrame
    row_count: int
    writer: str
    number: int


class ExactlyOnce(NamedTuple):
    """How a format takes each batch exactly once, and the options without which it can't, or one of several.

    ``has_columns``: an empty batch is written, too, because what reads the table wants to know its columns.
    """

    why: str
    needs: tuple[tuple[str, ...], ...]
    write: Callable[[SinkBatch, Mapping[str, str]], None]
    has_columns: bool = True


def _write_to_topic(batch: SinkBatch, options: Mapping[str, str]) -> None:
    once = {"writerName": batch.writer, "batchId": str(batch.number)}
    batch.rows.write.format(TOPIC).options(**options, **once).mode("append").save()


def _write_to_table(batch: SinkBatch, options: Mapping[str, str]) -> None:
    from seriatim.spark.pipeline.parquet_table import write_batch

    write_batch(batch.rows, options["path"], batch.number, writer=batch.writer, rows=batch.row_count)


def _write_to_delta(batch: SinkBatch, options: Mapping[str, str]) -> None:
    if has_connector(batch.rows.sparkSession, DELTA, options):
        once = {"txnAppId": batch.writer, "txnVersion": str(batch.number)}
        _append(batch.rows.write.format(DELTA).options(**once), options)
        return
    require_extra("delta", "deltalake", what="a Delta table without Delta's connector for Spark")
    from seriatim.spark.pipeline.delta_table import write_batch

    if "path" not in options:
        raise FailedPrecondition(
            f"the table {options['table']} is in a catalog of Spark, and Delta's connector is not in this session: add it, or "
            "name the path of the table"
        )
    write_batch(batch.rows, options["path"], batch.number, writer=batch.writer, rows=batch.row_count)


def _write_to_iceberg(batch: SinkBatch, options: Mapping[str, str]) -> None:
    if has_connector(batch.rows.sparkSession, ICEBERG, options):
        if not _is_in_ancestry(batch, options):
            once = {f"snapshot-property.{MARK}": f"{batch.writer}#{batch.number}"}
            _append(batch.rows.write.format(ICEBERG).options(**once), options)
        return
    require_extra("iceberg", "pyiceberg", what="an Iceberg table without Iceberg's connector for Spark")
    from seriatim.spark.pipeline.iceberg_table import write_batch

    if "table" not in options:
        raise FailedPrecondition(
            f"there is an Iceberg table at {options['path']}, and Iceberg's connector is not in this session: add it, or name "
            "the table of a catalog"
        )
    write_batch(batch.rows, options, batch.number, writer=batch.writer, rows=batch.row_count)


def has_connector(session: SparkSession, format_: str, options: Mapping[str, str]) -> bool:
    """Whether a session has the connector of a table format: as one of its extensions, or for the catalog of the table."""
    catalog = f"spark.sql.catalog.{options.get('table', '').partition('.')[0]}"
    settings = (str(session.conf.get(name, "")) for name in ("spark.sql.extensions", catalog))
    return any(f".{format_}." in setting for setting in settings)


def _is_in_ancestry(batch: SinkBatch, options: Mapping[str, str]) -> bool:
    """Whether a snapshot that led to the current one has the batch, or a later one of the same writer."""
    session, table = batch.rows.sparkSession, options.get("table")
    if table is not None and not session.catalog.tableExists(table):
        return False
    history, snapshots = (
        session.table(f"{table}.{name}") if table else session.read.format(ICEBERG).load(f"{options['path']}#{name}")
        for name in ("history", "snapshots")
    )
    ancestry = history.filter("is_current_ancestor").join(snapshots.select("snapshot_id", "summary"), "snapshot_id")
    found = ancestry.selectExpr(f"summary['{MARK}'] AS mark", "parent_id").collect()
    marks = [(row.mark or "").rpartition("#") for row in found]
    numbers = [int(number) for writer, _, number in marks if writer == batch.writer]
    if found and not numbers and batch.number > 0 and all(row.parent_id is not None for row in found):
        raise FailedPrecondition(
            f"the oldest snapshots of the table {table or options['path']} are gone, and no other says whether batch "
            f"{batch.number} is there: keep snapshots for longer than a pipeline stands still, or write to a new table"
        )
    return max(numbers, default=-1) >= batch.number


def _append(writer: DataFrameWriter, options: Mapping[str, str]) -> None:
    """Append to a table of a catalog, or at a path."""
    others = {name: value for name, value in options.items() if name != "table"}
    writer = writer.options(**others).mode("append")
    writer.saveAsTable(options["table"]) if "table" in options else writer.save()


EXACTLY_ONCE = {
    TOPIC: ExactlyOnce(
        "a batch is appended in one transaction with its number; a repeated batch adds nothing",
        (("url",), ("topic",)),
        _write_to_topic,
        has_columns=False,
    ),
    TABLE: ExactlyOnce(
        "a batch appears whole, with its number; a repeated batch adds nothing", (("path",),), _write_to_table
    ),
    DELTA: ExactlyOnce(
        "a batch is one entry of the table's log, with its number as the transaction of an application; a repeated batch "
        "adds nothing",
        (("path", "table"),),
        _write_to_delta,
    ),
    ICEBERG: ExactlyOnce(
        "a batch is one commit of the table, with its number; a repeated batch adds nothing, as long as one driver runs",
        (("path", "table"),),
        _write_to_iceberg,
    ),
}
"""The formats that do, by name."""


KAFKA_REPEATS = (
    "Kafka takes a batch that comes again after a crash once more; its records have the same headers seriatim-query, "
    "-partition, -batch and -position as before, by which a reader can drop them"
)


def write(batch: SinkBatch, format_: str, options: Mapping[str, str]) -> None:
    """Write a batch: exactly once if the format supports that, and otherwise each time that Spark runs it."""
    means = EXACTLY_ONCE.get(format_)
    if batch.row_count == 0 and not (means is not None and means.has_columns):
        return
    if means is not None:
        means.write(batch, options)
    elif format_ == KAFKA:
        from seriatim.spark.pipeline.kafka import write_batch

        write_batch(batch, options)
    else:
        batch.rows.write.format(format_).options(**options).mode("append").save()
