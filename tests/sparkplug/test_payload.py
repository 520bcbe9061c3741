"""What the bytes of a payload mean."""

from __future__ import annotations

import gzip
import json
import math
import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seriatim.core.edge_messages import Kind
from seriatim.errors import InvalidArgument
from seriatim.sparkplug.payload import (
    COMPRESSED,
    MAX_BYTES,
    Aliases,
    Payload,
    bd_seq_of,
    decode,
    field,
    metrics_as_json,
    rebirth_command,
)


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
    with pytest.raises(InvalidArgument, match="no Sparkplug payload"):
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
        (b"not compressed", "is none"),
        (zlib.compress(b"x" * 1000)[:-3], "cut off"),
        (zlib.compress(bytes(MAX_BYTES + 1)), "longer than"),
        (zlib.compress(b"\xff"), "no Sparkplug payload"),
    ],
)
def test_what_is_said_to_be_compressed_and_is_not_or_is_a_bomb_is_refused(body, said):
    with pytest.raises(InvalidArgument, match=said):
        decode(compressed(body))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else_happens(data):
    try:
        found = decode(data)
    except InvalidArgument:
        return
    json.dumps(metrics_as_json(found, Aliases(), None)[0], allow_nan=False)
    bd_seq_of(found)


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
