"""Messages as Kafka's records: keys, headers, ids, partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.errors import InvalidArgument
from seriatim.kafka.records import (
    headers_of,
    key_bytes,
    message_id,
    murmur2,
    partition_of,
    place_of,
    record_of,
)


class FakeMessage:
    """What the library gives for a record."""

    def __init__(self, key, value, headers, partition=3, offset=17, time=1_700_000_000_123) -> None:
        self.fields = {"key": key, "value": value, "headers": headers, "partition": partition, "offset": offset}
        self.time = time

    def __getattr__(self, name):
        return lambda: self.fields[name]

    def timestamp(self):
        return 1, self.time


# What Java's Utils.murmur2 gives, from Kafka's own tests.
JAVA = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}


def test_the_hash_is_that_of_javas_default_partitioner():
    assert {key: murmur2(key) - (2**32 if murmur2(key) >= 2**31 else 0) for key in JAVA} == JAVA


@given(st.one_of(st.none(), st.binary(max_size=20)))
def test_every_key_of_another_producer_is_a_lane_of_its_own(key):
    record, _ = record_of(FakeMessage(key, b"data", None))  # type: ignore[arg-type]
    assert key_bytes(record.key) == key


@given(st.integers(0, 1000), st.integers(0, 2**48 - 1))
def test_an_id_names_partition_and_offset(partition, offset):
    assert place_of(message_id(partition, offset)) == (partition, offset)


@pytest.mark.parametrize("wrong", ["", "17", "1-", "-1", "a-b", "1-2-3", "\N{ARABIC-INDIC DIGIT ONE}-2", None, 7])
def test_what_is_not_an_id_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="is not the id of a message"):
        place_of(wrong)


def test_attributes_and_a_delay_go_as_headers_and_come_back():
    headers = headers_of({"a": "ä", "b": ""}, 1_800_000_000.5)
    record, _ = record_of(FakeMessage(b"k", b"data", headers))  # type: ignore[arg-type]
    assert (record.key, record.data, dict(record.attributes or {})) == ("k", b"data", {"a": "ä", "b": ""})
    assert record.not_before == 1_800_000_000.5
    assert record.published == 1_700_000_000.123


def test_what_others_write_is_shown_as_far_as_it_can_be():
    headers = [
        ("bytes", b"\xff\x00"),
        ("nothing", None),
        ("twice", b"1"),
        ("twice", b"2"),
        ("seriatim-not-before", b"x"),
    ]
    record, _ = record_of(FakeMessage(None, None, headers, time=-1))  # type: ignore[arg-type]
    assert dict(record.attributes or {}) == {"bytes": "\\xff\x00", "nothing": "", "twice": "2"}
    assert (record.key, record.data, record.not_before, record.published) == (None, b"", 0.0, 0.0)


def test_a_key_belongs_to_one_partition():
    assert {partition_of(f"key-{number}", 4) for number in range(100)} == {0, 1, 2, 3}


def test_rows_of_a_pipeline_say_where_they_come_from_and_that_is_no_attribute():
    place = {"seriatim-query": "7:ordered", "seriatim-partition": "3", "seriatim-batch": "12", "seriatim-position": "0"}
    record, origin = record_of(FakeMessage(b"k", b"data", headers_of({**place, "colour": "red"})))  # type: ignore[arg-type]
    assert origin == ("7:ordered/3", (12, 0))
    assert record.attributes == {"colour": "red"}


@pytest.mark.parametrize("name", ["seriatim-partition", "seriatim-batch", "seriatim-position"])
def test_headers_that_name_no_place_are_attributes_like_any_others(name):
    place = {"seriatim-query": "7", "seriatim-partition": "3", "seriatim-batch": "12", "seriatim-position": "0"}
    place[name] = "-1"
    record, origin = record_of(FakeMessage(b"k", b"data", headers_of(place)))  # type: ignore[arg-type]
    assert origin is None
    assert record.attributes == place
