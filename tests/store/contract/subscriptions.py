"""The contract of a store: what is settled, failed, paused and dead-lettered."""

from __future__ import annotations

import pytest

from seriatim.errors import InvalidArgument
from seriatim.store.base import (
    BLOCK,
    Cursor,
    DeadLetterRow,
    PausedRow,
    ReaderRow,
    TroubleRow,
)
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
    trouble,
    upkeep_until_done,
)


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
