"""Avro schemas, and whether data conforms to one.

Rules
    - Binary data is exactly one datum. JSON is in Avro's own encoding, in which a union names its branch; every field is
      present, and no other.
    - The input comes from publishers, so everything is bounded: the size, nesting and number of types of a definition, and how
      many values of the data are examined (``avro_types``).

Theory of operation
    fastavro parses definitions, because it implements the rules of names. It does not read data: its reader trusts the sizes
    that data announces and recurses on the C stack, so a small message could crash the process or keep it busy for ever. We
    only need to know whether data conforms, so our own types walk over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from seriatim.errors import InvalidArgument
from seriatim.wire.avro_types import PRIMITIVES, Array, AvroType, Budget, Enum, Fixed, Map, Mismatch, Record, Union

MAX_DEFINITION_BYTES = 300_000
MAX_DEFINITION_NESTING = 200
"""Levels of JSON; a record inside a record is three of them."""

MAX_TYPES = 10_000
"""Types and fields in a definition."""

MAX_ERROR_LENGTH = 300

_RESERVED = frozenset({"__fastavro_parsed", "__named_schemas"})
"""Members by which fastavro knows what it has parsed itself, and would believe."""


class AvroSchema:
    """A schema that checks data."""

    def __init__(self, definition: str) -> None:
        """Raises InvalidArgument if it is not an Avro schema, or too large."""
        if len(definition.encode("utf-8", "surrogatepass")) > MAX_DEFINITION_BYTES:
            raise InvalidArgument(f"a schema has at most {MAX_DEFINITION_BYTES} bytes")
        try:
            parsed = json.loads(definition)
            if not isinstance(parsed, dict) or parsed.get("type") != "record":
                raise InvalidArgument("a schema is a record: {'type': 'record', 'name': …, 'fields': […]}")
            _require_bounded(parsed)
            self._type = _Compiler().type_of(fastavro.parse_schema(parsed))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _no_schema(error) from None
        except (SchemaParseException, UnknownType) as error:
            raise _no_schema(error) from None

    def check_binary(self, data: bytes, budget: Budget) -> None:
        """Raise InvalidArgument unless data is one datum in Avro's binary encoding; BudgetSpent when that takes too much."""
        try:
            end = self._type.skip(data, 0, budget, 0)
        except IndexError:
            raise _mismatch("it ends in the middle of a value") from None
        except Mismatch as error:
            raise _mismatch(error) from None
        if end < len(data):
            raise _mismatch("something follows the datum")

    def check_json(self, data: bytes, budget: Budget) -> None:
        """Raise InvalidArgument unless data is one datum in Avro's JSON encoding; BudgetSpent when that takes too much."""
        try:
            self._type.check(json.loads(data.decode(), parse_constant=_refuse_constant), budget, 0)
        except (ValueError, RecursionError, Mismatch) as error:
            raise _mismatch(error) from None


class _Compiler:
    """Makes types of what fastavro parsed, in which every name is a full one and defined before it is used."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type_of(self, schema: Any) -> AvroType:
        if isinstance(schema, str):
            return PRIMITIVES.get(schema) or self._named[schema]
        if isinstance(schema, list):
            return Union([self.type_of(branch) for branch in schema])
        kind = schema["type"]
        if kind == "array":
            return Array(self.type_of(schema["items"]))
        if kind == "map":
            return Map(self.type_of(schema["values"]))
        return PRIMITIVES.get(kind) or self._define(kind, schema)

    def _define(self, kind: str, schema: Any) -> AvroType:
        name = schema["name"]
        if kind == "enum":
            self._named[name] = Enum(name, schema["symbols"])
        elif kind == "fixed":
            self._named[name] = Fixed(name, _size(schema["size"]))
        else:
            record = self._named[name] = Record(name)
            record.set_fields(self._fields(schema["fields"]))
        return self._named[name]

    def _fields(self, fields: Any) -> dict[str, AvroType]:
        found: dict[str, AvroType] = {}
        for field in fields:
            if not isinstance(field["name"], str) or field["name"] in found:
                raise ValueError(f"field {str(field['name'])[:40]!r} occurs twice, or its name is not a string")
            found[field["name"]] = self.type_of(field["type"])
        return found


def _size(size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError("the size of a fixed is a number of bytes")
    return size


def _require_bounded(definition: Any) -> None:
    """Check the limits of a definition before anything recurses into it."""
    level, types = [definition], 0
    for _ in range(MAX_DEFINITION_NESTING):
        if not level:
            return
        types += len(level)
        if types > MAX_TYPES:
            raise InvalidArgument(f"a schema has at most {MAX_TYPES} types and fields")
        level = [inner for outer in level for inner in _containers_in(outer)]
    raise InvalidArgument(f"a schema is nested at most {MAX_DEFINITION_NESTING} levels deep")


def _containers_in(outer: Any) -> Iterator[Any]:
    if isinstance(outer, dict):
        if reserved := _RESERVED & outer.keys():
            raise InvalidArgument(f"a schema can't have a member {min(reserved)!r}")
        outer = outer.values()
    return (inner for inner in outer if isinstance(inner, dict | list))


def _refuse_constant(name: str) -> Any:
    raise Mismatch(f"{name} is not JSON")


def _no_schema(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"the definition is not an Avro schema: {_brief(error)}")


def _mismatch(error: Exception | str) -> InvalidArgument:
    return InvalidArgument(f"the data does not match the topic's schema: {_brief(error)}")


def _brief(error: Exception | str) -> str:
    return (str(error) or type(error).__name__)[:MAX_ERROR_LENGTH]
