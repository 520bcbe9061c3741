"""How things end: deleted topics and subscriptions, a store that is lost, a closed engine, a crash, a fork."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace

import pytest

from seriatim.client.pubsub import PubSub
from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine import topic as topic_module
from seriatim.engine.broker import Outgoing
from seriatim.engine.connect import open_broker, open_engine
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import NotFound, OutcomeUnknown, StaleLease, StoreFailed, StoreLost
from seriatim.store import open_store
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import Collector, WatchedStore, ids, settle_down

ORDERED = SubscriptionOptions(message_ordering=True)


async def subscribed(engine, options=ORDERED):
    await engine.create_topic("t")
    await engine.create_subscription("t", "s", options)
    return engine.get_subscription("s")


def test_an_engine_that_is_down_promises_nothing_that_nobody_would_hear_of(run_watched):
    async def scenario(engine, store):
        subscription = await subscribed(engine)
        store.failures.append(StoreLost("another owner took over"))
        with suppress(StoreLost):
            await engine.publish("t", [Outgoing("k", b"0")])
        with pytest.raises(StoreLost):
            await engine.dead_letters("s")
        assert not subscription.outcomes._waiters._open

    run_watched(scenario)


# -- deleting -----------------------------------------------------------------------------------------------------------


def test_an_ack_that_comes_while_its_subscription_is_deleted_spoils_nothing(run_watched):
    async def scenario(engine, store):
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("k", b"0")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)
        store.watch()
        store.gate.clear()
        deleting = asyncio.create_task(engine.delete_subscription("s"))
        await store.until_writing()
        subscription.outcomes.ack(one.lease)  # rides in the commit after the one that deletes
        published = engine.publish("t", [Outgoing("k", b"1")])
        store.gate.set()
        await deleting
        assert await published == ids(1, 2)
        await settle_down(engine)
        with pytest.raises(NotFound, match="was deleted"):
            subscription.outcomes.nack(one.lease)

    run_watched(scenario)


def test_a_publish_that_comes_while_its_topic_is_deleted_fails_alone(run_watched):
    async def scenario(engine, store):
        await engine.create_topic("t")
        await engine.create_topic("other")
        store.watch()
        store.gate.clear()
        deleting = asyncio.create_task(engine.delete_topic("t"))
        await store.until_writing()
        lost = engine.publish("t", [Outgoing("k", b"0")])
        kept = engine.publish("other", [Outgoing("k", b"1")])
        store.gate.set()
        await deleting
        with pytest.raises(NotFound, match="topic"):
            await lost
        assert await kept == ids(1)

    run_watched(scenario)


def test_a_dead_letter_whose_topic_is_being_deleted_stays_buried_where_it_was(run_watched):
    async def scenario(engine, store):
        await engine.create_topic("dead")
        options = SubscriptionOptions(
            message_ordering=True, retry=RetryPolicy.immediate(max_attempts=1), dead_letter_topic="dead"
        )
        subscription = await subscribed(engine, options)
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)
        await settle_down(engine)
        store.watch()
        store.gate.clear()
        deleting = asyncio.create_task(engine.delete_topic("dead"))
        await store.until_writing()
        subscription.outcomes.nack(one.lease)
        store.gate.set()
        await deleting
        await collector.wait(2)
        assert [row.offset for row in store.dead_letters(subscription.id)] == [0]

    run_watched(scenario)


# -- consumers that leave -----------------------------------------------------------------------------------------------


def test_a_consumer_that_leaves_with_a_window_of_messages_gives_all_of_them_back(run_watched):
    async def scenario(engine, store):
        subscription = await subscribed(engine, SubscriptionOptions(message_ordering=True, window=3))
        await engine.publish("t", [Outgoing("k", str(number).encode()) for number in range(5)])
        first, second = Collector(), Collector()
        subscription.deliveries.attach(first.consumer)
        await first.wait(3)
        subscription.deliveries.detach(first.consumer)
        subscription.deliveries.attach(second.consumer)
        await second.wait(3)
        assert second.data == [b"0", b"1", b"2"]
        assert {one.lease.attempt for one in second.got} == {1}

    run_watched(scenario)


def test_an_ack_that_was_revoked_is_told_once_and_not_reported_durable_with_the_next_one(run_watched):
    async def scenario(engine, store):
        subscription = await subscribed(engine, SubscriptionOptions(message_ordering=True, window=2))
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        collector = Collector()
        durable: list[BaseException | None] = []
        subscription.deliveries.attach(collector.consumer)
        first, second = await collector.wait(2)
        subscription.outcomes.ack(second.lease, durable.append)
        subscription.outcomes.nack(first.lease)
        for one in (await collector.wait(4))[2:]:
            subscription.outcomes.ack(one.lease)
        await settle_down(engine)
        assert [type(told) for told in durable] == [StaleLease]

    run_watched(scenario)


# -- reads that fail ----------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_stays_in_memory(monkeypatch):
    """Every payload has to be read from the store."""
    monkeypatch.setattr(topic_module, "CACHED_BYTES", 0)


class UnreadableStore(WatchedStore):
    """A store that can't be read for a while."""

    failed_reads = 0

    def fetch(self, topic_id, offsets):
        if self.failed_reads:
            self.failed_reads -= 1
            raise StoreFailed("disk I/O error")
        return super().fetch(topic_id, offsets)


