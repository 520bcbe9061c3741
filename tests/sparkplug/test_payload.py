"""What the bytes of a payload mean."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from functools import cache
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.resequencing.options import Reason
from seriatim.core.sparkplug.messages import Kind, Ordered
from seriatim.errors import InvalidArgument
from seriatim.sparkplug.intake import Malformed, read_message
from seriatim.sparkplug.payload import (
    _SCHEMA,
    COMPRESSED,
    MAX_BYTES,
    MAX_PARTS,
    Aliases,
    Payload,
    bd_seq_of,
    decode,
    field,
    metrics_as_json,
    rebirth_command,
)
from seriatim.sparkplug.records import Entry, make_entry, make_record


def payload(*metrics: dict, **fields):
    made = Payload(**fields)
    for metric in metrics:
        made.metrics.add(**metric)
    return made


def read(made, aliases: Aliases | None = None, device: str | None = None):
    return metrics_as_json(decode(made.SerializeToString()), aliases or Aliases(), device)


def test_the_wire_format_is_sparkplugs():
    """Written by hand from the field numbers: timestamp 1, metrics 2, seq 3; name 1, alias 2, datatype 4, long_value 11."""
    wire = bytes([0x08, 0x05, 0x12, 0x0D, 0x0A, 5, *b"bdSeq", 0x10, 0x02, 0x20, 0x04, 0x58, 0x07, 0x18, 0x09])
    found = decode(wire)
    assert (found.timestamp, found.seq, bd_seq_of(found)) == (5, 9, 7)
    assert (found.metrics[0].alias, found.metrics[0].datatype) == (2, 4)


def test_an_absent_field_is_none_and_not_zero():
    assert field(decode(b""), "seq") is None
    assert field(decode(Payload(seq=0).SerializeToString()), "seq") == 0


@pytest.mark.parametrize("data", [b"\xff", b"\x12\xff", b"\x12\x05ab", b"not a payload"])
def test_bytes_that_are_no_payload_are_refused(data):
    with pytest.raises(InvalidArgument, match="not a Sparkplug payload"):
        decode(data)


def test_a_payload_that_is_too_long_is_refused():
    with pytest.raises(InvalidArgument, match="longer than"):
        decode(bytes(MAX_BYTES + 1))


def compressed(body: bytes, **fields) -> bytes:
    algorithm = {"name": "algorithm", "datatype": 12, "string_value": "whatever"}
    return bytes(payload(algorithm, uuid=COMPRESSED, body=body, **fields).SerializeToString())


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress])
def test_a_compressed_payload_is_read_as_the_one_within(compress):
    inner = payload({"name": "a", "datatype": 3, "int_value": 1}, seq=7)
    found = decode(compressed(compress(inner.SerializeToString()), seq=9, timestamp=5))
    assert [metric.name for metric in found.metrics] == ["a"]
    assert (found.seq, found.timestamp) == (7, 5), "the outer one says what the inner one does not"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cut off"),
        (b"not compressed", "decompressed"),
        (zlib.compress(b"x" * 1000)[:-3], "cut off"),
        (zlib.compress(bytes(MAX_BYTES + 1)), "longer than"),
        (zlib.compress(b"\xff"), "not a Sparkplug payload"),
    ],
)
def test_what_is_said_to_be_compressed_and_is_not_or_is_a_bomb_is_refused(body, said):
    with pytest.raises(InvalidArgument, match=said):
        decode(compressed(body))


def many(part: str, count: int) -> Any:
    """A payload with many of something."""
    made = Payload(seq=1)
    metric = made.metrics.add(name="m")
    if part == "metrics":
        made.metrics.extend([Payload().metrics.add()] * count)
    elif part == "properties":
        metric.properties.keys.extend([""] * count)
    elif part == "rows":
        metric.dataset_value.rows.extend([metric.dataset_value.rows.add()] * count)
    elif part == "cells":
        row = metric.dataset_value.rows.add()
        row.elements.extend([row.elements.add()] * count)
    elif part == "types":
        metric.dataset_value.types.extend([1] * count)
    else:
        metric.template_value.metrics.extend([Payload().metrics.add()] * count)
    return made


@pytest.mark.parametrize("part", ["metrics", "properties", "rows", "cells", "types", "metrics of a template"])
def test_a_payload_of_very_many_parts_is_refused_also_when_it_came_as_a_few_bytes(part):
    assert decode(many(part, MAX_PARTS // 2).SerializeToString()) is not None
    too_many = many(part, MAX_PARTS + 1).SerializeToString()
    assert len(compressed(zlib.compress(too_many))) < 1000
    for data in (too_many, compressed(zlib.compress(too_many))):
        with pytest.raises(InvalidArgument, match=f"more than {MAX_PARTS}"):
            decode(data)


def test_a_packed_list_of_very_many_numbers_is_refused():
    """A byte each: the least that a part can cost."""
    packed = bytes([0x1A]) + varint(MAX_PARTS + 1) + bytes(MAX_PARTS + 1)  # types of a data set
    metric = bytes([0x8A, 0x01]) + varint(len(packed)) + packed
    with pytest.raises(InvalidArgument, match=f"more than {MAX_PARTS}"):
        decode(bytes([0x12]) + varint(len(metric)) + metric)


@pytest.mark.parametrize(("depth", "is_read"), [(40, True), (100, False), (5_000, False)])
def test_a_payload_is_read_as_deep_as_protobuf_goes_and_refused_beyond(depth, is_read):
    metric = b"\x0a\x01\xff"
    for _ in range(depth):
        template = bytes([0x12]) + varint(len(metric)) + metric
        metric = bytes([0x92, 0x01]) + varint(len(template)) + template
    assert (stored_and_entered(bytes([0x12]) + varint(len(metric)) + metric) is not None) is is_read


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else_happens(data):
    stored_and_entered(data)


def stored_and_entered(data: bytes) -> bytes | None:
    """What topic and ledger get of a birth, a death and data with this payload; None when it is refused."""
    stored = b""
    for kind in (Kind.NBIRTH, Kind.NDATA, Kind.NDEATH):
        found = read_message(f"spBv1.0/g/{kind}/n", data)
        assert found is not None
        if isinstance(found, Malformed):
            assert found.what == "payload"
            parts = [make_entry(Entry.of_malformed(found), Aliases(), 1, raw=True)]
        else:
            node, message = found
            record, _ = make_record(Ordered(node, 1, 1, message), Aliases(), raw=True)
            stored = record.data
            parts = [record, make_entry(Entry(str(node), Reason.DUPLICATE, "", message), Aliases(), 1, raw=True)]
        for part in parts:
            json.loads(part.data.decode(), parse_constant=pytest.fail)
    return stored or None


_SIZES = {"float": (5, 4), "double": (1, 8)}
_LIMITS = {"bool": 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1}
TEXTS = st.one_of(st.just("name"), st.sampled_from(["bdSeq", "ä", "\x00", "\u2028"]), st.text(max_size=3)).map(
    str.encode
)
ANY_TEXTS = st.one_of(TEXTS, st.sampled_from([b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\xaf"]), st.binary(max_size=3))


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


@cache
def wire_of(message: str, texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A message of the schema as bytes: any of its fields, in any order and number, with ``texts`` wherever there is text."""
    fields = [_field(line, texts) for line in _SCHEMA[message].split(", ")]
    return st.lists(st.one_of(fields), max_size=4).map(b"".join)


