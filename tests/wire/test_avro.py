"""Whether data conforms to an Avro schema: the same verdicts as fastavro's, at a bounded cost."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from fastavro.validation import validate

from seriatim.errors import InvalidArgument
from seriatim.wire.avro import MAX_DEFINITION_NESTING, MAX_TYPES, AvroSchema
from seriatim.wire.avro_types import MAX_NESTING, Budget, BudgetSpent

ENOUGH = 1_000_000
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


def record(*types: Any, name: str = "R") -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def schema(*types: Any) -> AvroSchema:
    return AvroSchema(json.dumps(record(*types)))


def conforms(check: Any, data: bytes, values: int = ENOUGH) -> bool:
    try:
        check(data, Budget(values))
    except InvalidArgument:
        return False
    return True


class Generator:
    """Random schemas, and data of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._count = 0

    def schema(self) -> dict[str, Any]:
        return self._record(0)

    def _name(self) -> str:
        self._count += 1
        return f"N{self._count}"

    def _record(self, depth: int) -> dict[str, Any]:
        return record(*(self._type(depth + 1) for _ in range(self.chance.randrange(1, 5))), name=self._name())

    def _type(self, depth: int) -> Any:
        makers: list[Callable[[], Any]] = [lambda: self.chance.choice(PRIMITIVES)] * 3
        makers.append(lambda: {"type": "enum", "name": self._name(), "symbols": ["a", "b", "c"]})
        makers.append(lambda: {"type": "fixed", "name": self._name(), "size": self.chance.randrange(4)})
        if depth < 4:
            makers.append(lambda: self._array(depth))
            makers.append(lambda: {"type": "map", "values": self._type(depth + 1)})
            makers.append(lambda: self._record(depth))
            makers.append(lambda: ["null", "string", self._record(depth), self._array(depth)])
        return self.chance.choice(makers)()

    def _array(self, depth: int) -> dict[str, Any]:
        """Its items are never without a byte: fastavro must end at the end of data, whatever an array announces."""
        return {"type": "array", "items": record("int", self._type(depth + 1), name=self._name())}

    def datum(self, kind: Any) -> Any:
        if isinstance(kind, list):
            branch = self.chance.choice(kind)
            return self._in_union(branch, self.datum(branch))
        if isinstance(kind, str):
            return self._primitive(kind)
        return getattr(self, f"_a_{kind['type']}")(kind)

    def _in_union(self, branch: Any, datum: Any) -> Any:
        """Say which branch is meant where fastavro could guess wrong."""
        return (branch["name"], datum) if isinstance(branch, dict) and branch["type"] == "record" else datum

    def _a_record(self, kind: Any) -> Any:
        return {field["name"]: self.datum(field["type"]) for field in kind["fields"]}

    def _a_enum(self, kind: Any) -> str:
        return str(self.chance.choice(kind["symbols"]))

    def _a_fixed(self, kind: Any) -> bytes:
        return self.chance.randbytes(kind["size"])

    def _a_array(self, kind: Any) -> Any:
        return [self.datum(kind["items"]) for _ in range(self.chance.randrange(4))]

    def _a_map(self, kind: Any) -> Any:
        return {f"ü{number}": self.datum(kind["values"]) for number in range(self.chance.randrange(4))}

    def _primitive(self, kind: str) -> Any:
        chance = self.chance
        return {
            "null": lambda: None,
            "boolean": lambda: chance.random() < 0.5,
            "int": lambda: chance.choice([0, -1, 63, 64, 2**31 - 1, -(2**31), chance.randrange(-(2**31), 2**31)]),
            "long": lambda: chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(-(2**63), 2**63)]),
            "float": lambda: chance.choice([0.5, -2.0, 1024.0]),
            "double": lambda: chance.choice([0.1, -1e300, 3.0]),
            "bytes": lambda: chance.randbytes(chance.randrange(5)),
            "string": lambda: chance.choice(["", "abc", "ü", "😀" * 9]),
        }[kind]()


def binary(kind: Any, datum: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, kind, datum)
    return written.getvalue()


def read_back(kind: Any, data: bytes) -> bool:
    """Whether fastavro reads data as one valid datum, and would write the same bytes: its reader alone takes too much."""
    stream = io.BytesIO(data)
    try:
        datum = fastavro.schemaless_reader(stream, kind, None, return_record_name=True)
        return stream.tell() == len(data) and binary(kind, datum) == data and bool(validate(datum, kind))
    except Exception:  # noqa: BLE001 - it raises whatever it stumbles over
        return False


def test_whatever_fastavro_writes_conforms_in_both_encodings():
    for seed in range(200):
        generator = Generator(seed)
        kind = generator.schema()
        avro, datum = AvroSchema(json.dumps(kind)), generator.datum(kind)
        text = io.StringIO()
        fastavro.json_writer(text, kind, [datum])
        assert conforms(avro.check_binary, binary(kind, datum)), (kind, datum)
        assert conforms(avro.check_json, text.getvalue().encode()), (kind, datum)


def test_verdicts_on_damaged_data_are_those_of_fastavro():
    """What it reads and would write again so conforms. What conforms it reads to the end."""
    verdicts = []
    for seed in range(300):
        generator = Generator(seed)
        kind = generator.schema()
        avro, data = AvroSchema(json.dumps(kind)), bytearray(binary(kind, generator.datum(kind)))
        for _ in range(5):
            damaged = damage(generator.chance, data)
            verdicts.append(conforms(avro.check_binary, damaged, 2**70))
            if verdicts[-1]:
                stream = io.BytesIO(damaged)
                fastavro.schemaless_reader(stream, kind, None)
                assert stream.tell() == len(damaged), (kind, damaged)
            else:
                assert not read_back(kind, damaged), (kind, damaged)
    assert 50 < sum(verdicts) < len(verdicts) - 50, "the cases are worth something"


