"""Delta and Iceberg tables as streams without their connectors: what was added comes once, and nothing else is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.spark.pipeline.declaration import Source
from seriatim.spark.pipeline.run import read
from seriatim.spark.pipeline.table_stream import VERSIONS, TableStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers(*of: int) -> pa.Table:
    return pa.table({"id": pa.array(of, pa.int64()), "key": pa.array([f"key-{one % 3}" for one in of], pa.string())})


class Delta:
    """A Delta table that is written by somebody else."""

    def __init__(self, folder: Path) -> None:
        self.options = {"path": str(folder / "a table")}
        self.format = "delta"

    def append(self, *of: int) -> None:
        write_deltalake(self.options["path"], numbers(*of), mode="append")

    def delete(self, number: int) -> None:
        DeltaTable(self.options["path"]).delete(f"id = {number}")

    def add_column(self) -> None:
        more = numbers(9).append_column("more", pa.array(["x"]))
        write_deltalake(self.options["path"], more, mode="append", schema_mode="merge")


class Iceberg:
    """The same for Iceberg."""

    def __init__(self, folder: Path) -> None:
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "warehouse")}
        self._catalog = load_catalog("lake", **settings)
        self._catalog.create_namespace("plant")
        self._catalog.create_table("plant.t", numbers().schema)
        self.options = {"table": "lake.plant.t", **{f"catalog.{name}": value for name, value in settings.items()}}
        self.format = "iceberg"

    def append(self, *of: int) -> None:
        self._table.append(numbers(*of))

    def delete(self, number: int) -> None:
        self._table.delete(f"id = {number}")

    def add_column(self) -> None:
        more = numbers(9).append_column("more", pa.array(["x"]))
        with self._table.update_schema() as update:
            update.union_by_name(more.schema)
        self._table.append(more)

    @property
    def _table(self) -> Any:
        return self._catalog.load_table("plant.t")


@pytest.fixture(params=[Delta, Iceberg], ids=["delta", "iceberg"])
def table(request, tmp_path) -> Any:
    return request.param(tmp_path)


def reader_of(table: Delta | Iceberg) -> TableStreamReader:
    options = {"kind": table.format, **table.options}
    return TableStreamReader(options, VERSIONS[table.format](options).schema())


def rows_between(reader: TableStreamReader, start: dict[str, str], end: dict[str, str]) -> list[dict[str, Any]]:
    return [row for file in reader.partitions(start, end) for batch in reader.read(file) for row in batch.to_pylist()]


def test_a_batch_has_what_was_added_since_the_last_one(table):
    table.append(1, 2)
    reader, start = reader_of(table), {"version": ""}
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    table.append(3)
    table.append(4)
    end = reader.latestOffset(middle, reader.getDefaultReadLimit())
    assert [row["id"] for row in rows_between(reader, start, middle)] == [1, 2]
    assert sorted(row["id"] for row in rows_between(reader, middle, end)) == [3, 4]
    assert sorted(row["id"] for row in rows_between(reader, start, end)) == [1, 2, 3, 4]
    assert rows_between(reader, end, end) == []


def test_a_file_from_before_a_column_was_added_has_none_of_it(table):
    table.append(1)
    table.add_column()
    reader = reader_of(table)
    rows = rows_between(reader, {"version": ""}, reader.latestOffset({"version": ""}, reader.getDefaultReadLimit()))
    assert sorted((row["id"], row["more"]) for row in rows) == [(1, None), (9, "x")]


def test_a_table_from_which_something_was_removed_is_refused(table):
    table.append(1, 2)
    table.append(3)
    reader = reader_of(table)
    start = reader.latestOffset({"version": ""}, reader.getDefaultReadLimit())
    table.delete(2)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(FailedPrecondition, match=r"1 files were removed from the table .* only what is added"):
        reader.partitions(start, end)
    assert sorted(row["id"] for row in rows_between(reader, {"version": ""}, end)) == [1, 3]


def test_the_partitions_of_a_delta_table_are_columns(tmp_path):
    path = str(tmp_path / "partitioned")
    write_deltalake(path, pa.table({"id": [1, 2], "key": ["a b", "c"], "day": [7, 8]}), partition_by=["key", "day"])
    reader = TableStreamReader({"kind": "delta", "path": path}, VERSIONS["delta"]({"path": path}).schema())
    rows = rows_between(reader, {"version": ""}, {"version": "0"})
    assert sorted(tuple(row.values()) for row in rows) == [(1, "a b", 7), (2, "c", 8)]


def test_an_empty_iceberg_table_has_nothing_to_read(tmp_path):
    reader = reader_of(Iceberg(tmp_path))
    assert reader.latestOffset({"version": ""}, reader.getDefaultReadLimit()) == {"version": ""}


def test_columns_that_were_renamed_are_refused(tmp_path):
    table = Iceberg(tmp_path)
    table.append(1)
    with table._table.update_schema() as update:
        update.rename_column("key", "name")
    reader = reader_of(table)
    with pytest.raises(FailedPrecondition, match="has columns that were given other names: only the connector"):
        reader.partitions({"version": ""}, reader.latestOffset({"version": ""}, reader.getDefaultReadLimit()))


def test_a_place_that_needs_the_connector_is_refused():
    with pytest.raises(InvalidArgument, match=r"read from its path: name options\.path"):
        VERSIONS["delta"]({"table": "main.plant.t"})
    with pytest.raises(InvalidArgument, match=r"read through its catalog: name options\.table"):
        VERSIONS["iceberg"]({"path": "/t"})


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, table, tmp_path):
    """Through Spark: one run, more rows, and a second run from the same checkpoint."""
    got: list[list[int]] = []

    def run_once() -> None:
        stream = read(spark, Source(format=table.format, options=table.options, select=["id * 10 AS id"]))
        query = stream.writeStream.foreachBatch(lambda frame, _: got.append(sorted(row.id for row in frame.collect())))
        started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert started.awaitTermination(120)

    table.append(1, 2)
    run_once()
    table.append(3)
    run_once()
    assert [rows for rows in got if rows] == [[10, 20], [30]]
