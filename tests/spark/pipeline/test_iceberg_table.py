"""Iceberg tables without Iceberg's connector: each batch is one commit, and comes once whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from seriatim.errors import FailedPrecondition, InvalidArgument, StoreBusy
from seriatim.spark.pipeline import iceberg_table
from seriatim.spark.pipeline.exactly_once import SinkBatch, write
from seriatim.spark.pipeline.iceberg_table import RETRIES, open_catalog, write_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITER = "11111111-query:ordered"
NOTED = f"seriatim.batch.{WRITER}"


@pytest.fixture
def options(tmp_path) -> dict[str, str]:
    place = {"catalog.uri": f"sqlite:///{tmp_path}/catalog.db", "catalog.warehouse": f"{tmp_path}/warehouse"}
    return {"table": "lake.plant.ordered", "catalog.type": "sql", **place}


@pytest.fixture
def rows(spark: SparkSession):
    """Makes a frame of the numbers from ``first`` to ``end``, in two partitions."""

    def make(first: int, end: int) -> DataFrame:
        return spark.range(first, end, numPartitions=2).selectExpr("id", "concat('key-', id % 3) AS key")

    return make


def add(frame: DataFrame, options: dict[str, str], batch: int, writer: str = WRITER) -> bool:
    return write_batch(frame, options, batch, writer=writer, rows=frame.count())


def table_of(options: dict[str, str]) -> Any:
    catalog, name = open_catalog(options["table"], options)
    return catalog.load_table(name)


def seen(options: dict[str, str]) -> list[int]:
    return sorted(table_of(options).scan().to_arrow()["id"].to_pylist())


def test_a_batch_is_one_commit_with_its_number_and_one_that_comes_again_adds_nothing(rows, options):
    assert add(rows(0, 4), options, 0)
    assert add(rows(4, 8), options, 1)
    for batch in (0, 1):
        assert not add(rows(100, 200), options, batch)
    table = table_of(options)
    assert seen(options) == [*range(8)]
    assert len(table.snapshots()) == 2
    assert table.properties[NOTED] == "1"
    assert RETRIES not in table.properties  # others may go on retrying


def test_an_empty_batch_makes_the_table_and_is_noted_once(rows, options):
    assert add(rows(0, 0), options, 0)
    table = table_of(options)
    assert [field.name for field in table.schema().fields] == ["id", "key"]
    assert (table.current_snapshot(), table.properties[NOTED]) == (None, "0")
    assert add(rows(0, 0), options, 1)
    assert table_of(options).metadata_location == table.metadata_location


def racing(monkeypatch: pytest.MonkeyPatch, meanwhile, times: int = 1) -> None:
    """Something happens when a batch is staged and about to be committed."""
    commit = iceberg_table._commit
    left = iter(range(times))

    def race(*arguments) -> None:
        if next(left, None) is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(iceberg_table, "_commit", commit)
                meanwhile()
        commit(*arguments)

    monkeypatch.setattr(iceberg_table, "_commit", race)


def test_of_two_drivers_that_race_the_slower_one_finds_the_batch_there(rows, options, monkeypatch):
    add(rows(0, 4), options, 0)
    racing(monkeypatch, lambda: add(rows(4, 8), options, 1))
    assert not add(rows(4, 8), options, 1)
    assert seen(options) == [*range(8)]


def test_after_a_commit_of_somebody_else_the_batch_is_added_anew(rows, options, monkeypatch):
    add(rows(0, 4), options, 0)
    racing(monkeypatch, lambda: add(rows(8, 12), options, 0, writer="another"))
    assert add(rows(4, 8), options, 1)
    assert seen(options) == [*range(12)]


def test_a_table_that_never_comes_to_rest_is_an_error(rows, options, monkeypatch):
    add(rows(0, 4), options, 0)
    other = table_of(options)
    numbers = iter(range(100, 200))
    small = other.scan().to_arrow().slice(0, 1)

    def append() -> None:
        next(numbers)
        table_of(options).append(small)

    racing(monkeypatch, append, times=iceberg_table.MAX_ATTEMPTS)
    with pytest.raises(StoreBusy, match="was changed 5 times meanwhile"):
        add(rows(4, 8), options, 1)
    assert add(rows(4, 8), options, 1)
    assert sorted(set(seen(options))) == [*range(8)]


def test_where_nobody_can_know_whether_a_batch_is_there_it_is_refused(rows, options):
    add(rows(0, 4), options, 0)
    add(rows(4, 8), options, 1)
    with table_of(options).transaction() as transaction:
        transaction.remove_properties(NOTED)
    with pytest.raises(
        FailedPrecondition, match=rf"nothing says whether batch 2 is among them: .*'{NOTED}' is missing"
    ):
        add(rows(8, 12), options, 2)
    with table_of(options).transaction() as transaction:
        transaction.set_properties({NOTED: "1"})
    assert add(rows(8, 12), options, 2)
    assert seen(options) == [*range(12)]


def test_times_and_nested_columns_are_read_back_as_they_were(spark, options):
    frame = spark.range(2).selectExpr(
        "id",
        "TIMESTAMP '2026-01-02 03:04:05.678901' AS moment",
        "TIMESTAMP_NTZ '2026-01-02 03:04:05.678901' AS naive",
        "CAST(1.5 AS DECIMAL(10, 2)) AS price",
        "named_struct('a', array(1), 'b', map('k', 1.0D)) AS nested",
    )
    assert add(frame, options, 0)
    (row, _) = table_of(options).scan().to_arrow().to_pylist()
    assert str(row["moment"]) == "2026-01-02 03:04:05.678901+00:00"
    assert str(row["naive"]) == "2026-01-02 03:04:05.678901"
    assert row["nested"] == {"a": [1], "b": [("k", 1.0)]}


def test_what_can_be_no_table_is_refused(spark, rows, options):
    with pytest.raises(InvalidArgument, match="can't be those of an Iceberg table"):
        add(spark.range(1).selectExpr("INTERVAL '1' DAY AS x"), options, 0)
    with pytest.raises(
        InvalidArgument, match=r"'lake\.ordered' is not the name of a table: write catalog\.schema\.table"
    ):
        add(rows(0, 1), {**options, "table": "lake.ordered"}, 0)
    with pytest.raises(
        FailedPrecondition, match=r"the catalog 'nowhere' is not known: describe it with options catalog"
    ):
        add(rows(0, 1), {"table": "nowhere.plant.ordered"}, 0)
    with pytest.raises(
        FailedPrecondition, match=r"Iceberg's connector is not in this session: add it, or name the table"
    ):
        write(SinkBatch(rows(0, 1), 1, WRITER, 0), "iceberg", {"path": "/tables/ordered"})


def test_a_partitioned_table_is_refused(rows, options):
    add(rows(0, 1), options, 0)
    settings = {name.removeprefix("catalog."): value for name, value in options.items() if name != "table"}
    with load_catalog("lake", **settings).load_table("plant.ordered").update_spec() as update:
        update.add_identity("key")
    with pytest.raises(FailedPrecondition, match="is partitioned: only Iceberg's own connector can write to it"):
        add(rows(1, 2), options, 1)
