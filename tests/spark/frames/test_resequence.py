from __future__ import annotations

import re
from collections import defaultdict

import pytest
from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.resequencing.options import LedgerEntry, OnDuplicate, Released, ResequenceOptions, Start
from seriatim.core.resequencing.resequencer import Resequencer
from seriatim.core.sequence import SequenceSpace
from seriatim.errors import InvalidArgument
from seriatim.spark import audit, ledger, ordered, resequence
from seriatim.spark.kernel.intake import MAX_NUMBER
from seriatim.spark.kernel.output import output_schema
from seriatim.spark.tagged import ADDED_COLUMNS
from tests.spark.frames.random_rows import SCHEMA, Message, by_rule, digests_of_payloads, random_messages

FOREVER = 1e18
SCHEMA_NAMES = Message._fields


def core_outcome(messages: list[Message], options: ResequenceOptions, digests: dict | None) -> tuple[list, list]:
    """What the core releases and notes when it is given each key's rows in order of arrival, and flushed at the end."""
    released, entries = [], []
    by_key = defaultdict(list)
    for message in sorted(messages, key=lambda message: (message.epoch, by_rule(message, digests))):
        by_key[message.key].append(message)
    for key, rows in by_key.items():
        resequencer: Resequencer[int] = Resequencer(options, key)
        effects = []
        for row in rows:
            effects += resequencer.push(row.seq, row.id, row.arrived, epoch=row.epoch, digest=repr(row.payload))
        effects += resequencer.flush(FOREVER)
        ids = [effect.message for effect in effects if isinstance(effect, Released)]
        released += [(key, position, message) for position, message in enumerate(ids)]
        entries += [in_short(effect) for effect in effects if isinstance(effect, LedgerEntry)]
    return sorted(released), sorted(entries, key=str)


def in_short(entry: LedgerEntry) -> tuple:
    # When a loss is noticed depends on when somebody looks.
    time = None if entry.message is None else entry.time
    return entry.key, entry.epoch, entry.reason, entry.first, entry.last, entry.size, time, entry.message


def spark_outcome(tagged) -> tuple[list, list]:
    released, entries = [], []
    for row in tagged.collect():
        if row["_tag"] == "ordered":
            released.append((row["key"], row["_position"], row["id"]))
        else:
            time = None if row["id"] is None else row["_time"]
            numbers = (row["_first"], row["_last"], row["_size"])
            entries.append((row["key"], row["_epoch"], row["_reason"], *numbers, time, row["id"]))
    return sorted(released), sorted(entries, key=str)


@pytest.mark.parametrize(
    ("chosen", "core", "drawn"),
    [
        (
            {"payload": "payload", "on_duplicate": "conflict"},
            ResequenceOptions(start=Start.lowest_within(FOREVER), on_duplicate=OnDuplicate.CONFLICT),
            {},
        ),
        ({"epoch": "epoch", "start": 2}, ResequenceOptions(start=Start.at(2)), {"epochs": 3}),
        ({"epoch": "epoch"}, ResequenceOptions(start=Start.lowest_within(FOREVER)), {"epochs": 3}),
        (
            {"start": 10, "increment": 5},
            ResequenceOptions(start=Start.at(10), space=SequenceSpace(increment=5)),
            {"increment": 5},
        ),
    ],
    ids=["lowest, conflicts", "literal, epochs", "lowest, epochs", "literal, increment"],
)
def test_a_frame_is_put_in_order_as_the_core_would(spark, chosen, core, drawn):
    messages = random_messages(seed=7, **drawn)
    frame = spark.createDataFrame(messages, SCHEMA)
    tagged = frame.transform(resequence(key="key", sequence="seq", arrival="arrived", **chosen))
    digests = digests_of_payloads(spark) if "payload" in chosen else None
    released, entries = core_outcome(messages, core, digests)
    assert {reason for _, _, reason, *_ in entries} >= {"duplicate", "lost"}
    assert spark_outcome(tagged) == (released, entries)


@pytest.fixture
def trouble(spark):
    """One of everything."""
    rows = [
        ("a", 3, 1.0, "x"),
        ("a", 1, 2.0, "x"),
        ("a", 1, 3.0, "other"),
        ("a", 6, 4.0, "x"),
        (None, 6, 5.0, "x"),
        ("a", None, 6.0, "x"),
        ("a", 9, None, "x"),
        ("a", 9, float("nan"), "x"),
        ("a", MAX_NUMBER + 1, 7.0, "x"),
    ]
    return spark.createDataFrame(rows, "device string, n bigint, t double, body string")


