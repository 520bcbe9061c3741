"""Kafka at both ends of a declared pipeline, through Spark's own connector.

Rules
    1. A new pipeline starts with the earliest message that Kafka has, as with our own topics, unless an option overrides this.
       (Spark's default is the end: the first run with ``available-now`` would read nothing.)
    2. Kafka can't detect a batch that is repeated after a crash. So the headers of every record identify its row: the query,
       the partition of its state, the batch, and the position among the rows of that partition and batch. A repeat has the same
       four. Within a partition of Kafka, the batches and positions of one query and partition increase, except for repeats. So
       a reader that drops records that are not beyond the highest one gets every row once and in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType

from seriatim.spark.pipeline.exactly_once import KAFKA

if TYPE_CHECKING:
    from seriatim.spark.pipeline.exactly_once import SinkBatch

HEADER_PREFIX = "seriatim-"
"""How the names of our headers begin."""
ROW_BITS = 33
"""How many bits of Spark's increasing ids number the rows of a partition."""
KEY, VALUE, HEADERS = "key", "value", "headers"


def source_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source, with the start of rule 1."""
    is_given = any(name.lower().startswith("starting") for name in options)
    return dict(options) if is_given else {"startingOffsets": "earliest", **options}


def is_payload(rows: DataFrame, name: str) -> bool:
    """Whether a column is the value of a Kafka record, in bytes, and not some value of a row."""
    return name == VALUE and name in rows.columns and isinstance(rows.schema[name].dataType, BinaryType)


def write_batch(batch: SinkBatch, options: Mapping[str, str]) -> None:
    """Write the rows of a batch, each with its place in the headers."""
    theirs = (
        [F.filter(HEADERS, lambda header: ~header.key.startswith(HEADER_PREFIX))]
        if HEADERS in batch.rows.columns
        else []
    )
    headers = F.concat(*(F.coalesce(some, F.array()) for some in theirs), F.array(*_places(batch)))
    batch.rows.withColumn(HEADERS, headers).write.format(KAFKA).options(**options).mode("append").save()


def _places(batch: SinkBatch) -> Iterator[Column]:
    position = F.monotonically_increasing_id().bitwiseAND(F.lit(2**ROW_BITS - 1))
    place = {
        "query": F.lit(batch.writer),
        "partition": F.spark_partition_id(),
        "batch": F.lit(batch.number),
        "position": position,
    }
    for name, value in place.items():
        yield F.struct(F.lit(f"{HEADER_PREFIX}{name}").alias("key"), value.cast("string").cast("binary").alias("value"))
