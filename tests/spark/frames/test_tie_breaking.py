"""Rows that arrived together: one rule says which came first, wherever rows are judged and however Spark shuffles them."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from seriatim.errors import InvalidArgument
from seriatim.spark import audit, ledger, ordered, resequence
from seriatim.spark.frames.tie_breaking import comparable, payload_digest
from seriatim.spark.kernel.arrival_order import ranks, row_sort_keys
from tests.spark.frames.random_rows import SCHEMA, random_messages
from tests.spark.frames.streams import Stream

ANY_VALUE: dict[str, tuple[str, list[Any] | None]] = {
    "text": ("string", ["", "a", "é", "\U0001f600", "\ufffd", None]),
    "bytes": ("binary", [b"", b"\x00", b"\x7f", b"\xff", None]),
    "real": ("double", [-1.5, 0.0, 2.0, float("inf"), float("nan"), None]),
    "sum": ("decimal(10,2)", [Decimal("-1.00"), Decimal("2.50"), None]),
    "day": ("date", None),
    "moment": ("timestamp", None),
    "local": ("timestamp_ntz", None),
    "list": ("array<int>", [[], [1], [1, None], [None, 1], [2], None]),
    "pair": ("struct<a:int,b:string>", [(1, None), (None, "x"), (1, "x"), None]),
    "tags": ("map<string,int>", [{}, {"x": 1}, {"x": None}, {"x": 1, "y": 2}, {"y": 2, "x": 1}, {"y": 0}, None]),
    "deep": (
        "map<string,array<map<string,int>>>",
        [{}, {"x": [{"p": 1, "q": 2}]}, {"x": [{"q": 2, "p": 1}]}, {"x": [None]}, {"x": []}, None],
    ),
}
"""Types and values; of dates and times Spark makes some."""
TIMES: list[Any] = [
    "0001-01-01 00:00:00",
    "1970-01-01 00:00:00.000001",
    "2026-03-29 01:30:00",
    "9999-12-31 23:59:59",
    None,
]


@pytest.fixture(scope="module")
def anything(spark):
    """Rows with values of every type, in which every other column is the same."""
    random = Random(5)
    names = list(ANY_VALUE)
    rows: list[tuple] = [
        tuple(random.choice(TIMES if values is None else values) for _, values in ANY_VALUE.values())
        for _ in range(150)
    ]
    kinds = {name: "string" if values is None else kind for name, (kind, values) in ANY_VALUE.items()}
    frame = spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    return frame.select(*(F.col(name).cast(ANY_VALUE[name][0]).alias(name) for name in names)).cache()


def test_python_and_spark_sort_values_of_every_type_alike(anything):
    table = anything.toArrow()
    for name in anything.columns:
        in_python = ranks(row_sort_keys(table, [name])).tolist()
        rank = F.dense_rank().over(Window.orderBy(*comparable(anything, [name])))
        ranked = anything.withColumn("at", F.monotonically_increasing_id()).select("at", rank.alias("rank"))
        in_spark = [row["rank"] - 1 for row in ranked.orderBy("at").collect()]
        assert in_python == in_spark, name


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("struct<a:string,b:string>", (None, "x"), ("x", None)),
        ("array<int>", [1, None], [None, 1]),
        ("array<int>", [1, None], [1]),
        ("array<array<int>>", [[1], [2]], [[1, 2]]),
        ("map<string,int>", {"x": None}, {}),
        ("map<string,string>", {"x": "y"}, {"y": "x"}),
        ("string", None, ""),
    ],
)
def test_payloads_that_differ_have_different_digests(spark, kind, one, other):
    frame = spark.createDataFrame([(one,), (other,)], f"body {kind}")
    assert frame.select(payload_digest(frame, ["body"])).distinct().count() == 2


def test_a_null_in_another_column_is_another_payload(spark):
    frame = spark.createDataFrame([(None, "x"), ("x", None)], "a string, b string")
    assert frame.select(payload_digest(frame, ["a", "b"])).distinct().count() == 2


def test_maps_with_the_same_entries_are_one_payload(spark):
    frame = spark.createDataFrame([({"x": 1, "y": 2},), ({"y": 2, "x": 1},)], "body map<string,int>")
    assert frame.select(payload_digest(frame, ["body"])).distinct().count() == 1


# -- the same rows, shuffled ----------------------------------------------------------------------------------------------

ROLES: dict[str, Any] = {"key": "key", "sequence": "seq", "payload": "payload"}
WAYS: dict[str, dict[str, Any]] = {
    "sql": {"on_duplicate": "conflict"},
    "kernel": {"on_duplicate": "conflict", "gap_timeout": "1h"},
}


def outcomes(spark, rows, partitions, **by):
    """What an audit finds, and what each way of putting the rows in order comes to, as two actions."""
    frame = spark.createDataFrame(rows, SCHEMA.replace("NOT NULL", "")).repartition(partitions)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    found = {"audit": frame.transform(audit(**ROLES, **by)).collect()}
    for way, options in WAYS.items():
        if "gap_timeout" in options and not by:
            continue  # that needs a time
        tagged = frame.transform(resequence(**ROLES, **by, **options))
        found[f"{way}: ordered"] = ordered(tagged).collect()
        found[f"{way}: ledger"] = ledger(tagged).collect()
    return {name: Counter(map(str, values)) for name, values in found.items()}


@pytest.mark.parametrize("by", [{"arrival": "arrived"}, {}], ids=["tied arrivals", "no arrival"])
def test_neither_a_shuffle_nor_the_number_of_partitions_changes_anything(spark, by):
    """What ten runs on a real cluster showed, in small."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    messages = random_messages(seed=23, keys=60)
    rows: list[tuple] = [(*message[:3], message.arrived // 40, *message[4:]) for message in messages]
    rows += [(None, 0, 1, 1, "x", -1), ("key-1", 0, None, 1, "x", -2)]
    try:
        first = outcomes(spark, rows, 1, **by)
        again = outcomes(spark, Random(2).sample(rows, len(rows)), 5, **by)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert again == first
    for way in (name.partition(":")[0] for name in first if name.endswith("ordered")):
        told = first[f"{way}: ordered"] + first[f"{way}: ledger"]
        assert sum(told.values()) >= len(rows)


def test_audit_table_and_stream_agree_on_which_of_tied_copies_is_the_first(spark, tmp_path):
    schema = "key string, seq bigint, at double, body string, tags map<string,string>, zone string"
    rows = [
        ("a", 0, 1.0, body, tags, zone)
        for body in ("x", "y")
        for tags in ({"p": "1", "q": "2"}, {"p": "1"}, None)
        for zone in ("e", "w", None)
    ]
    frame = spark.createDataFrame(Random(3).sample(rows, len(rows)), schema)
    by: dict[str, Any] = {"key": "key", "sequence": "seq", "arrival": "at", "payload": "body"}
    conflict = resequence(**by, on_duplicate="conflict")
    kernel = resequence(**by, on_duplicate="conflict", gap_timeout="1h")
    (in_sql,) = ordered(frame.transform(conflict)).drop("_position").collect()
    (in_kernel,) = ordered(frame.transform(kernel)).drop("_position").collect()
    stream = Stream(spark, tmp_path, {"payload": "body", "on_duplicate": "conflict"}, schema)
    stream.add(Random(4).sample(rows, len(rows))).run()
    (in_stream,) = [row for row in stream.rows() if row["_tag"] == "ordered"]
    assert in_sql == in_kernel
    assert in_sql.asDict().items() <= in_stream.asDict().items()
    (verdict,) = frame.transform(audit(**by)).collect()
    entries = Counter(row["_reason"] for row in ledger(frame.transform(conflict)).collect())
    assert verdict.conflicts == entries["conflict"] == 9


def test_offsets_break_the_ties_of_the_time_of_publishing(spark):
    """Two messages of a topic may be published in one instant; their offsets tell which came first."""
    rows = [("a", 2, 5.0, 10, "first"), ("a", 1, 5.0, 11, "second"), ("a", 2, 5.0, 12, "copy")]
    frame = spark.createDataFrame(rows, "k string, n bigint, published double, offset bigint, what string")
    by: dict[str, Any] = {"key": "k", "sequence": "n", "arrival": "published"}
    (verdict,) = frame.transform(audit(**by)).collect()
    assert verdict.witnesses[0].text == "1 at index 1 was received after 2, which was sent later"
    choices: tuple[dict[str, Any], ...] = ({}, {"start": 1, "gap_timeout": "1h"})
    for options in choices:
        out = ordered(frame.transform(resequence(**by, **options))).collect()
        assert {row["n"]: row["what"] for row in out} == {1: "second", 2: "first"}
    first_seen = frame.transform(resequence(**by, start="first"))
    assert [row["what"] for row in ordered(first_seen).collect()] == ["first"]
    assert [row["_reason"] for row in ledger(first_seen).orderBy("offset").collect()] == ["late", "duplicate"]


def test_maps_may_be_payloads_and_no_keys(spark):
    rows = [("a", 1, {"x": 1}), ("a", 1, {"x": 1}), ("a", 1, {"x": 2})]
    frame = spark.createDataFrame(rows, "k string, n int, body map<string,int>")
    (verdict,) = frame.transform(audit(key="k", sequence="n", payload="body")).collect()
    tagged = frame.transform(resequence(key="k", sequence="n", payload="body", on_duplicate="conflict"))
    assert (verdict.duplicates, verdict.conflicts) == (2, Counter(r["_reason"] for r in tagged.collect())["conflict"])
    for look in (audit(key="body", sequence="n"), resequence(key="body", sequence="n")):
        with pytest.raises(InvalidArgument, match="column 'body' can't be a key: Spark can't group rows by map"):
            frame.transform(look)
