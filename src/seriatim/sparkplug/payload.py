"""Decoding and encoding Sparkplug payloads.

The schema below states the facts of the wire format (names, numbers, types) in a table of our own. The message classes are
built from it when this module is loaded, in a separate descriptor pool, so that nothing is generated or vendored and another
copy of the schema in the same program does no harm.

Rules
    - Malformed payloads, and payloads of more than ``MAX_BYTES``, raise InvalidArgument. So do payloads of more than
      ``MAX_PARTS`` parts, because a few compressed bytes can contain very many empty metrics.
    - Invalid UTF-8 does not make a payload unreadable: the invalid bytes become ``\\xNN``.
    - A payload may contain another one, compressed (indicated by its uuid): then the inner one counts. If it lacks seq or
      timestamp, those of the outer one apply.
    - An absent field is None, never zero.
    - A metric is identified by its name or, in data, by an alias assigned in the births of its session (``Aliases``).
    - Signed integers are transmitted as unsigned ones of 32 or 64 bits, and converted back.
    - Values become JSON: bytes as base64, arrays as lists, numbers that JSON lacks (NaN, infinities) as text.

Sparkplug's array types are packed into bytes (the specification's section on array types)
    - Numbers are little-endian, each as wide as its type. A date is 64 bits of milliseconds.
    - Booleans: their count in 32 bits, then one bit each, the highest of a byte first.
    - Strings are UTF-8, each terminated by a zero byte.
    - Bytes that don't fit their type, or more than ``MAX_ITEMS`` items, are not an array: ``unpack_array`` returns None, and
      the value stays bytes.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from math import isfinite
from typing import Any

from seriatim.core.sparkplug.messages import Kind
from seriatim.errors import InvalidArgument
from seriatim.extras import require_extra

require_extra("mqtt", "google.protobuf", what="reading Sparkplug payloads")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402
from google.protobuf.message import DecodeError, Message  # noqa: E402

__all__ = ["Payload", "decode"]

MAX_BYTES = 4 * 1024 * 1024
MAX_PARTS = 65_536
"""The limit for metrics, properties, rows, cells and so on in a payload, all together. Protobuf limits their nesting."""
BD_SEQ = "bdSeq"
REBIRTH = "Node Control/Rebirth"
COMPRESSED = "SPBV1.0_COMPRESSED"
_UNREADABLE = (DecodeError, UnicodeDecodeError)  # the latter from protobuf's implementation in Python
_SCALARS = (int, float, str, bytes)  # and bool, which is an int
_ZLIB_OR_GZIP = zlib.MAX_WBITS + 32  # whichever its header says; the algorithm is named in a metric, too

# One message a line: field number, name and type, with * for a repeated field and | for a member of the oneof "value".
_SCHEMA = {
    "Payload": "1 timestamp uint64, 2 metrics *Metric, 3 seq uint64, 4 uuid string, 5 body bytes",
    "Metric": (
        "1 name string, 2 alias uint64, 3 timestamp uint64, 4 datatype uint32, 5 is_historical bool, 6 is_transient bool, "
        "7 is_null bool, 8 metadata MetaData, 9 properties PropertySet, 10 int_value |uint32, 11 long_value |uint64, "
        "12 float_value |float, 13 double_value |double, 14 boolean_value |bool, 15 string_value |string, "
        "16 bytes_value |bytes, 17 dataset_value |DataSet, 18 template_value |Template"
    ),
    "MetaData": (
        "1 is_multi_part bool, 2 content_type string, 3 size uint64, 4 seq uint64, 5 file_name string, "
        "6 file_type string, 7 md5 string, 8 description string"
    ),
    "PropertySet": "1 keys *string, 2 values *PropertyValue",
    "PropertySetList": "1 propertyset *PropertySet",
    "PropertyValue": (
        "1 type uint32, 2 is_null bool, 3 int_value |uint32, 4 long_value |uint64, 5 float_value |float, "
        "6 double_value |double, 7 boolean_value |bool, 8 string_value |string, 9 propertyset_value |PropertySet, "
        "10 propertysets_value |PropertySetList"
    ),
    "DataSet": "1 num_of_columns uint64, 2 columns *string, 3 types *uint32, 4 rows *Row",
    "Row": "1 elements *Element",
    "Element": (
        "1 int_value |uint32, 2 long_value |uint64, 3 float_value |float, 4 double_value |double, "
        "5 boolean_value |bool, 6 string_value |string"
    ),
    "Template": (
        "1 version string, 2 metrics *Metric, 3 parameters *Parameter, 4 template_ref string, 5 is_definition bool"
    ),
    "Parameter": (
        "1 name string, 2 type uint32, 3 int_value |uint32, 4 long_value |uint64, 5 float_value |float, "
        "6 double_value |double, 7 boolean_value |bool, 8 string_value |string"
    ),
}

_PACKAGE = "seriatim.sparkplug"


def _make_payload_class(text: str) -> Any:
    """The message class of a payload whose texts are strings or bytes in Python; the wire format is the same."""
    file = descriptor_pb2.FileDescriptorProto(name="seriatim/sparkplug.proto", package=_PACKAGE, syntax="editions")
    file.edition = descriptor_pb2.EDITION_2023  # fields may be absent, as Sparkplug's may, and texts are checked
    file.options.features.repeated_field_encoding = descriptor_pb2.FeatureSet.EXPANDED
    for name, fields in _SCHEMA.items():
        _describe(file.message_type.add(name=name), fields, text)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Payload"))


def _describe(message: Any, fields: str, text: str) -> None:
    for line in fields.split(", "):
        number, name, kind = line.split(" ")
        field = message.field.add(name=name, number=int(number))
        field.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
        if kind.startswith("|"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="value")
            field.oneof_index = 0
        kind = kind.lstrip("*|")
        if kind in _SCHEMA:
            field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        else:
            field.type = getattr(field, f"TYPE_{(text if kind == 'string' else kind).upper()}")


Payload: Any = _make_payload_class("string")
"""The message class of a whole payload."""

_Unchecked: Any = _make_payload_class("bytes")
"""The same, with texts as raw bytes."""

_TYPE_NAMES = (
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean", "String"),
    *("DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList"),
    *("Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array"),
    *("FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
)
TYPES = dict(enumerate(_TYPE_NAMES, start=1))
"""The names of the data types by their numbers."""
INT64, BOOLEAN = 4, 11

_SIGNED_BITS = {1: 8, 2: 16, 3: 32, 4: 64}


# -- reading --------------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> Any:
    """Decode a payload."""
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"a payload of {len(data)} bytes is longer than {MAX_BYTES}")
    found = _parse(data)
    return _inner(found) if found.uuid == COMPRESSED else found


def _parse(data: bytes) -> Any:
    try:
        found = Payload.FromString(data)
    except _UNREADABLE:
        found = _parse_with_wrong_text(data)
    if len(data) > MAX_PARTS:  # a part has a byte at least, so shorter ones need not be counted
        _room_left(found, MAX_PARTS)
    return found


def _parse_with_wrong_text(data: bytes) -> Any:
    """Parse a payload that failed to parse, with its invalid texts corrected."""
    try:
        found = _Unchecked.FromString(data)
        _correct_texts(found)
        return Payload.FromString(found.SerializeToString())
    except _UNREADABLE as error:
        raise InvalidArgument(f"this is not a Sparkplug payload ({error})") from error


def _correct_texts(message: Any) -> None:
    types = Payload.DESCRIPTOR.file.message_types_by_name[message.DESCRIPTOR.name].fields_by_name
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value,) if isinstance(value, Message) else value:
                _correct_texts(part)
        elif types[field.name].type != field.TYPE_STRING:
            continue
        elif isinstance(value, bytes):
            setattr(message, field.name, _correct(value))
        else:
            value[:] = map(_correct, value)


def _correct(text: bytes) -> bytes:
    return text.decode("utf-8", "backslashreplace").encode()


def _room_left(message: Any, room: int) -> int:
    """How many more parts are allowed after those of this message; InvalidArgument if there are too many."""
    for field, value in message.ListFields():
        parts: Any = ()
        if isinstance(value, Message):
            parts = (value,)
        elif not isinstance(value, _SCALARS):
            parts = value
            room -= len(parts)
        if room < 0:
            raise InvalidArgument(f"a payload has more than {MAX_PARTS} metrics, properties, rows, cells and so on")
        if field.message_type is not None:
            for part in parts:
                room = _room_left(part, room)
    return room


def _inner(outer: Any) -> Any:
    inflate = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        data = inflate.decompress(outer.body, MAX_BYTES)
    except zlib.error as error:
        raise InvalidArgument(f"the payload is marked as compressed, but can't be decompressed ({error})") from error
    if not inflate.eof:
        raise InvalidArgument(f"a compressed payload is cut off, or longer than {MAX_BYTES} bytes")
    inner = _parse(data)
    for name in ("seq", "timestamp"):
        if not inner.HasField(name) and outer.HasField(name):
            setattr(inner, name, getattr(outer, name))
    return inner


def field(message: Any, name: str) -> Any:
    """The value of a field, or None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def bd_seq_of(payload: Any) -> int | None:
    """The bdSeq of a birth or death, or None."""
    for metric in payload.metrics:
        if metric.name == BD_SEQ:
            value = _plain_value(metric, field(metric, "datatype") or INT64)
            return value if isinstance(value, int) and not isinstance(value, bool) else None
    return None