def with_unreadable_store(scenario) -> None:
    async def whole() -> None:
        store = UnreadableStore()
        engine = Engine(store)
        await engine.start()
        async with asyncio.timeout(60):
            await scenario(engine, store)
        await engine.close()

    run_in_virtual_time(whole())


def test_a_read_that_fails_is_tried_again_and_is_no_attempt(nothing_stays_in_memory):
    async def scenario(engine, store):
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("a", b"0"), Outgoing("b", b"1"), Outgoing("a", b"2")])
        store.failed_reads = 3
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(2)
        assert sorted(collector.data) == [b"0", b"1"]
        assert {one.lease.attempt for one in collector.got} == {1}
        for one in collector.got:
            subscription.outcomes.ack(one.lease)
        await collector.wait(3)

    with_unreadable_store(scenario)


def test_an_operator_whose_word_can_not_be_written_any_more_leaves_nobody_waiting(nothing_stays_in_memory, monkeypatch):
    """Else the engine's end would tell somebody who has gone, and Python would complain that nobody looked."""

    async def scenario(engine, store):
        await engine.create_topic("dead")
        subscription = await subscribed(engine, replace(ORDERED, dead_letter_topic="dead"))
        await engine.publish("t", [Outgoing("a", b"0")])

        def refuse():
            raise StoreLost("the engine was closed")

        with monkeypatch.context() as patched:
            patched.setattr(engine, "commit", refuse)
            with pytest.raises(StoreLost):
                await engine.dead_letter("s", "a")
        assert not subscription.outcomes._waiters

    with_unreadable_store(scenario)


def test_an_engine_that_ends_while_a_dead_letter_is_read_leaves_its_error_to_the_next(
    nothing_stays_in_memory, run_with_restarts, monkeypatch
):
    async def before(engine):
        await engine.create_topic("dead")
        retry = RetryPolicy.immediate(max_attempts=1)
        subscription = await subscribed(engine, replace(ORDERED, retry=retry, dead_letter_topic="dead"))
        await engine.publish("t", [Outgoing("a", b"0")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)

        async def never(*_):
            await asyncio.Event().wait()

        monkeypatch.setattr(engine, "fetch", never)
        subscription.outcomes.nack(one.lease, None, "boom")
        await engine.drain()
        assert await engine.dead_letters("s") == []

    async def after(engine):
        async with asyncio.timeout(30):
            await engine.get_subscription("s").deliveries.until_empty()
        assert [(letter.error, letter.attempts) for letter in await engine.dead_letters("s")] == [("boom", 1)]

    run_with_restarts(before, after)


def test_a_message_that_leaves_memory_while_its_neighbour_is_read_is_delivered_all_the_same(monkeypatch):
    async def scenario(engine, store):
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("a", b"0")])
        monkeypatch.setattr(topic_module, "CACHED_BYTES", 0)
        await engine.publish("t", [Outgoing("b", b"1")])  # takes all of them out of memory
        monkeypatch.setattr(topic_module, "CACHED_BYTES", 1)
        await engine.publish("t", [Outgoing("c", b"2")])  # is in memory, until the next one comes
        real_fetch = engine.fetch

        async def publish_and_fetch(*args):
            await engine.publish("t", [Outgoing("d", b"3")])
            return await real_fetch(*args)

        monkeypatch.setattr(engine, "fetch", publish_and_fetch)
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(4)
        assert {one.lease.attempt for one in collector.got} == {1}

    with_unreadable_store(scenario)


