"""Delta and Iceberg tables through the connectors of the session: a batch that comes again adds nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seriatim.engine.broker import Outgoing
from seriatim.errors import FailedPrecondition
from seriatim.spark.pipeline import load
from seriatim.spark.pipeline.declaration import Source
from seriatim.spark.pipeline.exactly_once import SinkBatch, has_connector, write
from seriatim.spark.pipeline.run import read
from tests.integration import connectors
from tests.spark.topics.stored_topics import ask, make_topics
from tests.test_docs import ROOT, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITER = "11111111-query:ordered"


def rows(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, numPartitions=2).selectExpr("id", "concat('key-', id % 3) AS key")


def add(frame: DataFrame, sink: tuple[str, dict[str, str]], batch: int, writer: str = WRITER) -> None:
    write(SinkBatch(frame, frame.count(), writer, batch), *sink)


def contents(spark: SparkSession, sink: tuple[str, dict[str, str]]) -> list[int]:
    name, options = sink
    frame = spark.table(options["table"]) if "table" in options else spark.read.format(name).load(options["path"])
    return sorted(row.id for row in frame.collect())


@pytest.fixture(params=["delta path", "delta table", "iceberg table", "iceberg path"])
def sink(request, spark, tmp_path) -> tuple[str, dict[str, str]]:
    """A format and its options, of a table that is not there yet; one of Iceberg's at a path has to be."""
    name, place = request.param.split()
    unique = f"t{abs(hash(tmp_path))}"
    if place == "path" and name == "iceberg":
        spark.sql(f"CREATE TABLE lake.plant.{unique} (id BIGINT, key STRING) USING iceberg")
        warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
        return name, {"path": f"{warehouse}/plant/{unique}"}
    if place == "path":
        return name, {"path": str(tmp_path / "table")}
    return name, {"table": f"lake.plant.{unique}" if name == "iceberg" else f"spark_catalog.default.{unique}"}


def test_a_batch_that_comes_again_adds_nothing(spark, sink):
    assert has_connector(spark, *sink)
    add(rows(spark, 0, 4), sink, 0)
    add(rows(spark, 0, 4), sink, 0)
    add(rows(spark, 4, 8), sink, 1)
    add(rows(spark, 8, 12), sink, 0, writer="another")
    for batch in (0, 1):
        add(rows(spark, 100, 200), sink, batch)
    assert contents(spark, sink) == [*range(12)]


def test_a_table_is_read_as_a_stream(spark, sink, tmp_path):
    name, options = sink
    got: list[int] = []

    def run_once() -> None:
        stream = read(spark, Source(format=name, options=options, select=["id * 10 AS id"]))
        query = stream.writeStream.foreachBatch(lambda frame, _: got.extend(row.id for row in frame.collect()))
        assert (
            query.option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(120)
        )

    add(rows(spark, 0, 2), sink, 0)
    run_once()
    add(rows(spark, 2, 3), sink, 1)
    run_once()
    assert sorted(got) == [0, 10, 20]


def test_without_the_snapshots_of_a_writer_nobody_knows_which_batches_are_there(spark, tmp_path):
    sink = ("iceberg", {"table": f"lake.plant.e{abs(hash(tmp_path))}"})
    for batch in range(2):
        add(rows(spark, batch, batch + 1), sink, batch)
    add(rows(spark, 9, 10), sink, 0, writer="another")
    table, when = sink[1]["table"], "TIMESTAMP '2200-01-01'"
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{table}', older_than => {when}, retain_last => 1)")
    with pytest.raises(FailedPrecondition, match=r"the oldest snapshots of the table .* are gone, and no other says"):
        add(rows(spark, 2, 3), sink, 2)


def test_a_table_that_was_written_without_the_connector_goes_on_with_it(spark, tmp_path):
    """Both know the application's transaction of the log, under the same name."""
    from seriatim.spark.pipeline.delta_table import write_batch

    path = str(Path(tmp_path, "table"))
    write_batch(rows(spark, 0, 4), path, 0, writer=WRITER, rows=4)
    sink = ("delta", {"path": path})
    add(rows(spark, 0, 4), sink, 0)
    add(rows(spark, 4, 8), sink, 1)
    assert not write_batch(rows(spark, 4, 8), path, 1, writer=WRITER, rows=4)
    assert contents(spark, sink) == [*range(8)]


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_the_pipeline_of_a_page_runs_with_the_connector(spark, tmp_path, format_):
    """What the page says without the connector, with its sink and settings for the connector."""
    blocks = blocks_of(ROOT / f"docs/how-to/write-{format_}-tables.md")
    (readings,) = [block.body.splitlines() for block in blocks if block.file == "readings.jsonl"]
    (declaration,) = [block.body.partition("[[sink]]")[0] for block in blocks if block.file == "pipeline.toml"]
    (with_connector,) = [block.body for block in blocks if block.language == "toml" and block.file is None]
    ordered_rows, _, settings = with_connector.partition("[spark]")
    ledger = ordered_rows.replace("[[sink]]", '[[sink]]\nwhat = "ledger"').replace(".ordered", ".ledger")
    path = tmp_path / "pipeline.toml"
    path.write_text(f"{declaration}{ordered_rows}{ledger}[spark]{settings}")
    pipeline = load(path)

    needed = pipeline.declaration.filled_in().spark
    assert needed.pop("spark.jars.packages") in {connectors.DELTA[0], connectors.ICEBERG[0]}
    elsewhere = {"spark.sql.catalog.lake.type", "spark.sql.catalog.lake.uri"}  # here the catalog is a folder
    assert [name for name in needed.keys() - elsewhere if needed[name] not in spark.conf.get(name, "")] == []

    url = f"sqlite:///{tmp_path}/seriatim.db"
    make_topics(url, "raw")
    messages = [Outgoing(json.loads(line)["device"], line.encode(), None) for line in readings]
    ask(url, lambda broker: broker.publish("raw", messages))
    catalog = "lake" if format_ == "iceberg" else "spark_catalog"
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {catalog}.plant")
    assert pipeline.begin(spark).wait(300)
    in_order = spark.table(f"{catalog}.plant.ordered").orderBy("_position").collect()
    assert [(row.device, row.n) for row in in_order] == [("pump", 1), ("pump", 2), ("pump", 3)]
    assert [row["_reason"] for row in spark.table(f"{catalog}.plant.ledger").collect()] == ["duplicate"]
