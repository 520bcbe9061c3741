"""What commands print: tables and sentences for people, JSON for programs.

Rules
    - JSON has the same field names everywhere: times are ISO 8601 in UTC, ages and durations are seconds, ids are strings, and
      what is not there is null. A list is one array; what comes bit by bit is one object a line.
    - Payloads are text where they are UTF-8; otherwise they are base64, and ``encoding`` says so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from seriatim.cli.display import new_table, print_table, readable

Fields = dict[str, Any]
Cell = str | Callable[[Fields], object]
"""How a column is filled: with a field, or with what a function makes of all of them."""
Columns = Mapping[str, Cell]


def where_said(name: str, rows: Sequence[Fields]) -> dict[str, Cell]:
    """A column that is shown only when some row has something in it."""
    return {name: name} if any(row[name] for row in rows) else {}


@dataclass(frozen=True, slots=True)
class Output:
    """Standard output, for people or for programs."""

    as_json: bool
    progress: bool = False

    def listing(self, rows: Sequence[Fields], columns: Columns, *, empty: str) -> None:
        """A list, of which people see some columns."""
        if self.as_json:
            click.echo(as_json(rows))
        elif rows:
            print_rows(rows, columns)
        else:
            click.echo(empty)

    def result(self, fields: Fields, sentence: str) -> None:
        """One thing that was done, or one piece of a stream."""
        click.echo(as_json(fields) if self.as_json else sentence)


def print_rows(rows: Sequence[Fields], columns: Columns) -> None:
    table = new_table(*columns)
    for row in rows:
        table.add_row(*(cell_text(row[cell] if isinstance(cell, str) else cell(row)) for cell in columns.values()))
    for column, cell in zip(table.columns, columns.values(), strict=True):
        if isinstance(cell, str) and all(isinstance(row[cell], int | float) for row in rows):
            column.justify = "right"
    print_table(table)


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def cell_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return readable(str(value))


def moment(seconds: float | None) -> str | None:
    """A time as it is printed everywhere."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float | None) -> str | None:
    """A duration for people: its two largest units."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}s"
    parts: list[str] = []
    rest = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def payload(data: bytes) -> Fields:
    """The fields that say what a message carries."""
    try:
        return {"data": data.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}


def message_fields(
    offset: str, key: str | None, data: bytes, attributes: Mapping[str, str], published: float
) -> Fields:
    return {
        "id": offset,
        "key": key,
        **payload(data),
        "attributes": dict(attributes),
        "published": moment(published),
    }


def payload_text(fields: Fields) -> str:
    """What a message carries, for people."""
    return readable(fields["data"]) if fields["encoding"] == "text" else f"base64:{fields['data']}"


def message_line(fields: Fields) -> str:
    """A message for people: id, key, data."""
    return f"{fields['id']}  {cell_text(fields['key'])}  {payload_text(fields)}"
