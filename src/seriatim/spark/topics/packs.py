"""Converts packs of a log to Arrow batches, and back, without a Python object per message.

Attributes are the exception: a log stores them as JSON, so messages with attributes are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from seriatim.errors import InvalidArgument
from seriatim.store.base import Pack
from seriatim.store.pack import NO_KEY, PackHead, encode_columns

TIMESTAMP = pa.timestamp("us", tz="UTC")
ATTRIBUTES = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True))
ARROW_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("attributes", ATTRIBUTES),
        pa.field("published", TIMESTAMP, nullable=False),
        pa.field("not_before", TIMESTAMP),
    ]
)

BATCH_MESSAGES = 16 * 1024
BATCH_BYTES = 8 * 1024 * 1024
"""A batch is as large as the packs that reach one of these."""

PACK_MESSAGES = 1024
PACK_BYTES = 256 * 1024
"""The limits of a pack that is staged; it ends with the message that reaches the second one."""

MICROSECONDS = 1_000_000


# -- from a log ---------------------------------------------------------------------------------------------------------


def read_batches(packs: Iterable[Pack], first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The messages with offsets from ``first`` to below ``end``, in order."""
    for some in _gathered(packs):
        batch = _batch([PackHead(pack.head) for pack in some], [pack.data for pack in some])
        low, high = np.searchsorted(batch.column("offset").to_numpy(), [first, end])
        if low < high:
            yield batch.slice(low, high - low)


def _gathered(packs: Iterable[Pack]) -> Iterator[list[Pack]]:
    some: list[Pack] = []
    size = messages = 0
    for pack in packs:
        some.append(pack)
        size += len(pack.data)
        messages += PackHead(pack.head).count
        if size >= BATCH_BYTES or messages >= BATCH_MESSAGES:
            yield some
            some, size, messages = [], 0, 0
    if some:
        yield some


def _batch(heads: Sequence[PackHead], data: Sequence[bytes]) -> pa.RecordBatch:
    for head, blob in zip(heads, data, strict=True):
        head.verify(blob)
    offsets = np.concatenate([np.asarray(head.offsets, np.int64) for head in heads])
    sizes = np.concatenate([np.frombuffer(head.key_sizes, np.uint16) for head in heads]).astype(np.int64)
    missing = sizes == NO_KEY
    sizes[missing] = 0
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes()) if missing.any() else None
    blob = pa.py_buffer(b"".join([head.key_bytes for head in heads]))
    keys = pa.StringArray.from_buffers(len(sizes), _ends(sizes), blob, valid, int(missing.sum()))
    sizes = np.concatenate([np.frombuffer(head.data_sizes, np.uint32) for head in heads])
    buffers = [None, _ends(sizes), pa.py_buffer(data[0] if len(data) == 1 else b"".join(data))]
    payloads = pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
    published = [
        np.full(head.count, head.published) if head.times is None else np.frombuffer(head.times, np.float64)
        for head in heads
    ]
    columns = [
        pa.array(offsets),
        keys,
        payloads,
        _attributes(heads),
        _timestamps(np.concatenate(published)),
        _delays(heads),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _ends(sizes: np.ndarray) -> pa.Buffer:
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return pa.py_buffer(ends)


def _attributes(heads: Sequence[PackHead]) -> pa.Array:
    if not any(head.has_attributes for head in heads):
        return pa.nulls(sum(head.count for head in heads), ATTRIBUTES)
    found = [
        None if one is None else list(one.items())
        for head in heads
        for _, one in zip(range(head.count), head.attributes(), strict=False)
    ]
    return pa.array(found, ATTRIBUTES)


def _delays(heads: Sequence[PackHead]) -> pa.Array:
    if all(head.delays is None for head in heads):
        return pa.nulls(sum(head.count for head in heads), TIMESTAMP)
    parts = [np.zeros(head.count) if head.delays is None else np.frombuffer(head.delays, np.float64) for head in heads]
    times = np.concatenate(parts)
    return _timestamps(times, times == 0)


def _timestamps(seconds: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    return pa.array((seconds * MICROSECONDS).round().astype(np.int64), TIMESTAMP, mask=missing)


# -- to a log -----------------------------------------------------------------------------------------------------------


def pack_batch(batch: pa.RecordBatch) -> Iterator[Pack]:
    """The messages of a batch in packs as they are staged, in order. Columns: data, and key and attributes if it has them."""
    names, data = batch.schema.names, batch.column("data").cast(pa.binary())
    if data.null_count:
        raise InvalidArgument("column 'data' is null in some rows: a message must have data, it may be empty")
    keys = batch.column("key").cast(pa.string()) if "key" in names else pa.nulls(batch.num_rows, pa.string())
    attributes: list[dict[str, str] | None] | None = None
    if "attributes" in names and batch.column("attributes").null_count < batch.num_rows:
        attributes = [None if one is None else dict(one) for one in batch.column("attributes").to_pylist()]
        if any(value is None for one in attributes if one for value in one.values()):
            raise InvalidArgument("column 'attributes' has a null value in some rows: leave the name out instead")
    missing = keys.is_null().to_numpy(zero_copy_only=False)
    keys = keys.fill_null("")  # what is behind a null is undefined
    key_ends, data_ends = _ends_of(keys), _ends_of(data)
    key_sizes = np.diff(key_ends)
    if (key_sizes >= NO_KEY).any():
        raise InvalidArgument(f"column 'key': a key must be shorter than {NO_KEY} bytes of UTF-8")
    key_sizes[missing] = NO_KEY
    data_sizes = np.diff(data_ends)
    for low, high in _cuts(data_ends):
        yield encode_columns(
            key_sizes[low:high].astype(np.uint16).tobytes(),
            _blob(keys, key_ends[low], key_ends[high]),
            data_sizes[low:high].astype(np.uint32).tobytes(),
            _blob(data, data_ends[low], data_ends[high]),
            attributes and attributes[low:high],
        )


def _cuts(ends: np.ndarray) -> Iterator[tuple[int, int]]:
    low, count = 0, len(ends) - 1
    while low < count:
        full = int(np.searchsorted(ends, ends[low] + PACK_BYTES))
        high = max(low + 1, min(low + PACK_MESSAGES, full, count))
        yield low, high
        low = high


def _ends_of(column: pa.Array) -> np.ndarray:
    """Where the values of a column of strings or bytes end, behind where the first begins."""
    ends = column.buffers()[1]
    if ends is None:
        return np.zeros(len(column) + 1, np.int64)
    return np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _blob(column: pa.Array, low: int, high: int) -> bytes:
    blob = column.buffers()[2]
    return b"" if blob is None else blob[int(low) : int(high)].to_pybytes()
