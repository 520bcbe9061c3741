"""The contract of a store: appending messages and reading them."""

from __future__ import annotations

from itertools import chain, product

import pytest

from seriatim.errors import InvalidArgument, NotFound
from seriatim.store.base import (
    MessageHeader,
    Record,
    Span,
)
from seriatim.store.pack import PackHead, encode
from seriatim.store.staged_messages import write_staged
from tests.store.contract.kit import (
    NOW,
    StoreContract,
    broken_off,
    kept,
    records,
    settle,
    topic_with_subscription,
    upkeep_until_done,
)


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
        assert list(kit.store.headers(topic.id)) == [
            [MessageHeader(0, "ä" * 3, {"a": "ü"}, 0.0), MessageHeader(1, None, None, 9.5)],
            [MessageHeader(5, "", {"": ""}, 0.0)],
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
        seen: list[MessageHeader] = []
        with kit.store.transaction() as work:
            work.append_staged(topic.id, self.staged(tmp_path, *packs), 5, NOW, seen.extend)
            work.append(topic.id, records([8]))
        kit.reopen()
        assert kit.store.read(topic.id, 5, 3) == [
            Record(5, "a", b"x", {"n": "1"}, NOW),
            Record(6, None, b"", None, NOW),
            Record(7, "ä", b"z", None, NOW),
        ]
        assert seen == [position for pack in kit.store.headers(topic.id, 5) for position in pack][:3]
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
        assert [[p.offset for p in pack] for pack in store.headers(topic.id, 3)] == [[3, 4], [5, 6]]

    def test_positions_of_many_packs_are_listed_while_more_are_written(self, store):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            for offset in range(200):
                work.append(topic.id, records([offset]))
        listing = store.headers(topic.id)
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