class Aliases:
    """The aliases and types of metrics from the births of one session. Aliases are unique over a node and its devices."""

    def __init__(self) -> None:
        self._by_alias: dict[int, tuple[str, int | None]] = {}
        self._types: dict[tuple[str | None, str], int] = {}
        self._epoch: int | None = None

    def enter(self, epoch: int) -> None:
        """Forget everything of other epochs: a birth may have been lost in between."""
        if epoch != self._epoch:
            self.forget()
            self._epoch = epoch

    def learn(self, kind: Kind, device: str | None, payload: Any) -> None:
        """Read a birth. An NBIRTH begins a session, in which nothing of an earlier one is valid."""
        if kind is Kind.NBIRTH:
            self.forget()
        if kind not in (Kind.NBIRTH, Kind.DBIRTH):
            return
        for metric in payload.metrics:
            if not metric.name:
                continue
            datatype = field(metric, "datatype")
            if metric.HasField("alias"):
                self._by_alias[metric.alias] = (metric.name, datatype)
            if datatype is not None:
                self._types[device, metric.name] = datatype

    def forget(self) -> None:
        self._by_alias.clear()
        self._types.clear()

    def name_and_type(self, device: str | None, metric: Any) -> tuple[str | None, int | None]:
        """The name and type of a metric, from itself or from its birth."""
        name: str | None = metric.name
        datatype: int | None = metric.datatype if metric.HasField("datatype") else None
        if not name and metric.HasField("alias"):
            name, known = self._by_alias.get(metric.alias, (None, None))
            datatype = known if datatype is None else datatype
        if datatype is None and name:
            datatype = self._types.get((device, name))
        return name or None, datatype


