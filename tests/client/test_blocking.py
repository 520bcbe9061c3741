"""The blocking API: the same names, for programs without an event loop."""

from __future__ import annotations

import copy
import os
import pydoc
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seriatim.client import blocking, consumer
from seriatim.client.pubsub import PubSub
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StoreLost
from tools import blocking_api

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


@pytest.mark.parametrize(("module", "name"), blocking_api.CLASSES, ids=lambda each: getattr(each, "__name__", each))
def test_whatever_the_async_classes_offer_is_offered_here(module, name):
    offered = {each for each in dir(getattr(module, name)) if not each.startswith("_")}
    internal = blocking_api.INTERNAL.get(name, set()) | (
        set(dir(consumer._Receiver)) if name == "MessageStream" else set()
    )
    missing = offered - internal - set(dir(getattr(blocking, name)))
    assert missing == set()


def test_the_blocking_api_is_the_one_that_the_async_classes_make():
    assert blocking_api.TARGET.read_text(encoding="utf-8") == blocking_api.generate(), "run make generate"


def test_mistakes_are_found_by_a_type_checker(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
from seriatim import PubSub

with PubSub.blocking("memory://") as p:
    p.topik("a").craete(1)
    p.topic("a").create(1)
    reveal_type(p.topic("a").subscription("s").pull(3)[0].data)
    reveal_type(p.topic("a").publish(b"x").result())
    p.subscription("s").on("mesage", print)
    p.topic("a").ensure(retension=1.0)
    for message in p.subscription("s"):
        reveal_type(message.ordering_key)
"""
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    found = [re.sub(r"^.*?program.py:", "", line) for line in checked.stdout.splitlines() if "program.py:" in line]
    assert [line.partition(":")[0] for line in found if "error" in line] == ["5", "6", "9", "10"]
    assert found[0].startswith('5: error: "PubSub" has no attribute "topik"')
    assert [line.rpartition(" ")[2] for line in found if "Revealed" in line] == ['"bytes"', '"str"', 'None"']


def test_it_can_be_looked_at_and_copied(pubsub, topic):
    assert {"create", "ensure", "publish", "name"} <= set(dir(topic))
    twin = copy.copy(topic)
    assert (twin, twin.name, hash(twin)) == (topic, "events", hash(topic))
    assert pubsub.topic("events") == topic != pubsub.topic("others")
    assert "ordering_key" in pydoc.render_doc(topic.publish)
    assert "blocking" in repr(topic)
    with pytest.raises(AttributeError, match="topik"):
        pubsub.topik("a")


def test_what_is_given_back_belongs_to_the_blocking_api(pubsub, topic):
    assert isinstance(topic, blocking.Topic)
    assert isinstance(topic.subscription("s"), blocking.Subscription)
    assert isinstance(topic.subscription("s").topic, blocking.Topic)
    assert isinstance(pubsub, blocking.PubSub)


def test_messages_are_pulled(topic, subscription):
    assert subscription.pull(timeout=0) == []
    for key in "abc":
        topic.publish(key.encode(), ordering_key=key)
    topic.flush()
    pulled = subscription.pull(10, timeout=WAIT)
    assert sorted(message.data for message in pulled) == [b"a", b"b", b"c"]
    for message in pulled:
        message.ack()
    subscription.wait_until_empty()


def test_a_handler_that_is_registered_by_a_decorator_runs_until_it_is_closed(topic, subscription):
    seen = []

    @subscription.handler
    def handle(message) -> None:
        seen.append((threading.current_thread().name.split("_")[0], message.data))
        subscription.stop()

    topic.publish(b"x", ordering_key="k")
    subscription.run(ack="on-return", concurrency=2)
    assert seen == [("seriatim-handler", b"x")]
    assert subscription.stats().total == 0


def test_a_pubsub_for_asyncio_names_the_blocking_one():
    with pytest.raises(TypeError, match=r"with PubSub\.blocking"), PubSub("memory://"):  # type: ignore[attr-defined]
        pass


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

    with pytest.raises(FailedPrecondition, match="would deadlock inside the event loop"):
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


def test_in_a_forked_child_closing_forgets_the_store_and_leaves_it_to_the_parent(pubsub, topic):
    child = os.fork()
    if child == 0:
        try:
            pubsub.close()
            pubsub.__exit__(None, None, None)
        except StoreLost:
            os._exit(1)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert topic.publish(b"from the parent").result(WAIT) == "0"
