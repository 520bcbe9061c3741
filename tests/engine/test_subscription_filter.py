"""Filtered subscriptions: what is rejected never enters the lanes, costs no commit, and pins nothing."""

from __future__ import annotations

import pytest

from seriatim.engine.broker import Outgoing
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import InvalidArgument
from tests.engine.conftest import work_off

RED = SubscriptionOptions(message_ordering=True, filter='attributes.colour = "red"')
ORDERED = SubscriptionOptions(message_ordering=True)


async def prepare(engine, **subscriptions: SubscriptionOptions) -> None:
    await engine.create_topic("t")
    for name, options in subscriptions.items():
        await engine.create_subscription("t", name, options)


def publish(engine, *colours: str | None, key: str | None = "k"):
    """Messages that say of which colour they are; their data is the same with a number."""
    messages = [
        Outgoing(key, f"{colour}{number}".encode(), {"colour": colour} if colour else None)
        for number, colour in enumerate(colours)
    ]
    return engine.publish("t", messages)


def test_a_filtered_subscription_gets_what_it_wants_in_order_and_the_other_one_everything(run):
    async def scenario(engine):
        await prepare(engine, red=RED, all=ORDERED)
        await publish(engine, "red", "blue", "red", None, "blue", "red")
        assert await work_off(engine, 3, "red") == [b"red0", b"red2", b"red5"]
        assert len(await work_off(engine, 6, "all")) == 6
        assert len(engine.get_subscription("red").lanes) == 0

    run(scenario)


def test_a_filtered_subscription_does_not_pin_the_log(run, monkeypatch):
    monkeypatch.setattr("seriatim.store.sql.cleanup.REWRITING_AGE", 0.0)  # a young pack would be left as it is

    async def scenario(engine):
        await prepare(engine, red=RED)
        await publish(engine, "blue")
        await publish(engine, "red", "blue", "blue")
        assert len(engine.get_subscription("red").lanes) == 1
        await engine.clean_up()
        (topic,) = await engine.list_topics()
        assert (topic.earliest, topic.next_offset) == (1, 4)
        assert await work_off(engine, 1, "red") == [b"red0"]
        await engine.clean_up()
        (topic,) = await engine.list_topics()
        assert (topic.earliest, topic.next_offset) == (4, 4)

    run(scenario)


def test_what_is_rejected_costs_no_commit_of_its_own(run_watched):
    async def scenario(engine, store):
        await prepare(engine, red=RED)
        store.watch()
        for _ in range(5):
            await publish(engine, "blue")
        await engine._committer.drain()
        assert store.commits == 5
        await engine.clean_up()
        assert store.commits == 6
        assert store.cursor(engine.get_subscription("red").id).floor == 5

    run_watched(scenario)


def test_very_many_rejected_messages_do_not_wait_for_clean_up(run, monkeypatch):
    monkeypatch.setattr("seriatim.engine.subscription_filter.MANY", 3)

    async def scenario(engine):
        await prepare(engine, red=RED)
        await publish(engine, "blue", "blue", "blue")
        await engine.drain()
        assert engine._store.cursor(engine.get_subscription("red").id).floor == 3

    run(scenario)


def test_a_restart_rejects_the_same_messages_and_keeps_order(run_with_restarts):
    async def before(engine):
        await prepare(engine, red=RED)
        await publish(engine, "blue", "red", "blue", "red")

    async def between(engine):
        subscription = engine.get_subscription("red")
        assert engine._store.cursor(subscription.id).floor == 1, "what was rejected was settled at the end"
        assert len(subscription.lanes) == 2
        await publish(engine, "blue", "red")

    async def after(engine):
        assert await work_off(engine, 3, "red") == [b"red1", b"red3", b"red1"]

    run_with_restarts(before, between, after)


def test_what_was_rejected_and_never_settled_is_rejected_again_when_it_is_loaded(run_with_restarts, monkeypatch):
    async def before(engine):
        await prepare(engine, red=RED)
        await publish(engine, "blue", "red")
        engine.get_subscription("red").filter._rejected.clear()  # as after a crash

    async def after(engine):
        subscription = engine.get_subscription("red")
        assert len(subscription.lanes) == 1
        await engine.clean_up()
        assert engine._store.cursor(subscription.id).floor == 1

    run_with_restarts(before, after)


def test_a_filter_cannot_be_changed(run):
    async def scenario(engine):
        await prepare(engine, red=RED)
        for changed in (None, "attributes:x"):
            with pytest.raises(InvalidArgument, match="the filter of subscription 'red' can't be changed"):
                await engine.update_subscription("red", SubscriptionOptions(filter=changed))
        await engine.update_subscription("red", SubscriptionOptions(filter=RED.filter, ack_deadline=3))
        assert (await engine.describe_subscription("red")).options.ack_deadline == 3

    run(scenario)


def test_a_bad_filter_is_refused_before_anything_is_created(run):
    async def scenario(engine):
        await engine.create_topic("t", TopicOptions())
        with pytest.raises(InvalidArgument, match="the filter is wrong at the end"):
            await engine.create_subscription("t", "s", SubscriptionOptions(filter="attributes:a AND"))
        assert await engine.list_subscriptions() == []

    run(scenario)
