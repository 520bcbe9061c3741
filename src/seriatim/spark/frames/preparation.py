"""Prepares rows for the kernel: the columns that it needs, their order, and the types of its output.

The kernel reads times as numbers and compares payloads by a digest, so suitable columns are added if the frame has none. They
are kept with held rows, and dropped from the output.

The rows of a table are sorted by key, and then by the rule of ``tie_breaking.py``, so that the same table always gives the
same result. (Streams are sorted by ``arrival_order.py``, by the same rule.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType

from seriatim.errors import InvalidArgument
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.compatibility import arrow_schema
from seriatim.spark.frames.columns import arrival_time, column, refuse_taken
from seriatim.spark.frames.tie_breaking import comparable, other_columns, payload_digest, tie_numbers
from seriatim.spark.kernel.arrival_order import ArrivalOrder
from seriatim.spark.kernel.intake import check_columns
from seriatim.spark.tagged import ADDED_FIELDS

TIME, DIGEST = "__seriatim_time", "__seriatim_digest"
PARTITION, TICK, BEGAN = "__seriatim_partition", "__seriatim_tick", "__seriatim_began"
"""Where a row belongs, whether it is a tick and no row, and when its batch began: for the stream's tasks alone."""
ADDED = (TIME, DIGEST, PARTITION, TICK, BEGAN)


@dataclass(frozen=True)
class Preparation:
    """How the rows of a frame are prepared. ``in_processing_time`` uses the times of batches instead of those of arrival."""

    frame: DataFrame
    roles: ColumnRoles
    in_processing_time: bool
    compares_payloads: bool = False
    own: tuple[pa.Field, ...] = ADDED_FIELDS
    """The columns that the kernel adds to a row, behind its tag."""

    def __post_init__(self) -> None:
        refuse_taken(self.frame, ("_tag", *(field.name for field in self.own), *ADDED))
        _refuse_names_for_python(self.frame)
        check_columns(self.kernel_roles, self.arrow_schema())

    @property
    def kernel_roles(self) -> ColumnRoles:
        return replace(self.roles, arrival=TIME, payload=(DIGEST,) if self.compares_payloads else ())

    def columns(self) -> Iterator[Column]:
        """What is added to a row of the frame; the time of a batch is not, it is the same for all."""
        if not self.in_processing_time:
            yield arrival_time(self.frame, self.roles.arrival).alias(TIME)
        if self.compares_payloads:
            yield payload_digest(self.frame, self.roles.payload).alias(DIGEST)

    @property
    def arrival_order(self) -> ArrivalOrder:
        """The rule of ``tie_breaking.py``, for the columns of this frame and those that are added."""
        digest = (DIGEST,) if self.compares_payloads else ()
        numbers = (*tie_numbers(self.frame, self.roles), *digest)
        return ArrivalOrder(numbers, self.roles.key, other_columns(self.frame, self.roles))

    def order(self) -> list[Column]:
        """The same for Spark, key by key. What is added must be among the columns."""
        order = self.arrival_order
        return [column(order.key), *map(column, order.numbers), *comparable(self.frame, order.others)]

    # -- types ----------------------------------------------------------------------------------------------------------

    def arrow_schema(self) -> pa.Schema:
        """The columns that the kernel gets."""
        try:
            fields = arrow_schema(self.frame.schema, self.zone)
        except PySparkTypeError as error:  # Arrow lacks the type
            raise InvalidArgument(f"{error}: cast or drop that column") from error
        digest = [pa.field(DIGEST, pa.int64())] if self.compares_payloads else []
        return pa.schema(
            [pa.field(field.name, field.type) for field in fields] + [pa.field(TIME, pa.float64())] + digest
        )

    @property
    def zone(self) -> str | None:
        return self.frame.sparkSession.conf.get("spark.sql.session.timeZone")

    @property
    def reads_local_times(self) -> bool:
        """Whether the times of rows depend on the time zone of the session."""
        arrival = self.roles.arrival
        is_local = arrival is not None and isinstance(self.frame.schema[arrival].dataType, TimestampNTZType)
        return is_local and not self.in_processing_time

    def output_schema(self) -> StructType:
        """The columns that the kernel gives, less those that were added for it."""
        own = [StructField(field.name, from_arrow_type(field.type)) for field in self.own]
        columns = [StructField(field.name, field.dataType) for field in self.frame.schema.fields]
        return StructType([StructField("_tag", StringType()), *columns, *own])


def _refuse_names_for_python(frame: DataFrame) -> None:
    """PySpark itself takes a dot in the name of a column for a field of it, where it gives the columns to Python."""
    misread = [name for name in frame.columns if set(name) & set(".`")]
    if misread:
        raise InvalidArgument(
            f"Spark can't give columns with a dot or ` in their names to Python: rename {misread[0]!r}"
        )


def table_of(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches of a task as one table of exactly these columns. It is left in pieces: the kernel puts them together."""
    # Each is cast by itself: what Spark sends and what was cut off before may differ in what can be null.
    tables = [pa.Table.from_batches([batch]).select(schema.names).cast(schema) for batch in batches]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def batches_of(tagged: pa.Table, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns of the output, in pieces that the JVM reads while the next one is sent to it."""
    output = tagged.select(names)
    row_bytes = output.nbytes // max(1, output.num_rows)
    return iter(output.to_batches(max_chunksize=max(1, min(ROWS_PER_BATCH, BYTES_PER_BATCH // max(1, row_bytes)))))


ROWS_PER_BATCH, BYTES_PER_BATCH = 50_000, 8 << 20
