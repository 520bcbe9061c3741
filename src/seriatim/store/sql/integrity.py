"""A check of everything that a SQL store holds. Nothing is repaired: what is wrong is reported."""

from __future__ import annotations

from collections.abc import Iterator

from seriatim.errors import StoreError
from seriatim.store.base import BLOCK, Cursor, Problem, TopicRow
from seriatim.store.pack import PackHead
from seriatim.store.sql.reader import SqlReader
from seriatim.store.sql.session import Row, Session

UNREADABLE = (StoreError, TypeError, ValueError)
"""What reading a damaged row may raise: it may hold anything."""


def find_problems(store: SqlReader) -> Iterator[Problem]:
    """Everything that is wrong, in short transactions."""
    try:
        yield from _problems_of_the_database(store)
        catalog = store.catalog()
        for topic in catalog.topics:
            yield from _problems_of_a_log(store, topic)
        ends = {topic.id: topic.next_offset for topic in catalog.topics}
        for subscription in catalog.subscriptions:
            if (end := ends.get(subscription.topic_id)) is not None:
                where = f"subscription '{subscription.name}'"
                yield from (Problem(where, what) for what in _problems_of_a_subscription(store, subscription.id, end))
    except UNREADABLE as error:
        yield Problem("store", f"can't be read: {error}")


def _problems_of_the_database(store: SqlReader) -> Iterator[Problem]:
    with store.reading() as session:
        damages = [row[0] for row in session.rows("integrity") if row[0] != "ok"]
        misfits = list(problems_of_rows(session))
    yield from (Problem("database", damage) for damage in damages)
    yield from misfits


def problems_of_rows(session: Session) -> Iterator[Problem]:
    """Rows that hold something else than their columns are for, or point to rows that are not there."""
    yield from map(Problem._make, session.misfits())
    for table, _, parent, *_ in session.rows("dangling_rows"):
        yield Problem(f"table {table}", f"a row points to one of {parent} that does not exist")


def _problems_of_a_log(store: SqlReader, topic: TopicRow) -> Iterator[Problem]:
    last = -1
    cursor = -1
    while True:
        with store.reading() as session:
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


def _problems_of_a_subscription(store: SqlReader, subscription_id: int, end: int) -> Iterator[str]:
    try:
        highest = _highest(store.cursor(subscription_id))
        if highest >= end:
            yield f"has settled offset {highest} although the log ends at {end}"
        for read in (store.troubles, store.paused_keys, store.dead_letters):
            read(subscription_id)
    except UNREADABLE as error:
        yield f"can't be read: {error}"


def _highest(cursor: Cursor) -> int:
    """The highest settled offset, -1 for none."""
    ends = [block * BLOCK + bits.bit_length() for block, bits in cursor.blocks.items()]
    return max([cursor.floor, *ends]) - 1
