"""The contract of a store: one suite, run on every store there is.

A test module of a store subclasses ``StoreContract`` and gives it a fixture ``kit``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import partial
from itertools import chain, product
from math import inf, nan
from typing import Any, Protocol

import pytest

from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, StoreLost
from seriatim.store.base import (
    BLOCK,
    Catalog,
    Cursor,
    DeadLetterRow,
    DocumentRow,
    PausedRow,
    Position,
    ReaderRow,
    Record,
    SnapshotRow,
    Span,
    Store,
    StoreReader,
    SubscriptionRow,
    TopicRow,
    Transaction,
    TroubleRow,
    UpkeepReport,
)
from seriatim.store.pack import PackHead, encode
from seriatim.store.settled import SettledSet
from seriatim.store.sql.upkeep import REWRITING_AGE
from seriatim.store.staging import write_staged

NOW = 1_000_000_000.0
DAY = 24 * 3600.0


class StoreKit(Protocol):
    """A store under test, and how to open it again."""

    store: Store

    def reopen(self) -> None:
        """Close the store and open it again, where it can survive that."""


def records(offsets: Iterable[int], key: str | None = "k", size: int = 5, published: float = NOW) -> list[Record]:
    return [Record(offset, key, f"{offset}".encode().ljust(size, b"."), None, published) for offset in offsets]


def trouble(offset: int, failures: int = 1) -> TroubleRow:
    return TroubleRow(offset, failures, NOW + 5, "it broke", steps_aside=False)


def letter(offset: int) -> DeadLetterRow:
    return DeadLetterRow(offset, "k", 5, NOW, "it broke for good")


def topic_with_subscription(store: Store, messages: int = 0, **options) -> tuple[TopicRow, SubscriptionRow]:
    with store.transaction() as work:
        topic = work.create_topic("orders", options)
        subscription = work.create_subscription(topic.id, "billing", {}, Cursor(0))
        work.append(topic.id, records(range(messages)))
    return topic, subscription


def settle(store: Store, subscription: SubscriptionRow, offsets: Iterable[int]) -> None:
    with store.transaction() as work:
        work.settle(subscription.id, list(offsets))


def upkeep_until_done(store: Store, now: float = NOW + REWRITING_AGE) -> UpkeepReport:
    """Everything that a round of clean-up did."""
    reports = [store.upkeep(now)]
    while reports[-1].more_to_do:
        reports.append(store.upkeep(now))
    messages, removed, rewritten, _ = (sum(column) for column in zip(*reports, strict=True))
    return UpkeepReport(messages, removed, rewritten, more_to_do=False)


def kept(store: StoreReader, topic: TopicRow) -> list[int]:
    return [position.offset for position in chain.from_iterable(store.positions(topic.id))]


def settled(store: Store, subscription: SubscriptionRow, offsets: Iterable[int]) -> list[int]:
    found = SettledSet.of(store.cursor(subscription.id))
    return [offset for offset in offsets if offset in found]


@contextmanager
def nothing_masked():
    """The mode of a new file is what it was made with."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def broken_off(store: Store, change) -> None:
    """Do something in a transaction that raises at its end."""

    def break_off() -> None:
        with store.transaction() as work:
            change(work)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()


class StoreContract:
    @pytest.fixture
    def kit(self) -> StoreKit:
        raise NotImplementedError

    @pytest.fixture
    def store(self, kit: StoreKit) -> Store:
        return kit.store