def metrics_as_json(payload: Any, aliases: Aliases, device: str | None) -> tuple[list[dict[str, Any]], int]:
    """The metrics of a payload, and how many of them have an unknown alias."""
    metrics, unknown = [], 0
    for metric in payload.metrics:
        name, datatype = aliases.name_and_type(device, metric)
        unknown += name is None
        metrics.append(_metric_as_json(metric, name, datatype))
    return metrics, unknown


def _metric_as_json(metric: Any, name: str | None, datatype: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name} if name is not None else {"alias": field(metric, "alias")}
    if datatype is not None:
        found["type"] = TYPES.get(datatype, str(datatype))
    if metric.HasField("timestamp"):
        found["timestamp"] = metric.timestamp
    found["value"] = None if metric.is_null else value_as_json(metric, datatype)
    if metric.is_historical:
        found["historical"] = True
    if metric.is_transient:
        found["transient"] = True
    if metric.HasField("metadata"):
        found["metadata"] = {part.name: value for part, value in metric.metadata.ListFields()}
    if metric.HasField("properties"):
        found["properties"] = _properties_as_json(metric.properties)
    return found


def value_as_json(holder: Any, datatype: int | None) -> Any:
    """The value of a metric, a property, a parameter or a cell."""
    value = _plain_value(holder, datatype)
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, bytes):
        items = unpack_array(value, TYPES.get(datatype or 0, ""))
        return base64.b64encode(value).decode() if items is None else items
    if value is None or isinstance(value, bool | int | str):
        return value
    return _NESTED[type(value).DESCRIPTOR.name](value)


