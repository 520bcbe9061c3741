"""What older versions of Spark lack, tried on the one at hand. `make test-spark VERSION=…` runs all tests on another."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceStreamReader

from seriatim.errors import FailedPrecondition
from seriatim.spark import compatibility, configure
from seriatim.spark.compatibility import (
    AVAILABLE_NOW_WRAPPER,
    hash_of_integer,
    integers_by_partition,
    require_spark,
    shuffle_to,
    with_position,
)
from seriatim.spark.frames.ticks import read_ticks
from seriatim.spark.settings import WORTH_SETTING
from seriatim.spark.topics.datasource import register


@pytest.fixture
def old(monkeypatch):
    """Pretends to be an older Spark."""
    return lambda *version: monkeypatch.setattr(compatibility, "SPARK", version)


def test_a_feature_that_spark_lacks_is_refused_by_name(old):
    require_spark((4, 0), "a feature", "do without it")
    old(4, 1)
    said = f"a feature needs Spark 4.2 or newer, and this is Spark {pyspark.__version__}: do without it"
    with pytest.raises(FailedPrecondition, match=said):
        require_spark((4, 2), "a feature", "do without it")


@pytest.mark.parametrize("first", ["", "import pyspark; "])
@pytest.mark.parametrize("name", ["resequence", "pipeline.load"])
def test_spark_before_4_is_refused(tmp_path, first, name):
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "version.py").write_text('__version__: str = "3.5.9"\n')
    module, _, wanted = f"seriatim.spark.{name}".rpartition(".")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    program = [sys.executable, "-c", f"{first}from {module} import {wanted}"]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    assert "FailedPrecondition: seriatim.spark needs Spark 4.0 or newer, and this is Spark 3.5.9" in done.stderr


# -- shuffles -----------------------------------------------------------------------------------------------------------


def test_integers_hash_as_spark_hashes_them(spark):
    rows = spark.range(-500, 500).select(F.col("id").cast("int").alias("n"), F.hash(F.col("id").cast("int")).alias("h"))
    assert all(hash_of_integer(row["n"]) == row["h"] for row in rows.collect())


@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_every_partition_has_an_integer_that_hashes_there(count):
    found = integers_by_partition(count)
    assert [hash_of_integer(integer) % count for integer in found] == list(range(count))


@pytest.mark.parametrize("version", [(4, 0), None])
def test_rows_go_to_the_partition_that_a_column_names(spark, old, version):
    if version is not None:
        old(*version)
    rows = spark.range(2000).withColumn("wanted", F.pmod(F.hash("id"), F.lit(7)))
    placed = shuffle_to(rows, 7, "wanted").withColumn("partition", F.spark_partition_id())
    assert placed.where("partition <> wanted").count() == 0
    assert placed.select("partition").distinct().count() == 7


# -- stream readers -----------------------------------------------------------------------------------------------------


class Numbers(DataSourceStreamReader):
    """Reads on by ten numbers each time."""

    begun = 0

    def initialOffset(self):  # noqa: N802 (Spark calls it so)
        self.begun += 1
        return {"at": 0}

    def latestOffset(self, start, limit):  # noqa: N802
        return {"at": start["at"] + 10}

    def partitions(self, start, end):
        return [start, end]

    def read(self, partition):
        raise NotImplementedError


def test_a_reader_that_spark_gives_the_start_is_left_alone():
    if compatibility.SPARK >= (4, 2):
        assert with_position(Numbers) is Numbers


def test_without_being_given_the_start_a_new_query_begins_and_goes_on(old):
    old(4, 1)
    reader: Any = with_position(Numbers)()
    assert reader.latestOffset() == {"at": 10}  # Spark asks for the end before the start
    assert reader.latestOffset() == {"at": 10}
    assert reader.partitions({"at": 0}, {"at": 10}) == [{"at": 0}, {"at": 10}]
    assert reader.latestOffset() == {"at": 20}
    assert reader.begun == 1


def test_without_being_given_the_start_a_query_that_goes_on_learns_its_position_first(old):
    old(4, 1)
    reader: Any = with_position(Numbers)()
    reader.partitions({"at": 70}, {"at": 70})
    assert reader.latestOffset() == {"at": 80}
    assert reader.begun == 0


def test_the_reader_for_an_older_spark_is_found_under_its_own_name(old):
    old(4, 1)
    found = with_position(Numbers)
    assert (found.__module__, found.__qualname__) == (Numbers.__module__, Numbers.__qualname__)


@pytest.mark.parametrize(
    "begin", [register, lambda spark: read_ticks(spark, "state", 2, 1.0, "")], ids=["topics", "ticks"]
)
def test_the_wrapper_that_asks_too_early_is_refused(spark, old, begin):
    spark.conf.set(AVAILABLE_NOW_WRAPPER, "true")
    try:
        begin(spark) if compatibility.SPARK >= (4, 2) else None
        old(4, 1)
        with pytest.raises(FailedPrecondition, match=f"{AVAILABLE_NOW_WRAPPER} = true needs Spark 4.2 .* unset it"):
            begin(spark)
    finally:
        spark.conf.unset(AVAILABLE_NOW_WRAPPER)


# -- settings -----------------------------------------------------------------------------------------------------------


def test_what_is_worth_setting_is_set_on_request_and_reported(spark, caplog):
    name, value = next(iter(WORTH_SETTING.items()))
    spark.conf.set(name, "1000")
    try:
        assert configure(spark) == WORTH_SETTING
        assert spark.conf.get(name) == value
        assert configure(spark) == {}
    finally:
        spark.conf.set(name, value)
