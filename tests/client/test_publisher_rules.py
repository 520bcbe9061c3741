"""Document 001, the publisher: its acceptance criteria, the rest of its rules, its errors and its examples, through the API."""

from __future__ import annotations

import asyncio

import pytest

from seriatim import Batching, FlowControl, PublishOptions, PubSubMessage
from seriatim.errors import FlowControlTimeout, InvalidArgument, StoreFull
from tests.client.conftest import Received, offset_in, ordered

NEVER = 3_600_000
"""Milliseconds: in these tests no batch is sent because its time is over, unless its time is what is shown."""


async def a_topic(pubsub, options=None):
    topic = await pubsub.topic("my-topic").create()
    if options is not None:
        topic.set_publish_options(options)
    return topic


def batches_of(topic) -> list[list[bytes]]:
    """What is handed to the broker from now on, batch by batch."""
    batches: list[list[bytes]] = []
    publisher = topic._open_publisher()
    write = publisher._write

    def watched(written):
        batches.extend([future.message.data for future in batch.messages] for batch in written)
        write(written)

    publisher._write = watched
    return batches


def messages(count: int, size: int = 0, key: str | None = None) -> list[PubSubMessage]:
    return [PubSubMessage(b"Message %d" % number + b"." * size, key) for number in range(count)]


async def publish_all(topic, many: list[PubSubMessage]) -> list[str]:
    return await asyncio.gather(*(topic.publish_message(message) for message in many))


# -- acceptance criteria ------------------------------------------------------------------------------------------------


def test_ac_001_by_default_messages_are_batched_and_each_gets_an_id(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub)
        batches = batches_of(topic)
        ids = await publish_all(topic, messages(50))
        assert len(ids) == 50
        assert all(isinstance(one, str) for one in ids)
        assert [len(batch) for batch in batches] == [50]

    run(scenario)


def test_ac_002_a_batch_is_sent_when_its_time_is_over(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(Batching(1000, 20, 10 * 1024 * 1024)))
        began = asyncio.get_running_loop().time()
        assert len(await publish_all(topic, messages(5))) == 5
        assert asyncio.get_running_loop().time() - began >= 0.02

    run(scenario)


def test_ac_003_a_batch_is_sent_when_its_count_is_reached(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(Batching(10, NEVER, 10 * 1024 * 1024)))
        assert len(await publish_all(topic, messages(10))) == 10

    run(scenario)


def test_ac_004_a_batch_is_sent_when_its_size_is_reached(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(Batching(1000, NEVER, 1024)))
        first, second, third = (topic.publish(b"\0" * 512) for _ in range(3))
        await asyncio.gather(first, second)
        assert not third.done(), "it is in a new batch"
        await topic.flush()
        assert third.done()

    run(scenario)


def test_ac_005_flush_publishes_at_once(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(Batching(1000, NEVER)))
        futures = [topic.publish(b"test1"), topic.publish(b"test2")]
        await topic.flush()
        assert [future.done() for future in futures] == [True, True]

    run(scenario)


def test_ac_006_with_ordering_each_key_has_a_batch_and_order_holds_to_the_subscriber(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        topic.set_publish_options(PublishOptions(Batching(100, 50), message_ordering=True))
        batches = batches_of(topic)
        await asyncio.gather(
            topic.publish(b"user-1-msg-1", ordering_key="user-1"),
            topic.publish(b"user-2-msg-1", ordering_key="user-2"),
            topic.publish(b"user-1-msg-2", ordering_key="user-1"),
        )
        assert batches == [[b"user-1-msg-1", b"user-1-msg-2"], [b"user-2-msg-1"]]
        received = Received()
        subscription.on("message", received.add_and_ack)
        subscription.open()
        await received.wait(3)
        assert [one for one in received.data if one.startswith("user-1")] == ["user-1-msg-1", "user-1-msg-2"]

    run(scenario)


def test_ac_007_no_more_than_so_many_messages_are_outstanding(run):
    """That a slot is held until the commit is durable is shown with a commit that is held up, in test_publisher.py."""

    async def scenario(pubsub):
        options = PublishOptions(Batching(5, 100), flow_control=FlowControl(max_outstanding_messages=10))
        topic = await a_topic(pubsub, options)
        batches = batches_of(topic)
        futures = [topic.publish_message(message) for message in messages(15)]
        assert [len(batch) for batch in batches] == [5, 5], "the last five wait for a slot"
        assert len(await asyncio.gather(*futures)) == 15

    run(scenario)


def test_ac_008_batching_is_disabled_by_thresholds_of_1(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(Batching(max_messages=1, max_milliseconds=0, max_bytes=1)))
        batches = batches_of(topic)
        assert len(await publish_all(topic, messages(2))) == 2
        assert [len(batch) for batch in batches] == [1, 1]

    run(scenario)


def test_ac_009_ids_are_unique(run):
    async def scenario(pubsub):
        ids = await publish_all(await a_topic(pubsub), messages(100))
        assert len(set(ids)) == 100

    run(scenario)


def test_ac_010_a_flush_of_nothing_does_nothing(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub)
        batches = batches_of(topic)
        await topic.flush()
        assert batches == []

    run(scenario)


# -- rules that have no criterion of their own --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reached", [Batching(3, NEVER, 10_000_000), Batching(1000, 5, 10_000_000), Batching(1000, NEVER, 42)]
)
def test_br_001_a_batch_is_sent_when_any_threshold_is_reached(run, reached):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(reached))
        assert len(await publish_all(topic, messages(3, size=5))) == 3

    run(scenario)


