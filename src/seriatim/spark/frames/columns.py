"""Validates the columns of a frame, and finds rows that can't be judged."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    FractionalType,
    IntegralType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from seriatim.errors import InvalidArgument
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.kernel.intake import MAX_NUMBER, NOT_FINITE

Transformation = Callable[[DataFrame], DataFrame]

ARRIVALS = (IntegralType, FractionalType, TimestampType, TimestampNTZType)
DEFAULT_ARRIVAL = "offset"
"""The default arrival column: that of our own source, and of Kafka's."""


class Fault(NamedTuple):
    """A reason why a row can't be judged, and the rows that have it."""

    detail: str
    applies: Column
    code: Column | None = None
    """Its code, if that is not its number in the list."""


def found_in(frame: DataFrame, roles: ColumnRoles) -> ColumnRoles:
    """The same roles with the default arrival. Raises unless the columns exist and have suitable types."""
    arrival = DEFAULT_ARRIVAL if roles.arrival is None and DEFAULT_ARRIVAL in frame.columns else roles.arrival
    found = replace(roles, arrival=arrival)
    for name in (found.key, found.sequence, found.arrival, found.epoch, *found.payload):
        if name is not None:
            require_column(frame, name)
    _refuse_key(found.key, frame.schema[found.key].dataType)
    for name in filter(None, (found.sequence, found.epoch)):
        require_column(frame, name, (IntegralType,), "whole numbers")
    if arrival is not None:
        require_column(frame, arrival, ARRIVALS, "numbers or timestamps")
    return found


def faults_in(frame: DataFrame, roles: ColumnRoles) -> Iterator[Fault]:
    """What can be wrong with a row; the first fault that applies counts. Columns that can't be null are not checked."""
    named = ((roles.key, "key"), (roles.sequence, "number"), (roles.arrival, "time"), (roles.epoch, "epoch"))
    for name, role in named:
        if name is not None and frame.schema[name].nullable:
            yield Fault(f"it has no {role}", column(name).isNull())
    if roles.arrival is not None and isinstance(frame.schema[roles.arrival].dataType, FractionalType):
        time = column(roles.arrival).cast("double")
        yield Fault(NOT_FINITE, F.isnan(time) | F.abs(time).eqNullSafe(float("inf")))
    if frame.schema[roles.sequence].dataType.simpleString() == "bigint":
        number = column(roles.sequence)
        yield Fault(
            f"its number is outside {-MAX_NUMBER} to {MAX_NUMBER}", (number < -MAX_NUMBER) | (number > MAX_NUMBER)
        )


def arrival_time(frame: DataFrame, arrival: str | None) -> Column:
    """A column of arrival as seconds, or as the number that it is."""
    if arrival is None:
        return F.lit(None).cast("double")
    time = column(arrival)
    if isinstance(frame.schema[arrival].dataType, TimestampNTZType):
        time = time.cast("timestamp")
    return time.cast("double")


def column(name: str) -> Column:
    """The column with exactly this name, even if it contains special characters."""
    return F.col(f"`{name.replace('`', '``')}`")


def require_column(
    frame: DataFrame, name: str, kinds: tuple[type[DataType], ...] = (DataType,), what: str = "any values"
) -> None:
    """Refuse a frame that lacks a column, or has one of another type."""
    if name not in frame.columns:
        raise InvalidArgument(f"there is no column '{name}'; {_hint(name, frame.columns)}")
    kind = frame.schema[name].dataType
    if not isinstance(kind, kinds):
        raise InvalidArgument(f"column '{name}' must hold {what}, not {kind.simpleString()}: cast it")


def _refuse_key(name: str, kind: DataType) -> None:
    """Refuse key types by which Spark can't group rows, such as maps."""
    if _has_part(kind, (MapType, VariantType)):
        raise InvalidArgument(
            f"column '{name}' can't be a key: Spark can't group rows by {kind.simpleString()}; name another column, or make "
            "a text of it with to_json"
        )


def _has_part(kind: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    if isinstance(kind, ArrayType):
        return _has_part(kind.elementType, kinds)
    if isinstance(kind, StructType):
        return any(_has_part(field.dataType, kinds) for field in kind.fields)
    return isinstance(kind, kinds)


def first_fault(faults: Sequence[Fault]) -> Column:
    """The number of the first fault of a row, from 1 on; 0 when it has none."""
    code: Column = F.lit(0)
    for number, fault in reversed(list(enumerate(faults, 1))):
        code = F.when(fault.applies, F.lit(number) if fault.code is None else fault.code).otherwise(code)
    return code


def refuse_taken(frame: DataFrame, names: Iterable[str]) -> None:
    """Refuse a frame that already has columns of these names, which are added."""
    taken = set(names) & set(frame.columns)
    if taken:
        raise InvalidArgument(f"the columns {', '.join(sorted(taken))} are added here: rename yours")


def _hint(name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{nearest[0]}'?" if nearest else f"columns are: {', '.join(known) or 'none'}"
