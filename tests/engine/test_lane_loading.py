"""What a store holds of a subscription, as lanes: what waits, what blocks its key, what others may pass."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from math import nan

import pytest

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import RetryMode, RetryPolicy
from seriatim.engine.commit import Commit
from seriatim.engine.lane_loading import Loaded, load_lanes
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription_filter import SubscriptionFilter
from seriatim.errors import StoreFailed
from seriatim.store.base import Cursor, MessageHeader, Record, TroubleRow
from seriatim.store.memory import MemoryStore

NOW = 1000.0
BLOCK = SubscriptionOptions(message_ordering=True, retry=RetryPolicy.immediate(mode=RetryMode.BLOCK))
OVERTAKE = SubscriptionOptions(message_ordering=True, retry=RetryPolicy.immediate(mode=RetryMode.OVERTAKE))


class ReadStore(MemoryStore):
    """A store that remembers from where its log was read."""

    read_from: int | None = None

    def headers(self, topic_id: int, first: int = 0) -> Iterator[Sequence[MessageHeader]]:
        self.read_from = first
        return super().headers(topic_id, first)


def stored(*records: Record, troubles: Sequence[TroubleRow] = (), cursor: Cursor | None = None) -> ReadStore:
    """A store with topic 1, whose messages these are, and subscription 2."""
    store = ReadStore()
    with store.transaction() as work:
        topic = work.create_topic("t", {}).id
        work.append(topic, records)
        subscription = work.create_subscription(topic, "s", {}, cursor or Cursor(0)).id
        work.note_troubles(subscription, troubles)
    assert (topic, subscription) == (1, 2)
    return store


def load(store: MemoryStore, options: SubscriptionOptions, now: float = NOW) -> Loaded:
    lanes = Lanes(options.delivery)
    lanes.advance(now)
    return load_lanes(
        lanes, store, 2, 1, options, SubscriptionFilter(2, options.filter, lambda: pytest.fail("nothing to settle"))
    )


def given_out(loaded: Loaded) -> list[int]:
    return [lease.offset for lease in loaded.lanes.take(loaded.lanes.now, 10, 100)]


def test_with_nothing_in_the_log_everything_that_comes_is_newer():
    assert load(stored(), BLOCK).until == -1


def test_what_lies_below_the_floor_is_not_even_read():
    store = stored(*(Record(at, f"k{at}", b"") for at in range(4)), cursor=Cursor(2))
    loaded = load(store, BLOCK)
    assert (given_out(loaded), loaded.until, loaded.floor) == ([2, 3], 3, 2)
    assert store.read_from == 2


@pytest.mark.parametrize(
    ("options", "stepped_aside", "passed"),
    [(OVERTAKE, True, True), (OVERTAKE, False, False), (BLOCK, True, False), (BLOCK, False, False)],
)
def test_a_message_that_waits_for_its_retry_is_passed_only_if_it_was_and_still_may_be(options, stepped_aside, passed):
    trouble = TroubleRow(0, 1, NOW + 60, "why", stepped_aside)
    loaded = load(stored(Record(0, "k", b""), Record(1, "k", b""), troubles=[trouble]), options)
    assert given_out(loaded) == ([1] if passed else [])


@pytest.mark.parametrize(
    ("key", "options", "passes"), [(None, BLOCK, True), ("k", BLOCK, False), ("k", OVERTAKE, True)]
)
def test_later_messages_pass_one_that_waits_if_it_has_no_key_or_its_subscription_says_so(key, options, passes):
    assert options.retry.lets_pass(key) is passes


def test_a_time_that_is_none_holds_up_nothing(monkeypatch):
    monkeypatch.setattr("seriatim.store.memory.require_times", list)  # as in earlier versions
    assert given_out(load(stored(Record(0, "k", b"", None, 0.0, nan)), BLOCK, now=0.5)) == [0]


def test_a_paused_key_waits_and_others_do_not():
    store = stored(Record(0, "k", b""), Record(1, "other", b""))
    with store.transaction() as work:
        work.pause_key(2, "k", "why")
    loaded = load(store, BLOCK)
    assert given_out(loaded) == [1]
    assert [(row.key, row.reason) for row in loaded.paused] == [("k", "why")]


def test_without_ordering_messages_of_a_key_do_not_wait_for_each_other():
    store = stored(Record(0, "k", b""), Record(1, "k", b""))
    assert given_out(load(store, SubscriptionOptions())) == [0, 1]
    assert given_out(load(store, BLOCK)) == [0]


def test_failed_attempts_and_the_last_error_are_kept():
    store = stored(Record(0, "k", b""), troubles=[TroubleRow(0, 3, 0.0, "why", False)])
    assert load(store, BLOCK).lanes.failures(0) == (3, "why")


@pytest.mark.parametrize("fails", [False, True])
def test_the_cycle_collector_rests_while_lanes_are_loaded_and_no_longer(fails):
    seen = []

    class Watched(MemoryStore):
        def troubles(self, subscription_id: int) -> list[TroubleRow]:
            seen.append(gc.isenabled())
            if fails:
                raise StoreFailed("the disk can't be read")
            return super().troubles(subscription_id)

    store, lanes = Watched(), Lanes()
    with store.transaction() as work:
        topic = work.create_topic("t", {}).id
        subscription = work.create_subscription(topic, "s", {}, Cursor(0)).id
    with pytest.raises(StoreFailed) if fails else nullcontext():
        load_lanes(lanes, store, subscription, topic, BLOCK, SubscriptionFilter(subscription, None, Commit))
    assert (seen, gc.isenabled()) == ([False], True)