def test_a_delivery_counts_only_once_it_is_handed_over(nothing_stays_in_memory):
    """Else processes that crash while they load could use up the attempts of a message that nobody ever saw."""

    async def scenario(engine, store):
        subscription = await subscribed(
            engine, SubscriptionOptions(message_ordering=True, retry=RetryPolicy.immediate(max_attempts=3))
        )
        await engine.publish("t", [Outgoing("a", b"0")])
        store.failed_reads = 1
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        await asyncio.sleep(0.1)  # it is leased, and could not be read
        await settle_down(engine)
        assert sum(row.failures for row in store.troubles(subscription.id)) == 0
        await collector.wait(1)
        await settle_down(engine)
        assert [row.failures for row in store.troubles(subscription.id)] == [1]

    with_unreadable_store(scenario)


def test_a_dead_letter_that_can_not_be_read_is_buried_later(nothing_stays_in_memory):
    async def scenario(engine, store):
        await engine.create_topic("dead")
        options = SubscriptionOptions(
            message_ordering=True, retry=RetryPolicy.immediate(max_attempts=1), dead_letter_topic="dead"
        )
        subscription = await subscribed(engine, options)
        await engine.publish("t", [Outgoing("k", b"bad"), Outgoing("k", b"good")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)
        store.failed_reads = 3
        subscription.outcomes.nack(one.lease)
        await collector.wait(2)
        assert collector.data == [b"bad", b"good"]
        assert [record.data for record in store.read(engine.get_topic("dead").id, 0, 9)] == [b"bad"]

    with_unreadable_store(scenario)


# -- a store that is lost, and an engine that is closed -----------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [None, 5])
def test_after_an_unknown_outcome_nothing_is_given_out_and_closing_gives_the_store_back(run_watched, max_attempts):
    async def scenario(engine, store):
        retry = RetryPolicy.immediate(max_attempts=max_attempts)
        subscription = await subscribed(
            engine, SubscriptionOptions(message_ordering=True, ack_deadline=0.01, retry=retry)
        )
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)
        await settle_down(engine)
        store.failures.append(OutcomeUnknown("who knows"))
        with pytest.raises(OutcomeUnknown):
            await engine.publish("t", [Outgoing("k", b"2")])
        given_out = len(collector.got)  # more than one if the machine is so busy that the lease expired before
        with pytest.raises(OutcomeUnknown):
            subscription.outcomes.ack(one.lease)
        with pytest.raises(OutcomeUnknown):
            engine.publish("t", [Outgoing("k", b"3")])
        subscription.deliveries.detach(collector.consumer)
        assert len(collector.got) == given_out

    run_watched(scenario)


def test_what_is_said_after_the_engine_was_closed_is_refused(tmp_path):
    async def main() -> None:
        engine = await Engine.open(f"sqlite:///{tmp_path}/store.db")
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("k", b"0")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)
        await engine.close()
        with pytest.raises(StoreLost, match="was closed"):
            subscription.outcomes.ack(one.lease)
        with pytest.raises(StoreLost, match="was closed"):
            engine.publish("t", [Outgoing("k", b"1")])

    asyncio.run(main())


