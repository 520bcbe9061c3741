"""Document 000, message ordering: its acceptance criteria through the async API."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.client.message import PubSubMessage
from seriatim.client.publisher import PublishOptions
from seriatim.client.pubsub import PubSub
from seriatim.core.publishing.batching import Batching
from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound, StaleLease
from tests.client.conftest import Received, offset_in, ordered


def test_ac_001_a_topic_accepts_messages_with_ordering_keys(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        assert offset_in(await topic.publish(b"event-1", ordering_key="user-123")) == 0

    run(scenario)


def test_ac_002_messages_with_the_same_key_are_delivered_in_order(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()

        def handler(message):
            received.add(message)
            message.ack()

        subscription.on("message", handler)
        subscription.open()
        for data in (b"first", b"second", b"third"):
            await topic.publish(data, ordering_key="user-123")
        assert await received.wait(3) == ["first", "second", "third"]

    run(scenario)


def test_ordering_is_turned_on_after_creation(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        topic.set_publish_options(PublishOptions(message_ordering=True))
        subscription = await topic.subscription("ordered-sub").create(enable_message_ordering=False)
        await subscription.set_options(message_ordering=True, ack_deadline=7)
        received = Received()
        subscription.on("message", received.add)
        subscription.open()
        for n in range(3):
            topic.publish(b"%d" % n, ordering_key="user-123")
        await topic.flush()
        assert await received.wait(1) == ["0"]
        assert (await pubsub.broker.describe_subscription("ordered-sub")).options.ack_deadline == 7

    run(scenario)


@pytest.mark.parametrize(("keys", "at_once"), [(["user-123"] * 5, 1), ([f"user-{n}" for n in range(5)], 5)])
def test_ac_003_and_004_one_at_a_time_per_key_and_different_keys_at_once(run, keys, at_once):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        running, most, done = 0, 0, Received()
        together = asyncio.Event()

        async def handler(message):
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == at_once:
                together.set()
            await together.wait()
            running -= 1
            message.ack()
            done.add(message)

        subscription.on("message", handler)
        subscription.open()
        for number, key in enumerate(keys):
            topic.publish(b"%d" % number, ordering_key=key)
        await done.wait(5)
        assert most == at_once

    run(scenario)


def test_ac_005_order_is_kept_when_a_message_is_not_acked_in_time(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, ack_deadline=0.05)
        received = Received()

        def handler(message):
            received.add(message)
            if len(received.data) > 1:
                message.ack()

        subscription.on("message", handler)
        subscription.open()
        await topic.publish(b"first", ordering_key="user-123")
        await topic.publish(b"second", ordering_key="user-123")
        assert await received.wait(3) == ["first", "first", "second"]

    run(scenario)


def test_ac_006_a_message_without_a_key_is_not_blocked(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()
        subscription.on("message", received.add)
        subscription.open()
        await topic.publish(b"blocked", ordering_key="user-123")
        await topic.publish(b"behind it", ordering_key="user-123")
        await topic.publish(b"unordered")
        assert await received.wait(2) == ["blocked", "unordered"]

    run(scenario)


def test_ac_007_subscriptions_are_ordered_independently(run):
    async def scenario(pubsub):
        topic, one = await ordered(pubsub)
        two = await topic.subscription("sub-2").create()
        received = [Received(), Received()]
        for subscription, got in zip((one, two), received, strict=True):
            subscription.on("message", got.add_and_ack)
            subscription.open()
        await topic.publish(b"first", ordering_key="user-123")
        await topic.publish(b"second", ordering_key="user-123")
        for got in received:
            assert await got.wait(2) == ["first", "second"]

    run(scenario)


def test_ac_008_a_bad_key_is_refused(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        with pytest.raises(InvalidArgument, match="Ordering key cannot be empty"):
            topic.publish(b"test", ordering_key="")
        with pytest.raises(InvalidArgument, match="Ordering key exceeds maximum length of 1024 bytes"):
            topic.publish(b"test", ordering_key="x" * 1025)

    run(scenario)


def test_ac_009_an_ordering_key_is_accepted_without_enabling_anything(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        subscription = await topic.subscription("by-default").create()
        assert await topic.publish_message(PubSubMessage(b"test", ordering_key="user-123"))
        received = Received()
        subscription.on("message", received.add_and_ack)
        subscription.open()
        assert await received.wait(1) == ["test"]
        assert received.messages[0].ordering_key == "user-123"

    run(scenario)


def test_ac_009_without_ordering_a_key_is_metadata_and_blocks_nothing(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        subscription = await topic.subscription("plain").create(enable_message_ordering=False)
        assert await topic.publish_message(PubSubMessage(b"test", ordering_key="user-123"))
        await topic.publish(b"again", ordering_key="user-123")
        received = Received()
        subscription.on("message", received.add)
        subscription.open()
        assert await received.wait(2) == ["test", "again"], "it is metadata there, and blocks nothing"
        assert received.messages[0].ordering_key == "user-123"

    run(scenario)


def test_ac_010_batches_are_kept_per_key(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        topic.set_publish_options(PublishOptions(Batching(max_messages=10, max_milliseconds=50)))
        ids = await asyncio.gather(*(topic.publish(b"%d" % n, ordering_key=f"user-{n % 5}") for n in range(20)))
        assert len(set(ids)) == 20

    run(scenario)


def test_a_handler_that_raises_nacks_and_is_reported(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()
        errors: list[BaseException] = []

        def handler(message):
            received.add(message)
            if len(received.data) == 1:
                raise ValueError("no good")
            message.ack()

        subscription.on("message", handler)
        subscription.on("error", errors.append)
        subscription.open()
        await topic.publish(b"first", ordering_key="k")
        await topic.publish(b"second", ordering_key="k")
        assert await received.wait(3) == ["first", "first", "second"]
        assert [str(error) for error in errors] == ["no good"]

    run(scenario)


def test_the_lease_of_a_running_handler_is_extended(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, ack_deadline=1)
        attempts = []
        finished = asyncio.Event()

        async def handler(message):
            attempts.append(message.delivery_attempt)
            await asyncio.sleep(1.6)
            message.ack()
            finished.set()

        subscription.on("message", handler)
        subscription.open()
        await topic.publish(b"slow", ordering_key="k")
        await finished.wait()
        assert attempts == [1]

    run(scenario)


def test_iterating_gives_messages_and_the_context_manager_acks_and_nacks(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        for n in range(3):
            topic.publish_json({"n": n}, ordering_key="k", attributes={"a": "b"})
        seen = []
        async for message in subscription:
            seen.append((message.json()["n"], message.delivery_attempt))
            try:
                async with message:
                    if seen[-1] == (1, 1):
                        raise RuntimeError("once more")
            except RuntimeError:
                continue
            if seen[-1][0] == 2:
                break
        assert seen == [(0, 1), (1, 1), (1, 2), (2, 1)]
        assert (message.ordering_key, dict(message.attributes), offset_in(message.id)) == ("k", {"a": "b"}, 2)
        with pytest.raises(StaleLease):
            message.ack()

    run(scenario)


def test_closing_ends_an_iteration_and_gives_back_what_nobody_has_taken(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        stream = subscription.messages()
        for key in "ab":
            await topic.publish(key.encode(), ordering_key=key)
        taken = await anext(stream)
        await topic.publish(b"c", ordering_key="c")
        await asyncio.sleep(0)
        await subscription.close()
        assert [message async for message in stream] == []
        with pytest.raises(StaleLease):
            taken.ack()
        again = subscription.messages()
        assert sorted([(await anext(again)).data for _ in "abc"]) == [b"a", b"b", b"c"]

    run(scenario)


def test_mistakes_are_named(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        with pytest.raises(FailedPrecondition, match="has no handler"):
            subscription.open()
        with pytest.raises(InvalidArgument, match="there is no event 'massage'"):
            subscription.on("massage", print)  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="topic 'nowhere' does not exist"):
            pubsub.topic("nowhere").publish(b"")
        with pytest.raises(FailedPrecondition, match="has no topic"):
            await pubsub.subscription("nowhere").create()
        await subscription.delete()
        await topic.delete()
        with pytest.raises(NotFound):
            topic.publish(b"")

    run(scenario)


def test_a_closed_pubsub_says_so():
    with pytest.raises(FailedPrecondition, match="not open"):
        PubSub("memory://").topic("t").publish(b"")
