"""A store is named by a URL, and its SQL lies in named, described files."""

from __future__ import annotations

import re
from contextlib import closing
from importlib.resources import files

import pytest

from seriatim.errors import InvalidArgument
from seriatim.store import open_store
from seriatim.store.memory import MemoryStore
from seriatim.store.sql.queries import load_migrations, load_queries
from seriatim.store.sqlite.store import SqliteReader, SqliteStore


def test_memory():
    assert isinstance(open_store("memory://"), MemoryStore)


def test_a_relative_and_an_absolute_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///here.db")) as store:
        assert isinstance(store, SqliteStore)
        assert store.url == f"sqlite:///{tmp_path}/here.db"
    with closing(open_store(f"sqlite:///{tmp_path}/there.db")) as store:
        assert store.url == f"sqlite:///{tmp_path}/there.db"
    assert {path.name for path in tmp_path.glob("*.db")} == {"here.db", "there.db"}


def test_read_only(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url)), closing(open_store(url, read_only=True)) as reader:
        assert isinstance(reader, SqliteReader)
        assert not isinstance(reader, SqliteStore)


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///", "sqlite://host/x", "redis://x", "memory://x", "postgresql:/x"]
)
def test_anything_else_is_refused_with_what_there_is(url):
    with pytest.raises(
        InvalidArgument, match=r"memory://, sqlite:///relative.* or postgresql://user@host:port/database"
    ):
        open_store(url)


def test_the_name_of_a_file_is_refused_with_the_address_that_it_needs():
    with pytest.raises(InvalidArgument, match=r"'orders\.db' is not the address of a store: .* sqlite:///orders\.db"):
        open_store("orders.db")


def test_a_refused_address_is_shown_without_its_secret():
    with pytest.raises(InvalidArgument, match=r"'mysql://me:\*\*\*@db/x' is not a store"):
        open_store("mysql://me:hunter2@db/x")


def test_memory_can_not_be_opened_by_somebody_else():
    with pytest.raises(InvalidArgument, match="read-only"):
        open_store("memory://", read_only=True)


DIALECTS = ["sqlite", "postgres"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_query_is_described_once_and_used(dialect):
    folder = files("seriatim.store")
    texts = [(folder / one / "queries.sql").read_text() for one in ("sql", dialect)]
    names = re.findall(r"^-- name: (\w+)\n", "\n".join(texts), re.MULTILINE)
    assert names == list(load_queries(dialect))
    sources = [*folder.iterdir(), *(folder / "sql").iterdir(), *(folder / dialect).iterdir()]
    code = "".join(file.read_text() for file in sources if file.name.endswith(".py"))
    assert [name for name in names if f'"{name}"' not in code] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_are_numbered_without_gaps(dialect):
    migrations = load_migrations(dialect)
    assert [migration.version for migration in migrations] == list(range(1, len(migrations) + 1))
