"""Packs: the messages of one append as two blobs, a head and the data.

Writing one row per message costs several times more than writing the messages of a whole group commit as one row, so the SQL
stores do the latter. A head is columnar: each column is written and read by a few calls that run at C speed. The data is
separate, so that whatever needs only headers (lanes, rebuilt at start) never reads a payload.

Rules
    - Offsets rise within a pack; a pack is never empty.
    - Damaged packs are refused (``DamagedStore``): both blobs have a checksum.

Layout, little-endian::

    head  version u8 · flags u8 · reserved u16 · count u32 · first offset u64 · published f64 · checksum of the data u32
          offsets u64 × count          only when SPARSE: the offsets are not consecutive
          times f64 × count            only when TIMES: not all were published at the same time
          delays f64 × count           only when DELAYED: not before this time; 0 for none
          key sizes u16 × count        0xFFFF: no key
          data sizes u32 × count
          attribute sizes u32 × count  only when ATTRIBUTES; 0 for none
          keys · attributes            UTF-8, JSON objects
          checksum u32                 CRC-32 of the head up to here
    data  the payloads, one after another
"""

from __future__ import annotations

import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import accumulate, pairwise, repeat
from typing import Concatenate, ParamSpec, TypeVar
from zlib import crc32

from seriatim.errors import DamagedStore, InvalidArgument
from seriatim.store.base import MessageHeader, Pack, Record
from seriatim.store.number_columns import decode_column, encode_column

VERSION = 1
SPARSE, TIMES, DELAYED, ATTRIBUTES = 1, 2, 4, 8
NO_KEY = 0xFFFF

_HEAD = struct.Struct("<BBHIQdI")
_CHECKSUM = struct.Struct("<I")

Attributes = Mapping[str, str] | None
P = ParamSpec("P")
T = TypeVar("T")
_make = tuple.__new__
"""Turns tuples into named tuples in C: twice as fast as calling the class."""


def encode(records: Sequence[Record]) -> Pack:
    """The blobs of records with rising offsets."""
    try:
        return _encode(records)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise InvalidArgument(f"a message can't be stored as it is: {error}") from error


def require_encodable(records: Sequence[Record]) -> None:
    """Raise InvalidArgument for records that ``encode`` refuses."""
    try:
        _encode_keys([record.key for record in records])
        for record in records:
            _encode_attributes(record.attributes)
            if not isinstance(record.data, bytes):
                raise TypeError(f"bytes-like object expected, not {type(record.data).__name__}")
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"a message can't be stored as it is: {error}") from error


def _encode(records: Sequence[Record]) -> Pack:
    offsets, keys, payloads, attributes, times, delays = zip(*records, strict=True)
    count, first, published = len(offsets), offsets[0], times[0]
    data = b"".join(payloads)
    key_sizes, key_bytes = _encode_keys(keys)
    flags, columns, tail = 0, [], [key_bytes]
    if offsets[-1] - first != count - 1:
        flags |= SPARSE
        columns.append(encode_column("Q", offsets))
    if times.count(published) != count:
        flags |= TIMES
        columns.append(encode_column("d", times))
    if any(delays):
        flags |= DELAYED
        columns.append(encode_column("d", delays))
    columns += [encode_column("H", key_sizes), encode_column("I", map(len, payloads))]
    if any(attributes):
        flags |= ATTRIBUTES
        texts = [_encode_attributes(each) for each in attributes]
        columns.append(encode_column("I", map(len, texts)))
        tail += texts
    head = b"".join((_HEAD.pack(VERSION, flags, 0, count, first, published, crc32(data)), *columns, *tail))
    return Pack(head + _CHECKSUM.pack(crc32(head)), data)


