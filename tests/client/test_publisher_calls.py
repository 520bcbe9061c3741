"""Whole calls of ``publish_many`` that go to the engine together, and what takes them apart."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from random import Random

import pytest

from seriatim.client.publisher import MAX_CALL_BYTES, MAX_CALL_MESSAGES, PublishOptions
from seriatim.core.publishing.batching import Batching
from seriatim.core.publishing.flow import FlowControl
from seriatim.engine.broker import Outgoing
from seriatim.errors import AlreadyExists, NotFound, PublishFailed, PublishingPaused, StoreFull
from tests.client.test_publisher import LATE, Stage, calls_of, run


def many(stage: Stage, *data: str) -> asyncio.Task[list[str]]:
    """A call that publishes these; the key of each is its first letter."""
    return asyncio.create_task(stage.publisher.publish_all([Outgoing(one[0], one.encode()) for one in data]))


async def in_flight(stage: Stage, *data: str) -> asyncio.Task[list[str]]:
    """Such a call, whose commit is held up."""
    stage.store.gate.clear()
    call = many(stage, *data)
    await stage.store.until_writing()
    return call


def results_of(error: pytest.ExceptionInfo[PublishFailed]) -> list[object]:
    return [result if isinstance(result, str) else type(result) for result in error.value.results]


def test_calls_of_one_turn_are_one_call_of_the_engine_and_so_is_what_comes_while_it_is_under_way():
    async def scenario(stage):
        calls = calls_of(stage)
        first = [await in_flight(stage, "a1", "b1"), many(stage, "a2", "c1"), many(stage, "a3")]
        await asyncio.sleep(0)
        stage.store.gate.set()
        assert [await call for call in first] == [["0", "1"], ["2", "3"], ["4"]]
        last = [many(stage, "a4"), many(stage, "a5")]
        assert [await call for call in last] == [["5"], ["6"]]
        assert calls == [[b"a1", b"b1"], [b"a2", b"c1", b"a3"], [b"a4", b"a5"]]
        assert stage.batches == []

    run(scenario, PublishOptions(LATE))


def test_a_publish_of_a_key_stays_behind_a_call_that_has_it_and_others_need_not_wait():
    async def scenario(stage):
        call = await in_flight(stage, "b1", "a1", "b2", "a2")
        behind, later = many(stage, "b3"), stage.publish("x", key="x")
        await asyncio.sleep(0)
        (alone,) = stage.publish("a3", key="a")
        flushed = asyncio.create_task(stage.publisher.flush())
        last = many(stage, "a4", "d1")
        await asyncio.sleep(0)
        assert stage.batches == [[b"x"], [b"d1"]], "what is behind waits"
        stage.store.gate.set()
        assert await call == ["0", "1", "2", "3"]
        ids = [*await call, *await behind, await alone, *await last, *await asyncio.gather(*later)]
        await flushed
        records = {str(one.offset): one.data for one in stage.store.read(stage.engine.get_topic("t").id, 0, 100)}
        assert [records[id_] for id_ in ids] == [b"b1", b"a1", b"b2", b"a2", b"b3", b"a3", b"a4", b"d1", b"x"]
        stored = stage.stored()
        assert [one for one in stored if one[:1] == b"a"] == [b"a1", b"a2", b"a3", b"a4"]
        assert [one for one in stored if one[:1] == b"b"] == [b"b1", b"b2", b"b3"]

    run(scenario, PublishOptions(LATE))


def test_when_a_group_of_calls_fails_its_keys_are_paused_and_calls_behind_it_go_on_with_other_keys():
    async def scenario(stage):
        failing = await in_flight(stage, "a1", "b1", "a2")
        behind, beside = many(stage, "a3", "c1"), many(stage, "c2")
        await asyncio.sleep(0)
        stage.store.failures.append(StoreFull("no room"))
        stage.store.gate.set()
        with pytest.raises(PublishFailed, match="3 of 3 messages") as failed:
            await failing
        assert results_of(failed) == [StoreFull] * 3
        with pytest.raises(PublishFailed, match="1 of 2 messages") as failed:
            await behind
        assert results_of(failed)[0] is PublishingPaused
        assert len(await beside) == 1
        assert stage.stored() == [b"c1", b"c2"]
        assert stage.publisher.paused_keys() == ("a", "b")
        with pytest.raises(PublishFailed):
            await many(stage, "a4")
        stage.publisher.resume("a")
        assert len(await many(stage, "a5")) == 1

    run(scenario, PublishOptions(LATE))


def test_a_message_that_is_refused_fails_alone_with_what_is_behind_it_in_its_key():
    async def scenario(stage):
        await stage.engine.publish("t", [Outgoing(None, b"first", None, 0.0, "taken")])
        messages = [Outgoing("a", b"a1"), Outgoing("b", b"b1", None, 0.0, "taken"), Outgoing("b", b"b2")]
        with pytest.raises(PublishFailed) as failed:
            await stage.publisher.publish_all([*messages, Outgoing(None, b"x", None, 0.0, "new")])
        good, *bad, loose = results_of(failed)
        assert bad == [AlreadyExists, PublishingPaused]
        assert {good, loose} <= {"1", "2", "3", "4", "5", "6", "7", "8"}
        assert sorted(stage.stored()) == [b"a1", b"first", b"x"]

    run(scenario, PublishOptions(LATE))


def test_a_topic_that_is_gone_when_a_call_is_sent_fails_each_of_its_messages():
    async def scenario(stage):
        calls = [many(stage, "a1", "a2"), many(stage, "b1")]
        await asyncio.sleep(0)

        def gone(topic, messages):
            raise NotFound("no such topic")

        stage.engine.publish_checked = gone
        for call in calls:
            with pytest.raises(PublishFailed, match="no such topic"):
                await call

    run(scenario, PublishOptions(LATE))


def test_a_call_that_is_cancelled_leaves_no_failure_that_nobody_retrieves():
    async def scenario(stage):
        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        calls = [await in_flight(stage, "a1"), many(stage, "a2", "b1")]
        await asyncio.sleep(0)
        calls[0].cancel()
        stage.store.failures += [StoreFull("no room"), StoreFull("no room")]
        flushed = asyncio.create_task(stage.publisher.flush())
        await asyncio.sleep(0)
        calls[1].cancel()  # in the turn in which its group was split
        stage.store.gate.set()
        await asyncio.wait([*calls, flushed])
        assert stage.publisher.paused_keys() == ("a", "b")
        del calls, flushed
        gc.collect()
        assert complaints == []

    run(scenario, PublishOptions(LATE))


@pytest.mark.parametrize("ending", ["flush", "close"])
def test_flush_and_close_cover_calls_also_those_whose_caller_was_cancelled(ending):
    async def scenario(stage):
        call = await in_flight(stage, "a1")
        gathered = many(stage, "a2", "b1")
        await asyncio.sleep(0)
        call.cancel()
        gathered.cancel()
        await asyncio.wait([call, gathered])
        ended = asyncio.create_task(getattr(stage.publisher, ending)())
        await asyncio.sleep(0)
        assert not ended.done()
        stage.store.gate.set()
        await ended
        assert sorted(stage.stored()) == [b"a1", b"a2", b"b1"]

    run(scenario, PublishOptions(LATE))


def test_limits_that_come_later_count_the_messages_of_calls():
    async def scenario(stage):
        call = await in_flight(stage, "a1", "b1")
        stage.publisher.set_options(PublishOptions(Batching(1), flow_control=FlowControl(max_outstanding_messages=2)))
        (third,) = stage.publish("x")
        assert stage.batches == []
        stage.store.gate.set()
        assert await call == ["0", "1"]
        assert await third == "2"

    run(scenario, PublishOptions(LATE))


@pytest.mark.parametrize("size", ["many", "large"])
def test_a_huge_call_goes_in_batches(size):
    async def scenario(stage):
        calls = calls_of(stage)
        count, data = (MAX_CALL_MESSAGES + 1, b"x") if size == "many" else (3, b"x" * (MAX_CALL_BYTES // 3 + 1))
        assert len(await stage.publisher.publish_all([Outgoing("k", data)] * count)) == count
        assert len(calls) > 1

    run(scenario, PublishOptions(Batching()))


class Chaos:
    """Somebody who publishes in every way, while commits fail and options change."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.random, self._count = stage, Random(seed), 0
        self.published: list[tuple[str, asyncio.Future[str] | asyncio.Task[list[str]], int]] = []
        self.steps = [self.publish_many] * 4 + [self.publish, self.fail, self.limit, self.flush, self.resume, self.rest]

    def name(self) -> str:
        self._count += 1
        return f"{self.random.choice('abcd')}{self._count:05}"

    async def publish_many(self) -> None:
        names = [self.name() for _ in range(self.random.randrange(1, 5))]
        call = many(self.stage, *names)
        await asyncio.sleep(0)  # the call is made
        self.published += [(name, call, index) for index, name in enumerate(names)]

    async def publish(self) -> None:
        name = self.name()
        self.published.append((name, self.stage.publish(name, key=name[0])[0], 0))

    async def fail(self) -> None:
        self.stage.store.failures += [StoreFull("no room")] * (self.random.random() < 0.3)

    async def limit(self) -> None:
        limits = FlowControl(max_outstanding_messages=3) if self.random.random() < 0.5 else FlowControl()
        self.stage.publisher.set_options(PublishOptions(Batching(2), flow_control=limits))

    async def flush(self) -> None:
        await asyncio.gather(self.stage.publisher.flush(), return_exceptions=True)

    async def resume(self) -> None:
        await self.flush()
        for key in self.stage.publisher.paused_keys():
            self.stage.publisher.resume(key)

    async def rest(self) -> None:
        await asyncio.sleep(0)

    async def outcomes(self) -> dict[str, object]:
        """The id or the error of each message."""
        found: dict[str, object] = {}
        for name, future, index in self.published:
            (outcome,) = await asyncio.gather(future, return_exceptions=True)
            results = outcome.results if isinstance(outcome, PublishFailed) else outcome
            found[name] = results[index] if isinstance(results, Sequence) and not isinstance(results, str) else results
        return found


@pytest.mark.parametrize("seed", range(20))
def test_whatever_else_happens_no_message_overtakes_one_of_its_key(seed):
    async def scenario(stage):
        chaos = Chaos(stage, seed)
        for _ in range(150):
            await chaos.random.choice(chaos.steps)()
        await chaos.flush()
        outcomes = await chaos.outcomes()
        stored = {
            str(one.offset): one.data.decode() for one in stage.store.read(stage.engine.get_topic("t").id, 0, 999)
        }
        assert stored == {result: name for name, result in outcomes.items() if not isinstance(result, Exception)}
        for key in "abcd":
            names = [name for name in stored.values() if name[0] == key]
            assert names == sorted(names)

    run(scenario, PublishOptions(Batching(3, 1)))
