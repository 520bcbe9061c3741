"""One Spark session with every connector, and one Kafka, for all tests of a process that use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration import connectors
from tests.kafka_broker import KafkaBroker
from tests.maven import spark_jars
from tests.s3_server import CHECKSUMS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_settings(warehouse: str) -> dict[str, str]:
    """The session's settings, with Delta and Iceberg as their docs have it; the catalog ``lake`` is Iceberg's."""
    jars = spark_jars(*connectors.KAFKA, *connectors.AVRO, *connectors.DELTA, *connectors.ICEBERG)
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    return {
        "spark.jars": jars,
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.warehouse.dir": warehouse,
        "spark.databricks.delta.snapshotPartitions": "2",  # fifty small ones cost more than their work
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"{warehouse}/lake",
        **{f"spark.executorEnv.{name}": value for name, value in CHECKSUMS.items()},
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from seriatim.spark.local.session import local_session

    session = local_session("integration", settings=spark_settings(str(tmp_path_factory.mktemp("warehouse"))))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
