"""The contract of a store: what clean-up removes, and what it keeps."""

from __future__ import annotations

from itertools import chain

import pytest

from seriatim.errors import InvalidArgument
from seriatim.store.base import (
    BLOCK,
    Cursor,
    MessageHeader,
    ReaderRow,
    Record,
    SnapshotRow,
    UpkeepReport,
)
from seriatim.store.sql.cleanup import REWRITING_AGE
from tests.store.contract.kit import (
    DAY,
    NOW,
    StoreContract,
    kept,
    letter,
    records,
    settle,
    settled,
    topic_with_subscription,
    upkeep_until_done,
)


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
        assert list(chain.from_iterable(kit.store.headers(topic.id))) == [
            MessageHeader(r.offset, r.key, r.attributes, r.not_before) for r in kit.store.read(topic.id, 0, 100)
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
        there = kept(kit.store, topic)
        done = settled(kit.store, subscription, there)
        assert [offset for offset in there if offset not in done] == [*range(10), 4 * BLOCK]

    def test_clean_up_that_finds_nothing_says_so(self, store):
        topic_with_subscription(store, messages=10)
        upkeep_until_done(store)
        assert store.upkeep(NOW) == UpkeepReport(0, 0, 0, more_to_do=False)
