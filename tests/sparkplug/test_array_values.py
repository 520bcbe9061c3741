"""Values of array types, as the specification packs them."""

from __future__ import annotations

import struct
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.sparkplug.payload import MAX_ITEMS, TYPES, Aliases, Payload, metrics_as_json, unpack_array

EXAMPLES = [
    ("Int8Array", "ef7b", [-17, 123]),
    ("Int16Array", "308a3075", [-30_160, 30_000]),
    ("Int32Array", "ffffffff0d7b0413", [-1, 319_060_749]),
    ("Int64Array", "ce06727ac18de22c", [0x2CE28DC17A7206CE]),
    ("UInt8Array", "17fa", [23, 250]),
    ("UInt16Array", "1e7dd088", [32_030, 35_024]),
    ("UInt32Array", "ffffffff", [4_294_967_295]),
    ("UInt64Array", "ffffffffffffffff", [18_446_744_073_709_551_615]),
    ("FloatArray", "0000803f000000c0", [1.0, -2.0]),
    ("DoubleArray", "000000000000f83f", [1.5]),
    ("BooleanArray", "0c00000034d0", [*map(bool, (0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1))]),
    ("StringArray", "4142430068656c6c6f00", ["ABC", "hello"]),
    ("StringArray", "00", [""]),
    ("DateTimeArray", "c7d0904185010000", [1_671_842_287_815]),
]


@pytest.mark.parametrize(("name", "packed", "items"), EXAMPLES)
def test_arrays_are_unpacked_as_their_type_says(name, packed, items):
    assert unpack_array(bytes.fromhex(packed), name) == items


@pytest.mark.parametrize("name", sorted({name for name, _, _ in EXAMPLES} - {"BooleanArray"}))
def test_nothing_is_an_empty_array(name):
    assert unpack_array(b"", name) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("Int16Array", b"abc"),
        ("DoubleArray", b"1234567"),
        ("BooleanArray", b""),
        ("BooleanArray", b"\x09\0\0\0\xff"),
        ("BooleanArray", b"\xff\xff\xff\xff\xff"),
        ("StringArray", b"no end"),
        ("Int8Array", bytes(MAX_ITEMS + 1)),
        ("StringArray", bytes(MAX_ITEMS + 1)),
        ("Bytes", b"1234"),
    ],
)
def test_what_is_no_array_of_its_type_stays_bytes(name, data):
    assert unpack_array(data, name) is None


@given(st.binary(max_size=200), st.sampled_from(sorted(TYPES.values())))
def test_no_bytes_are_too_strange(data, name):
    unpack_array(data, name)


def test_numbers_that_json_does_not_know_become_text():
    assert unpack_array(struct.pack("<3d", nan, inf, 1.0), "DoubleArray") == ["nan", "inf", 1.0]


def test_metrics_have_their_arrays_and_their_metadata():
    payload = Payload(seq=0)
    metric = payload.metrics.add(name="levels", datatype=23, bytes_value=struct.pack("<2h", -1, 2))
    metric.metadata.description = "two tanks"
    metric.metadata.size = 4
    metric.metadata.is_multi_part = False
    payload.metrics.add(name="odd", datatype=23, bytes_value=b"abc")
    (found, odd), unknown = metrics_as_json(payload, Aliases(), None)
    assert found == {
        "name": "levels",
        "type": "Int16Array",
        "value": [-1, 2],
        "metadata": {"is_multi_part": False, "size": 4, "description": "two tanks"},
    }
    assert odd["value"] == "YWJj"
    assert unknown == 0
