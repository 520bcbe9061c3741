"""A look at everything that a SQL store holds. Nothing is repaired: what is wrong is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from seriatim.errors import StoreError
from seriatim.store.base import BLOCK, Cursor, Problem, SubscriptionRow, TopicRow
from seriatim.store.pack import PackHead
from seriatim.store.sql.reader import read_catalog, read_cursor
from seriatim.store.sql.session import Row, Session

Reading = Callable[[], AbstractContextManager[Session]]
"""Opens a session in a short transaction."""


def find_problems(reading: Reading) -> Iterator[Problem]:
    """Everything that is wrong, in short transactions."""
    try:
        yield from _problems_of_the_database(reading)
        with reading() as session:
            catalog = read_catalog(session)
        for topic in catalog.topics:
            yield from _problems_of_a_log(reading, topic)
        logs = {topic.id: topic.next_offset for topic in catalog.topics}
        for subscription in catalog.subscriptions:
            if subscription.topic_id in logs:
                yield from _problems_of_a_cursor(reading, subscription, logs[subscription.topic_id])
    except StoreError as error:
        yield Problem("store", f"can't be read: {error}")


def _problems_of_the_database(reading: Reading) -> Iterator[Problem]:
    with reading() as session:
        damages = [row[0] for row in session.rows("integrity") if row[0] != "ok"]
        dangling = session.rows("dangling_rows")
    yield from (Problem("database", damage) for damage in damages)
    for table, _, parent, *_ in dangling:
        yield Problem(f"table {table}", f"a row points to one of {parent} that does not exist")


def _problems_of_a_log(reading: Reading, topic: TopicRow) -> Iterator[Problem]:
    last = -1
    cursor = -1
    while True:
        with reading() as session:
            rows = session.rows("packs_after", topic.id, cursor)
        if not rows:
            break
        (row,) = rows
        where = f"topic '{topic.name}', pack {row[0]}"
        if row[1] <= last:
            yield Problem(where, f"begins with offset {row[1]} although {last} comes before it")
        yield from (Problem(where, what) for what in _problems_of_a_pack(row))
        cursor, last = row[1], max(last, row[2])
    if topic.next_offset <= last:
        yield Problem(f"topic '{topic.name}'", f"would give offset {topic.next_offset} although {last} is in use")


def _problems_of_a_pack(row: Row) -> Iterator[str]:
    _, first, last, messages, head, data = row
    try:
        offsets = [record.offset for record in PackHead(head).records(data)]
    except StoreError as error:
        yield str(error)
        return
    if (offsets[0], offsets[-1], len(offsets)) != (first, last, messages):
        yield f"is listed with {messages} messages from {first} to {last} and holds {len(offsets)} others"
    if offsets != sorted(set(offsets)):
        yield "has offsets that do not rise"


def _problems_of_a_cursor(reading: Reading, subscription: SubscriptionRow, next_offset: int) -> Iterator[Problem]:
    where = f"subscription '{subscription.name}'"
    with reading() as session:
        cursor = read_cursor(session, subscription.id)
    highest = _highest(cursor)
    if highest >= next_offset:
        yield Problem(where, f"has settled offset {highest} although the log ends at {next_offset}")


def _highest(cursor: Cursor) -> int:
    """The highest settled offset, -1 for none."""
    ends = [block * BLOCK + bits.bit_length() for block, bits in cursor.blocks.items()]
    return max([cursor.floor, *ends]) - 1
