"""The contract of a store: topics, subscriptions, readers, snapshots, documents and writers."""

from __future__ import annotations

import pytest

from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import (
    Catalog,
    Cursor,
    DocumentRow,
    ReaderRow,
    SnapshotRow,
    SubscriptionRow,
    TopicRow,
)
from tests.store.contract.kit import (
    NOW,
    StoreContract,
    broken_off,
    kept,
    letter,
    records,
    topic_with_subscription,
    trouble,
)


class CatalogContract(StoreContract):
    def test_a_new_store_is_empty(self, store):
        assert store.catalog() == Catalog([], [], [], [])
        assert list(store.check()) == []

    def test_topics_and_subscriptions_are_listed_with_their_options(self, kit):
        with kit.store.transaction() as work:
            orders = work.create_topic("orders", {"retention": 5})
            calls = work.create_topic("calls", {})
            billing = work.create_subscription(orders.id, "billing", {"filter": "x"}, Cursor(0))
            same = work.create_subscription(calls.id, "billing", {}, Cursor(0))
        kit.reopen()
        catalog = kit.store.catalog()
        assert catalog.topics == [
            TopicRow(orders.id, "orders", {"retention": 5}, 0),
            TopicRow(calls.id, "calls", {}, 0),
        ]
        assert catalog.subscriptions == [
            SubscriptionRow(billing.id, orders.id, "billing", {"filter": "x"}),
            SubscriptionRow(same.id, calls.id, "billing", {}),
        ]

    def test_options_are_replaced(self, kit):
        topic, subscription = topic_with_subscription(kit.store, retention=5)
        with kit.store.transaction() as work:
            work.update_topic(topic.id, {"retention": 6})
            work.update_subscription(subscription.id, {"ack_deadline": 1.5})
        kit.reopen()
        assert kit.store.catalog().topics[0].options == {"retention": 6}
        assert kit.store.catalog().subscriptions[0].options == {"ack_deadline": 1.5}

    def test_a_topic_goes_on_under_another_name(self, kit):
        topic, _ = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            work.append(topic.id, records([0]))
            work.rename_topic(topic.id, "old orders")
            work.create_topic("orders", {})
            with pytest.raises(AlreadyExists, match="topic 'orders'"):
                work.rename_topic(topic.id, "orders")
        kit.reopen()
        catalog = kit.store.catalog()
        assert [(row.id == topic.id, row.name) for row in catalog.topics] == [(True, "old orders"), (False, "orders")]
        assert [row.topic_id for row in catalog.subscriptions] == [topic.id]
        assert [record.offset for record in kit.store.read(topic.id, 0, 9)] == [0]

    def test_a_transaction_reads_what_it_has_changed_itself(self, store):
        with store.transaction() as work:
            topic = work.create_topic("orders", {"retention": 5})
            assert not work.has_subscriptions(topic.id)
            subscription = work.create_subscription(topic.id, "billing", {}, Cursor(0))
            work.append(topic.id, records([0, 1]))
            work.update_topic(topic.id, {"retention": 6})
            work.rename_topic(topic.id, "old orders")
            assert work.topic(topic.id) == TopicRow(topic.id, "old orders", {"retention": 6}, 2)
            assert work.has_subscriptions(topic.id)
            work.delete_subscription(subscription.id)
            assert not work.has_subscriptions(topic.id)
            snapshot = SnapshotRow("then", topic.id, Cursor(1, {0: 0b101}), NOW, {"resource": "x"})
            assert (work.reader("spark"), work.snapshot("then")) == (None, None)
            work.put_reader(ReaderRow("spark", topic.id, 1))
            work.put_snapshot(snapshot)
            assert (work.reader("spark"), work.snapshot("then")) == (("spark", topic.id, 1), snapshot)
            work.delete_topic(topic.id)
            assert (work.reader("spark"), work.snapshot("then")) == (None, None)
            with pytest.raises(NotFound, match="topic"):
                work.topic(topic.id)

    def test_documents_are_kept_replaced_and_deleted(self, kit):
        with kit.store.transaction() as work:
            for row in (("schema", "b", "1"), ("schema", "a", "2"), ("policy", "a", "3"), ("schema", "b", "4")):
                work.put_document(DocumentRow(*row))
        kit.reopen()
        assert kit.store.documents("schema") == [("schema", "a", "2"), ("schema", "b", "4")]
        with kit.store.transaction() as work:
            work.delete_document("schema", "a")
            with pytest.raises(NotFound, match="schema 'a'"):
                work.delete_document("schema", "a")
        assert [row.name for row in kit.store.documents("schema")] == ["b"]
        assert kit.store.documents("policy") == [("policy", "a", "3")]

    def test_a_name_is_taken_once_and_the_refusal_leaves_the_transaction_usable(self, store):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            with pytest.raises(AlreadyExists, match="topic 'orders'"):
                work.create_topic("orders", {})
            with pytest.raises(AlreadyExists, match="subscription 'billing'"):
                work.create_subscription(topic.id, "billing", {}, Cursor(0))
            work.create_topic("other", {})
        assert [row.name for row in store.catalog().topics] == ["orders", "other"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda work: work.update_topic(99, {}),
            lambda work: work.rename_topic(99, "other"),
            lambda work: work.delete_topic(99),
            lambda work: work.create_subscription(99, "s", {}, Cursor(0)),
            lambda work: work.update_subscription(99, {}),
            lambda work: work.delete_subscription(99),
            lambda work: work.append(99, records([1])),
            lambda work: work.settle(99, [1]),
            lambda work: work.note_troubles(99, [trouble(1)]),
            lambda work: work.pause_key(99, "k", None),
            lambda work: work.resume_key(99, "k"),
            lambda work: work.bury(99, [letter(1)]),
            lambda work: work.overtake(99, [1]),
            lambda work: work.unbury(99, [1]),
            lambda work: work.purge(99, [1]),
            lambda work: work.seek(99, Cursor(0)),
            lambda work: work.put_reader(ReaderRow("r", 99, 0)),
            lambda work: work.delete_reader("nobody"),
            lambda work: work.put_snapshot(SnapshotRow("s", 99, Cursor(0), NOW, {})),
            lambda work: work.delete_snapshot("nothing"),
        ],
    )
    def test_what_is_not_there_is_named_and_nothing_is_changed(self, store, change):
        with store.transaction() as work, pytest.raises(NotFound, match="does not exist"):
            change(work)
        assert store.catalog() == Catalog([], [], [], [])

    @pytest.mark.parametrize(
        "question",
        [
            lambda store: store.cursor(99),
            lambda store: store.troubles(99),
            lambda store: store.paused_keys(99),
            lambda store: store.dead_letters(99),
            lambda store: list(store.headers(99)),
            lambda store: store.fetch(99, [1]),
            lambda store: store.read(99, 0, 1),
            lambda store: store.earliest(99),
        ],
    )
    def test_a_question_about_what_is_not_there_is_refused(self, store, question):
        with pytest.raises(NotFound, match="does not exist"):
            question(store)

    def test_deleting_a_topic_removes_everything_of_it_and_nothing_else(self, kit):
        store = kit.store
        topic, subscription = topic_with_subscription(store, messages=5)
        with store.transaction() as work:
            other = work.create_topic("other", {})
            work.append(other.id, records(range(3)))
            work.settle(subscription.id, [0])
            work.note_troubles(subscription.id, [trouble(1)])
            work.bury(subscription.id, [letter(2)])
            work.put_reader(ReaderRow("spark", topic.id, 0))
            work.put_snapshot(SnapshotRow("before", topic.id, Cursor(0), NOW, {}))
        with store.transaction() as work:
            work.delete_topic(topic.id)
        kit.reopen()
        catalog = kit.store.catalog()
        assert (catalog.topics, catalog.subscriptions) == ([TopicRow(other.id, "other", {}, 3)], [])
        assert (catalog.readers, catalog.snapshots) == ([], [])
        assert kept(kit.store, other) == [0, 1, 2]
        assert list(kit.store.check()) == []

    def test_a_deleted_subscription_leaves_nothing_to_one_of_the_same_name(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=5)
        with kit.store.transaction() as work:
            work.settle(subscription.id, [0, 1])
            work.note_troubles(subscription.id, [trouble(2)])
            work.pause_key(subscription.id, "k", None)
            work.bury(subscription.id, [letter(3)])
            work.delete_subscription(subscription.id)
            again = work.create_subscription(topic.id, "billing", {}, Cursor(0))
        kit.reopen()
        assert again.id != subscription.id
        assert kit.store.cursor(again.id) == Cursor(0)
        assert kit.store.troubles(again.id) == kit.store.paused_keys(again.id) == kit.store.dead_letters(again.id) == []

    def test_readers_and_snapshots_are_written_moved_and_deleted(self, kit):
        topic, _ = topic_with_subscription(kit.store)
        cursor = Cursor(3, {0: 1 << 5, 7: 1 << 4095})
        with kit.store.transaction() as work:
            work.put_reader(ReaderRow("a", topic.id, 1))
            work.put_reader(ReaderRow("b", topic.id, 1))
            work.put_snapshot(SnapshotRow("s", topic.id, Cursor(0), NOW, {}))
        with kit.store.transaction() as work:
            work.put_reader(ReaderRow("a", topic.id, 9))
            work.delete_reader("b")
            work.put_snapshot(SnapshotRow("s", topic.id, cursor, NOW + 1, {"labels": {}}))
        kit.reopen()
        assert kit.store.catalog().readers == [ReaderRow("a", topic.id, 9)]
        assert kit.store.catalog().snapshots == [SnapshotRow("s", topic.id, cursor, NOW + 1, {"labels": {}})]
        with kit.store.transaction() as work:
            work.delete_snapshot("s")
        assert kit.store.catalog().snapshots == []

    def test_a_batch_is_claimed_once_by_each_writer(self, kit):
        with kit.store.transaction() as work:
            assert [work.claim_batch("query", batch) for batch in (0, 1, 1, 5, 0)] == [True, True, False, True, False]
        broken_off(kit.store, lambda work: work.claim_batch("query", 2))
        kit.reopen()
        with kit.store.transaction() as work:
            assert [work.claim_batch("query", batch) for batch in (0, 1, 2, 3, 5)] == [False, False, True, True, False]
            assert work.claim_batch("other", 0)

    def test_a_writer_moves_from_where_it_stands_and_never_from_elsewhere(self, kit):
        with kit.store.transaction() as work:
            assert work.position("pipe") == 0
            work.move_positions([("pipe", 0, 7)])
            with pytest.raises(FailedPrecondition, match="writer 'pipe' stands at 7 and not at 3"):
                work.move_positions([("pipe", 3, 9)])
            with pytest.raises(InvalidArgument, match="can't go back from 7 to 6"):
                work.move_positions([("pipe", 7, 6)])
            work.move_positions([("pipe", 7, 1 << 90)])
            work.move_positions([("new", 0, 0)])
            assert work.claim_batch("new", 4)
            with pytest.raises(FailedPrecondition, match="writer 'new' stands at 5 and not at 4"):
                work.move_positions([("pipe", 1 << 90, 1 << 91), ("new", 4, 6)])
            work.move_positions([("new", 5, 6), ("third", 0, 1)])
        broken_off(kit.store, lambda work: work.move_positions([("pipe", 1 << 90, (1 << 90) + 1)]))
        with kit.store.transaction() as work:
            assert work.position("pipe") == 1 << 90, "what was broken off is not remembered"
        kit.reopen()
        with kit.store.transaction() as work:
            assert (work.position("pipe"), work.position("new"), work.position("other")) == (1 << 90, 6, 0)
            assert not work.claim_batch("pipe", 6)

    def test_writers_are_listed_by_the_beginning_of_their_names_with_their_positions(self, kit):
        names = ["a b 1", "a b", "a b \U0010ffff", "A b 3", "a", "a b_2", "a bé", "a%b"]
        with kit.store.transaction() as work:
            work.move_positions([(name, 0, at) for at, name in enumerate(names)])
            assert work.claim_batch("a b 4", 7)
        broken_off(kit.store, lambda work: work.move_positions([("a b 1", 0, 9), ("a b 9", 0, 9)]))
        for _ in range(2):
            assert kit.store.writers("a b ") == [("a b 1", 0), ("a b 4", 8), ("a b \U0010ffff", 2)]
            assert kit.store.writers("a%") == [("a%b", 7)]
            assert kit.store.writers("nobody") == []
            assert [name for name, _ in kit.store.writers("")] == sorted([*names, "a b 4"])
            kit.reopen()
