"""The contract of a store: all or nothing, one after another."""

from __future__ import annotations

import threading

import pytest

from seriatim.errors import FailedPrecondition, NotFound, StoreLost
from seriatim.store.base import (
    Cursor,
    DocumentRow,
    ReaderRow,
    SnapshotRow,
)
from tests.store.contract.kit import (
    NOW,
    StoreContract,
    broken_off,
    kept,
    letter,
    records,
    settled,
    topic_with_subscription,
    trouble,
)


class TransactionContract(StoreContract):
    @pytest.mark.parametrize("opened_again", [False, True])
    def test_a_transaction_that_raises_changes_nothing(self, kit, opened_again):
        topic, subscription = topic_with_subscription(kit.store, messages=5)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(4)])
            work.note_troubles(subscription.id, [trouble(1)])

        def everything(work):
            other = work.create_topic("other", {})
            work.append(other.id, records([0]))
            work.append(topic.id, records([5, 6]))
            work.settle(subscription.id, [0, 1])
            work.note_troubles(subscription.id, [trouble(2)])
            work.pause_key(subscription.id, "k", None)
            work.unbury(subscription.id, [4])
            work.seek(subscription.id, Cursor(5))
            work.put_reader(ReaderRow("r", topic.id, 0))
            work.put_snapshot(SnapshotRow("s", topic.id, Cursor(0), NOW, {}))
            work.update_topic(topic.id, {"x": 1})
            work.rename_topic(topic.id, "renamed")
            work.put_document(DocumentRow("schema", "s", "text"))
            work.delete_subscription(subscription.id)
            work.delete_topic(topic.id)

        before = self.look(kit.store, topic, subscription)
        broken_off(kit.store, everything)
        if opened_again:
            kit.reopen()
        assert self.look(kit.store, topic, subscription) == before
        with kit.store.transaction() as work:
            work.append(topic.id, records([5]))
        assert kept(kit.store, topic) == list(range(6))

    @staticmethod
    def look(store, topic, subscription):
        return (
            store.catalog(),
            store.read(topic.id, 0, 99),
            store.cursor(subscription.id),
            store.troubles(subscription.id),
            store.paused_keys(subscription.id),
            store.dead_letters(subscription.id),
            store.documents("schema"),
        )

    def test_nothing_is_remembered_of_what_was_rolled_back_or_deleted(self, store):
        topic, subscription = topic_with_subscription(store, messages=5)
        made = []

        def make(work):
            made.append(work.create_topic("other", {}))
            made.append(work.create_subscription(made[0].id, "another", {}, Cursor(0)))
            work.append(made[0].id, records([0]))
            work.settle(made[1].id, [0])

        def refuses(work, gone_topic, gone_subscription):
            with pytest.raises(NotFound):
                work.append(gone_topic.id, records([9]))
            with pytest.raises(NotFound):
                work.settle(gone_subscription.id, [0])

        broken_off(store, make)
        with store.transaction() as work:
            refuses(work, *made)
            work.append(topic.id, records([5]))
            work.settle(subscription.id, [0])
            work.delete_topic(topic.id)
            refuses(work, topic, subscription)

    def test_nobody_sees_anything_before_the_commit(self, store):
        topic, subscription = topic_with_subscription(store, messages=3)
        before = self.look(store, topic, subscription)
        with store.transaction() as work:
            work.append(topic.id, records([3]))
            work.settle(subscription.id, [0])
            work.create_topic("other", {})
            assert self.look(store, topic, subscription) == before
        assert self.look(store, topic, subscription) != before

    def test_a_transaction_can_not_be_used_after_its_end(self, store):
        topic, subscription = topic_with_subscription(store, messages=3)
        with store.transaction() as work:
            pass
        with pytest.raises(FailedPrecondition, match="is over"):
            work.settle(subscription.id, [0])
        with pytest.raises(FailedPrecondition, match="is over"):
            work.append(topic.id, records([3]))
        assert settled(store, subscription, [0]) == []

    def test_a_transaction_inside_another_is_refused(self, store):
        with store.transaction() as work:
            work.create_topic("outer", {})
            with pytest.raises(FailedPrecondition, match="under way"), store.transaction():
                pass
        assert [topic.name for topic in store.catalog().topics] == ["outer"]

    def test_transactions_of_other_threads_wait_for_their_turn(self, store):
        topic, _ = topic_with_subscription(store)

        def append_many():
            for _ in range(50):
                with store.transaction() as work:
                    # Nobody else can commit between the question and the append.
                    work.append(topic.id, records([store.catalog().topics[0].next_offset]))

        threads = [threading.Thread(target=append_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert kept(store, topic) == list(range(200))

    def test_a_closed_store_refuses_everything(self, store):
        topic, _ = topic_with_subscription(store)
        store.close()
        store.close()
        with pytest.raises(StoreLost), store.transaction():
            pass
        with pytest.raises(StoreLost):
            store.catalog()
        with pytest.raises(StoreLost):
            store.read(topic.id, 0, 1)
        with pytest.raises(StoreLost):
            store.upkeep(NOW)
