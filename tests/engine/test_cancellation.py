"""Callers that are cancelled, and verbs that race each other: engine and store always agree."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from seriatim.engine.broker import RETIRED, Document, Outgoing, WriterMove
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import AlreadyExists, FailedPrecondition, NotFound, OutcomeUnknown, StoreFailed
from tests.engine.conftest import ORDERED, Collector, WatchedStore, prepare, settle_down
from tests.engine.link.linked import linked, run_bounded


@pytest.fixture
def watched(run_watched):
    """Run a scenario with an engine on a store that can be held up; at the end they must agree."""

    def run(scenario) -> None:
        async def until_agreed(engine, store) -> None:
            await scenario(engine, store)
            await settle_down(engine)
            assert_agreement(engine, store)

        run_watched(until_agreed)

    return run


async def until_finished(engine):
    """Also what nobody waits for any more."""
    while engine._unfinished:
        await asyncio.wait(engine._unfinished)
    await settle_down(engine)


def assert_agreement(engine, store):
    """What the engine knows is what a restart would find."""
    catalog = store.catalog()
    topics = {row.id: row for row in catalog.topics}
    assert {topic.name: topic.options for topic in engine._registry.topics.values()} == {
        row.name: TopicOptions.from_json(row.options) for row in catalog.topics
    }
    known = {name: (found.topic.name, found.options) for name, found in engine._registry.subscriptions.items()}
    assert known == {
        row.name: (topics[row.topic_id].name, SubscriptionOptions.from_json(row.options))
        for row in catalog.subscriptions
    }
    for topic in engine._registry.topics.values():
        followers = sorted(name for name, (of, _) in known.items() if of == topic.name)
        assert sorted(one.name for one in topic.followers) == followers == topic.subscriptions.page()
    assert engine._registry._topic_names.page() == sorted(engine._registry.topics)
    assert engine._registry._subscription_names.page() == sorted(known)


VERBS = {
    "create topic": lambda engine: engine.create_topic("new", TopicOptions(retention=5)),
    "update topic": lambda engine: engine.update_topic("t", TopicOptions(retention=60)),
    "delete topic": lambda engine: engine.delete_topic("t"),
    "retire topic": lambda engine: engine.retire_topic("t"),
    "retire topic without subscriptions": lambda engine: engine.retire_topic("empty"),
    "create subscription": lambda engine: engine.create_subscription("t", "new", ORDERED),
    "update subscription": lambda engine: engine.update_subscription("s", replace(ORDERED, ack_deadline=60)),
    "other lanes": lambda engine: engine.update_subscription("s", replace(ORDERED, window=3)),
    "pause": lambda engine: engine.pause("s"),
    "detach": lambda engine: engine.detach_subscription("s"),
    "delete subscription": lambda engine: engine.delete_subscription("s"),
    "pause key": lambda engine: engine.pause_key("s", "k", "why"),
    "skip": lambda engine: engine.skip("s", "k"),
    "dead-letter": lambda engine: engine.dead_letter("s", "k"),
    "seek": lambda engine: engine.seek_to_message("s", "0"),
    "snapshot": lambda engine: engine.create_snapshot("s", "new"),
    "reader": lambda engine: engine.register_reader("new", "t", 0),
    "document": lambda engine: engine.put_document(Document("kind", "name", "text")),
    "publish": lambda engine: engine.publish_once("t", [WriterMove("writer", 0, 1)], [Outgoing("k", b"more")]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_caller_that_is_cancelled_at_any_moment_leaves_engine_and_store_agreed(watched, verb):
    async def cancel_after(engine, store, turns):
        store.gate.clear()
        asked = asyncio.ensure_future(VERBS[verb](engine))
        for turn in range(turns):
            await asyncio.sleep(0)
            if turn == 3:
                store.gate.set()  # from now on it may be written at any time
                await asyncio.sleep(0.002)
        asked.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        with suppress(asyncio.CancelledError, FailedPrecondition):
            await asked
        await until_finished(engine)

    async def scenario(engine, store):
        for turns in (1, 2, 3, 6, 9):
            await prepare(engine)
            await engine.create_topic("empty")
            await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
            await cancel_after(engine, store, turns)
            assert_agreement(engine, store)
            for topic in [known.name for known in await engine.list_topics()]:
                await engine.delete_topic(topic)
            with suppress(NotFound):
                await engine.delete_snapshot("new")

    watched(scenario)


def test_what_a_cancelled_caller_created_can_be_used(watched):
    async def scenario(engine, store):
        await engine.create_topic("t")
        store.watch()
        store.gate.clear()
        topic = asyncio.create_task(engine.create_topic("new"))
        subscription = asyncio.create_task(engine.create_subscription("t", "s", ORDERED))
        await store.until_writing()
        topic.cancel()
        subscription.cancel()
        during = engine.publish("t", [Outgoing("k", b"0")])
        await asyncio.sleep(0)
        store.gate.set()
        await during
        await engine.publish("new", [Outgoing("k", b"0")])
        got = Collector()
        engine.attach("s", got.consumer)
        assert [one.record.data for one in await got.wait(1)] == [b"0"]
        with pytest.raises(AlreadyExists):
            await engine.create_subscription("t", "s")

    watched(scenario)


def test_who_waits_for_a_name_does_not_spin_when_its_creation_is_cancelled(watched, monkeypatch):
    waits = 0

    async def wait(*args, waiting=asyncio.wait, **options):
        nonlocal waits
        waits += 1
        return await waiting(*args, **options)

    async def scenario(engine, store):
        await engine.create_topic("t")
        store.watch()
        store.gate.clear()
        first = asyncio.create_task(engine.create_subscription("t", "s", ORDERED))
        await store.until_writing()
        monkeypatch.setattr(asyncio, "wait", wait)
        second = asyncio.create_task(engine.create_subscription("t", "s", ORDERED))
        await asyncio.sleep(0)
        first.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert waits == 1
        store.gate.set()
        with pytest.raises(AlreadyExists):
            await second

    watched(scenario)


def test_a_linked_client_that_goes_away_in_the_middle_leaves_engine_and_store_agreed(tmp_path):
    async def scenario():
        async with linked(tmp_path, WatchedStore()) as link:
            await link.engine.create_topic("t")
            client = await link.client()
            store = link.engine._store
            store.watch()
            store.gate.clear()
            asked = asyncio.gather(
                *(client.create_subscription("t", f"s{number}", ORDERED) for number in range(20)),
                return_exceptions=True,
            )
            await store.until_writing()
            client._connection.abort()
            assert {type(one) for one in await asked} == {OutcomeUnknown}
            store.gate.set()
            await settle_down(link.engine)
            assert len(await link.engine.list_subscriptions()) == 20
            assert_agreement(link.engine, store)

    run_bounded(scenario)


# -- races --------------------------------------------------------------------------------------------------------------


async def outcomes(*asked):
    """What each of the verbs came to: what it returned, or the class of its error."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    return [type(one) if isinstance(one, BaseException) else None for one in found]


