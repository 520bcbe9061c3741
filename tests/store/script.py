"""A script of steps that use every verb of a store, for those who let each of its calls fail once."""

from __future__ import annotations

from seriatim.store.base import Cursor, ReaderRow, SnapshotRow
from tests.store.contract.kit import NOW, kept, letter, records, trouble


def create(store):
    with store.transaction() as work:
        topic = work.create_topic("orders", {})
        work.create_subscription(topic.id, "billing", {}, Cursor(0, {0: 1 << 10}))
        work.append(topic.id, records(range(20)))


def append_and_settle(store):
    with store.transaction() as work:
        work.append(1, records(range(20, 40)))
        work.settle(1, range(15))
        work.note_troubles(1, [trouble(16), trouble(17)])


def trouble_and_dead_letters(store):
    with store.transaction() as work:
        work.bury(1, [letter(16), letter(18)])
        work.pause_key(1, "k", "why not")
        work.put_snapshot(SnapshotRow("s", 1, Cursor(3), NOW - 1, {}))
        work.put_reader(ReaderRow("r", 1, 30))
        work.claim_batch("w", 1)


def back_and_purge(store):
    with store.transaction() as work:
        work.unbury(1, [16])
        work.purge(1, [18])
        work.settle(1, [16, 17, 19, *range(20, 30)])


def clean_up(store):
    assert not store.upkeep(NOW).more_to_do


def seek(store):
    with store.transaction() as work:
        work.seek(1, Cursor(31, {0: 1 << 35}))
        work.resume_key(1, "k")
        work.delete_reader("r")


def read_everything(store):
    store.catalog()
    for question in (store.cursor, store.troubles, store.paused_keys, store.dead_letters, store.earliest):
        question(1)
    assert [len(pack) for pack in store.headers(1)]
    assert store.read(1, 0, 5) == store.fetch(1, [record.offset for record in store.read(1, 0, 5)])


def delete(store):
    with store.transaction() as work:
        work.delete_subscription(1)
        work.delete_topic(1)


STEPS = [
    create,
    append_and_settle,
    trouble_and_dead_letters,
    back_and_purge,
    clean_up,
    seek,
    read_everything,
    clean_up,
    delete,
]


def look_at(reader):
    """Everything that a store holds; what it holds must be sound."""
    assert list(reader.check()) == []
    catalog = reader.catalog()
    found = [repr(catalog)]
    for topic in catalog.topics:
        found.append(repr(reader.read(topic.id, 0, 99)))
        found.append(repr(kept(reader, topic)))
    for row in catalog.subscriptions:
        found.append(repr((reader.cursor(row.id), reader.troubles(row.id))))
        found.append(repr((reader.paused_keys(row.id), reader.dead_letters(row.id))))
    return found
