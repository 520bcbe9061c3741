from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from seriatim.core.resequencing import OnDuplicate, OnLate, Resequencing, Start
from seriatim.spark.streaming import partition_of
from tests.spark.frames import random_messages
from tests.spark.streams import Stream
from tests.spark.traces import Core, Row, told_in


@pytest.fixture
def stream(spark, tmp_path) -> Stream:
    return Stream(spark, tmp_path)


def test_a_stream_is_put_in_order_over_its_batches(stream):
    stream.add([("a", 1, 1.0, "a1"), ("b", 0, 1.0, "b0")]).add([("a", 0, 2.0, "a0"), ("a", 1, 2.5, "again")])
    stream.add([("b", 2, 3.0, "b2")]).add([("a", 2, 9.0, "a2"), ("b", 3, 9.0, "b3")])
    stream.run(gap_timeout="5s")
    assert stream.ordered() == {"a": ["a0", "a1", "a2"], "b": ["b0", "b2", "b3"]}
    assert sorted(stream.ledger()) == [("a", "duplicate", 1, 1), ("b", "lost", 1, 1)]


@pytest.mark.parametrize(
    ("chosen", "core"),
    [
        (
            {"start": 0, "gap_timeout": 40, "on_late": "side-output"},
            Resequencing(start=Start.at(0), gap_timeout=40, on_late=OnLate.SIDE_OUTPUT),
        ),
        (
            {
                "start": "lowest",
                "gap_timeout": "90s",
                "payload": "payload",
                "on_duplicate": "conflict",
                "epoch": "epoch",
            },
            Resequencing(start=Start.lowest_within(90), gap_timeout=90, on_duplicate=OnDuplicate.CONFLICT),
        ),
    ],
    ids=["timeouts", "lowest, conflicts, epochs"],
)
def test_random_traces_cut_into_batches_are_decided_as_the_core_would(spark, tmp_path, chosen, core):
    stream = Stream(
        spark, tmp_path, {**chosen}, "key string, seq bigint, at double, body bigint, epoch bigint, payload string"
    )
    messages = sorted(random_messages(3, 80, epochs=1 + ("epoch" in chosen)), key=lambda message: message.arrived)
    rows = [Row(one.key, one.seq, float(one.arrived), one.id, one.epoch, one.payload) for one in messages]
    cuts = [0, 150, 151, 500, 800, len(rows)]
    home = partitions_of(spark, {row.key for row in rows}, 3)
    cores = [Core(core) for _ in range(3)]
    for begin, end in pairwise(cuts):
        stream.add([(row.key, row.seq, row.at, row.body, row.epoch, row.digest) for row in rows[begin:end]])
    stream.run()
    for batch, (begin, end) in enumerate(pairwise(cuts)):
        ordered, entries = [], []
        for number, machine in enumerate(cores):
            mine = [row for row in rows[begin:end] if home[row.key] == number]
            released, told = machine.run(mine, mine[-1].at if mine else -inf)
            ordered += released
            entries += told
        expected = (sorted(ordered, key=lambda row: row[0]), sorted(entries, key=lambda entry: entry[1]))
        assert told_in([row.asDict() for row in stream.batches[batch]]) == expected
    assert {"lost", "duplicate"} <= {row["_reason"] for row in stream.rows()}


def partitions_of(spark, keys, count):
    frame = spark.createDataFrame([(key,) for key in keys], "key string")
    return {row[0]: row[1] for row in frame.select("key", partition_of(frame.key, count)).collect()}


def test_a_batch_of_which_no_row_reaches_the_kernel_leaves_its_state_too(spark, tmp_path):
    stream = Stream(spark, tmp_path, before=lambda frame: frame.where("body <> 'none'"))
    stream.add([("a", 1, 1.0, "a1")]).add([("a", 0, 2.0, "none")]).add([("a", 0, 3.0, "a0")]).run()
    assert stream.ordered() == {"a": ["a0", "a1"]}
    assert stream.batches[1] == []
    assert len(stream.versions()) == 3 * 3
