"""Avro's types: does data conform to one, in the binary or in the JSON encoding?

Rules
    - Nothing is decoded into values. The cost of walking over data is limited by the budget, regardless of what the data
      announces: an array of 10¹⁵ items without a byte is refused before the first one is examined.
    - Nesting is bounded as well, so that recursive schemas can be used and can't exhaust the stack.
    - What is accepted here can be read by any Avro library. Numbers are in range, texts are UTF-8.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

MAX_NESTING = 200
"""How deeply the values of a message may be nested; a record in a union in an array is three levels."""

INT_BITS, LONG_BITS = 32, 64
MAX_FLOAT = (2 - 2**-23) * 2.0**127
_MAX_LONG_SHIFT = 63


class Mismatch(Exception):
    """Data does not conform to a type."""


class BudgetSpent(Exception):
    """Data has more values than the budget allows."""


class Budget:
    """How many values may still be examined."""

    __slots__ = ("_left",)

    def __init__(self, values: int) -> None:
        self._left = values

    def spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise BudgetSpent


class AvroType(Protocol):
    """One type of a schema."""

    label: str
    """Its name in a union in JSON."""

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:
        """Where the datum that begins at ``at`` ends. Raises Mismatch, or IndexError if the data ends early."""

    def check(self, value: Any, budget: Budget, nesting: int) -> None:
        """Raise Mismatch unless a parsed JSON value conforms."""


class Null:
    label = "null"

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        return at

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        if value is not None:
            raise Mismatch(f"expected null, not {_brief(value)}")


class Boolean:
    label = "boolean"

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        if data[at] > 1:
            raise Mismatch(f"a boolean is the byte 0 or 1, not {data[at]}")
        return at + 1

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        if not isinstance(value, bool):
            raise Mismatch(f"expected a boolean, not {_brief(value)}")


class Integer:
    """``int`` and ``long``."""

    def __init__(self, label: str, bits: int) -> None:
        self.label = label
        self._beyond = 1 << (bits - 1)

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        if data[at] < 0x80:  # most numbers are small
            return at + 1
        number, at = read_long(data, at)
        self._require_range(number)
        return at

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        if not isinstance(value, int) or isinstance(value, bool):
            raise Mismatch(f"expected {self.label}, not {_brief(value)}")
        self._require_range(value)

    def _require_range(self, number: int) -> None:
        if not -self._beyond <= number < self._beyond:
            raise Mismatch(f"{_brief(number)} is out of the range of {self.label}")


class Real:
    """``float`` and ``double``."""

    def __init__(self, label: str, size: int, largest: float) -> None:
        self.label = label
        self._size = size
        self._largest = largest

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        return _end(data, at, self._size)

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= self._largest:
            raise Mismatch(f"expected {self.label}, not {_brief(value)}")


class Bytes:
    label = "bytes"

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        size, at = read_long(data, at)
        return _end(data, at, size)

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        _require_byte_text(value)


class String:
    label = "string"

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        size, at = read_long(data, at)
        end = _end(data, at, size)
        _require_utf8(data[at:end])
        return end

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        _require_text(value)


class Fixed:
    def __init__(self, label: str, size: int) -> None:
        self.label = label
        self._size = size

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        return _end(data, at, self._size)

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        _require_byte_text(value)
        if len(value) != self._size:
            raise Mismatch(f"{self.label} has {self._size} bytes, not {len(value)}")


class Enum:
    def __init__(self, label: str, symbols: Sequence[str]) -> None:
        self.label = label
        self._symbols = frozenset(symbols)
        self._count = len(symbols)

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:  # noqa: ARG002
        index, at = read_long(data, at)
        if not 0 <= index < self._count:
            raise Mismatch(f"{self.label} has no symbol number {index}")
        return at

    def check(self, value: Any, budget: Budget, nesting: int) -> None:  # noqa: ARG002
        if not isinstance(value, str) or value not in self._symbols:
            raise Mismatch(f"{self.label} has no symbol {_brief(value)}")


class Array:
    """Items in blocks. In a map each has a key in front of it."""

    label = "array"
    _has_keys = False

    def __init__(self, items: AvroType) -> None:
        self._items = items

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:
        nesting = deeper(nesting)
        skip, key = self._items.skip, STRING.skip if self._has_keys else None
        count, at = _read_block(data, at, budget)
        while count:
            for _ in range(count):
                if key is not None:
                    at = key(data, at, budget, nesting)
                at = skip(data, at, budget, nesting)
            count, at = _read_block(data, at, budget)
        return at

    def check(self, value: Any, budget: Budget, nesting: int) -> None:
        nesting = deeper(nesting)
        is_one = isinstance(value, dict) if self._has_keys else isinstance(value, list)
        if not is_one:
            raise Mismatch(f"expected {'a map' if self._has_keys else 'an array'}, not {_brief(value)}")
        budget.spend(len(value))
        if self._has_keys:
            for key in value:
                _require_text(key)
            value = value.values()
        for item in value:
            self._items.check(item, budget, nesting)


class Map(Array):
    label = "map"
    _has_keys = True


class Union:
    label = "union"

    def __init__(self, branches: Sequence[AvroType]) -> None:
        self._branches = branches
        self._by_label: Mapping[str, AvroType] = {branch.label: branch for branch in reversed(branches)}

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:
        nesting = deeper(nesting)
        budget.spend(1)
        index, at = read_long(data, at)
        if not 0 <= index < len(self._branches):
            raise Mismatch(f"a union of {len(self._branches)} types has no branch number {index}")
        return self._branches[index].skip(data, at, budget, nesting)

    def check(self, value: Any, budget: Budget, nesting: int) -> None:
        nesting = deeper(nesting)
        budget.spend(1)
        label, inner = "null", None
        if value is not None:
            if not isinstance(value, dict) or len(value) != 1:
                raise Mismatch(f'a union value names its branch, as in {{"string": "x"}}, not {_brief(value)}')
            ((label, inner),) = value.items()
        branch = self._by_label.get(label)
        if branch is None or (value is not None and label == "null"):
            raise Mismatch(f"the union has no branch {_brief(label)}")
        branch.check(inner, budget, nesting)


class Record:
    """Its fields are set once they are known: one of them may be of the type of the record itself."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._fields: Mapping[str, AvroType] = {}
        self._types: Sequence[AvroType] = ()

    def set_fields(self, fields: Mapping[str, AvroType]) -> None:
        self._fields = fields
        self._types = tuple(fields.values())

    def skip(self, data: bytes, at: int, budget: Budget, nesting: int) -> int:
        nesting = deeper(nesting)
        budget.spend(1 + len(self._types))
        for kind in self._types:
            at = kind.skip(data, at, budget, nesting)
        return at

    def check(self, value: Any, budget: Budget, nesting: int) -> None:
        nesting = deeper(nesting)
        budget.spend(1 + len(self._types))
        if not isinstance(value, dict) or value.keys() != self._fields.keys():
            raise Mismatch(f"expected every field of {self.label} and no other, not {_brief(value)}")
        for name, kind in self._fields.items():
            kind.check(value[name], budget, nesting)