def test_of_many_creations_under_one_name_one_succeeds_and_the_others_hear_it(watched):
    async def scenario(engine, store):
        topics = await outcomes(*(engine.create_topic("t") for _ in range(30)))
        assert sorted(topics, key=str) == [AlreadyExists] * 29 + [None]
        subscriptions = await outcomes(*(engine.create_subscription("t", "s") for _ in range(30)))
        assert sorted(subscriptions, key=str) == [AlreadyExists] * 29 + [None]
        snapshots = await outcomes(*(engine.create_snapshot("s", "then") for _ in range(30)))
        assert sorted(snapshots, key=str) == [AlreadyExists] * 29 + [None]

    watched(scenario)


def test_of_many_deletions_one_succeeds_and_the_others_hear_it(watched):
    async def scenario(engine, store):
        await prepare(engine)
        subscriptions = await outcomes(*(engine.delete_subscription("s") for _ in range(5)))
        assert sorted(subscriptions, key=str) == [NotFound] * 4 + [None]
        topics = await outcomes(*(engine.delete_topic("t") for _ in range(5)))
        assert sorted(topics, key=str) == [NotFound] * 4 + [None]

    watched(scenario)


@pytest.mark.parametrize("first", ["create", "retire"])
def test_a_subscription_that_is_created_while_its_topic_is_retired_keeps_it_or_hears_that_it_is_gone(watched, first):
    async def scenario(engine, store):
        for number in range(20):
            await engine.create_topic("t")
            pair = [engine.create_subscription("t", f"s{number}"), engine.retire_topic("t")]
            created, retired = await outcomes(*pair) if first == "create" else (await outcomes(*pair[::-1]))[::-1]
            assert retired is None
            assert created in {None, NotFound}
            names = [info.name for info in await engine.list_subscriptions()]
            assert (f"s{number}" in names) is (created is None), "what was answered holds"
            if created is None:
                info = await engine.describe_subscription(f"s{number}")
                assert info.topic.startswith(RETIRED)
                await engine.delete_subscription(f"s{number}")
            assert await engine.list_topics() == []

    watched(scenario)