class CatalogContract(StoreContract):
    def test_a_new_store_is_empty(self, store):
        assert store.catalog() == Catalog([], [], [], [], 0)
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
        assert store.catalog() == Catalog([], [], [], [], 0)

    @pytest.mark.parametrize(
        "question",
        [
            lambda store: store.cursor(99),
            lambda store: store.troubles(99),
            lambda store: store.paused_keys(99),
            lambda store: store.dead_letters(99),
            lambda store: list(store.positions(99)),
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

    def test_tokens_are_only_ever_raised(self, kit):
        for token in (100, 50):
            with kit.store.transaction() as work:
                work.reserve_tokens(token)
        kit.reopen()
        assert kit.store.catalog().next_token == 100

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


class LogContract(StoreContract):
    def test_messages_come_back_as_they_were_appended(self, kit):
        topic, _ = topic_with_subscription(kit.store)
        written = [
            Record(0, "ä" * 3, b"\x00\xff", {"a": "ü"}, 1.25, 0.0),
            Record(1, None, b"", None, 1.25, 9.5),
            Record(5, "", b"x", {"": ""}, 7.5, 0.0),
        ]
        with kit.store.transaction() as work:
            work.append(topic.id, written[:2])
            work.append(topic.id, written[2:])
        kit.reopen()
        assert kit.store.read(topic.id, 0, 10) == written
        assert list(kit.store.positions(topic.id)) == [
            [Position(0, "ä" * 3, {"a": "ü"}, 0.0), Position(1, None, None, 9.5)],
            [Position(5, "", {"": ""}, 0.0)],
        ]
        assert kit.store.catalog().topics[0].next_offset == 6

    @pytest.mark.parametrize("offsets", [[4], [9], [11, 11], [12, 11], [10, 12, 11]])
    def test_offsets_must_rise(self, store, offsets):
        topic, _ = topic_with_subscription(store, messages=10)
        with store.transaction() as work:
            with pytest.raises(InvalidArgument):
                work.append(topic.id, records(offsets))
            work.append(topic.id, records([10]))
        assert kept(store, topic) == list(range(11))

    def test_offsets_must_rise_within_a_transaction_too(self, store):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            work.append(topic.id, records([7]))
            with pytest.raises(InvalidArgument, match="the next one is 8"):
                work.append(topic.id, records([7]))

    def test_an_append_of_nothing_does_nothing(self, store):
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            work.append(topic.id, [])
            work.settle(subscription.id, [])
        assert kept(store, topic) == []

    @staticmethod
    def staged(folder, *packs) -> str:
        path = folder / "staged"
        write_staged(path, [encode(pack) for pack in packs])
        return str(path)

    def test_staged_messages_are_appended_under_their_offsets_and_time(self, kit, tmp_path):
        topic, _ = topic_with_subscription(kit.store, messages=3)
        packs = [[Record(0, "a", b"x", {"n": "1"}), Record(1, None, b"")], [Record(0, "ä", b"z")]]
        seen: list[Position] = []
        with kit.store.transaction() as work:
            work.append_staged(topic.id, self.staged(tmp_path, *packs), 5, NOW, seen.extend)
            work.append(topic.id, records([8]))
        kit.reopen()
        assert kit.store.read(topic.id, 5, 3) == [
            Record(5, "a", b"x", {"n": "1"}, NOW),
            Record(6, None, b"", None, NOW),
            Record(7, "ä", b"z", None, NOW),
        ]
        assert seen == [position for pack in kit.store.positions(topic.id, 5) for position in pack][:3]
        assert kept(kit.store, topic) == [0, 1, 2, 5, 6, 7, 8]
        assert list(kit.store.check()) == []

    def test_staged_messages_are_part_of_their_transaction(self, store, tmp_path):
        topic, _ = topic_with_subscription(store, messages=3)
        file = self.staged(tmp_path, [Record(0, "k", b"x")])
        broken_off(store, lambda work: work.append_staged(topic.id, file, 3, NOW))
        assert kept(store, topic) == [0, 1, 2]
        with store.transaction() as work:
            with pytest.raises(InvalidArgument, match="the next one is 3"):
                work.append_staged(topic.id, file, 2, NOW)
            with pytest.raises(NotFound):
                work.append_staged(99, file, 3, NOW)
            work.append(topic.id, records([3]))
        assert kept(store, topic) == [0, 1, 2, 3]

    def test_spans_and_packs_tell_what_is_kept_in_a_range(self, store):
        topic, _ = topic_with_subscription(store)
        written = [[0, 1, 2], [3], [4, 6, 9], [11]]
        with store.transaction() as work:
            for offsets in written:
                work.append(topic.id, records(offsets))
        for first, end in product(range(12), (0, 3, 4, 5, 7, 9, 12, 99)):
            parts = [[offset for offset in pack if first <= offset < end] for pack in written]
            spans = [Span(part[0], part[-1], len(part)) for part in parts if part]
            assert list(store.spans(topic.id, first, end)) == spans
            found = [r for head, data in store.packs(topic.id, first, end) for r in PackHead(head).records(data)]
            assert [record for record in found if first <= record.offset < end] == records(chain(*parts))

    def test_spans_and_packs_of_no_topic_are_refused(self, store):
        for ask in (store.spans, store.packs):
            with pytest.raises(NotFound):
                list(ask(99, 0, 5))

    def test_topics_number_their_messages_apart(self, store):
        topic, _ = topic_with_subscription(store, messages=3)
        with store.transaction() as work:
            other = work.create_topic("other", {})
            work.append(other.id, records([0, 1], key="o"))
        assert {record.key for record in store.read(other.id, 0, 9)} == {"o"}
        assert {record.key for record in store.read(topic.id, 0, 9)} == {"k"}

    @pytest.mark.parametrize(
        ("first", "limit", "expected"),
        [
            (0, 4, [0, 1, 2, 3]),
            (2, 5, [2, 3, 10, 11, 20]),
            (4, 2, [10, 11]),
            (11, 99, [11, 20]),
            (21, 5, []),
            (0, 0, []),
        ],
    )
    def test_a_range_is_read_across_packs_and_gaps(self, store, first, limit, expected):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            for offsets in ([0, 1, 2, 3], [10, 11], [20]):
                work.append(topic.id, records(offsets))
        assert [record.offset for record in store.read(topic.id, first, limit)] == expected

    @pytest.mark.parametrize("wanted", [[], [0], [3, 10], [1, 2, 5, 11, 15, 20, 99], [4, 21], list(range(30))])
    def test_messages_are_fetched_by_offset_and_missing_ones_left_out(self, store, wanted):
        topic, _ = topic_with_subscription(store)
        written = [0, 1, 2, 3, 10, 11, 20]
        with store.transaction() as work:
            for offsets in (written[:4], written[4:6], written[6:]):
                work.append(topic.id, records(offsets))
        assert store.fetch(topic.id, wanted) == records(offset for offset in written if offset in wanted)

    def test_positions_begin_in_the_middle_of_a_pack(self, store):
        topic, _ = topic_with_subscription(store, messages=5)
        with store.transaction() as work:
            work.append(topic.id, records([5, 6]))
        assert [[p.offset for p in pack] for pack in store.positions(topic.id, 3)] == [[3, 4], [5, 6]]

    def test_positions_of_many_packs_are_listed_while_more_are_written(self, store):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            for offset in range(200):
                work.append(topic.id, records([offset]))
        listing = store.positions(topic.id)
        found = [next(listing)]
        with store.transaction() as work:
            work.append(topic.id, records([200]))
        found += listing
        assert [pack[0].offset for pack in found][:200] == list(range(200))

    def test_the_earliest_offset_of_an_empty_log_is_the_next_one(self, store):
        topic, subscription = topic_with_subscription(store)
        assert store.earliest(topic.id) == 0
        with store.transaction() as work:
            work.append(topic.id, records([3, 4]))
        assert store.earliest(topic.id) == 3
        settle(store, subscription, [3, 4])
        upkeep_until_done(store)
        assert store.earliest(topic.id) == 5

    @pytest.mark.parametrize(("packs", "messages", "size"), [(1, 5000, 1000), (1, 1, 5_000_000), (6, 1000, 1000)])
    def test_transactions_of_megabytes_are_written_read_and_rolled_back(self, kit, packs, messages, size):
        topic, _ = topic_with_subscription(kit.store)
        appended: list[Record] = []

        def append(work) -> None:
            for _ in range(packs):
                appended.extend(records(range(len(appended), len(appended) + messages), size=size))
                work.append(topic.id, appended[-messages:])

        with kit.store.transaction() as work:
            append(work)
            assert work.position("asked behind what was just sent") == 0
        with kit.store.transaction() as work:
            append(work)
        expected = list(appended)
        broken_off(kit.store, append)
        assert kit.store.read(topic.id, 0, 2 * len(appended)) == expected


class SubscriptionContract(StoreContract):
    @pytest.mark.parametrize("passing", ["subscription", "seek", "reader"])
    def test_what_was_passed_without_ever_being_written_is_not_given_to_a_message(self, kit, passing):
        """A publish that failed has used up offsets, and who begins after it stands behind them."""
        topic, subscription = topic_with_subscription(kit.store, messages=2)
        with kit.store.transaction() as work:
            if passing == "subscription":
                work.create_subscription(topic.id, "later", {}, Cursor(5))
            elif passing == "seek":
                work.seek(subscription.id, Cursor(5))
            else:
                work.put_reader(ReaderRow("spark", topic.id, 5))
            with pytest.raises(InvalidArgument, match="the next one is 5"):
                work.append(topic.id, records([2]))
        kit.reopen()
        assert list(kit.store.check()) == []
        assert kit.store.catalog().topics[0].next_offset == 5
        with kit.store.transaction() as work:
            with pytest.raises(InvalidArgument, match="the next one is 5"):
                work.append(topic.id, records([4]))
            work.append(topic.id, records([5]))
        assert kept(kit.store, topic) == [0, 1, 5]

    def test_what_is_settled_is_in_the_cursor(self, kit):
        _, subscription = topic_with_subscription(kit.store, messages=10)
        settle(kit.store, subscription, [0, 1, 5])
        settle(kit.store, subscription, [9, 2])
        kit.reopen()
        assert settled(kit.store, subscription, range(12)) == [0, 1, 2, 5, 9]
        assert kit.store.cursor(subscription.id).floor == 3

    def test_a_subscription_begins_where_its_cursor_says(self, kit):
        topic, _ = topic_with_subscription(kit.store, messages=20)
        with kit.store.transaction() as work:
            late = work.create_subscription(topic.id, "late", {}, Cursor(7, {0: 1 << 9}))
        kit.reopen()
        assert settled(kit.store, late, range(20)) == [*range(7), 9]

    def test_cursors_reach_over_block_borders(self, kit):
        _, subscription = topic_with_subscription(kit.store, messages=3 * BLOCK)
        done = [*range(BLOCK + 10), *range(2 * BLOCK - 1, 2 * BLOCK + 2)]
        settle(kit.store, subscription, done)
        assert settled(kit.store, subscription, range(3 * BLOCK)) == done
        upkeep_until_done(kit.store)
        kit.reopen()
        assert settled(kit.store, subscription, range(3 * BLOCK)) == done
        assert kit.store.cursor(subscription.id).floor == BLOCK + 10

    def test_trouble_is_noted_overwritten_and_forgotten_when_settled(self, kit):
        _, subscription = topic_with_subscription(kit.store, messages=10)
        with kit.store.transaction() as work:
            work.note_troubles(subscription.id, [trouble(3), trouble(4), trouble(5)])
        with kit.store.transaction() as work:
            work.note_troubles(subscription.id, [TroubleRow(4, 2, 0.0, None, steps_aside=True)])
            work.settle(subscription.id, [3])
        kit.reopen()
        expected = [TroubleRow(4, 2, 0.0, None, steps_aside=True), trouble(5)]
        assert kit.store.troubles(subscription.id) == expected
        upkeep_until_done(kit.store)
        assert kit.store.troubles(subscription.id) == expected

    def test_trouble_that_comes_after_a_time_without_any_is_forgotten_when_settled(self, store):
        _, subscription = topic_with_subscription(store, messages=10)
        settle(store, subscription, [0])
        with store.transaction() as work:
            work.note_troubles(subscription.id, [trouble(3)])
        settle(store, subscription, [3])
        assert store.troubles(subscription.id) == []

    def test_keys_are_paused_and_resumed(self, kit):
        _, subscription = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            work.pause_key(subscription.id, "b", "an operator said so")
            work.pause_key(subscription.id, "a", None)
            work.pause_key(subscription.id, None, "keyless")
            work.pause_key(subscription.id, "", "empty")
            work.pause_key(subscription.id, "a", "again")
            work.resume_key(subscription.id, "b")
            work.resume_key(subscription.id, "never paused")
        kit.reopen()
        assert set(kit.store.paused_keys(subscription.id)) == {
            PausedRow(None, "keyless"),
            PausedRow("", "empty"),
            PausedRow("a", "again"),
        }

    def test_a_dead_letter_forgets_its_trouble_and_stays_in_the_log(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=4)
        buried = DeadLetterRow(1, None, 3, NOW, None, topic.id, 77)
        with kit.store.transaction() as work:
            work.note_troubles(subscription.id, [trouble(1)])
            work.bury(subscription.id, [buried, letter(3)])
            work.settle(subscription.id, [0, 2])
        kit.reopen()
        upkeep_until_done(kit.store)
        assert kit.store.dead_letters(subscription.id) == [buried, letter(3)]
        assert kit.store.troubles(subscription.id) == []
        assert settled(kit.store, subscription, [1, 3]) == []
        assert [record.offset for record in kit.store.fetch(topic.id, [1, 3])] == [1, 3]

    def test_a_dead_letter_goes_back_to_its_place(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=4)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(1), letter(2)])
            work.settle(subscription.id, [0, 3])
        upkeep_until_done(kit.store)
        with kit.store.transaction() as work:
            work.unbury(subscription.id, [1])
        kit.reopen()
        upkeep_until_done(kit.store)
        assert kit.store.dead_letters(subscription.id) == [letter(2)]
        assert settled(kit.store, subscription, [1, 2]) == []
        assert kit.store.fetch(topic.id, [1]) == records([1])

    def test_a_dead_letter_remembers_that_it_was_overtaken(self, kit):
        _, subscription = topic_with_subscription(kit.store, messages=4)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(1), letter(2)])
            work.overtake(subscription.id, [1, 3])
        kit.reopen()
        assert kit.store.dead_letters(subscription.id) == [letter(1)._replace(overtaken=True), letter(2)]

    def test_a_dead_letter_that_a_seek_has_passed_can_still_go_back(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=3 * BLOCK, retain_settled=DAY)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(5)])
            work.seek(subscription.id, Cursor(2 * BLOCK + 7, {2: 1 << 100}))
        upkeep_until_done(kit.store)
        with kit.store.transaction() as work:
            work.unbury(subscription.id, [5])
        upkeep_until_done(kit.store)
        kit.reopen()
        assert kept(kit.store, topic) == list(range(3 * BLOCK))
        expected = {*range(2 * BLOCK + 7), 2 * BLOCK + 100} - {5}
        assert set(settled(kit.store, subscription, range(3 * BLOCK))) == expected

    def test_a_purged_dead_letter_is_settled(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=2)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(0), letter(1)])
            work.purge(subscription.id, [0, 1])
        kit.reopen()
        assert kit.store.dead_letters(subscription.id) == []
        assert settled(kit.store, subscription, [0, 1]) == [0, 1]
        upkeep_until_done(kit.store)
        assert kept(kit.store, topic) == []

    def test_a_seek_replaces_what_is_settled_and_keeps_pauses_and_dead_letters(self, kit):
        _, subscription = topic_with_subscription(kit.store, messages=10)
        with kit.store.transaction() as work:
            work.settle(subscription.id, range(8))
            work.note_troubles(subscription.id, [trouble(8)])
            work.pause_key(subscription.id, "k", None)
            work.bury(subscription.id, [letter(9)])
        with kit.store.transaction() as work:
            work.seek(subscription.id, Cursor(2, {0: 1 << 4}))
            work.settle(subscription.id, [6])
        kit.reopen()
        assert settled(kit.store, subscription, range(10)) == [0, 1, 4, 6]
        assert kit.store.troubles(subscription.id) == []
        assert kit.store.paused_keys(subscription.id) == [PausedRow("k", None)]
        assert kit.store.dead_letters(subscription.id) == [letter(9)]


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
            work.reserve_tokens(9)
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


