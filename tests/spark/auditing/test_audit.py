from __future__ import annotations

import re
from collections import defaultdict
from random import Random
from typing import NamedTuple

import pytest

from seriatim.core.traces import Verdict, classify
from seriatim.errors import InvalidArgument
from seriatim.spark import audit, total
from seriatim.spark.auditing.audit import worst_first
from tests.spark.frames.random_rows import SCHEMA, Message, by_rule, digests_of_payloads, random_messages

COUNTED = ("rows", "distinct", "duplicates", "lost", "reordered", "max_displacement")


def told_by_the_core(verdict: Verdict) -> tuple:
    counts = (verdict.received, verdict.distinct, verdict.duplicates, verdict.lost, verdict.reordered)
    witnesses = [
        (witness.kind, witness.at, witness.sequence, witness.other, witness.text) for witness in verdict.witnesses
    ]
    return *counts, verdict.max_displacement, verdict.level, witnesses


def told_by_spark(row) -> tuple:
    witnesses = [tuple(witness) for witness in row["witnesses"] if witness["kind"] != "conflict"]
    return *(row[name] for name in COUNTED), row["guarantee"], witnesses


def conflicts_in(messages: list[Message]) -> int:
    """How many further copies have another payload than the first copy of their number."""
    first: dict[int, str | None] = {}
    return sum(first.setdefault(message.seq, message.payload) != message.payload for message in messages)


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_verdict_is_the_cores_word_for_word(spark, in_memory):
    traces, by_key = defaultdict(list), defaultdict(list)
    messages = random_messages(seed=1, keys=400)
    digests = digests_of_payloads(spark)
    for message in sorted(messages, key=lambda message: by_rule(message, digests)):
        traces[message.key].append(message.seq)
        by_key[message.key].append(message)
    expected = {key: told_by_the_core(classify(trace)) for key, trace in traces.items()}
    assert {verdict[6] for verdict in expected.values()} == {"none", "monotonic", "strict", "continuous", "absolute"}
    frame = spark.createDataFrame(messages, SCHEMA)
    rules = audit(key="key", sequence="seq", arrival="arrived", payload="payload", in_memory=in_memory)
    verdicts = frame.transform(rules).collect()
    assert {row.key: told_by_spark(row) for row in verdicts} == expected
    assert {row.key: row.conflicts for row in verdicts} == {key: conflicts_in(rows) for key, rows in by_key.items()}


# --- the audit's own test: exactly one anomaly in each key -----------------------------------------------------------------

NOTHING = {"duplicates": 0, "conflicts": 0, "lost": 0, "reordered": 0, "max_displacement": 0, "invalid": 0}
SEEDS = 15


class Injected(NamedTuple):
    """Rows (number, arrival, payload) with one anomaly, and all that an audit may find in them."""

    rows: list[tuple]
    counts: dict[str, int]
    guarantee: str
    witness: str | None


def inject(kind: str, random: Random) -> Injected:
    first, size = random.randrange(-50, 50), random.randrange(4, 30)
    rows: list[tuple] = [(first + place, 10 * place, f"payload {place}") for place in range(size)]
    place = random.randrange(1, size - 1)
    number = first + place
    match kind:
        case "nothing":
            return Injected(rows, {}, "absolute", None)
        case "duplicate":
            copy = (number, 10 * place + 1, f"payload {place}")
            found = f"{number} at index {place + 1} was received before"
            return Injected([*rows, copy], {"duplicates": 1}, "continuous", found)
        case "conflict":
            other = (number, 10 * place + 1, None)
            found = f"{number} at index {place + 1} was received before, with another payload"
            return Injected([*rows, other], {"duplicates": 1, "conflicts": 1}, "continuous", found)
        case "loss":
            return Injected(
                rows[:place] + rows[place + 1 :], {"lost": 1}, "strict", f"{number} is missing before {number + 1}"
            )
        case "inversion":
            by = random.randrange(1, size - place)
            rows[place] = (number, 10 * (place + by) + 1, f"payload {place}")
            found = f"{number} at index {place + by} was received after {number + by}, which was sent later"
            return Injected(rows, {"reordered": 1, "max_displacement": by}, "none", found)
        case "no number":
            found = f"a row that arrived at {10 * place + 1} can't be judged: it has no number"
            return Injected([*rows, (None, 10 * place + 1, "x")], {"invalid": 1}, "absolute", found)
        case _:
            found = f"a row with number {first + size} can't be judged: it has no time"
            return Injected([*rows, (first + size, None, "x")], {"invalid": 1}, "absolute", found)


