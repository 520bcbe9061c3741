"""Captured MQTT messages, row by row: what can be read, and what is said of the rest. No Spark is started."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from typing import Any

import pytest

from seriatim.sparkplug.captures import NOT_OURS, Read, read_row
from seriatim.sparkplug.payload import COMPRESSED, MAX_BYTES, Payload


def payload(**fields: Any) -> bytes:
    metrics = fields.pop("metrics", ())
    found = Payload(**fields)
    for metric in metrics:
        found.metrics.add(**metric)
    data: bytes = found.SerializeToString()
    return data


BD_SEQ = {"name": "bdSeq", "datatype": 4, "long_value": 7}
BIRTH = payload(seq=0, timestamp=100, metrics=[BD_SEQ, {"name": "rpm", "alias": 5, "datatype": 3, "int_value": 40}])


def test_a_birth_is_read_with_its_session_its_names_and_their_aliases():
    found = read_row(b"spBv1.0/plant/NBIRTH/pump", BIRTH)
    assert found[:6] == ("plant/pump", "NBIRTH", None, 0, 7, 100)
    assert found.problem is None
    assert json.loads(found.metrics or "") == [
        {"name": "bdSeq", "type": "Int64", "value": 7},
        {"name": "rpm", "type": "Int32", "value": 40, "alias": 5},
    ]


def test_data_of_a_device_keeps_its_alias_because_no_other_row_is_known():
    data = payload(seq=3, timestamp=120, metrics=[{"alias": 5, "datatype": 3, "int_value": 2**32 - 1}])
    found = read_row("spBv1.0/plant/DDATA/pump/rotor ü".encode(), data)
    assert found[:6] == ("plant/pump", "DDATA", "rotor ü", 3, None, 120)
    assert json.loads(found.metrics or "") == [{"alias": 5, "type": "Int32", "value": -1}]


def test_a_death_has_no_seq_and_what_is_absent_is_not_a_zero():
    death = payload(seq=9, metrics=[BD_SEQ])
    assert read_row(b"spBv1.0/plant/NDEATH/pump", death)[:6] == ("plant/pump", "NDEATH", None, None, 7, None)
    assert read_row(b"spBv1.0/plant/NDATA/pump", b"") == Read("plant/pump", "NDATA", metrics="[]")


def test_a_compressed_payload_is_the_one_within():
    outer = payload(uuid=COMPRESSED, body=zlib.compress(BIRTH))
    assert read_row(b"spBv1.0/plant/NBIRTH/pump", outer) == read_row(b"spBv1.0/plant/NBIRTH/pump", BIRTH)


def test_a_group_may_be_named_state():
    assert read_row(b"spBv1.0/STATE/NBIRTH/pump", BIRTH)[:2] == ("STATE/pump", "NBIRTH")


@pytest.mark.parametrize(
    ("topic", "data", "node", "problem"),
    [
        (None, BIRTH, None, "it has no topic"),
        (b"spBv1.0/plant/NDATA/pump", None, None, "it has no payload"),
        (b"spBv1.0/plant/NDATA/\xff", BIRTH, None, "its topic is not text"),
        (b"house/kitchen", BIRTH, None, "topic 'house/kitchen' is not a Sparkplug topic"),
        (b"spBv1.0/plant/DDATA/pump", BIRTH, None, "is not a Sparkplug topic: 'DDATA' with 4 levels"),
        (b"spBv1.0/plant/NDATA/#", BIRTH, None, "edge node id '#' is not a Sparkplug id"),
        (b"spBv1.0/plant/NDATA/pump", b"\x08", "plant/pump", "this is not a Sparkplug payload"),
        (b"spBv1.0/plant/NDATA/pump", bytes(MAX_BYTES + 1), "plant/pump", "longer than"),
        (b"spBv1.0/plant/NDATA/pump", payload(seq=2**64 - 1), "plant/pump", f"its seq is {2**64 - 1}, more than"),
        (b"spBv1.0/plant/NDATA/pump", payload(seq=1, timestamp=2**63), "plant/pump", f"its timestamp is {2**63}, more"),
        (b"spBv1.0/plant/NCMD/pump", BIRTH, None, NOT_OURS),
        (b"spBv1.0/STATE/scada", b'{"online": true}', None, NOT_OURS),
    ],
)
def test_what_can_not_be_read_says_why(topic, data, node, problem):
    found = read_row(topic, data)
    assert found == Read(node=node, problem=found.problem)
    assert found.problem is not None
    assert problem in found.problem


@pytest.mark.parametrize(("lacking", "extra"), [("pyspark", "spark"), ("google.protobuf", "mqtt")])
def test_without_its_libraries_the_extra_to_install_is_named(lacking, extra):
    program = f"import sys; sys.modules[{lacking!r}] = None; import seriatim.sparkplug.captures"
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"needs the extra '{extra}': pip install 'seriatim[{extra}]'" in failed.stderr.splitlines()[-1]
