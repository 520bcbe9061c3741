"""Tables: a batch is written once, and readers see all of it or nothing, whatever happens to the writer."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest

from seriatim.errors import DamagedStore, FailedPrecondition, InvalidArgument, StoreFailed, StoreOwned
from seriatim.spark import query_of, write_batch
from seriatim.spark.pipeline.parquet_table import ParquetTable, local_folder
from seriatim.spark.state.files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "11111111-query"


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a table"


@pytest.fixture
def rows(spark: SparkSession):
    """Makes a frame of the numbers from ``first`` to ``end``, in two partitions."""

    def make(first: int, end: int) -> DataFrame:
        return spark.range(first, end, numPartitions=2).selectExpr("id", "concat('key-', id % 3) AS key")

    return make


def seen(spark: SparkSession, path: Path) -> list[tuple[int, int]]:
    return sorted((row.batch, row.id) for row in spark.read.parquet(str(path)).collect())


def quickly_seen(path: Path) -> list[tuple[int, int]]:
    """The same without Spark."""
    if not path.exists():
        return []
    table = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted((row["batch"], row["id"]) for row in table.to_pylist())


def own_files(path: Path) -> set[str]:
    return {entry.name for entry in (path / "_seriatim").iterdir()}


def numbered(batch: int, numbers: range) -> list[tuple[int, int]]:
    return [(batch, number) for number in numbers]


def test_a_table_shows_every_row_with_the_number_of_its_batch(spark, rows, path):
    assert write_batch(rows(0, 10), path, 0, writer=QUERY)
    assert write_batch(rows(10, 14), f"file:{path}".replace(" ", "%20"), 41, writer=QUERY)
    assert seen(spark, path) == numbered(0, range(10)) + numbered(41, range(10, 14))
    names = {entry.name for entry in path.iterdir()}
    assert names == {"batch=000000000000", "batch=000000000041", "_seriatim"}
    assert own_files(path) == {"table.json", "lock"}
    assert pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").count_rows() == 14


def test_only_the_first_batch_of_a_table_has_the_whole_folder_listed(rows, path, listed):
    write_batch(rows(0, 1), path, 0, writer=QUERY)
    listed.clear()
    for batch in range(1, 4):
        write_batch(rows(batch, batch + 1), path, batch, writer=QUERY, rows=1)
    assert "" not in listed
    assert "_seriatim" in listed
    assert quickly_seen(path) == [(batch, batch) for batch in range(4)]


def test_a_batch_that_comes_again_adds_nothing_whatever_rows_it_has(spark, rows, path):
    write_batch(rows(0, 10), path, 3, writer=QUERY)
    for batch in (3, 2, 0):
        assert not write_batch(rows(50, 60), path, batch, writer=QUERY)
    assert seen(spark, path) == numbered(3, range(10))


def test_a_batch_without_rows_leaves_nothing_to_be_seen_but_is_remembered(spark, rows, path):
    write_batch(rows(0, 4), path, 0, writer=QUERY)
    shuffled = rows(0, 0).repartition(2, "key")
    assert write_batch(shuffled, path, 1, writer=QUERY)
    assert {entry.name for entry in path.iterdir()} == {"batch=000000000000", "_seriatim"}
    assert not write_batch(rows(4, 8), path, 1, writer=QUERY)
    assert write_batch(rows(8, 9), path, 2, writer=QUERY)
    assert seen(spark, path) == numbered(0, range(4)) + numbered(2, range(8, 9))


def test_a_table_can_be_read_from_its_first_batch_on_even_if_that_has_no_rows(spark, rows, path):
    assert write_batch(rows(0, 0), path, 0, writer=QUERY)
    assert not write_batch(rows(0, 5), path, 0, writer=QUERY)
    frame = spark.read.parquet(str(path))
    assert frame.columns == ["id", "key", "batch"]
    assert frame.count() == 0


def test_another_query_is_refused_and_a_folder_that_is_no_table(rows, path, tmp_path):
    write_batch(rows(0, 4), path, 0, writer=QUERY)
    with pytest.raises(FailedPrecondition, match="belongs to query 11111111-query and not to another"):
        write_batch(rows(4, 8), path, 1, writer="another")
    Path(tmp_path, "other").mkdir()
    Path(tmp_path, "other", "part-0.parquet").touch()
    with pytest.raises(FailedPrecondition, match="contains 'part-0"):
        write_batch(rows(0, 4), tmp_path / "other", 0, writer=QUERY)


def test_a_batch_with_other_columns_is_refused(rows, path):
    write_batch(rows(0, 4), path, 0, writer=QUERY)
    with pytest.raises(
        FailedPrecondition, match=r"has the columns id bigint, key string, and this batch has id bigint: write"
    ):
        write_batch(rows(4, 8).select("id"), path, 1, writer=QUERY)
    assert write_batch(rows(4, 8).select("key", "id"), path, 1, writer=QUERY)


def test_what_can_be_no_batch_of_a_table_is_refused(spark, rows, path):
    for frame, batch, writer, text in (
        (rows(0, 1), -1, QUERY, "batch must be a whole number of 0 or more"),
        (rows(0, 1), 0, "", "needs a writer"),
        (rows(0, 1).withColumnRenamed("key", "Batch"), 0, QUERY, "give that column of yours another name"),
        (spark.readStream.format("rate").load(), 0, QUERY, "call write_batch within foreachBatch"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            write_batch(frame, path, batch, writer=writer)
    assert not path.exists()
    with pytest.raises(FailedPrecondition, match="ask for its id within foreachBatch"):
        query_of(rows(0, 1))


def test_a_folder_that_can_not_be_made_is_an_error_of_ours(rows, path):
    path.touch()
    with pytest.raises(StoreFailed, match=r"making the table '.*a table' failed"):
        write_batch(rows(0, 1), path, 0, writer=QUERY)


@pytest.mark.parametrize("address", ["s3://bucket/table", "hdfs://name/table", "gs://bucket/table"])
def test_a_place_where_a_folder_does_not_appear_in_one_step_is_refused(address):
    with pytest.raises(InvalidArgument, match=r"writeStream\.format\('parquet'\)"):
        local_folder(address)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"columns": []}', b'{"columns": [], "writer": "w", "more": 1}'])
def test_a_table_whose_own_record_is_damaged_is_refused(rows, path, content):
    (path / "_seriatim").mkdir(parents=True)
    (path / "_seriatim/table.json").write_bytes(content)
    with pytest.raises(DamagedStore, match=r"table\.json' is damaged"):
        write_batch(rows(0, 1), path, 0, writer=QUERY)


def test_a_table_of_a_newer_format_is_refused(rows, path):
    write_batch(rows(0, 1), path, 0, writer=QUERY)
    about = path / "_seriatim/table.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"format": 2}))
    with pytest.raises(FailedPrecondition, match="by a newer Seriatim"):
        write_batch(rows(0, 1), path, 1, writer=QUERY)


def test_two_processes_do_not_write_at_once(rows, path):
    with ParquetTable(path, QUERY).lock(), pytest.raises(StoreOwned, match="another process is writing to the table"):
        write_batch(rows(0, 1), path, 0, writer=QUERY)
    assert write_batch(rows(0, 1), path, 0, writer=QUERY)


def test_no_metric_is_waited_for_that_may_never_come(spark, rows, path, monkeypatch):
    """Spark's observations travel through a queue that drops events when it is full."""
    from pyspark.sql import Observation

    monkeypatch.setattr(Observation, "get", property(lambda _: pytest.fail("this may wait for ever")))
    computed = spark.sparkContext.accumulator(0)

    def count(batches):
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    frame = rows(0, 10)
    assert write_batch(frame.mapInArrow(count, frame.schema), path, 0, writer=QUERY)
    assert computed.value == 10  # once
    assert write_batch(rows(10, 14), path, 1, writer=QUERY, rows=4)
    assert seen(spark, path) == numbered(0, range(10)) + numbered(1, range(10, 14))


