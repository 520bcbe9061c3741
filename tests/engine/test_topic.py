"""A topic: its offsets, who is shown its messages, and those that stay in memory, bounded by what they really take."""

from __future__ import annotations

import tracemalloc
from sys import getsizeof

import pytest

from seriatim.engine import topic as topic_module
from seriatim.engine.broker import Outgoing, TopicInfo
from seriatim.engine.options import TopicOptions
from seriatim.engine.topic import ENTRY_BYTES, RECORD_BYTES, TopicState, memory_of
from seriatim.store.base import MessageHeader, Record, TopicRow


class Follower:
    def push(self, records) -> None:
        pass


class Watcher:
    """A follower that remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def push(self, records) -> None:
        self.seen += [record.offset for record in records]


def new_topic(next_offset: int = 0) -> TopicState:
    return TopicState(TopicRow(1, "t", {"retention": 60.0}, next_offset))


def message(offset: int, size: int, attributes: int) -> Record:
    named = {f"name {n} of {offset}": f"value {n} of {offset}" for n in range(attributes)} or None
    return Record(offset, f"key-{offset}", bytes([offset % 251]) * size, named, offset + 0.5)


def test_messages_are_numbered_and_keep_copies_of_their_attributes_and_the_time_until_which_they_are_delayed():
    topic, attributes = new_topic(7), {"a": "b"}
    ids, records = topic.number([Outgoing("k", b"1", attributes, 2.5), Outgoing(None, b"2", {})], 100.0)
    attributes["a"] = "changed"
    assert list(ids) == ["7", "8"]
    assert records == [Record(7, "k", b"1", {"a": "b"}, 100.0, 102.5), Record(8, None, b"2", None, 100.0, 0.0)]
    assert topic.next_offset == 9


@pytest.mark.parametrize(("size", "attributes"), [(0, 0), (0, 5), (1, 1), (1000, 0), (1000, 20)])
def test_what_is_cached_takes_no_more_memory_than_it_may(monkeypatch, size, attributes):
    limit = 1024 * 1024
    monkeypatch.setattr(topic_module, "CACHED_BYTES", limit)
    topic = TopicState(TopicRow(1, "t", {}, 0))
    topic.follow(Follower())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for start in range(0, 10_000, 100):
            topic.appended([message(offset, size, attributes) for offset in range(start, start + 100)])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * limit < after - before < 1.1 * limit
    assert topic.recent(9_999) is not None
    topic.settled(range(10_000))
    assert topic._recent_bytes == 0


def cached(topic: TopicState, offsets: range) -> list[int]:
    return [offset for offset in offsets if topic.recent(offset) is not None]


def test_a_topic_is_what_the_store_says():
    topic = new_topic(5)
    assert (topic.id, topic.name, topic.options.retention, topic.next_offset) == (1, "t", 60.0, 5)
    assert topic.subscriptions.page() == []


def test_an_offset_is_given_out_once():
    topic = new_topic(5)
    assert (topic.reserve(3), topic.reserve(1), topic.next_offset) == (5, 8, 9)
    topic.skip_offsets_below(7)
    assert topic.next_offset == 9
    topic.skip_offsets_below(20)
    assert topic.reserve(1) == 20


def test_a_topic_takes_over_what_the_store_says_and_gives_no_offset_again():
    topic = new_topic(5)
    topic.update(TopicRow(1, "t", {"retention": 7.0}, 3))
    assert (topic.options.retention, topic.next_offset) == (7.0, 5)
    topic.update(TopicRow(1, "t", {"retention": 8.0}, 30))
    assert (topic.options.retention, topic.next_offset) == (8.0, 30)


def test_options_that_could_not_be_used_are_told_until_others_are_set():
    topic = TopicState(TopicRow(1, "t", {"retention": "long"}, 4))
    assert "retention" in (topic.info(2).problem or "")
    topic.update(TopicRow(1, "t", {"retention": 60.0}, 4))
    assert topic.info(2).problem is None
    topic.update(TopicRow(1, "t", {"retention": "long"}, 4))
    assert "retention" in (topic.info(2).problem or "")
    topic.set_options(TopicOptions(retention=60.0))
    assert topic.info(2) == TopicInfo("t", TopicOptions(retention=60.0), 2, 4)


def test_followers_are_shown_every_message_and_everything_is_counted():
    topic, first, second = new_topic(), Watcher(), Watcher()
    was_followed = topic.is_followed
    topic.appended([message(0, 10, 0)])
    topic.follow(first)
    topic.follow(second)
    assert (was_followed, topic.is_followed) == (False, True)
    topic.appended([message(1, 10, 0), message(2, 5, 0)])
    topic.unfollow(second)
    topic.batch_appended([MessageHeader(3, "k", None, 0.0)], 1, 100)
    assert (first.seen, second.seen) == ([1, 2, 3], [1, 2])
    assert (topic.counts.published, topic.counts.bytes) == (4, 125)


def test_only_messages_that_somebody_follows_stay_in_memory():
    topic = new_topic()
    topic.appended([message(0, 10, 0)])
    topic.follow(Follower())
    one, two = message(1, 10, 0), message(2, 10, 0)
    topic.appended([one, two])
    assert topic.all_recent([1, 2]) == [one, two]
    assert topic.all_recent([0, 1]) is None
    assert topic.recent(0) is None


def test_what_its_only_follower_has_settled_leaves_at_once_and_otherwise_stays():
    topic = new_topic()
    for follower in (Follower(), Follower()):
        topic.follow(follower)
    topic.appended([message(offset, 10, 0) for offset in range(3)])
    topic.settled([0, 1])
    assert cached(topic, range(3)) == [0, 1, 2]
    topic.unfollow(follower)
    topic.settled([7, 1])
    assert cached(topic, range(3)) == [0, 2]
    assert topic._recent_bytes == memory_of([message(0, 10, 0), message(2, 10, 0)])


def test_the_oldest_messages_make_room_for_the_newest(monkeypatch):
    size = memory_of([message(10, 100, 0)])
    monkeypatch.setattr(topic_module, "CACHED_BYTES", 16 * size)
    topic = new_topic()
    topic.follow(Follower())
    topic.appended([message(offset, 100, 0) for offset in range(10, 26)])
    assert cached(topic, range(10, 26)) == list(range(10, 26))  # it may be full
    topic.appended([message(26, 100, 0)])
    assert cached(topic, range(10, 27)) == list(range(13, 27))  # an eighth is free again
    assert topic._recent_bytes == 14 * size
    topic.settled(range(10, 27))
    assert topic._recent_bytes == 0


def test_the_memory_of_a_message_is_that_of_its_parts():
    record = Record(0, "key", b"data", {"a": "bc", "d": ""})
    attributes = 3 * ENTRY_BYTES + sum(map(getsizeof, ["a", "bc", "d", ""]))
    assert memory_of([record]) == RECORD_BYTES + getsizeof("key") + getsizeof(b"data") + attributes
    assert memory_of([record._replace(attributes=None)]) == RECORD_BYTES + getsizeof("key") + getsizeof(b"data")
