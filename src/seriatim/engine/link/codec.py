"""Encodes values as JSON with their bytes apart, by their type hints.

Rules
    - A value is packed into plain JSON. Bytes in it are put aside, and JSON has their number; they are unpacked in the same
      order.
    - Only the hints define the classes: a frozen dataclass is an object with its fields, of which those with defaults may be
      missing and unknown ones are ignored; a NamedTuple is a list.
    - A value that does not match its hint is refused, in both directions. An unsupported hint is refused when its codec is
      created, which is when the program starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from seriatim.core.lanes import types as lane_types
from seriatim.engine import options
from seriatim.errors import InvalidArgument

NAMES = vars(lane_types) | vars(options)
"""Where names in hints are looked up that their own module imports for type checkers only."""


class Blobs:
    """The bytes that were put aside for a frame, to be taken one by one."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0

    def __len__(self) -> int:
        return len(self._data)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._taken:
            raise InvalidArgument(f"{size} bytes were announced and are not there")
        self._taken += size
        return bytes(self._data[self._taken - size : self._taken])


class Packed(NamedTuple):
    """A part of a frame that is encoded elsewhere."""

    json: Any
    blobs: list[bytes] | Blobs


class Codec(NamedTuple):
    pack: Callable[[Any, list[bytes]], Any]
    unpack: Callable[[Any, Blobs], Any]


def codec_of(hint: Any) -> Codec:
    """How values of a type are packed and unpacked."""
    found = _CODECS.get(hint)
    if found is None:
        found = _CODECS[hint] = _make(hint)
    return found


def _make(hint: Any) -> Codec:
    origin = get_origin(hint)
    if origin in {Union, UnionType}:
        return _optional(hint)
    if origin in {list, tuple, Sequence}:
        return _sequence(tuple if origin is tuple else list, get_args(hint)[0])
    if origin in {dict, Mapping}:
        return _mapping(*get_args(hint))
    if origin is Literal:
        return codec_of(type(get_args(hint)[0]))  # whoever gets it looks which one it is
    if isinstance(hint, type):
        return _class(hint)
    raise TypeError(f"{hint!r} can't go over the link")


def _class(kind: type) -> Codec:
    if is_dataclass(kind):
        return _dataclass(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if issubclass(kind, Enum):
        return _enum(kind)
    raise TypeError(f"{kind!r} can't go over the link")


def _enum(kind: type[Enum]) -> Codec:
    def unpack(value: Any, _: object) -> Enum:
        try:
            return kind(value)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None

    return Codec(lambda value, _: unpack(value, None).value, unpack)


def _checked(kind: type, *allowed: type) -> Codec:
    def check(value: Any, _: object) -> Any:
        if type(value) is kind:
            return value
        # A bool is an int to Python, and not to us.
        if not isinstance(value, allowed or kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidArgument(f"{value!r} is not {kind.__name__}")
        return value

    return Codec(check, check)


def _pack_bytes(value: Any, blobs: list[bytes]) -> int:
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{value!r} is not bytes")
    blobs.append(value)
    return len(value)


def _unpack_bytes(value: Any, blobs: Blobs) -> bytes:
    return blobs.take(_INT.unpack(value, blobs))


def _pack_time(value: Any, _: object) -> float:
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{value!r} is not a datetime")
    return value.timestamp()


def _unpack_time(value: Any, blobs: Blobs) -> datetime:
    try:
        return datetime.fromtimestamp(_FLOAT.unpack(value, blobs), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(f"{value!r} is not a time: {error}") from None


def _pack_packed(value: Packed, blobs: list[bytes]) -> Any:
    blobs += value.blobs if isinstance(value.blobs, list) else ()
    return value.json


_INT, _FLOAT = _checked(int), _checked(float, int, float)
_CODECS: dict[Any, Codec] = {
    **{kind: _checked(kind) for kind in (bool, str, NoneType)},
    int: _INT,
    float: _FLOAT,
    bytes: Codec(_pack_bytes, _unpack_bytes),
    datetime: Codec(_pack_time, _unpack_time),
    Packed: Codec(_pack_packed, Packed),
}


def _optional(hint: Any) -> Codec:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if len(kinds) != 1:
        raise TypeError(f"{hint!r} can't go over the link: nothing would say which of the types a value has")
    pack, unpack = codec_of(kinds[0])
    return Codec(
        lambda value, blobs: None if value is None else pack(value, blobs),
        lambda value, blobs: None if value is None else unpack(value, blobs),
    )


def _sequence(kind: Callable[[list[Any]], Any], item: Any) -> Codec:
    pack, unpack = codec_of(item)
    return Codec(
        lambda value, blobs: [pack(one, blobs) for one in value],
        lambda value, blobs: kind([unpack(one, blobs) for one in _list_of(value)]),
    )


def _mapping(key: Any, item: Any) -> Codec:
    pack_key, unpack_key = codec_of(key)
    pack, unpack = codec_of(item)
    return Codec(
        lambda value, blobs: {pack_key(name, blobs): pack(one, blobs) for name, one in value.items()},
        lambda value, blobs: {unpack_key(name, blobs): unpack(one, blobs) for name, one in _object(value).items()},
    )


def _named_tuple(kind: Any) -> Codec:
    hints = get_type_hints(kind, localns=NAMES)
    codecs = [codec_of(hints[name]) for name in kind._fields]
    packs, unpacks = [codec.pack for codec in codecs], [codec.unpack for codec in codecs]
    required = len(codecs) - len(kind._field_defaults)

    def pack(value: Any, blobs: list[bytes]) -> list[Any]:
        return [pack_one(one, blobs) for pack_one, one in zip(packs, value, strict=True)]

    def unpack(value: Any, blobs: Blobs) -> Any:
        found = _list_of(value, required, len(codecs))
        return kind(*[unpack_one(one, blobs) for unpack_one, one in zip(unpacks, found, strict=False)])

    return Codec(pack, unpack)


def _dataclass(kind: Any) -> Codec:
    hints = get_type_hints(kind, localns=NAMES)
    codecs = {field.name: codec_of(hints[field.name]) for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}

    def pack(value: Any, blobs: list[bytes]) -> dict[str, Any]:
        return {name: codec.pack(getattr(value, name), blobs) for name, codec in codecs.items()}

    def unpack(value: Any, blobs: Blobs) -> Any:
        if missing := required - _object(value).keys():
            raise InvalidArgument(f"{kind.__name__} without {', '.join(sorted(missing))}")
        return kind(**{name: codec.unpack(value[name], blobs) for name, codec in codecs.items() if name in value})

    return Codec(pack, unpack)


def _list_of(value: Any, least: int = 0, most: int | None = None) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= (len(value) if most is None else most):
        raise InvalidArgument(f"not a list of the right length: {value!r}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"not an object: {value!r}")
    return value