def test_rows_that_were_written_where_nobody_sees_them_are_an_error(spark, rows, path, monkeypatch):
    """As on a worker with disks of its own."""
    look = LocalFiles.names

    def lose_one(files: LocalFiles, folder: str) -> list[str]:
        for file in sorted(Path(path, folder).glob("*.parquet"))[:1]:
            file.unlink()
        return look(files, folder)

    monkeypatch.setattr(LocalFiles, "names", lose_one)
    with pytest.raises(
        FailedPrecondition, match=r"10 rows were written .* but 5 can be seen here: name a folder that every"
    ):
        write_batch(rows(0, 10), path, 0, writer=QUERY)
    monkeypatch.undo()
    assert write_batch(rows(0, 10), path, 0, writer=QUERY)
    assert seen(spark, path) == numbered(0, range(10))


def test_a_job_that_fails_shows_nothing_and_can_be_run_again(spark, rows, path):
    bad = rows(0, 10).selectExpr("id", "if(id = 9, raise_error('no'), key) AS key")
    with pytest.raises(Exception, match="no"):
        write_batch(bad, path, 0, writer=QUERY)
    assert not list(path.glob("batch=*"))
    assert write_batch(rows(0, 10), path, 0, writer="another")  # nobody has written to it yet
    assert seen(spark, path) == numbered(0, range(10))
    assert own_files(path) == {"table.json", "lock"}


