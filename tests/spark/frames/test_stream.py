"""Streams put in order: the same as the core would, whatever happens to the query, its checkpoint and its state."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from ast import literal_eval
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.resequencing.options import OnDuplicate, OnLate, ResequenceOptions, Start
from seriatim.errors import DamagedStore, FailedPrecondition, InvalidArgument, InvalidSequence, StateMismatch
from seriatim.spark import ordered, resequence, resequence_batch
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.compatibility import SPARK
from seriatim.spark.frames import stream as stream_in_order
from seriatim.spark.frames.preparation import PARTITION, TIME
from seriatim.spark.frames.stream import PartitionTask, partition_of
from seriatim.spark.identity import TaskIdentity
from seriatim.spark.kernel.arrival_order import ArrivalOrder
from seriatim.spark.kernel.intake import TOO_FAR_AHEAD
from seriatim.spark.kernel.kernel import Kernel
from seriatim.spark.state.batch_versions import StateFolder
from seriatim.spark.state_admin import held_rows
from tests.spark.frames.random_rows import by_rule, digests_of_payloads, random_messages
from tests.spark.frames.streams import Stream
from tests.spark.kernel.traces import Core, Row, told_in

SEVERAL_BATCHES = pytest.mark.skipif(
    SPARK < (4, 2), reason="before Spark 4.2 an available-now run with ticks is one batch"
)


@pytest.fixture
def stream(spark, tmp_path) -> Stream:
    return Stream(spark, tmp_path)


@pytest.fixture(scope="module")
def kept(spark, tmp_path_factory) -> Stream:
    """A stream that waits for the number 1 of key a, after two batches; a copy of its folder is beside it."""
    stream = Stream(spark, tmp_path_factory.mktemp("begun"))
    stream.add([("a", 0, 1.0, "a0"), ("b", 0, 1.0, "b0")]).add([("a", 2, 2.0, "a2")]).run()
    shutil.copytree(stream.root, copy_of(stream.root))
    return stream


def copy_of(root: Path) -> Path:
    return root.with_name(f"{root.name}-copy")


@pytest.fixture
def begun(spark, kept) -> Stream:
    """That stream as it was: tests tamper with it in its own place, for Spark remembers the names of files."""
    wait_for_late_tasks(spark)
    shutil.rmtree(kept.root)
    shutil.copytree(copy_of(kept.root), kept.root)
    return replace(kept, batches=dict(kept.batches))


def wait_for_late_tasks(spark) -> None:
    """When a query fails its other tasks go on for a moment, and write what the next test must not find."""
    tracker, end = spark.sparkContext._jsc.sc().statusTracker(), time.monotonic() + 20
    while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
        assert time.monotonic() < end, "tasks of an earlier query never end"
        time.sleep(0.02)


# -- order --------------------------------------------------------------------------------------------------------------


def test_a_stream_is_put_in_order_over_its_batches(stream):
    stream.add([("a", 1, 1.0, "a1"), ("b", 0, 1.0, "b0")]).add([("a", 0, 2.0, "a0"), ("a", 1, 2.5, "again")])
    stream.add([("b", 2, 3.0, "b2")]).add([("a", 2, 9.0, "a2"), ("b", 3, 9.0, "b3")])
    stream.run(gap_timeout="5s")
    assert stream.ordered() == {"a": ["a0", "a1", "a2"], "b": ["b0", "b2", "b3"]}
    assert sorted(stream.ledger()) == [("a", "duplicate", 1, 1), ("b", "lost", 1, 1)]


def test_a_batch_within_foreach_batch_is_put_in_order_by_itself(stream):
    stream.add([("a", 1, 1.0, "a1")]).add([("a", 0, 2.0, "a0"), ("a", 3, 2.5, "a3")]).add([("a", 2, 3.0, "a2")])
    options = {**stream.defaults, "state": str(stream.state), "gap_timeout": "1h"}
    found: list[str] = []

    def put_in_order(batch: Any, batch_id: int) -> None:
        tagged = resequence_batch(batch, batch_id, resequence(**options), query="mine")
        assert tagged.count() == tagged.count()  # computed twice, with the same outcome
        found.extend(row.body for row in ordered(tagged).orderBy("_position").collect())

    rows = stream.spark.readStream.schema(stream.schema).option("maxFilesPerTrigger", 1).json(str(stream.root / "in"))
    query = rows.writeStream.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    query.foreachBatch(put_in_order).start().awaitTermination()
    assert found == ["a0", "a1", "a2", "a3"]
    for refused in ({"time": "processing"}, {"max_ahead": "1h"}):
        with pytest.raises(InvalidArgument, match="has no time of its own"):
            resequence_batch(rows, 0, resequence(**{**options, **refused}), query="mine")
    with pytest.raises(InvalidArgument, match="rules must be what resequence"):
        resequence_batch(rows, 0, lambda frame: frame, query="mine")


def test_state_on_one_machine_is_refused_where_tasks_run_on_another(stream, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")  # the tasks know better
    stream.add([("a", 0, 1.0, "a0")])
    error = stream.fail()
    assert isinstance(error, FailedPrecondition)
    assert f"the state is in {stream.state} on elsewhere, and a task runs on " in str(error)
    assert f"state='file://{stream.state}'" in str(error)
    assert not stream.state.exists()
    stream.run(state=f"file://{stream.state}")
    assert stream.ordered() == {"a": ["a0"]}


def test_state_on_one_machine_is_refused_before_a_query_of_a_cluster_starts(stream, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    stream.tagged()  # on a single machine nobody is asked
    monkeypatch.setattr(stream.spark.sparkContext, "master", "spark://cluster:7077")
    with pytest.raises(FailedPrecondition, match=f"the state is in {stream.state} on elsewhere, and a task runs on "):
        stream.tagged()
    stream.tagged(state=f"file://{stream.state}")
    monkeypatch.undo()
    monkeypatch.setattr(stream.spark.sparkContext, "master", "spark://cluster:7077")
    stream.tagged()


OFFSETS: dict[str, Any] = {"key": "k", "sequence": "k", "start": 0, "state": "s"}
IN_ORDER = ArrivalOrder(("n",), "k", ())
RANDOM = "key string, seq bigint, at double, body bigint, epoch bigint, payload string"


def random_rows(seed: int, keys: int, epochs: int, digests: dict | None = None) -> list[Row]:
    messages = random_messages(seed, keys, epochs=epochs)
    in_order = sorted(messages, key=lambda message: by_rule(message, digests))
    return [Row(one.key, one.seq, float(one.arrived), one.id, one.epoch, repr(one.payload)) for one in in_order]


def as_tuples(rows: list[Row]) -> list[tuple]:
    """As they come out of a shuffle: in any order."""
    found = [(row.key, row.seq, row.at, row.body, row.epoch, literal_eval(str(row.digest))) for row in rows]
    return Random(len(rows)).sample(found, len(found))


@pytest.mark.parametrize(
    ("chosen", "core"),
    [
        (
            {"gap_timeout": 40, "on_late": "side-output"},
            ResequenceOptions(start=Start.at(0), gap_timeout=40, on_late=OnLate.SIDE_OUTPUT),
        ),
        (
            {
                "start": "lowest",
                "gap_timeout": "90s",
                "epoch": "epoch",
                "payload": "payload",
                "on_duplicate": "conflict",
            },
            ResequenceOptions(start=Start.lowest_within(90), gap_timeout=90, on_duplicate=OnDuplicate.CONFLICT),
        ),
    ],
    ids=["timeouts", "lowest, conflicts, epochs"],
)
def test_random_traces_cut_into_batches_are_decided_as_the_core_would(spark, tmp_path, chosen, core):
    stream = Stream(spark, tmp_path, chosen, RANDOM)
    digests = digests_of_payloads(spark) if "payload" in chosen else None
    rows = random_rows(3, 80, 1 + ("epoch" in chosen), digests)
    cuts = [0, 150, 151, 500, 800, len(rows)]
    home = partitions_of(spark, {row.key for row in rows}, 3)
    cores = [Core(core) for _ in range(3)]
    for begin, end in pairwise(cuts):
        stream.add(as_tuples(rows[begin:end]))
    stream.run()
    for batch, (begin, end) in enumerate(pairwise(cuts)):
        ordered, entries = [], []
        for number, machine in enumerate(cores):
            mine = [row for row in rows[begin:end] if home[row.key] == number]
            released, told = machine.run(mine, max((row.at or 0.0 for row in mine), default=-inf))
            ordered += released
            entries += told
        expected = (sorted(ordered, key=lambda row: row[0]), sorted(entries, key=lambda entry: entry[1]))
        assert told_in([row.asDict() for row in stream.batches[batch]]) == expected
    assert {"lost", "duplicate"} <= {row["_reason"] for row in stream.rows()}


def partitions_of(spark, keys, count):
    frame = spark.createDataFrame([(key,) for key in keys], "key string")
    return {row[0]: row[1] for row in frame.select("key", partition_of(frame.key, count)).collect()}


def test_timestamps_and_maps_are_held_and_given_out_as_they_came(spark, tmp_path):
    schema = "key string, seq bigint, at timestamp, body string, tags map<string,string>"
    stream = Stream(spark, tmp_path, {"gap_timeout": "1m"}, schema)
    stream.add([("a", 1, "2026-01-01T00:00:00.5Z", "a1", {"x": "1", "y": "2"})])
    stream.add([("a", 0, "2026-01-01T00:00:30Z", "a0", None)]).add([("a", 3, "2026-01-01T00:00:31Z", "a3", {})])
    stream.add([("a", 4, "2026-01-01T00:01:31Z", "a4", {})]).run()
    assert stream.ordered() == {"a": ["a0", "a1", "a3", "a4"]}
    (held,) = [row for row in stream.rows() if row["body"] == "a1"]
    assert held["tags"] == {"x": "1", "y": "2"}
    assert held["at"].timestamp() == 1767225600.5
    (lost,) = [row for row in stream.rows() if row["_reason"] == "lost"]
    assert lost["_time"] == 1767225691.0


def test_numbers_that_wrap_go_on_from_batch_to_batch(stream):
    numbers = [6, 7, 0, 2, 1, 4, 3, 5, 6, 7, 1, 0]
    for place in range(0, len(numbers), 4):
        stream.add([("a", n, float(i), str(i)) for i, n in enumerate(numbers[place : place + 4], place)])
    stream.run(wrap=8, start=6)
    assert [numbers[int(body)] for body in stream.ordered()["a"]] == [6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_rows_that_nobody_can_judge_get_a_ledger_entry(stream):
    stream.add(
        [(None, 0, 1.0, "no key"), ("a", None, 1.0, "no number"), ("a", 0, None, "no time"), ("a", 0, 1.0, "fine")]
    )
    stream.add([("a", 2**61 + 1, 2.0, "far"), ("a", 1, 2.0, "fine too"), (None, None, None, "nothing")]).run()
    assert stream.ordered() == {"a": ["fine", "fine too"]}
    invalid = {row["body"] for row in stream.rows() if row["_reason"] == "invalid"}
    assert invalid == {"no key", "no number", "no time", "far", "nothing"}


def test_rows_that_nobody_can_judge_stop_the_query_if_so_chosen(stream):
    failure = stream.add([("a", None, 1.0, "no number")]).fail(on_invalid="raise")
    assert isinstance(failure, InvalidSequence)
    assert "first message None of key 'a': it has no number" in str(failure)


def test_a_time_in_the_far_future_is_invalid_and_moves_no_clock(stream):
    """Neither a row that could be judged otherwise, nor one without a key."""
    in_2126 = 4.92e9
    stream.add([("a", 0, 1.0, "a0"), ("a", 2, 2.0, "a2"), ("b", 0, in_2126, "future"), (None, 0, in_2126, "no key")])
    stream.add([("b", 1, 3.0, "b1"), ("a", 1, 4.0, "a1"), ("c", 1, 4.0, "c1")]).add([("b", 2, 10.0, "b2")])
    stream.run(gap_timeout="5s", partitions=1)
    assert stream.ordered() == {"a": ["a0", "a1", "a2"], "b": ["b1", "b2"], "c": ["c1"]}
    assert sorted(stream.ledger(), key=str) == [
        ("b", "invalid", None, None),
        ("b", "lost", 0, 0),
        ("c", "lost", 0, 0),
        (None, "invalid", None, None),
    ]
    details = {row["body"]: row["_detail"] for row in stream.rows() if row["_reason"] == "invalid"}
    assert details == {"future": TOO_FAR_AHEAD, "no key": "it has no key"}


def test_an_offset_is_no_time_for_a_stream_either(spark):
    rate = spark.readStream.format("rate").load().selectExpr("value AS offset", "value AS k")
    for duration in ("gap_timeout", "idle_after", "max_ahead"):
        with pytest.raises(InvalidArgument, match=f"{duration}=… is a time, and 'offset' is not"):
            rate.transform(resequence(**{**OFFSETS, duration: "1m"}))


def test_idle_keys_are_forgotten_with_a_ledger_entry(stream):
    stream.add([("a", 0, 1.0, "a0"), ("b", 0, 1.0, "b0"), ("b", 2, 1.0, "b2")])
    stream.add([("c", 0, 500.0, "c0")]).add([("a", 0, 501.0, "new")]).run(idle_after="1m", partitions=1)
    assert ("a", "expired", 1, 1) in stream.ledger()
    assert [row["body"] for row in stream.rows() if row["_tag"] == "ordered"] == ["a0", "b0", "c0", "new"]


# -- options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a stream needs a folder for its state: state=PATH"),
        ({"state": "s"}, "a stream has no end, so its lowest number is never known"),
        ({"state": "ftp://s", "start": 0}, "state can't be kept at ftp://s"),
        ({"state": "s", "start": 0, "partitions": 0}, "partitions must be a whole number of 1 or more"),
        ({"state": "s", "start": 0, "tick": "often"}, "tick must be a duration"),
        ({"state": "s", "start": 0, "time": "processing", "max_ahead": 1}, "max_ahead=… is about the times of rows"),
        ({"state": "s", "start": 0, "key": "weight"}, "a key can't be of type double"),
    ],
)
def test_what_can_never_work_is_refused_before_the_query_starts(spark, options, message):
    rate = spark.readStream.format("rate").load().selectExpr("*", "cast(value as double) weight")
    with pytest.raises(InvalidArgument, match=message):
        rate.transform(resequence(**{"key": "value", "sequence": "value", "arrival": "timestamp"} | options))


def test_a_relative_path_is_the_drivers(stream, monkeypatch):
    monkeypatch.chdir(stream.root)
    stream.add([("a", 0, 1.0, "a0")]).run(state="state")
    assert len(stream.versions()) == 3


# -- partitions ---------------------------------------------------------------------------------------------------------


def test_adaptive_execution_leaves_the_partition_count_alone(spark, stream):
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    stream.add([("a", 0, 1.0, "a0")]).add([("b", 0, 1.0, "b0")]).run(partitions=7)
    names = {f"of-00007/part-{part:05d}/batch-{batch:012d}.state" for part in range(7) for batch in range(2)}
    assert set(stream.versions()) == names


@pytest.mark.parametrize(
    ("before", "options"),
    [
        pytest.param(lambda frame: frame.where("body <> 'none'"), {"time": "processing"}, marks=SEVERAL_BATCHES),
        (lambda frame: frame.where("body <> 'none'").repartition(2), {}),
    ],
    ids=["processing time", "a shuffle before ours"],
)
def test_a_batch_of_which_no_row_reaches_the_kernel_leaves_its_state_too(spark, tmp_path, before, options):
    """Adaptive execution would run no task where it finds that a shuffle is empty."""
    stream = Stream(spark, tmp_path, before=before)
    stream.add([("a", 1, 1.0, "a1")]).add([("a", 0, 2.0, "none")]).add([("a", 0, 3.0, "a0")]).run(**options)
    assert stream.ordered() == {"a": ["a0", "a1"]}
    assert stream.batches[1] == []
    assert len(stream.versions()) == 3 * 3


@pytest.mark.parametrize("time", ["event", "processing"])
def test_the_settings_of_the_session_stay_as_they_are(spark, stream, time):
    before = spark.conf.getAll
    stream.tagged(time=time)
    assert spark.conf.getAll == before


def test_a_task_refuses_the_rows_of_another_partition():
    task = PartitionTask(
        Kernel(ResequenceOptions(), ColumnRoles("k", "n", "t")), IN_ORDER, pa.schema([]), [], "nowhere", 4, {}, 2
    )
    task._require_own(pa.array([2, 2]), 2)
    with pytest.raises(StateMismatch, match="partition 2 of 4 got 1 rows of other partitions"):
        task._require_own(pa.array([2, 3, 2]), 2)


def test_the_state_of_a_batch_is_complete_before_its_first_row_is_given_out(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_in_order, "task_identity", lambda *_: TaskIdentity("query", 0, 0))
    rows = pa.RecordBatch.from_pydict({"k": ["a"], "n": [0], TIME: [1.0], PARTITION: [0]})
    kernel, state = Kernel(ResequenceOptions(), ColumnRoles("k", "n", TIME)), tmp_path / "state"
    task = PartitionTask(kernel, IN_ORDER, rows.schema, ["_tag", "k", "n"], str(state), 1, {}, 2)
    given_out = task.run(iter([rows]))
    assert not state.exists()
    assert next(given_out).to_pydict() == {"_tag": ["ordered"], "k": ["a"], "n": [0]}
    folder = StateFolder(str(state), query="query", partitions=1, keep=2)
    assert folder.read(0, 0).partition.keys.to_pylist() == ["a"]


def test_every_batch_tells_listeners_what_came_what_left_and_what_waits(spark, tmp_path):
    stream = Stream(spark, tmp_path)
    stream.add([("a", 0, 1.0, "a0"), ("a", 0, 2.0, "copy"), ("a", 2, 3.0, "a2"), ("b", 1, 3.0, "b1")])
    stream.add([("a", 1, 4.0, "a1")])
    writer = stream.tagged().writeStream.option("checkpointLocation", str(stream.checkpoint)).format("noop")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    first, second = (batch.observedMetrics[f"seriatim:{stream.state}"]["metrics"] for batch in query.recentProgress)
    counted = {name: first[name] for name in ("rows", "ordered", "ledger", "ledger/duplicate", "keys", "held", "gaps")}
    assert counted == {"rows": 4, "ordered": 1, "ledger": 1, "ledger/duplicate": 1, "keys": 2, "held": 2, "gaps": 2}
    assert {name: second[name] for name in ("rows", "ordered", "held", "gaps")} == {
        "rows": 1,
        "ordered": 2,
        "held": 1,
        "gaps": 1,
    }
    assert first["kernel_ms"] >= 0
    assert first["state_ms"] >= 0
    assert first["slow_keys"] == sum(keys for name, keys in first.items() if name.startswith("slow/"))


def test_a_watermark_before_it_is_warned_of(stream, caplog, logger_as_it_was):
    moments = "timestamp_seconds(at) AS moment"
    stream.before = lambda frame: frame.selectExpr("*", moments).withWatermark("moment", "10 seconds")
    stream.tagged(gap_timeout="1m")
    assert "column 'moment' has a watermark with a delay of 10 s, and rows may wait for 60 s" in caplog.text


@pytest.mark.parametrize(("pause", "dropped"), [(30.0, 0), (100.0, 1)])
def test_a_watermark_behind_it_drops_what_waited_while_its_partition_paused(stream, pause, dropped):
    """The delay is longer than ``gap_timeout``, but a partition without rows does not move while others move the watermark."""
    names = stream.spark.createDataFrame([(f"key {number}",) for number in range(20)], "name string")
    waits, moves = (
        names.filter(partition_of(F.col("name"), 2) == number).first().name for number in range(2)
    )  # in two partitions
    stream.add([(waits, 0, 1000.0, ""), (waits, 2, 1001.0, "waits for 1"), (moves, 0, 1001.0 + pause, "")])
    stream.add([(moves, 1, 1001.0 + pause, "")])  # it drops rows from the second batch after it has risen
    stream.add([(waits, 1, 1002.0 + pause, "")])
    rows = ordered(stream.tagged(gap_timeout="1m", partitions=2)).withColumn("moment", F.timestamp_seconds("at"))
    counts = rows.withWatermark("moment", "61 seconds").groupBy(F.window("moment", "1 second")).count()
    writer = counts.writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    operators = [operator for batch in query.recentProgress for operator in batch.stateOperators]
    assert sum(operator.numRowsDroppedByWatermark for operator in operators) == dropped


def test_another_partition_count_is_refused_and_says_what_to_do(begun):
    with pytest.raises(StateMismatch, match=r"has 3 partitions, and partitions=4 was given: .* --partitions 4'"):
        begun.tagged(partitions=4)


def test_the_count_that_is_kept_with_the_state_is_the_default(spark, begun):
    begun.add([("a", 1, 3.0, "a1")])
    assert spark.conf.get("spark.sql.shuffle.partitions") != "3"
    assert begun.run(partitions=None).ordered() == {"a": ["a0", "a1", "a2"], "b": ["b0"]}


# -- whose state it is --------------------------------------------------------------------------------------------------


def test_a_deleted_checkpoint_is_not_paired_with_old_state(begun):
    shutil.rmtree(begun.checkpoint)
    failure = begun.fail()
    assert isinstance(failure, StateMismatch)
    assert "its checkpoint was deleted, copied or is another's" in str(failure)


def test_a_deleted_state_is_not_begun_anew(begun):
    shutil.rmtree(begun.state)
    failure = begun.add([("a", 1, 3.0, "a1")]).fail()
    assert isinstance(failure, StateMismatch)
    assert "there is no state in" in str(failure)
    assert "but batch 2 continues from batch 1" in str(failure)


def test_a_circle_can_not_be_put_under_a_state(begun):
    failure = begun.add([("a", 1, 3.0, "a1")]).fail(wrap=256)
    assert isinstance(failure, StateMismatch)
    assert "time='event', wrap=None, and the query runs with arrival='at'" in str(failure)


def test_other_payloads_can_not_be_compared_with_those_of_before(spark, tmp_path):
    stream = Stream(spark, tmp_path, {"payload": "body", "on_duplicate": "conflict"})
    stream.add([("a", 1, 1.0, "a1")]).run()
    failure = stream.add([("a", 1, 2.0, "a1")]).fail(payload=["body", "at"])
    assert isinstance(failure, StateMismatch)
    assert "payload=['body'], sequence='seq', time='event', wrap=None, and the query runs with" in str(failure)
    assert stream.run().ledger() == [("a", "duplicate", 1, 1)]


def test_columns_may_be_added_and_become_wider_and_the_time_zone_may_change_while_rows_wait(spark, tmp_path):
    columns = "key string, seq int, at timestamp, body string, n int"
    stream = Stream(spark, tmp_path, schema=columns)
    stream.add([("a", 0, "2026-01-01T00:00:00Z", "a0", 0), ("a", 2, "2026-01-01T00:00:01Z", "a2", 2)]).run()
    zone = spark.conf.get("spark.sql.session.timeZone")
    stream.schema = "key string, seq bigint, at timestamp, body string, n bigint, unit string"
    stream.add([("a", 4, "2026-01-01T00:00:03Z", "a4", 2**40, "C")])
    stream.add([("a", 1, "2026-01-01T00:00:02Z", "a1", 1, "C"), ("a", 3, "2026-01-01T00:00:04Z", "a3", 3, None)])
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        stream.run()
        (again,) = {str(batch["at"].type) for batch in held_rows(str(stream.state))}
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert stream.ordered() == {"a": ["a0", "a1", "a2", "a3", "a4"]}
    told = {row["body"]: row for row in stream.rows()}
    assert [(told[body]["n"], told[body]["unit"]) for body in ("a2", "a4")] == [(2, None), (2**40, "C")]
    assert told["a2"]["at"].timestamp() == 1767225601.0
    # Before Spark 4.2 Python is told all times in UTC, whatever the session says.
    assert again == f"timestamp[us, tz={'Asia/Tokyo' if SPARK >= (4, 2) else 'UTC'}]"


def test_what_rows_that_wait_can_not_be_given_is_refused_before_anything_runs(spark, tmp_path):
    stream = Stream(spark, tmp_path)
    stream.add([("a", 1, 1.0, "a1")]).run()
    before = stream.versions()
    with pytest.raises(StateMismatch, match="was not made with on_duplicate='conflict'"):
        stream.tagged(payload="body", on_duplicate="conflict")
    renamed = replace(stream, schema="key string, seq bigint, at double, text string")
    for other, problem in (
        (renamed, "column 'body' is gone"),
        (
            replace(stream, schema="key string, seq bigint, at double, body int"),
            "column 'body' was string and is int32",
        ),
    ):
        with pytest.raises(
            StateMismatch, match=f"1 rows wait in the state in .*, and {problem}.*: put the columns back"
        ):
            other.tagged()
    assert stream.versions() == before
    assert stream.add([("a", 0, 3.0, "a0")]).run().ordered() == {"a": ["a0", "a1"]}
    renamed.tagged()  # nothing waits any more


def test_a_missing_version_is_not_guessed(begun):
    for path in begun.state.rglob("batch-000000000001.state"):
        path.unlink()
    failure = begun.add([("a", 1, 3.0, "a1")]).fail()
    assert isinstance(failure, StateMismatch)
    assert "is missing (batches 0 to 0 are there)" in str(failure)


def test_a_damaged_version_is_not_read(begun):
    for path in begun.state.rglob("batch-000000000001.state"):
        path.write_bytes(path.read_bytes()[:-20])
    failure = begun.add([("a", 1, 3.0, "a1")]).fail()
    assert isinstance(failure, DamagedStore)
    assert "the checksum of its " in str(
        failure
    )  # header, if its partition has no more than that: whichever task is first


def test_as_many_versions_are_kept_as_spark_keeps_batches(spark, stream):
    for batch in range(6):
        stream.add([(key, batch, float(batch), "") for key in "abcdef"])
    retained = "spark.sql.streaming.minBatchesToRetain"
    before = spark.conf.get(retained)
    try:
        spark.conf.set(retained, "3")
        stream.run(partitions=1)
    finally:
        spark.conf.set(retained, before)
    batches = sorted(int(name[-18:-6]) for name in stream.versions())
    assert batches[-3:] == [3, 4, 5]
    assert 0 not in batches


# -- again --------------------------------------------------------------------------------------------------------------


@SEVERAL_BATCHES
def test_a_batch_that_is_run_again_decides_the_same(stream):
    """In processing time: when it was first run is in Spark's own log, and nowhere else."""
    options = {"time": "processing", "gap_timeout": "1h"}
    stream.add([("a", 0, 1.0, "a0"), ("a", 2, 1.0, "a2")]).add([("a", 0, 2.0, "again"), ("a", 1, 3.0, "a1")]).run(
        **options
    )
    told, versions = dict(stream.batches), stream.versions()
    times = [row["_time"] for row in stream.rows() if row["_reason"] == "duplicate"]
    assert times[0] > 1.7e9
    stream.batches.clear()
    stream.forget_commit(1)
    for path in stream.state.rglob("batch-000000000001.state"):
        path.unlink()
    stream.run(**options)
    assert stream.batches == {1: told[1]}
    assert stream.versions() == versions


