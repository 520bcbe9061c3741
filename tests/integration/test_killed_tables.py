"""kill -9 of a driver that writes Delta and Iceberg tables through their connectors: afterwards nothing shows it.

Without connectors the same is tested by ``make test``: ``tests/spark/pipeline/test_crash.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seriatim.spark.pipeline import load
from tests.integration.conftest import spark_settings
from tests.integration.readings import IN_ORDER, REPEATED, as_files, numbers_by_device
from tests.spark.pipeline.crash_points import DRIVER, Blow
from tests.spark.pipeline.test_crash import Patient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FILES = 9
DECLARATION = """
[pipeline]
name = "readings"
checkpoint = "work/readings"
require = "strict"
trigger = "available-now"

[source]
format = "json"
schema = "device STRING, n BIGINT, at DOUBLE"
options = {{ path = "in", maxFilesPerTrigger = 1 }}

[order]
key = "device"
sequence = "n"
arrival = "at"
start = 1
partitions = 2

[[sink]]
format = "delta"
options = {{ path = "ordered" }}

[[sink]]
what = "ledger"
format = "delta"
options = {{ path = "ledger" }}

[[sink]]
format = "iceberg"
options = {{ table = "lake.{schema}.ordered" }}

[[sink]]
what = "ledger"
format = "iceberg"
options = {{ table = "lake.{schema}.ledger" }}
"""
KILLED_AT = (
    "before-state-write",
    "after-state-write",
    "before-first-sink",
    "between-sinks",
    "after-iceberg-sink",
    "after-sinks",
    "after-commit",
)


def prepare(folder: Path) -> Path:
    (folder / "in").mkdir(parents=True)
    for number, content in enumerate(as_files(FILES)):
        file = folder / "in" / f"{number}.json"
        file.write_text(content)
        os.utime(file, (number, number))  # Spark reads them by their times
    path = folder / "pipeline.toml"
    path.write_text(DECLARATION.format(schema=folder.name))
    return path


def written(spark: SparkSession, folder: Path) -> dict[str, list[Row]]:
    """The rows of every table, by device and position."""

    def sorted_rows(frame: DataFrame) -> list[Row]:
        return frame.orderBy("device", "n", *frame.columns).collect()

    return {
        f"{format_} {table}": sorted_rows(
            spark.read.format("delta").load(str(folder / table))
            if format_ == "delta"
            else spark.table(f"lake.{folder.name}.{table}")
        )
        for format_ in ("delta", "iceberg")
        for table in ("ordered", "ledger")
    }


@pytest.mark.timeout(900)
def test_a_driver_killed_at_the_named_points_writes_what_an_undisturbed_one_writes(spark, tmp_path):
    patient = Patient(prepare(tmp_path / "killed"), spark_settings(spark.conf.get("spark.sql.warehouse.dir")))
    for batch, point in enumerate(KILLED_AT, 1):
        patient.live(Blow(DRIVER, point, batch))
    for path in (tmp_path / "killed" / "pipeline.toml", prepare(tmp_path / "undisturbed")):
        assert load(path).begin(spark).wait(300)
    out, expected = written(spark, tmp_path / "killed"), written(spark, tmp_path / "undisturbed")
    assert {name: len(rows) for name, rows in out.items()} == {name: len(rows) for name, rows in expected.items()}
    assert out == expected
    for format_ in ("delta", "iceberg"):
        ordered = sorted(out[f"{format_} ordered"], key=lambda row: row._position)
        assert numbers_by_device(row.asDict() for row in ordered) == IN_ORDER
        assert len(out[f"{format_} ledger"]) == REPEATED
