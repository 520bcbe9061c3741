"""What numpy finds out about the rows of each key is what the core's classifier says, however the rows are cut into batches."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from seriatim.core.traces import classify
from seriatim.errors import FailedPrecondition
from seriatim.spark.auditing.facts import AuditTask

Row = dict[str, Any]


def random_rows(seed: int, keys: int) -> list[Row]:
    """Rows of many short keys: copies, holes, overtaken rows, rows that arrived together, and some that can't be judged."""
    random, rows = Random(seed), list[Row]()
    for key in range(keys):
        low = random.choice([0, -5, 10**15])
        for _ in range(random.randrange(1, 12)):
            number = low + random.randrange(8)
            row: Row = {
                "number": number,
                "arrival": float(random.randrange(20)),
                "offset": len(rows),
                "digest": random.randrange(2),
            }
            if random.random() < 0.05:
                row |= {
                    "number": None,
                    "arrival": random.choice([None, float("nan"), 3.0]),
                    "complaint": f"row {len(rows)}",
                }
            # Several keys share a group, as keys with the same hash do.
            rows.append({"group": key // 2 if key % 7 == 0 else key, "key": f"k{key}", "complaint": None, **row})
    random.shuffle(rows)
    return sorted(rows, key=lambda row: row["group"])


SCHEMA = pa.schema(
    {
        "group": pa.int64(),
        "key": pa.string(),
        "number": pa.int64(),
        "arrival": pa.float64(),
        "offset": pa.int64(),
        "digest": pa.int64(),
        "complaint": pa.string(),
    }
)


def told(rows: list[Row], *, batch: int, names: list[str] = SCHEMA.names, **limits: int) -> dict[str, Row]:
    table = pa.Table.from_pylist(rows, SCHEMA).select(names)
    found = AuditTask(**limits).run(iter(table.to_batches(max_chunksize=batch)))
    facts = [row for some in found for row in some.to_pylist()]
    assert len({row["key"] for row in facts}) == len(facts)
    return {row["key"]: row for row in facts}


def expected(rows: list[Row], *, has_offset: bool, has_digest: bool) -> dict[str, Row]:
    by_key = defaultdict(list)
    for row in rows:
        by_key[row["key"]].append(row)
    return {key: _expected(of_key, has_offset, has_digest) for key, of_key in by_key.items()}


def _expected(rows: list[Row], has_offset: bool, has_digest: bool) -> Row:
    valid = [row for row in rows if row["number"] is not None]
    order = ["arrival", *["offset"][:has_offset], "number", *["digest"][:has_digest]]
    valid.sort(key=lambda row: [row[name] for name in order])
    verdict = classify([row["number"] for row in valid])
    witness = {one.kind: one for one in verdict.witnesses}
    first_digest: dict[int, int] = {}
    conflicts = [
        {"at": at, "number": row["number"]}
        for at, row in enumerate(valid)
        if first_digest.setdefault(row["number"], row["digest"]) != row["digest"] and has_digest
    ]
    inverted, copied, hole = (witness.get(kind) for kind in ("inversion", "duplicate", "loss"))
    numbers = {row["number"] for row in valid}
    invalid = [row for row in rows if row["number"] is None]
    invalid.sort(key=lambda row: (row["arrival"] is not None, row["arrival"] != row["arrival"], row["arrival"] or 0))
    return {
        "rows": verdict.received,
        "invalid": len(invalid),
        "duplicates": verdict.duplicates,
        "conflicts": len(conflicts),
        "reordered": verdict.reordered,
        "max_displacement": verdict.max_displacement,
        "span": max(numbers) - min(numbers) + 1 if numbers else 0,
        "first_inverted": inverted and {"at": inverted.at, "number": inverted.sequence, "highest": inverted.other},
        "first_copied": copied and {"at": copied.at, "number": copied.sequence},
        "first_conflict": conflicts[0] if conflicts else None,
        "first_hole": hole and {"number": hole.other, "previous": int(str(hole.sequence)) - 1},
        "invalid_rank": invalid and (invalid[0]["arrival"], {row["complaint"] for row in invalid}),
    }


@pytest.mark.parametrize("batch", [7, 100_000])
@pytest.mark.parametrize("leave_out", [[], ["offset"], ["digest"], ["offset", "digest"]])
def test_the_facts_of_a_key_are_the_cores(batch, leave_out):
    rows = random_rows(seed=batch, keys=600)
    names = [name for name in SCHEMA.names if name not in leave_out]
    found = told(rows, batch=batch, names=names, chunk_rows=50)
    wanted = expected(rows, has_offset="offset" in names, has_digest="digest" in names)
    for key, facts in wanted.items():
        rank, complaint = facts.pop("invalid_rank"), found[key].pop("first_invalid")
        assert found[key] == {"key": key, **facts}
        assert complaint is None if not rank else complaint in rank[1]
    assert found.keys() == wanted.keys()


def test_of_rows_that_cannot_be_judged_the_first_one_is_told():
    times = [5.0, float("nan"), None, 2.0]
    rows = [{"group": 1, "key": "a", "number": None, "arrival": time, "complaint": f"at {time}"} for time in times]
    for count, first in ((1, "at 5.0"), (2, "at 5.0"), (3, "at None")):
        assert told(rows[:count], batch=10)["a"]["first_invalid"] == first
    assert told([rows[0], rows[3], rows[1]], batch=10)["a"]["first_invalid"] == "at 2.0"


def test_a_key_that_may_not_fit_into_memory_is_refused():
    rows = [{"group": 1, "key": "a", "number": number, "arrival": 0.0} for number in range(100)]
    assert told(rows, batch=10, chunk_rows=10, max_group_rows=100)["a"]["rows"] == 100
    with pytest.raises(FailedPrecondition, match=r"key a has more than 50 rows.* in_memory=False"):
        told(rows, batch=10, chunk_rows=10, max_group_rows=50)
