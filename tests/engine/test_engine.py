"""The engine: what is published comes out in order, one at a time per key, and survives."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.core.lanes.types import ReleaseAfter, RetryPolicy
from seriatim.engine.broker import Outgoing, SubscriptionInfo
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import AlreadyExists, InvalidArgument, NotFound, OutcomeUnknown, StaleLease, StoreFailed, StoreFull
from seriatim.store.sql.write_operations import SqlTransaction
from tests.engine.conftest import (
    ORDERED,
    Collector,
    WatchedStore,
    prepare,
    publish,
    reads_held_up,
    settle_down,
    work_off,
)


def test_messages_of_a_key_are_delivered_in_publish_order_one_at_a_time(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        assert await publish(engine, "first", "second", "third") == ["0", "1", "2"]
        for count in (1, 2, 3):
            last = (await got.wait(count))[-1]
            await settle_down(engine)
            assert len(got.got) == count, "the next one waits for the ack"
            subscription.outcomes.ack(last.lease)
        await settle_down(engine)
        assert got.data == [b"first", b"second", b"third"]
        assert len(subscription.lanes) == 0

    run(scenario)


def test_keys_do_not_wait_for_each_other_and_keyless_messages_for_nobody(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a1", "a2", key="a")
        await publish(engine, "b1", key="b")
        await publish(engine, "x", "y", key=None)
        await got.wait(4)
        assert sorted(got.data) == [b"a1", b"b1", b"x", b"y"]

    run(scenario)


def test_without_ordering_keyed_messages_behave_as_keyless(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions())
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "1", "2", "3")
        await got.wait(3)

    run(scenario)


def test_a_nacked_message_keeps_its_place(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first", "second")
        subscription.outcomes.nack((await got.wait(1))[0].lease, error="try again")
        again = (await got.wait(2))[-1]
        assert (again.record.data, again.lease.attempt) == (b"first", 2)
        subscription.outcomes.ack(again.lease)
        assert (await got.wait(3))[-1].record.data == b"second"

    run(scenario)


def test_a_lease_that_expires_gives_the_message_out_again_and_its_ack_is_refused(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, ack_deadline=0.5))
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first", "second")
        stale = (await got.wait(1))[0].lease
        again = (await got.wait(2))[1]
        assert again.record.data == b"first"
        with pytest.raises(StaleLease):
            subscription.outcomes.ack(stale)
        subscription.outcomes.ack(again.lease)
        assert (await got.wait(3))[2].record.data == b"second"

    run(scenario)


def test_many_acks_at_once_are_each_taken_or_refused_alone(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await asyncio.gather(*(publish(engine, key, key=key) for key in "abc"), publish(engine, "more", key="c"))
        leases = [delivered.lease for delivered in await got.wait(3)]
        subscription.outcomes.nack(leases[1], delay=60)
        assert subscription.outcomes.ack_all([*leases, leases[0]]) == [leases[1], leases[0]]
        assert got.consumer.outstanding == 0
        assert (await got.wait(4))[3].record.data == b"more"
        assert subscription.counts.acked == 2
        await settle_down(engine)
        assert len(subscription.lanes) == 2, "the one that failed, and the one that is out"

    run(scenario)


def test_an_extended_lease_does_not_expire(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, ack_deadline=5))
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first")
        lease = (await got.wait(1))[0].lease
        assert subscription.outcomes.extend(lease, 60) > lease.deadline + 50
        subscription.lanes.advance(lease.deadline + 1)
        subscription.outcomes.ack(lease)
        await settle_down(engine)
        assert got.data == [b"first"]

    run(scenario)


def test_a_delayed_message_blocks_its_own_key_only(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a1", key="a", delay=0.5)
        await publish(engine, "a2", key="a")
        await publish(engine, "b1", key="b")
        assert (await got.wait(1))[0].record.data == b"b1"
        assert (await got.wait(2))[1].record.data == b"a1"

    run(scenario)


def test_two_consumers_share_a_subscription_and_order_holds_across_them(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        collectors = [Collector(max_messages=1), Collector(max_messages=1)]
        for collector in collectors:
            subscription.deliveries.attach(collector.consumer)
        await publish(engine, "a1", "a2", key="a")
        await publish(engine, "b1", "b2", key="b")
        for collector in collectors:
            await collector.wait(1)
        assert sorted(collectors[0].data + collectors[1].data) == [b"a1", b"b1"]

    run(scenario)


def test_a_consumer_gets_no_more_than_it_has_room_for(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        few, small = Collector(max_messages=2), Collector(max_bytes=5)
        subscription.deliveries.attach(few.consumer)
        for key in "abcdef":
            await publish(engine, key * 3, key=key)
        await few.wait(2)
        subscription.deliveries.attach(small.consumer)
        await small.wait(2)
        await settle_down(engine)
        assert (len(few.got), len(small.got)) == (2, 2)
        subscription.outcomes.ack(few.got[0].lease)
        await few.wait(3)

    run(scenario)


def test_what_a_consumer_leaves_behind_is_given_out_at_once_and_not_counted(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        gone, other = Collector(), Collector()
        subscription.deliveries.attach(gone.consumer)
        await publish(engine, "first")
        await gone.wait(1)
        subscription.deliveries.detach(gone.consumer)
        subscription.deliveries.attach(other.consumer)
        (again,) = await other.wait(1)
        assert (again.record.data, again.lease.attempt) == (b"first", 1)

    run(scenario)


def test_a_consumer_that_leaves_with_several_messages_of_a_key_gives_them_back_in_order(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, window=3))
        leaving, staying = Collector(), Collector()
        subscription.deliveries.attach(leaving.consumer)
        await publish(engine, "1", "2", "3")
        await leaving.wait(3)
        subscription.deliveries.detach(leaving.consumer)
        subscription.deliveries.attach(staying.consumer)
        assert [one.record.data for one in await staying.wait(3)] == [b"1", b"2", b"3"]

    run(scenario)


def test_messages_that_are_no_longer_in_memory_are_read_and_keep_their_order(run, monkeypatch):
    monkeypatch.setattr("seriatim.engine.topic.CACHED_BYTES", 0)

    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, window=8))
        got = Collector()
        await publish(engine, *"abcde")
        subscription.deliveries.attach(got.consumer)
        await got.wait(5)
        await publish(engine, "f", "g")
        await got.wait(7)
        assert b"".join(got.data) == b"abcdefg"

    run(scenario)


def test_what_nobody_subscribes_to_stays_out_of_memory_and_can_be_read_later(run):
    async def scenario(engine):
        await engine.create_topic("t")
        await publish(engine, "before")
        assert engine.get_topic("t").recent(0) is None
        await engine.create_subscription("t", "s")
        await publish(engine, "after")
        assert engine.get_topic("t").recent(1) is not None
        await engine.seek_to_message("s", "0")
        got = Collector()
        engine.attach("s", got.consumer)
        assert [one.record.data for one in await got.wait(2)] == [b"before", b"after"]

    run(scenario)


@pytest.mark.parametrize("acked", [False, True])
def test_a_delivery_that_was_fenced_is_not_noted_as_an_attempt(run, acked):
    """Also one whose ack was only provisional: its lease record is taken back, so that a restart does not count it."""

    async def scenario(engine):
        options = SubscriptionOptions(message_ordering=True, window=3, retry=RetryPolicy.immediate(max_attempts=2))
        subscription = await prepare(engine, options)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first", "second", "third")
        first, second, _ = await got.wait(3)
        await settle_down(engine)
        assert [row.failures for row in engine._store.troubles(subscription.id)] == [1, 1, 1]
        if acked:
            subscription.outcomes.ack(second.lease)
        subscription.outcomes.nack(first.lease, delay=3600, error="boom")
        await settle_down(engine)
        assert [row.failures for row in engine._store.troubles(subscription.id)] == [1, 0, 0]

    run(scenario)


def test_with_a_window_a_nack_fences_what_follows(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, window=3))
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a", "b", "c")
        first, second, third = await got.wait(3)
        subscription.outcomes.ack(third.lease)
        subscription.outcomes.nack(second.lease)
        await got.wait(5)
        assert got.fenced == []
        assert b"".join(got.data) == b"abcbc"
        subscription.outcomes.ack(first.lease)

    run(scenario)


def test_with_a_window_the_messages_of_a_key_go_to_one_consumer_while_any_is_out(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, window=4))
        one, two = Collector(max_messages=2), Collector()
        subscription.deliveries.attach(one.consumer)
        await publish(engine, *"abcd")
        await one.wait(2)
        subscription.deliveries.attach(two.consumer)
        await publish(engine, "other", key="other")
        assert [delivered.record.data for delivered in await two.wait(1)] == [b"other"]
        for delivered in list(one.got):
            subscription.outcomes.ack(delivered.lease)
        await settle_down(engine)
        assert b"".join(one.data + two.data[1:]) == b"abcd", "whoever got them, they came in order"
        assert one.data == [b"a", b"b"] or two.data == [b"other"]

    run(scenario)


def test_a_consumer_hears_which_of_its_leases_are_fenced(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, window=3))
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a", "b", "c")
        first, second, _ = await got.wait(3)
        subscription.outcomes.nack(first.lease)
        assert got.fenced == [1, 2]
        with pytest.raises(StaleLease):
            subscription.outcomes.ack(second.lease)
        await got.wait(6)
        assert b"".join(got.data) == b"abcabc"

    run(scenario)


def test_used_up_attempts_lead_to_the_dead_letter_topic_and_the_key_goes_on(run):
    options = SubscriptionOptions(
        message_ordering=True, retry=RetryPolicy.immediate(max_attempts=2), dead_letter_topic="dead"
    )

    async def scenario(engine):
        await engine.create_topic("dead")
        graves = Collector()
        await engine.create_subscription("dead", "graves", ORDERED)
        engine.attach("graves", graves.consumer)
        subscription = await prepare(engine, options)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "bad", "good")
        for count in (1, 2):
            subscription.outcomes.nack((await got.wait(count))[-1].lease, error="broken")
        assert (await got.wait(3))[-1].record.data == b"good"
        ((_, letter),) = await graves.wait(1)
        assert (letter.key, letter.data) == ("k", b"bad")
        assert letter.attributes == {
            "seriatim-dead-letter-subscription": "s",
            "seriatim-dead-letter-offset": "0",
            "seriatim-dead-letter-published": str(got.got[0].record.published),
            "seriatim-dead-letter-attempts": "2",
            "seriatim-dead-letter-error": "broken",
        }

    run(scenario)


def test_an_ack_is_reported_durable_after_its_commit(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first")
        told: asyncio.Queue[BaseException | None] = asyncio.Queue()
        subscription.outcomes.ack((await got.wait(1))[0].lease, told.put_nowait)
        assert told.empty()
        async with asyncio.timeout(10):
            assert await told.get() is None

    run(scenario)


def test_whoever_waits_for_a_provisional_ack_hears_that_it_came_to_nothing(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, window=2))
        got = Collector()
        told: list[BaseException | None] = []
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first", "second")
        first, second = await got.wait(2)
        subscription.outcomes.ack(second.lease, told.append)
        subscription.outcomes.nack(first.lease)
        (error,) = told
        assert isinstance(error, StaleLease)
        assert "the ack of message 1 came to nothing: an earlier message of its key failed" in str(error)
        await got.wait(4)
        assert got.data[2:] == [b"first", b"second"]

    run(scenario)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("delete_subscription", "subscription 's' was deleted"),
        ("fail", "who knows"),
        ("close", "the engine was closed"),
    ],
)
def test_whoever_waits_for_an_ack_hears_when_it_can_not_become_durable(run_watched, end, text):
    async def scenario(engine, store):
        await prepare(engine, SubscriptionOptions(message_ordering=True, window=2))
        got = Collector()
        told: list[BaseException | None] = []
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "first", "second")
        attachment.ack((await got.wait(2))[1].lease, told.append)  # provisional as long as the first one is out
        if end == "delete_subscription":
            await engine.delete_subscription("s")
        elif end == "fail":
            store.failures.append(OutcomeUnknown("who knows"))
            with pytest.raises(OutcomeUnknown):
                await publish(engine, "third")
            assert [str(error) for error in got.failures] == ["who knows"]
        await engine.close()
        (error,) = told
        assert text in str(error)

    run_watched(scenario)


def test_an_ack_that_meets_the_deletion_of_its_subscription_disturbs_nobody(run):
    async def scenario(engine):
        await prepare(engine)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "first")
        (one,) = await got.wait(1)
        deletion = asyncio.ensure_future(engine.delete_subscription("s"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its commit has begun
        attachment.ack(one.lease)
        await deletion
        await publish(engine, "second")  # would fail if the ack made its commit fail
        assert [type(failure) for failure in got.failures] == [NotFound], "all that its consumer hears"

    run(scenario)


def test_what_is_published_to_a_topic_while_it_is_deleted_fails_alone(run):
    async def scenario(engine):
        await engine.create_topic("t")
        await engine.create_topic("u")
        deletion = asyncio.ensure_future(engine.delete_topic("t"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its commit has begun
        lost, other = publish(engine, "to nowhere"), engine.publish("u", [Outgoing(None, b"other")])
        await deletion
        assert await other == ["0"]
        with pytest.raises(NotFound):
            await lost

    run(scenario)


def test_topics_are_described_and_their_options_changed(run_with_restarts):
    async def before(engine):
        await prepare(engine)
        await publish(engine, "1", "2")
        await engine.update_topic("t", TopicOptions(retention=60.0))
        (topic,) = await engine.list_topics()
        assert (topic.name, topic.options.retention, topic.earliest, topic.next_offset) == ("t", 60.0, 0, 2)
        with pytest.raises(NotFound):
            await engine.update_topic("u", TopicOptions())
        with pytest.raises(NotFound):
            engine.require_topic("u")

    async def after(engine):
        (topic,) = await engine.list_topics()
        assert (topic.options, topic.next_offset) == (TopicOptions(retention=60.0), 2)
        assert await engine.describe_subscription("s") == SubscriptionInfo("s", "t", ORDERED)

    run_with_restarts(before, after)


def test_with_release_on_receipt_the_next_message_does_not_wait_for_the_commit(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions(message_ordering=True, release=ReleaseAfter.RECEIPT))
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "first", "second")
        subscription.outcomes.ack((await got.wait(1))[0].lease)
        await asyncio.sleep(0)
        assert len(got.got) == 2

    run(scenario)


def test_a_topic_that_is_deleted_while_topics_are_listed_is_left_out(run):
    async def scenario(engine):
        for name in ("t", "u", "v"):
            await engine.create_topic(name)
        with reads_held_up(engine):
            listing = asyncio.create_task(engine.list_topics())
            await asyncio.sleep(0)
            await engine.delete_topic("u")
        assert [info.name for info in await listing] == ["t", "v"]

    run(scenario)


def test_a_page_of_topics_is_full_although_one_of_them_is_deleted_meanwhile(run):
    async def scenario(engine):
        for name in "abcde":
            await engine.create_topic(name)
        with reads_held_up(engine):
            listing = asyncio.create_task(engine.list_topics(after="a", limit=2))
            await asyncio.sleep(0)
            await engine.delete_topic("b")
        assert [info.name for info in await listing] == ["c", "d"]
        assert [info.name for info in await engine.list_topics(after="d", limit=2)] == ["e"]

    run(scenario)


def test_a_subscription_created_after_a_publish_that_failed_gets_what_is_published_after_a_restart(
    run_with_restarts, monkeypatch
):
    async def fail_and_subscribe(engine):
        await engine.create_topic("t")
        with monkeypatch.context() as patch:
            patch.setattr(SqlTransaction, "append", no_room)
            with pytest.raises(StoreFull):
                await publish(engine, "a", "b", "c")
        await engine.create_subscription("t", "s", ORDERED)
        assert list(engine._store.check()) == []

    async def publish_more(engine):
        await publish(engine, "d")

    async def look(engine):
        assert await work_off(engine, 1) == [b"d"]

    run_with_restarts(fail_and_subscribe, publish_more, look)


def no_room(*_: object) -> None:
    raise StoreFull("there is no room left")


def test_clean_up_outlives_errors_that_are_not_ours(run, monkeypatch, caplog):
    monkeypatch.setattr("seriatim.engine.upkeep.PAUSE_S", 0.001)

    async def scenario(engine):
        rounds = asyncio.Semaphore(0)

        async def fail() -> None:
            rounds.release()
            raise ZeroDivisionError

        monkeypatch.setattr(engine._upkeep, "clean_up", fail)
        for name in "abc":
            await engine.create_topic(name)
            async with asyncio.timeout(10):
                await rounds.acquire()
        assert not engine._upkeep.task.done()

    run(scenario)
    assert "clean-up failed and will be tried again" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_what_everybody_settled_is_cleaned_up_by_itself(run, monkeypatch):
    monkeypatch.setattr("seriatim.engine.upkeep.PAUSE_S", 0.001)

    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        for key in "abc":
            await publish(engine, key, key=key)
        await got.wait(3)
        for one in got.got[:2]:
            subscription.outcomes.ack(one.lease)
        await settle_down(engine)
        rounds = asyncio.Semaphore(0)
        clean_up = engine._upkeep.clean_up

        async def counted():
            await clean_up()
            rounds.release()

        monkeypatch.setattr(engine._upkeep, "clean_up", counted)
        for number in range(2):  # the first round may have begun before the acks were written
            await publish(engine, f"a change {number}", key="d")
            async with asyncio.timeout(10):
                await rounds.acquire()
        kept = [record.data for record in engine._store.read(subscription.topic.id, 0, 10)]
        assert kept == [b"c", b"a change 0", b"a change 1"]

    run(scenario)


def test_ordering_can_be_turned_on_later_and_leases_that_are_out_finish_first(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions())
        got = Collector(max_messages=2)
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "1", "2", "3", "4")
        first, second = await got.wait(2)
        change = asyncio.ensure_future(engine.update_subscription("s", ORDERED))
        await settle_down(engine)
        subscription.outcomes.ack(first.lease)
        await settle_down(engine)
        await publish(engine, "5")
        assert not change.done()
        assert len(got.got) == 2
        subscription.outcomes.nack(second.lease, error="kept in mind")
        await change
        assert (await got.wait(3))[2].record.data == b"2"
        assert got.got[2].lease.attempt == 2
        assert got.got[2].lease.token > second.lease.token
        for count in (3, 4, 5):
            subscription.outcomes.ack((await got.wait(count))[-1].lease)
        await got.wait(6)
        assert b"".join(got.data[2:]) == b"2345"

    run(scenario)


def test_two_changes_of_options_at_once_lose_no_message(run):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions())
        got = Collector(max_messages=1)
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "1")
        (first,) = await got.wait(1)
        changes = [
            asyncio.ensure_future(
                engine.update_subscription("s", SubscriptionOptions(message_ordering=True, ack_deadline=n))
            )
            for n in (20, 30)
        ]
        await settle_down(engine)
        await publish(engine, "2")
        subscription.outcomes.ack(first.lease)
        subscription.outcomes.ack(
            (await got.wait(2))[1].lease
        )  # given out between the two changes; the second waits for it
        await asyncio.gather(*changes)
        await publish(engine, "3")
        await got.wait(3)
        assert b"".join(got.data) == b"123"
        assert subscription.options.ack_deadline == 30

    run(scenario)


def test_when_a_change_of_options_fails_the_subscription_goes_on_as_it_was(run, monkeypatch):
    async def scenario(engine):
        subscription = await prepare(engine, SubscriptionOptions())

        def unreadable(subscription_id):
            raise StoreFailed("the disk is gone for a moment")

        with monkeypatch.context() as broken:
            broken.setattr(engine._store, "troubles", unreadable)
            with pytest.raises(StoreFailed):
                await engine.update_subscription("s", ORDERED)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "1", "2")
        await got.wait(2)
        assert not subscription.options.message_ordering
        (stored,) = engine._store.catalog().subscriptions
        assert SubscriptionOptions.from_json(stored.options) == subscription.options, "the store agrees"

    run(scenario)


def test_changed_options_survive_a_restart(run_with_restarts):
    async def before(engine):
        await prepare(engine, SubscriptionOptions())
        await engine.update_subscription("s", SubscriptionOptions(message_ordering=True, ack_deadline=5, window=2))

    async def after(engine):
        options = engine.get_subscription("s").options
        assert options == SubscriptionOptions(message_ordering=True, ack_deadline=5, window=2)

    run_with_restarts(before, after)


def test_a_subscription_gets_what_is_published_from_its_creation_on(run):
    async def scenario(engine):
        await engine.create_topic("t")
        await publish(engine, "before")
        creation = asyncio.ensure_future(engine.create_subscription("t", "s", ORDERED))
        await asyncio.sleep(0)
        publish(engine, "in the same commit")
        await creation
        subscription = engine.get_subscription("s")
        await publish(engine, "after")
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        subscription.outcomes.ack((await got.wait(1))[0].lease)
        await got.wait(2)
        assert got.data == [b"in the same commit", b"after"]

    run(scenario)


def test_a_name_is_given_once_and_a_refused_request_fails_alone(run):
    async def scenario(engine):
        await engine.create_topic("t")
        again = asyncio.ensure_future(engine.create_topic("t"))
        other = asyncio.ensure_future(engine.create_topic("u"))
        with pytest.raises(AlreadyExists):
            await again
        assert (await other).name == "u"
        with pytest.raises(NotFound, match="topic 'x' does not exist: create it first"):
            engine.publish("x", [Outgoing(None, b"")])
        with pytest.raises(NotFound, match="subscription 'x' does not exist: create it first"):
            engine.get_subscription("x")

    run(scenario)


def test_a_subscription_has_its_name_for_itself_on_whatever_topic(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_topic("u")
        with pytest.raises(AlreadyExists, match="subscription 's' already exists"):
            await engine.create_subscription("u", "s")
        both = [engine.create_subscription(topic, "new") for topic in ("t", "u")]
        results = await asyncio.gather(*both, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["SubscriptionInfo", "AlreadyExists"]

    run(scenario)


def test_deleting_takes_subscriptions_along(run):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_subscription("t", "other")
        await engine.delete_subscription("other")
        assert [known.name for known in await engine.list_subscriptions()] == ["s"]
        await engine.delete_topic("t")
        assert (await engine.list_topics(), await engine.list_subscriptions()) == ([], [])
        await prepare(engine)

    run(scenario)


def test_after_a_restart_what_was_acked_is_gone_and_the_rest_is_delivered_in_order(run_with_restarts):
    async def before(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "1", "2", "3")
        await publish(engine, "x", key=None)
        for one in list(await got.wait(2)):
            subscription.outcomes.ack(one.lease)
        await got.wait(3)

    async def after(engine):
        subscription = engine.get_subscription("s")
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        subscription.outcomes.ack((await got.wait(1))[0].lease)
        await got.wait(2)
        assert got.data == [b"2", b"3"]
        assert await publish(engine, "4") == ["4"]

    run_with_restarts(before, after)


def test_after_a_restart_failures_delays_and_pauses_are_remembered_and_tokens_are_new(run_with_restarts):
    tokens = []

    async def before(engine):
        options = SubscriptionOptions(message_ordering=True, retry=RetryPolicy.immediate(max_attempts=9))
        subscription = await prepare(engine, options)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "late", key="later")
        subscription.outcomes.nack((await got.wait(1))[0].lease, delay=3600, error="not now")
        await publish(engine, "cut short", key="leased")
        await got.wait(2)
        tokens.append(got.got[-1].lease.token)
        await settle_down(engine)

    async def after(engine):
        subscription = engine.get_subscription("s")
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        (one,) = await got.wait(1)
        assert (one.record.data, one.lease.attempt) == (b"cut short", 1)  # the end was a clean one
        assert one.lease.token > tokens[0]
        view = subscription.lanes.view("later")
        assert (view.state, view.attempts, view.error) == ("delayed", 1, "not now")

    run_with_restarts(before, after)


def test_an_engine_can_be_closed_right_after_a_change():
    async def scenario():
        engine = Engine(WatchedStore())
        await engine.start()  # and clean-up waits for a change
        engine.commit()
        async with asyncio.timeout(10):
            await engine.close()

    asyncio.run(scenario())


# -- names in order -----------------------------------------------------------------------------------------------------


def test_topics_and_subscriptions_are_listed_by_name_and_page_by_page(run):
    async def scenario(engine):
        for name in ("b", "a", "p/2", "p/1", "p0", "c", "p/10"):
            await engine.create_topic(name)
            await engine.create_subscription(name, f"on {name}")
        await engine.create_subscription("a", "another")

        async def topics(**page):
            return [info.name for info in await engine.list_topics(**page)]

        assert await topics() == ["a", "b", "c", "p/1", "p/10", "p/2", "p0"]
        assert await topics(limit=2) == ["a", "b"]
        assert await topics(after="b", limit=2) == ["c", "p/1"]
        assert await topics(after="bb", limit=1) == ["c"]
        assert await topics(prefix="p/") == ["p/1", "p/10", "p/2"]
        assert await topics(prefix="p/", limit=2) == ["p/1", "p/10"]
        assert await topics(prefix="p/", after="p/10", limit=9) == ["p/2"]
        assert await topics(prefix="p/", after="a", limit=9) == ["p/1", "p/10", "p/2"]
        assert await topics(prefix="p/", after="q") == await topics(prefix="x") == await topics(limit=0) == []
        found = await engine.list_subscriptions(topic="a")
        assert [info.name for info in found] == ["another", "on a"]
        assert [info.name for info in await engine.list_subscriptions(prefix="on p", after="on p/1", limit=2)] == [
            "on p/10",
            "on p/2",
        ]
        await engine.delete_topic("a")
        assert [info.name for info in await engine.list_subscriptions(limit=1)] == ["on b"]
        with pytest.raises(NotFound):
            await engine.list_subscriptions(topic="a")
        with pytest.raises(InvalidArgument):
            await engine.list_topics(limit=-1)

    run(scenario)


def test_a_page_of_topics_costs_what_a_page_costs(run, monkeypatch):
    async def scenario(engine):
        await asyncio.gather(*(engine.create_topic(f"t{number}") for number in range(200)))
        asked, earliest = [], engine._store.earliest

        def watched(topic_id):
            asked.append(topic_id)
            return earliest(topic_id)

        monkeypatch.setattr(engine._store, "earliest", watched)
        assert len(await engine.list_topics(after="t100", limit=10)) == 10
        assert len(asked) == 10

    run(scenario)
