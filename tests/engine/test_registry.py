"""Topics and subscriptions by their names: what is answered, what is left as it was, and what is said when it is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import NoneType

import pytest

from seriatim.engine.broker import SubscriptionInfo, TopicInfo, retired_name
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.engine.registry import _Meanwhile
from seriatim.errors import InvalidArgument, NotFound, StoreLost
from seriatim.store.base import Record
from tests.engine.conftest import ORDERED, Collector, prepare, publish


def test_who_creates_something_is_told_what_it_is(run_memory):
    async def scenario(engine):
        options = TopicOptions(retention=60.0)
        assert await engine.create_topic("t", options) == TopicInfo("t", options, 0, 0)
        assert await engine.create_subscription("t", "s", ORDERED) == SubscriptionInfo("s", "t", ORDERED)

    run_memory(scenario)


def test_a_refusal_says_whose_name_it_is(run_memory):
    async def scenario(engine):
        await engine.create_topic("t")
        with pytest.raises(InvalidArgument, match=r"^Topic name "):
            await engine.create_topic("")
        with pytest.raises(InvalidArgument, match=r"^Subscription name "):
            await engine.create_subscription("t", "")
        with pytest.raises(InvalidArgument, match=r"of its own subscription: what fails would come again for ever$"):
            await engine.create_subscription("t", "s", SubscriptionOptions(dead_letter_topic="t"))

    run_memory(scenario)


def test_only_the_options_that_are_named_change(run_memory):
    async def scenario(engine):
        await engine.create_topic("t", TopicOptions(retention=60.0, dedup_max_ids=7))
        await engine.update_topic("t", TopicOptions(retention=90.0), ["retention"])
        (info,) = await engine.list_topics()
        assert info.options == TopicOptions(retention=90.0, dedup_max_ids=7)
        filtered = SubscriptionOptions(filter='attributes.a = "b"', ack_deadline=5.0)
        await engine.create_subscription("t", "s", filtered)
        await engine.update_subscription("s", SubscriptionOptions(ack_deadline=9.0), ["ack_deadline"])
        info = await engine.describe_subscription("s")
        assert (info.options.filter, info.options.ack_deadline) == ('attributes.a = "b"', 9.0)

    run_memory(scenario)


def test_a_dead_letter_topic_has_to_exist_when_it_is_named(run_memory):
    async def scenario(engine):
        await engine.create_topic("d")
        buried = SubscriptionOptions(message_ordering=True, dead_letter_topic="d")
        await prepare(engine, buried)
        await engine.delete_topic("d")
        await engine.update_subscription("s", SubscriptionOptions(ack_deadline=9.0), ["ack_deadline"])
        with pytest.raises(NotFound, match="topic 'd' does not exist"):
            await engine.update_subscription("s", buried)
        with pytest.raises(NotFound, match="topic 'e' does not exist"):
            await engine.update_subscription("s", SubscriptionOptions(dead_letter_topic="e"), ["dead_letter_topic"])

    run_memory(scenario)


def test_a_detached_subscription_stays_so_whatever_else_is_changed(run_memory):
    async def scenario(engine):
        await prepare(engine)
        await engine.detach_subscription("s")
        await engine.update_subscription("s", ORDERED)
        assert (await engine.describe_subscription("s")).options.detached

    run_memory(scenario)


def test_what_is_deleted_twice_at_the_same_time_was_just_deleted(run_memory):
    async def scenario(engine):
        await prepare(engine)
        for delete, what in ((engine.delete_subscription, "s"), (engine.delete_topic, "t")):
            answers = await asyncio.gather(delete(what), delete(what), return_exceptions=True)
            assert [type(answer) for answer in answers] == [NoneType, NotFound]
            assert str(answers[1]).endswith(f"{what!r} does not exist: it was just deleted")

    run_memory(scenario)


def test_a_retired_topic_is_called_after_its_number_and_its_former_name(run_memory):
    async def scenario(engine):
        subscription = await prepare(engine)
        await engine.retire_topic("t")
        assert subscription.topic.name == retired_name(subscription.topic.id, "t")

    run_memory(scenario)


def test_a_retired_topic_goes_with_the_last_of_its_subscriptions_and_not_before(run_memory):
    async def scenario(engine):
        await prepare(engine)
        await engine.create_subscription("t", "other", ORDERED)
        await engine.retire_topic("t")
        await engine.delete_subscription("s")
        assert [info.name for info in await engine.list_subscriptions()] == ["other"]
        topic = engine.get_subscription("other").topic
        assert engine._registry.topics_by_id == {topic.id: topic}
        await engine.delete_subscription("other")
        assert not engine._registry.topics_by_id

    run_memory(scenario)


def test_whoever_waits_for_an_ack_hears_that_the_subscription_was_deleted(run_memory):
    async def scenario(engine):
        state, told = await prepare(engine, SubscriptionOptions(message_ordering=True, window=2)), list[object]()
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "1", "2")
        attachment.ack((await got.wait(2))[1].lease, told.append)  # the first one is still out
        await engine.delete_subscription("s")
        assert [type(error) for error in told] == [NotFound]
        assert state.life.ended is told[0]

    run_memory(scenario)


def test_a_store_in_which_somebody_else_has_published_is_lost(run_memory):
    async def scenario(engine):
        await prepare(engine)
        catalog = engine._store.catalog()
        (row,) = catalog.topics
        with pytest.raises(StoreLost) as lost:
            engine._registry.take(replace(catalog, topics=[replace(row, next_offset=1)]))
        said = "another process has published to the store since it failed: end this program, and start it again"
        assert str(lost.value) == said

    run_memory(scenario)


def test_whatever_is_published_while_a_subscription_is_created_is_kept_for_it():
    meanwhile = _Meanwhile()
    records = [Record(number, "k", b"") for number in range(3)]
    meanwhile.push(records[:2])
    meanwhile.push(records[2:])
    assert meanwhile.records == records
