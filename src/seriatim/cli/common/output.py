"""What commands print: tables and sentences for people, JSON for programs.

Rules
    - JSON has the same field names everywhere: times are ISO 8601 in UTC, ages and durations are seconds, ids are strings, and
      what is missing is null. A list is one array; a stream is one object per line.
    - Payloads are text if they are UTF-8, otherwise base64; ``encoding`` says which.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from seriatim.cli.common.display import new_table, print_table, readable

Fields = dict[str, Any]
Cell = str | Callable[[Fields], object]
"""How a column is filled: with a field, or with what a function makes of all of them."""
Columns = Mapping[str, Cell]


def column_if_set(name: str, rows: Sequence[Fields]) -> dict[str, Cell]:
    """A column that is shown only if some row has a value for it."""
    return {name: name} if any(row[name] for row in rows) else {}


@dataclass(frozen=True, slots=True)
class Output:
    """Standard output, for people or for programs."""

    as_json: bool
    progress: bool = False

    def listing(self, rows: Sequence[Fields], columns: Columns, *, empty: str) -> None:
        """Print a list, of which people see some columns."""
        if self.as_json:
            click.echo(as_json(rows))
        elif rows:
            print_rows(rows, columns)
        else:
            click.echo(empty)

    def result(self, fields: Fields, sentence: str) -> None:
        """Print the result of a command, or one item of a stream."""
        click.echo(as_json(fields) if self.as_json else sentence)

    def details(self, fields: Fields, facts: Mapping[str, object]) -> None:
        """Print one thing with many properties, of which people see those that are set."""
        if self.as_json:
            click.echo(as_json(fields))
            return
        width = max(map(len, facts)) + 2
        for name, value in facts.items():
            if value is not None:
                click.echo(f"{name:<{width}}{cell_text(value)}")

    def note(self, sentence: str) -> None:
        """Tell people something that is not a result, such as that there is none."""
        if not self.as_json:
            click.echo(sentence, err=True)


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


def moment(time: datetime | float | None) -> str | None:
    """A time in ISO 8601."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        time = datetime.fromtimestamp(time, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float | None) -> str | None:
    """A duration for people: its two largest units."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    parts: list[str] = []
    rest = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(filter(None, parts[:2]))


def counted(count: int, noun: str) -> str:
    """A number of things for people: 1 batch, 1,024 batches."""
    plural = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{plural}"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def payload(data: bytes) -> Fields:
    """The fields with the data of a message."""
    try:
        return {"data": data.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}


def message_fields(
    message_id: str, key: str | None, data: bytes, attributes: Mapping[str, str], published: datetime | float
) -> Fields:
    return {
        "id": message_id,
        "key": key,
        **payload(data),
        "attributes": dict(attributes),
        "published": moment(published),
    }


def payload_text(fields: Fields) -> str:
    """The data of a message, for people."""
    return readable(fields["data"]) if fields["encoding"] == "text" else f"base64:{fields['data']}"


def attributes_text(fields: Fields) -> str:
    return " ".join(f"{readable(name)}={readable(value)}" for name, value in fields["attributes"].items())


def message_line(fields: Fields) -> str:
    """A message for people: id, key, attributes if there are any, data."""
    parts = (fields["id"], cell_text(fields["key"]), attributes_text(fields), payload_text(fields))
    return "  ".join(part for part in parts if part)
