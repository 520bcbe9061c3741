"""What the engine does for fronts that serve others: topics that retire, subscriptions that are detached, documents."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.broker import RETIRED, Document, Outgoing
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import FailedPrecondition, NotFound, StaleLease
from tests.engine.conftest import ORDERED, Collector, prepare, publish, work_off


def test_a_retired_topic_leaves_its_subscriptions_what_they_have(run_with_restarts):
    async def retire(engine):
        await prepare(engine)
        await publish(engine, "a", "b")
        await engine.retire_topic("t")
        with pytest.raises(NotFound):
            engine.require_topic("t")
        assert (await engine.create_topic("t")).next_offset == 0, "the name is free"
        await engine.publish("t", [Outgoing("k", b"new")])

    async def work(engine):
        assert (await engine.describe_subscription("s")).topic.startswith(RETIRED)
        assert await work_off(engine, 2) == [b"a", b"b"]
        await engine.delete_subscription("s")
        assert [info.name for info in await engine.list_topics()] == ["t"], "the last subscription took it along"

    run_with_restarts(retire, work)


def test_a_topic_without_subscriptions_is_just_deleted(run):
    async def scenario(engine):
        await engine.create_topic("t")
        await engine.retire_topic("t")
        assert await engine.list_topics() == []

    run(scenario)


def test_a_detached_subscription_drops_everything_for_good(run_with_restarts):
    async def detach(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a", "b")
        (first,) = await got.wait(1)
        await engine.detach_subscription("s")
        assert got.fenced == [0]
        assert [type(error) for error in got.failures] == [FailedPrecondition]
        with pytest.raises(StaleLease):
            subscription.outcomes.ack(first.lease)
        await publish(engine, "c")
        assert len(subscription.lanes) == 0

    async def look(engine):
        await publish(engine, "d")
        subscription = engine.get_subscription("s")
        assert (subscription.options.detached, len(subscription.lanes)) == (True, 0)
        await engine.clean_up()
        assert (await engine.describe_topic("t")).earliest == 4, "it keeps nothing from being cleaned up"

    run_with_restarts(detach, look)


def test_what_a_front_keeps_with_a_resource_survives(run_with_restarts):
    async def make(engine):
        await engine.create_topic("t", TopicOptions(resource="{1}"))
        await engine.create_subscription("t", "s", SubscriptionOptions(resource="{2}"))
        assert (await engine.create_snapshot("s", "then", resource="{3}")).resource == "{3}"
        changed = await engine.update_snapshot("then", expires=9e9, resource="{4}")
        assert (changed.expires, changed.resource) == (9e9, "{4}")

    async def look(engine):
        assert (await engine.describe_topic("t")).options.resource == "{1}"
        assert (await engine.describe_subscription("s")).options.resource == "{2}"
        (snapshot,) = await engine.list_snapshots()
        assert (snapshot.resource, snapshot.expires) == ("{4}", 9e9)
        with pytest.raises(NotFound):
            await engine.update_snapshot("other", expires=9e9, resource=None)

    run_with_restarts(make, look)


def test_documents_survive(run_with_restarts):
    async def make(engine):
        await engine.put_document(Document("schema", "a", "old"))
        await engine.put_document(Document("schema", "a", "new"))

    async def look(engine):
        assert await engine.list_documents("schema") == [Document("schema", "a", "new")]
        assert await engine.list_documents("policy") == []
        await engine.delete_document("schema", "a")
        assert await engine.list_documents("schema") == []

    run_with_restarts(make, look)


def test_options_that_need_no_other_lanes_change_while_messages_are_out(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a", "b")
        (first,) = await got.wait(1)
        options = replace(ORDERED, retry=RetryPolicy.immediate(max_attempts=1), ack_deadline=99, resource="new")
        async with asyncio.timeout(5):
            await engine.update_subscription("s", options)
        subscription.outcomes.nack(first.lease)
        assert (await got.wait(2))[-1].record.data == b"b", "one attempt is all that the first one had"
        assert [letter.id for letter in await engine.dead_letters("s")] == ["0"]

    run(scenario)


def test_a_consumer_says_how_long_its_leases_last(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector(ack_deadline=0.05)
        subscription.deliveries.attach(got.consumer)
        await publish(engine, "a")
        first, again = await got.wait(2)
        assert (first.record, again.lease.attempt) == (again.record, 2)

    run(scenario)


def test_a_consumer_hears_that_its_subscription_is_deleted(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector()
        subscription.deliveries.attach(got.consumer)
        await engine.delete_subscription("s")
        assert [type(error) for error in got.failures] == [NotFound]

    run(scenario)


def test_messages_that_turn_out_too_large_are_given_back_untried(run):
    async def scenario(engine):
        subscription = await prepare(engine)
        got = Collector(max_bytes=100)
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "small")
        attachment.ack((await got.wait(1))[0].lease)
        await engine.publish("t", [Outgoing(f"key {number}", b"x" * 60) for number in range(4)])
        await got.wait(3)  # 60 bytes leave room for one more, however large
        assert subscription.lanes.counts().leased == 2
        for one in got.got[1:3]:
            attachment.ack(one.lease)
        assert [one.lease.attempt for one in await got.wait(5)] == [1] * 5

    run(scenario)
