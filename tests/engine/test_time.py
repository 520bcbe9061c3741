"""Everything that depends on time, on a clock that is exact: leases, backoff, delays, attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import StaleLease
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import Collector, settle_down

DAY = 24 * 3600.0
LONGEST = 30 * DAY
"""A scenario that waits for something that never comes is ended then: the hourly clean-up would keep it going for ever."""


def now() -> float:
    return asyncio.get_running_loop().time()


def close_to(seconds: float):
    """Engines count from 1970, where a float is exact to less than a microsecond."""
    return pytest.approx(seconds, abs=1e-6)


@pytest.fixture(params=["memory", "sqlite"])
def run(request, tmp_path):
    """Run a scenario on an engine in virtual time, on a new store of each kind."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    return lambda scenario: run_in_virtual_time(with_engine(url, scenario))


@pytest.fixture
def run_with_restarts(tmp_path):
    """Run scenarios on one store in virtual time; between them the engine is closed, and opened again."""

    def run(*scenarios) -> None:
        for scenario in scenarios:
            run_in_virtual_time(with_engine(f"sqlite:///{tmp_path}/store.db", scenario))

    return run


async def with_engine(url, scenario) -> None:
    engine = await Engine.open(url)
    async with asyncio.timeout(LONGEST):
        await scenario(engine)
    await engine.close()


async def subscribed(engine: Engine, **options):
    await engine.create_topic("t")
    await engine.create_subscription("t", "s", SubscriptionOptions(message_ordering=True, **options))
    return engine.get_subscription("s")


class Timed(Collector):
    """A collector that notes when each message came, and deals with it as it is told."""

    patience = LONGEST

    def __init__(self, deal=lambda delivered: None, **limits: int) -> None:
        super().__init__(**limits)
        self.times: list[float] = []
        self._deal = deal

    def _take(self, delivered) -> None:
        super()._take(delivered)
        for one in delivered:
            self.times.append(now())
            self._deal(one)

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]


@pytest.mark.parametrize("deadline", [0.05, 0.333, 1.0, 10.0, 600.0])
def test_a_lease_expires_after_exactly_its_deadline(run, deadline):
    async def scenario(engine):
        subscription = await subscribed(engine, ack_deadline=deadline)
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        collector = Timed()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(4)
        assert collector.data == [b"0"] * 4
        assert collector.gaps() == [close_to(deadline)] * 3
        assert [one.lease.attempt for one in collector.got] == [1, 2, 3, 4]
        with pytest.raises(StaleLease):
            subscription.outcomes.ack(collector.got[2].lease)
        subscription.outcomes.ack(collector.got[3].lease)
        await collector.wait(5)
        assert collector.data[4] == b"1"

    run(scenario)


def test_a_lease_lasts_as_long_as_it_is_extended_and_no_longer(run):
    async def scenario(engine):
        subscription = await subscribed(engine, ack_deadline=1.0)
        await engine.publish("t", [Outgoing("k", b"0")])
        collector = Timed()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(1)
        for _ in range(50):
            await asyncio.sleep(0.9)
            subscription.outcomes.extend(collector.got[0].lease, 1.0)
        assert len(collector.got) == 1
        await collector.wait(2)
        assert collector.gaps() == [close_to(50 * 0.9 + 1.0)]

    run(scenario)


@pytest.mark.parametrize("fails_by", ["nack", "expiry"])
def test_the_backoff_doubles_from_the_lower_to_the_upper_bound(run, fails_by):
    async def scenario(engine):
        subscription = await subscribed(engine, ack_deadline=0.5, retry=RetryPolicy(min_backoff=1, max_backoff=10))
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1"), Outgoing("other", b"2")])
        deal = {
            b"2": lambda one: subscription.outcomes.ack(one.lease),
            b"0": lambda one: subscription.outcomes.nack(one.lease) if fails_by == "nack" else None,
        }
        collector = Timed(lambda one: deal[one.record.data](one))
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(8)
        times = [at for at, one in zip(collector.times, collector.got, strict=True) if one.record.data == b"0"]
        spent = 0.5 if fails_by == "expiry" else 0
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert gaps == [close_to(spent + backoff) for backoff in (1, 2, 4, 8, 10, 10)]
        assert b"1" not in collector.data

    run(scenario)


