"""``format("seriatim")``: describes topics to Spark, in every process that needs a reader or a writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seriatim.errors import InvalidArgument
from seriatim.spark.compatibility import refuse_available_now_wrapper
from seriatim.spark.topics.sink import TopicStreamWriter, TopicWriter
from seriatim.spark.topics.source import TopicReader, TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType(
    [
        StructField("offset", LongType(), nullable=False),
        StructField("key", StringType()),
        StructField("data", BinaryType(), nullable=False),
        StructField("attributes", MapType(StringType(), StringType())),
        StructField("published", TimestampType(), nullable=False),
        StructField("not_before", TimestampType()),
    ]
)


def register(spark: SparkSession) -> None:
    """Add ``format("seriatim")`` to a session, to read and write topics."""
    refuse_available_now_wrapper(spark)
    spark.dataSource.register(TopicDataSource)


class TopicDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "seriatim"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        _require_own(schema)
        return TopicReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _require_own(schema)
        return TopicStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TopicWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return TopicStreamWriter(self.options, schema, overwrite)


def _require_own(schema: StructType) -> None:
    if schema != SCHEMA:
        raise InvalidArgument("a topic has its own columns: leave .schema(...) out, and select what you need")
