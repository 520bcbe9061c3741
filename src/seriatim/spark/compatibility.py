"""The differences between the supported versions of Spark, 4.0 to 4.3. No other module checks the version.

============================  =====  ==================================================================================
feature of Spark              since  before that
============================  =====  ==================================================================================
``repartitionById``           4.1    rows are shuffled by integers that hash to the partition they belong to
``DatetimeType``              4.1    its subclasses are listed
``DataSourceStreamArrow…``    4.1    a class that inherits the streaming and the Arrow writer does the same
``latestOffset(start, …)``    4.2    a reader keeps its position, which Spark also passes to it after a restart
limits of a batch             4.2    ``maxRowsPerTrigger`` is refused
available-now of readers      4.2    one batch for everything available; Spark's wrapper, which asks too early, is refused
time zones of Arrow schemas   4.2    timestamps are in UTC, which is the same moment
============================  =====  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from seriatim.errors import FailedPrecondition

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
AVAILABLE_NOW_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
HASH_SEED = 42

Reader = TypeVar("Reader", bound=DataSourceStreamReader)

if TYPE_CHECKING or SPARK >= (4, 2):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """How much a batch may take."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most this many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:
        """Spark does not ask for it yet."""


if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import DatetimeType

    DATETIMES = (DatetimeType,)
else:
    DATETIMES = (DateType, TimestampType, TimestampNTZType)

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark gives Arrow batches to any writer that is an Arrow writer."""


__all__ = [
    "AVAILABLE_NOW_WRAPPER",
    "DATETIMES",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "refuse_available_now_wrapper",
    "require_spark",
    "shuffle_to",
    "with_position",
]


def require_spark(version: tuple[int, int], feature: str, instead: str) -> None:
    if version > SPARK:
        needed = ".".join(map(str, version))
        raise FailedPrecondition(
            f"{feature} needs Spark {needed} or newer, and this is Spark {pyspark.__version__}: {instead}"
        )


def refuse_available_now_wrapper(spark: SparkSession) -> None:
    """Before 4.2 the wrapper asks a reader for its end before it passes the position of the query."""
    if str(spark.conf.get(AVAILABLE_NOW_WRAPPER, "false")).lower() == "true":
        require_spark((4, 2), f"{AVAILABLE_NOW_WRAPPER} = true", "unset it; available-now then reads all in one batch")


def arrow_schema(schema: StructType, time_zone: str | None) -> pa.Schema:
    """The columns as Spark gives them to Python."""
    return to_arrow_schema(schema, timezone=time_zone) if SPARK >= (4, 2) else to_arrow_schema(schema)


def with_position(reader: type[Reader]) -> type[Reader]:
    """A stream reader for the installed Spark: before 4.2 ``latestOffset`` has no arguments.

    A new query is asked for its end first, and then for its start. A restarted one first gets its position by
    ``partitions(position, position)``.
    """
    if SPARK >= (4, 2):
        return reader

    class Positioned(reader):  # type: ignore[valid-type, misc]
        _stream_position: dict[str, Any] | None = None

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
            self._stream_position = start or self._stream_position or self.initialOffset()
            end: dict[str, Any] = super().latestOffset(self._stream_position, limit or ReadAllAvailable())
            return end

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
            planned = super().partitions(start, end)
            self._stream_position = end
            return planned

    # Tasks find it under the name of the class that it stands for.
    Positioned.__module__, Positioned.__qualname__, Positioned.__name__ = (
        reader.__module__,
        reader.__qualname__,
        reader.__name__,
    )
    return Positioned


# -- shuffles -------------------------------------------------------------------------------------------------------------


def shuffle_to(rows: DataFrame, partitions: int, number: str) -> DataFrame:
    """Send each row to the partition that the column ``number`` names."""
    if SPARK >= (4, 1):
        return rows.repartitionById(partitions, F.col(number))
    integers = F.array(*map(F.lit, integers_by_partition(partitions)))
    return rows.repartition(partitions, integers[F.col(number)])


def integers_by_partition(partitions: int) -> list[int]:
    """For each partition an integer that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    for integer in count():
        found.setdefault(hash_of_integer(integer) % partitions, integer)
        if len(found) == partitions:
            return [found[number] for number in range(partitions)]
    raise AssertionError  # count() has no end


def hash_of_integer(value: int) -> int:
    """Spark's ``hash`` of one ``int``: Murmur3, with a sign."""
    mixed = _rotated(value * 0xCC9E2D51, 15) * 0x1B873593
    mixed = _rotated(HASH_SEED ^ mixed & 0xFFFFFFFF, 13) * 5 + 0xE6546B64
    mixed = (mixed ^ 4) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ mixed >> shift) * factor & 0xFFFFFFFF
    return mixed - (mixed >> 31 << 32)


def _rotated(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> 32 - bits) & 0xFFFFFFFF
