"""What a new user gets without any option: order, retries that don't spin, topics and subscriptions that can be ensured."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from seriatim import PubSub, RetryPolicy
from seriatim.errors import AlreadyExists, FailedPrecondition, NotFound
from seriatim.options import OnExhausted, RetryMode
from seriatim.testing import run_in_virtual_time
from tests.client.conftest import Received


def test_a_subscription_keeps_the_order_of_keys_by_default(run):
    async def scenario(pubsub: PubSub) -> None:
        subscription = await (await pubsub.topic("t").create()).subscription("s").create()
        assert (await subscription.options()).message_ordering
        for number in range(3):
            pubsub.topic("t").publish(str(number).encode(), ordering_key="k")
        async for message in subscription:
            if message.delivery_attempt == 1 and message.data == b"0":
                message.nack(delay=0)
                continue
            message.ack()
            seen.append(message.data)
            if len(seen) == 3:
                break

    seen: list[bytes] = []
    run(scenario)
    assert seen == [b"0", b"1", b"2"]


def test_ordering_can_be_turned_off(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(enable_message_ordering=False)
        assert not (await subscription.options()).message_ordering
        for data in (b"1", b"2"):
            topic.publish(data, ordering_key="k")
        async for message in subscription:
            seen.append(message)
            if len(seen) == 2:  # the second one came although the first is neither acked nor nacked
                break

    seen: list[object] = []
    run(scenario)


@pytest.mark.parametrize("options", [{}, {"retry": RetryPolicy(max_attempts=1000)}], ids=["default", "policy"])
def test_a_handler_that_always_fails_is_called_at_most_ten_times_in_five_seconds(options):
    calls: list[float] = []
    others: list[bytes] = []

    async def main() -> None:
        async with PubSub() as pubsub:
            topic = await pubsub.topic("t").create()
            subscription = await topic.subscription("s").create(**options)

            def handle(message) -> None:
                if message.ordering_key == "bad":
                    calls.append(asyncio.get_running_loop().time())
                    raise ValueError("always")
                others.append(message.data)
                message.ack()

            subscription.on("message", handle)
            subscription.open()
            topic.publish(b"bad", ordering_key="bad")
            for number in range(50):
                topic.publish(str(number).encode(), ordering_key="good")
            await topic.flush()
            await asyncio.sleep(5)

    run_in_virtual_time(main())
    gaps = [round(after - before, 3) for before, after in pairwise(calls)]
    assert gaps == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert len(others) == 50


@pytest.mark.parametrize("say", ["policy", "delay"])
def test_retries_without_a_pause_are_there_for_those_who_want_them(say):
    async def main() -> float:
        async with PubSub() as pubsub:
            topic = await pubsub.topic("t").create()
            policy = RetryPolicy.immediate(max_attempts=50) if say == "policy" else None
            subscription = await topic.subscription("s").create(retry=policy)
            topic.publish(b"x", ordering_key="k")
            started = asyncio.get_running_loop().time()
            async for message in subscription:
                if message.delivery_attempt == 20:
                    message.ack()
                    return asyncio.get_running_loop().time() - started
                message.nack(delay=0 if say == "delay" else None)
        raise AssertionError

    assert run_in_virtual_time(main()) < 0.1


def test_a_policy_backs_off_from_a_tenth_of_a_second_to_a_minute():
    policy = RetryPolicy(max_attempts=5)
    assert [policy.backoff(failures) for failures in (1, 2, 3, 11, 2000)] == [0.1, 0.2, 0.4, 60.0, 60.0]
    assert RetryPolicy.immediate(max_attempts=5).backoff(7) == 0
    assert RetryPolicy.immediate(mode="overtake", on_exhausted="pause") == RetryPolicy(
        0, 0, RetryMode.OVERTAKE, None, OnExhausted.PAUSE
    )


# -- ensure ------------------------------------------------------------------------------------------------------------


def test_ensure_creates_what_is_missing_and_takes_what_is_there(run_with_restarts):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").ensure()
        dead = await pubsub.topic("dead").ensure(retention=60.0)
        subscription = await topic.subscription("s").ensure(ack_deadline=7.0, dead_letter_topic="dead")
        assert (topic.name, dead.name, (await subscription.options()).ack_deadline) == ("t", "dead", 7.0)
        topic.publish(b"x", ordering_key="k")
        await topic.flush()
        kept.append((await subscription.stats()).total)

    kept: list[int] = []
    run_with_restarts(scenario, scenario)
    assert kept == [1, 2]


def test_ensure_complains_about_other_values_of_what_was_given_only(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").create(retention=60.0)
        subscription = await topic.subscription("s").create(ack_deadline=7.0, window=2, enable_message_ordering=False)
        await topic.ensure()
        await topic.ensure(retain_settled=0.0)
        await subscription.ensure()
        await subscription.ensure(window=2, release="durable", enable_message_ordering=False)
        with pytest.raises(AlreadyExists, match=r"topic 't' exists with other options: retention is 60.0, not None"):
            await topic.ensure(retention=None, retain_settled=0.0)
        with pytest.raises(AlreadyExists) as refused:
            await subscription.ensure(ack_deadline=8.0, window=2, retry=None, enable_message_ordering=True)
        assert "ack_deadline is 7.0, not 8.0; message_ordering is False, not True; change" in str(refused.value)
        assert (await subscription.options()).ack_deadline == 7.0

    run(scenario)


def test_ensure_does_not_propose_to_change_a_filter(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").ensure()
        subscription = await topic.subscription("s").ensure()
        with pytest.raises(AlreadyExists, match="a filter can't be changed: create another subscription"):
            await subscription.ensure(filter='attributes.kind = "order"')

    run(scenario)


def test_ensure_names_the_part_of_the_retry_policy_that_differs_and_how_to_change_it(run):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").ensure()
        subscription = await topic.subscription("s").ensure(retry=RetryPolicy(max_attempts=3))
        with pytest.raises(AlreadyExists) as refused:
            await subscription.ensure(retry=RetryPolicy(max_attempts=5, on_exhausted="pause"))
        assert str(refused.value) == (
            "subscription 's' exists with other options: retry.max_attempts is 3, not 5; retry.on_exhausted is 'dead-letter', "
            "not 'pause'; change them with set_options, or with 'seriatim subscriptions update s'"
        )

    run(scenario)


def test_ensure_complains_about_a_subscription_of_another_topic(run):
    async def scenario(pubsub: PubSub) -> None:
        await (await pubsub.topic("one").ensure()).subscription("s").ensure()
        other = await pubsub.topic("other").ensure()
        with pytest.raises(AlreadyExists, match="subscription 's' belongs to topic 'one'"):
            await other.subscription("s").ensure()

    run(scenario)


def test_ensure_at_the_same_moment_creates_one(run):
    async def scenario(pubsub: PubSub) -> None:
        topics = [pubsub.topic("t").ensure() for _ in range(5)]
        await asyncio.gather(*topics)
        await asyncio.gather(*(pubsub.topic("t").subscription("s").ensure() for _ in range(5)))
        assert [info.name for info in await pubsub.subscriptions()] == ["s"]

    run(scenario)


def test_ensure_needs_a_topic(run):
    async def scenario(pubsub: PubSub) -> None:
        with pytest.raises(FailedPrecondition, match="has no topic"):
            await pubsub.subscription("s").ensure()
        with pytest.raises(NotFound):
            await pubsub.topic("t").subscription("s").ensure()

    run(scenario)


# -- handlers that forget ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_forgets_to_ack_is_logged_once(kind, caplog):
    came: list[bytes] = []

    def plain(message) -> None:
        came.append(message.data)

    async def asynchronous(message) -> None:
        came.append(message.data)

    async def main() -> None:
        async with PubSub() as pubsub:
            topic = await pubsub.topic("t").create()
            subscription = await topic.subscription("s").create(ack_deadline=2.0)
            subscription.on("message", plain if kind == "plain" else asynchronous)
            for _ in range(2):
                subscription.open()
                for key in "abc":
                    topic.publish(b"x", ordering_key=key)
                await asyncio.sleep(1)
                await subscription.close()

    run_in_virtual_time(main())
    assert len(came) == 6
    (entry,) = [record.getMessage() for record in caplog.records if "without ack or nack" in record.getMessage()]
    assert "subscription 's'" in entry
    assert "is blocked until the lease expires" in entry


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_with_ack_on_return_a_handler_need_not_ack(kind, run, caplog):
    async def scenario(pubsub: PubSub) -> None:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create()
        received = Received()

        def plain(message) -> None:
            received.add(message)
            if message.data == b"1" and message.delivery_attempt == 1:
                message.nack(delay=0)
            if message.data == b"2" and message.delivery_attempt == 1:
                raise ValueError("once")
            if message.data == b"3":
                message.ack()

        async def asynchronous(message) -> None:
            await asyncio.sleep(0)
            plain(message)

        subscription.on("message", plain if kind == "plain" else asynchronous)
        subscription.open(ack="on-return")
        for number in range(5):
            topic.publish(str(number).encode(), ordering_key="k")
        await topic.flush()
        await subscription.wait_until_empty()
        assert received.data == ["0", "1", "1", "2", "2", "3", "4"]

    run(scenario)
    assert "without ack or nack" not in caplog.text