def told(entries) -> set[tuple]:
    return {(row["_reason"], row["_first"], row["_last"], row["_time"], row["_detail"]) for row in entries.collect()}


def test_whatever_is_not_released_is_in_the_ledger_with_its_reason(trouble):
    tagged = trouble.transform(
        resequence(key="device", sequence="n", arrival="t", payload="body", on_duplicate="conflict")
    )
    assert [(row.n, row._position) for row in ordered(tagged).collect()] == [(1, 0), (3, 1), (6, 2)]
    entries = told(ledger(tagged))
    assert {entry for entry in entries if entry[3] == entry[3]} == {
        ("conflict", 1, 1, 3.0, "another copy came first"),
        ("lost", 2, 2, 1.0, "no row has these numbers"),
        ("lost", 4, 5, 4.0, "no row has these numbers"),
        ("invalid", None, None, 5.0, "it has no key"),
        ("invalid", None, None, 6.0, "it has no number"),
        ("invalid", None, None, None, "it has no time"),
        ("invalid", None, None, 7.0, f"its number is outside {-MAX_NUMBER} to {MAX_NUMBER}"),
    }
    assert "its time is not a finite number" in {detail for *_, detail in entries}
    assert len(entries) == 8


def test_the_output_has_the_columns_of_the_streaming_kernel(trouble):
    from pyspark.sql.pandas.types import to_arrow_schema

    tagged = trouble.transform(resequence(key="device", sequence="n"))
    kernel = output_schema(to_arrow_schema(trouble.schema))
    assert [(field.name, field.type) for field in to_arrow_schema(tagged.schema)] == [
        (field.name, field.type) for field in kernel
    ]
    assert set(ADDED_COLUMNS) <= set(tagged.columns)


def test_rows_that_nobody_can_judge_fail_the_job_if_so_chosen(trouble):
    from pyspark.errors import PySparkException

    strict = resequence(key="device", sequence="n", on_invalid="raise")
    with pytest.raises(PySparkException, match="row with key null and number 6 can't be judged"):
        ordered(trouble.where("device is null").transform(strict)).collect()
    assert ordered(trouble.where("n < 6").transform(strict)).count() == 2


def test_numbers_off_the_grid_are_invalid(spark):
    frame = spark.createDataFrame([("a", 10), ("a", 13), ("a", 20), ("a", -5)], "k string, n int")
    tagged = frame.transform(resequence(key="k", sequence="n", start=0, increment=10))
    assert [row.n for row in ordered(tagged).collect()] == [10, 20]
    assert told(ledger(tagged)) == {
        ("lost", 0, 0, None, "no row has these numbers"),
        ("invalid", None, None, None, "its number is off the grid: 0 and multiples of 10 from there"),
    }


def test_the_offset_is_the_arrival_if_no_other_is_named(spark):
    frame = spark.createDataFrame(
        [("a", 1, 9, "late"), ("a", 1, 3, "first")], "k string, n int, offset long, what string"
    )
    assert [row.what for row in ordered(frame.transform(resequence(key="k", sequence="n"))).collect()] == ["first"]


def test_timestamps_are_told_as_seconds(spark):
    frame = spark.sql("select 'a' k, 1 n, timestamp_seconds(1.5) t union all select 'a', 1, timestamp_seconds(2.5)")
    for kind in ("timestamp", "timestamp_ntz"):
        tagged = frame.withColumn("t", frame.t.cast(kind)).transform(resequence(key="k", sequence="n", arrival="t"))
        assert [row["_time"] for row in ledger(tagged).collect()] == [2.5]


def test_columns_with_odd_names_are_found(spark):
    frame = spark.createDataFrame([("x", 2), ("x", 1)], "`the.key` string, `a``b` int")
    tagged = frame.transform(resequence(key="the.key", sequence="a`b"))
    assert [tuple(row) for row in ordered(tagged).collect()] == [("x", 1, 0), ("x", 2, 1)]


@pytest.mark.parametrize("options", [{}, {"payload": "payload", "on_duplicate": "conflict"}, {"start": 0}])
def test_one_shuffle_one_sort_and_no_python(spark, options):
    frame = spark.createDataFrame(random_messages(1, 2), SCHEMA)
    tagged = frame.transform(resequence(key="key", sequence="seq", arrival="arrived", epoch="epoch", **options))
    for result in (tagged, ordered(tagged), ledger(tagged)):
        assert nodes(result, "Exchange") == nodes(result, "Sort") == nodes(result, "Window") == 1
        assert "Python" not in plan(result)
    (order,) = re.findall(r"Sort \[(.*)\],", plan(tagged))
    sorted_by = [part.split("#")[0].strip() for part in order.split(",")]
    assert set(SCHEMA_NAMES) <= set(sorted_by)
    assert sorted_by.index("arrived") < sorted_by.index("id") < sorted_by.index("payload")


