"""Avro schemas, and whether data is what one says.

Rules
    - Binary data is one datum and nothing more. JSON is Avro's own encoding, in which a union says its branch; every field is
      there, and no other.
    - The library is fastavro. Whatever it makes of bad data, it means that the data is bad.

Theory of operation
    fastavro reads JSON leniently: it takes a text for a number, passes over fields that it does not know, fills in defaults. So
    what it read is checked against the schema, and written again: it must be what came.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.validation import validate

from seriatim.errors import InvalidArgument

LONGEST_DEFINITION = 300_000
"""Bytes."""


class AvroSchema:
    """A schema that can be checked against."""

    def __init__(self, definition: str) -> None:
        """Raises InvalidArgument when it is no Avro schema."""
        if len(definition.encode("utf-8", "surrogatepass")) > LONGEST_DEFINITION:
            raise InvalidArgument(f"a schema has at most {LONGEST_DEFINITION} bytes")
        try:
            parsed = json.loads(definition)
            if not isinstance(parsed, dict) or parsed.get("type") != "record":
                raise InvalidArgument("a schema is a record: {'type': 'record', 'name': …, 'fields': […]}")
            self._schema = fastavro.parse_schema(parsed)
        except (ValueError, TypeError, KeyError, RecursionError, SchemaParseException, UnknownType) as error:
            raise InvalidArgument(f"the definition is no Avro schema: {error}") from None

    def check_binary(self, data: bytes) -> None:
        """Raise InvalidArgument unless data is one datum, in Avro's binary encoding."""
        stream = io.BytesIO(data)
        try:
            fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # noqa: BLE001 - it raises whatever it stumbles over
            raise _mismatch(error) from None
        if stream.tell() < len(data):
            raise InvalidArgument("the data is not of the topic's schema: something follows the datum")

    def check_json(self, data: bytes) -> None:
        """Raise InvalidArgument unless data is one datum, in Avro's JSON encoding."""
        try:
            text = data.decode()
            (datum,) = fastavro.json_reader(io.StringIO(text), self._schema)
            validate(datum, self._schema)
            is_same = json.loads(text) == json.loads(self._as_json(datum))
        except Exception as error:  # noqa: BLE001 - it raises whatever it stumbles over
            raise _mismatch(error) from None
        if not is_same:
            raise InvalidArgument("the data is not of the topic's schema: fields are missing, or unknown")

    def _as_json(self, datum: Any) -> str:
        written = io.StringIO()
        fastavro.json_writer(written, self._schema, [datum])
        return written.getvalue()


def _mismatch(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"the data is not of the topic's schema: {str(error) or type(error).__name__}")
