"""Messages as Kafka's records, and back.

Rules
    - Attributes are headers, in UTF-8. Headers that are not text, or repeated, are shown as well as possible: bytes are
      escaped as in Python, and of several with one name the last is used.
    - A record without a key has no ordering key. Keys of other producers may be empty or not UTF-8: each is a lane of
      its own, by its bytes.
    - A message id is the partition and the offset: ``3-1234``.
    - Rows written by our Spark pipelines have four headers with their origin. These are not attributes: a message that
      is published again is a different one.
    - The partition of a key is the one that Java's default partitioner chooses (murmur2).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from seriatim.core.validation import shown
from seriatim.engine.consumer import Delivered, Record
from seriatim.errors import InvalidArgument

if TYPE_CHECKING:
    from confluent_kafka import Message

OFFSET_BITS = 48
NOT_BEFORE = "seriatim-not-before"
"""The header that delays a message: seconds since 1970."""

ORIGIN = tuple(f"seriatim-{name}" for name in ("query", "partition", "batch", "position"))
"""The headers of rows that a Spark pipeline wrote (see ``spark/pipeline/kafka.py``)."""
RESERVED = {NOT_BEFORE, *ORIGIN}

Headers = list[tuple[str, bytes]]


class Origin(NamedTuple):
    """The query and partition of it that wrote a row, and the row's place in their output: batch and position."""

    writer: str
    place: tuple[int, int]


class KafkaDelivered(Delivered):
    """A delivery whose record came from Kafka: its offset includes the partition."""

    __slots__ = ()

    @property
    def id(self) -> str:
        return id_of(self.record)


def id_of(record: Record) -> str:
    return message_id(record.offset >> OFFSET_BITS, record.offset & (1 << OFFSET_BITS) - 1)


def message_id(partition: int, offset: int) -> str:
    return f"{partition}-{offset}"


def place_of(identity: object) -> tuple[int, int]:
    """The partition and the offset of a message id."""
    partition, dash, offset = identity.partition("-") if isinstance(identity, str) else ("", "", "")
    if dash and all(part.isascii() and part.isdigit() and len(part) < 19 for part in (partition, offset)):
        return int(partition), int(offset)
    raise InvalidArgument(f"{identity!r} is not the id of a message: ids are partition and offset, such as '3-1234'")


def headers_of(attributes: Mapping[str, str] | None, not_before: float = 0.0) -> Headers:
    headers = [(name, value.encode("utf-8", "surrogateescape")) for name, value in (attributes or {}).items()]
    return [*headers, (NOT_BEFORE, repr(not_before).encode())] if not_before else headers


def key_bytes(key: str | None) -> bytes | None:
    return None if key is None else _encoded(key)


def _encoded(key: str) -> bytes:
    try:
        return key.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError):
        raise InvalidArgument(f"{shown(key)} can't be a key: give a str") from None


def record_of(message: Message) -> tuple[Record, Origin | None]:
    """A record for lanes and handlers, and its origin if a pipeline wrote it."""
    attributes, not_before, origin = dict[str, str](), 0.0, None
    try:
        headers: Any = message.headers() or ()
    except UnicodeDecodeError:  # a header's name is not text: then none can be read
        headers = ()
    for name, value in headers:
        attributes[name] = "" if value is None else bytes(value).decode("utf-8", "backslashreplace")
    if NOT_BEFORE in attributes:
        with suppress(ValueError):
            not_before = float(attributes.pop(NOT_BEFORE))
    if ORIGIN[0] in attributes:
        query, *numbers = (attributes.get(name, "") for name in ORIGIN)
        if all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
            attributes = {name: value for name, value in attributes.items() if name not in ORIGIN}
            origin = Origin(f"{query}/{numbers[0]}", (int(numbers[1]), int(numbers[2])))
    key = message.key()
    record = Record(
        offset=((message.partition() or 0) << OFFSET_BITS) | (message.offset() or 0),
        key=None if key is None else bytes(key).decode("utf-8", "surrogateescape"),
        data=message.value() or b"",
        attributes=attributes or None,
        published=max(0.0, message.timestamp()[1] / 1000),
        not_before=not_before if 0 < not_before < 2**40 else 0.0,
    )
    return record, origin


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    for start in range(0, len(key) & ~3, 4):
        k = int.from_bytes(key[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m ^ k) & mask
    if rest := key[len(key) & ~3 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key."""
    return (murmur2(_encoded(key)) & 0x7FFFFFFF) % partitions
