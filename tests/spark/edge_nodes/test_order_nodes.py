"""Captured Sparkplug traffic on Spark: what the ordering service gives out, on the same trace with its times of arrival."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

from seriatim.cli.main import cli
from seriatim.core.resequencing.options import OnEpoch
from seriatim.core.sparkplug.messages import BeforeBirth, NodeOrdering, OnTimeout
from seriatim.errors import InvalidArgument, StateMismatch
from seriatim.spark import audit, held, ledger, order_nodes, ordered, register, repartition_state, resequence, unwrapped
from seriatim.spark.state_admin import inspect_state
from seriatim.sparkplug.captures import read_capture
from seriatim.sparkplug.payload import Payload
from tests.mosquitto import Mosquitto
from tests.spark.edge_nodes.captures import END, SCHEMA, Captured, capture, places_to_cut, service_tells, told_in
from tests.spark.frames.streams import Stream
from tests.sparkplug.plant import TOPIC, host_on, node_on, run_bounded, until

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


@pytest.mark.parametrize(
    ("options", "tick"),
    [(ORDERINGS[0], 0.5), (ORDERINGS[1], None), (ORDERINGS[2], 0.001)],
    ids=["release", "drop", "hold"],
)
def test_a_captured_table_comes_out_as_the_service_gave_it_out(spark, options, tick):
    """Also where the clock of the capture is so coarse that many messages came at the same time."""
    rows = capture(Random(1), nodes=12, sessions=4, tick=tick)
    assert (len({(row.node, row.arrival) for row in rows}) < len(rows)) == (tick is not None)
    frame = spark.createDataFrame(Random(2).sample(rows, len(rows)), SCHEMA)
    told = told_in(frame.transform(order_nodes(**chosen(options))).collect())
    expected = service_tells(rows, options, is_whole=True)
    assert told.ordered == expected.ordered
    assert told.ledger == expected.ledger


@pytest.mark.parametrize(("options", "tick"), [(ORDERINGS[0], 0.5), (ORDERINGS[2], None)], ids=["release", "hold"])
def test_a_stream_comes_out_as_the_service_gave_it_out_wherever_it_is_cut_and_stopped(spark, tmp_path, options, tick):
    random = Random(3)
    rows = capture(random, nodes=8, sessions=4, tick=tick)
    # Time passes where rows come: each partition gets one at the end.
    rows += [Captured(f"end/{number}", "NBIRTH", 0, 0, 0, None, END, "end") for number in range(12)]
    stream = a_stream(spark, tmp_path, **chosen(options))
    cuts = [0, *sorted(random.sample(places_to_cut(rows), 5)), len(rows)]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        stream.add(random.sample(rows[begin:end], end - begin))
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


@pytest.mark.parametrize("is_stream", [False, True], ids=["table", "stream"])
def test_a_death_and_the_birth_after_it_may_have_one_time_of_arrival(spark, tmp_path, is_stream):
    death = Captured("pump", "NDEATH", None, 7, None, None, 5.0, "death")
    rows = [BIRTH, BIRTH._replace(bd_seq=8, timestamp=200, arrival=5.0, body="next birth"), death]
    if is_stream:
        tagged = a_stream(spark, tmp_path).add(rows).run().rows()
    else:
        tagged = spark.createDataFrame(rows, SCHEMA).transform(order_nodes()).collect()
    told = told_in(tagged)
    assert told.ordered == {"pump": [("birth", 1, None), ("death", 1, None), ("next birth", 2, None)]}
    assert told.ledger == {}


# -- captured as MQTT had it --------------------------------------------------------------------------------------------


def mqtt(kind: str, seq: int | None, stamp: int, **metric: Any) -> tuple[str, str]:
    """Topic and payload, the latter as a text of hexadecimal digits."""
    payload = Payload(timestamp=stamp, seq=seq)
    payload.metrics.add(**metric)
    return f"spBv1.0/g/{kind}/pump", payload.SerializeToString().hex()


RAW_SCHEMA = "topic string, hex string, arrival double"
RAW = [
    (*mqtt("NBIRTH", 255, 100, name="bdSeq", datatype=4, long_value=7), 1.0),
    (*mqtt("NDATA", 1, 102, alias=3, datatype=3, int_value=42), 1.1),
    (*mqtt("NDATA", 0, 101, alias=3, datatype=3, int_value=41), 1.2),
    ("spBv1.0/g/NDATA/pump", "08", 1.3),
    (None, "", 1.4),
]


def read_hex(frame: Any) -> Any:
    return frame.withColumn("payload", F.unhex("hex")).drop("hex").transform(read_capture())


def check_what_was_captured(tagged: list[Any]) -> None:
    messages = [row for row in tagged if row["_tag"] == "ordered"]
    assert [(row.node, row.kind, row.seq, row.bd_seq, row.timestamp, row.arrival) for row in messages] == [
        ("g/pump", "NBIRTH", 255, 7, 100, 1.0),
        ("g/pump", "NDATA", 0, None, 101, 1.2),
        ("g/pump", "NDATA", 1, None, 102, 1.1),
    ]
    assert messages[1].metrics == '[{"alias":3,"type":"Int32","value":41}]'
    entries = [row for row in tagged if row["_tag"] == "ledger"]
    assert {(row.node, row["_reason"], row.problem[:20]) for row in entries} == {
        ("g/pump", "invalid", "this is not a Sparkp"),
        (None, "invalid", "it has no topic"),
    }


def test_raw_captures_are_read_and_put_in_order_as_tables_and_as_streams(spark, tmp_path):
    check_what_was_captured(
        spark.createDataFrame(RAW, RAW_SCHEMA).transform(read_hex).transform(order_nodes()).collect()
    )
    stream = a_stream(spark, tmp_path)
    stream.schema, stream.before = RAW_SCHEMA, read_hex
    check_what_was_captured(stream.add(RAW[:2]).add(RAW[2:]).run().rows())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"topic": "topik"}, "there is no column 'topik'; columns are: topic, hex, arrival"),
        ({"payload": "hex"}, "column 'hex' must hold bytes, not string: cast or decode it"),
        ({"topic": "arrival"}, "column 'arrival' must hold texts, not double"),
    ],
)
def test_captures_that_can_not_be_read_are_refused_before_anything_runs(spark, options, complaint):
    frame = spark.createDataFrame(RAW, RAW_SCHEMA)
    with pytest.raises(InvalidArgument, match=complaint):
        frame.transform(read_capture(**options))
    with pytest.raises(InvalidArgument, match="the columns kind are added here: rename yours"):
        frame.withColumns({"payload": F.unhex("hex"), "kind": F.lit("")}).transform(read_capture())


# -- what the host application stored -----------------------------------------------------------------------------------


@pytest.fixture
def host_topic(tmp_path) -> str:
    """A store in which a host has stored two sessions of a node, the numbers of which wrap, through a real broker."""
    store, mosquitto = f"sqlite:///{tmp_path / 'plant.db'}", Mosquitto(tmp_path)

    async def scenario() -> None:
        async with host_on(mosquitto, store, reorder_timeout=20) as host, node_on(mosquitto, group="plant") as node:
            for node.bd_seq in (7, 8):
                await node.birth(254)
                await node.data(255, 258, 256, 257, 257)
                await node.death()
            await until(lambda: host.counts.stored == 12)

    mosquitto.start()
    try:
        run_bounded(scenario())
    finally:
        mosquitto.stop()
    return store


def test_the_topic_of_the_host_is_read_and_is_in_order_session_by_session(spark, host_topic):
    register(spark)
    stored = spark.read.format("seriatim").option("url", host_topic).option("topic", TOPIC).load()
    attributes = {name: F.col("attributes")[name] for name in ("kind", "seq", "epoch")}
    messages = stored.withColumns(attributes | {name: attributes[name].cast("int") for name in ("seq", "epoch")})
    rows = messages.orderBy("offset").collect()
    session = [("NBIRTH", 254), ("NDATA", 255), ("NDATA", 0), ("NDATA", 1), ("NDATA", 2), ("NDEATH", None)]
    assert [(row.key, row.epoch, row.kind, row.seq) for row in rows] == [
        ("plant/n", epoch, kind, seq) for epoch in (1, 2) for kind, seq in session
    ]
    assert '"name":"value"' in rows[1].data.decode()
    numbered = messages.where("seq is not null")
    tagged = numbered.transform(resequence(key="key", sequence="seq", epoch="epoch", wrap=256, start="first")).cache()
    assert ledger(tagged).count() == 0
    assert [row.offset for row in ordered(tagged).orderBy("_position").collect()] == [
        row.offset for row in rows if row.seq is not None
    ]
    counted = numbered.withColumn("number", F.expr("(seq - 254 + 256) % 256")).withColumn(
        "session", F.concat_ws(" ", "key", "epoch")
    )
    verdicts = counted.transform(audit(key="session", sequence="number")).orderBy("session").collect()
    assert [(row.session, row.reordered, row.lost, row.duplicates) for row in verdicts] == [
        ("plant/n 1", 0, 0, 0),
        ("plant/n 2", 0, 0, 0),
    ]


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
    with pytest.raises(InvalidArgument, match="a stream needs a folder for its state"):
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
    shown = CliRunner().invoke(cli, ["pipeline", "state", "info", str(stream.state), "--json"])
    assert [sum(part[name] for part in json.loads(shown.stdout)["partitions"]) for name in ("keys", "held")] == [2, 1]
    waiting = json.loads(CliRunner().invoke(cli, ["pipeline", "state", "held", str(stream.state), "--json"]).stdout)
    assert [(row["node"], row["body"], row["_first"], row["_due"]) for row in waiting] == [("pump", "data 3", 1, 4.0)]
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
