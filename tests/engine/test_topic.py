"""The messages of a topic that stay in memory are bounded by what they really take."""

from __future__ import annotations

import tracemalloc

import pytest

from seriatim.engine import topic as topic_module
from seriatim.engine.topic import TopicState
from seriatim.store.base import Record, TopicRow


class Follower:
    def push(self, records) -> None:
        pass


def message(offset: int, size: int, attributes: int) -> Record:
    named = {f"name {n} of {offset}": f"value {n} of {offset}" for n in range(attributes)} or None
    return Record(offset, f"key-{offset}", bytes([offset % 251]) * size, named, offset + 0.5)


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