def test_a_source_that_gives_other_rows_the_second_time_is_found_out(begun):
    begun.forget_commit(1)
    path = begun.root / "in" / "00001.json"
    path.write_text(path.read_text().replace('"a"', '"other"'))
    os.utime(path, (2, 2))
    failure = begun.fail()
    assert isinstance(failure, StateMismatch)
    assert "by a run of batch 1 that decided otherwise: the source did not give the same rows again" in str(failure)


def test_a_worker_killed_after_the_state_was_written_changes_nothing(spark, tmp_path):
    """Rows have begun to flow out of the kernel when the worker behind it dies; the batch is run again."""
    stream = Stream(spark, tmp_path)
    stream.add([("a", 0, 1.0, "a0"), ("b", 1, 1.0, "b1")]).add([("a", 1, 2.0, "a1"), ("b", 0, 2.0, "b0")])
    flag = tmp_path / "killed"

    def die_once(batches):
        for batch in batches:
            if "a1" in batch["body"].to_pylist() and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    tagged = stream.tagged()
    writer = tagged.mapInArrow(die_once, tagged.schema).writeStream.foreachBatch(stream._collect)
    writer = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    with pytest.raises(Exception, match=r"crashed|exited|EOF"):
        writer.start().awaitTermination()
    assert flag.exists()
    written = {name: content for name, content in stream.versions().items() if "000000000001" in name}
    assert written
    assert list(stream.batches) == [0]
    writer.start().awaitTermination()
    assert stream.ordered() == {"a": ["a0", "a1"], "b": ["b0", "b1"]}
    assert written.items() <= stream.versions().items()


