"""One version of a partition's state as bytes.

A file is a magic line, the length of its header, the header (JSON), a digest of all that, the body of a segment
(``kernel/state_segment.py``) and the digests of the body's pages, whose own digest is in the header. So the digest of the
header, the *root*, stands for the whole file, and each part can be verified when it is used.

The header binds a version to its query, partition, partition count and batch, says how much the partition holds, and lists the
segments that it rests on, by batch and root: it is the manifest of the partition. ``content`` is the digest of what the batch
changed.

Versions of the first format are read, not written. They are Arrow streams with one checksum at the end, and rest on the whole
chain of versions down to a full one.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from seriatim.errors import DamagedStore
from seriatim.spark.kernel.arrays import Columns, Owned
from seriatim.spark.kernel.key_state import Times
from seriatim.spark.kernel.keys import check_key_type
from seriatim.spark.kernel.partition_state import Tally
from seriatim.spark.kernel.state_segment import (
    DIGEST_BYTES,
    PAGE_BYTES,
    UNREADABLE,
    Body,
    Segment,
    page_digests,
    schema_of,
    table_of,
    times_of,
)
from seriatim.spark.state.binding import REMEDY

MAGIC = b"seriatim-state-2\n"
FIRST_MAGIC = b"seriatim-state-1\n"
LENGTH_BYTES = 8
HEAD_BYTES = 16384
"""As long as most headers are; longer ones are read in two steps."""


@dataclass(frozen=True)
class Header:
    """What a version says about itself. ``due`` is when something falls due next, under the options
    ``waits``. ``rewritten`` marks a version that no batch wrote, but a change of the partition count."""

    query: str
    partitions: int
    partition: int
    batch: int
    due: str
    keys: int
    held: int
    gaps: int
    content: str
    key_type: str
    layout: dict[str, Any] = field(repr=False)
    body: int
    pages: str
    stack: tuple[tuple[int, str], ...] = ()
    rewritten: bool = False
    waits: str = ""

    @property
    def tally(self) -> Tally:
        return Tally(self.keys, self.held, self.gaps)

    @property
    def covers(self) -> int:
        """How many batches are in the segment of this version."""
        return self.batch - (self.stack[-1][0] if self.stack else -1)


@dataclass(frozen=True)
class FirstHeader:
    """The header of the first format. ``base`` is the full version at the end of the chain: itself, if it is full."""

    query: str
    partitions: int
    partition: int
    batch: int
    base: int
    parent: str | None
    base_entries: int
    delta_entries: int
    clock: str
    due: str
    sections: tuple[int, ...]
    rewritten: bool = False
    waits: ClassVar[str] = ""


def type_text(kind: pa.DataType) -> str:
    return b64encode(pa.schema([("", kind)]).serialize()).decode()


def type_of(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text))).field(0).type


def encode(header: Header, segment: Segment) -> tuple[str, bytes]:
    """Root and content of a version. ``pages`` and ``body`` of the header are filled in."""
    digests = page_digests(segment.body.content)
    fields = {**asdict(header), "body": len(segment.body.content), "pages": _digest(digests)}
    text = json.dumps(fields, sort_keys=True).encode()
    text += b" " * (-(len(MAGIC) + LENGTH_BYTES + len(text) + DIGEST_BYTES) % PAGE_BYTES)
    head = MAGIC + len(text).to_bytes(LENGTH_BYTES, "big") + text
    root = _digest(head)
    return root, b"".join([head, bytes.fromhex(root), segment.body.content, digests])


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def head_length(head: bytes | memoryview) -> int:
    """How long the beginning of a file is that ``decode_head`` needs."""
    begin = len(MAGIC) + LENGTH_BYTES
    return begin + int.from_bytes(head[len(MAGIC) : begin], "big") + DIGEST_BYTES


def decode_head(head: bytes | memoryview, name: str) -> tuple[Header | FirstHeader, str]:
    """The header of a version, and its root. Of the first format the root is the checksum at the end of the file."""
    begin, end = len(MAGIC) + LENGTH_BYTES, head_length(head) - DIGEST_BYTES
    magic = bytes(head[: len(MAGIC)])
    if magic not in (MAGIC, FIRST_MAGIC):
        raise damaged(name, "it does not start with the right header")
    root = bytes(head[-DIGEST_BYTES:] if magic == FIRST_MAGIC else head[end : end + DIGEST_BYTES]).hex()
    if magic == MAGIC and _digest(head[:end]) != root:
        raise damaged(name, "the checksum of its header is wrong")
    try:
        plain = json.loads(bytes(head[begin:end]))
        header: Header | FirstHeader
        if magic == MAGIC:
            header = Header(**{**plain, "stack": tuple((int(batch), str(below)) for batch, below in plain["stack"])})
        else:
            header = FirstHeader(**{**plain, "sections": tuple(map(int, plain["sections"]))})
            float.fromhex(header.clock)
        float.fromhex(header.due)
        numbers = [header.partitions, header.partition, header.batch]
        if isinstance(header, Header):
            numbers += [header.keys, header.held, header.gaps, header.body]
        for number in numbers:
            number.__index__()
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise damaged(name, "its header can't be read") from None
    return header, root


def described(header: Header, name: str) -> tuple[pa.Schema, pa.DataType, Times]:
    """The columns of the rows, the type of the keys, and how far the partition has come."""
    try:
        kind = type_of(header.key_type)
        check_key_type(kind)
        return schema_of(header.layout), kind, times_of(header.layout)
    except UNREADABLE as error:
        raise damaged(name, f"its header can't be read ({error!r})") from error


def segment_in(
    content: memoryview,
    header: Header,
    name: str,
    shape: type[Columns],
    lists: dict[str, type[Owned]],
    reload: Any = None,
) -> Segment:
    """The segment of a version, of which no page was looked at yet."""
    begin = head_length(content)
    end = begin + header.body

    def body() -> memoryview:
        again: memoryview = reload()
        return again[begin:end]

    digests = content[end:]
    if _digest(digests) != header.pages:
        raise damaged(name, "the checksum of its checksums is wrong")
    try:
        segment = Segment(
            header.layout, Body(content[begin:end], name, digests, body if reload else None, REMEDY), shape, lists
        )
        segment.require_sound()
    except UNREADABLE as error:
        raise damaged(name, f"its layout can't be read ({error!r})") from error
    return segment


def first_tables(content: bytes | memoryview, header: FirstHeader, name: str) -> list[pa.Table]:
    """The tables of the change that a version of the first format makes to the one before it, or to nothing if it is full."""
    if _digest(content[:-DIGEST_BYTES]) != bytes(content[-DIGEST_BYTES:]).hex():
        raise damaged(name, "its checksum is wrong")
    begin = head_length(content) - DIGEST_BYTES
    tables: list[pa.Table] = []
    for length in header.sections:
        tables.append(table_of(content[begin : begin + length]))
        begin += length
    return tables


def damaged(name: str, what: str) -> DamagedStore:
    return DamagedStore(f"{name} is damaged: {what}; {REMEDY}")
