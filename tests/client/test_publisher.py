"""The publisher of document 001: batching, flow control, flush and what happens after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from seriatim.client.publisher import Publisher, PublishOptions
from seriatim.core.publishing.batching import Batching
from seriatim.core.publishing.flow import FlowControl
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.errors import (
    AlreadyExists,
    FlowControlTimeout,
    IllegalTransition,
    InvalidArgument,
    OutcomeUnknown,
    PublishingPaused,
    StoreFull,
)
from tests.engine.conftest import WatchedStore

LATE = Batching(max_messages=1000, max_milliseconds=60_000)


class Stage:
    """An engine on a watched store, a topic, and its publisher."""

    def __init__(self, engine: Engine, store: WatchedStore, options: PublishOptions) -> None:
        self.engine = engine
        self.store = store
        self.publisher = Publisher(engine, "t", options)
        self.batches: list[list[bytes]] = []
        write = self.publisher._write

        def watched(batches):
            self.batches += [[future.message.data for future in batch.messages] for batch in batches]
            write(batches)

        self.publisher._write = watched  # type: ignore[method-assign]

    def publish(self, *data: str, key: str | None = None) -> list[asyncio.Future[str]]:
        return [self.publisher.publish(one.encode(), ordering_key=key) for one in data]

    def stored(self) -> list[bytes]:
        return [record.data for record in self.store.read(self.engine.get_topic("t").id, 0, 1000)]


def run(scenario: Callable[[Stage], Awaitable[None]], options: PublishOptions | None = None) -> None:
    async def whole() -> None:
        store = WatchedStore()
        engine = Engine(store)
        await engine.start()
        await engine.create_topic("t")
        stage = Stage(engine, store, options or PublishOptions())
        try:
            await scenario(stage)
        finally:
            store.gate.set()
            await stage.publisher.close()
            await engine.close()

    asyncio.run(whole())


def batching(**thresholds: Any) -> PublishOptions:
    return PublishOptions(batching=replace(LATE, **thresholds))


def test_ac_001_every_message_gets_an_id_and_ids_are_unique_strings():
    async def scenario(stage):
        ids = await asyncio.gather(*stage.publish(*map(str, range(100))))
        assert all(isinstance(one, str) for one in ids)
        assert len(set(ids)) == 100
        assert stage.batches == [[str(n).encode() for n in range(100)]]

    run(scenario)


def test_br_003_a_batch_is_sent_when_its_time_is_over():
    async def scenario(stage):
        await asyncio.gather(*stage.publish("a", "b"))
        assert stage.batches == [[b"a", b"b"]]

    run(scenario, batching(max_milliseconds=5))


def test_br_004_a_batch_is_sent_when_its_count_is_reached():
    async def scenario(stage):
        futures = stage.publish("a", "b", "c")
        await asyncio.gather(*futures[:2])
        assert stage.batches == [[b"a", b"b"]]
        assert not futures[2].done()

    run(scenario, batching(max_messages=2))


def test_br_005_a_message_that_would_exceed_the_size_sends_the_batch_first():
    async def scenario(stage):
        stage.publish("x" * 600, "y" * 600, "z")
        assert [len(batch) for batch in stage.batches] == [1]
        await stage.publisher.flush()
        assert stage.batches[1] == [b"y" * 600, b"z"]

    run(scenario, batching(max_bytes=1024))


def test_br_006_flush_sends_at_once_and_waits_for_everything_published_before():
    async def scenario(stage):
        futures = stage.publish("a", "b")
        await stage.publisher.flush()
        assert [future.result() for future in futures] == ["0", "1"]
        assert stage.stored() == [b"a", b"b"]

    run(scenario, PublishOptions(batching=LATE))


def test_ac_010_flush_with_nothing_published_does_nothing():
    async def scenario(stage):
        await stage.publisher.flush()
        assert stage.batches == []

    run(scenario)


def test_br_007_each_key_has_its_own_batch_and_keeps_its_order():
    async def scenario(stage):
        stage.publish("a1", key="a")
        stage.publish("x")
        stage.publish("b1", key="b")
        stage.publish("a2", key="a")
        await stage.publisher.flush()
        assert stage.batches == [[b"a1", b"a2"], [b"x"], [b"b1"]]

    run(scenario, PublishOptions(batching=LATE))


def test_br_008_message_11_is_admitted_only_after_earlier_ones_are_durable():
    options = PublishOptions(Batching(5, 60_000), flow_control=FlowControl(max_outstanding_messages=10))

    async def scenario(stage):
        stage.store.gate.clear()
        futures = stage.publish(*map(str, range(15)))
        await stage.store.until_writing()
        assert [len(batch) for batch in stage.batches] == [5, 5]
        assert not any(future.done() for future in futures)
        stage.store.gate.set()
        await asyncio.gather(*futures)
        assert [len(batch) for batch in stage.batches] == [5, 5, 5]
        assert stage.stored() == [str(n).encode() for n in range(15)]

    run(scenario, options)


def test_br_009_bytes_are_held_until_they_are_durable_and_order_of_admission_is_kept():
    options = PublishOptions(Batching(1), flow_control=FlowControl(max_outstanding_bytes=100))

    async def scenario(stage):
        stage.store.gate.clear()
        futures = stage.publish("x" * 60, "y" * 60, "z")
        assert stage.batches == [[b"x" * 60]]
        stage.store.gate.set()
        await asyncio.gather(*futures)
        assert stage.batches == [[b"x" * 60], [b"y" * 60], [b"z"]]

    run(scenario, options)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_outstanding_messages": 1}, "Flow control: max outstanding messages exceeded"),
        ({"max_outstanding_bytes": 1}, "Flow control: max outstanding bytes exceeded"),
    ],
)
@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_message_that_finds_no_room_in_time_fails_alone(limits, text, timeout):
    options = PublishOptions(Batching(1), flow_control=FlowControl(**limits, timeout=timeout))

    async def scenario(stage):
        stage.store.gate.clear()
        first, second = stage.publish("a", "b")
        with pytest.raises(FlowControlTimeout) as refusal:
            await second
        assert refusal.value.message == text
        assert refusal.value.code == 8
        stage.store.gate.set()
        assert await first == "0"
        await stage.publisher.flush()

    run(scenario, options)


def test_flush_covers_messages_that_wait_for_admission():
    options = PublishOptions(LATE, flow_control=FlowControl(max_outstanding_messages=1))

    async def scenario(stage):
        futures = stage.publish("a", "b", "c")
        await stage.publisher.flush()
        assert [future.result() for future in futures] == ["0", "1", "2"]

    run(scenario, options)


def test_br_010_thresholds_of_1_publish_each_message_at_once():
    async def scenario(stage):
        stage.publish("a", "b")
        assert stage.batches == [[b"a"], [b"b"]]

    run(scenario, PublishOptions(Batching(max_messages=1, max_milliseconds=0, max_bytes=1)))


def test_after_a_failed_publish_a_key_is_paused_until_it_is_resumed():
    async def scenario(stage):
        full = StoreFull("no room")
        stage.store.failures.append(full)
        first, second = stage.publish("a1", "a2", key="a")
        (other,) = stage.publish("x")
        for future, error in ((first, StoreFull), (second, PublishingPaused), (other, StoreFull)):
            with pytest.raises(error):
                await future
        assert stage.publisher.paused_keys() == ("a",)
        (refused,) = stage.publish("a3", key="a")
        with pytest.raises(PublishingPaused, match="resume_publishing"):
            await refused
        stage.publisher.resume("a")
        assert await stage.publish("a4", key="a")[0]
        assert stage.stored() == [b"a4"]
        with pytest.raises(IllegalTransition):
            stage.publisher.resume("a")

    run(scenario, PublishOptions(Batching(1)))


def test_flush_raises_the_first_failure_that_nobody_awaited_and_only_once():
    async def scenario(stage):
        stage.store.failures.append(StoreFull("seen"))
        with pytest.raises(StoreFull):
            await stage.publish("a")[0]
        stage.store.failures.append(StoreFull("unseen"))
        stage.publish("b")
        with pytest.raises(StoreFull, match="unseen"):
            await stage.publisher.flush()
        await stage.publisher.flush()

    run(scenario, PublishOptions(Batching(1)))


def test_what_can_never_work_raises_at_once():
    async def scenario(stage):
        with pytest.raises(InvalidArgument, match="Message data must be bytes"):
            stage.publisher.publish("text")
        with pytest.raises(InvalidArgument, match="Ordering key cannot be empty"):
            stage.publisher.publish(b"", ordering_key="")

    run(scenario)


@pytest.mark.parametrize("ordering", [None, True, False])
def test_ordering_keys_are_refused_only_where_ordering_is_turned_off(ordering):
    async def scenario(stage):
        if ordering is False:
            with pytest.raises(InvalidArgument) as refusal:
                stage.publisher.publish(b"", ordering_key="k")
            assert refusal.value.message == "Message ordering must be enabled on topic to use ordering keys"
            assert refusal.value.code == 3
        else:
            assert await stage.publisher.publish(b"", ordering_key="k") == "0"

    run(scenario, PublishOptions(Batching(1), message_ordering=ordering))


def test_new_options_apply_to_what_is_waiting():
    async def scenario(stage):
        futures = stage.publish("a", "b")
        stage.publisher.set_options(PublishOptions(Batching(max_messages=2)))
        await asyncio.gather(*futures)
        assert stage.batches == [[b"a", b"b"]]

    run(scenario, PublishOptions(batching=LATE))


def test_a_cancelled_future_is_published_all_the_same():
    async def scenario(stage):
        (future,) = stage.publish("a")
        future.cancel()
        await stage.publisher.close()
        assert stage.stored() == [b"a"]

    run(scenario)


def test_closing_sends_what_is_open():
    async def scenario(stage):
        futures = stage.publish("a", "b")
        await stage.publisher.close()
        assert [future.result() for future in futures] == ["0", "1"]

    run(scenario, PublishOptions(batching=LATE))


# -- what is given up before it is admitted -----------------------------------------------------------------------------

ONE = FlowControl(max_outstanding_messages=1)
SHORT = 0.05


def waiting_for_room(timeout: float | None) -> PublishOptions:
    return PublishOptions(Batching(1), flow_control=replace(ONE, timeout=timeout))


@pytest.mark.parametrize("timeout", [0, 30])
def test_a_message_that_finds_no_room_in_time_pauses_its_key_so_that_a_retry_keeps_the_order(timeout):
    async def scenario(stage):
        stage.store.gate.clear()
        (busy,) = stage.publish("busy")
        now = stage.publisher._time
        stage.publisher._time = lambda: now() - 29.9
        (one,) = stage.publish("1", key="k")
        stage.publisher._time = now  # as if that were half a minute ago
        (two,) = stage.publish("2", key="k")
        with pytest.raises(FlowControlTimeout):
            await one
        with pytest.raises(PublishingPaused, match=r"resume_publishing\('k'\)"):
            await two  # also when it could have waited longer
        assert stage.publisher.paused_keys() == ("k",)
        stage.store.gate.set()
        await busy
        stage.publisher.resume("k")
        for data in ("1", "2"):
            await stage.publish(data, key="k")[0]
        assert stage.stored() == [b"busy", b"1", b"2"]

    run(scenario, waiting_for_room(timeout))


def test_what_waits_for_room_behind_a_failed_message_of_its_key_fails_with_it_and_others_go_on():
    async def scenario(stage):
        stage.store.gate.clear()
        stage.store.failures.append(StoreFull("no room"))
        (one,) = stage.publish("1", key="k")
        (other,), (two, three) = stage.publish("other", key="o"), stage.publish("2", "3", key="k")
        stage.store.gate.set()
        with pytest.raises(StoreFull):
            await one
        assert two.done()
        assert three.done()
        stage.publisher.resume("k")  # at once: nothing of the key is left that could pass a retry
        assert await stage.publish("1", key="k")[0]
        assert await other
        for behind in (two, three):
            with pytest.raises(PublishingPaused):
                await behind
        assert stage.stored() == [b"other", b"1"]

    run(scenario, waiting_for_room(None))


def test_a_message_of_a_paused_key_is_refused_at_once_also_when_it_would_have_to_wait_for_room():
    async def scenario(stage):
        stage.store.failures.append(StoreFull("no room"))
        with pytest.raises(StoreFull):
            await stage.publish("1", key="k")[0]
        stage.store.gate.clear()
        stage.publish("busy")
        (two,) = stage.publish("2", key="k")
        assert two.done()
        stage.publisher.resume("k")
        stage.store.gate.set()
        await stage.publish("1", key="k")[0]
        assert stage.stored() == [b"busy", b"1"]
        with pytest.raises(PublishingPaused):
            await two

    run(scenario, waiting_for_room(None))


@pytest.mark.parametrize("way", ["cancel", "timeout"])
def test_a_message_whose_future_is_cancelled_before_it_is_admitted_is_never_stored(way):
    async def scenario(stage):
        stage.store.gate.clear()
        (first,) = stage.publish("first")
        (second,) = stage.publish("second", key="k")
        if way == "cancel":
            second.cancel()
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await second
        (third,) = stage.publish("third", key="k")
        stage.store.gate.set()
        await asyncio.gather(first, third)
        await stage.publisher.flush()
        assert stage.stored() == [b"first", b"third"]
        assert stage.publisher.paused_keys() == ()

    run(scenario, waiting_for_room(None))


def test_those_behind_a_large_message_that_is_withdrawn_are_admitted_if_they_fit():
    async def scenario(stage):
        stage.store.gate.clear()
        stage.publish("x" * 60)
        large, small = stage.publish("y" * 60, "z" * 10)
        large.cancel()
        assert stage.batches == [[b"x" * 60], [b"z" * 10]]
        stage.store.gate.set()
        await small

    run(scenario, PublishOptions(Batching(1), flow_control=FlowControl(max_outstanding_bytes=100)))


@pytest.mark.parametrize("ending", ["flush", "close"])
def test_flush_and_close_wait_until_a_message_whose_future_was_cancelled_is_durable(ending):
    async def scenario(stage):
        stage.store.gate.clear()
        first, second = stage.publish("a", "b")
        first.cancel()
        rounds, flush = 0, stage.publisher._batcher.flush

        def counted():
            nonlocal rounds
            rounds += 1
            return flush()

        stage.publisher._batcher.flush = counted
        ended = asyncio.create_task(getattr(stage.publisher, ending)())
        await stage.store.until_writing()
        second.cancel()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not ended.done()
        assert rounds == 1  # it waits, and does not ask again and again
        stage.store.gate.set()
        await ended
        assert stage.stored() == [b"a", b"b"]

    run(scenario, PublishOptions(LATE))


@pytest.mark.parametrize("ending", ["flush", "close"])
def test_flush_and_close_wait_for_what_was_published_although_nobody_wants_to_hear_of_it(ending):
    async def scenario(stage):
        stage.store.gate.clear()
        (only,) = stage.publish("a")
        only.cancel()
        ended = asyncio.create_task(getattr(stage.publisher, ending)())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not ended.done()
        stage.store.gate.set()
        await ended
        assert stage.stored() == [b"a"]

    run(scenario, PublishOptions(LATE))


def test_several_flushes_wait_at_once_and_one_that_is_cancelled_disturbs_no_other():
    async def scenario(stage):
        stage.store.gate.clear()
        stage.publish("a")
        flushes = [asyncio.create_task(stage.publisher.flush()) for _ in range(3)]
        await stage.store.until_writing()
        flushes[0].cancel()
        stage.store.gate.set()
        await asyncio.gather(*flushes[1:])
        assert stage.stored() == [b"a"]

    run(scenario, PublishOptions(LATE))


def test_a_flush_raises_failures_of_what_it_covers_and_whoever_covers_them_hears_of_them():
    async def scenario(stage):
        written: list[asyncio.Future[list[str]]] = []

        def publish(topic, messages):
            written.append(asyncio.get_running_loop().create_future())
            return written[-1]

        stage.engine.publish_checked = publish
        stage.publish("a")
        before = asyncio.create_task(stage.publisher.flush())
        await asyncio.sleep(0)
        stage.publish("b")
        after = [asyncio.create_task(stage.publisher.flush()) for _ in range(2)]
        await asyncio.sleep(0)
        written[1].set_exception(StoreFull("no room"))
        await asyncio.sleep(0)
        written[0].set_result(["0"])
        async with asyncio.timeout(5):
            await before
            assert [type(error) for error in await asyncio.gather(*after, return_exceptions=True)] == [StoreFull] * 2
            await stage.publisher.flush()

    run(scenario, PublishOptions(Batching(1)))


def test_a_publish_that_is_cut_off_on_its_way_has_an_unknown_outcome():
    async def scenario(stage):
        def cut_off(topic, messages):
            written = asyncio.get_running_loop().create_future()
            written.cancel()
            return written

        stage.engine.publish_checked = cut_off
        with pytest.raises(OutcomeUnknown, match="may be stored or not"):
            await stage.publish("a")[0]

    run(scenario, PublishOptions(Batching(1)))


def calls_of(stage: Stage) -> list[list[bytes]]:
    """What the engine is asked to store from now on, call by call."""
    calls: list[list[bytes]] = []
    publish = stage.engine.publish_checked

    def watched(topic, messages):
        calls.append([message.data for message in messages])
        return publish(topic, messages)

    stage.engine.publish_checked = watched  # type: ignore[method-assign]
    return calls


def test_batches_that_are_sent_together_are_one_call_of_the_engine_and_so_are_those_behind_them():
    async def scenario(stage):
        calls = calls_of(stage)
        first = [*stage.publish("a1", "a2", key="a"), *stage.publish("b1", "b2", key="b")]
        await stage.publisher.flush()
        stage.publish("a3", key="a")
        stage.publish("b3", key="b")
        stage.publisher._send(stage.publisher._batcher.flush())
        for key in "ab":  # full, and behind those that are in flight
            stage.publish(*(f"{key}{number}" for number in range(4, 1004)), key=key)
        await stage.publisher.flush()
        assert [await one for one in first] == ["0", "1", "2", "3"]
        assert [call[:4] for call in calls] == [
            [b"a1", b"a2", b"b1", b"b2"],
            [b"a3", b"b3"],
            [b"a4", b"a5", b"a6", b"a7"],
        ]
        assert len(calls[2]) == 2000
        assert stage.batches[2:4] == [[b"a3"], [b"b3"]]

    run(scenario, PublishOptions(LATE))


class Refusing:
    """A transaction that refuses a message for what it is."""

    def __init__(self, transaction: Any, data: bytes) -> None:
        self._transaction = transaction
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def append(self, topic_id: int, records: Any) -> None:
        if any(record.data == self._data for record in records):
            raise ValueError("no store can keep this")
        self._transaction.append(topic_id, records)


def refuse(store: WatchedStore, data: bytes) -> None:
    transaction = store.transaction

    @contextmanager
    def refusing():
        with transaction() as work:
            yield Refusing(work, data)

    store.transaction = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("reason", ["an id that another message has", "something that the store refuses"])
def test_a_batch_that_is_refused_fails_alone_although_others_were_sent_with_it(reason):
    async def scenario(stage):
        await stage.engine.publish("t", [Outgoing(None, b"first", None, 0.0, "taken")])
        good = stage.publish("a1", "a2", key="a")
        bad = [stage.publisher.publish(b"b1", ordering_key="b", dedup_id="taken" if reason.startswith("an") else None)]
        if not reason.startswith("an"):
            refuse(stage.store, b"b1")
        bad += stage.publish("b2", key="b")
        good += stage.publish("c1", key="c")
        results = asyncio.gather(*good, *bad, return_exceptions=True)
        await asyncio.gather(stage.publisher.flush(), return_exceptions=True)
        *stored, one, two = await results
        assert all(isinstance(one, str) for one in stored)
        # A message whose id is taken fails by itself, and what is behind it in its key must not pass it.
        expected = (AlreadyExists, PublishingPaused) if reason.startswith("an") else (ValueError, ValueError)
        assert (type(one), type(two)) == expected
        assert sorted(stage.stored()) == [b"a1", b"a2", b"c1", b"first"]
        assert stage.publisher.paused_keys() == ("b",)

    run(scenario, PublishOptions(LATE))


def test_limits_that_come_later_count_what_is_outstanding_then():
    async def scenario(stage):
        stage.store.gate.clear()
        first, second = stage.publish("a", "b")
        limits = FlowControl(max_outstanding_messages=2)
        stage.publisher.set_options(PublishOptions(Batching(1), flow_control=limits))
        await stage.store.until_writing()
        third = stage.publish("c")[0]
        assert stage.batches == [[b"a"], [b"b"]]
        stage.store.gate.set()
        await third
        assert first.done()
        assert second.done()
        stage.store.gate.clear()
        stage.publish("d", "e", "f")
        assert stage.batches == [[b"a"], [b"b"], [b"c"], [b"d"], [b"e"]]
        stage.publisher.set_options(PublishOptions(Batching(1)))  # and without them nobody waits
        assert stage.batches[-1] == [b"f"]
        stage.store.gate.set()
        await stage.publisher.flush()

    run(scenario, PublishOptions(Batching(1)))


def test_what_is_admitted_in_place_of_failed_messages_keeps_its_order():
    async def scenario(stage):
        stage.store.gate.clear()
        failed = stage.publish("d1", "d2", "d3", key="d")
        await stage.store.until_writing()
        behind = stage.publish("a1", "a2", key="a")
        stage.store.failures.append(StoreFull("no room"))
        stage.store.gate.set()
        # The first two make room for d3 and a1, and d3, which is refused then, for a2.
        await asyncio.gather(*behind, *failed, return_exceptions=True)
        assert stage.stored() == [b"a1", b"a2"]

    run(scenario, PublishOptions(Batching(2), flow_control=FlowControl(max_outstanding_messages=2)))
