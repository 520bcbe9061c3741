"""The connectors that the integration tests use, as Maven knows them. ``docs/reference/connectors.md`` says the same.

Each lists every jar that it needs and Spark does not have. The version of Spark is that of ``requirements/integration.lock``.
Not every mirror of Maven's has every patch release of Spark's own connectors: any of the same feature release will do.
"""

from __future__ import annotations

KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
AVRO = ("org.apache.spark:spark-avro_2.13:4.1.1",)
DELTA = ("io.delta:delta-spark_4.1_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
ICEBERG = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
S3 = ("org.apache.hadoop:hadoop-aws:3.4.2",)
AWS = ("software.amazon.awssdk:s3-transfer-manager:2.29.52",)
"""What ``hadoop-aws`` needs of AWS's bundle of 600 MB, with all that it needs itself."""
