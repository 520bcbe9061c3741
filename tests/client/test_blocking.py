"""The blocking API: the same names, for programs without an event loop."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from seriatim.client.blocking import Blocking
from seriatim.client.pubsub import PubSub
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StoreLost

WAIT = 10


@pytest.fixture
def pubsub():
    with PubSub.blocking() as pubsub:
        yield pubsub


@pytest.fixture
def topic(pubsub):
    topic = pubsub.topic("events")
    topic.create()
    return topic


@pytest.fixture
def subscription(topic):
    subscription = topic.subscription("reader")
    subscription.create(enable_message_ordering=True)
    return subscription


def take(subscription, count: int) -> list:
    taken = []
    for message in subscription:
        with message:
            taken.append(message)
        if len(taken) == count:
            break
    return taken


def test_a_publish_gives_a_future_that_any_thread_can_wait_for(topic, subscription):
    published = topic.publish(b"one", ordering_key="k")
    assert published.result(WAIT) == "0"
    assert topic.publish_json({"two": 2}, ordering_key="k").result(WAIT) == "1"


def test_messages_are_iterated_over_in_order_and_acked_at_the_end_of_a_block(topic, subscription):
    for number in range(5):
        topic.publish(str(number).encode(), ordering_key="k")
    topic.flush()
    taken = take(subscription, 5)
    assert [message.data for message in taken] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.ordering_key for message in taken] == ["k"] * 5


def test_a_block_that_raises_nacks_its_message(topic, subscription):
    topic.publish(b"hard", ordering_key="k").result(WAIT)
    stream = iter(subscription)
    with pytest.raises(ValueError, match="not today"), next(stream):
        raise ValueError("not today")
    again = next(stream)
    assert (again.data, again.delivery_attempt) == (b"hard", 2)
    again.ack()


def test_handlers_may_block_and_run_at_once_for_different_keys(topic, subscription):
    meeting = threading.Barrier(3)

    def handler(message):
        meeting.wait(WAIT)  # nobody gets past this alone
        message.ack()

    subscription.on("message", handler)
    subscription.open()
    topic.publish(b"", ordering_key="a")
    topic.publish(b"", ordering_key="b")
    meeting.wait(WAIT)


def test_handlers_of_one_key_run_one_after_another(topic, subscription):
    seen, running, all_done = [], threading.Semaphore(1), threading.Event()

    def handler(message):
        assert running.acquire(blocking=False), "two messages of a key at once"
        seen.append(int(message.data))
        running.release()
        message.ack()
        if len(seen) == 50:
            all_done.set()

    subscription.on("message", handler)
    subscription.open()
    for number in range(50):
        topic.publish(str(number).encode(), ordering_key="k")
    assert all_done.wait(WAIT)
    assert seen == list(range(50))


def test_a_handler_that_raises_is_reported_and_its_message_comes_again(topic, subscription):
    attempts, done, reported = [], threading.Event(), threading.Event()
    errors = []

    def report(error):
        errors.append(str(error))
        reported.set()

    def handler(message):
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt == 1:
            raise ValueError("first time")
        message.ack()
        done.set()

    subscription.on("message", handler)
    subscription.on("error", report)
    subscription.open()
    topic.publish(b"", ordering_key="k")
    assert done.wait(WAIT)
    assert reported.wait(WAIT)
    assert attempts == [1, 2]
    assert errors == ["first time"]


def test_errors_of_the_async_api_are_raised_where_they_are_caused(pubsub, topic):
    with pytest.raises(NotFound, match="'nothing'"):
        pubsub.topic("nothing").delete()
    with pytest.raises(InvalidArgument, match="Message data must be bytes"):
        topic.publish("text")


def test_whatever_the_async_classes_offer_is_offered_here(pubsub, topic, subscription):
    for each in (pubsub, topic, subscription):
        names = [name for name in dir(type(each._target)) if not name.startswith("_")]
        assert names
        assert all(getattr(each, name) is not None for name in names if name not in {"engine", "broker", "blocking"})


def test_what_is_given_back_belongs_to_the_blocking_api(pubsub, topic):
    assert isinstance(topic.subscription("s"), Blocking)
    assert isinstance(topic.publisher, Blocking)


def test_outside_its_block_it_is_refused(tmp_path: Path):
    pubsub = PubSub.blocking(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(FailedPrecondition, match="not open"):
        pubsub.topic("t")
    with pubsub:
        topic = pubsub.topic("t")
    with pytest.raises(FailedPrecondition, match="not open"):
        topic.create()


def test_a_store_that_can_not_be_opened_leaves_no_thread_behind(tmp_path: Path):
    before = threading.active_count()
    with pytest.raises(InvalidArgument), PubSub.blocking("nonsense://"):
        pass
    assert threading.active_count() == before


def test_waiting_for_itself_is_refused(pubsub):
    async def from_within():
        pubsub.topic("t")

    with pytest.raises(FailedPrecondition, match="wait for itself"):
        pubsub._thread.run(from_within())


def test_use_after_a_fork_is_refused_and_does_not_hang(pubsub, topic):
    child = os.fork()
    if child == 0:
        try:
            topic.publish(b"from the child")
        except StoreLost:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert topic.publish(b"from the parent").result(WAIT) == "0"
