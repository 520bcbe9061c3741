"""The contract of a store: what is refused changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import pytest

from seriatim.errors import InvalidArgument
from seriatim.store.base import (
    Cursor,
    DocumentRow,
    PausedRow,
    ReaderRow,
    Record,
    SnapshotRow,
    SubscriptionRow,
    TopicRow,
    Transaction,
)
from tests.store.contract.kit import (
    NOW,
    StoreContract,
    letter,
    settled,
    topic_with_subscription,
    trouble,
)


class RefusalContract(StoreContract):
    """What no store can keep is refused by every store, before anything changes, and its transaction goes on."""

    def test_what_can_not_be_kept_is_refused_and_the_transaction_goes_on(self, kit):
        topic, subscription = topic_with_subscription(kit.store, 3)
        with kit.store.transaction() as work:
            work.settle(subscription.id, [0])
            for refused in refused_changes(topic, subscription):
                with pytest.raises(InvalidArgument):
                    refused(work)
            work.put_document(DocumentRow("kind", "name", "after"))
        kit.reopen()
        catalog = kit.store.catalog()
        assert [(row.name, row.next_offset) for row in catalog.topics] == [("orders", 3)]
        assert [row.name for row in catalog.subscriptions] == ["billing"]
        assert (catalog.readers, catalog.snapshots) == ([], [])
        assert kit.store.documents("kind") == [DocumentRow("kind", "name", "after")]
        assert settled(kit.store, subscription, range(3)) == [0]
        assert kit.store.troubles(subscription.id) == []
        assert kit.store.paused_keys(subscription.id) == []
        assert kit.store.dead_letters(subscription.id) == []

    def test_any_text_with_the_character_0_is_kept(self, kit):
        with kit.store.transaction() as work:
            topic = work.create_topic("a\0b", {"resource": "\0"})
            subscription = work.create_subscription(topic.id, "\0\1", {}, Cursor(0))
            work.append(topic.id, [Record(0, "k\0", b"", {"\0": "\0"}, NOW)])
            work.note_troubles(subscription.id, [trouble(0)._replace(error="\0")])
            work.pause_key(subscription.id, "k\0", "\0")
        kit.reopen()
        assert [row.name for row in kit.store.catalog().topics] == ["a\0b"]
        assert [row.name for row in kit.store.catalog().subscriptions] == ["\0\1"]
        assert [row.error for row in kit.store.troubles(subscription.id)] == ["\0"]
        assert kit.store.paused_keys(subscription.id) == [PausedRow("k\0", "\0")]


def refused_changes(topic: TopicRow, subscription: SubscriptionRow) -> list[Callable[[Transaction], object]]:
    text, long, numbers = "\ud800", "x" * 1025, [nan, inf, "5", None]
    message, note, dead = Record(3, "k", b"", None, NOW), trouble(1), letter(1)
    names: list[Callable[[Transaction, Any], object]] = [
        lambda work, name: work.create_topic(name, {}),
        lambda work, name: work.rename_topic(topic.id, name),
        lambda work, name: work.create_subscription(topic.id, name, {}, Cursor(0)),
        lambda work, name: work.put_reader(ReaderRow(name, topic.id, 0)),
        lambda work, name: work.delete_reader(name),
        lambda work, name: work.put_snapshot(SnapshotRow(name, topic.id, Cursor(0), NOW, {})),
        lambda work, name: work.delete_snapshot(name),
        lambda work, name: work.put_document(DocumentRow("kind", name, "")),
        lambda work, name: work.put_document(DocumentRow(name, "name", "")),
        lambda work, name: work.delete_document("kind", name),
        lambda work, name: work.claim_batch(name, 0),
        lambda work, name: work.position(name),
        lambda work, name: work.move_positions([(name, 0, 1)]),
    ]
    options: list[Callable[[Transaction, Any], object]] = [
        lambda work, values: work.create_topic("t", values),
        lambda work, values: work.update_topic(topic.id, values),
        lambda work, values: work.create_subscription(topic.id, "s", values, Cursor(0)),
        lambda work, values: work.update_subscription(subscription.id, values),
        lambda work, values: work.put_snapshot(SnapshotRow("s", topic.id, Cursor(0), NOW, values)),
    ]
    records = [
        message._replace(key=text),
        message._replace(data="text"),  # type: ignore[arg-type]
        message._replace(attributes={"a": text}),
        message._replace(attributes=5),  # type: ignore[arg-type]
        *(message._replace(published=number) for number in numbers),  # type: ignore[arg-type]
        *(message._replace(not_before=number) for number in numbers),  # type: ignore[arg-type]
    ]
    notes = [
        note._replace(error=text),
        note._replace(offset=-1),
        note._replace(failures=2**63),
        *(note._replace(not_before=number) for number in numbers),  # type: ignore[arg-type]
    ]
    letters = [
        dead._replace(error=text),
        dead._replace(key=text),
        dead._replace(attempts="1"),  # type: ignore[arg-type]
        dead._replace(copy_offset=2**63),
        *(dead._replace(time=number) for number in numbers),  # type: ignore[arg-type]
    ]
    offsets: list[Callable[[Transaction, Any], object]] = [
        lambda work, at: work.settle(subscription.id, [at]),
        lambda work, at: work.overtake(subscription.id, [at]),
        lambda work, at: work.unbury(subscription.id, [at]),
        lambda work, at: work.purge(subscription.id, [at]),
        lambda work, at: work.seek(subscription.id, Cursor(at)),
        lambda work, at: work.put_reader(ReaderRow("r", topic.id, at)),
        lambda work, at: work.claim_batch("w", at),
    ]
    return [
        *(partial(_swapped, change, name) for change in names for name in (text, long, "", None, 5)),
        *(partial(_swapped, change, values) for change in options for values in ({"a": nan}, {"a": b""}, {"a": {1}})),
        *(partial(_swapped, lambda work, one: work.append(topic.id, [message, one]), one) for one in records),
        *(partial(_swapped, lambda work, row: work.note_troubles(subscription.id, [note, row]), row) for row in notes),
        *(partial(_swapped, lambda work, row: work.bury(subscription.id, [dead, row]), row) for row in letters),
        *(partial(_swapped, change, at) for change in offsets for at in (-1, "1", None)),
        lambda work: work.pause_key(subscription.id, text, None),
        lambda work: work.pause_key(subscription.id, "k", text),
        lambda work: work.resume_key(subscription.id, text),
        lambda work: work.put_document(DocumentRow("kind", "other", text)),
        *(
            partial(
                _swapped, lambda work, time: work.put_snapshot(SnapshotRow("s", topic.id, Cursor(0), time, {})), time
            )
            for time in numbers
        ),
    ]


def _swapped(change: Callable[[Transaction, Any], object], value: object, work: Transaction) -> None:
    change(work, value)
