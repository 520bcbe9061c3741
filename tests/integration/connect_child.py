"""A client of Spark Connect: python -m tests.integration.connect_child SCENARIO SERVER FOLDER.

Within one process PySpark is a client of Connect or a driver, and never both: each scenario has a process of its own.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from seriatim.core.sparkplug.messages import NodeOrdering
from seriatim.engine.broker import Outgoing
from seriatim.errors import FailedPrecondition
from seriatim.spark import (
    audit,
    held,
    ledger,
    order_nodes,
    ordered,
    query_of,
    register,
    repartition_state,
    resequence,
    resequence_batch,
)
from seriatim.spark.pipeline import load
from tests.spark.edge_nodes.captures import END, Captured, capture, service_tells, told_in
from tests.spark.edge_nodes.captures import SCHEMA as NODES
from tests.spark.topics.stored_topics import ask, make_topics, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DISORDERED = [("pump", 1), ("pump", 3), ("fan", 2), ("pump", 2), ("fan", 1), ("pump", 3), ("fan", 3)]
IN_ORDER = {"fan": [1, 2, 3], "pump": [1, 2, 3]}


def numbers(rows: list[Any]) -> dict[str, list[int]]:
    """The numbers of each key, by their positions."""
    found: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row._position):
        found.setdefault(row.key, []).append(row.n)
    return found


def table(spark: SparkSession) -> DataFrame:
    rows = [(key, n, offset) for offset, (key, n) in enumerate(DISORDERED)]
    return spark.createDataFrame(rows, "key STRING, n BIGINT, offset BIGINT")


def a_table(spark: SparkSession, folder: Path) -> None:
    for rules in (resequence(key="key", sequence="n"), resequence(key="key", sequence="n", start=1, capacity=10)):
        tagged = table(spark).transform(rules)
        assert numbers(ordered(tagged).collect()) == IN_ORDER
        assert [row._reason for row in ledger(tagged).collect()] == ["duplicate"]
    verdicts = table(spark).transform(audit(key="key", sequence="n", arrival="offset")).collect()
    assert {row.key: row.duplicates for row in verdicts} == {"pump": 1, "fan": 0}


def raw_topic(folder: Path) -> str:
    url = f"sqlite:///{folder}/store.db"
    make_topics(url, "raw", "ordered")
    ask(url, lambda broker: broker.publish("raw", [Outgoing(key, b"%d" % n, None) for key, n in DISORDERED]))
    return url


def a_stream(spark: SparkSession, folder: Path) -> None:
    """From a topic into a topic, in processing time, with ticks."""
    url = raw_topic(folder)
    register(spark)
    assert spark.read.format("seriatim").options(url=url, topic="raw").load().count() == len(DISORDERED)
    raw = spark.readStream.format("seriatim").options(url=url, topic="raw").load()
    rules = resequence(
        key="key", sequence="n", start=1, state=f"{folder}/state", time="processing", gap_timeout="1h", tick="200ms"
    )
    rows = ordered(
        raw.selectExpr("key", "data", "offset", "cast(cast(data AS string) AS bigint) AS n").transform(rules)
    )
    sink = rows.writeStream.format("seriatim").options(url=url, topic="ordered")
    for _ in range(2):  # the second finds nothing new
        query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
    written: dict[str | None, list[int]] = {}
    for record in stored(url, "ordered"):
        written.setdefault(record.key, []).append(int(record.data))
    assert written == IN_ORDER


def a_gap_is_given_up_by_ticks(spark: SparkSession, folder: Path) -> None:
    url = raw_topic(folder)
    ask(url, lambda broker: broker.publish("raw", [Outgoing("pump", b"5", None)]))
    register(spark)
    raw = spark.readStream.format("seriatim").options(url=url, topic="raw").load()
    rules = resequence(
        key="key", sequence="n", start=1, state=f"{folder}/state", time="processing", gap_timeout="1s", tick="200ms"
    )
    tagged = raw.selectExpr("key", "offset", "cast(cast(data AS string) AS bigint) AS n").transform(rules)
    query = tagged.writeStream.format("memory").queryName("tagged").start()
    while spark.sql("SELECT * FROM tagged WHERE _tag = 'ordered' AND n = 5").isEmpty():
        assert query.exception() is None
    query.stop()


def a_batch_within_foreach_batch(spark: SparkSession, folder: Path) -> None:
    url = raw_topic(folder)
    register(spark)
    raw = spark.readStream.format("seriatim").options(url=url, topic="raw").load()
    rows = raw.selectExpr("key", "offset", "cast(cast(data AS string) AS bigint) AS n")
    state, out = f"{folder}/state", f"{folder}/out"

    def put_in_order(batch: DataFrame, batch_id: int) -> None:
        rules = resequence(key="key", sequence="n", start=1, state=state)
        tagged = resequence_batch(batch, batch_id, rules, query="readings")
        ordered(tagged).write.mode("append").parquet(out)
        tagged.count()  # computed once more, and nothing changes

    for more in ([], [Outgoing("pump", b"5", None)], [Outgoing("pump", b"4", None)]):
        if more:
            ask(url, lambda broker, more=more: broker.publish("raw", more))  # type: ignore[misc]
        stream = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        stream.foreachBatch(put_in_order).start().awaitTermination()
    assert numbers(spark.read.parquet(out).collect()) == {**IN_ORDER, "pump": [1, 2, 3, 4, 5]}


def what_does_not_work_is_refused(spark: SparkSession, folder: Path) -> None:
    (folder / "pipeline.toml").write_text("""
        [pipeline]
        name = "readings"
        checkpoint = "work"
        [source]
        format = "rate"
        [order]
        key = "value"
        sequence = "value"
        start = 1
        [[sink]]
        format = "parquet"
        options.path = "out"
    """)
    for refused in (lambda: query_of(table(spark)), lambda: load(folder / "pipeline.toml").start(spark)):
        with pytest.raises(FailedPrecondition, match="Spark Connect"):
            refused()


def messages_of_edge_nodes(spark: SparkSession, folder: Path) -> None:
    """As a table, and as a stream into a topic: what the ordering service gives out."""
    options, rules = NodeOrdering(reorder_timeout=4.0), partial(order_nodes, reorder_timeout=4.0)
    rows = capture(Random(1), nodes=4, sessions=2)
    # Time passes where rows come: each partition gets one at the end.
    rows += [Captured(f"end/{number}", "NBIRTH", 0, 0, 0, None, END, "end") for number in range(12)]
    table = spark.createDataFrame(Random(2).sample(rows, len(rows)), NODES)
    told, expected = (
        told_in(table.transform(rules()).collect()),
        service_tells(rows, options, is_whole=True),
    )
    assert (told.ordered, told.ledger) == (expected.ordered, expected.ledger)

    (folder / "in").mkdir()
    (folder / "in" / "messages.json").write_text("\n".join(json.dumps(row._asdict()) for row in rows))
    stream = spark.readStream.schema(NODES).json(str(folder / "in"))
    tagged = stream.transform(rules(state=f"{folder}/state", partitions=2))
    query = tagged.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    told = told_in(spark.read.parquet(f"{folder}/out").collect())
    expected = service_tells(rows, options, is_whole=False)
    assert (told.ordered, told.ledger) == (expected.ordered, expected.ledger)


def what_waits_is_seen_and_the_state_divided_anew(spark: SparkSession, folder: Path) -> None:
    url = raw_topic(folder)
    ask(url, lambda broker: broker.publish("raw", [Outgoing("pump", b"5", None)]))
    register(spark)
    state, got = f"{folder}/state", f"{folder}/out"

    def run_once() -> None:
        raw = spark.readStream.format("seriatim").options(url=url, topic="raw").load()
        rows = raw.selectExpr("key", "offset", "cast(cast(data AS string) AS bigint) AS n")
        tagged = rows.transform(resequence(key="key", sequence="n", start=1, state=state))
        query = ordered(tagged).writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        query.trigger(availableNow=True).start(got).awaitTermination()

    run_once()
    assert [(row.key, row.n) for row in held(spark, state).collect()] == [("pump", 5)]
    assert repartition_state(spark, state, 5) == [0]
    ask(url, lambda broker: broker.publish("raw", [Outgoing("pump", b"4", None)]))
    run_once()
    assert held(spark, state).count() == 0
    assert numbers(spark.read.parquet(got).collect()) == {**IN_ORDER, "pump": [1, 2, 3, 4, 5]}


def a_stream_into_foreach_batch_fails_before_anything_is_written(spark: SparkSession, folder: Path) -> None:
    url, seen = raw_topic(folder), f"{folder}/seen"
    register(spark)
    raw = spark.readStream.format("seriatim").options(url=url, topic="raw").load()
    rows = raw.selectExpr("key", "offset", "cast(cast(data AS string) AS bigint) AS n")
    tagged = rows.transform(resequence(key="key", sequence="n", start=1, state=f"{folder}/state"))

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.parquet(seen)

    stream = tagged.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="within foreachBatch on Spark Connect use resequence_batch"):
        stream.foreachBatch(write).start().awaitTermination()
    assert not list(folder.glob("state/**/*"))
    assert not list(folder.glob("seen/*.parquet"))


SCENARIOS = (
    a_table,
    messages_of_edge_nodes,
    what_waits_is_seen_and_the_state_divided_anew,
    a_stream_into_foreach_batch_fails_before_anything_is_written,
    a_stream,
    a_gap_is_given_up_by_ticks,
    a_batch_within_foreach_batch,
    what_does_not_work_is_refused,
)


def main(name: str, server: str, folder: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    {one.__name__: one for one in SCENARIOS}[name](spark, Path(folder))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