def encode_columns(
    key_sizes: bytes, key_bytes: bytes, data_sizes: bytes, data: bytes, attributes: Sequence[Attributes] | None
) -> Pack:
    """The blobs of messages that are already columns, at consecutive offsets from 0 and time 0, as they are staged.

    Sizes are in the byte order of this machine: 16 bits each for keys (NO_KEY for none), 32 bits for data.
    """
    columns = [encode_column("H", key_sizes), encode_column("I", data_sizes)]
    flags, texts = 0, []
    if attributes is not None and any(attributes):
        flags, texts = ATTRIBUTES, [_encode_attributes(each) for each in attributes]
        columns.append(encode_column("I", map(len, texts)))
    fixed = _HEAD.pack(VERSION, flags, 0, len(key_sizes) // 2, 0, 0.0, crc32(data))
    head = b"".join((fixed, *columns, key_bytes, *texts))
    return Pack(head + _CHECKSUM.pack(crc32(head)), data)


def _encode_keys(keys: Sequence[str | None]) -> tuple[Sequence[int], bytes]:
    """The size of each key in bytes (NO_KEY for none), and all of them joined."""
    present = keys if None not in keys else [key for key in keys if key is not None]
    joined = "".join(present)  # type: ignore[arg-type]
    blob = joined.encode()
    if len(blob) == len(joined):
        sizes = [NO_KEY if key is None else len(key) for key in keys]
    else:
        sizes = [NO_KEY if key is None else len(key.encode()) for key in keys]
    if len(blob) >= NO_KEY and any(size >= NO_KEY for key, size in zip(keys, sizes, strict=True) if key is not None):
        raise InvalidArgument(f"a key must be shorter than {NO_KEY} bytes of UTF-8")
    return sizes, blob


def _encode_attributes(attributes: Attributes) -> bytes:
    return json.dumps(dict(attributes), ensure_ascii=False, separators=(",", ":")).encode() if attributes else b""


def _decode_attributes(text: bytes) -> Attributes:
    attributes: dict[str, str] | None = json.loads(text) if text else None
    if text and not isinstance(attributes, dict):
        raise ValueError("attributes are an object")
    return attributes


def _reading(method: Callable[Concatenate[PackHead, P], T]) -> Callable[Concatenate[PackHead, P], T]:
    """A pack with the right checksums may still be no pack."""

    @wraps(method)
    def read(self: PackHead, /, *given: P.args, **named: P.kwargs) -> T:
        try:
            return method(self, *given, **named)
        except (ValueError, IndexError, RecursionError) as error:
            raise DamagedStore(f"the head of a pack can't be read: {error}") from error

    return read


class PackHead:
    """The head of a pack, read column by column when asked.

    Readers that build columns rather than messages use ``offsets``, ``times`` (None: all at ``published``), ``delays`` (None:
    no message has one), ``key_sizes`` with ``key_bytes``, ``data_sizes`` and ``attributes``.
    """

    def __init__(self, blob: bytes) -> None:
        flags, first = self._open(blob)
        at = _HEAD.size
        self.offsets: Sequence[int] = range(first, first + self.count)
        self.times: array[int] | None = None
        self.delays: array[int] | None = None
        self._attribute_sizes: array[int] | None = None
        if flags & SPARSE:
            self.offsets, at = self._column("Q", at)
        if flags & TIMES:
            self.times, at = self._column("d", at)
        if flags & DELAYED:
            self.delays, at = self._column("d", at)
        self.key_sizes, at = self._column("H", at)
        self.data_sizes, at = self._column("I", at)
        if flags & ATTRIBUTES:
            self._attribute_sizes, at = self._column("I", at)
        self._texts_at = at

    def _open(self, blob: bytes) -> tuple[int, int]:
        """Check the blob, read its fixed part, and return the flags and the first offset."""
        if len(blob) < _HEAD.size + _CHECKSUM.size:
            raise DamagedStore(f"the head of a pack has only {len(blob)} bytes: it was cut off")
        version, flags, _, self.count, first, self.published, self._data_checksum = _HEAD.unpack_from(blob)
        if version != VERSION:
            raise DamagedStore(f"a pack of version {version} can't be read by a program that knows version {VERSION}")
        end = len(blob) - _CHECKSUM.size
        if crc32(memoryview(blob)[:end]) != _CHECKSUM.unpack_from(blob, end)[0]:
            raise DamagedStore("the checksum of a pack's head does not match its content")
        self._blob = blob
        return flags, first

    def _column(self, code: str, at: int) -> tuple[array[int], int]:
        end = at + self.count * array(code).itemsize
        if end > len(self._blob) - _CHECKSUM.size:
            raise DamagedStore(f"the head of a pack of {self.count} messages has only {len(self._blob)} bytes")
        return decode_column(code, self._blob[at:end]), end

    def stamped(self, first: int, published: float) -> bytes:
        """The head of the same messages at consecutive offsets from ``first`` on, published at one time."""
        flags = self._blob[1]
        if flags & (SPARSE | TIMES):
            raise InvalidArgument("only a pack with consecutive offsets and one time can be stamped")
        head = bytearray(memoryview(self._blob)[: -_CHECKSUM.size])
        _HEAD.pack_into(head, 0, VERSION, flags, 0, self.count, first, published, self._data_checksum)
        return bytes(head) + _CHECKSUM.pack(crc32(head))

    @property
    def has_attributes(self) -> bool:
        return self._attribute_sizes is not None

    @property
    def key_bytes(self) -> bytes:
        """All keys, one after another."""
        return self._blob[self._texts_at : len(self._blob) - _CHECKSUM.size - sum(self._attribute_sizes or ())]

    def verify(self, data: bytes) -> None:
        """Raise DamagedStore unless ``data`` is the other blob of the pack."""
        if sum(self.data_sizes) != len(data) or crc32(data) != self._data_checksum:
            raise DamagedStore("the checksum of a pack's data does not match its content")

    @_reading
    def headers(self) -> list[MessageHeader]:
        """Every message without its data."""
        columns = zip(self.offsets, self._keys(), self.attributes(), self.delays or repeat(0.0), strict=False)
        return list(map(_make, repeat(MessageHeader), columns))

    @_reading
    def records(self, data: bytes) -> list[Record]:
        """Every message, with ``data``, the other blob of the pack."""
        ends = self._checked_ends(data)
        payloads = [data[start:end] for start, end in pairwise(ends)]
        times, delays = self.times or repeat(self.published), self.delays or repeat(0.0)
        columns = zip(self.offsets, self._keys(), payloads, self.attributes(), times, delays, strict=False)
        return list(map(_make, repeat(Record), columns))

    @_reading
    def select(self, data: bytes, wanted: Iterable[int]) -> list[Record]:
        """The messages with these offsets, without those that are not in the pack."""
        indexes = [index for offset in wanted if (index := self._index(offset)) is not None]
        if len(indexes) * 4 > self.count:  # enough that it is cheaper to make them all
            records = self.records(data)
            return [records[index] for index in indexes]
        ends = self._checked_ends(data)
        keys, attributes = self._key_bounds(), self._attribute_bounds()
        return [self._record(index, data[ends[index] : ends[index + 1]], keys, attributes) for index in indexes]

    def _record(self, index: int, payload: bytes, keys: Sequence[int], attributes: Sequence[int]) -> Record:
        return Record(
            self.offsets[index],
            None if self.key_sizes[index] == NO_KEY else self._blob[keys[index] : keys[index + 1]].decode(),
            payload,
            _decode_attributes(self._blob[attributes[index] : attributes[index + 1]]) if attributes else None,
            self.times[index] if self.times else self.published,
            self.delays[index] if self.delays else 0.0,
        )

    def _index(self, offset: int) -> int | None:
        index = bisect_left(self.offsets, offset)
        return index if index < self.count and self.offsets[index] == offset else None

    def _checked_ends(self, data: bytes) -> list[int]:
        self.verify(data)
        return list(accumulate(self.data_sizes, initial=0))

    def _key_bounds(self) -> list[int]:
        sizes: Iterable[int] = self.key_sizes
        if NO_KEY in self.key_sizes:
            sizes = [0 if size == NO_KEY else size for size in self.key_sizes]
        bounds = list(accumulate(sizes, initial=self._texts_at))
        if bounds[-1] + sum(self._attribute_sizes or ()) != len(self._blob) - _CHECKSUM.size:
            raise DamagedStore("the head of a pack does not end where its columns say")
        return bounds

    def _keys(self) -> list[str | None]:
        bounds, start = self._key_bounds(), self._texts_at
        blob = self._blob[: bounds[-1]]
        text = blob[start:].decode()
        if len(text) == len(blob) - start:
            keys: list[str | None] = [text[low - start : high - start] for low, high in pairwise(bounds)]
        else:
            keys = [blob[low:high].decode() for low, high in pairwise(bounds)]
        if NO_KEY in self.key_sizes:
            return [None if size == NO_KEY else key for size, key in zip(self.key_sizes, keys, strict=True)]
        return keys

    def _attribute_bounds(self) -> list[int]:
        if self._attribute_sizes is None:
            return []
        start = len(self._blob) - _CHECKSUM.size - sum(self._attribute_sizes)
        return list(accumulate(self._attribute_sizes, initial=start))

    @_reading
    def attributes(self) -> Iterable[Attributes]:
        """The attributes of each message; an endless iterator if no message has any."""
        bounds = self._attribute_bounds()
        return [_decode_attributes(self._blob[low:high]) for low, high in pairwise(bounds)] if bounds else repeat(None)