def damage(chance: random.Random, data: bytearray) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.randrange(3)):
        if damaged:
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged[: chance.choice([None, None, -1])]) + chance.choice([b"", b"", b"\x00"])


LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]}


def test_a_recursive_schema_takes_data_up_to_a_depth_and_crashes_nothing():
    avro = AvroSchema(json.dumps(LIST))
    nodes = MAX_NESTING // 2
    assert conforms(avro.check_binary, b"\x02" * (nodes - 1) + b"\x00")
    assert not conforms(avro.check_binary, b"\x02" * (nodes + 1) + b"\x00")
    assert not conforms(avro.check_binary, b"\x02" * 5_000_000 + b"\x00")
    node = b'{"next": {"List": ' * (nodes - 1) + b'{"next": null}' + b"}}" * (nodes - 1)
    assert conforms(avro.check_json, node)
    for deep in (nodes + 1, 100_000):
        assert not conforms(avro.check_json, b'{"next": {"List": ' * deep + b'{"next": null}' + b"}}" * deep)


def zigzag(number: int) -> bytes:
    encoded, rest = bytearray(), number << 1 if number >= 0 else (-number << 1) - 1
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


@pytest.mark.parametrize("items", ["null", {"type": "fixed", "name": "F", "size": 0}, record(name="Empty")])
def test_an_array_that_announces_more_items_than_anybody_can_read_is_refused_at_once(items):
    avro = schema({"type": "array", "items": items})
    for count in (10**15, -(10**15)):
        with pytest.raises(BudgetSpent):
            avro.check_binary(zigzag(count) + zigzag(0) * 2, Budget(ENOUGH))
    assert conforms(avro.check_binary, zigzag(1000) + zigzag(0))


def test_records_that_double_at_every_level_are_refused_when_the_budget_is_spent():
    kind: Any = record(name="D0")
    for level in range(1, 41):
        inner = kind if level == 1 else f"D{level - 1}"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": inner}]
        if level == 1:
            fields[1]["type"] = "D0"
        kind = {"type": "record", "name": f"D{level}", "fields": fields}
    avro = AvroSchema(json.dumps(kind))
    with pytest.raises(BudgetSpent):
        avro.check_binary(b"", Budget(100_000))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("int", zigzag(2**31)),
        ("long", b"\xff" * 10 + b"\x01"),
        ("long", b"\xff" * 9 + b"\x7f"),
        ("boolean", b"\x02"),
        ("bytes", zigzag(-1)),
        ("bytes", zigzag(2**62)),
        ("string", zigzag(1) + b"\xff"),
        (["null", "int"], zigzag(2)),
        (["null", "int"], zigzag(-1)),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, zigzag(1)),
        ({"type": "map", "values": "null"}, zigzag(1) + zigzag(1) + b"\xff" + zigzag(0)),
    ],
)
def test_binary_data_that_conforms_to_nothing(kind, data):
    assert not conforms(schema(kind).check_binary, data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "2147483648"),
        ("int", "7.0"),
        ("int", "true"),
        ("double", "NaN"),
        ("double", "1e999"),
        ("float", "1e39"),
        ("bytes", '"\\u0100"'),
        ("string", '"\\ud800"'),
        (["null", "int"], '{"null": null}'),
        (["null", "int"], '{"int": 1, "null": null}'),
        (["int", "string"], "null"),
        ({"type": "fixed", "name": "F", "size": 2}, '"a"'),
        ({"type": "map", "values": "int"}, "[]"),
        ("int", "1" * 5000),
    ],
)
def test_json_that_conforms_to_nothing(kind, value):
    assert not conforms(schema(kind).check_json, f'{{"f0": {value}}}'.encode())


def nested(levels: int) -> Any:
    kind: Any = "null"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


@pytest.mark.parametrize(
    "definition",
    [
        json.dumps(record(nested(MAX_DEFINITION_NESTING))),
        '{"type": "record", "name": "R", "fields": ' + "[" * 100_000,
        json.dumps(record(*["int"] * MAX_TYPES)),
        json.dumps({**record("int"), "__fastavro_parsed": True, "__named_schemas": {}}),
        json.dumps(record({"type": "fixed", "name": "F", "size": "1"})),
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}),
    ],
    ids=["nested", "unclosed", "many", "marked", "no size", "twice"],
)
def test_definitions_that_are_refused(definition):
    with pytest.raises(InvalidArgument) as refused:
        AvroSchema(definition)
    assert len(refused.value.message) < 500


def test_a_definition_as_nested_as_it_may_be_is_parsed():
    avro = schema(nested(MAX_DEFINITION_NESTING - 4))
    assert conforms(avro.check_binary, b"\x00")


def test_the_data_that_ends_a_process_that_reads_it_with_fastavro_is_refused_here():
    """What this module is for: a process of its own, because it might not survive."""
    program = (
        "import json, tests.wire.test_avro as t\n"
        "avro = t.AvroSchema(json.dumps(t.LIST))\n"
        "print(t.conforms(avro.check_binary, bytes([2]) * 1_000_000))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "False\n"
