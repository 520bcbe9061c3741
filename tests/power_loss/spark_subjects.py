"""What the Spark side keeps on disks: state, staged messages, tables. Only the tables need a Spark session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seriatim.engine.engine import Engine
from seriatim.spark.pipeline.parquet_table import BATCH, MANIFEST, write_batch
from seriatim.spark.state.batch_versions import bound_folder
from seriatim.spark.state.files import LocalFiles
from seriatim.spark.state.repartition import repartition
from seriatim.spark.topics.sink import Staging
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from tests.power_loss.subjects import Say, Subject, make_durable
from tests.spark.state.repartitioning import by_function
from tests.spark.state.test_batch_versions import Query, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
BATCHES = 5


class SparkState:
    """State of a stream, and a change of its partition count. A version that was written before its batch gave
    anything out is there with the same bytes, and the next batch can go on from it."""

    name = "Spark state"

    def work(self, folder: Path, say: Say) -> None:
        query = Query(LocalFiles(str(folder / "state")), partitions=PARTITIONS, keep=2)
        for batch in range(BATCHES):
            for partition in range(PARTITIONS):
                query.run(batch, _rows_of(batch, partition), partition)
                say(_version(query, partition, batch))
        assign = by_function(lambda keys: pc.utf8_length(keys).to_numpy() % (PARTITIONS + 1))
        repartition(query.files, PARTITIONS + 1, assign)
        wider = Query(query.files, partitions=PARTITIONS + 1, keep=2)
        for partition in range(PARTITIONS + 1):
            say(_version(wider, partition, BATCHES - 1))

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if not before:
            return
        acknowledged = [json.loads(line) for line in before]
        folder = bound_folder(str(image / "state"))
        count = folder.binding.partitions
        assert count >= acknowledged[-1]["of"], "a change of the partition count is undone"
        expected = acknowledged if acknowledged[-1]["of"] == count else [json.loads(line) for line in after]
        for version in expected[-PARTITIONS if count == PARTITIONS else -PARTITIONS - 1 :]:
            if version["of"] == count:
                found = folder.read(version["partition"], version["batch"])
                _, root = folder.header(version["partition"], version["batch"])
                assert root == version["root"], f"{version} is there with another content"
                found.partition.whole()
        if count == PARTITIONS:
            self._go_on(image, count, acknowledged[-1])

    def _go_on(self, image: Path, count: int, last: dict[str, int]) -> None:
        """The next task, or the one whose outcome nobody heard of: both give out what they always give out."""
        query = Query(LocalFiles(str(image / "state")), partitions=count, keep=2)
        partition, batch = last["partition"], last["batch"] + 1
        query.run(batch, _rows_of(batch, partition), partition)


def _rows_of(batch: int, partition: int):
    key = "k" * (partition + 1)
    return rows(2 * batch, 2 * batch + 3, key=key, at=float(batch))


def _version(query: Query, partition: int, batch: int) -> str:
    root = query.folder().header(partition, batch)[1]
    return json.dumps({"of": query.partitions, "partition": partition, "batch": batch, "root": root})


class SinkStaging:
    """Batches that tasks stage and the owner appends. Whatever is left of the staged files, a batch that is repeated,
    as Spark does, is there once, and the batches are in order."""

    name = "sink's staging"
    _batches = 4

    def work(self, folder: Path, say: Say) -> None:
        asyncio.run(_make_topic(folder))
        make_durable(folder, say)
        for batch in range(self._batches):
            say(f"begin {batch}")
            self._write(folder, batch)
            say(f"done {batch}")

    def _write(self, folder: Path, batch: int) -> None:
        staging = Staging.of({"url": f"sqlite:///{folder}/store.db", "topic": "t"})
        data = [f"{batch}.{number}".encode() for number in range(5)]
        rows = pa.record_batch({"key": ["k"] * len(data), "data": data})
        staging.append("w", batch, [staging.stage("w", batch, iter([rows]))])

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        if not before:
            return
        with closing(SqliteStore(image / "store.db")) as store:
            assert list(store.check()) == []
        begun = int(before[-1].split()[1])
        for batch in range(begun, self._batches):  # the one that was under way comes again
            self._write(image, batch)
        with closing(SqliteReader(image / "store.db")) as reader:
            found = [record.data.decode() for record in reader.read(1, 0, 1_000)]
        assert found == [f"{batch}.{number}" for batch in range(self._batches) for number in range(5)]


async def _make_topic(folder: Path) -> None:
    engine = await Engine.open(f"sqlite:///{folder}/store.db")
    await engine.create_topic("t")
    await engine.close()


WITHOUT_SESSION: Sequence[Subject] = (SparkState(), SinkStaging())


class ParquetTables:
    """Tables of parquet files: a batch that was written is there as a whole, a batch without rows is noted, and
    nothing of any other can be seen."""

    name = "parquet table"
    _rows = (3, 0, 4, 2)

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def work(self, folder: Path, say: Say) -> None:
        for batch, count in enumerate(self._rows):
            frame = self._spark.createDataFrame([(number,) for number in range(count)], "n int")
            write_batch(frame, folder / "table", batch, writer="q", rows=count)
            say(str(batch))

    def judge(self, image: Path, before: Sequence[str], after: Sequence[str]) -> None:
        table = image / "table"
        done = [int(line) for line in before]
        shown = {int(path.name.partition("=")[2]): path for path in table.glob(f"{BATCH}=*")}
        noted = json.loads((table / MANIFEST).read_bytes())["empty"] if (table / MANIFEST).exists() else -1
        for batch in done:
            if self._rows[batch] or not batch:
                assert batch in shown, f"batch {batch} is gone"
            else:
                assert noted >= batch, f"it is forgotten that batch {batch} had no rows"
        for batch, path in shown.items():
            found = pq.read_table(path, partitioning=None)["n"].to_pylist()
            assert sorted(found) == list(range(self._rows[batch])), f"batch {batch} is not whole"
        assert len(shown) + (noted >= 0) <= len(done) + 1
