"""Static frames whose options depend on the order of arrival: the kernel after one sort, and the core as its measure."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from math import inf

import pyarrow as pa
import pytest

from seriatim.core.resequencing.options import OnDuplicate, OnEpoch, OnGap, OnLate, OnOverflow, ResequenceOptions, Start
from seriatim.core.sequence import SequenceSpace
from seriatim.spark import resequence
from seriatim.spark.column_roles import ColumnRoles
from seriatim.spark.frames import table_by_kernel as table_in_order
from seriatim.spark.frames.preparation import BYTES_PER_BATCH, batches_of
from seriatim.spark.frames.table_by_kernel import FOREVER, TableTask
from seriatim.spark.kernel.kernel import Kernel
from tests.spark.frames.random_rows import SCHEMA, Message, by_rule, digests_of_payloads, random_messages
from tests.spark.kernel.traces import Core, Row, told_in

ROOMY = 2**31


def core_outcome(messages: list[Message], options: ResequenceOptions, digests: dict | None) -> tuple[list, list]:
    """Each key's rows in order of arrival through the core, and then all the time in the world."""
    by_key = defaultdict(list)
    for message in sorted(messages, key=lambda message: by_rule(message, digests)):
        row = Row(message.key, message.seq, float(message.arrived), message.id, message.epoch, repr(message.payload))
        by_key[message.key].append(row)
    ordered, told = [], []
    for _, rows in sorted(by_key.items()):
        released, entries = Core(options).run(rows, inf)
        ordered += released
        told += entries
    return ordered, [without_endless_time(entry) for entry in told]


def without_endless_time(entry: tuple) -> tuple:
    *before, time, detail, body = entry
    return (*before, None if time is None or time >= FOREVER else time, detail, body)


def spark_outcome(tagged) -> tuple[list, list]:
    rows = [{**row.asDict(), "body": row["id"]} for row in tagged.collect()]
    return told_in(rows)


CASES = {
    "timeouts": (
        {"gap_timeout": "20s", "start": 0, "on_late": "side-output"},
        ResequenceOptions(start=Start.at(0), gap_timeout=20, on_late=OnLate.SIDE_OUTPUT, capacity=ROOMY),
        {},
    ),
    "lowest within a time, conflicts": (
        {"gap_timeout": 60, "payload": "payload", "on_duplicate": "conflict"},
        ResequenceOptions(
            start=Start.lowest_within(60), gap_timeout=60, on_duplicate=OnDuplicate.CONFLICT, capacity=ROOMY
        ),
        {},
    ),
    "first seen, epochs": (
        {"start": "first", "epoch": "epoch", "on_epoch": "discard"},
        ResequenceOptions(start=Start.first_seen(), gap_timeout=FOREVER, on_epoch=OnEpoch.DISCARD, capacity=ROOMY),
        {"epochs": 3},
    ),
    "a circle": (
        {"wrap": 16, "start": 0},
        ResequenceOptions(SequenceSpace(16), Start.at(0), gap_timeout=FOREVER),
        {},
    ),
    "last copies, dead letters": (
        {"start": 0, "on_duplicate": "last", "on_gap": "dead-letter"},
        ResequenceOptions(
            start=Start.at(0),
            gap_timeout=FOREVER,
            on_duplicate=OnDuplicate.LAST,
            on_gap=OnGap.DEAD_LETTER,
            capacity=ROOMY,
        ),
        {},
    ),
    "little room": (
        {"start": 0, "capacity": 3, "on_overflow": "drop"},
        ResequenceOptions(start=Start.at(0), gap_timeout=FOREVER, capacity=3, on_overflow=OnOverflow.DROP),
        {},
    ),
}


@pytest.fixture
def large_tasks(spark, monkeypatch):
    """Every task gets its rows in many batches and works in many chunks, as one with millions of rows does."""
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "20")
    monkeypatch.setattr(table_in_order, "TableTask", partial(TableTask, chunk_rows=100))
    yield
    spark.conf.set(setting, before)


@pytest.mark.parametrize(("chosen", "core", "drawn"), CASES.values(), ids=CASES.keys())
@pytest.mark.usefixtures("large_tasks")
def test_what_depends_on_arrival_is_decided_as_the_core_would(spark, chosen, core, drawn):
    messages = [message._replace(seq=message.seq % 16) for message in random_messages(seed=11, keys=60, **drawn)]
    frame = spark.createDataFrame(messages, SCHEMA)
    tagged = frame.transform(resequence(key="key", sequence="seq", arrival="arrived", **chosen))
    expected = core_outcome(messages, core, digests_of_payloads(spark) if "payload" in chosen else None)
    assert expected[0]
    assert len({entry[:3] for entry in expected[1]}) > len({entry[1] for entry in expected[1]}) / 2
    assert spark_outcome(tagged) == expected


@pytest.mark.parametrize("nullable", [True, False], ids=["nullable", "NOT NULL"])
def test_a_chunk_ends_where_a_key_ends(nullable):
    """However the rows are cut, the outcome is that of one chunk; also where Spark says that a column is never null."""
    schema = pa.schema({"k": pa.string(), "n": pa.int64(), "t": pa.float64()})
    sent = pa.schema(
        [pa.field("k", pa.string()), *(pa.field(name, schema.field(name).type, nullable) for name in "nt")]
    )
    keys = [None, None, *"aaabbbbbbbbbc"]
    table = pa.table(
        [keys, [len(keys) - i for i in range(len(keys))], [float(i) for i in range(len(keys))]], schema=sent
    )
    kernel = Kernel(ResequenceOptions(start=Start.first_seen(), gap_timeout=FOREVER), ColumnRoles("k", "n", "t"))
    names = ["_tag", "k", "n", "_position", "_reason", "_first", "_last"]
    outcomes = []
    for chunk_rows in (1, 2, 4, 100):
        task = TableTask(kernel, schema, names, chunk_rows)
        batches = [batch for start in range(0, len(keys), 2) for batch in table.slice(start, 2).to_batches()]
        rows = [row for batch in task.run(iter(batches)) for row in batch.to_pylist()]
        outcomes.append(sorted(rows, key=str))
        assert {row["k"] for row in rows if row["_tag"] == "ordered"} == set("abc")
    assert all(outcome == outcomes[-1] for outcome in outcomes)


def test_chunks_are_bounded_by_the_largest_key():
    schema = pa.schema({"k": pa.string(), "n": pa.int64(), "t": pa.float64()})
    keys = [key for key in "abcdefgh" for _ in range(10)]
    table = pa.table([keys, list(range(80)), [0.0] * 80], schema=schema)
    task = TableTask(Kernel(ResequenceOptions(), ColumnRoles("k", "n", "t")), schema, [], chunk_rows=25)
    chunks = list(task._chunks(iter(table.to_batches(max_chunksize=5))))
    assert [chunk.num_rows for chunk in chunks] == [20, 20, 20, 20]
    assert [chunk["k"].unique().to_pylist() for chunk in chunks] == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]


def test_large_rows_leave_in_small_pieces():
    rows = pa.table({"number": range(20), "body": ["x" * 2**20] * 20, "other": range(20)})
    pieces = list(batches_of(rows, ["number", "body"]))
    assert pa.Table.from_batches(pieces).equals(rows.select(["number", "body"]))
    assert 1 < max(piece.num_rows for piece in pieces) <= BYTES_PER_BATCH >> 20
    assert [piece.num_rows for piece in batches_of(rows.select(["number"]), ["number"])] == [20]
    assert list(batches_of(rows.slice(0, 0), ["number"])) == []
