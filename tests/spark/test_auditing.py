from __future__ import annotations

import re
from collections import defaultdict

import pytest

from seriatim.core.traces import Verdict, classify
from seriatim.errors import InvalidArgument
from seriatim.spark import audit, total
from tests.spark.frames import SCHEMA, random_messages

COUNTED = ("rows", "distinct", "duplicates", "lost", "reordered", "max_displacement")


def told_by_the_core(verdict: Verdict) -> tuple:
    counts = (verdict.received, verdict.distinct, verdict.duplicates, verdict.lost, verdict.reordered)
    witnesses = [
        (witness.kind, witness.at, witness.sequence, witness.other, witness.text) for witness in verdict.witnesses
    ]
    return *counts, verdict.max_displacement, verdict.level, witnesses


def told_by_spark(row) -> tuple:
    return *(row[name] for name in COUNTED), row["guarantee"], [tuple(witness) for witness in row["witnesses"]]


def test_the_verdict_is_the_cores_word_for_word(spark):
    traces = defaultdict(list)
    messages = random_messages(seed=11, keys=400)
    for message in sorted(messages, key=lambda message: message.arrived):
        traces[message.key].append(message.seq)
    expected = {key: told_by_the_core(classify(trace)) for key, trace in traces.items()}
    assert {verdict[6] for verdict in expected.values()} == {"none", "monotonic", "strict", "continuous", "absolute"}
    frame = spark.createDataFrame(messages, SCHEMA)
    verdicts = frame.transform(audit(key="key", sequence="seq", arrival="arrived", payload="payload"))
    assert {row.key: told_by_spark(row) for row in verdicts.collect()} == expected


CLEAN = [("a", number, 10 * number, "x") for number in range(1, 6)]
NOTHING = {"duplicates": 0, "conflicts": 0, "lost": 0, "reordered": 0, "invalid": 0}


@pytest.mark.parametrize(
    ("rows", "found", "guarantee", "witness"),
    [
        (CLEAN, {}, "absolute", None),
        ([*CLEAN, ("a", 5, 51, "x")], {"duplicates": 1}, "continuous", "5 at index 5 was received before"),
        (
            [*CLEAN, ("a", 5, 51, "y")],
            {"duplicates": 1, "conflicts": 1},
            "continuous",
            "5 at index 5 was received before",
        ),
        (CLEAN[:2] + CLEAN[3:], {"lost": 1}, "strict", "3 is missing before 4"),
        (
            [*CLEAN[:2], ("a", 3, 45, "x"), *CLEAN[3:]],
            {"reordered": 1},
            "none",
            "3 at index 3 was received after 4, which was sent later",
        ),
        ([*CLEAN, ("a", None, 60, "x")], {"invalid": 1}, "absolute", None),
        ([*CLEAN, ("a", 6, None, "x")], {"invalid": 1}, "absolute", None),
    ],
    ids=["nothing", "duplicate", "conflict", "loss", "inversion", "no number", "no time"],
)
def test_one_anomaly_of_each_kind_is_found_and_nothing_else(spark, rows, found, guarantee, witness):
    frame = spark.createDataFrame(rows, "key string, n int, t bigint, body string")
    (row,) = frame.transform(audit(key="key", sequence="n", arrival="t", payload="body")).collect()
    assert {name: row[name] for name in NOTHING} == NOTHING | found
    assert (row.guarantee, row.witnesses[0].text if row.witnesses else None) == (guarantee, witness)


@pytest.fixture
def mixed(spark):
    rows = [("a", 2, 0), ("a", 1, 1), ("b", 1, 2), ("b", 1, 3), ("b", 3, 4), (None, 1, 5)]
    return spark.createDataFrame(rows, "device string, n int, t bigint")


def test_the_total_adds_up_and_holds_for_every_key(mixed):
    (row,) = total(mixed.transform(audit(key="device", sequence="n", arrival="t"))).collect()
    assert row.asDict() == {
        "keys": 2,
        "rows": 5,
        "distinct": 4,
        "duplicates": 1,
        "conflicts": 0,
        "lost": 1,
        "reordered": 1,
        "max_displacement": 1,
        "invalid": 1,
        "no_inversion": False,
        "no_duplicate": False,
        "no_loss": False,
        "guarantee": "none",
    }


def test_without_an_arrival_order_is_not_judged(mixed):
    verdicts = mixed.transform(audit(key="device", sequence="n"))
    rows = {row.device: row for row in verdicts.collect()}
    b = rows["b"]
    assert (b.guarantee, b.no_inversion, b.reordered, b.max_displacement) == (None, None, None, None)
    assert (b.no_duplicate, b.no_loss, b.duplicates, b.lost) == (False, False, 1, 1)
    assert [witness.text for witness in b.witnesses] == ["1 was received before", "2 is missing before 3"]
    (whole,) = total(verdicts).collect()
    assert (whole.guarantee, whole.no_inversion, whole.reordered, whole.lost) == (None, None, None, 1)


def test_an_empty_table_breaks_no_promise(mixed):
    (row,) = total(mixed.where("false").transform(audit(key="device", sequence="n", arrival="t"))).collect()
    assert (row.keys, row.rows, row.guarantee) == (0, 0, "absolute")


@pytest.mark.parametrize(("arrival", "sorts"), [("arrived", 2), (None, 1)])
def test_one_shuffle_and_no_python(spark, arrival, sorts):
    frame = spark.createDataFrame(random_messages(1, 2), SCHEMA)
    verdicts = frame.transform(audit(key="key", sequence="seq", arrival=arrival, payload="payload"))
    plan = verdicts._jdf.queryExecution().executedPlan().toString()
    assert len(re.findall(r"^[ :+-]*Exchange ", plan, re.MULTILINE)) == 1
    assert len(re.findall(r"^[ :+-]*Sort ", plan, re.MULTILINE)) == sorts
    assert "Python" not in plan


def test_what_can_never_work_is_refused(spark, mixed):
    with pytest.raises(InvalidArgument, match="the audit has a column 'rows' of its own"):
        mixed.withColumnRenamed("device", "rows").transform(audit(key="rows", sequence="n"))
    with pytest.raises(InvalidArgument, match="write the stream down"):
        spark.readStream.format("rate").load().transform(audit(key="timestamp", sequence="value"))
