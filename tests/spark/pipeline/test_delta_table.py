"""Delta tables without Delta's connector: each batch is one entry of the log, and comes once whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, write_deltalake

from seriatim.errors import FailedPrecondition, InvalidArgument, MissingExtra, StoreOwned
from seriatim.spark.pipeline import delta_table, exactly_once
from seriatim.spark.pipeline.delta_table import write_batch
from seriatim.spark.pipeline.exactly_once import SinkBatch, write
from seriatim.spark.pipeline.staging import TIMESTAMPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITER = "11111111-query:ordered"


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "a table")


@pytest.fixture
def rows(spark: SparkSession):
    """Makes a frame of the numbers from ``first`` to ``end``, in two partitions."""

    def make(first: int, end: int) -> DataFrame:
        return spark.range(first, end, numPartitions=2).selectExpr("id", "concat('key-', id % 3) AS key")

    return make


def add(frame: DataFrame, path: str, batch: int, writer: str = WRITER) -> bool:
    return write_batch(frame, path, batch, writer=writer, rows=frame.count())


def seen(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def test_a_batch_is_one_entry_of_the_log_with_its_number(rows, path):
    assert add(rows(0, 4), path, 0)
    assert add(rows(4, 8), path, 1)
    table = DeltaTable(path)
    assert (table.version(), table.transaction_version(WRITER)) == (2, 1)
    assert seen(path) == [*range(8)]
    assert sum(table.get_add_actions(flatten=True)["num_records"].to_pylist()) == 8


def test_only_a_new_table_has_its_folder_listed(rows, path, listed):
    for batch in range(3):
        add(rows(batch, batch + 1), path, batch)
    assert listed.count("") == 1
    assert seen(path) == [*range(3)]


def test_a_batch_that_comes_again_adds_nothing_whatever_rows_it_has(rows, path):
    for batch in (0, 1):
        assert add(rows(4 * batch, 4 * batch + 4), path, batch)
    for batch in (0, 1):
        assert not add(rows(100, 200), path, batch)
    assert seen(path) == [*range(8)]
    assert DeltaTable(path).version() == 2


def test_several_writers_share_a_table_and_each_has_numbers_of_its_own(rows, path):
    assert add(rows(0, 4), path, 0)
    assert add(rows(4, 8), path, 0, writer="another")
    assert seen(path) == [*range(8)]


def test_an_empty_batch_makes_the_table_and_otherwise_no_entry(rows, path):
    assert add(rows(0, 0), path, 0)
    assert DeltaTable(path).version() == 0
    assert [field.name for field in DeltaTable(path).schema().fields] == ["id", "key"]
    assert add(rows(0, 0), path, 1)
    assert DeltaTable(path).version() == 0


def test_of_two_drivers_that_race_the_stale_one_is_refused(rows, path, monkeypatch):
    """The second one writes the batch while the first has looked and staged its files."""
    add(rows(0, 4), path, 0)
    commit = delta_table._commit

    def race(*arguments) -> None:
        monkeypatch.undo()
        assert add(rows(4, 8), path, 1)
        commit(*arguments)

    monkeypatch.setattr(delta_table, "_commit", race)
    with pytest.raises(StoreOwned, match=r"while batch 1 was written .*: nothing was added\. If a second driver runs"):
        add(rows(4, 8), path, 1)
    assert seen(path) == [*range(8)]
    assert not add(rows(4, 8), path, 1)


def test_another_writer_meanwhile_does_no_harm(rows, path, monkeypatch):
    add(rows(0, 4), path, 0)
    commit = delta_table._commit

    def race(*arguments) -> None:
        monkeypatch.undo()
        assert add(rows(8, 12), path, 7, writer="another")
        commit(*arguments)

    monkeypatch.setattr(delta_table, "_commit", race)
    assert add(rows(4, 8), path, 1)
    assert seen(path) == [*range(12)]


def test_what_was_written_and_never_entered_is_not_seen(rows, path, monkeypatch):
    add(rows(0, 4), path, 0)
    monkeypatch.setattr(delta_table, "_commit", lambda *_: None)
    add(rows(4, 8), path, 1)
    monkeypatch.undo()
    assert seen(path) == [0, 1, 2, 3]
    assert add(rows(4, 8), path, 1)
    assert seen(path) == [*range(8)]
    assert len(list(Path(path).glob("batch-000000000001-*"))) == 2
    left = DeltaTable(path).vacuum(0, enforce_retention_duration=False, full=True)
    assert {Path(name).parts[0][:18] for name in left if name.endswith(".parquet")} == {"batch-000000000001"}
    assert seen(path) == [*range(8)]


def test_every_type_of_spark_that_delta_has_is_read_back_as_it_was(spark, tmp_path):
    path = str(tmp_path / "table")
    kinds = {
        "id": "CAST(id AS BIGINT)",
        "moment": "TIMESTAMP '2026-01-02 03:04:05.678901'",
        "naive": "TIMESTAMP_NTZ '2026-01-02 03:04:05.678901'",
        "day": "DATE '2026-01-02'",
        "price": "CAST(1.5 AS DECIMAL(10, 2))",
        "blob": "CAST('x' AS BINARY)",
        "nested": "named_struct('a', array(1), 'b', map('k', 1.0D))",
    }
    frame = spark.range(2).selectExpr(*(f"{kind} AS {name}" for name, kind in kinds.items()))
    before = spark.conf.get(TIMESTAMPS)
    assert add(frame, path, 0)
    assert add(frame, path, 1)
    assert spark.conf.get(TIMESTAMPS) == before
    table = DeltaTable(path)
    assert spark.read.parquet(*table.file_uris()).schema.simpleString() == frame.schema.simpleString()
    assert str(table.to_pyarrow_table()["moment"][0]) == "2026-01-02 03:04:05.678901+00:00"


def test_a_batch_with_other_columns_is_refused(rows, path):
    add(rows(0, 4), path, 0)
    for other in ("id", "id, key, 1 AS more", "CAST(id AS INT) AS id, key"):
        with pytest.raises(FailedPrecondition, match="has the columns id long, key string, and this batch has"):
            add(rows(4, 8).selectExpr(*other.split(", ")), path, 1)
    assert add(rows(4, 8).select("key", "id"), path, 1)  # in another order they are the same
    assert seen(path) == [*range(8)]


def test_columns_that_delta_does_not_have_are_refused(spark, path):
    with pytest.raises(InvalidArgument, match="can't be those of a Delta table"):
        add(spark.range(1).selectExpr("INTERVAL '1' DAY AS x"), path, 0)


def test_a_folder_with_something_else_in_it_is_refused(rows, path):
    Path(path).mkdir()
    Path(path, "notes.txt").touch()
    with pytest.raises(FailedPrecondition, match=r"is not a Delta table, and there is 'notes.txt' in it: name a new"):
        add(rows(0, 4), path, 0)


def test_a_table_that_has_rules_of_its_own_is_refused(rows, path, tmp_path):
    partitioned, constrained = str(tmp_path / "partitioned"), str(tmp_path / "constrained")
    for place, by in ((partitioned, ["key"]), (constrained, None)):
        write_deltalake(place, rows(0, 4).toArrow(), partition_by=by)
    DeltaTable(constrained).alter.add_constraint({"few": "id < 1000"})
    for place, why in ((partitioned, "partitions"), (constrained, "writer version 3|checkConstraints")):
        with pytest.raises(FailedPrecondition, match=f"has ({why}): only Delta's own connector can write to it"):
            add(rows(0, 4), place, 0)


# -- as a sink ---------------------------------------------------------------------------------------------------------


def test_a_table_of_a_catalog_needs_the_connector(rows):
    batch = SinkBatch(rows(0, 1), 1, WRITER, 0)
    with pytest.raises(FailedPrecondition, match=r"the table main.plant.ordered is in a catalog of Spark, and Delta's"):
        write(batch, "delta", {"table": "main.plant.ordered"})


def test_without_the_extra_it_is_named(rows, path, monkeypatch):
    def missing(extra: str, *modules: str, what: str) -> None:
        raise MissingExtra(f"{what} needs the extra '{extra}'")

    monkeypatch.setattr(exactly_once, "require_extra", missing)
    with pytest.raises(MissingExtra, match="a Delta table without Delta's connector for Spark needs the extra 'delta'"):
        write(SinkBatch(rows(0, 1), 1, WRITER, 0), "delta", {"path": path})