def test_the_delay_of_a_nack_overrides_the_backoff(run):
    async def scenario(engine):
        subscription = await subscribed(engine, retry=RetryPolicy(min_backoff=100, max_backoff=100))
        await engine.publish("t", [Outgoing("k", b"0")])
        delays = iter([0.0, 7.5, None])
        collector = Timed(
            lambda one: subscription.outcomes.nack(one.lease, next(delays)) if one.lease.attempt < 4 else None
        )
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(4)
        assert collector.gaps() == [close_to(0), close_to(7.5), close_to(100)]

    run(scenario)


def test_a_delay_on_publish_blocks_its_own_key_only(run):
    async def scenario(engine):
        subscription = await subscribed(engine)
        messages = [
            Outgoing("a", b"a0", delay=60),
            Outgoing("a", b"a1"),
            Outgoing("b", b"b0"),
            Outgoing(None, b"loose, later", delay=30),
            Outgoing(None, b"loose"),
        ]
        await engine.publish("t", messages)
        published = now()
        collector = Timed(lambda one: subscription.outcomes.ack(one.lease))
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(5)
        came = {one.record.data: at - published for one, at in zip(collector.got, collector.times, strict=True)}
        assert came[b"b0"] == came[b"loose"] == close_to(0)
        assert came[b"loose, later"] == close_to(30)
        assert (came[b"a0"], came[b"a1"]) == (close_to(60), close_to(60))
        assert collector.data.index(b"a0") < collector.data.index(b"a1")

    run(scenario)


@pytest.mark.parametrize("fails_by", ["nack", "expiry"])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_number_of_attempts_is_exact(run, fails_by, most):
    async def scenario(engine):
        await engine.create_topic("dead")
        await engine.create_subscription("dead", "graves")
        dead = engine.get_subscription("graves")
        subscription = await subscribed(
            engine, ack_deadline=1, retry=RetryPolicy.immediate(max_attempts=most), dead_letter_topic="dead"
        )
        await engine.publish("t", [Outgoing("k", b"bad"), Outgoing("k", b"good")])
        collector = Timed(
            lambda one: (
                subscription.outcomes.nack(one.lease, error="no")
                if fails_by == "nack" and one.record.data == b"bad"
                else None
            )
        )
        graves = Timed()
        subscription.deliveries.attach(collector.consumer)
        dead.deliveries.attach(graves.consumer)
        await graves.wait(1)
        await collector.wait(most + 1)
        assert [(one.record.data, one.lease.attempt) for one in collector.got] == [
            *((b"bad", attempt) for attempt in range(1, most + 1)),
            (b"good", 1),
        ]
        assert graves.got[0].record.attributes is not None
        assert graves.got[0].record.attributes["seriatim-dead-letter-attempts"] == str(most)
        assert graves.got[0].record.key == "k"

    run(scenario)


@pytest.mark.parametrize("fails_by", ["nack", "expiry"])
def test_the_number_of_attempts_is_exact_across_restarts(run_with_restarts, fails_by):
    """Two attempts in each life; the process ends cleanly while nothing is out."""
    attempts: list[int] = []
    deaths: list[bytes] = []

    async def create(engine):
        await engine.create_topic("dead")
        await engine.create_subscription("dead", "graves")
        retry = RetryPolicy(max_attempts=5, min_backoff=1)
        await subscribed(engine, ack_deadline=1, retry=retry, dead_letter_topic="dead")
        await engine.publish("t", [Outgoing("k", b"bad")])

    async def two_attempts(engine):
        subscription = engine.get_subscription("s")
        collector = Timed(lambda one: subscription.outcomes.nack(one.lease) if fails_by == "nack" else None)
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(2)
        attempts.extend(one.lease.attempt for one in collector.got)
        if fails_by == "expiry":
            await asyncio.sleep(1)

    async def the_last(engine):
        subscription, graves = engine.get_subscription("s"), Timed()
        collector = Timed(lambda one: subscription.outcomes.nack(one.lease) if fails_by == "nack" else None)
        subscription.deliveries.attach(collector.consumer)
        engine.get_subscription("graves").deliveries.attach(graves.consumer)
        await graves.wait(1)
        attempts.extend(one.lease.attempt for one in collector.got)
        deaths.extend(graves.data)

    run_with_restarts(create, two_attempts, two_attempts, the_last)
    assert attempts == [1, 2, 3, 4, 5]
    assert deaths == [b"bad"]


