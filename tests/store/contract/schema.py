"""What every store in a SQL database does with its schema. A dialect says how a database is opened and asked."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from seriatim.errors import NewerSchema, NotAStore, StoreFailed
from seriatim.store.sql.queries import Migration, load_migrations


class Database(NamedTuple):
    """A database of some dialect, with no store in it yet."""

    dialect: str
    module: ModuleType
    """Where the migrations are loaded."""
    own: Callable[[], Any]
    read: Callable[[], Any]
    ask: Callable[[str], list[Any]]

    @property
    def last(self) -> int:
        return load_migrations(self.dialect)[-1].version

    def with_more(self, patch: pytest.MonkeyPatch, *scripts: str) -> None:
        """Let the program know further migrations."""
        more = tuple(Migration(self.last + at, f"more_{at}", script) for at, script in enumerate(scripts, 1))
        patch.setattr(self.module, "load_migrations", lambda dialect: load_migrations(dialect) + more)


class SchemaContract:
    @pytest.fixture
    def database(self) -> Database:
        raise NotImplementedError

    def test_a_newer_schema_is_refused_by_owner_and_reader(self, database):
        database.own().close()
        database.ask("INSERT INTO migrations VALUES (99, 'from the future')")
        for opener in (database.own, database.read):
            with pytest.raises(NewerSchema, match=f"schema 99 and this Seriatim knows only {database.last}"):
                opener()
        assert [tuple(row) for row in database.ask("SELECT epoch FROM store")] == [(1,)]

    def test_migrations_are_applied_in_order_and_once(self, database, monkeypatch):
        database.own().close()
        add = "CREATE TABLE extra (x text);\n-- Two statements.\nINSERT INTO extra VALUES (';');\n"
        database.with_more(monkeypatch, add, "UPDATE extra SET x = 'changed';")
        with pytest.raises(NotAStore, match="older schema"):
            database.read()
        for _ in range(2):
            database.own().close()
        assert database.ask("SELECT x FROM extra") == [("changed",)]
        versions = [row[0] for row in database.ask("SELECT version FROM migrations ORDER BY version")]
        assert versions == [*range(1, database.last + 3)]

    def test_a_migration_that_fails_leaves_the_schema_as_it_was(self, database, monkeypatch):
        database.own().close()
        with monkeypatch.context() as patch:
            database.with_more(patch, "CREATE TABLE extra (x int);", "DROP TABLE nothing;")
            with pytest.raises(StoreFailed, match="nothing"):
                database.own()
        database.own().close()
        database.ask("CREATE TABLE extra (x int)")  # there is none