KINDS = ("nothing", "duplicate", "conflict", "loss", "inversion", "no number", "no time")


@pytest.mark.parametrize("in_memory", [True, False])
def test_one_anomaly_of_each_kind_is_found_and_nothing_else(spark, in_memory):
    injected = {f"{kind} {seed}": inject(kind, Random(seed)) for kind in KINDS for seed in range(SEEDS)}
    rows = [(key, *row) for key, one in injected.items() for row in one.rows]
    frame = spark.createDataFrame(Random(1).sample(rows, len(rows)), "key string, n int, t bigint, body string")
    rules = audit(key="key", sequence="n", arrival="t", payload="body", in_memory=in_memory)
    found = frame.transform(rules).collect()
    assert {row.key: told_of(row) for row in found} == {
        key: (NOTHING | one.counts, one.guarantee, one.witness) for key, one in injected.items()
    }


def told_of(row) -> tuple:
    counts = {name: row[name] for name in NOTHING}
    return counts, row.guarantee, row.witnesses[0].text if row.witnesses else None


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


def test_keys_with_invalid_rows_and_conflicts_are_among_the_worst(spark):
    fine = [(f"fine-{key}", number, number, "x") for key in range(5) for number in range(3)]
    rows: list[tuple] = [
        *fine,
        ("copies", 1, 1, "x"),
        ("copies", 1, 2, "x"),
        ("conflict", 1, 1, "x"),
        ("conflict", 1, 2, None),
    ]
    rows += [("invalid", 1, 1, "x"), ("invalid", None, 2, "x"), (None, 1, 1, "x"), (None, 2, 2, "x")]
    frame = spark.createDataFrame(rows, "device string, n int, t int, body string")
    verdicts = frame.transform(audit(key="device", sequence="n", arrival="t", payload="body"))
    worst = [row.device for row in verdicts.orderBy(*worst_first("device")).limit(4).collect()]
    assert worst == [None, "invalid", "conflict", "copies"]


def test_an_empty_table_breaks_no_promise(mixed):
    (row,) = total(mixed.where("false").transform(audit(key="device", sequence="n", arrival="t"))).collect()
    assert (row.keys, row.rows, row.guarantee) == (0, 0, "absolute")


@pytest.mark.parametrize(
    ("options", "sorts", "in_python"),
    [
        ({"arrival": "arrived"}, 1, True),
        ({"arrival": "arrived", "in_memory": False}, 2, False),
        ({}, 1, False),
        ({"key": "struct", "arrival": "arrived"}, 2, False),
        ({"arrival": "exact"}, 2, False),
    ],
)
def test_one_shuffle_and_no_python_where_it_does_not_suit(spark, options, sorts, in_python):
    frame = spark.createDataFrame(random_messages(1, 2), SCHEMA)
    frame = frame.selectExpr("*", "struct(key) AS struct", "CAST(arrived AS DECIMAL(20, 3)) AS exact")
    verdicts = frame.transform(audit(**{"key": "key", "sequence": "seq", "payload": "payload", **options}))
    plan = verdicts._jdf.queryExecution().executedPlan().toString()
    assert len(re.findall(r"^[ :+-]*Exchange ", plan, re.MULTILINE)) == 1
    assert len(re.findall(r"^[ :+-]*Sort ", plan, re.MULTILINE)) == sorts
    assert ("MapInArrow" in plan) == in_python


@pytest.mark.parametrize(
    ("device", "t"),
    [
        ("device", "timestamp_seconds(t)"),
        ("ascii(device)", "CAST(timestamp_seconds(t) AS TIMESTAMP_NTZ)"),
        ("CAST(device AS BINARY)", "CAST(t AS FLOAT)"),
    ],
)
def test_keys_and_arrivals_of_many_types_are_judged_as_by_sql(mixed, device, t):
    frame = mixed.selectExpr(f"{device} AS device", "n", f"{t} AS t")
    by_numpy, by_sql = (
        sorted(map(str, frame.transform(audit(key="device", sequence="n", arrival="t", in_memory=way)).collect()))
        for way in (True, False)
    )
    assert by_numpy == by_sql


def test_what_can_never_work_is_refused(spark, mixed):
    with pytest.raises(InvalidArgument, match="the audit has a column 'rows' of its own"):
        mixed.withColumnRenamed("device", "rows").transform(audit(key="rows", sequence="n"))
    with pytest.raises(InvalidArgument, match="write the stream to a table"):
        spark.readStream.format("rate").load().transform(audit(key="timestamp", sequence="value"))
