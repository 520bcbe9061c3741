"""The contract of a store: an id is claimed once, as long as it is known."""

from __future__ import annotations

import pytest

from seriatim.core.publishing.dedup import DEDUP_WINDOW_S
from seriatim.errors import AlreadyExists, NotFound
from tests.core.publishing.claims import claims
from tests.store.contract.kit import NOW, StoreKit, broken_off, records, topic_with_subscription, upkeep_until_done


class PublishedIdsContract:
    """``claim_ids``."""

    def test_an_id_belongs_to_the_first_message_also_after_a_restart(self, kit: StoreKit):
        topic, _ = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            assert work.claim_ids(topic.id, claims(("a", (1, 0)), ("b", (2, 1)), ("a", (1, 2))), NOW) == {2: 0}
            work.append(topic.id, records([0, 1]))
            assert work.claim_ids(topic.id, claims(("b", (2, 3)), ("c\0é", (2, 4))), NOW) == {3: 1}
        for _ in range(2):
            with kit.store.transaction() as work:
                assert work.claim_ids(topic.id, claims(("c\0é", (2, 5)), ("a", (1, 6))), NOW) == {5: 4, 6: 0}
            kit.reopen()

    def test_another_payload_is_refused_and_none_of_the_call_is_claimed(self, kit: StoreKit):
        topic, _ = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            work.claim_ids(topic.id, claims(("a", (1, 0))), NOW)
            with pytest.raises(AlreadyExists, match="dedup_id 'a' belongs to another message"):
                work.claim_ids(topic.id, claims(("b", (1, 1)), ("a", (2, 2))), NOW)
            with pytest.raises(AlreadyExists):
                work.claim_ids(topic.id, claims(("b", (1, 1)), ("b", (2, 2))), NOW)
            assert work.claim_ids(topic.id, claims(("b", (3, 3))), NOW) == {}

    def test_what_was_broken_off_is_not_claimed(self, kit: StoreKit):
        topic, _ = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            work.claim_ids(topic.id, claims(("a", (1, 0))), NOW)
        broken_off(kit.store, lambda work: work.claim_ids(topic.id, claims(("b", (1, 1))), NOW))
        with kit.store.transaction() as work:
            assert work.claim_ids(topic.id, claims(("b", (2, 2)), ("a", (1, 3))), NOW) == {3: 0}

    def test_ids_are_known_for_a_time_and_in_a_number(self, kit: StoreKit):
        topic, _ = topic_with_subscription(kit.store, dedup_max_ids=2)
        for at, name in enumerate("abc"):
            with kit.store.transaction() as work:
                assert work.claim_ids(topic.id, claims((name, (1, at))), NOW + at) == {}
        for reopened in range(2):
            with kit.store.transaction() as work:
                assert work.claim_ids(topic.id, claims(("b", (1, 8)), ("c", (1, 9))), NOW + 3) == {8: 1, 9: 2}
            upkeep_until_done(kit.store, NOW + 3)
            if not reopened:
                kit.reopen()
        with kit.store.transaction() as work:
            work.update_topic(topic.id, {"dedup_window": 10.0, "dedup_max_ids": 2})
        with kit.store.transaction() as work:
            assert work.claim_ids(topic.id, claims(("a", (2, 9))), NOW + 4) == {}, (
                "it was no longer one of the last two"
            )
            assert work.claim_ids(topic.id, claims(("b", (2, 10)), ("c", (1, 11))), NOW + 11.5) == {11: 2}

    def test_clean_up_forgets_ids_and_not_those_that_are_known(self, kit: StoreKit):
        topic, _ = topic_with_subscription(kit.store)
        for time in (NOW, NOW + 300):
            with kit.store.transaction() as work:
                work.claim_ids(topic.id, claims((f"at {time}", (1, int(time)))), time)
        upkeep_until_done(kit.store, NOW + DEDUP_WINDOW_S)
        kit.reopen()
        with kit.store.transaction() as work:
            again = [(f"at {time}", (1, 5 + at)) for at, time in enumerate((NOW, NOW + 300))]
            assert work.claim_ids(topic.id, claims(*again), NOW + DEDUP_WINDOW_S) == {6: int(NOW + 300)}

    def test_ids_are_those_of_one_topic_and_go_with_it(self, kit: StoreKit):
        topic, _ = topic_with_subscription(kit.store)
        with kit.store.transaction() as work:
            other = work.create_topic("other", {})
            assert work.claim_ids(topic.id, claims(("a", (1, 0))), NOW) == {}
            assert work.claim_ids(other.id, claims(("a", (2, 7))), NOW) == {}
        with kit.store.transaction() as work:
            work.claim_ids(other.id, claims(("b", (2, 8))), NOW)
            work.delete_topic(other.id)
            with pytest.raises(NotFound):
                work.claim_ids(other.id, claims(("b", (2, 8))), NOW)
        with kit.store.transaction() as work:
            again = work.create_topic("other", {})
            assert work.claim_ids(again.id, claims(("a", (3, 1))), NOW) == {}
