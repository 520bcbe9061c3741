"""``publish_many``, and handlers that get batches: of one key, or across keys."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim import Batching, FlowControl, PublishOptions, PubSub, PubSubMessage, RetryPolicy
from seriatim.errors import (
    FailedPrecondition,
    FlowControlTimeout,
    InvalidArgument,
    NotFound,
    PublishFailed,
    PublishingPaused,
    StaleLease,
)
from seriatim.testing import run_in_virtual_time
from tests.client.conftest import ordered, publish


def texts(messages) -> list[str]:
    return [message.data.decode() for message in messages]


async def run_until_empty(subscription, handler: Callable[..., object] | None, **options) -> None:
    running = asyncio.create_task(subscription.run(handler, **options))
    empty = asyncio.create_task(subscription.wait_until_empty())
    await asyncio.wait({running, empty}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        empty.cancel()
        await running
    running.cancel()
    await asyncio.wait({running})


# -- publish_many -------------------------------------------------------------------------------------------------------


def test_many_messages_are_published_by_one_call_each_key_in_order(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create()
        messages = [PubSubMessage(str(number).encode(), f"k{number % 3}", {"n": "1"}) for number in range(30)]
        ids = await topic.publish_many([b"no key", *messages])
        assert len(set(ids)) == 31
        got: dict[str | None, list[tuple[str, str]]] = {}

        def handle(message) -> None:
            got.setdefault(message.ordering_key, []).append((message.id, message.data.decode()))
            message.ack()

        await run_until_empty(subscription, handle)
        sent = [(id_, str(number)) for number, id_ in enumerate(ids[1:])]
        assert got.pop(None) == [(ids[0], "no key")]
        assert got == {f"k{rest}": sent[rest::3] for rest in range(3)}

    run(scenario)


def test_it_does_not_wait_for_a_batch_to_fill(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").create()
        topic.set_publish_options(PublishOptions(Batching(max_milliseconds=3_600_000)))
        assert len(await topic.publish_many([b"x", b"y"])) == 2
        assert await topic.publish_many([]) == []

    run(scenario)


def test_delays_and_dedup_ids_belong_to_each_message(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        first, again, later = await topic.publish_many(
            [
                PubSubMessage(b"1", "k", dedup_id="a"),
                PubSubMessage(b"1", "k", dedup_id="a"),
                PubSubMessage(b"2", delay=99),
            ]
        )
        assert first == again != later
        assert await topic.publish_message(PubSubMessage(b"1", "k", dedup_id="a")) == first
        assert ((await subscription.stats()).ready, (await subscription.stats()).delayed) == (1, 1)

    run(scenario)


def test_what_can_never_work_raises_before_anything_is_published(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        wrong: Any
        for wrong in (PubSubMessage(b"x", "k" * 2000), PubSubMessage(b"x", "k", delay=-1), "text"):
            with pytest.raises(InvalidArgument):
                await topic.publish_many([PubSubMessage(b"x", "k"), wrong])
        topic.set_publish_options(PublishOptions(message_ordering=False))
        with pytest.raises(InvalidArgument, match="ordering must be enabled"):
            await topic.publish_many([b"x", PubSubMessage(b"x", "k")])
        with pytest.raises(NotFound):
            await pubsub.topic("missing").publish_many([b"x"])
        await topic.flush()
        assert (await subscription.stats()).total == 0

    run(scenario)


def test_errors_are_reported_for_each_message_and_nothing_overtakes_what_failed():
    async def scenario() -> None:
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub)
            topic.set_publish_options(PublishOptions(Batching(max_messages=1)))
            await topic.publish(b"other", ordering_key="b", dedup_id="taken")
            wanted = [PubSubMessage(b"1", "a"), PubSubMessage(b"2", "b", dedup_id="taken"), PubSubMessage(b"3", "b")]
            with pytest.raises(PublishFailed, match="2 of 3 messages were not published") as failed:
                await topic.publish_many(wanted)
            good, taken, behind = failed.value.results
            assert [message.id for message in await subscription.peek("a")] == [good]
            assert isinstance(taken, Exception)
            assert isinstance(behind, PublishingPaused)
            assert topic.paused_keys() == ("b",)
            assert (await subscription.stats()).total == 2

    run_in_virtual_time(scenario())


def test_a_call_that_is_cancelled_withdraws_what_waits_and_leaves_no_failure_that_nobody_retrieves():
    async def scenario() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub)
            await topic.publish(b"other", ordering_key="b", dedup_id="taken")
            topic.set_publish_options(
                PublishOptions(Batching(max_messages=1), flow_control=FlowControl(max_outstanding_messages=2))
            )
            fails = PubSubMessage(b"2", "b", dedup_id="taken")
            publishing = asyncio.create_task(
                topic.publish_many([PubSubMessage(b"1", "a"), fails, PubSubMessage(b"3", "c")])
            )
            await asyncio.sleep(0)
            publishing.cancel()
            await asyncio.wait([publishing])
            await topic.flush()
            assert topic.paused_keys() == ("b",), "what was on its way went on"
            assert (await subscription.stats()).total == 2
        del publishing  # whose traceback knows them
        gc.collect()
        assert complaints == []

    run_in_virtual_time(scenario())


def test_flow_control_applies():
    async def scenario() -> None:
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub)
            topic.set_publish_options(PublishOptions(flow_control=FlowControl(max_outstanding_messages=2)))
            assert len(await topic.publish_many([PubSubMessage(b"x", "k")] * 10)) == 10
            topic.set_publish_options(PublishOptions(flow_control=FlowControl(max_outstanding_messages=2, timeout=0)))
            with pytest.raises(PublishFailed) as failed:
                await topic.publish_many([b"x"] * 3)
            assert isinstance(failed.value.results[2], FlowControlTimeout)
            assert (await subscription.stats()).total == 12

    run_in_virtual_time(scenario())


# -- batches of one key -------------------------------------------------------------------------------------------------


def test_a_handler_gets_consecutive_messages_of_one_key(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await topic.publish_many([PubSubMessage(str(n).encode(), "ab"[n % 2]) for n in range(20)])
        batches: dict[str, list[list[str]]] = {}

        async def handle(messages) -> None:
            assert len({message.ordering_key for message in messages}) == 1
            batches.setdefault(messages[0].ordering_key, []).append(texts(messages))
            await asyncio.sleep(0)
            messages[-1].ack()

        await run_until_empty(subscription, handle, batch=4)
        for first, key in enumerate("ab"):
            assert [len(batch) for batch in batches[key]] == [4, 4, 2]
            assert [text for batch in batches[key] for text in batch] == [str(n) for n in range(first, 20, 2)]
        counts = (await pubsub.metrics()).subscriptions["ordered-sub"]
        assert (counts.delivered, counts.acked) == (20, 20)

    run(scenario)


def test_a_batch_is_acked_on_return(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await topic.publish_many([PubSubMessage(b"x", "k")] * 5)
        sizes = []

        @subscription.handler
        def handle(messages) -> None:
            sizes.append(len(messages))

        await run_until_empty(subscription, None, batch=3, ack="on-return")
        assert sizes == [3, 2]

    run(scenario)


def test_an_ack_settles_the_messages_before_it_and_what_is_left_comes_again(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub, retry=RetryPolicy.immediate())
        await publish(topic, *"12345")
        batches = []

        async def handle(messages) -> None:
            batches.append("".join(texts(messages)))
            if len(messages) == 5:
                await messages[2].ack_durable()
                for settled in messages[:3]:
                    with pytest.raises(StaleLease):
                        settled.ack()
                messages[3].nack(error="not yet")
                with pytest.raises(StaleLease):
                    messages[4].ack()
            else:
                for message in messages:
                    message.ack()

        await run_until_empty(subscription, handle, batch=9)
        assert batches == ["12345", "4", "5"]

    run(scenario)


def test_a_poison_message_in_the_middle_dead_letters_only_itself(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub, retry=RetryPolicy.immediate(max_attempts=2))
        await publish(topic, *"12x45")
        handled, calls, errors = list[str](), list[str](), list[BaseException]()
        subscription.on("error", errors.append)

        async def handle(messages) -> None:
            calls.append("".join(texts(messages)))
            if b"x" in [message.data for message in messages]:
                raise ValueError("poison")
            handled.extend(texts(messages))

        await run_until_empty(subscription, handle, batch=50, ack="on-return")
        (letter,) = await subscription.dead_letters()
        assert (letter.attempts, letter.error) == (2, "ValueError: poison")
        assert calls == ["12x45", "1", "2", "x", "x", "45"]
        assert "".join(handled) == "1245"
        assert len(errors) == 3

    run(scenario)


def test_a_handler_dead_letters_one_message_of_its_batch(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await publish(topic, *"12x45")
        calls = []

        def handle(messages) -> None:
            calls.append("".join(texts(messages)))
            for message in messages:
                if message.data == b"x":
                    return message.dead_letter("no such order")
                message.ack()
            return None

        await run_until_empty(subscription, handle, batch=50)
        assert calls == ["12x45", "45"]
        assert [letter.error for letter in await subscription.dead_letters()] == ["no such order"]

    run(scenario)


def test_a_batch_that_outlives_its_lease_comes_one_at_a_time_and_counts_for_nobody():
    async def scenario() -> None:
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=10, retry=RetryPolicy(max_attempts=1))
            await publish(topic, *"123")
            calls = []

            async def handle(messages) -> None:
                calls.append("".join(texts(messages)))
                if len(messages) > 1:
                    await asyncio.sleep(60)
                    with pytest.raises(StaleLease):
                        messages[-1].ack()
                else:
                    messages[0].ack()

            await run_until_empty(subscription, handle, batch=10, max_extension=0)
            assert calls == ["123", "1", "2", "3"]
            assert not await subscription.dead_letters()

    run_in_virtual_time(scenario())


def test_the_lease_of_a_batch_is_extended_while_its_handler_works_also_after_it_acked_a_part():
    async def scenario() -> None:
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, ack_deadline=10)
            await publish(topic, *"123")
            calls = []

            async def handle(messages) -> None:
                calls.append("".join(texts(messages)))
                for message in messages:
                    await asyncio.sleep(60)
                    message.ack()

            await run_until_empty(subscription, handle, batch=10)
            assert calls == ["123"]

    run_in_virtual_time(scenario())


def test_closing_gives_back_what_a_batch_has_left(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub, retry=RetryPolicy(max_attempts=1))
        await publish(topic, *"1234")
        handled = asyncio.Event()

        def handle(messages) -> None:
            messages[1].ack()
            handled.set()

        subscription.on("message", handle)
        subscription.open(batch=4)
        await handled.wait()
        await subscription.close()
        assert texts(await subscription.pull()) == ["3"]

    run(scenario)


def test_the_memory_of_a_consumer_is_limited_with_batches_too(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await topic.publish_many([PubSubMessage(bytes(100), key) for key in "abcd" for _ in range(6)])
        at_work, most = 0, 0

        async def handle(messages) -> None:
            nonlocal at_work, most
            at_work += len(messages)
            most = max(most, at_work)
            await asyncio.sleep(0.001)
            for message in messages:
                message.ack()
                at_work -= 1

        await run_until_empty(subscription, handle, batch=4, concurrency=10)
        assert most == 10
        most = 0
        await topic.publish_many([PubSubMessage(bytes(100), key) for key in "abcd" for _ in range(6)])
        await run_until_empty(subscription, handle, batch=4, max_bytes=300)
        assert most == 3

    run(scenario)


def test_what_does_not_go_with_batches_of_a_key_is_refused_with_the_reason(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").create()
        for name, options, why in (
            ("loose", {"enable_message_ordering": False}, "has no order"),
            ("wide", {"window": 2}, "has a window of 2"),
            ("limited", {"tenant_limit": 1}, "limits its tenants"),
        ):
            subscription = await topic.subscription(name).create(**options)
            with pytest.raises(FailedPrecondition, match=why):
                await subscription.run(print, batch=10)
        for wrong in ({"batch": 0}, {"batch": True}, {"across_keys": True}, {"batch": 2, "across_keys": 1}):
            with pytest.raises(InvalidArgument):
                await subscription.run(print, **wrong)
        with pytest.raises(InvalidArgument, match="use a handler for batches"):
            subscription.messages(batch=10)

    run(scenario)


def test_keyless_messages_come_in_batches_of_one(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await topic.publish_many([b"1", b"2"])
        sizes = []
        await run_until_empty(subscription, lambda messages: sizes.append(len(messages)), batch=9, ack="on-return")
        assert sizes == [1, 1]

    run(scenario)


def test_plain_handlers_of_the_blocking_api_get_batches(tmp_path):
    with PubSub.blocking(f"sqlite:///{tmp_path}/store.db") as pubsub:
        topic = pubsub.topic("t").create()
        subscription = topic.subscription("s").create()
        ids = topic.publish_many([PubSubMessage(str(n).encode(), "k") for n in range(6)])
        got = []

        def handle(messages) -> None:
            got.append([message.id for message in messages])
            messages[-1].ack()
            if messages[-1].id == ids[-1]:
                subscription.stop()

        subscription.run(handle, batch=4)
        assert got == [ids[:4], ids[4:]]


@given(
    keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    poison=st.sets(st.integers(0, 39), max_size=4),
    batch=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_whatever_handlers_do_with_batches_only_poison_is_dead_lettered_and_each_key_is_handled_in_order(
    keys: list[str], poison: set[int], batch: int, seed: int
) -> None:
    """Poison fails wherever it is, named or not; batches also fail by chance, outlive their leases, and are acked in parts."""
    chance, settled = Random(seed), dict[str, list[int]]()

    async def handle(messages) -> None:
        numbers, key = [int(message.data) for message in messages], messages[0].ordering_key
        done = settled.setdefault(key, [])
        bad = [place for place, number in enumerate(numbers) if number in poison]
        if bad and chance.random() < 0.5:
            messages[bad[0]].nack(error="this one")
        elif bad or (len(messages) > 1 and chance.random() < 0.2):
            raise ValueError("somewhere")
        elif len(messages) > 1 and chance.random() < 0.2:
            await asyncio.sleep(100)
            with pytest.raises(StaleLease):
                messages[-1].ack()
        else:
            for place in sorted({chance.randrange(len(messages)), len(messages) - 1}):
                await asyncio.sleep(chance.choice([0, 1]))
                messages[place].ack()
                done += [number for number in numbers[: place + 1] if not done or number > done[-1]]

    async def scenario() -> None:
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub, retry=RetryPolicy(max_attempts=2))
            subscription.on("error", lambda _: None)
            ids = await topic.publish_many([PubSubMessage(str(n).encode(), key) for n, key in enumerate(keys)])
            await run_until_empty(subscription, handle, batch=batch, max_extension=20)
            dead = {ids.index(letter.id) for letter in await subscription.dead_letters()}
            assert dead == {number for number in poison if number < len(keys)}
            for key in set(keys):
                good = [number for number, of in enumerate(keys) if of == key and number not in poison]
                assert settled.get(key, []) == good

    run_in_virtual_time(scenario())


# -- batches across keys ------------------------------------------------------------------------------------------------


def test_a_bulk_writer_gets_messages_of_many_keys_at_most_one_of_each(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await topic.publish_many([PubSubMessage(str(n).encode(), f"k{n % 50}") for n in range(150)])
        written: list[str] = []
        sizes, at_once = [], 0

        async def write(messages) -> None:
            nonlocal at_once
            at_once += 1
            assert at_once == 1, "one list at a time"
            assert len({message.ordering_key for message in messages}) == len(messages)
            sizes.append(len(messages))
            await asyncio.sleep(0.001)
            written.extend(texts(messages))
            at_once -= 1

        await run_until_empty(subscription, write, batch=40, across_keys=True, ack="on-return")
        assert max(sizes) == 40
        for key in range(50):
            of_key = [int(text) for text in written if int(text) % 50 == key]
            assert of_key == sorted(of_key)
        assert len(written) == 150

    run(scenario)


def test_when_a_list_fails_its_messages_are_tried_alone_and_only_what_fails_then_has_failed(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub, retry=RetryPolicy.immediate(max_attempts=2))
        await topic.publish_many([PubSubMessage(text.encode(), text) for text in "12x4"])
        calls, errors = list[str](), list[BaseException]()
        subscription.on("error", errors.append)

        async def write(messages) -> None:
            calls.append("".join(texts(messages)))
            if b"x" in [message.data for message in messages]:
                raise ValueError("poison")

        await run_until_empty(subscription, write, batch=10, across_keys=True, ack="on-return")
        assert calls == ["12x4", "1", "2", "x", "4", "x"]
        assert [letter.attempts for letter in await subscription.dead_letters()] == [2]
        assert len(errors) == 3

    run(scenario)


def test_a_list_keeps_the_order_of_a_key_where_a_window_lets_several_of_it_out(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub, window=5, retry=RetryPolicy.immediate(max_attempts=1))
        await publish(topic, *"1x345")
        calls, acked = [], []

        async def write(messages) -> None:
            calls.append("".join(texts(messages)))
            if b"x" in [message.data for message in messages]:
                raise ValueError("poison")
            for message in messages:
                message.ack()
                acked.append(message.data.decode())

        await run_until_empty(subscription, write, batch=10, across_keys=True)
        assert calls[:3] == ["1x345", "1", "x"]
        assert "".join(acked) == "1345"

    run(scenario)


def test_a_bulk_writer_that_is_stopped_gives_back_what_it_did_not_begin(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await topic.publish_many([PubSubMessage(b"x", str(n)) for n in range(10)])

        async def write(messages) -> None:
            subscription.stop()
            await asyncio.sleep(0)
            for message in messages:
                message.ack()

        await subscription.run(write, batch=3, across_keys=True)
        stats = await subscription.stats()
        assert (stats.ready, stats.leased) == (7, 0)

    run(scenario)
