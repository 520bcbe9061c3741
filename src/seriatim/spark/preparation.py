"""What Spark does for the kernel before and after it: columns that the kernel needs, an order, and the types of the way out.

The kernel reads times as numbers and compares payloads by a digest, so columns are added where the frame has none that
will do. They are kept with held rows, and dropped on the way out.

The rows of a table are sorted by key and arrival, and then by **every** other column, so that the same table always comes out
the same. Columns behind the arrival are looked at only where all before are equal. (Streams are sorted by ``arrival.py``.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DatetimeType,
    DayTimeIntervalType,
    NumericType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from seriatim.errors import InvalidArgument
from seriatim.spark.intake import Roles
from seriatim.spark.output import OWN_FIELDS
from seriatim.spark.roles import ColumnRoles, column, refuse_taken

TIME, DIGEST = "__seriatim_time", "__seriatim_digest"
PARTITION, TICK = "__seriatim_partition", "__seriatim_tick"
"""Where a row belongs, and whether it is a tick and no row: for the stream's tasks alone."""
ADDED = (TIME, DIGEST, PARTITION, TICK)


@dataclass(frozen=True)
class Preparation:
    """How the rows of a frame are made ready. ``in_processing_time`` takes the times of batches, and not those of arrival."""

    frame: DataFrame
    roles: ColumnRoles
    in_processing_time: bool
    compares_payloads: bool = False
    own: tuple[pa.Field, ...] = OWN_FIELDS
    """The columns that the kernel adds to a row, behind its tag."""

    def __post_init__(self) -> None:
        refuse_taken(self.frame, ("_tag", *(field.name for field in self.own), *ADDED))
        _refuse_names_for_python(self.frame)
        self.kernel_roles.check(self.arrow_schema())

    @property
    def kernel_roles(self) -> Roles:
        digest = DIGEST if self.compares_payloads else None
        return Roles(self.roles.key, self.roles.sequence, TIME, self.roles.epoch, digest)

    def columns(self) -> Iterator[Column]:
        """What is added to a row of the frame; the time of a batch is not, it is the same for all."""
        if not self.in_processing_time:
            yield self.roles.time(self.frame).alias(TIME)
        if self.compares_payloads:
            yield self._digest().alias(DIGEST)

    def _digest(self) -> Column:
        """Equal for equal payloads. A hash passes over nulls: whether there is one has to be said."""
        values = [_comparable(column(name), self.frame.schema[name].dataType) for name in self.roles.payload]
        return F.xxhash64(*values, *(value.isNull() for value in values))

    def order(self) -> list[Column]:
        first = [self.roles.key, self.roles.arrival, self.roles.epoch, self.roles.sequence]
        names = dict.fromkeys([name for name in first if name is not None] + self.frame.columns)
        return [_comparable(column(name), self.frame.schema[name].dataType) for name in names]

    # -- types ----------------------------------------------------------------------------------------------------------

    def arrow_schema(self) -> pa.Schema:
        """The columns that the kernel gets."""
        zone = self.frame.sparkSession.conf.get("spark.sql.session.timeZone")
        try:
            fields = to_arrow_schema(self.frame.schema, timezone=zone)
        except TypeError as error:  # PySpark's own, of a type that Arrow lacks
            raise InvalidArgument(f"{error}: cast or drop that column") from error
        digest = [pa.field(DIGEST, pa.int64())] if self.compares_payloads else []
        return pa.schema(
            [pa.field(field.name, field.type) for field in fields] + [pa.field(TIME, pa.float64())] + digest
        )

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


def _comparable(value: Column, kind: DataType) -> Column:
    """The value, or a text in its place where Spark has neither order nor hash for it: for maps, for example."""
    return value if _has_order(kind) else F.to_json(F.struct(value))


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    return isinstance(
        kind,
        NumericType
        | StringType
        | BinaryType
        | BooleanType
        | DatetimeType
        | DayTimeIntervalType
        | YearMonthIntervalType,
    )


def table_of(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches of a task as one table of exactly these columns, each in one piece."""
    tables = [pa.Table.from_batches([batch]).select(schema.names) for batch in batches]
    return pa.concat_tables(tables).cast(schema).combine_chunks() if tables else schema.empty_table()


def batches_of(tagged: pa.Table, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns of the way out, in pieces that fit into a message to the JVM."""
    return iter(tagged.select(names).to_batches(max_chunksize=ROWS_A_PIECE))


ROWS_A_PIECE = 50_000
