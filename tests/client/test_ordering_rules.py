"""Document 000, message ordering: its behaviour requirements, its errors, its notes and its examples, through the API."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from seriatim import Batching, PublishOptions
from seriatim.client.message import Message
from seriatim.errors import InvalidArgument
from tests.client.conftest import Received, ordered, publish


def test_br_001_a_topic_takes_keys_and_its_publisher_keeps_a_batch_for_each(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("ordered-events").create()
        topic.set_publish_options(PublishOptions(Batching(max_messages=2, max_milliseconds=3_600_000)))
        waiting = [topic.publish(b"a1", ordering_key="a"), topic.publish(b"b1", ordering_key="b")]
        full = [topic.publish(b"a2", ordering_key="a")]
        await full[0]
        assert [future.done() for future in waiting] == [True, False], "the batch of a is full, that of b is not"
        await topic.flush()

    run(scenario)


def test_br_002_a_subscription_with_ordering_delivers_one_after_another_per_key(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        assert (await subscription.options()).message_ordering
        received = Received()
        subscription.on("message", received.add)
        subscription.open()
        await publish(topic, "1", "2")
        await publish(topic, "other", key="other")
        assert await received.wait(2) == ["1", "other"]
        received.messages[0].ack()
        assert await received.wait(3) == ["1", "other", "2"]

    run(scenario)


def test_br_003_messages_are_batched_by_key_and_keep_their_publish_order(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        topic.set_publish_options(PublishOptions(Batching(max_messages=100, max_milliseconds=3_600_000)))
        for number in range(30):
            topic.publish(b"%d" % number, ordering_key=f"user-{number % 3}")
        await topic.flush()
        for user in range(3):
            peeked = await subscription.peek(f"user-{user}", limit=100)
            assert [int(message.data) for message in peeked] == list(range(user, 30, 3))

    run(scenario)


def test_br_004_each_key_has_its_own_queue_in_every_subscription(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        other = await topic.subscription("other").create(enable_message_ordering=True)
        await publish(topic, "a1", "a2", key="a")
        await publish(topic, "b1", key="b")
        await subscription.skip("a")
        for known, depths in ((subscription, {"a": 1, "b": 1}), (other, {"a": 2, "b": 1})):
            assert {view.key: view.depth for view in await known.keys()} == depths

    run(scenario)


def test_br_005_the_next_message_of_a_key_waits_for_the_ack_and_other_keys_do_not(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        at_work: dict[str | None, int] = defaultdict(int)
        together = asyncio.Event()
        done = Received()

        async def handler(message):
            at_work[message.ordering_key] += 1
            assert at_work[message.ordering_key] == 1, "one at a time"
            if sum(at_work.values()) == 3:
                together.set()
            await together.wait()
            at_work[message.ordering_key] -= 1
            message.ack()
            done.add(message)

        subscription.on("message", handler)
        subscription.open()
        for key in ("a", "b", "c"):
            await publish(topic, "1", "2", "3", key=key)
        await done.wait(9)
        for key in ("a", "b", "c"):
            assert [m.data for m in done.messages if m.ordering_key == key] == [b"1", b"2", b"3"]

    run(scenario)


@pytest.mark.parametrize("trouble", ["nack", "timeout"])
def test_br_006_a_redelivered_message_keeps_its_place_and_blocks_those_behind_it(run, trouble):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, ack_deadline=0.05 if trouble == "timeout" else 10)
        received = Received()

        def handler(message):
            received.add(message)
            if len(received.messages) > 2:
                message.ack()
            elif trouble == "nack":
                message.nack()

        subscription.on("message", handler)
        subscription.open()
        await publish(topic, "first", "second")
        assert await received.wait(4) == ["first", "first", "first", "second"]
        assert [message.delivery_attempt for message in received.messages] == [1, 2, 3, 1]

    run(scenario)


def test_br_007_keys_are_independent_of_each_other(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()

        def handler(message):
            received.add(message)
            if message.ordering_key != "stuck":
                message.ack()

        subscription.on("message", handler)
        subscription.open()
        await publish(topic, "s1", "s2", key="stuck")
        for key in ("a", "b"):
            await publish(topic, *(f"{key}{number}" for number in range(5)), key=key)
        await received.wait(11)
        assert sorted(received.data) == sorted(["s1", *(f"{key}{number}" for key in "ab" for number in range(5))])

    run(scenario)


def test_br_008_messages_without_a_key_are_delivered_at_once_and_block_nothing(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received = Received()
        subscription.on("message", received.add)  # nobody acks
        subscription.open()
        await publish(topic, "blocked", "behind")
        await publish(topic, "x", "y", "z", key=None)
        await publish(topic, "other key", key="other")
        assert sorted(await received.wait(5)) == ["blocked", "other key", "x", "y", "z"], "in whatever order"

    run(scenario)


def test_br_009_one_key_is_worked_off_one_by_one_and_the_docs_recommend_many_keys(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        at_once, most, done = 0, 0, Received()

        async def handler(message):
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            message.ack()
            done.add(message)

        subscription.on("message", handler)
        subscription.open()
        await publish(topic, *(str(number) for number in range(20)))
        await done.wait(20)
        assert most == 1

    run(scenario)
    page = Path(__file__).parents[2] / "docs" / "explanation" / "delivery.md"
    assert "many keys" in page.read_text()


@pytest.mark.parametrize("key", ["user-123", "客户-7", "🙂" * 256, "x" * 1024, "a b\tc\n"])
def test_br_010_any_text_of_up_to_1024_bytes_is_a_key(run, key):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1", key=key)
        (message,) = await subscription.peek(key)
        assert message.ordering_key == key

    run(scenario)


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        (PublishOptions(message_ordering=False), "k", "Message ordering must be enabled on topic to use ordering keys"),
        (PublishOptions(), "", "Ordering key cannot be empty"),
        (PublishOptions(), "x" * 1025, "Ordering key exceeds maximum length of 1024 bytes"),
        (PublishOptions(), "ü" * 513, "Ordering key exceeds maximum length of 1024 bytes"),
        (PublishOptions(), 17, "Ordering key must be a str, not int"),
        (PublishOptions(), "\udcff", "Ordering key must be valid UTF-8 text"),
    ],
)
def test_every_error_of_the_document_has_its_code_and_its_text(run, options, key, text):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        topic.set_publish_options(options)
        with pytest.raises(InvalidArgument) as refusal:
            topic.publish(b"", ordering_key=key)
        assert (refusal.value.code, refusal.value.message) == (3, text)

    run(scenario)


def test_note_a_key_is_part_of_a_message_that_can_not_be_changed():
    assert "ordering_key" in vars(Message)
    message = Message.__new__(Message)
    with pytest.raises(AttributeError):
        message.ordering_key = "other"  # type: ignore[misc]


def test_note_no_key_means_unordered(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1", "2", key=None)
        received = Received()
        subscription.on("message", received.add)
        subscription.open()
        assert await received.wait(2) == ["1", "2"]
        assert [message.ordering_key for message in received.messages] == [None, None]

    run(scenario)


# -- the examples of the document ---------------------------------------------------------------------------------------


def test_example_user_event_stream(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("user-events").create()
        topic.set_publish_options(PublishOptions(message_ordering=True))
        subscription = await topic.subscription("event-processor").create()
        await subscription.set_options(message_ordering=True)
        states, received = defaultdict(list), Received()

        async def update_user_state(message):
            await asyncio.sleep(0)
            states[message.ordering_key].append(message.json()["type"])
            message.ack()
            received.add(message)

        subscription.on("message", update_user_state)
        subscription.open()
        for kind in ("login", "page_view", "logout"):
            await topic.publish_json({"type": kind}, ordering_key="user-123")
        await received.wait(3)
        assert states == {"user-123": ["login", "page_view", "logout"]}

    run(scenario)


def test_example_database_change_stream(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)

        async def publish_change(table, row, action):
            await topic.publish_json({"action": action}, ordering_key=f"{table}:{row}")

        for action in ("INSERT", "UPDATE", "DELETE"):
            await publish_change("users", "123", action)
        await publish_change("users", "456", "INSERT")
        await publish_change("orders", "789", "INSERT")
        rows, received = defaultdict(list), Received()

        def apply(message):
            rows[message.ordering_key].append(message.json()["action"])
            received.add_and_ack(message)

        subscription.on("message", apply)
        subscription.open()
        await received.wait(5)
        assert rows["users:123"] == ["INSERT", "UPDATE", "DELETE"]
        assert (rows["users:456"], rows["orders:789"]) == (["INSERT"], ["INSERT"])

    run(scenario)


def test_example_device_telemetry(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        readings = {"device-001": [20.5, 21.0, 21.5], "device-002": [18.5], "device-003": [22.0]}
        for device, temperatures in readings.items():
            for temperature in temperatures:
                topic.publish_json({"temp": temperature}, ordering_key=device)
        seen, received = defaultdict(list), Received()

        def note(message):
            seen[message.ordering_key].append(message.json()["temp"])
            received.add_and_ack(message)

        subscription.on("message", note)
        subscription.open()
        await received.wait(5)
        assert seen == readings

    run(scenario)
