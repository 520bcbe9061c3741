"""Columns that change while rows wait: which changes a query can be restarted with.

Held rows have the columns that the query had when they came. When it is restarted with others, they are converted to
the current columns, if that loses nothing:

- an added column is null in the rows that wait;
- integers may become wider ones (``int`` to ``bigint``), ``float`` may become ``double``, a decimal may get more digits
  before the point;
- timestamps are shown in another time zone if that of the session was changed; the instants stay the same;
- the order of columns does not matter.

Anything else is refused, before the query runs. Columns added for the kernel are dropped when it no longer needs them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types

from seriatim.errors import StateMismatch

ADDED = "__seriatim_"
"""How the names of the columns begin that were added for the kernel."""


def misfits(old: pa.Schema, new: pa.Schema) -> list[str]:
    """The reasons why rows with the columns ``old`` can't be converted to those of ``new``, as text."""
    return list(_misfits(old, new))


def _misfits(old: pa.Schema, new: pa.Schema) -> Iterator[str]:
    for field in old:
        place = new.get_field_index(field.name)
        if place >= 0 and not _fits(field.type, new.field(place).type):
            yield f"column '{field.name}' was {field.type} and is {new.field(place).type} now"
        elif place < 0 and not field.name.startswith(ADDED):
            yield f"column '{field.name}' is gone"
    for field in new:
        if field.name.startswith(ADDED) and old.get_field_index(field.name) < 0:
            yield f"they lack '{field.name}'"


def refuse_misfits(old: pa.Schema, new: pa.Schema, held: int, where: str) -> None:
    """Refuse to continue while rows wait that can't be converted to the current columns of the query."""
    wrong = misfits(old, new)
    if wrong:
        raise StateMismatch(
            f"{held} rows wait in {where}, and {wrong[0]}: put the columns back until these rows are released, or start over "
            "with an empty state folder and a new checkpoint"
        )


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to other columns, for which there must be no misfits."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fits(old: pa.DataType, new: pa.DataType) -> bool:
    if old.equals(new):
        return True
    if types.is_list(old) and types.is_list(new):
        return _fits(old.value_type, new.value_type)
    if types.is_struct(old) and types.is_struct(new):
        return [field.name for field in old] == [field.name for field in new] and all(
            _fits(before.type, after.type) for before, after in zip(old, new, strict=True)
        )
    return _is_wider(old, new)


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    for is_kind in (types.is_signed_integer, types.is_floating):
        if is_kind(old) and is_kind(new):
            return bool(old.bit_width <= new.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    if types.is_timestamp(old) and types.is_timestamp(new):
        return bool(old.unit == new.unit and (old.tz is None) == (new.tz is None))
    return False
