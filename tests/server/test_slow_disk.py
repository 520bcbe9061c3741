"""A disk that takes 50 ms for every fsync, and is never idle: what needs no commit does not wait for one.

Times would say little on a busy machine. What is counted is how many commits end between a question, asked while one is under
way, and its answer: none when the question was answered beside the commit, at least one whenever it had to wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import grpc
import pytest

from seriatim.store.base import Transaction
from seriatim.store.sqlite.store import SqliteStore
from tests.server.conftest import publish
from tests.server.served import PATIENCE, PROJECT, SUBSCRIPTION, TOPIC, Raw, server_in_thread

FSYNC = 0.05
QUESTIONS = 20
QUIET_TOPIC, QUIET = f"{PROJECT}/topics/quiet", f"{PROJECT}/subscriptions/quiet"


class SlowStore(SqliteStore):
    """Every commit is held up before it ends, with the locks of the store held."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ended = 0
        self._begun = threading.Condition()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as transaction:
            yield transaction
            with self._begun:
                self._begun.notify_all()
            sleep(FSYNC)
        self.ended += 1

    def until_it_waits_for_the_disk(self) -> None:
        with self._begun:
            assert self._begun.wait(PATIENCE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a message that waits on a subscription to which nothing is published any more."""
    path = tmp_path / "store.db"
    with server_in_thread(f"sqlite:///{path}") as server:
        raw = server.clients.raw()
        for topic, subscription in ((TOPIC, SUBSCRIPTION), (QUIET_TOPIC, QUIET)):
            raw.CreateTopic(name=topic)
            raw.CreateSubscription(name=subscription, topic=topic, enable_message_ordering=True)
        raw.Publish(topic=QUIET_TOPIC, messages=[{"data": b"waiting", "ordering_key": "k"}])
    return path


@contextmanager
def under_load(path: Path) -> Iterator[tuple[SlowStore, Raw]]:
    """A server whose disk always has something to write: what is published and what is acked."""
    store, is_over = SlowStore(path), threading.Event()
    with server_in_thread(store=store) as server:
        publisher = server.clients.raw()

        def keep_publishing() -> None:
            while not is_over.is_set():
                publish(publisher, "more")

        threads = [threading.Thread(target=keep_publishing) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield store, server.clients.raw()
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


def answered_beside_a_commit(store: SlowStore, ask: Callable[[], None]) -> int:
    """How many of the questions were answered before the commit ended that was under way."""
    count = 0
    for _ in range(QUESTIONS):
        store.until_it_waits_for_the_disk()
        ended = store.ended
        ask()
        count += store.ended == ended
    return count


def test_a_ping_is_answered_while_the_disk_is_busy(path: Path):
    with under_load(path) as (store, raw):
        stream = raw.stream(subscription=QUIET)
        stream.take(1)

        def ping() -> None:
            stream.send()
            assert not stream.receive().received_messages

        assert answered_beside_a_commit(store, ping) > QUESTIONS // 4


def test_messages_that_wait_are_delivered_while_the_disk_is_busy(path: Path):
    with under_load(path) as (store, raw):

        def take() -> None:
            stream = raw.stream(subscription=QUIET, stream_ack_deadline_seconds=600)
            (received,) = stream.take(1)
            assert received.message.data == b"waiting"
            assert stream.finish() is grpc.StatusCode.OK  # only then: a stream that is there would get it again
            raw.ModifyAckDeadline(subscription=QUIET, ack_ids=[received.ack_id], ack_deadline_seconds=0)

        assert answered_beside_a_commit(store, take) > QUESTIONS // 4
