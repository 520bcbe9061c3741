"""The rows of a task come out of the shuffle in any order, and are judged in one."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from seriatim.spark.kernel.arrival_order import ArrivalOrder, by_arrival

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "double": (pa.float64(), [0.0, 0.5, 1.0, float("nan"), float("inf"), None]),
    "bigint": (pa.int64(), [0, 1, 2**53, 2**53 + 1, None]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1, 10**15, 10**15 + 1, None]),
    "decimal": (pa.decimal128(10, 2), [0, 1, 2, None]),
}


def in_order(rows: list[dict], schema: pa.Schema, arrival: str | None = "at") -> list[str]:
    table = pa.Table.from_pylist(rows, schema)
    numbers = ("epoch", "seq") if arrival is None else (arrival, "epoch", "seq")
    others = set(schema.names) - {*numbers, "key"}
    order = by_arrival(table, ArrivalOrder(numbers, "key", tuple(sorted(others))))
    assert sorted(order) == list(range(len(rows)))
    return [str(row) for row in table.take(pa.array(order)).to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrival", ["at", None])
def test_any_shuffle_of_the_same_rows_gives_the_same_order(kind, arrival):
    type_, times = KINDS[kind]
    schema = pa.schema(
        {
            "key": pa.string(),
            "seq": pa.int64(),
            "epoch": pa.int32(),
            "at": type_,
            "tags": pa.map_(pa.string(), pa.int64()),
        }
    )
    random = Random(kind)
    rows = [
        {
            "key": random.choice(["a", "b", "long key", "", None]),
            "seq": random.choice([0, 1, 2, None]),
            "epoch": random.choice([0, 0, 1]),
            "at": random.choice(times),
            "tags": random.choice([None, [], [("x", 1)], [("x", 2)]]),
        }
        for _ in range(200)
    ]
    expected = in_order(rows, schema, arrival)
    for _ in range(5):
        random.shuffle(rows)
        assert in_order(rows, schema, arrival) == expected


def test_the_time_of_arrival_decides_before_anything_else():
    schema = pa.schema({"key": pa.string(), "seq": pa.int64(), "epoch": pa.int32(), "at": pa.int64()})
    rows = [(3, 0, 1), (1, 2, 0), (1, 1, 9), (1, 1, 3), (2, 0, 0)]
    table = pa.Table.from_pylist(
        [{"key": "k", "at": at, "epoch": epoch, "seq": seq} for at, epoch, seq in rows], schema
    )
    order = by_arrival(table, ArrivalOrder(("at", "epoch", "seq"), "key", ()))
    assert [rows[place] for place in order] == sorted(rows)


def test_no_rows_are_in_order():
    schema = pa.schema({"key": pa.string(), "seq": pa.int64(), "epoch": pa.int32(), "at": pa.int64()})
    assert in_order([], schema) == []
