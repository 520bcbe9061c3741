"""Columns say the same as messages, in both directions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.errors import DamagedStore, InvalidArgument
from seriatim.spark.topics import packs as packing
from seriatim.spark.topics.packs import pack_batch, read_batches
from seriatim.store.base import Pack, Record
from seriatim.store.pack import PackHead, encode

TIMES = st.sampled_from([0.0, 1.5, 1e9 + 0.25])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
ATTRIBUTES = st.none() | st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3)
MESSAGES = st.tuples(st.integers(1, 3), st.none() | TEXTS, st.binary(max_size=20), ATTRIBUTES, TIMES, TIMES)


@st.composite
def logs(draw) -> list[list[Record]]:
    offset, packs = draw(st.integers(0, 2**40)), []
    for pack in draw(st.lists(st.lists(MESSAGES, min_size=1, max_size=8), max_size=4)):
        records = []
        for step, *rest in pack:
            offset += step
            records.append(Record(offset, *rest))
        packs.append(records)
    return packs


def as_row(record: Record) -> dict[str, Any]:
    def time(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    return {
        "offset": record.offset,
        "key": record.key,
        "data": record.data,
        "attributes": None if record.attributes is None else sorted(record.attributes.items()),
        "published": time(record.published),
        "not_before": time(record.not_before) if record.not_before else None,
    }


def rows_of(batches) -> list[dict[str, Any]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row | {"attributes": row["attributes"] and sorted(row["attributes"])} for row in rows]


@given(logs(), st.integers(-2, 12), st.integers(-2, 12))
def test_a_range_of_a_log_becomes_rows(log, before, after):
    records = [record for pack in log for record in pack]
    first, end = (records[0].offset + before, records[-1].offset - after) if records else (0, 9)
    batches = list(read_batches(map(encode, log), first, end))
    assert rows_of(batches) == [as_row(record) for record in records if first <= record.offset < end]
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows


def test_many_small_packs_become_few_batches(monkeypatch):
    monkeypatch.setattr(packing, "BATCH_MESSAGES", 10)
    log = [[Record(number, "k", b"%d" % number)] for number in range(35)]
    batches = list(read_batches(map(encode, log), 0, 99))
    assert [batch.num_rows for batch in batches] == [10, 10, 10, 5]


def test_damaged_data_is_refused():
    head, _ = encode([Record(0, "k", b"right")])
    with pytest.raises(DamagedStore):
        list(read_batches([Pack(head, b"wrong")], 0, 1))


# -- to a log ----------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.none() | TEXTS, st.binary(max_size=20), ATTRIBUTES), max_size=30)
MAP = pa.map_(pa.string(), pa.string())


def batch_of(rows, key=pa.string(), data=pa.binary()) -> pa.RecordBatch:  # noqa: B008
    keys, payloads, attributes = zip(*rows, strict=True) if rows else ((), (), ())
    maps = [None if one is None else list(one.items()) for one in attributes]
    return pa.record_batch(
        {"key": pa.array(keys, key), "data": pa.array(payloads, data), "attributes": pa.array(maps, MAP)}
    )


def messages_in(packs) -> list[tuple]:
    return [(r.key, r.data, r.attributes) for head, data in packs for r in PackHead(head).records(data)]


@given(ROWS, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string()]))
def test_rows_become_packs_also_when_they_are_a_part_of_a_larger_batch(rows, skipped, key):
    batch = batch_of(rows, key).slice(skipped)
    assert messages_in(pack_batch(batch)) == rows[skipped:]


def test_packs_hold_few_messages_and_few_bytes(monkeypatch):
    monkeypatch.setattr(packing, "PACK_MESSAGES", 4)
    monkeypatch.setattr(packing, "PACK_BYTES", 10)
    rows = [("k", b"x" * size, None) for size in (1, 1, 1, 1, 1, 9, 1, 25, 25, 0, 0)]
    packs = list(pack_batch(batch_of(rows)))
    assert [list(PackHead(pack.head).data_sizes) for pack in packs] == [[1, 1, 1, 1], [1, 9], [1, 25], [25], [0, 0]]


def test_text_is_written_as_utf8_and_other_columns_are_not_written():
    batch = pa.record_batch({"data": pa.array(["ä", ""]), "more": pa.array([1, 2])})
    assert messages_in(pack_batch(batch)) == [(None, "ä".encode(), None), (None, b"", None)]


def test_what_is_behind_a_null_key_is_not_written():
    keys = pa.StringArray.from_buffers(
        2, pa.array([0, 4, 5], pa.int32()).buffers()[1], pa.py_buffer(b"junkk"), pa.py_buffer(b"\2")
    )
    batch = pa.record_batch({"key": keys, "data": pa.array([b"1", b"2"])})
    assert messages_in(pack_batch(batch)) == [(None, b"1", None), ("k", b"2", None)]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (batch_of([("k", b"1", None), ("k", None, None)]), "column 'data' is null"),
        (batch_of([("k", b"1", {"a": None})]), "column 'attributes' has a null value"),
        (batch_of([("k" * 65535, b"1", None)]), "column 'key'"),
    ],
)
def test_rows_that_are_no_messages_are_refused_naming_the_column(batch, text):
    with pytest.raises(InvalidArgument, match=text):
        list(pack_batch(batch))
