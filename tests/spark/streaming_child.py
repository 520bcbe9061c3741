"""A driver that copies topic raw to topic ordered until it is killed: python -m tests.spark.streaming_child URL CHECKPOINT."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from seriatim.spark import register
from seriatim.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS_A_BATCH = 20


def copy(spark: SparkSession, url: str, checkpoint: str) -> DataStreamWriter:
    """Rows of a key stay in one partition, and in their order: one task reads them all."""
    source = spark.readStream.format("seriatim").option("url", url).option("topic", "raw")
    rows = source.option("maxRowsPerTrigger", ROWS_A_BATCH).load()
    sink = rows.writeStream.format("seriatim").option("url", url).option("topic", "ordered")
    return sink.option("checkpointLocation", checkpoint)


def main(url: str, checkpoint: str) -> None:
    spark = local_session("child", settings={"spark.master": "local[1]"})
    register(spark)
    copy(spark, url, checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
