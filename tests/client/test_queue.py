"""The blocking queue of document 004: a map of strict ordered queues."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path

import pytest

from seriatim import Queue, RetryPolicy
from seriatim.client.queue import QueueSize
from seriatim.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    QueueEmpty,
    RedriveRefused,
    StaleLease,
    StoreFull,
    StoreLost,
)

WAIT = 10


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def queue(url):
    with Queue(url, "calls") as queue:
        yield queue


def drained(queue: Queue) -> list[bytes]:
    items = []
    while True:
        try:
            items.append(queue.pop(timeout=0).data)
        except QueueEmpty:
            return items


def test_bullet_1_items_are_grouped_by_their_key(queue):
    queue.push(b"ringing", "call-1")
    queue.push(b"dialling", "call-2")
    with queue.reserve(WAIT) as first, queue.reserve(WAIT) as second:
        assert [(item.key, item.data) for item in (first, second)] == [("call-1", b"ringing"), ("call-2", b"dialling")]


def test_bullet_2_an_item_is_not_served_until_those_before_it_in_its_key_are_gone(queue):
    for event in (b"ringing", b"pushed 7", b"ended"):
        queue.push(event, "call-1")
    item = queue.reserve(WAIT)
    with pytest.raises(QueueEmpty, match="'calls' had no item ready"):
        queue.reserve(0)
    queue.commit(item)
    assert drained(queue) == [b"pushed 7", b"ended"]


def test_bullet_2_an_item_moved_to_the_dead_letters_does_not_block_the_next(url):
    with Queue(url, "calls", retry=RetryPolicy.immediate(max_attempts=1)) as queue:
        queue.push(b"hopeless", "call-1")
        queue.push(b"next", "call-1")
        queue.rollback(queue.reserve(WAIT))
        assert queue.pop(WAIT).data == b"next"
        assert [letter.attempts for letter in queue.dead_letters()] == [1]


def test_bullet_3_a_rolled_back_item_blocks_those_pushed_after_it(queue):
    queue.push(b"first", "call-1")
    item = queue.reserve(WAIT)
    queue.push(b"second", "call-1")
    queue.push(b"other", "call-2")
    queue.rollback(item, delay=3600)
    assert drained(queue) == [b"other"]
    assert queue.size() == QueueSize(ready=0, blocked=1, delayed=1, reserved=0, total=2)


def test_bullet_3_a_rolled_back_item_comes_first_again(queue):
    queue.push(b"first", "call-1")
    queue.push(b"second", "call-1")
    queue.rollback(queue.reserve(WAIT), delay=0)
    assert drained(queue) == [b"first", b"second"]


def test_bullet_4_a_delay_on_insertion_is_honoured_and_blocks_further_items_of_the_key_only(queue):
    queue.push(b"later", "call-1", delay=0.4)
    pushed = time.monotonic()
    queue.push(b"after it", "call-1")
    queue.push(b"other", "call-2")
    assert drained(queue) == [b"other"]
    assert queue.pop(WAIT).data == b"later"
    assert time.monotonic() - pushed >= 0.3
    assert queue.pop(WAIT).data == b"after it"


def test_caveat_lifted_items_can_be_removed_by_their_id(queue):
    queue.push(b"first", "call-1")
    wrong = queue.push(b"wrong", "call-1")
    queue.push(b"third", "call-1")
    queue.remove(wrong)
    assert drained(queue) == [b"first", b"third"]


def test_a_reserved_item_can_not_be_removed(queue):
    item_id = queue.push(b"first", "call-1")
    with queue.reserve(WAIT), pytest.raises(FailedPrecondition, match="in flight"):
        queue.remove(item_id)
    with pytest.raises(NotFound):
        queue.remove(item_id)


def test_a_block_that_raises_rolls_back_with_the_error(url):
    with Queue(url, "calls", retry=RetryPolicy.immediate(max_attempts=2)) as queue:
        queue.push(b"hard", "call-1")
        for _ in range(2):
            with pytest.raises(ValueError, match="too hard"), queue.reserve(WAIT):
                raise ValueError("too hard")
        (letter,) = queue.dead_letters()
        assert (letter.ordering_key, letter.attempts, letter.error) == ("call-1", 2, "ValueError: too hard")


def test_what_was_said_inside_the_block_stands(queue):
    queue.push(b"first", "call-1")
    with queue.reserve(WAIT) as item:
        item.rollback(delay=0)
    assert drained(queue) == [b"first"]


def test_a_reservation_can_be_ended_only_once(queue):
    queue.push(b"first", "call-1")
    item = queue.reserve(WAIT)
    item.commit()
    with pytest.raises(StaleLease):
        item.commit()
    with pytest.raises(StaleLease):
        item.rollback()


def test_pop_waits_for_an_item(queue):
    got = []
    waiting = threading.Thread(target=lambda: got.append(queue.pop(WAIT).data))
    waiting.start()
    queue.push(b"at last", "call-1")
    waiting.join(WAIT)
    assert got == [b"at last"]


def test_items_without_a_key_wait_for_nobody(queue):
    for data in (b"1", b"2", b"3"):
        queue.push(data)
    items = [queue.reserve(WAIT) for _ in range(3)]
    assert sorted(item.data for item in items) == [b"1", b"2", b"3"]


def test_a_paused_queue_serves_nothing_until_it_is_resumed(queue):
    queue.push(b"first", "call-1")
    queue.pause()
    assert queue.stats().paused
    assert drained(queue) == []
    queue.resume()
    assert drained(queue) == [b"first"]


def test_drain_returns_when_everything_is_gone(queue):
    queue.push(b"first", "call-1")
    with pytest.raises(TimeoutError):
        queue.drain(timeout=0.05)
    item = queue.reserve(WAIT)
    ended = threading.Thread(target=queue.drain)
    ended.start()
    item.commit()
    ended.join(WAIT)
    assert not ended.is_alive()
    assert queue.size().total == 0


def test_a_dead_letter_goes_back_to_its_place_or_to_the_end(url):
    with Queue(url, "calls", retry=RetryPolicy.immediate(max_attempts=1)) as queue:
        first = queue.push(b"first", "call-1")
        queue.push(b"second", "call-1")
        queue.rollback(queue.reserve(WAIT))
        assert queue.redrive(first) == first
        assert queue.pop(WAIT).data == b"first"
        queue.push(b"third", "call-1")
        queue.rollback(queue.reserve(WAIT))  # the second one
        (letter,) = queue.dead_letters()
        assert queue.pop(WAIT).data == b"third"
        with pytest.raises(RedriveRefused, match="later message"):
            queue.redrive(letter.id)
        queue.redrive(letter.id, append=True)
        assert queue.pop(WAIT).data == b"second"
        assert queue.dead_letters() == []


def test_a_queue_is_still_there_when_it_is_opened_again(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/queue.db"
    with Queue(url, "calls") as queue:
        queue.push(b"first", "call-1")
        queue.push(b"second", "call-1")
        queue.reserve(WAIT)  # not committed: it comes again
    with Queue(url, "calls") as queue:
        assert drained(queue) == [b"first", b"second"]


def test_many_threads_share_a_queue_and_each_key_stays_in_order(queue):
    keys, each = 8, 20
    for number in range(each):
        for key in range(keys):
            queue.push(str(number).encode(), f"call-{key}")
    seen: dict[str | None, list[int]] = {}

    def work():
        while True:
            try:
                with queue.reserve(0) as item:
                    seen.setdefault(item.key, []).append(int(item.data))
            except QueueEmpty:
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work()
    assert seen == {f"call-{key}": list(range(each)) for key in range(keys)}


def test_use_after_a_fork_is_refused_and_does_not_hang(queue):
    child = os.fork()
    if child == 0:
        try:
            queue.push(b"from the child", "call-1")
        except StoreLost:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# -- pushes that fail, and closing --------------------------------------------------------------------------------------


def refuse_bad_items(queue: Queue) -> None:
    """Let the store have no room for items with the data ``bad``."""
    broker = queue._pubsub.broker
    publish = broker.publish

    def picky(topic, messages):
        if any(message.data == b"bad" for message in messages):
            future = asyncio.get_running_loop().create_future()
            future.set_exception(StoreFull("no room"))
            return future
        return publish(topic, messages)

    broker.publish = picky  # type: ignore[method-assign]


def test_after_a_push_that_failed_its_key_goes_on(queue):
    refuse_bad_items(queue)
    queue.push(b"1", "call-1")
    for _ in range(2):
        with pytest.raises(StoreFull, match="no room"):
            queue.push(b"bad", "call-1")
    queue.push(b"2", "call-1")
    assert drained(queue) == [b"1", b"2"]


def test_a_push_raises_its_own_failure_only(queue):
    refuse_bad_items(queue)
    failures = []

    def push(data: bytes, key: str | None) -> None:
        for _ in range(25):
            try:
                queue.push(data, key)
            except StoreFull as error:
                failures.append((data, str(error)))

    threads = [
        threading.Thread(target=push, args=(data, key)) for data in (b"bad", b"good") for key in (None, "k", "k")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [(b"bad", "no room")] * 75
    assert queue.size().total == 75


@pytest.mark.usefixtures("no_garbage_of_others")
def test_closing_ends_calls_that_wait_for_an_item_and_the_queue_says_that_it_is_closed(url, recwarn):
    queue = Queue(url, "calls")
    ended: list[str] = []

    def wait() -> None:
        try:
            queue.reserve()
        except QueueEmpty as error:
            ended.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + WAIT
    while queue.stats().consumers < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    queue.close()
    for thread in threads:
        thread.join(WAIT)
    assert ended == ["queue 'calls' was closed before an item was ready"] * 3
    queue.close()
    for call in (queue.stats, queue.pause, queue.pop, lambda: queue.push(b"late")):
        with pytest.raises(FailedPrecondition, match=r"not open: use it inside 'with Queue\("):
            call()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_only_a_reservation_can_be_committed_or_rolled_back(queue):
    for end in (queue.commit, queue.rollback):
        with pytest.raises(InvalidArgument, match="take what reserve returned, not '7'"):
            end("7")


@pytest.mark.usefixtures("no_garbage_of_others")
def test_a_reservation_that_outlives_its_queue_says_so_and_warns_of_nothing(url, recwarn):
    queue = Queue(url, "calls")
    queue.push(b"1", "call-1")
    item = queue.reserve(WAIT)
    queue.close()
    for end in (item.commit, item.rollback):
        with pytest.raises(FailedPrecondition, match="not open"):
            end()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
