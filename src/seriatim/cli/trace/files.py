"""Captured traces: rows of CSV, JSON lines or parquet, in the order in which they arrived."""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from seriatim.errors import InvalidArgument, NotFound
from seriatim.extras import require_extra

STANDARD_INPUT = "-"
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")


class Columns(NamedTuple):
    """Which columns hold the key and the sequence."""

    key: str
    sequence: str


class Row(NamedTuple):
    """One message of a trace, and where it stands (``line 7``)."""

    place: str
    key: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows to read once, and how far reading has come: ``position()`` of ``size``, None when that can't be known."""

    rows: Iterator[Row]
    size: int | None
    position: Callable[[], int]


@contextmanager
def open_trace(name: str, columns: Columns) -> Iterator[Trace]:
    """Open a file, or standard input for ``-``; what is wrong with it raises InvalidArgument naming the line."""
    if name != STANDARD_INPUT and not Path(name).is_file():
        raise NotFound(f"there is no file '{name}'")
    try:
        if name == STANDARD_INPUT:
            with _as_text(sys.stdin.buffer) as text:
                yield Trace(_text_rows(text, columns), None, lambda: 0)
        elif name.endswith(".parquet"):
            yield _parquet_trace(name, columns)
        else:
            with Path(name).open("rb") as file, _as_text(file) as text:
                yield Trace(_text_rows(text, columns), os.fstat(file.fileno()).st_size, file.tell)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"'{name}' is not UTF-8 text: {error}") from error


@contextmanager
def _as_text(file: BinaryIO) -> Iterator[io.TextIOWrapper]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        yield text
    finally:
        text.detach()  # whoever opened the file closes it


def _text_rows(text: io.TextIOWrapper, columns: Columns) -> Iterator[Row]:
    first = text.readline()
    # A JSON object can't open a sensible CSV heading, so one character tells the two apart.
    read = _json_rows if first.lstrip().startswith("{") else _csv_rows
    return read(chain([first], text), columns)


def _csv_rows(lines: Iterator[str], columns: Columns) -> Iterator[Row]:
    reader = csv.reader(lines, strict=True)
    try:
        heading = next(reader, [])
        key_at, sequence_at = (_column(name, heading) for name in columns)
        for fields in reader:
            if not fields:
                continue
            place = f"line {reader.line_num}"
            if len(fields) <= max(key_at, sequence_at):
                raise InvalidArgument(f"{place}: has {len(fields)} fields where the heading has {len(heading)}")
            yield _row(place, columns, fields[key_at], fields[sequence_at])
    except csv.Error as error:
        raise InvalidArgument(f"line {reader.line_num}: not valid CSV: {error}") from error


def _json_rows(lines: Iterator[str], columns: Columns) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(f"{place}: not valid JSON: {error}") from error
        if not isinstance(fields, dict):
            raise InvalidArgument(f"{place}: must be a JSON object, not {line.strip():.40}")
        yield _row(place, columns, fields.get(columns.key), fields.get(columns.sequence))


def _parquet_trace(name: str, columns: Columns) -> Trace:
    require_extra("spark", "pyarrow", what="audit of a parquet file")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(name)
    except ArrowException as error:
        raise InvalidArgument(f"'{name}' is not a parquet file: {error}") from error
    for column in columns:
        _column(column, file.schema_arrow.names)
    done = 0

    def rows() -> Iterator[Row]:
        nonlocal done
        for batch in file.iter_batches(columns=list(dict.fromkeys(columns))):
            keys, sequences = (batch.column(column).to_pylist() for column in columns)
            for key, sequence in zip(keys, sequences, strict=True):
                done += 1
                yield _row(f"row {done}", columns, key, sequence)

    return Trace(rows(), file.metadata.num_rows, lambda: done)


def _column(name: str, heading: Sequence[str]) -> int:
    if name in heading:
        return heading.index(name)
    nearest = difflib.get_close_matches(name, heading, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"columns are: {', '.join(heading) or 'none'}"
    raise InvalidArgument(f"there is no column '{name}'; {hint}")


def _row(place: str, columns: Columns, key: object, sequence: object) -> Row:
    if isinstance(key, bytes):
        key = key.decode("utf-8", "backslashreplace")
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise InvalidArgument(f"{place}: the key '{columns.key}' must be a text or an integer, not {_shown(key)}")
    return Row(place, str(key), _sequence(place, columns.sequence, sequence))


def _sequence(place: str, column: str, value: object) -> int:
    # Texts too: CSV knows nothing else, and Protobuf's JSON writes 64 bit integers as texts.
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidArgument(f"{place}: the sequence '{column}' must be an integer, not {_shown(value)}")


def _shown(value: object) -> str:
    return "nothing" if value is None or value == "" else repr(value)
