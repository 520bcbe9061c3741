"""Stores to be damaged, and what is read from them afterwards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from seriatim.errors import SeriatimError
from seriatim.store.base import Cursor, DocumentRow, ReaderRow, SnapshotRow, StoreReader
from seriatim.store.sqlite.store import SqliteStore
from tests.store.contract.kit import letter, records, trouble


class Content(NamedTuple):
    """What a store holds. Messages and what is settled have checksums, and so has some of the rest (``rows.py``)."""

    messages: str
    settled: str
    rest: str


def fill(path: Path, transactions: int) -> tuple[SqliteStore, list[Content]]:
    """A store that uses every table, and what it held after each transaction."""
    store = SqliteStore(path)
    with store.transaction() as work:
        topic = work.create_topic("orders", {"retention": None})
        subscription = work.create_subscription(topic.id, "billing", {"window": 1}, Cursor(0))
    held = [content_of(store)]
    for number in range(transactions):
        first = 3 * number
        with store.transaction() as work:
            work.append(topic.id, records(range(first, first + 3), f"key-{number % 5}", 20 * number, published=0.0))
            if number % 3 == 0:
                work.note_troubles(subscription.id, [trouble(first)])
                work.bury(subscription.id, [letter(first + 1)])
            else:
                work.settle(subscription.id, [first, first + 1])
            work.put_document(DocumentRow("schema", f"{number % 4}", "text" * 20))
            work.claim_batch("writer", number)
            work.put_reader(ReaderRow("reader", topic.id, number))
            work.put_snapshot(SnapshotRow(f"{number % 3}", topic.id, Cursor(1, {0: 1 << number + 2}), 1e12, {}))
            work.pause_key(subscription.id, f"key-{number % 2}", "a reason")
        held.append(content_of(store))
        if number % 10 == 5:
            store.upkeep(10.0)
    return store, held


def content_of(store: StoreReader) -> Content:
    catalog = store.catalog()
    subscriptions = [row.id for row in catalog.subscriptions]
    return Content(
        repr([store.read(topic.id, 0, 10_000) for topic in catalog.topics]),
        repr([store.cursor(number) for number in subscriptions] + [row.cursor for row in catalog.snapshots]),
        repr(
            [
                catalog,
                *[(store.troubles(row), store.paused_keys(row), store.dead_letters(row)) for row in subscriptions],
                store.documents("schema"),
                store.writers(""),
            ]
        ),
    )


def reading(path: Path) -> tuple[str, Content | None]:
    """What becomes of a store that is opened, read and checked, and what it holds unless it is said to be damaged.

    Anything but an error of ours is a bare stack trace, and passes through.
    """
    try:
        with closing(SqliteStore(path)) as store:
            try:
                content = content_of(store)
            except SeriatimError:
                return "refused when read", None
            problems = list(store.check())
            return ("found by check", None) if problems else ("not noticed", content)
    except SeriatimError:
        return "refused when opened", None