@pytest.mark.parametrize("second", ["retire", "delete", "create"])
def test_what_is_asked_of_a_topic_that_was_just_retired_finds_none(watched, second):
    async def scenario(engine, store):
        await prepare(engine)
        asked = {
            "retire": engine.retire_topic,
            "delete": engine.delete_topic,
            "create": lambda topic: engine.create_subscription(topic, "late"),
        }[second]
        assert await outcomes(engine.retire_topic("t"), asked("t")) == [None, NotFound]
        (info,) = await engine.list_subscriptions()
        assert info.name == "s"
        assert info.topic.startswith(RETIRED)

    watched(scenario)


def test_a_retired_topic_goes_with_the_last_of_its_subscriptions_also_when_they_race(watched):
    async def scenario(engine, store):
        await engine.create_topic("t")
        for number in range(3):
            await engine.create_subscription("t", f"s{number}")
        asked = [engine.delete_subscription(f"s{number}") for number in range(3)]
        assert await outcomes(*asked[:2], engine.retire_topic("t"), asked[2]) == [None] * 4
        assert store.catalog().topics == []

    watched(scenario)


def test_a_subscription_that_is_created_while_its_topic_is_deleted_goes_with_it_or_hears_so(watched):
    async def scenario(engine, store):
        await engine.create_topic("t")
        assert await outcomes(engine.delete_topic("t"), engine.create_subscription("t", "s")) == [None, NotFound]
        await engine.create_topic("t")
        assert await outcomes(engine.create_subscription("t", "s"), engine.delete_topic("t")) == [None, None]
        assert await engine.list_subscriptions() == []

    watched(scenario)


def test_an_ack_that_is_written_together_with_the_deletion_of_its_subscription_is_confirmed(watched):
    async def scenario(engine, store):
        await prepare(engine)
        await engine.publish("t", [Outgoing("k", b"0")])
        got, told = Collector(), list[BaseException | None]()
        attachment = engine.attach("s", got.consumer)
        (one,) = await got.wait(1)
        attachment.ack(one.lease, told.append)
        await engine.delete_subscription("s")
        assert told == [None]

    watched(scenario)


@pytest.mark.usefixtures("no_garbage_of_others")
def test_a_change_that_fails_after_its_caller_was_cancelled_leaves_no_error_in_the_loop():
    async def scenario() -> list[dict[str, Any]]:
        troubles: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        engine = await Engine.open("memory://")
        go_on = asyncio.Event()

        async def fail() -> None:
            await go_on.wait()
            raise StoreFailed("on purpose")

        asking = asyncio.create_task(engine.finish(fail()))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        go_on.set()
        await engine.close()
        del asking
        gc.collect()
        await asyncio.sleep(0)
        return troubles

    assert asyncio.run(scenario()) == []
