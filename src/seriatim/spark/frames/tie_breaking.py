"""Which of two rows came first: the one rule for tables, streams and audits.

Rows are compared by

1. the column of **arrival**;
2. ``offset``, if there is an integer column of this name and it is not the arrival itself: messages of a topic may have
   been published in the same instant, and their offsets tell which came first;
3. the **epoch** and the **number**: if nothing else decides, the source is assumed to have sent in order;
4. the digest of the **payload** (``payload_digest``), where payloads are compared;
5. **every other column**, by the names of the columns.

So rows that are still tied are equal in every column, and it makes no difference which of them is the first copy. The result
never depends on the order in which a shuffle returns rows.

Values are compared as in Spark: nulls first, strings and bytes by their bytes, NaN after all numbers, arrays and structs from
left to right. Spark has no order of maps; a map is compared as the sorted list of its entries. A string with a collation is
compared by its bytes, because different strings may be equal there. A comparison stops as early as possible: the columns of 5
cost nothing if arrivals differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.compatibility import DATETIMES
from seriatim.spark.frames.columns import DEFAULT_ARRIVAL, column

_SORTABLE = (
    NumericType,
    BinaryType,
    BooleanType,
    *DATETIMES,
    DayTimeIntervalType,
    YearMonthIntervalType,
    NullType,
)


def tie_numbers(frame: DataFrame, roles: ColumnRoles) -> tuple[str, ...]:
    """The columns of 1 to 3, all of them numbers or timestamps."""
    named = (roles.arrival, offset_beside(frame, roles), roles.epoch, roles.sequence)
    return tuple(dict.fromkeys(name for name in named if name is not None))


def offset_beside(frame: DataFrame, roles: ColumnRoles) -> str | None:
    """The column of offsets, where another column is the arrival."""
    if roles.arrival in (None, DEFAULT_ARRIVAL) or DEFAULT_ARRIVAL not in frame.columns:
        return None
    return DEFAULT_ARRIVAL if isinstance(frame.schema[DEFAULT_ARRIVAL].dataType, IntegralType) else None


def other_columns(frame: DataFrame, roles: ColumnRoles) -> tuple[str, ...]:
    """The columns of 5."""
    return tuple(sorted({*frame.columns} - {*tie_numbers(frame, roles), roles.key}))


def comparable(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    """What rows are sorted by in these columns."""
    return [_comparable(column(name), frame.schema[name].dataType) for name in names]


def _comparable(value: Column, kind: DataType) -> Column:
    """The value, or something in its place that Spark can sort and that differs where the value does."""
    if _has_order(kind):
        return value
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: _comparable(item, kind.elementType))
    if isinstance(kind, StructType):
        fields = [_comparable(value.getField(one.name), one.dataType).alias(one.name) for one in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, MapType):
        return F.array_sort(F.transform(F.map_entries(value), lambda entry: _comparable_entry(entry, kind)))
    return _as_text(value, kind)


def _comparable_entry(entry: Column, kind: MapType) -> Column:
    parts = (("key", kind.keyType), ("value", kind.valueType))
    return F.struct(*(_comparable(entry.getField(name), part).alias(name) for name, part in parts))


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    if isinstance(kind, StringType):
        return kind.isUTF8BinaryCollation()
    return isinstance(kind, _SORTABLE)


def _as_text(value: Column, kind: DataType) -> Column:
    if isinstance(kind, VariantType):
        return F.to_json(value)
    return F.collate(value, "UTF8_BINARY") if isinstance(kind, StringType) else value.cast("string")


# -- payloads -------------------------------------------------------------------------------------------------------------


def payload_digest(frame: DataFrame, names: Sequence[str]) -> Column:
    """64 bits that are equal for equal payloads; two different ones are taken for equal once in 10**19.

    Spark's hash ignores nulls, and does not support maps. So whether there is a null is hashed, too, at every level, and a map
    is hashed as the sorted list of the hashes of its entries: two maps with the same entries are equal.
    """
    values = [(column(name), frame.schema[name].dataType) for name in names]
    return F.xxhash64(*(_hashable(*value) for value in values), *(value.isNull() for value, _ in values))


def _hashable(value: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType):
        return F.xxhash64(F.transform(value, lambda item: _digest(item, kind.elementType)))
    if isinstance(kind, StructType):
        return F.xxhash64(*(_digest(value.getField(one.name), one.dataType) for one in kind.fields))
    if isinstance(kind, MapType):
        return F.xxhash64(F.array_sort(F.transform(F.map_entries(value), lambda entry: _entry_digest(entry, kind))))
    return value if isinstance(kind, (*_SORTABLE, StringType)) else _as_text(value, kind)


def _digest(value: Column, kind: DataType) -> Column:
    return F.xxhash64(_hashable(value, kind), value.isNull())


def _entry_digest(entry: Column, kind: MapType) -> Column:
    return F.xxhash64(_digest(entry.getField("key"), kind.keyType), _digest(entry.getField("value"), kind.valueType))
