"""Topics of a real Kafka, made, filled and read through Spark's Java and its connector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from py4j.java_gateway import JavaMember  # type: ignore[import-untyped]
from py4j.protocol import STATIC_PREFIX  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_TO_DELETE = "org.apache.kafka.clients.admin.RecordsToDelete"
SCHEMA = "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class Record(NamedTuple):
    """One record, as it lies in a partition of a topic."""

    partition: int
    key: bytes | None
    value: bytes
    headers: dict[str, str]

    @property
    def writer(self) -> tuple[str, str]:
        return self.headers["seriatim-query"], self.headers["seriatim-partition"]

    @property
    def place(self) -> tuple[int, int]:
        return int(self.headers["seriatim-batch"]), int(self.headers["seriatim-position"])


class Topics:
    """The topics of one broker, as a session sees them."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark, self._options = spark, {"kafka.bootstrap.servers": bootstrap}
        java = spark._jvm
        assert java is not None
        self._java = java
        self._admin = java.org.apache.kafka.clients.admin.AdminClient.create(
            java.java.util.HashMap({"bootstrap.servers": bootstrap})
        )

    def make(self, partitions: int, *names: str) -> None:
        new = self._java.org.apache.kafka.clients.admin.NewTopic
        topics = self._java.java.util.ArrayList([new(name, partitions, 1) for name in names])
        self._admin.createTopics(topics).all().get()

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """What retention does, at once."""
        where = self._java.org.apache.kafka.common.TopicPartition(topic, partition)
        # An instance has a method of the same name, for which py4j takes it.
        before = JavaMember("beforeOffset", None, STATIC_PREFIX + RECORDS_TO_DELETE, self._java._gateway_client)
        end = before(offset)
        self._admin.deleteRecords(self._java.java.util.HashMap({where: end})).all().get()

    def publish(self, topic: str, messages: Iterable[tuple[bytes, bytes]], **headers: bytes) -> None:
        """In this order, within each partition of the topic."""
        rows = [(key, value, list(headers.items())) for key, value in messages]
        frame = self._spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.format("kafka").options(topic=topic, **self._options).save()

    def read(self, topic: str) -> list[Record]:
        """Partition by partition, each in its order."""
        reader = self._spark.read.format("kafka").options(subscribe=topic, includeHeaders="true", **self._options)
        rows = reader.load().orderBy("partition", "offset").collect()
        return [
            Record(
                row.partition,
                None if row.key is None else bytes(row.key),
                bytes(row.value),
                {header.key: bytes(header.value).decode() for header in row.headers or ()},
            )
            for row in rows
        ]


def by_key(records: Sequence[Record]) -> dict[bytes | None, list[bytes]]:
    found: dict[bytes | None, list[bytes]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record.value)
    return found