STRING = String()
PRIMITIVES: Mapping[str, AvroType] = {
    "null": Null(),
    "boolean": Boolean(),
    "int": Integer("int", INT_BITS),
    "long": Integer("long", LONG_BITS),
    "float": Real("float", 4, MAX_FLOAT),
    "double": Real("double", 8, sys.float_info.max),
    "bytes": Bytes(),
    "string": STRING,
}


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """A number in Avro's variable-length encoding, and where it ends."""
    byte = data[at]
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        at += 1
        if shift > _MAX_LONG_SHIFT:
            raise Mismatch("a number has more than 10 bytes")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    if number >> LONG_BITS:
        raise Mismatch("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def _read_block(data: bytes, at: int, budget: Budget) -> tuple[int, int]:
    """How many items a block of an array or map has, and where they begin. A block may also say its size in bytes."""
    count, at = read_long(data, at)
    if count < 0:
        count = -count
        _, at = read_long(data, at)
    budget.spend(count)
    return count, at


def deeper(nesting: int) -> int:
    """The next level of nesting. Raises Mismatch if it is too deep."""
    if nesting >= MAX_NESTING:
        raise Mismatch(f"values are nested more than {MAX_NESTING} levels deep")
    return nesting + 1


def _end(data: bytes, at: int, size: int) -> int:
    if not 0 <= size <= len(data) - at:
        raise Mismatch(f"{size} bytes are announced, but only {len(data) - at} are left")
    return at + size


def _require_utf8(data: bytes) -> None:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise Mismatch("a string is not UTF-8") from None


def _require_text(value: Any) -> None:
    if not isinstance(value, str):
        raise Mismatch(f"expected a string, not {_brief(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Mismatch("a string has a lone surrogate, which is not a character") from None


def _require_byte_text(value: Any) -> None:
    """In JSON a byte is the character of the same number."""
    if not isinstance(value, str) or (value and max(value) > "\xff"):
        raise Mismatch(f"expected bytes as characters up to U+00FF, not {_brief(value)}")


def _brief(value: Any) -> str:
    """A value as errors show it: containers by their type, anything else shortened."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if isinstance(value, str):
        return repr(value[:40])
    return "a number" if isinstance(value, int) and value.bit_length() > LONG_BITS else repr(value)