# -- time ---------------------------------------------------------------------------------------------------------------


def test_timeouts_fire_on_an_idle_stream(stream):
    query = stream.add([("a", 0, 1.0, "a0"), ("a", 2, 1.0, "a2"), ("b", 1, 1.0, "b1")]).start(
        time="processing", gap_timeout="400ms", tick="50ms"
    )
    try:
        stream.wait_for(lambda: len(stream.ordered()) == 2)
        assert stream.ordered() == {"a": ["a0", "a2"], "b": ["b1"]}
        assert sorted(stream.ledger()) == [("a", "lost", 1, 1), ("b", "lost", 0, 0)]
        assert sorted(stream.batches) == [0, 1]  # and no batch before something was due
        stream.add([("a", 3, 2.0, "a3")])
        stream.wait_for(lambda: 2 in stream.batches)
        assert stream.ordered()["a"] == ["a0", "a2", "a3"]
    finally:
        query.stop()
    assert sorted(stream.batches) == [0, 1, 2]


def test_what_is_due_when_an_available_now_run_begins_is_decided_in_it_and_it_ends(stream):
    options = {"time": "processing", "gap_timeout": "100ms"}
    stream.add([("a", 1, 1.0, "a1")]).run(**options)
    assert stream.ordered() == {}
    for _ in range(3):  # starting it takes longer than the timeout; never mind if once it should not
        stream.run(**options)
    assert stream.ordered() == {"a": ["a1"]}
    assert sorted(stream.batches) == [0, 1]


def test_rows_that_arrive_together_without_an_arrival_are_taken_by_number(spark, tmp_path):
    stream = Stream(spark, tmp_path, {"arrival": None, "time": "processing", "start": "first"})
    stream.add([("a", 3, 0.0, "a3"), ("a", 1, 0.0, "a1"), ("a", 2, 0.0, "a2")]).run()
    assert stream.ordered() == {"a": ["a1", "a2", "a3"]}