def test_a_delivery_that_a_clean_end_cut_short_is_not_an_attempt(run_with_restarts):
    seen: list[int] = []

    async def create(engine):
        await subscribed(engine, retry=RetryPolicy.immediate(max_attempts=3))
        await engine.publish("t", [Outgoing("k", b"0")])

    async def end_during_delivery(engine):
        collector = Collector()
        engine.get_subscription("s").deliveries.attach(collector.consumer)
        await collector.wait(1)
        seen.append(collector.got[0].lease.attempt)
        await settle_down(engine)

    run_with_restarts(create, *[end_during_delivery] * 5)
    assert seen == [1] * 5


def test_a_restart_forgets_no_backoff(tmp_path):
    """The wall clock goes on between two lives; here the second begins where the first ended."""
    url = f"sqlite:///{tmp_path}/store.db"
    times: list[float] = []

    async def first(engine):
        subscription = await subscribed(engine, retry=RetryPolicy(min_backoff=3600, max_backoff=3600))
        await engine.publish("t", [Outgoing("k", b"0"), Outgoing("k", b"1")])
        collector = Timed(lambda one: subscription.outcomes.nack(one.lease))
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(1)
        times.append(engine.now())

    async def second(engine):
        collector = Timed()
        engine.get_subscription("s").deliveries.attach(collector.consumer)
        await collector.wait(1)
        assert collector.data == [b"0"]
        times.append(engine.now())

    run_in_virtual_time(with_engine(url, first))
    run_in_virtual_time(with_engine(url, second))
    assert times[1] - times[0] == close_to(3600)


@pytest.mark.parametrize("retention", [3 * DAY, 7 * DAY])
def test_a_topic_that_nobody_follows_keeps_messages_for_its_retention(run, retention):
    async def scenario(engine):
        options = {} if retention == 7 * DAY else {"retention": retention}  # seven days are the default
        await engine.create_topic("t", TopicOptions(**options))
        topic = engine.get_topic("t")
        await engine.publish("t", [Outgoing("k", b"0")])
        await asyncio.sleep(retention - 2 * 3600)
        assert len(await engine.fetch(topic.id, [0])) == 1
        await asyncio.sleep(4 * 3600)  # clean-up for what time alone expires comes once an hour
        assert await engine.fetch(topic.id, [0]) == []

    run(scenario)


def count_turns(loop: Any) -> Iterator[int]:
    """How often the loop has gone round since the last time that somebody asked."""
    turns, run_once = 0, loop._run_once

    def counting() -> None:
        nonlocal turns
        turns += 1
        run_once()

    loop._run_once = counting

    def numbers() -> Iterator[int]:
        nonlocal turns
        while True:
            counted, turns = turns, 0
            yield counted

    return numbers()


def test_an_idle_engine_wakes_up_once_an_hour_and_does_nothing_in_between(run):
    async def scenario(engine):
        subscription = await subscribed(engine)
        subscription.deliveries.attach(Timed(lambda one: subscription.outcomes.ack(one.lease)).consumer)
        await engine.publish("t", [Outgoing("k", b"0")])
        await asyncio.sleep(60)  # whatever follows from that is over
        turns = count_turns(asyncio.get_running_loop())
        await asyncio.sleep(3000)
        assert next(turns) <= 2  # the one under way, and the end of this sleep
        await asyncio.sleep(DAY)
        assert next(turns) <= 24 * 20  # the hourly look: a timer, a call in a thread, a few turns each

    run(scenario)


def test_closing_right_after_a_change_does_not_wait_for_the_next_clean_up(run):
    """A cancellation that comes together with an event must not be forgotten."""

    async def scenario(engine):
        subscription = await subscribed(engine)
        await engine.publish("t", [Outgoing("k", b"0")])
        collector = Collector()
        subscription.deliveries.attach(collector.consumer)
        await collector.wait(1)
        await asyncio.sleep(60)  # clean-up waits for a change
        subscription.deliveries.detach(collector.consumer)
        begun = now()
        await engine.close()
        assert now() == begun

    run(scenario)
