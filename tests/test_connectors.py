"""The pages name the connectors that the integration tests use, in the versions that they use."""

from __future__ import annotations

import re

import pytest

from tests.integration import connectors
from tests.kafka_broker import KAFKA
from tests.s3_server import S3PROXY
from tests.test_docs import PAGES, ROOT, page_id

COORDINATES = re.compile(r"\b(?:org|io|software)\.[\w.-]+:[\w.-]*\w(?::[\w.-]*\w)?")
TESTED = {
    *connectors.KAFKA,
    *connectors.AVRO,
    *connectors.DELTA,
    *connectors.ICEBERG,
    *connectors.S3,
    *connectors.AWS,
}
WITHOUT_VERSION = {one.rpartition(":")[0] for one in TESTED}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_names_packages_as_they_are_tested(page):
    named = set(COORDINATES.findall(page.read_text(encoding="utf-8")))
    assert named <= TESTED | WITHOUT_VERSION


def test_the_page_about_connectors_says_what_the_tests_run():
    page = (ROOT / "docs/reference/connectors.md").read_text(encoding="utf-8")
    spark = re.search(r"^pyspark==(\S+)$", (ROOT / "requirements/integration.in").read_text(), re.MULTILINE)
    assert spark is not None
    versions = {"Spark": spark[1], "Apache Kafka": KAFKA.rpartition(":")[2], "S3Proxy": S3PROXY.rpartition(":")[2]}
    assert [f"{name} {version}" for name, version in versions.items() if f"{name} {version}" not in page] == []
    for package in (connectors.DELTA[0], connectors.ICEBERG[0], connectors.S3[0]):
        assert package in page


def test_a_page_that_names_another_version_is_noticed():
    named = COORDINATES.findall('spark.jars.packages = "io.delta:delta-spark_4.1_2.13:4.4.1", as in org.x:y.')
    assert named == ["io.delta:delta-spark_4.1_2.13:4.4.1", "org.x:y"]
    assert not set(named) & (TESTED | WITHOUT_VERSION)
