"""Captured Sparkplug traffic on Spark: what the ordering service gives out, on the same trace with its times of arrival."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from seriatim.core.edge_messages import BeforeBirth, EdgeMessage, Kind, NodeOrdering, Ordered
from seriatim.core.edge_nodes import EdgeNodes
from seriatim.core.resequencing import LedgerEntry
from seriatim.spark import ledger, ordered, resequence, with_epochs
from tests.spark.streams import Stream

TIMEOUT = 10.0
OPTIONS: dict[str, Any] = {
    "key": "key",
    "sequence": "seq",
    "arrival": "at",
    "epoch": "epoch",
    "wrap": 256,
    "start": 0,
    "gap_timeout": TIMEOUT,
}
SCHEMA = "key string, kind string, seq bigint, stamp bigint, at double, epoch int, body string"


class Captured(NamedTuple):
    """A message as a capture keeps it. ``epoch`` is the truth, which a capture does not have."""

    key: str
    kind: str
    seq: int
    stamp: int
    at: float
    epoch: int
    body: str


def capture(seed: int, nodes: int) -> list[Captured]:
    """What nodes sent in some sessions: displaced, repeated, lost, and some of it after the next session has begun.

    Between two sessions there is a pause; what comes ahead of a birth is of its own session, and what comes very late is late.
    No number that overtakes a birth is the one that the session before expects: nobody could tell those apart.
    """
    random, rows = Random(seed), []
    for node in range(nodes):
        stamp = 0
        for epoch in range(1, random.randrange(2, 5)):
            stamp += 100
            size = random.choice((15, 30, 300))
            very_late = 150 if size < 128 else 6.5  # beyond half a circle nobody could tell late from ahead
            for number in range(size):
                stamp += 1
                delay = random.choice((0, 0, 0, 0.5, 2.5, 6.5, very_late if number else 0))
                copies = 1 if number == 0 else random.choice((0, 1, 1, 1, 1, 1, 1, 2))
                for copy in range(copies):
                    at = stamp + delay + copy / 7 + node / 1e4
                    kind = "NBIRTH" if number == 0 else "NDATA"
                    body = f"{epoch}:{number}:{copy}"
                    rows.append(Captured(f"g/n{node}", kind, number % 256, stamp, at, epoch, body))
    return sorted(rows, key=lambda row: row.at)


def service_output(rows: list[Captured]) -> tuple[dict[str, list[str]], list[tuple[Any, ...]]]:
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(reorder_timeout=TIMEOUT, before_birth=BeforeBirth.HOLD))
    effects: list[Any] = []
    for row in rows:
        bd_seq = row.epoch if row.kind == "NBIRTH" else None
        effects += nodes.advance(row.at)
        effects += nodes.receive(
            row.key, EdgeMessage(Kind(row.kind), row.body, row.seq, row.stamp, None, bd_seq), row.at
        )
    effects += nodes.advance(rows[-1].at + 1e6)
    out: dict[str, list[str]] = {}
    for effect in effects:
        if isinstance(effect, Ordered):
            out.setdefault(str(effect.key), []).append(effect.message.body)
    entries = [e for e in effects if isinstance(e, LedgerEntry)]
    return out, sorted((str(e.key), e.reason.value, e.first, e.last) for e in entries if e.reason != "sync-lost")


def test_a_captured_table_comes_out_as_the_service_gave_it_out(spark):
    rows = capture(seed=1, nodes=12)
    frame = spark.createDataFrame(rows, SCHEMA).drop("epoch")
    frame = frame.transform(with_epochs(key="key", birth=F.col("kind") == "NBIRTH", sent="stamp"))
    tagged = frame.transform(resequence(**OPTIONS)).cache()
    out: dict[str, list[str]] = {}
    for row in ordered(tagged).orderBy("key", "_position").collect():
        out.setdefault(row["key"], []).append(row["body"])
    entries = [(row["key"], row["_reason"], row["_first"], row["_last"]) for row in ledger(tagged).collect()]
    expected, expected_entries = service_output(rows)
    assert out == expected
    assert sorted(entry for entry in entries if entry[1] != "sync-lost") == expected_entries
    assert {"late", "lost", "duplicate"} <= {entry[1] for entry in expected_entries}


def test_a_stream_comes_out_as_the_service_gave_it_out(spark, tmp_path):
    rows = capture(seed=2, nodes=6)
    end = Captured("g/end", "NBIRTH", 0, 0, rows[-1].at + 1e6, 1, "end")  # lets the last gaps of event time fall due
    stream = Stream(spark, tmp_path, {**OPTIONS, "partitions": 1}, SCHEMA)
    size = len(rows) // 3 + 1
    for start in range(0, len(rows), size):
        stream.add(rows[start : start + size])
    stream.add([end]).add([end._replace(key="g/after", at=end.at + 1)]).run()
    expected, _ = service_output(rows)
    assert {key: bodies for key, bodies in stream.ordered().items() if key in expected} == expected


def test_epochs_are_counted_by_the_births_that_were_sent_before(spark):
    rows = [("a", False, 1), ("a", True, 2), ("a", False, 2), ("a", False, 3), ("a", True, 5), ("b", True, 4)]
    frame = spark.createDataFrame(rows, "key string, birth boolean, sent int")
    found = frame.transform(with_epochs(key="key", birth=F.col("birth"), sent="sent")).collect()
    assert sorted((row["key"], row["sent"], row["birth"], row["epoch"]) for row in found) == [
        ("a", 1, False, 0),
        ("a", 2, False, 1),
        ("a", 2, True, 1),
        ("a", 3, False, 1),
        ("a", 5, True, 2),
        ("b", 4, True, 1),
    ]
