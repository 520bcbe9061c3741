"""Filters as trees: printed as texts of the language, and read naively."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Has:
    name: str

    def __str__(self) -> str:
        return f"attributes:{_print_name(self.name)}"


@dataclass(frozen=True)
class Equals:
    name: str
    value: str

    def __str__(self) -> str:
        return f"attributes.{_print_name(self.name)} = {_quote(self.value)}"


@dataclass(frozen=True)
class HasPrefix:
    name: str
    prefix: str

    def __str__(self) -> str:
        return f"hasPrefix(attributes.{_print_name(self.name)}, {_quote(self.prefix)})"


@dataclass(frozen=True)
class Not:
    term: Filter

    def __str__(self) -> str:
        if isinstance(self.term, Equals):
            return f"attributes.{_print_name(self.term.name)} != {_quote(self.term.value)}"
        return f"NOT ({self.term})" if isinstance(self.term, Not) else f"NOT {_group(self.term)}"


@dataclass(frozen=True)
class AllOf:
    terms: tuple[Filter, ...]

    def __str__(self) -> str:
        return " AND ".join(map(_group, self.terms))


@dataclass(frozen=True)
class AnyOf:
    terms: tuple[Filter, ...]

    def __str__(self) -> str:
        return " OR ".join(map(_group, self.terms))


Filter: TypeAlias = Has | Equals | HasPrefix | Not | AllOf | AnyOf


def naive(tree: Filter, attributes: Mapping[str, str]) -> bool:
    """Whether a message with these attributes is wanted."""
    match tree:
        case Has(name):
            return name in list(attributes)
        case Equals(name, value):
            return (name, value) in list(attributes.items())
        case HasPrefix(name, prefix):
            return any(key == name and value[: len(prefix)] == prefix for key, value in attributes.items())
        case Not(term):
            return not naive(term, attributes)
        case AllOf(terms):
            return {naive(term, attributes) for term in terms} == {True}
        case AnyOf(terms):
            return True in {naive(term, attributes) for term in terms}


def _group(term: Filter) -> str:
    return f"({term})" if isinstance(term, AllOf | AnyOf) else str(term)


def _print_name(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _quote(name)


def _quote(text: str) -> str:
    escaped = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return '"' + "".join(escaped.get(letter, letter) for letter in text) + '"'