def _field(line: str, texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    number, _, kind = line.replace("*", "").replace("|", "").split(" ")
    if kind in _SIZES:
        wire, size = _SIZES[kind]
        values = st.binary(min_size=size, max_size=size)
    elif kind in _LIMITS:
        wire, limit = 0, _LIMITS[kind]
        values = st.one_of(st.integers(0, min(limit, 40)), st.integers(0, limit)).map(varint)
    else:
        wire, others = 2, {"string": texts, "bytes": st.binary(max_size=3)}
        values = others[kind] if kind in others else st.deferred(lambda: wire_of(kind, texts))
    key = varint(int(number) << 3 | wire)
    return values.map(lambda value: key + (varint(len(value)) if wire == 2 else b"") + value)


def with_metrics(texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    metrics = st.lists(wire_of("Metric", texts), min_size=3, max_size=10)
    framed = metrics.map(lambda found: b"".join(b"\x12" + varint(len(metric)) + metric for metric in found))
    return st.builds(bytes.__add__, wire_of("Payload", texts), framed)


@given(with_metrics(ANY_TEXTS))
def test_whatever_is_in_a_payload_and_however_its_texts_are_encoded_it_is_stored(data):
    assert stored_and_entered(data) is not None


@given(with_metrics(TEXTS))
def test_texts_that_are_right_are_left_as_they_are(data):
    assert decode(data) == Payload.FromString(data)


def test_text_that_is_not_utf_8_costs_a_message_nothing_else():
    made = Payload(seq=1)
    table = made.metrics.add(name="NAME", datatype=16).dataset_value
    table.columns.extend(["COLUMN", "good"])
    table.rows.add().elements.add(string_value="CELL")
    template = made.metrics.add(name="t", datatype=19).template_value
    template.template_ref, template.version = "REFERENCE", "VERSION"
    template.metrics.add(name="MEMBER")
    template.parameters.add(name="PARAMETER", string_value="ARGUMENT")
    last = made.metrics.add(name="s", datatype=12, string_value="VALUE")
    last.properties.keys.append("KEY")
    last.properties.values.add(string_value="PROPERTY")
    wrong = re.sub(rb"[A-Z]+[A-Z]", lambda word: b"\xff" + word[0][1:], made.SerializeToString())
    stored = stored_and_entered(wrong)
    assert stored is not None
    words = set(re.findall(r'"(\\\\xff[A-Z]+)"', stored.decode()))
    assert len(words) == 11
    assert json.loads(stored)["metrics"][0]["name"] == r"\xffAME"
    assert '"good"' in stored.decode()


def test_a_truncated_payload_is_read_or_refused_wherever_it_is_cut():
    whole = payload({"name": "a", "datatype": 10, "double_value": 1.5}, timestamp=1, seq=3).SerializeToString()
    refused = 0
    for cut in range(len(whole)):
        try:
            decode(whole[:cut])
        except InvalidArgument:
            refused += 1
    assert refused > len(whole) // 2


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ({"datatype": 1, "int_value": 0xFF}, -1),
        ({"datatype": 1, "int_value": 0xFFFFFFFF}, -1),
        ({"datatype": 2, "int_value": 0x8000}, -32768),
        ({"datatype": 3, "int_value": 0xFFFFFFFE}, -2),
        ({"datatype": 4, "long_value": 2**64 - 5}, -5),
        ({"datatype": 7, "int_value": 0xFFFFFFFF}, 2**32 - 1),
        ({"datatype": 8, "long_value": 2**64 - 1}, 2**64 - 1),
        ({"datatype": 9, "float_value": 0.5}, 0.5),
        ({"datatype": 10, "double_value": math.nan}, "nan"),
        ({"datatype": 10, "double_value": -math.inf}, "-inf"),
        ({"datatype": 11, "boolean_value": False}, False),
        ({"datatype": 12, "string_value": "ä"}, "ä"),
        ({"datatype": 17, "bytes_value": b"\x00\x01"}, "AAE="),
        ({"datatype": 3, "is_null": True}, None),
        ({"datatype": 99, "int_value": 4}, 4),
        ({"datatype": 3}, None),
    ],
)
def test_values_become_json(metric, value):
    ((found,), unknown) = read(payload({"name": "m", **metric}))
    assert found["value"] == value
    assert unknown == 0


