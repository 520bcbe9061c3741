"""How a store is, as its owner tells: also when it fails, which is when somebody asks."""

from __future__ import annotations

import pytest

from seriatim.engine.broker import StoreCheck, StoreProblem
from seriatim.errors import StoreFailed, StoreLost
from tests.engine.conftest import prepare, publish


def test_a_healthy_store_tells_its_commits_and_its_size(run):
    async def scenario(engine):
        await prepare(engine)
        await publish(engine, "1")
        found = await engine.health()
        assert (found.topics, found.subscriptions, found.epoch) == (1, 1, engine.epoch)
        assert found.commits.count >= 3
        assert (found.failing_since, found.down, found.last_problem, found.options) == (None, None, None, [])
        assert (found.size is None) == (found.kind == "memory")
        assert found.size is None or found.size > 10_000
        assert await engine.check() == StoreCheck([], topics=1, subscriptions=1, messages=1)

    run(scenario)


def test_a_store_that_fails_says_since_when_and_why_and_afterwards_that_it_did(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        store.failures = [StoreFailed("the disk is full")]
        before = engine.now()
        with pytest.raises(StoreFailed):
            await publish(engine, "1")
        found = await engine.health()
        assert found.failing_since is not None
        assert before <= found.failing_since.timestamp() <= engine.now()
        assert found.last_problem == "the disk is full"
        await publish(engine, "2")
        found = await engine.health()
        assert (found.failing_since, found.down, found.last_problem) == (None, None, "the disk is full")
        assert found.commits.failed == 1

    run_watched(scenario)


def test_an_engine_that_is_down_says_so_instead_of_waiting(run_watched):
    async def scenario(engine, store):
        await prepare(engine)
        store.failures = [StoreLost("another process owns it")]
        with pytest.raises(StoreLost):
            await publish(engine, "1")
        found = await engine.health()
        assert found.down == found.last_problem == "another process owns it"
        assert found.last_problem_time is not None
        assert found.size is None

    run_watched(scenario)


def test_options_that_can_not_be_used_are_told(run_with_restarts):
    async def spoil(engine):
        subscription = await prepare(engine)
        await engine.change(lambda work: work.update_subscription(subscription.id, {"retry": None}))

    async def look(engine):
        why = "has options that can't be used (retry must be a RetryPolicy, not None): set retry anew"
        problem = StoreProblem("subscription 's'", f"{why}; until then it is stopped")
        assert (await engine.health()).options == (await engine.check()).problems == [problem]
        assert (await engine.overview()).troubles["stopped"].names == ["s"]

    run_with_restarts(spoil, look)