def _plain_value(holder: Any, datatype: int | None) -> Any:
    which = holder.WhichOneof("value")
    if which is None:
        return None
    value = getattr(holder, which)
    bits = _SIGNED_BITS.get(datatype or 0)
    if bits and which in ("int_value", "long_value"):
        # Short types are sent in 32 bits, sign-extended by some senders and truncated by others: the low bits are right.
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value


def _properties_as_json(properties: Any) -> dict[str, Any]:
    pairs = zip(properties.keys, properties.values, strict=False)
    return {key: None if value.is_null else value_as_json(value, value.type) for key, value in pairs}


def _dataset_as_json(dataset: Any) -> dict[str, Any]:
    types = list(dataset.types)
    rows = [
        [value_as_json(cell, types[at] if at < len(types) else None) for at, cell in enumerate(row.elements)]
        for row in dataset.rows
    ]
    names = [TYPES.get(number, str(number)) for number in types]
    return {"columns": list(dataset.columns), "types": names, "rows": rows}


def _template_as_json(template: Any) -> dict[str, Any]:
    return {
        "template": field(template, "template_ref"),
        "version": field(template, "version"),
        "definition": template.is_definition,
        "parameters": {each.name: value_as_json(each, each.type) for each in template.parameters},
        "metrics": [_metric_as_json(each, field(each, "name"), field(each, "datatype")) for each in template.metrics],
    }


_NESTED: Mapping[str, Any] = {
    "DataSet": _dataset_as_json,
    "Template": _template_as_json,
    "PropertySet": _properties_as_json,
    "PropertySetList": lambda found: [_properties_as_json(each) for each in found.propertyset],
}


# -- writing --------------------------------------------------------------------------------------------------------------


def rebirth_command(timestamp: int) -> bytes:
    """The payload of an NCMD that requests a rebirth: by name, without alias and seq."""
    payload = Payload(timestamp=timestamp)
    payload.metrics.add(name=REBIRTH, timestamp=timestamp, datatype=BOOLEAN, boolean_value=True)
    data: bytes = payload.SerializeToString()
    return data


MAX_ITEMS = 65_536
"""The longest array that becomes a list: as JSON it is many times its size."""

_FORMATS = {
    "Int8Array": "b",
    "Int16Array": "h",
    "Int32Array": "i",
    "Int64Array": "q",
    "UInt8Array": "B",
    "UInt16Array": "H",
    "UInt32Array": "I",
    "UInt64Array": "Q",
    "FloatArray": "f",
    "DoubleArray": "d",
    "DateTimeArray": "q",
}
_COUNT_BYTES = 4


def unpack_array(data: bytes, type_name: str) -> list[int | float | bool | str] | None:
    """The items, ready for JSON; None if the bytes are not an array of that type."""
    if type_name in _FORMATS:
        return _numbers(data, _FORMATS[type_name])
    if type_name == "BooleanArray":
        return _booleans(data)
    return _texts(data) if type_name == "StringArray" else None


def _numbers(data: bytes, code: str) -> list[int | float | bool | str] | None:
    count, rest = divmod(len(data), struct.calcsize(f"<{code}"))
    if rest or count > MAX_ITEMS:
        return None
    numbers = struct.unpack(f"<{count}{code}", data)
    return [number if isfinite(number) else str(number) for number in numbers]


def _booleans(data: bytes) -> list[int | float | bool | str] | None:
    if len(data) < _COUNT_BYTES:
        return None
    count, bits = int.from_bytes(data[:_COUNT_BYTES], "little"), data[_COUNT_BYTES:]
    if count > MAX_ITEMS or len(bits) != (count + 7) // 8:
        return None
    return [bool(bits[number // 8] & 0x80 >> number % 8) for number in range(count)]


def _texts(data: bytes) -> list[int | float | bool | str] | None:
    if data and not data.endswith(b"\0"):
        return None
    parts = data.split(b"\0")[:-1]
    if len(parts) > MAX_ITEMS:
        return None
    return [part.decode("utf-8", "backslashreplace") for part in parts]