def test_br_002_a_batch_is_published_as_a_whole_or_not_at_all(run, monkeypatch):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        topic.set_publish_options(PublishOptions(Batching(3, NEVER)))
        publish = pubsub.broker.publish_checked

        def refuse(name, many):
            future = asyncio.get_running_loop().create_future()
            future.set_exception(StoreFull("no room"))
            return future

        pubsub.broker.publish_checked = refuse
        results = await asyncio.gather(*(topic.publish(b"x") for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [StoreFull] * 3
        pubsub.broker.publish_checked = publish
        ids = await publish_all(topic, messages(3))
        assert len(set(ids)) == 3
        assert [message.id for message in await subscription.peek(None)] == ids

    run(scenario)


@pytest.mark.parametrize(
    ("data", "text"),
    [("text", "Message data must be bytes"), (b"x" * (10 * 1024 * 1024 + 1), "Message size exceeds maximum of 10MB")],
)
def test_every_error_of_the_document_has_its_code_and_its_text(run, data, text):
    async def scenario(pubsub):
        topic = await a_topic(pubsub)
        for publish in (topic.publish, lambda data: topic.publish_message(PubSubMessage(data))):
            with pytest.raises(InvalidArgument) as refusal:
                publish(data)
            assert (refusal.value.code, refusal.value.message) == (3, text)

    run(scenario)


@pytest.mark.parametrize(("what", "limit"), [("messages", 1), ("bytes", 5)])
def test_the_flow_control_timeout_has_its_code_and_its_text(run, what, limit):
    async def scenario(pubsub):
        limits = FlowControl(**{f"max_outstanding_{what}": limit}, timeout=0)
        topic = await a_topic(pubsub, PublishOptions(Batching(100, NEVER), flow_control=limits))
        topic.publish(b"12345")
        with pytest.raises(FlowControlTimeout) as refusal:
            await topic.publish(b"6")
        assert (refusal.value.code, refusal.value.message) == (8, f"Flow control: max outstanding {what} exceeded")
        await topic.flush()

    run(scenario)


def test_a_message_that_was_received_can_be_published_again(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await topic.publish(b"data", ordering_key="k", attributes={"a": "b"})
        elsewhere = await pubsub.topic("elsewhere").create()
        copies = await elsewhere.subscription("copies").create()
        async for message in subscription:
            assert offset_in(await elsewhere.publish_message(message)) == 0
            message.ack()
            break
        (copy,) = await copies.peek("k")
        assert (copy.data, copy.ordering_key, dict(copy.attributes)) == (b"data", "k", {"a": "b"})
        with pytest.raises(InvalidArgument, match="a bytes can't be published: give a PubSubMessage or a Message"):
            elsewhere.publish_message(b"data")

    run(scenario)


# -- the examples of the document ---------------------------------------------------------------------------------------


def test_example_high_throughput_publishing(run):
    async def scenario(pubsub):
        flow = FlowControl(max_outstanding_messages=10_000, max_outstanding_bytes=50 * 1024 * 1024)
        topic = await a_topic(pubsub, PublishOptions(Batching(500, 50, 5 * 1024 * 1024), flow_control=flow))
        for message in messages(10_000):
            topic.publish_message(message)
        await topic.flush()
        (info,) = await pubsub.topics()
        assert (info.name, info.next_offset) == ("my-topic", 10_000)

    run(scenario)


def test_example_low_latency_publishing(run):
    async def scenario(pubsub):
        topic = await a_topic(pubsub, PublishOptions(Batching(10, 1, 100 * 1024)))
        assert offset_in(await topic.publish_message(PubSubMessage(b"urgent message"))) == 0

    run(scenario)


def test_example_ordered_publishing_with_batching(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        topic.set_publish_options(PublishOptions(Batching(50, 20), message_ordering=True))
        users = ["user-1", "user-2", "user-3"]
        for number in range(100):
            topic.publish_message(PubSubMessage(b"Event %d" % number, users[number % 3]))
        await topic.flush()
        for index, user in enumerate(users):
            events = [message.data for message in await subscription.peek(user, limit=100)]
            assert events == [b"Event %d" % number for number in range(index, 100, 3)]

    run(scenario)