class UpkeepContract(StoreContract):
    def test_what_everybody_has_settled_goes(self, kit):
        topic, first = topic_with_subscription(kit.store, messages=10)
        with kit.store.transaction() as work:
            second = work.create_subscription(topic.id, "second", {}, Cursor(0))
            work.append(topic.id, records(range(10, 20)))
        settle(kit.store, first, range(20))
        assert upkeep_until_done(kit.store).messages_removed == 0
        settle(kit.store, second, range(10))
        assert upkeep_until_done(kit.store) == UpkeepReport(10, 1, 0, more_to_do=False)
        kit.reopen()
        assert kept(kit.store, topic) == list(range(10, 20))
        assert kit.store.earliest(topic.id) == 10

    def test_no_offset_is_given_twice_after_everything_was_removed(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=10)
        settle(kit.store, subscription, range(10))
        upkeep_until_done(kit.store)
        kit.reopen()
        assert kept(kit.store, topic) == []
        assert kit.store.catalog().topics[0].next_offset == 10
        assert kit.store.cursor(subscription.id) == Cursor(10)
        with kit.store.transaction() as work, pytest.raises(InvalidArgument):
            work.append(topic.id, records([9]))

    def test_settled_messages_are_retained_as_long_as_the_topic_says(self, store):
        topic, subscription = topic_with_subscription(store, messages=10, retain_settled=60)
        settle(store, subscription, range(10))
        upkeep_until_done(store, NOW + 59)
        assert kept(store, topic) == list(range(10))
        upkeep_until_done(store, NOW + 60)
        assert kept(store, topic) == []

    @pytest.mark.parametrize(("options", "seconds"), [({}, 7 * DAY), ({"retention": 30}, 30), ({"retention": 0}, 0)])
    def test_a_topic_that_nobody_follows_keeps_messages_for_its_retention(self, store, options, seconds):
        with store.transaction() as work:
            topic = work.create_topic("orders", options)
            work.append(topic.id, records(range(5)))
            work.append(topic.id, records(range(5, 10), published=NOW + 1))
        upkeep_until_done(store, NOW + seconds - 0.5)
        assert kept(store, topic) == list(range(10))
        upkeep_until_done(store, NOW + seconds)
        assert kept(store, topic) == list(range(5, 10))

    def test_a_retention_of_none_keeps_messages_for_ever(self, store):
        with store.transaction() as work:
            topic = work.create_topic("dead-letters", {"retention": None})
            work.append(topic.id, records(range(5)))
        upkeep_until_done(store, NOW + 10_000 * DAY)
        assert kept(store, topic) == list(range(5))

    @pytest.mark.parametrize("follower", ["subscription", "reader"])
    @pytest.mark.parametrize(("options", "seconds"), [({}, 7 * DAY), ({"retention": 30}, 30)])
    def test_what_was_there_before_anybody_followed_keeps_its_retention(self, kit, follower, options, seconds):
        """Nobody's messages vanish because somebody subscribes at the end of a log."""
        with kit.store.transaction() as work:
            topic = work.create_topic("orders", options)
            work.append(topic.id, records(range(5)))
        with kit.store.transaction() as work:
            if follower == "subscription":
                subscription = work.create_subscription(topic.id, "billing", {}, Cursor(5))
            else:
                work.put_reader(ReaderRow("spark", topic.id, 0))
            work.append(topic.id, records(range(5, 10)))
        with kit.store.transaction() as work:
            if follower == "subscription":
                work.settle(subscription.id, range(5, 10))
            else:
                work.put_reader(ReaderRow("spark", topic.id, 10))
        upkeep_until_done(kit.store, NOW + 20)
        kit.reopen()
        assert kept(kit.store, topic) == list(range(5))
        upkeep_until_done(kit.store, NOW + seconds - 1)
        assert kept(kit.store, topic) == list(range(5))
        upkeep_until_done(kit.store, NOW + seconds)
        assert kept(kit.store, topic) == []

    def test_a_reader_that_is_registered_with_another_topic_begins_there(self, kit):
        with kit.store.transaction() as work:
            first, second = work.create_topic("first", {}), work.create_topic("second", {})
            work.put_reader(ReaderRow("spark", first.id, 0))
            work.append(second.id, records(range(5)))
            work.put_reader(ReaderRow("spark", second.id, 5))
        upkeep_until_done(kit.store)
        assert kept(kit.store, second) == list(range(5))

    def test_unsettled_messages_are_kept_however_old_they_are(self, store):
        topic, _ = topic_with_subscription(store, messages=10)
        upkeep_until_done(store, NOW + 1000 * DAY)
        assert kept(store, topic) == list(range(10))

    def test_a_reader_pins_what_it_has_not_passed(self, store):
        with store.transaction() as work:
            topic = work.create_topic("orders", {})
            for start in (0, 5, 10):
                work.append(topic.id, records(range(start, start + 5)))
            work.put_reader(ReaderRow("spark", topic.id, 5))
        upkeep_until_done(store, NOW + 1000 * DAY)
        assert kept(store, topic) == list(range(5, 15))
        with store.transaction() as work:
            work.put_reader(ReaderRow("spark", topic.id, 15))
        upkeep_until_done(store, NOW + 1000 * DAY)
        assert kept(store, topic) == []

    def test_a_snapshot_pins_what_it_has_not_settled_until_it_expires(self, store):
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            for start in (0, 5, 10):
                work.append(topic.id, records(range(start, start + 5)))
            work.put_snapshot(SnapshotRow("before", topic.id, Cursor(5), NOW + 60, {}))
            work.settle(subscription.id, range(15))
        upkeep_until_done(store, NOW + 59)
        assert kept(store, topic) == list(range(5, 15))
        with store.transaction() as work:
            work.seek(subscription.id, store.catalog().snapshots[0].cursor)
        assert settled(store, subscription, range(5, 15)) == []
        settle(store, subscription, range(15))
        upkeep_until_done(store, NOW + 60)
        assert kept(store, topic) == []
        assert store.catalog().snapshots == []

    def test_a_dead_letter_pins_its_message_and_not_its_neighbours(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=100)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(50)])
            work.settle(subscription.id, [offset for offset in range(100) if offset != 50])
        upkeep_until_done(kit.store)
        kit.reopen()
        assert kept(kit.store, topic) == [50]
        assert kit.store.fetch(topic.id, [50]) == records([50])

    def test_a_dead_letter_is_kept_even_when_a_seek_has_passed_it(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=100)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(50), letter(70)])
            work.seek(subscription.id, Cursor(100))
        for _ in range(2):  # once among its neighbours, once by themselves
            upkeep_until_done(kit.store)
            assert kept(kit.store, topic) == [50, 70]

    def test_a_message_that_was_settled_and_then_unsettled_by_a_seek_stays(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=100)
        settle(kit.store, subscription, range(100))
        with kit.store.transaction() as work:
            work.seek(subscription.id, Cursor(0))
        upkeep_until_done(kit.store)
        kit.reopen()
        assert kept(kit.store, topic) == list(range(100))

    def test_leftovers_keep_everything_that_they_were(self, kit):
        topic, subscription = topic_with_subscription(kit.store)
        written = [
            Record(
                offset, None if offset % 3 else f"k{offset}", bytes(offset), {"n": str(offset)}, NOW + offset, offset
            )
            for offset in range(100)
        ]
        with kit.store.transaction() as work:
            for start in range(0, 100, 10):
                work.append(topic.id, written[start : start + 10])
            work.settle(subscription.id, [offset for offset in range(100) if offset % 7])
        upkeep_until_done(kit.store, NOW + DAY)
        kit.reopen()
        expected = [record for record in written if record.offset % 7 == 0]
        assert kit.store.fetch(topic.id, range(0, 100, 7)) == expected
        assert list(chain.from_iterable(kit.store.positions(topic.id))) == [
            Position(r.offset, r.key, r.attributes, r.not_before) for r in kit.store.read(topic.id, 0, 100)
        ]

    def test_one_blocked_key_does_not_pin_fifty_thousand_others(self, kit):
        topic, subscription = topic_with_subscription(kit.store)
        blocked = set(range(0, 50_000, 1000))
        for start in range(0, 50_000, 100):
            batch = range(start, start + 100)
            with kit.store.transaction() as work:
                work.append(topic.id, records(batch, size=200))
                work.settle(subscription.id, [offset for offset in batch if offset not in blocked])
            if start % 5000 == 0:
                kit.store.upkeep(NOW + REWRITING_AGE)
        upkeep_until_done(kit.store)
        assert set(kept(kit.store, topic)) == blocked
        assert settled(kit.store, subscription, blocked) == []
        assert list(kit.store.check()) == []
        settle(kit.store, subscription, blocked)
        upkeep_until_done(kit.store)
        kit.reopen()
        assert kept(kit.store, topic) == []
        assert kit.store.cursor(subscription.id) == Cursor(50_000)

    def test_a_dead_letter_that_went_back_is_not_removed_by_what_was_settled_before(self, kit):
        topic, subscription = topic_with_subscription(kit.store, messages=500)
        with kit.store.transaction() as work:
            work.bury(subscription.id, [letter(0)])
            work.seek(subscription.id, Cursor(1))
        for offset in range(1, 500):
            settle(kit.store, subscription, [offset])
        with kit.store.transaction() as work:
            work.unbury(subscription.id, [0])
        upkeep_until_done(kit.store)
        assert kept(kit.store, topic) == [0]
        assert settled(kit.store, subscription, [0]) == []

    def test_what_is_settled_stays_settled_as_long_as_it_is_kept(self, kit):
        """Also in a block of which nothing is needed, next to one of which something is."""
        topic, subscription = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            work.append(topic.id, [*records(range(10), size=1000), *records([2 * BLOCK], size=10)])
            work.append(topic.id, records([4 * BLOCK]))
            work.settle(subscription.id, [2 * BLOCK])
        upkeep_until_done(kit.store)
        kit.reopen()
        assert 2 * BLOCK not in kept(kit.store, topic) or settled(kit.store, subscription, [2 * BLOCK]) == [2 * BLOCK]

    def test_clean_up_that_finds_nothing_says_so(self, store):
        topic_with_subscription(store, messages=10)
        upkeep_until_done(store)
        assert store.upkeep(NOW) == UpkeepReport(0, 0, 0, more_to_do=False)


class WholeContract(
    CatalogContract, LogContract, SubscriptionContract, TransactionContract, RefusalContract, UpkeepContract
):
    """Everything that a store promises."""
