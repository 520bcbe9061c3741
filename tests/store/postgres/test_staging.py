"""Messages that are staged in the database: whole or not at all, appended without leaving it, forgotten afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from seriatim.errors import DamagedStore
from seriatim.store.base import Pack, Record
from seriatim.store.pack import encode
from seriatim.store.postgres.staging import forget_staged, stage
from seriatim.store.postgres.store import PostgresStore
from seriatim.store.sql import reader
from tests.postgres import schema_of, server
from tests.store.contract.kit import NOW, broken_off, topic_with_subscription

PACKS = [encode([Record(0, "a", b"x", {"n": "1"}), Record(1, None, b"")]), encode([Record(0, "ä", b"z" * 10_000)])]
APPENDED = [
    Record(5, "a", b"x", {"n": "1"}, NOW),
    Record(6, None, b"", None, NOW),
    Record(7, "ä", b"z" * 10_000, None, NOW),
]


@pytest.fixture
def store(postgres_url) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


def waiting(url: str) -> list[tuple[str, int, int]]:
    """Writer, batch and place of every pack that is staged."""
    return server().ask("SELECT writer, batch, place FROM staged ORDER BY 1, 2, 3", schema_of(url))


def test_staged_messages_are_appended_under_their_offsets_and_time(store, postgres_url, monkeypatch):
    monkeypatch.setattr(reader, "MAX_PACKS_AT_A_TIME", 1)
    topic, _ = topic_with_subscription(store, messages=3)
    name = stage(postgres_url, "spark", 4, PACKS)
    store.check_staged(name, 3)
    seen: list[object] = []
    broken_off(store, lambda work: work.append_staged(topic.id, name, 5, NOW))
    with store.transaction() as work:
        work.append_staged(topic.id, name, 5, NOW, seen.extend)
    assert store.read(topic.id, 5, 3) == APPENDED
    assert len(seen) == 3
    assert list(store.check()) == []


def test_what_is_not_there_as_it_was_staged_is_refused_before_it_is_appended(store, postgres_url):
    name = stage(postgres_url, "spark", 4, PACKS)
    for gone in (name, "staged:never"):
        with pytest.raises(DamagedStore, match="stage them again"):
            store.check_staged(gone, 4)


def test_an_attempt_that_breaks_off_leaves_nothing(store, postgres_url):
    def packs() -> Iterator[Pack]:
        yield PACKS[0]
        raise RuntimeError("the task was killed")

    with pytest.raises(RuntimeError, match="killed"):
        stage(postgres_url, "spark", 4, packs())
    assert waiting(postgres_url) == []


def test_a_writer_forgets_what_it_staged_up_to_a_batch_and_what_is_days_old(store, postgres_url):
    for writer, batch in (("a", 3), ("a", 4), ("a", 5), ("b", 4), ("old", 9)):
        stage(postgres_url, writer, batch, PACKS[:1])
    server().ask(
        "UPDATE staged SET since = now() - interval '8 days' WHERE writer = 'old' RETURNING 1", schema_of(postgres_url)
    )
    forget_staged(postgres_url, "a", 4)
    assert waiting(postgres_url) == [("a", 5, 0), ("b", 4, 0)]
