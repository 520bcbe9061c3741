"""One version of a partition's state as bytes.

A file is a magic line, the length of its header, the header (JSON), the sections (Arrow streams) one after another, and
a checksum of everything before. The header binds it to its query, partition, partition count and batch; a *delta* also
to the checksum of the version that it changes. Equal changes give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import pyarrow as pa

from seriatim.errors import DamagedStore
from seriatim.spark.kernel.interfaces import StateChange
from seriatim.spark.state.binding import REMEDY

MAGIC = b"seriatim-state-1\n"
LENGTH_BYTES = 8
CHECKSUM_BYTES = 16
HEAD_BYTES = 4096
"""A header is shorter than this: its parts have bounded sizes, and a query id is refused when it is not short."""


@dataclass(frozen=True)
class Header:
    """What a version says about itself. ``base`` is the full version that it rests on: itself, if it is full.

    ``base_entries`` is how much that one holds, ``delta_entries`` how much the deltas on it do, this one included.
    ``due`` is when something falls due next, so that a tick need not read the rest. ``rewritten`` marks a
    version that no batch wrote, but a change of the partition count.
    """

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


@dataclass(frozen=True)
class Version:
    """A version as read or written."""

    header: Header
    checksum: str
    content: bytes


def sections_of(change: StateChange) -> list[bytes]:
    """A change as Arrow streams."""
    return [_stream(table) for table in change.tables()]


def _stream(table: pa.Table) -> bytes:
    table = table.combine_chunks()  # how the rows came together must not show
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def encode(header: Header, sections: list[bytes]) -> Version:
    text = json.dumps(asdict(header), sort_keys=True).encode()
    content = b"".join([MAGIC, len(text).to_bytes(LENGTH_BYTES, "big"), text, *sections])
    checksum = hashlib.blake2b(content, digest_size=CHECKSUM_BYTES)
    return Version(header, checksum.hexdigest(), content + checksum.digest())


def decode_ends(ends: bytes, name: str) -> tuple[Header, str]:
    """The header and the checksum of a version, from the first and the last bytes of its file."""
    return _header(ends, name)[0], ends[-CHECKSUM_BYTES:].hex()


def decode(content: bytes, name: str) -> Version:
    """A version that is what was written, or DamagedStore."""
    body, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest() != checksum:
        raise _damaged(name, "its checksum is wrong")
    return Version(_header(content, name)[0], checksum.hex(), content)


def _header(content: bytes, name: str) -> tuple[Header, int]:
    if not content.startswith(MAGIC):
        raise _damaged(name, "it does not begin as such a file does")
    begin = len(MAGIC) + LENGTH_BYTES
    end = begin + int.from_bytes(content[len(MAGIC) : begin], "big")
    try:
        plain = json.loads(content[begin:end])
        header = Header(**{**plain, "sections": tuple(plain["sections"])})
    except (ValueError, TypeError, KeyError):
        raise _damaged(name, "its header can't be read") from None
    return header, end


def tables_in(version: Version, name: str) -> list[pa.Table]:
    """The tables of the change that a version makes to the one before it, or to nothing if it is full."""
    _, begin = _header(version.content, name)
    tables: list[pa.Table] = []
    for length in version.header.sections:
        tables.append(pa.ipc.open_stream(pa.py_buffer(version.content[begin : begin + length])).read_all())
        begin += length
    return tables


def _damaged(name: str, what: str) -> DamagedStore:
    return DamagedStore(f"{name} is damaged: {what}; {REMEDY}")
