"""The kernel's output: the tagged table (``tagged.py``)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from seriatim.errors import InvalidArgument
from seriatim.spark.kernel.arrays import Bools, Ints, Objects, arange, filled
from seriatim.spark.kernel.batch import NO_SOURCE, Entries
from seriatim.spark.tagged import ADDED_COLUMNS, ADDED_FIELDS, EXPIRED, INVALID, LEDGER, Tag


def output_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the output for an input schema."""
    taken = set(ADDED_COLUMNS) & set(schema.names)
    if taken:
        raise InvalidArgument(f"the columns {', '.join(sorted(taken))} are added by the kernel: rename yours")
    return pa.schema([pa.field("_tag", pa.string()), *schema, *ADDED_FIELDS])


class Output:
    """Builds the output for messages identified by their index in ``sources``."""

    def __init__(self, sources: pa.Table, key: str) -> None:
        self.sources, self.key = sources, key
        self.schema = output_schema(sources.schema)

    def ordered(self, source: Ints, position: Ints) -> pa.Table:
        count = len(source)
        messages = self.sources.take(pa.array(source))
        nulls = {field.type: pa.nulls(count, field.type) for field in LEDGER}
        nothing = [nulls[field.type] for field in LEDGER]
        return self._table(_tags(Tag.ORDERED, count), messages, pa.array(position), nothing)

    def entries(self, entries: Entries, keys: pa.Array | None, unknown: Bools | None = None) -> pa.Table:
        """``keys`` has the keys of entries without a message. ``unknown`` marks entries without session and numbers."""
        missing = entries.source == NO_SOURCE
        messages = self.sources.take(pa.array(entries.source, mask=missing))
        if missing.any():
            place = messages.schema.get_field_index(self.key)
            messages = messages.set_column(place, messages.schema.field(place), keys)
        columns = [
            pa.array(entries.epoch, mask=unknown),
            pa.array(entries.reason, pa.string()),
            pa.array(entries.first, mask=unknown),
            pa.array(entries.last, mask=unknown),
            pa.array(entries.size),
            pa.array(entries.time),
            pa.array(entries.detail, pa.string()),
        ]
        return self._table(pa.array(entries.tag, pa.string()), messages, pa.nulls(len(entries), pa.int64()), columns)

    def invalid(self, source: Ints, complaints: Objects, now: float) -> pa.Table:
        """Ledger entries of invalid rows, which have neither session nor numbers, only their columns."""
        nothing = np.zeros(len(source), np.int64)
        entries = ledger_entries(INVALID, nothing, nothing, nothing + 1, now, complaints, source)
        return self.entries(entries, None, unknown=nothing == 0)

    def _table(self, tags: pa.Array, messages: pa.Table, position: pa.Array, ledger: list[pa.Array]) -> pa.Table:
        return pa.Table.from_arrays([tags, *messages.columns, position, *ledger], schema=self.schema)


def expired_entries(expected: Ints, epoch: Ints, now: float) -> Entries:
    """Ledger entries of keys that were forgotten: the number is the one that was expected next."""
    count = len(expected)
    detail = filled(count, "idle for too long: the key is forgotten")
    return ledger_entries(
        EXPIRED, expected, epoch, np.zeros(count, np.int64), now, detail, np.full(count, NO_SOURCE, np.int64)
    )


def ledger_entries(
    reason: str, number: Ints, epoch: Ints, size: Ints, now: float, detail: Objects, source: Ints
) -> Entries:
    count = len(number)
    return Entries(
        owner=arange(count),
        order=arange(count),
        tag=filled(count, Tag.LEDGER),
        reason=filled(count, reason),
        epoch=epoch,
        first=number,
        last=number,
        size=size,
        time=np.full(count, now),
        detail=detail,
        source=source,
    )


def _tags(tag: Tag, count: int) -> pa.Array:
    offsets = np.arange(0, (count + 1) * len(tag), len(tag), dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(tag.encode() * count))
