"""Named queries and numbered migrations, read from ``.sql`` files: those of a dialect, and queries that both share.

In a ``queries.sql`` a query begins with ``-- name: the_name``, then a comment that says what it is for, then one statement.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

_QUERY = re.compile(r"^-- name: (?P<name>\w+)\n(?P<what>(?:--.*\n)+)(?P<text>[^;]+);", re.MULTILINE)
_MIGRATION = re.compile(r"(?P<version>\d{4})_(?P<name>\w+)\.sql")


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    script: str


@cache
def load_queries(dialect: str) -> Mapping[str, str]:
    """The text of every query by its name."""
    shared = _queries_of("sql")
    if dialect == "postgres":
        shared = {name: _numbered(text) for name, text in shared.items()}
    return shared | _queries_of(dialect)


def _queries_of(folder: str) -> dict[str, str]:
    text = (_folder(folder) / "queries.sql").read_text(encoding="utf-8")
    return {found["name"]: found["text"] for found in _QUERY.finditer(text)}


def _numbered(text: str) -> str:
    """``?`` or ``?1`` as PostgreSQL writes them: ``$1``."""
    numbers = itertools.count(1)
    return re.sub(r"\?(\d*)", lambda mark: f"${mark[1] or next(numbers)}", text)


@cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """Every migration, the oldest first."""
    found = (
        Migration(int(parts["version"]), parts["name"], file.read_text(encoding="utf-8"))
        for file in (_folder(dialect) / "migrations").iterdir()
        if (parts := _MIGRATION.fullmatch(file.name))
    )
    return tuple(sorted(found))


def _folder(dialect: str) -> Traversable:
    return files("seriatim.store") / dialect
