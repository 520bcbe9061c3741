"""Which columns rows that wait can be given, and which would take something from them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from seriatim.spark.kernel.partition_state import joined_rows
from seriatim.spark.kernel.schema_evolution import fitted, misfits

MOMENT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.int32(), pa.int64(), [1, None, -(2**31)]),
        (pa.int8(), pa.int16(), [1, None]),
        (pa.float32(), pa.float64(), [0.5, None]),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), [None]),
        (MOMENT, pa.timestamp("us", "Asia/Tokyo"), [0, None]),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1, None], None]),
        (pa.struct({"at": MOMENT}), pa.struct({"at": pa.timestamp("us", "Asia/Tokyo")}), [{"at": None}, None]),
    ],
)
def test_values_keep_what_they_are_in_a_wider_column(old, new, values):
    rows = pa.table({"k": ["a"] * len(values), "v": pa.array(values, old)})
    schema = pa.schema({"v": new, "more": pa.string(), "k": pa.string()})
    assert misfits(rows.schema, schema) == []
    found = fitted(rows, schema)
    assert found.schema == schema
    assert found["v"].equals(rows["v"].cast(new))
    assert found["more"].null_count == len(values)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.float64(), pa.float32()),
        (pa.string(), pa.binary()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (MOMENT, pa.timestamp("us")),
        (pa.struct({"a": pa.int32()}), pa.struct({"b": pa.int32()})),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
    ],
)
def test_another_type_is_a_misfit(old, new):
    (told,) = misfits(pa.schema({"v": old}), pa.schema({"v": new}))
    assert told == f"column 'v' was {old} and is {new} now"


def test_what_was_added_for_the_kernel_may_go_and_can_not_be_made_up():
    plain, digested = pa.schema({"k": pa.string()}), pa.schema({"k": pa.string(), "__seriatim_digest": pa.int64()})
    assert misfits(digested, plain) == []
    assert misfits(plain, digested) == ["they lack '__seriatim_digest'"]
    assert misfits(plain, pa.schema({"other": pa.string()})) == ["column 'k' is gone"]


def test_rows_of_before_and_after_a_change_are_put_together_in_the_wider_columns():
    old, new = pa.table({"n": pa.array([1], pa.int32())}), pa.table({"n": [2**40], "unit": ["C"]})
    for some, more in ((old, new), (new, old)):
        joined = joined_rows(some, more)
        assert joined.schema == new.schema
        assert sorted(joined["n"].to_pylist()) == [1, 2**40]
