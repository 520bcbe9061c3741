"""A pipeline as it is declared: one TOML file becomes frozen objects, or an error that names the table and the field.

Rules
    - A field that does not exist is refused: a misspelt ``gap_timout`` that is silently ignored loses messages.
    - ``${NAME}`` stands for an environment variable. It is filled in only when a value is passed to Spark
      (``Declaration.filled_in``): output shows the name, never the secret.
    - Relative paths are relative to the folder of the file, regardless of the working directory: a checkpoint that moves with
      the working directory would silently start over.
    - Options of a format may be written with dots (``kafka.bootstrap.servers = "…"``), which TOML parses as tables.

This module needs no Spark. Checks that depend on a frame (columns, types) are made when the pipeline starts.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from seriatim.core.guarantees import Guarantee, Level
from seriatim.core.validation import seconds_in
from seriatim.errors import InvalidArgument, NotFound
from seriatim.spark.frames.resequence import StartOption, resequence
from seriatim.spark.pipeline.exactly_once import EXACTLY_ONCE, KAFKA, TABLE, TOPIC
from seriatim.spark.tagged import Tag
from seriatim.store import store_file

T = TypeVar("T")

AVAILABLE_NOW = "available-now"
ASYNCHRONOUS = "asyncprogresstracking"
"""How the options begin with which Spark does not wait for its own log."""
WITHOUT_SCHEMA = ("parquet", "json", "csv", "orc", "avro", "xml")
"""Formats of files whose schema Spark needs before a stream of them begins."""

PROMISES = {
    "no inversion": Guarantee.NO_INVERSION,
    "no duplicate": Guarantee.NO_DUPLICATE,
    "no loss": Guarantee.NO_LOSS,
}
_VARIABLE = re.compile(r"(\$?)\$\{(\w+)\}")


# -- what a field may hold ----------------------------------------------------------------------------------------------


class FieldKind(NamedTuple):
    """What a field may hold, in words and as a test."""

    words: str
    accepts: Callable[[Any], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_duration(value: object) -> bool:
    if isinstance(value, str):
        return seconds_in(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_promise(value: object) -> bool:
    if isinstance(value, list):
        return all(bit in PROMISES for bit in value)
    return value in set(Level)


TEXT = FieldKind("a string", _is_text)
TEXTS = FieldKind("a list of strings", lambda value: isinstance(value, list) and all(map(_is_text, value)))
NAMES = FieldKind("a string or a list of strings", lambda value: _is_text(value) or TEXTS.accepts(value))
WHOLE = FieldKind("a whole number", _is_whole)
START = FieldKind("a whole number, 'lowest' or 'first'", lambda value: _is_whole(value) or value in {"lowest", "first"})
DURATION = FieldKind("a duration such as '2s', or a number of seconds", _is_duration)
TRIGGER = FieldKind(
    f"{AVAILABLE_NOW!r}, or a time between batches such as '2s'",
    lambda value: value == AVAILABLE_NOW or (isinstance(value, str) and _is_duration(value)),
)
PROMISE = FieldKind(f"a level such as 'none', or a list of {', '.join(map(repr, PROMISES))}", _is_promise)
TABLE_OF_VALUES = FieldKind("a table of strings, numbers and booleans", lambda value: isinstance(value, dict))
EXPRESSIONS = FieldKind(
    "a table of SQL expressions", lambda value: isinstance(value, dict) and all(map(_is_text, value.values()))
)


def one_of(names: Iterable[str]) -> FieldKind:
    known = tuple(map(str, names))
    return FieldKind(f"one of {', '.join(map(repr, known))}", lambda value: value in known)


class Option(NamedTuple):
    """A field that a table may have, or must have."""

    kind: FieldKind
    is_required: bool


_KINDS: dict[frozenset[object], FieldKind] = {
    frozenset({str}): TEXT,
    frozenset({int}): WHOLE,
    frozenset({str, float}): DURATION,
    frozenset({str, Sequence[str]}): NAMES,
    frozenset(get_args(StartOption)): START,
}
"""What an option of ``resequence`` may hold, by the types that its signature says."""


def order_options() -> dict[str, Option]:
    """The fields of ``[order]``: the options of ``resequence``, under its names."""
    hints = get_type_hints(resequence, localns={"DataFrame": object})
    return {
        name: Option(_kind_of(hints[name]), one.default is one.empty)
        for name, one in signature(resequence).parameters.items()
    }


def _kind_of(hint: object) -> FieldKind:
    parts = frozenset(get_args(hint) or (hint,)) - {type(None)}
    choices = [part for part in parts if isinstance(part, type) and issubclass(part, StrEnum)]
    return one_of(choices[0]) if choices else _KINDS[parts]


def _of(kind: FieldKind, default: Any = MISSING, factory: Any = MISSING) -> Any:
    """A field of a table; without a default it must be there."""
    if factory is not MISSING:
        return field(default_factory=factory, metadata={"kind": kind})
    return field(default=default, metadata={"kind": kind})


# -- the tables ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``[pipeline]``"""

    name: str = _of(TEXT)
    checkpoint: str = _of(TEXT)
    require: str | None = _of(one_of(Level), None)
    trigger: str | None = _of(TRIGGER, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """``[source]``"""

    format: str = _of(TEXT)
    options: dict[str, Any] = _of(TABLE_OF_VALUES, factory=dict)
    schema: str | None = _of(TEXT, None)
    select: list[str] = _of(TEXTS, factory=list)
    promises: str | list[str] | None = _of(PROMISE, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """``[[sink]]``"""

    what: str = _of(one_of(Tag), str(Tag.ORDERED))
    format: str = _of(TEXT)
    options: dict[str, Any] = _of(TABLE_OF_VALUES, factory=dict)
    columns: dict[str, str] | None = _of(EXPRESSIONS, None)

    @property
    def is_written_once(self) -> bool:
        """Whether a repeated batch is recognised, so that its rows appear exactly once."""
        return self.format in EXACTLY_ONCE

    @property
    def target(self) -> str:
        """The destination in words, without other options of the format, which may be secrets."""
        known = ("topic",) if self.format in {TOPIC, "kafka"} else ("table", "path")
        return " ".join([self.format, *(self.options[name] for name in known if name in self.options)])

    @property
    def identity(self) -> tuple[object, ...]:
        """Must be unique: two sinks with the same identity would mistake each other's batches for their own."""
        where = map(self.options.get, ("url", "topic", "path", "table"))
        return (self.what, *where) if self.format == TOPIC else (self.format, *where)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A whole file. ``order`` has arguments of ``resequence``; ``folder`` is where relative paths begin."""

    settings: Settings
    source: Source
    order: dict[str, Any]
    sinks: tuple[Sink, ...]
    spark: dict[str, str]
    folder: Path

    def filled_in(self, environ: Mapping[str, str] | None = None) -> Declaration:
        """The same with the values of the environment, options as Spark wants them and paths that hold anywhere."""
        at = _Substitution(os.environ if environ is None else environ, self.folder)
        checkpoint = at.path("[pipeline] checkpoint", self.settings.checkpoint)
        state = self.order.get("state") or f"{self.settings.checkpoint.rstrip('/')}-state"
        return replace(
            self,
            settings=replace(self.settings, checkpoint=checkpoint),
            source=replace(self.source, options=at.options("[source]", self.source)),
            order={**self.order, "state": at.path("[order] state", state)},
            sinks=tuple(replace(sink, options=at.options("[[sink]]", sink)) for sink in self.sinks),
            spark={name: at.text(f"[spark] {name}", value) for name, value in self.spark.items()},
        )

    def secrets(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """What came from the environment, by value, and what to show instead."""
        environ = os.environ if environ is None else environ
        texts = [*self.source.options.values(), *self.spark.values()]
        texts += [value for sink in self.sinks for value in sink.options.values()]
        names = {found[2] for text in texts for found in _VARIABLE.finditer(str(text))}
        return {environ[name]: f"${{{name}}}" for name in sorted(names) if environ.get(name)}


class _Substitution:
    """Puts values of the environment and whole paths where names and relative ones stand."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ, self._folder = environ, folder

    def text(self, where: str, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1]:  # $${NAME} stands for itself, with one $
                return found[0][1:]
            if found[2] not in self._environ:
                raise InvalidArgument(f"{where}: there is no variable {found[2]} in the environment: set it")
            return self._environ[found[2]]

        return _VARIABLE.sub(value, text)

    def path(self, where: str, text: str) -> str:
        return self._located(self.text(where, text))

    def _located(self, path: str) -> str:
        return path if "://" in path else str(self._folder / path)

    def options(self, table: str, of: Source | Sink) -> dict[str, str]:
        filled = {name: self.text(f"{table} options.{name}", _as_option(value)) for name, value in of.options.items()}
        for name in {"path", "staging", "catalog.warehouse"} & filled.keys():
            filled[name] = self._located(filled[name])
        address = "url" if of.format == TOPIC else "catalog.uri"
        if filled.get(address, "").startswith("sqlite:") and (file := store_file(filled[address])) is not None:
            filled[address] = f"sqlite:///{self._folder / file}"
        return filled


def _as_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- reading ------------------------------------------------------------------------------------------------------------

_TABLES = ("pipeline", "source", "order", "sink", "spark")


def read_declaration(path: Path) -> Declaration:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise NotFound(f"there is no pipeline file '{path}'") from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: not valid TOML: {error}") from None
    try:
        return parse(text, path.absolute().parent)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None


def parse(text: str, folder: Path) -> Declaration:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"not valid TOML: {error}") from None
    for name in found:
        if name not in _TABLES:
            raise InvalidArgument(f"unknown table [{name}]: {_hint(name, _TABLES)}")
    declaration = Declaration(
        settings=_read(Settings, "[pipeline]", found.get("pipeline")),
        source=_read(Source, "[source]", found.get("source")),
        order=_read_values("[order]", order_options(), found.get("order")),
        sinks=tuple(_read_sinks(found.get("sink"))),
        spark={name: _as_option(value) for name, value in _read_spark(found.get("spark", {}))},
        folder=folder,
    )
    _check(declaration)
    return declaration


def _read_sinks(found: object) -> Iterator[Sink]:
    if not isinstance(found, list) or not found:
        raise InvalidArgument("there is no [[sink]]: say where the ordered rows go")
    seen: set[tuple[object, ...]] = set()
    for number, values in enumerate(found, 1):
        sink = _read(Sink, f"[[sink]] {number}", values)
        if sink.is_written_once and sink.identity in seen:
            raise InvalidArgument(
                f"[[sink]] {number} writes to the same place as one before it: give each its own, {sink.target} is taken"
            )
        seen.add(sink.identity)
        yield sink


def _read_spark(found: object) -> Iterator[tuple[str, Any]]:
    if not isinstance(found, dict):
        raise InvalidArgument("[spark] must be a table of Spark's settings")
    for name, value in _flat("[spark]", found):
        yield (name if name.startswith("spark.") else f"spark.{name}"), value


def _read(kind: type[T], table: str, values: object) -> T:
    """One table as the object that it declares."""
    options = {
        one.name: Option(one.metadata["kind"], one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**_read_values(table, options, values))


def _read_values(table: str, known: Mapping[str, Option], values: object) -> dict[str, Any]:
    """One table, every field of it looked at."""
    if not isinstance(values, dict):
        raise InvalidArgument(f"there is no table {table}" if values is None else f"{table} must be a table")
    for name in values:
        if name not in known:
            raise InvalidArgument(f"unknown field '{name}' in {table}: {_hint(name, known)}")
    for name, option in known.items():
        if name not in values and option.is_required:
            raise InvalidArgument(f"{table} has no field '{name}': it must be {option.kind.words}")
    return {name: _checked(f"{table} {name}", known[name].kind, value) for name, value in values.items()}


def _checked(where: str, kind: FieldKind, value: object) -> object:
    if not kind.accepts(value):
        raise InvalidArgument(f"{where} must be {kind.words}, not {value!r}")
    return dict(_flat(where, value)) if kind is TABLE_OF_VALUES and isinstance(value, dict) else value


def _flat(where: str, values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The names and values of nested tables, with dots between the names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(where, value, f"{before}{name}.")
        elif isinstance(value, str | int | float):
            yield f"{before}{name}", value
        else:
            raise InvalidArgument(f"{where}: '{before}{name}' must be a string, a number or a boolean, not {value!r}")


def _check(declaration: Declaration) -> None:
    """Refuse what no single field shows to be wrong."""
    source, sinks = declaration.source, declaration.sinks
    if declaration.settings.require is not None and all(sink.what != Tag.ORDERED for sink in sinks):
        raise InvalidArgument("[pipeline] require is about ordered rows, and there is no [[sink]] for them")
    if source.format in WITHOUT_SCHEMA and source.schema is None:
        raise InvalidArgument(
            f"[source] has no field 'schema': a stream of {source.format} files needs it, such as \"device STRING, n BIGINT\""
        )
    for number, sink in enumerate(sinks, 1):
        _check_places(f"[[sink]] {number}", sink)
    tables = [source.options, declaration.spark, *(sink.options for sink in sinks)]
    for name in (name for table in tables for name in table):
        if name.lower().rpartition(".")[2].startswith(ASYNCHRONOUS):
            raise InvalidArgument(
                f"'{name}' is refused: with asynchronous progress tracking Spark continues before its log is written, and a "
                "batch that is repeated after a crash may have other rows under the same number"
            )


def _check_places(where: str, sink: Sink) -> None:
    means = EXACTLY_ONCE.get(sink.format)
    for names in means.needs if means is not None else ():
        given = [name for name in names if name in sink.options]
        if len(given) > 1:
            raise InvalidArgument(f"{where} has both options.{' and options.'.join(given)}: name one place")
        if not given:
            raise InvalidArgument(f"{where} has no options.{' or options.'.join(names)}: format {sink.format} needs it")
    for name in sink.options if sink.format == TABLE else ():
        if name != "path":
            raise InvalidArgument(f"unknown option '{name}' in {where}: a table has only its path")
    for name in ("kafka.bootstrap.servers", "topic") if sink.format == KAFKA else ():
        if name not in {
            *sink.options,
            *(sink.columns or ()),
        }:  # Spark would say so only when the first batch is written
            raise InvalidArgument(f"{where} has no options.{name}: format kafka needs it")


def _hint(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(known)}"