# -- crashes -----------------------------------------------------------------------------------------------------------

CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")
"""What a writer does to its disk, other than through Spark."""


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def crash_after(changes: int) -> Iterator[None]:
    """Let a process make so many changes, and die: nothing that it still tries, such as tidying up, happens."""
    left = iter(range(changes))

    def counted(name: str):
        change = getattr(os, name)

        def call(*arguments, **more):
            if next(left, None) is None:
                raise Crash
            return change(*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, counted(name))
        yield


def is_killed(frames: list[DataFrame], table: Path, changes: int) -> bool:
    """Write the batches, killed after so many changes; False when it gets to the end before."""
    with crash_after(changes):
        try:
            for batch, frame in enumerate(frames):
                write_batch(frame, table, batch, writer=QUERY)
        except Crash:
            return True
    return False


def test_a_crash_between_any_two_steps_loses_and_repeats_nothing_and_shows_no_part(rows, path):
    """The batches are one with rows and one without, so that every kind of step is among them."""
    frames = [rows(0, 10).coalesce(1), rows(0, 0).coalesce(1)]
    for changes in count():
        table = path / str(changes)
        killed = is_killed(frames, table, changes)
        assert quickly_seen(table) in ([], numbered(0, range(10)))
        for batch, frame in enumerate(frames):
            write_batch(frame, table, batch, writer=QUERY)
        assert quickly_seen(table) == numbered(0, range(10))
        assert json.loads((table / "_seriatim/table.json").read_text())["empty"] == 1
        assert own_files(table) == {"table.json", "lock"}
        if not killed:
            break
    assert changes >= 12  # so many steps there are at least


def test_what_a_killed_writer_left_behind_is_never_seen_and_is_removed(spark, rows, path):
    write_batch(rows(0, 4), path, 0, writer=QUERY)
    left = path / "_seriatim/staging/left"
    rows(100, 104).write.parquet(f"file://{left}")
    assert seen(spark, path) == numbered(0, range(4))
    write_batch(rows(4, 8), path, 1, writer=QUERY)
    assert not left.exists()
    assert seen(spark, path) == numbered(0, range(4)) + numbered(1, range(4, 8))


# -- readers and streams -----------------------------------------------------------------------------------------------


def test_a_reader_meanwhile_sees_only_whole_batches(spark, rows, path):
    size, batches = 8, 6
    write_batch(rows(0, size).repartition(4), path, 0, writer=QUERY)
    done = threading.Event()
    looks: list[Counter[int]] = []

    def look() -> None:
        while not done.is_set():
            looks.append(Counter(row.batch for row in spark.read.parquet(str(path)).collect()))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for batch in range(1, batches):
            write_batch(rows(0, size).repartition(4), path, batch, writer=QUERY)
    finally:
        done.set()
        reader.join()
    assert len({len(look) for look in looks}) > 1  # it did look meanwhile
    assert all(set(look.values()) == {size} for look in looks)
    assert [len(look) for look in looks] == sorted(len(look) for look in looks)


def test_a_stream_that_is_run_again_from_its_checkpoint_adds_nothing_twice(spark, path, tmp_path):
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    added: list[bool] = []

    def write(frame: DataFrame, batch: int) -> None:
        added.append(write_batch(frame, path, batch, writer=query_of(frame)))

    def run_once() -> None:
        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(str(source))
        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(60)

    for number in range(2):
        (source / f"{number}.json").write_text(f'{{"id": {number}}}\n')
    run_once()
    for done in (checkpoint / "commits").glob("*1*"):  # the driver died before Spark knew that batch 1 was done
        done.unlink()
    (source / "2.json").write_text('{"id": 2}\n')
    run_once()
    assert added == [True, True, False, True]
    assert sorted(number for _, number in seen(spark, path)) == [0, 1, 2]
