"""Captured Sparkplug traffic on Spark: what the ordering service gives out, on the same trace with its times of arrival."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.edge_messages import BeforeBirth, NodeOrdering, OnTimeout
from seriatim.core.resequencing import OnEpoch
from seriatim.errors import InvalidArgument, StateMismatch
from seriatim.spark import held, ledger, order_nodes, ordered, repartition_state, unwrapped
from seriatim.spark.upkeep import inspect_state
from tests.spark.edge_captures import END, SCHEMA, Captured, capture, service_tells, told_in
from tests.spark.streams import Stream

ORDERINGS = [
    NodeOrdering(reorder_timeout=4.0),
    NodeOrdering(reorder_timeout=4.0, on_timeout=OnTimeout.DROP, on_session_end=OnEpoch.DISCARD, capacity=5),
    NodeOrdering(reorder_timeout=1.0, on_timeout=OnTimeout.HOLD, before_birth=BeforeBirth.HOLD),
]
BIRTH = Captured("pump", "NBIRTH", 0, 7, 100, None, 1.0, "birth")


def data(seq: int, at: float, node: str = "pump") -> Captured:
    return Captured(node, "NDATA", seq, None, 100 + seq, None, at, f"data {seq}")


def chosen(options: NodeOrdering) -> dict[str, Any]:
    """The options in the words of ``order_nodes``."""
    names = ("reorder_timeout", "on_timeout", "before_birth", "on_session_end", "capacity")
    return {name: getattr(options, name) for name in names}


def a_stream(spark: Any, root: Path, **options: Any) -> Stream:
    return Stream(spark, root, options, SCHEMA, orders=order_nodes, defaults={"partitions": 2})


# -- the same as the service --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ORDERINGS, ids=["release", "drop", "hold"])
def test_a_captured_table_comes_out_as_the_service_gave_it_out(spark, options):
    rows = capture(Random(1), nodes=20, sessions=4)
    frame = spark.createDataFrame(Random(2).sample(rows, len(rows)), SCHEMA)
    told = told_in(frame.transform(order_nodes(**chosen(options))).collect())
    expected = service_tells(rows, options, is_whole=True)
    assert told.ordered == expected.ordered
    assert told.ledger == expected.ledger


@pytest.mark.parametrize("options", [ORDERINGS[0], ORDERINGS[2]], ids=["release", "hold"])
def test_a_stream_comes_out_as_the_service_gave_it_out_wherever_it_is_cut_and_stopped(spark, tmp_path, options):
    random = Random(3)
    rows = capture(random, nodes=8, sessions=4)
    # Time passes where rows come: each partition gets one at the end.
    rows += [Captured(f"end{number}", "NBIRTH", 0, 0, 0, None, END, "end") for number in range(12)]
    stream = a_stream(spark, tmp_path, **chosen(options))
    cuts = [0, *sorted(random.sample(range(len(rows)), 5)), len(rows)]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        stream.add(rows[begin:end])
        if number % 2 or end == len(rows):
            stream.run()
    told, expected = told_in(stream.rows()), service_tells(rows, options, is_whole=False)
    assert told.ordered == expected.ordered
    assert told.ledger == expected.ledger
    bodies = sorted(row.body for row in stream.rows() if row.body is not None)
    waiting = sorted(row.body for row in held(spark, str(stream.state)).collect())
    assert sorted(bodies + waiting) == sorted(row.body for row in rows)
    assert bool(waiting) == (options.on_timeout is OnTimeout.HOLD)


def test_ordered_and_ledger_take_the_frame_apart(spark):
    rows = [data(9, 0.5), BIRTH, data(2, 2.0), data(1, 3.0), data(1, 3.5), data(5, 4.0)]
    death = Captured("pump", "NDEATH", None, 3, None, None, 5.0, "death")
    tagged = spark.createDataFrame([*rows, death], SCHEMA).transform(order_nodes())
    messages = ordered(tagged).orderBy("_position")
    assert messages.columns == [*Captured._fields, "_position", "_epoch", "_flag"]
    assert [tuple(row[name] for name in ("body", "_position", "_epoch", "_flag")) for row in messages.collect()] == [
        ("data 9", 0, 1, "before-birth"),
        ("birth", 1, 2, None),
        ("data 1", 2, 2, None),
        ("data 2", 3, 2, None),
        ("data 5", 4, 2, None),
    ]
    entries = ledger(tagged)
    assert "_flag" not in entries.columns
    names = ("body", "_reason", "_epoch", "_first", "_last", "_time", "_detail")
    assert sorted(tuple(row[name] for name in names) for row in entries.orderBy("_time").collect()[:2]) == [
        ("data 1", "duplicate", 2, 1, 1, 3.5, "released before"),
        ("death", "ignored", None, None, None, 5.0, "it ends session 3, and session 7 lives"),
    ]
    assert [
        (row["_reason"], row["_first"], row["_last"], row["_time"]) for row in entries.collect() if row.body is None
    ] == [("lost", 3, 4, 6.0)]


def test_times_may_be_timestamps_and_columns_have_any_name(spark):
    rows = [BIRTH, data(2, 2.0), data(1, 3.0)]
    frame = spark.createDataFrame(rows, SCHEMA).drop("device")
    for name in ("arrival", "timestamp"):
        frame = frame.withColumn(name, F.timestamp_seconds(name))
    names: dict[str, Any] = {
        "key": "edge node",
        "kind": "k",
        "seq": "n",
        "bd_seq": "b",
        "timestamp": "sent",
        "arrival": "got",
    }
    frame = frame.toDF("edge node", "k", "n", "b", "sent", "got", "body")
    out = ordered(frame.transform(order_nodes(**names, device=None))).orderBy("_position").collect()
    assert [row.body for row in out] == ["birth", "data 1", "data 2"]


# -- what nobody can judge ----------------------------------------------------------------------------------------------


def test_rows_that_nobody_can_judge_are_in_the_ledger_or_fail(spark):
    frame = spark.createDataFrame([BIRTH, data(300, 2.0), data(1, 3.0), BIRTH._replace(kind=None)], SCHEMA)
    tagged = frame.transform(order_nodes()).collect()
    assert [row.body for row in tagged if row["_tag"] == "ordered"] == ["birth", "data 1"]
    assert {(row.body, row["_reason"]) for row in tagged if row["_tag"] == "ledger"} == {
        ("data 300", "invalid"),
        ("birth", "invalid"),
    }
    with pytest.raises(PythonException) as failed:
        frame.transform(order_nodes(on_invalid="raise")).collect()
    assert "2 of 4 rows are invalid" in str(unwrapped(failed.value))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kind": "typ"}, "there is no column 'typ'"),
        ({"kind": "seq"}, "column 'seq' must hold texts, not bigint"),
        ({"bd_seq": "body"}, "column 'body' must hold whole numbers, not string"),
        ({"timestamp": "arrival"}, "column 'arrival' must hold whole numbers or timestamps, not double"),
        ({"arrival": "body"}, "column 'body' must hold numbers or timestamps, not string"),
        ({"on_timeout": "skip"}, "on_timeout must be one of 'release', 'drop', 'hold'"),
        ({"reorder_timeout": "soon"}, "reorder_timeout must be a duration"),
        ({"capacity": 200}, "capacity 200 is more than the 127 numbers"),
        ({"state": "somewhere"}, "state=… is for streams"),
        ({"time": "processing"}, "time='processing' is for streams"),
    ],
)
def test_what_can_not_work_is_refused_before_anything_runs(spark, options, complaint):
    frame = spark.createDataFrame([BIRTH], SCHEMA)
    with pytest.raises(InvalidArgument, match=complaint):
        frame.transform(order_nodes(**options))


def test_columns_that_are_added_must_not_be_there_before(spark):
    frame = spark.createDataFrame([BIRTH], SCHEMA).withColumn("_flag", F.lit("mine"))
    with pytest.raises(InvalidArgument, match="the columns _flag are added here: rename yours"):
        frame.transform(order_nodes())


# -- the state of a stream ----------------------------------------------------------------------------------------------


def test_a_stream_needs_a_state_and_keeps_what_its_columns_mean(spark, tmp_path):
    stream = a_stream(spark, tmp_path).add([BIRTH]).run()
    with pytest.raises(InvalidArgument, match="a stream needs a folder for what it remembers"):
        stream.tagged(state=None)
    stream.add([data(1, 2.0)])
    failure = stream.fail(timestamp=None)
    assert isinstance(failure, StateMismatch)
    assert "timestamp='timestamp', and the query runs with" in str(failure)
    assert stream.run(reorder_timeout="9s").rows()[-1].body == "data 1"


def test_what_waits_is_shown_and_the_state_is_divided_anew(spark, tmp_path):
    stream = a_stream(spark, tmp_path).add([BIRTH, data(3, 2.0), BIRTH._replace(node="valve")]).run()
    (row,) = held(spark, str(stream.state)).collect()
    waits = (row.node, row.body, row["_since"], row["_first"], row["_last"], row["_due"])
    assert waits == ("pump", "data 3", 2.0, 1, 2, 4.0)
    parts = inspect_state(str(stream.state)).partitions
    assert [sum(getattr(part, name) for part in parts) for name in ("keys", "held", "gaps")] == [2, 1, 1]
    assert repartition_state(spark, str(stream.state), 3) == [0]
    stream.add([data(1, 3.0), data(2, 3.5), data(1, 3.0, "valve")]).run(partitions=3)
    assert {node: [body for body, *_ in rows] for node, rows in told_in(stream.rows()).ordered.items()} == {
        "pump": ["birth", "data 1", "data 2", "data 3"],
        "valve": ["birth", "data 1"],
    }


def test_in_processing_time_a_gap_is_given_up_although_no_row_comes(spark, tmp_path):
    stream = a_stream(spark, tmp_path, time="processing", reorder_timeout="500ms", tick="100ms")
    query = stream.add([BIRTH, data(2, 2.0)]).start()
    try:
        stream.wait_for(lambda: len(stream.rows()) == 3)
    finally:
        query.stop()
    told = told_in(stream.rows())
    assert [body for body, *_ in told.ordered["pump"]] == ["birth", "data 2"]
    assert told.ledger["pump"][0][:4] == ("lost", 1, 1, 1)