def test_data_sets_templates_and_properties_become_json():
    made = Payload()
    table = made.metrics.add(name="table", datatype=16).dataset_value
    table.columns.extend(["a", "b"])
    table.types.extend([1, 12])
    table.rows.add().elements.add(int_value=255)
    table.rows[0].elements.add(string_value="x")
    template = made.metrics.add(name="motor", datatype=19).template_value
    template.template_ref = "Motor"
    template.metrics.add(name="rpm", datatype=3, int_value=5)
    template.parameters.add(name="p", type=12, string_value="q")
    with_properties = made.metrics.add(name="m", datatype=3, int_value=1, is_historical=True, timestamp=7)
    with_properties.properties.keys.extend(["unit", "none"])
    with_properties.properties.values.add(type=12, string_value="V")
    with_properties.properties.values.add(type=12, is_null=True)
    (first, second, third), _ = read(made)
    assert first["value"] == {"columns": ["a", "b"], "types": ["Int8", "String"], "rows": [[-1, "x"]]}
    assert second["value"]["metrics"] == [{"name": "rpm", "type": "Int32", "value": 5}]
    assert second["value"]["parameters"] == {"p": "q"}
    assert third == {
        "name": "m",
        "type": "Int32",
        "timestamp": 7,
        "value": 1,
        "historical": True,
        "properties": {"unit": "V", "none": None},
    }


