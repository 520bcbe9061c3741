"""The whole store at a glance: what is said of it is true of all subscriptions, not only of those that are shown."""

from __future__ import annotations

from dataclasses import replace

from seriatim.engine import overview
from seriatim.engine.broker import Named
from seriatim.engine.consumer import Consumer
from seriatim.engine.options import SubscriptionOptions
from tests.engine.conftest import ORDERED, publish

MANY = 70


async def crowd(engine):
    """Many subscriptions that come before all others, because each of them has a blocked key."""
    await engine.create_topic("t")
    for number in range(MANY):
        await engine.create_subscription("t", f"crowd-{number:02}", ORDERED)
        await engine.pause_key(f"crowd-{number:02}", "k")
        engine.attach(f"crowd-{number:02}", Consumer(lambda _: None))


def test_what_is_wrong_is_said_of_all_subscriptions(run, monkeypatch):
    monkeypatch.setattr(overview, "SLOW_S", 0.0)

    async def scenario(engine):
        await crowd(engine)
        for name in ("deserted", "slow", "halted", "dead"):
            await engine.create_topic(name)
            await engine.create_subscription(name, name, replace(ORDERED, paused=name == "halted"))
            if name != "deserted":
                engine.attach(name, Consumer(lambda _: None))
            await publish(engine, "1", topic=name)
        await engine.dead_letter("dead", "k")
        found = await engine.overview(limit=50)
        assert {one.subscription[:5] for one in found.worst} == {"crowd", "halte"}, "the others are not shown"
        assert found.troubles == {
            "stopped": Named(0, []),
            "paused": Named(1, ["halted"]),
            "deserted": Named(1, ["deserted"]),
            "slow": Named(1, ["slow"]),
            "dead-lettered": Named(1, ["dead"]),
        }
        assert found.oldest_age is not None
        searched = await engine.overview(limit=50, search="crowd")
        assert searched.troubles == found.troubles
        assert (await engine.overview(limit=0)).troubles == {}

    run(scenario)


def test_the_oldest_message_is_found_among_all_subscriptions_and_puts_its_own_before_others(run, monkeypatch):
    async def scenario(engine):
        time = engine.now()
        await crowd(engine)
        for age in (100.0, 300.0, 200.0):
            monkeypatch.setattr(engine, "now", lambda at=time - age: at)
            await engine.create_topic(f"t-{age:.0f}")
            await engine.create_subscription(f"t-{age:.0f}", f"s-{age:.0f}", ORDERED)
            await publish(engine, *"12", topic=f"t-{age:.0f}")
            engine.topic(f"t-{age:.0f}").settled([0, 1])  # they are not in memory any more
        monkeypatch.setattr(engine, "now", lambda: time)
        await engine.skip("s-100", "k")
        for _ in range(2):
            found = await engine.overview(limit=MANY + 2)
            assert found.oldest_age == 300.0
            assert [one.subscription for one in found.worst][MANY:] == ["s-300", "s-200"]
        await engine.skip("s-300", "k")
        await engine.skip("s-300", "k")
        assert (await engine.overview(limit=1)).oldest_age == 200.0

    run(scenario)


def test_the_first_of_many_are_named(run_memory):
    async def scenario(engine):
        await engine.create_topic("t")
        for number in range(7):
            await engine.create_subscription("t", f"s-{number}", SubscriptionOptions())
        await publish(engine, "1")
        assert (await engine.overview()).troubles["deserted"] == Named(7, [f"s-{n}" for n in range(5)])

    run_memory(scenario)