def plan(frame) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def nodes(frame, name: str) -> int:
    return len(re.findall(rf"^[ :+-]*{name} ", plan(frame), re.MULTILINE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": "m"}, "there is no column 'm'"),
        ({"key": "divice"}, "did you mean 'device'"),
        ({"sequence": "body"}, "column 'body' must hold whole numbers, not string: cast it"),
        ({"arrival": "body"}, "column 'body' must hold numbers or timestamps, not string"),
        ({"epoch": "t"}, "column 't' must hold whole numbers, not double"),
        ({"wrap": 256}, "numbers that wrap have no lowest one for all time: set a gap_timeout"),
        ({"wrap": 2, "start": 0}, "modulus"),
        ({"wrap": 256, "start": 256}, "256"),
        ({"gap_timeout": "2s"}, "these options depend on the order of arrival: name its column with arrival=…"),
        ({"gap_timeout": "soon"}, "gap_timeout must be a duration such as 2s, 500ms or 1m, not 'soon'"),
        ({"gap_timeout": -1}, "gap_timeout must be a finite number of 0 or more"),
        ({"start": "first"}, "name its column with arrival=…"),
        ({"start": 1.5}, "start must be a whole number, 'lowest' or 'first', not 1.5"),
        ({"on_gap": "hold"}, "which makes no sense for a table"),
        ({"time": "noon"}, "time must be one of 'event', 'processing'"),
        ({"time": "processing"}, "time='processing' is for streams"),
        ({"state": "somewhere"}, "state=… is for streams, and this frame is static"),
        ({"idle_after": "1m"}, "idle_after=… is for streams"),
        ({"max_ahead": "1m"}, "max_ahead=… is for streams"),
        ({"on_duplicate": "conflict"}, "name their columns, payload="),
        ({"on_duplicate": "both"}, "on_duplicate must be one of 'first', 'last', 'conflict', not 'both'"),
        ({"on_invalid": "skip"}, "on_invalid must be one of 'ledger', 'raise'"),
        ({"increment": 0}, "increment must be an integer of 1 or more"),
        ({"increment": 2}, "set start=NUMBER to one of the numbers that occur"),
    ],
)
def test_what_can_never_work_is_refused_before_anything_runs(trouble, options, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        trouble.transform(resequence(**{"key": "device", "sequence": "n"} | options))


def test_a_column_of_the_output_must_not_be_there_before(trouble):
    with pytest.raises(InvalidArgument, match="_position are added here: rename yours"):
        trouble.withColumnRenamed("t", "_position").transform(resequence(key="device", sequence="n"))


def test_an_offset_is_an_order_and_no_time(spark):
    frame = spark.createDataFrame([("a", 1, 9)], "k string, n int, offset long")
    with pytest.raises(InvalidArgument, match="gap_timeout=… is a time, and 'offset' is not"):
        frame.transform(resequence(key="k", sequence="n", gap_timeout="2s"))


def test_names_with_a_dot_are_fine_in_sql_and_refused_before_python_gets_them(spark):
    frame = spark.createDataFrame([("a", 1, 0.0), ("a", 0, 1.0)], "`the.key` string, `the.n` bigint, at double")
    rows = ordered(frame.transform(resequence(key="the.key", sequence="the.n", arrival="at"))).collect()
    assert {row["_position"]: row["the.n"] for row in rows} == {0: 0, 1: 1}
    with pytest.raises(InvalidArgument, match=r"columns with a dot .* rename 'the\.key'"):
        frame.transform(resequence(key="the.key", sequence="the.n", arrival="at", gap_timeout="1s"))


def test_keys_that_share_a_hash_are_told_apart(spark, monkeypatch):
    monkeypatch.setattr(F, "xxhash64", lambda *_: F.lit(0).cast("bigint"))
    rows = [(key, number, float(-number)) for number in range(3) for key in "abc"]
    frame = spark.createDataFrame(rows, "k string, n bigint, at double")
    out = ordered(frame.transform(resequence(key="k", sequence="n", arrival="at"))).collect()
    assert sorted((row["k"], row["n"], row["_position"]) for row in out) == [(k, n, n) for k in "abc" for n in range(3)]
    verdicts = frame.transform(audit(key="k", sequence="n", arrival="at")).collect()
    assert sorted((row["k"], row["rows"], row["reordered"]) for row in verdicts) == [(k, 3, 2) for k in "abc"]