def test_aliases_are_resolved_by_the_births_of_their_session():
    aliases = Aliases()
    aliases.learn(Kind.NBIRTH, None, payload({"name": "a", "alias": 1, "datatype": 3, "int_value": 0}))
    aliases.learn(Kind.DBIRTH, "d", payload({"name": "b", "alias": 2, "datatype": 1, "int_value": 0}))
    data = payload({"alias": 1, "int_value": 5}, {"alias": 2, "int_value": 255}, {"alias": 3, "int_value": 1})
    found, unknown = read(data, aliases, "d")
    assert found == [
        {"name": "a", "type": "Int32", "value": 5},
        {"name": "b", "type": "Int8", "value": -1},
        {"alias": 3, "value": 1},
    ]
    assert unknown == 1


def test_a_new_session_forgets_the_aliases_of_the_old_one():
    aliases = Aliases()
    aliases.learn(Kind.NBIRTH, None, payload({"name": "a", "alias": 1, "datatype": 3}))
    aliases.learn(Kind.NBIRTH, None, payload({"name": "b", "alias": 2, "datatype": 3}))
    assert read(payload({"alias": 1}), aliases) == ([{"alias": 1, "value": None}], 1)


def test_the_type_of_a_named_metric_is_known_from_its_birth():
    aliases = Aliases()
    aliases.learn(Kind.DBIRTH, "d", payload({"name": "a", "datatype": 1}))
    aliases.learn(Kind.NDATA, None, payload({"name": "x", "alias": 9, "datatype": 1}))
    data = payload({"name": "a", "int_value": 255})
    assert read(data, aliases, "d")[0][0]["value"] == -1
    assert read(data, aliases, "other")[0][0]["value"] == 255
    assert read(payload({"alias": 9}), aliases)[1] == 1, "data gives no names"


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        ({"name": "bdSeq", "datatype": 4, "long_value": 5}, 5),
        ({"name": "bdSeq", "datatype": 8, "long_value": 5}, 5),
        ({"name": "bdSeq", "datatype": 3, "int_value": 5}, 5),
        ({"name": "bdSeq", "long_value": 5}, 5),
        ({"name": "bdSeq", "boolean_value": True}, None),
        ({"name": "bdSeq", "string_value": "5"}, None),
        ({"name": "bdSeq", "datatype": 4}, None),
        ({"name": "other", "long_value": 5}, None),
    ],
)
def test_the_bdseq_of_a_birth_or_a_death(metric, found):
    assert bd_seq_of(payload(metric)) == found


def test_a_rebirth_command_has_a_named_metric_a_timestamp_and_no_seq():
    found = decode(rebirth_command(1234))
    (metric,) = found.metrics
    assert (metric.name, metric.boolean_value, metric.datatype) == ("Node Control/Rebirth", True, 11)
    assert not metric.HasField("alias")
    assert (field(found, "timestamp"), field(found, "seq")) == (1234, None)