@pytest.mark.parametrize("opened_by", [open_broker, open_engine])
def test_an_opening_that_is_cancelled_gives_back_what_its_thread_opened(monkeypatch, opened_by):
    store, opening, go_on = WatchedStore(), threading.Event(), threading.Event()
    closed = threading.Event()

    def open_slowly(url, standby=None):
        opening.set()
        assert go_on.wait(10)
        return store

    monkeypatch.setattr("seriatim.engine.engine.open_store", open_slowly)
    monkeypatch.setattr(store, "close", closed.set)

    async def scenario() -> None:
        task = asyncio.create_task(opened_by("memory://"))
        await asyncio.to_thread(opening.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert closed.is_set()


@pytest.mark.parametrize("when", [0, 1, 2, 3, 5, 8])
def test_a_close_that_is_cancelled_at_any_moment_gives_the_store_back(tmp_path, when):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        engine = await Engine.open(url)
        await subscribed(engine)
        engine.publish("t", [Outgoing("k", b"1")])
        closing = asyncio.create_task(engine.close())
        for _ in range(when):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as at the end of asyncio.run
            task.cancel()
        await asyncio.wait([closing])
        with suppress(asyncio.CancelledError):
            await engine.close()  # waits for the same end

    asyncio.run(scenario())
    open_store(url).close()


def test_whatever_happens_when_a_commit_is_told_the_next_one_is_written(run_watched):
    async def scenario(engine, store):
        await subscribed(engine)
        topic = engine.get_topic("t")
        topic.followers[Faulty()] = None
        store.watch()
        store.gate.clear()
        engine.publish("t", [Outgoing("k", b"1")])
        await store.until_writing()
        written = engine.change(lambda work: work.position("writer"))  # rides in the next commit
        asyncio.get_running_loop().call_soon(store.gate.set)
        assert await written == 0

    run_watched(scenario)


class Faulty:
    """A follower with a mistake in it."""

    def push(self, records: object) -> None:
        raise RuntimeError("a mistake")


def test_options_that_wait_for_a_lease_do_not_outlive_the_engine(run_watched):
    async def scenario(engine, store):
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("k", b"0")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(1)
        changing = asyncio.create_task(engine.update_subscription("s", SubscriptionOptions(message_ordering=False)))
        await asyncio.sleep(0)
        await settle_down(engine)
        await engine.close()
        with pytest.raises(StoreLost):
            await changing

    run_watched(scenario)


def test_a_delivery_under_way_at_a_crash_counts_once_its_record_is_written(tmp_path):
    """The files as they are at some moment are what a crash leaves."""

    async def first() -> None:
        engine = await Engine.open(f"sqlite:///{tmp_path}/store.db")
        subscription = await subscribed(
            engine, SubscriptionOptions(message_ordering=True, retry=RetryPolicy.immediate(max_attempts=2))
        )
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(1)
        await settle_down(engine)
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"store.db{suffix}", tmp_path / f"crashed.db{suffix}")
        await engine.close()

    async def second() -> None:
        engine = await Engine.open(f"sqlite:///{tmp_path}/crashed.db")
        subscription, collector = engine.get_subscription("s"), Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)
        assert (one.record.data, one.lease.attempt) == (b"0", 2)
        subscription.outcomes.nack(one.lease)
        await collector.wait(2)
        assert collector.data == [b"0", b"1"]
        await engine.close()

    asyncio.run(first())
    asyncio.run(second())


# -- a fork -------------------------------------------------------------------------------------------------------------


def in_child(work) -> None:
    """Run ``work`` in a forked child, and fail here if it failed there."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_in_a_forked_child_the_engine_refuses_everything_and_the_parent_goes_on(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def main() -> None:
        engine = await Engine.open(url)
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("k", b"0")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        (one,) = await collector.wait(1)

        def work() -> None:
            with pytest.raises(StoreLost, match="before a fork"):
                engine.publish("t", [Outgoing("k", b"child")])
            with pytest.raises(StoreLost, match="before a fork"):
                subscription.outcomes.ack(one.lease)
            with pytest.raises(StoreLost, match="before a fork"):
                asyncio.run(engine.create_topic("child"))
            asyncio.run(engine.close())

        in_child(work)
        subscription.outcomes.ack(one.lease)
        assert await engine.publish("t", [Outgoing("k", b"1")]) == ids(1, 2)
        await collector.wait(2)
        assert collector.data == [b"0", b"1"]
        await engine.close()

    asyncio.run(main())
    reader = open_store(url, read_only=True)
    assert list(reader.check()) == []
    reader.close()


def test_in_a_forked_child_the_client_says_so_and_does_not_hang(tmp_path):
    async def main() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/store.db") as pubsub:
            topic = await pubsub.topic("t").create()
            await topic.publish(b"0")

            async def publish() -> None:
                await topic.publish(b"child")

            def work() -> None:
                with pytest.raises(StoreLost, match="before a fork"):
                    asyncio.run(publish())
                asyncio.run(pubsub.close())

            in_child(work)
            assert await topic.publish(b"1") == "1"

    asyncio.run(main())
