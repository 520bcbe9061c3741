"""What goes wrong around a member, or is unusual about a topic: nothing is lost in silence, and a key's order holds."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from seriatim import Message, PubSub, PubSubMessage, RetryPolicy, Subscription
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, NotFound, StaleLease, StoreFailed, StoreLost
from seriatim.kafka import member as members
from seriatim.kafka import partition as partitions
from seriatim.kafka import publishing
from seriatim.kafka.broker import KafkaBroker as Broker
from seriatim.kafka.group import Group
from seriatim.kafka.member import Assigned, Member
from seriatim.kafka.partition import Commit
from seriatim.kafka.records import partition_of
from seriatim.kafka.state import Failure, claim_record, failure_record
from tests.integration.kafka.conftest import OPTIONS, PATIENCE_S
from tests.kafka_broker import KafkaBroker

Keyed = list[tuple[Any, Any]]


@cache  # what it was asked for ends with it
def admin(kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


def make_topic(kafka: KafkaBroker, name: str, partitions: int = 1, **config: Any) -> None:
    settings = {option.replace("_", "."): value for option, value in config.items()}
    admin(kafka).create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result()
    deadline = time.monotonic() + PATIENCE_S
    while admin(kafka).list_topics(name, timeout=30).topics[name].error is not None and time.monotonic() < deadline:
        time.sleep(0.05)  # it is not known everywhere at once


def produce(kafka: KafkaBroker, topic: str, messages: Keyed, **where: Any) -> None:
    """As programs without Seriatim do."""
    config = {"enable.idempotence": True, "linger.ms": 50, "message.max.bytes": 2**21}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **config})
    for key, value in messages:
        producer.produce(topic, value, key, **where)
        producer.poll(0)
    assert producer.flush(30) == 0


def committed(kafka: KafkaBroker, group: str, topic: str, number: int = 0) -> TopicPartition:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, number)], timeout=30)
    finally:
        consumer.close()
    return found


async def handle_all(pubsub: PubSub, name: str, handle: Callable[[Message], Awaitable[None]] | None = None) -> Keyed:
    """Handle messages until none is left."""
    seen: Keyed = []

    async def take(message: Message) -> None:
        if handle is not None:
            await handle(message)
        seen.append((message.ordering_key, message.data))
        message.ack()

    subscription = pubsub.subscription(name)
    subscription.on("message", take)
    subscription.on("error", lambda _: None)
    subscription.open()
    async with asyncio.timeout(PATIENCE_S):
        await subscription.wait_until_empty()
    await subscription.close()
    return seen


def broker_of(pubsub: PubSub) -> Broker:
    broker = pubsub.broker
    assert isinstance(broker, Broker)
    return broker


def group_of(pubsub: PubSub, name: str) -> Group:
    return broker_of(pubsub)._groups[name]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - nobody tells when it is
            await asyncio.sleep(0.01)


def in_order(seen: Keyed) -> bool:
    """Whether the numbers of each key rise, repeats aside."""
    highest: dict[bytes | None, int] = defaultdict(int)
    for key, value in seen:
        if int(value) > highest[key] + 1:
            return False
        highest[key] = max(highest[key], int(value))
    return True


async def subscribed(pubsub: PubSub, topic: str, name: str, **options: Any) -> None:
    await pubsub.topic(topic).subscription(name).ensure(**options)


def test_a_topic_that_gets_more_partitions_is_handled_in_all_of_them(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "grown", 2)

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "grown", "grown", retry=RetryPolicy(min_backoff=0.05))
            admin(kafka).create_partitions([NewPartitions("grown", 4)])["grown"].result()
            for number in range(4):
                produce(kafka, "grown", [(b"key-%d" % number, b"1")], partition=number)
            assert {key.key for key in await pubsub.subscription("grown").keys()} == {
                f"key-{number}" for number in range(4)
            }
            failed = set[str | None]()

            async def fail_once(message: Message) -> None:
                if message.ordering_key not in failed:
                    failed.add(message.ordering_key)
                    raise ValueError("once")

            assert len(await handle_all(pubsub, "grown", fail_once)) == 4
            (flaw,) = [flaw async for flaw in broker_of(pubsub).flaws()]
            assert "had 2 partitions when it was subscribed to, and has 4" in flaw.what

    asyncio.run(scenario())


def test_a_commit_for_an_assignment_that_is_over_is_left_out(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "gone")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "gone", "gone")
            produce(kafka, "gone", [(b"k", b"1")])
            await handle_all_but_stay(pubsub)
            group = group_of(pubsub, "gone")
            (known,) = group.partitions.values()
            await until(lambda: known.is_idle)
            late = Commit(known.number, known.serial - 1, 0, "", [])
            assert await group._member.commit([late]) == set()
            assert committed(kafka, "gone", "gone").offset == 1
            group._member._identity = "the member of a session that has ended"
            with pytest.raises(StaleLease, match="session has ended"):
                await group._member.commit([late._replace(serial=known.serial)])
            assert committed(kafka, "gone", "gone").offset == 1

    async def handle_all_but_stay(pubsub: PubSub) -> None:
        subscription = pubsub.subscription("gone")
        subscription.on("message", lambda message: message.ack())
        subscription.open()
        async with asyncio.timeout(PATIENCE_S):
            await subscription.wait_until_empty()

    asyncio.run(scenario())


def test_a_handler_that_takes_longer_than_the_poll_interval_keeps_its_partition(kafka: KafkaBroker, kafka_url: str):
    async def scenario() -> None:
        url = kafka_url.replace("max_poll_interval=10", "max_poll_interval=6")
        async with PubSub(url) as pubsub:
            make_topic(kafka, "long")
            await subscribed(pubsub, "long", "long", ack_deadline=60)
            produce(kafka, "long", [(b"k", b"1"), (b"other", b"1")])
            begun, ended = list[tuple[str | None, int]](), asyncio.Event()

            async def handle(message: Message) -> None:
                begun.append((message.ordering_key, group_of(pubsub, "long").partitions[0].serial))
                if message.ordering_key == "k":
                    await asyncio.sleep(9)
                    await message.ack_durable()
                    ended.set()
                else:
                    message.ack()

            subscription = pubsub.subscription("long")
            subscription.on("message", handle)
            subscription.open()
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
                await subscription.wait_until_empty()
            (serial,) = {serial for _, serial in begun}
            assert sorted(begun) == [("k", serial), ("other", serial)]
            assert group_of(pubsub, "long").partitions[0].serial == serial, "it was not assigned again"

    asyncio.run(scenario())


@pytest.mark.parametrize(("release", "released"), [("receipt", [b"1", b"2"]), ("durable", [b"1"])])
def test_the_next_message_of_a_key_comes_on_receipt_of_an_ack_or_after_its_commit(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch, release: str, released: list[bytes]
):
    make_topic(kafka, "chain")

    async def scenario() -> None:
        commit, is_asked, may_go = Member.commit, asyncio.Event(), asyncio.Event()

        async def wait_and_commit(member: Member, commits: list[Commit]) -> set[int]:
            is_asked.set()
            await may_go.wait()
            return await commit(member, commits)

        monkeypatch.setattr(Member, "commit", wait_and_commit)
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "chain", "chain", release=release)
            produce(kafka, "chain", [(b"k", b"1"), (b"k", b"2")])
            seen: list[bytes] = []

            def handle(message: Message) -> None:
                seen.append(message.data)
                message.ack()

            subscription = pubsub.subscription("chain")
            subscription.on("message", handle)
            subscription.open()
            async with asyncio.timeout(PATIENCE_S):
                await is_asked.wait()
            await until(lambda: seen == released)
            await asyncio.sleep(0.2)  # nothing more comes
            assert seen == released
            may_go.set()
            await until(lambda: seen == [b"1", b"2"])
            async with asyncio.timeout(PATIENCE_S):
                await subscription.wait_until_empty()
            assert committed(kafka, "chain", "chain").offset == 2

    asyncio.run(scenario())


def test_metadata_keeps_to_the_limit_of_a_broker_that_takes_less(tmp_path: Path):
    async def scenario(broker: KafkaBroker) -> None:
        async with PubSub(f"kafka://{broker.bootstrap}?partitions=1") as pubsub:
            topic = await pubsub.topic("small").ensure()
            subscription = await topic.subscription("small").ensure(ack_deadline=600)
            await topic.publish_many([PubSubMessage(b"1", ordering_key=f"key-{number}") for number in range(400)])
            got: list[Message] = []
            subscription.on("message", got.append)
            subscription.open()
            await until(lambda: len(got) == 400)
            chance = random.Random(1)
            acked = [message for message in got[1:] if chance.random() < 0.5]
            for message in acked[1:]:
                message.ack()
            async with asyncio.timeout(PATIENCE_S):
                await acked[0].ack_durable()
            found = committed(broker, "small", "small")
            assert found.offset == 0
            assert found.metadata is not None
            assert 0 < len(found.metadata) <= 40
            for message in {*got} - {*acked}:
                message.ack()
            async with asyncio.timeout(PATIENCE_S):
                await subscription.wait_until_empty()

    with KafkaBroker(tmp_path / "kafka", "offset.metadata.max.bytes=40") as broker:
        asyncio.run(scenario(broker))


def test_what_was_decided_is_written_before_a_partition_goes_even_if_a_handler_took_all_the_time(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    make_topic(kafka, "slow")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "slow", "slow")
            produce(kafka, "slow", [(b"hangs", b"1"), (b"fails", b"1")])
            subscription = pubsub.subscription("slow")
            got: dict[str | None, Message] = {}
            subscription.on("message", lambda message: got.update({message.ordering_key: message}))
            subscription.open()
            await until(lambda: len(got) == 2)
            group = group_of(pubsub, "slow")
            write, acknowledged = group._producer.write, []

            def slowly(*arguments: Any, **options: Any) -> asyncio.Future[tuple[int, int]]:
                async def late() -> tuple[int, int]:
                    await asyncio.sleep(0.6)
                    place = await write(*arguments, **options)
                    acknowledged.append(arguments[0])
                    return place

                return asyncio.ensure_future(late())

            monkeypatch.setattr(group._producer, "write", slowly)
            got["fails"].nack(delay=3600)
            await group.revoked(list(group._by_serial), 0.5)
            assert acknowledged == ["seriatim.slow.state"]
            memories = await broker_of(pubsub).memories("slow")
            assert [failure.failures for _, failure in memories[0].failures.values()] == [1]
            with pytest.raises(StaleLease):
                await got["hangs"].ack_durable()

    asyncio.run(scenario())


def test_a_dead_letter_that_is_not_written_when_its_partition_goes_is_written_by_the_next_member(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    make_topic(kafka, "letters")

    async def refuse_and_go() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "letters", "letters", retry=RetryPolicy(max_attempts=1))
            produce(kafka, "letters", [(b"k", b"1"), (b"k", b"2")])
            subscription = pubsub.subscription("letters")
            subscription.on("message", lambda message: message.nack(error="out of paper"))
            subscription.open()
            await until(lambda: "letters" in broker_of(pubsub)._groups)
            group = group_of(pubsub, "letters")
            copy, tried = group._copy, []

            def never(*arguments: Any) -> asyncio.Future[tuple[int, int]]:
                tried.append(arguments)
                refused: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
                refused.set_exception(StaleLease("refused"))
                return refused

            monkeypatch.setattr(group, "_copy", never)
            await until(lambda: len(tried) > 2)
            begun = time.monotonic()
            await group.revoked(list(group._by_serial), 5)
            assert time.monotonic() - begun < 2, "it is not waited for what can't be written"
            monkeypatch.setattr(group, "_copy", copy)

    asyncio.run(refuse_and_go())
    assert committed(kafka, "letters", "letters").offset == 0

    async def take_over() -> None:
        async with PubSub(kafka_url) as pubsub:
            seen = await handle_all(pubsub, "letters")
            assert seen == [("k", b"2")]
            (letter,) = await pubsub.subscription("letters").dead_letters()
            assert (letter.attempts, letter.error) == (1, "out of paper")

    asyncio.run(take_over())


def test_options_of_before_are_never_applied(kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch):
    make_topic(kafka, "tuned", 2)
    told: list[float] = []
    reconfigured = Group.reconfigured

    def listen(self: Group, value: dict[str, Any]) -> None:
        told.append(value["options"]["ack_deadline"])
        reconfigured(self, value)

    monkeypatch.setattr(Group, "reconfigured", listen)

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub, PubSub(kafka_url) as other:
            await subscribed(pubsub, "tuned", "tuned", ack_deadline=11)
            for seconds in (12, 13, 14):
                await pubsub.broker.update_subscription("tuned", SubscriptionOptions(ack_deadline=seconds))
            await open_and_claim(pubsub, 2)
            await pubsub.broker.update_subscription("tuned", SubscriptionOptions(ack_deadline=15))
            await until(lambda: told[-1] == 15)
            joined = await open_and_claim(other, 1)  # partitions go and come again: their history is read again
            await joined.close()
            await until(lambda: claimed(pubsub) == 2)
            assert group_of(pubsub, "tuned").info.options.ack_deadline == 15

    async def open_and_claim(pubsub: PubSub, partitions: int) -> Subscription:
        subscription = pubsub.subscription("tuned")
        subscription.on("message", lambda message: message.ack())
        subscription.open()
        await until(lambda: claimed(pubsub) == partitions)
        return subscription

    def claimed(pubsub: PubSub) -> int:
        group = broker_of(pubsub)._groups.get("tuned")
        return sum(one.is_claimed for one in group.partitions.values()) if group else 0

    asyncio.run(scenario())
    assert told == [14, 15, 15], "to the one member, then both; and never again"


def test_a_topic_that_is_written_in_transactions_becomes_empty(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "ledger")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "ledger", "ledger")
            await subscribed(pubsub, "ledger", "idle")
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "ledger"})
            await asyncio.to_thread(producer.init_transactions, 60)
            for batch, end in enumerate(
                [producer.commit_transaction, producer.abort_transaction, producer.commit_transaction]
            ):
                producer.begin_transaction()
                for number in range(1, 4):
                    producer.produce("ledger", b"%d" % number, b"key-%d" % batch)
                await asyncio.to_thread(producer.flush, 30)
                await asyncio.to_thread(end, 30)
            seen = await handle_all(pubsub, "ledger")
            assert in_order(seen)
            assert {key for key, _ in seen} == {"key-0", "key-2"}
            assert len(seen) == 6
            assert committed(kafka, "ledger", "ledger").offset == 12, "nine messages and three ends of transactions"
            stats = await pubsub.subscription("idle").stats()
            assert (stats.total, stats.keys) == (6, 2)
            # Only markers are left, and nobody is there to commit that.
            await asyncio.to_thread(move_group, kafka, "idle", "ledger", 11, "")
            async with asyncio.timeout(10):
                await pubsub.subscription("idle").wait_until_empty()

    asyncio.run(scenario())


def move_group(kafka: KafkaBroker, group: str, topic: str, offset: int, metadata: str) -> None:
    place = TopicPartition(topic, 0, offset, metadata)
    moved = admin(kafka).alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [place])])
    moved[group].result()


@pytest.mark.parametrize("metadata", ["", "s1r!!!", "somebody else's"])
def test_without_its_metadata_a_group_repeats_messages_and_never_reorders_them(
    kafka: KafkaBroker, kafka_url: str, metadata: str
):
    make_topic(kafka, "wiped")
    messages = [(b"key-%d" % (number % 5), b"%d" % (number // 5 + 1)) for number in range(50)]

    async def handle_some() -> Keyed:
        seen: Keyed = []
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "wiped", "wiped")
            produce(kafka, "wiped", messages)
            subscription = pubsub.subscription("wiped")

            def handle(message: Message) -> None:
                if message.ordering_key != "key-0":  # the first message stays unfinished, and so does all of its key
                    seen.append((message.ordering_key, message.data))
                    message.ack()

            subscription.on("message", handle)
            subscription.open()
            await until(lambda: len(seen) == 40)
            await until(lambda: committed(kafka, "wiped", "wiped").metadata not in (None, ""))
        return seen

    async def handle_the_rest() -> Keyed:
        async with PubSub(kafka_url) as pubsub:
            return await handle_all(pubsub, "wiped")

    before = asyncio.run(handle_some())
    place = committed(kafka, "wiped", "wiped")
    assert (place.offset, len(place.metadata or "") > 0) == (0, True)
    move_group(kafka, "wiped", "wiped", 0, metadata)
    after = asyncio.run(handle_the_rest())
    assert in_order(before)
    assert in_order(after)
    assert len(after) == 50
    assert committed(kafka, "wiped", "wiped").offset == 50


def test_what_kafka_removed_before_a_running_member_fetched_it_is_reported_as_lost(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(partitions, "MAX_RECORDS", 10)
    make_topic(kafka, "short")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "short", "short")
            produce(kafka, "short", [(b"k", b"%d" % number) for number in range(3000)])
            may_go, removed = asyncio.Event(), TopicPartition("short", 0, 2900)

            async def wait(_: Message) -> None:
                await may_go.wait()

            handling = asyncio.create_task(handle_all(pubsub, "short", wait))
            await until(lambda: "short" in broker_of(pubsub)._groups)
            await until(lambda: any(one._flow.is_paused for one in group_of(pubsub, "short").partitions.values()))
            admin(kafka).delete_records([removed])[removed].result()
            may_go.set()
            numbers = [int(value) for _, value in await handling]
            fetched = len(numbers) - 100
            assert numbers == [*range(fetched), *range(2900, 3000)]
            (lost,) = [record for record in caplog.records if "lost" in record.message]
            assert lost.levelno == logging.ERROR
            assert f"{2900 - fetched} messages of partition 0" in lost.message
            (flaw,) = [flaw async for flaw in broker_of(pubsub).flaws()]
            assert f"removed {2900 - fetched} messages before they were finished" in flaw.what

    asyncio.run(scenario())


def test_what_kafka_removed_while_no_member_was_there_is_reported_as_lost_but_for_what_was_finished(
    kafka: KafkaBroker, kafka_url: str, caplog: pytest.LogCaptureFixture
):
    make_topic(kafka, "absent")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "absent", "absent")
            produce(kafka, "absent", [(b"slow", b"0")] + [(b"k", b"%d" % number) for number in range(1, 20)])
            subscription = pubsub.subscription("absent")
            subscription.on("message", lambda message: message.ordering_key == "slow" or message.ack())
            subscription.open()
            await until(lambda: len(committed(kafka, "absent", "absent").metadata or "") > 0)
            (known,) = group_of(pubsub, "absent").partitions.values()
            await until(lambda: known.is_idle and not known.lanes.ready_lanes and len(known._progress) == 20)
            await subscription.close()
            produce(kafka, "absent", [(b"k", b"%d" % number) for number in range(20, 30)])
            removed = TopicPartition("absent", 0, 25)
            admin(kafka).delete_records([removed])[removed].result()
            assert [int(value) for _, value in await handle_all(pubsub, "absent")] == [*range(25, 30)]

    asyncio.run(scenario())
    (lost,) = [record for record in caplog.records if "lost" in record.message]
    assert "6 messages of partition 0" in lost.message  # the slow one, and five that nobody has seen


def test_a_topic_that_was_deleted_and_made_again_is_handled_from_its_beginning(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "anew")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "anew", "anew")
            produce(kafka, "anew", [(b"k", b"%d" % number) for number in range(20)])
            assert len(await handle_all(pubsub, "anew")) == 20
            admin(kafka).delete_topics(["anew"], operation_timeout=30)["anew"].result()
            await asyncio.sleep(1)
            make_topic(kafka, "anew")
            produce(kafka, "anew", [(b"k", b"%d" % number) for number in range(5)])
            # The offset of the old log is committed: what is behind it would not be missed.
            move_group(kafka, "anew", "anew", 20, "")
            seen: list[int] = []
            subscription = pubsub.subscription("anew")
            subscription.on("message", lambda message: (seen.append(int(message.data)), message.ack()))  # type: ignore[func-returns-value]
            subscription.open()
            await until(lambda: seen == [0, 1, 2, 3, 4])
            await until(lambda: committed(kafka, "anew", "anew").offset == 5)

    asyncio.run(scenario())


def test_a_blocked_event_loop_does_not_fill_the_memory(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(partitions, "MAX_RECORDS", 1000)
    make_topic(kafka, "many")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "many", "many")
            produce(kafka, "many", [(b"%d" % (number % 50), b"%d" % number) for number in range(20_000)])
            most = 0

            async def block(message: Message) -> None:
                nonlocal most
                if message.data == b"0":
                    time.sleep(3)  # noqa: ASYNC251 - that is the point
                    (known,) = group_of(pubsub, "many").partitions.values()
                    most = known._flow.fetched - known._flow.released

            assert len(await handle_all(pubsub, "many", block)) == 20_000
            assert 0 < most <= 1000 + 501

    asyncio.run(scenario())


def test_keys_of_bytes_keep_their_order_and_can_be_operated_on(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "bytes")
    keys = [b"", b"\xff\x00", "ключ".encode(), b"\xfe/\xff"]

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "bytes", "bytes", retry=RetryPolicy(max_attempts=1))
            produce(kafka, "bytes", [(key, b"%d" % number) for number in range(1, 4) for key in keys])

            async def fail(message: Message) -> None:
                if message.data == b"2":
                    raise ValueError("no")

            seen = await handle_all(pubsub, "bytes", fail)
            texts = [key.decode("utf-8", "surrogateescape") for key in keys]
            assert all([value for name, value in seen if name == key] == [b"1", b"3"] for key in texts)
            subscription = pubsub.subscription("bytes")
            letters = await subscription.dead_letters()
            assert sorted(letter.ordering_key or "" for letter in letters) == sorted(texts)
        async with PubSub(kafka_url) as pubsub:
            subscription = pubsub.subscription("bytes")
            await subscription.pause_key(texts[1])
            for letter in letters:
                await subscription.redrive(letter.id, append=True)
            again: list[str | None] = []
            subscription.on("message", lambda message: (again.append(message.ordering_key), message.ack()))  # type: ignore[func-returns-value]
            subscription.open()
            await until(lambda: len(again) == 3)
            assert set(again) == {*texts} - {texts[1]}
            await subscription.resume_key(texts[1])
            await until(lambda: len(again) == 4)

    asyncio.run(scenario())


def rows(batch: int, numbers: range) -> Iterator[tuple[bytes, list[tuple[str, bytes]]]]:
    """What a pipeline writes: the number of a row, and where it comes from."""
    for position, number in enumerate(numbers):
        place = {"query": "7:ordered", "partition": "0", "batch": str(batch), "position": str(position)}
        yield b"%d" % number, [(f"seriatim-{name}", value.encode()) for name, value in place.items()]


def test_rows_that_a_pipeline_wrote_again_are_handled_once_whichever_member_comes(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "rows")

    async def handle(*batches: tuple[int, range]) -> Keyed:
        for batch, numbers in batches:
            for value, headers in rows(batch, numbers):
                produce(kafka, "rows", [(b"k", value)], headers=headers)
        async with PubSub(kafka_url) as pubsub:
            return await handle_all(pubsub, "rows")

    async def subscribe() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "rows", "rows")

    asyncio.run(subscribe())
    handled = asyncio.run(handle((0, range(1, 4)), (1, range(4, 6))))  # the second is cut off by a crash
    handled += asyncio.run(handle((1, range(4, 8))))
    handled += asyncio.run(handle((1, range(4, 8)), (2, range(8, 10))))
    assert handled == [("k", b"%d" % number) for number in range(1, 10)]


def test_a_static_member_can_leave_and_come_again_in_one_program(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "static")

    async def scenario() -> None:
        async with PubSub(f"{kafka_url}&member=one") as pubsub:
            await subscribed(pubsub, "static", "static")
            subscription, seen = pubsub.subscription("static"), list[bytes]()
            subscription.on("message", lambda message: (seen.append(message.data), message.ack()))  # type: ignore[func-returns-value]
            for number in range(3):
                produce(kafka, "static", [(b"k", b"%d" % number)])
                subscription.open()
                await until(lambda: seen[-1:] == [b"%d" % number])  # noqa: B023 - it is awaited here
                closing = asyncio.create_task(subscription.close())
                await asyncio.sleep(0)
            await closing
            assert seen == [b"0", b"1", b"2"]

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that compacts without delay."""
    folder: Path = tmp_path_factory.mktemp("cleaning")
    with KafkaBroker(folder, "log.cleaner.backoff.ms=100\nlog.segment.delete.delay.ms=100") as broker:
        yield broker


COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_ms": "200",
    "min_cleanable_dirty_ratio": "0.001",
    "delete_retention_ms": "1",
}


def test_a_compacted_topic_is_handled_to_its_end(cleaning: KafkaBroker):
    make_topic(cleaning, "compacted", **COMPACTED)

    async def scenario() -> None:
        async with PubSub(f"kafka://{cleaning.bootstrap}?{OPTIONS}") as pubsub:
            await subscribed(pubsub, "compacted", "compacted")
            for number in range(1, 6):
                produce(cleaning, "compacted", [(b"key-%d" % key, b"%d" % number) for key in range(20)])
                await asyncio.sleep(0.3)
            await until(lambda: len(read_raw(cleaning, "compacted")) < 60)
            kept = [(message.key(), message.value()) for message in read_raw(cleaning, "compacted")]
            seen = await handle_all(pubsub, "compacted")
            assert sorted(seen) == sorted((key.decode(), value) for key, value in kept if key)
            assert (await pubsub.subscription("compacted").stats()).total == 0

    asyncio.run(scenario())


def read_raw(kafka: KafkaBroker, topic: str) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "raw", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    return found


def test_attempts_are_exact_whatever_a_member_that_lost_its_partition_writes(kafka: KafkaBroker, kafka_url: str):
    """What it wrote before the claim of the next member counts, and what it writes afterwards does not."""
    make_topic(kafka, "contested", 1)
    state, retry = "seriatim.contested.state", RetryPolicy(min_backoff=0.01, max_attempts=9)

    async def scenario() -> None:
        attempts: list[int] = []

        async def fail_until(last: int) -> None:
            """A member fails until the message has been delivered so often, and leaves."""
            async with PubSub(kafka_url) as pubsub:
                if not attempts:
                    await subscribed(pubsub, "contested", "contested", retry=retry)
                    produce(kafka, "contested", [(b"k", b"1")])
                subscription, done = pubsub.subscription("contested"), asyncio.Event()

                def handle(message: Message) -> None:
                    attempts.append(message.delivery_attempt)
                    if attempts[-1] >= last:
                        done.set()
                    message.nack(delay=3600 if done.is_set() else 0)

                subscription.on("message", handle)
                subscription.on("error", lambda _: None)
                await pubsub.broker.retry_key("contested", "k")
                subscription.open()
                async with asyncio.timeout(PATIENCE_S):
                    await done.wait()
                await subscription.close()
                epochs.append((await broker_of(pubsub).memories("contested"))[0].epoch)

        epochs: list[int] = []
        await fail_until(2)
        late = [claim_record(epochs[0] - 1), failure_record(0, epochs[0] - 1, Failure("k", 7, 0.0, "late"))]
        produce(kafka, state, [record.encoded() for record in late], partition=0)
        await fail_until(3)  # with a member to come, that record lies behind a claim that is higher than its own
        late = [failure_record(0, epochs[0], Failure("k", 8, 0.0, "late")), failure_record(0, epochs[0], None)]
        produce(kafka, state, [record.encoded() for record in late], partition=0)
        await fail_until(4)
        assert attempts == [1, 2, 3, 4]
        assert epochs == sorted(set(epochs))

        produce(kafka, state, [claim_record(epochs[-1] + 2**40).encoded()], partition=0)
        await fail_until(5)  # as if the group had been made anew, and counted its generations from the beginning
        assert attempts == [1, 2, 3, 4, 5]
        assert epochs[-1] > epochs[-2] + 2**40

    asyncio.run(scenario())


def test_what_is_seriatims_or_kafkas_own_is_left_alone(kafka_url: str):
    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            topic = await pubsub.topic("own").ensure()
            await asyncio.gather(*(topic.subscription("own").ensure() for _ in range(4)))
            for name in ("__consumer_offsets", "seriatim.own.state", "", "a b"):
                with pytest.raises(InvalidArgument):
                    await pubsub.broker.delete_topic(name)
                with pytest.raises(InvalidArgument):
                    await pubsub.broker.create_topic(name)
            with pytest.raises(InvalidArgument, match="a header of Seriatim's own"):
                await topic.publish(b"", ordering_key="k", attributes={"seriatim-not-before": "99999999999"})

    asyncio.run(scenario())


def stray(kafka: KafkaBroker, topic: str) -> Consumer:
    """A member of the topic's group that is no program of Seriatim, and assigns partitions in another way."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    return consumer


def test_what_keeps_a_member_out_of_its_group_is_reported(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "shut")

    async def run_until_reported(url: str) -> BaseException:
        async with PubSub(url) as pubsub:
            await subscribed(pubsub, "shut", "shut")
            subscription, reported = pubsub.subscription("shut"), list[BaseException]()
            subscription.on("message", lambda message: message.ack())
            subscription.on("error", reported.append)
            subscription.open()
            await until(lambda: bool(reported))
            return reported[0]

    error = asyncio.run(run_until_reported(kafka_url.replace("session_timeout=6", "session_timeout=0.01")))
    assert isinstance(error, InvalidArgument)
    assert "Invalid session timeout" in str(error)

    somebody = stray(kafka, "shut")
    try:
        error = asyncio.run(run_until_reported(kafka_url))
    finally:
        somebody.close()
    assert isinstance(error, StoreFailed)
    assert "Inconsistent group protocol" in str(error)


def test_a_static_member_whose_name_another_program_takes_ends_and_can_settle_nothing(
    kafka: KafkaBroker, kafka_url: str
):
    make_topic(kafka, "twin")

    async def scenario() -> None:
        async with PubSub(f"{kafka_url}&member=one") as pubsub, PubSub(f"{kafka_url}&member=one") as twin:
            await subscribed(pubsub, "twin", "twin", ack_deadline=60)
            produce(kafka, "twin", [(b"k", b"1")])
            first, second = asyncio.Queue[Message](), asyncio.Queue[Message]()
            running = asyncio.create_task(pubsub.subscription("twin").run(first.put))
            async with asyncio.timeout(PATIENCE_S):
                message = await first.get()
                other = asyncio.create_task(twin.subscription("twin").run(second.put))
                with pytest.raises(StoreLost, match="fenced"):
                    await running
                with pytest.raises(StaleLease):
                    await message.ack_durable()
                await (await second.get()).ack_durable()
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    asyncio.run(scenario())


def test_a_topic_that_somebody_deletes_is_reported_and_not_made_again_by_publishing(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(members.CONFIGURATION, "topic.metadata.refresh.interval.ms", 200)
    monkeypatch.setitem(publishing.CONFIGURATION, "topic.metadata.propagation.max.ms", 3000)
    make_topic(kafka, "brief", 2)

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "brief", "brief")
            subscription, reported = pubsub.subscription("brief"), list[BaseException]()
            subscription.on("message", lambda message: message.ack())
            subscription.on("error", reported.append)
            subscription.open()
            await pubsub.topic("brief").publish(b"1", ordering_key="k")
            await until(lambda: committed(kafka, "brief", "brief", partition_of("k", 2)).offset == 1)
            admin(kafka).delete_topics(["brief"], operation_timeout=30)["brief"].result()
            await until(lambda: bool(reported))
            assert isinstance(reported[0], StoreFailed)
            assert "Unknown topic" in str(reported[0])
            with pytest.raises(NotFound):
                await pubsub.topic("brief").publish(b"2", ordering_key="k")
            assert "brief" not in admin(kafka).list_topics(timeout=30).topics

    asyncio.run(scenario())


def test_a_dead_letter_of_the_largest_message_that_a_topic_takes_is_written(
    kafka: KafkaBroker, kafka_url: str, caplog: pytest.LogCaptureFixture
):
    make_topic(kafka, "large")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "large", "large", retry=RetryPolicy(max_attempts=2, min_backoff=0.01))
            largest = 1024 * 1024 - 80  # with a header it fills what a broker takes
            produce(kafka, "large", [(b"k", bytes(largest)), (b"\xff" * 400_000, b"")])

            async def fail(_: Message) -> None:
                raise ValueError("no")

            assert await handle_all(pubsub, "large", fail) == []
            letters = await pubsub.subscription("large").dead_letters()
            assert [letter.attempts for letter in letters] == [2, 2]

    asyncio.run(scenario())
    assert "can't be written" not in caplog.text, "the state of a message with such a key is large, too"


def test_a_partition_that_went_to_somebody_else_is_left_out_of_commits(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "shared", 2)

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub, PubSub(kafka_url) as other:
            await subscribed(pubsub, "shared", "shared")
            for program in (pubsub, other):
                subscription = program.subscription("shared")
                subscription.on("message", lambda message: message.ack())
                subscription.open()
                await until(lambda: len(held(pubsub)) == 2 or len(held(other)) == 1)
                if program is pubsub:
                    before = held(pubsub)
            await until(lambda: len(held(pubsub)) == 1)
            (gone,) = before.keys() - held(pubsub).keys()
            await until(lambda: gone not in group_of(pubsub, "shared")._member._owned)  # its thread hears of it last
            late = Commit(gone, before[gone], 7, "", [])
            assert await group_of(pubsub, "shared")._member.commit([late]) == set()
            assert committed(kafka, "shared", "shared", gone).offset == 0
            assert held(pubsub).items() <= before.items(), "the other one was not taken away meanwhile"

    def held(pubsub: PubSub) -> dict[int, int]:
        group = broker_of(pubsub)._groups.get("shared")
        return {} if group is None else {number: known.serial for number, known in group.partitions.items()}

    asyncio.run(scenario())


def test_a_program_ends_although_kafka_does_not_answer(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    make_topic(kafka, "mute")
    is_asked, answers = threading.Event(), threading.Event()

    def ask(*_: object) -> set[int]:
        is_asked.set()
        answers.wait(PATIENCE_S)
        return set()

    monkeypatch.setattr(Member, "_commit", ask)
    monkeypatch.setattr(members, "CALL_TIMEOUT_S", 2.0)

    async def scenario() -> list[threading.Thread]:
        async with PubSub(kafka_url.replace("max_poll_interval=10", "max_poll_interval=0.5")) as pubsub:
            await subscribed(pubsub, "mute", "mute")
            produce(kafka, "mute", [(b"k", b"1")])
            got = asyncio.Queue[Message]()
            subscription = pubsub.subscription("mute")
            subscription.on("message", got.put_nowait)
            subscription.open()
            async with asyncio.timeout(PATIENCE_S):
                acking = asyncio.create_task((await got.get()).ack_durable())
            await until(is_asked.is_set)
            threads = group_of(pubsub, "mute")._member._threads
            async with asyncio.timeout(PATIENCE_S / 2):
                await subscription.close()
                await pubsub.close()
                with pytest.raises(StaleLease):
                    await acking
            return threads

    try:
        threads = asyncio.run(scenario())
    finally:
        answers.set()
    assert "Kafka does not answer" in caplog.text
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_partition_that_is_revoked_hands_out_nothing_more(kafka: KafkaBroker, kafka_url: str):
    make_topic(kafka, "going")

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "going", "going")
            produce(kafka, "going", [(b"k", b"1"), (b"k", b"2")])
            subscription, got = pubsub.subscription("going"), list[Message]()
            subscription.on("message", got.append)
            subscription.open()
            await until(lambda: len(got) == 1)
            group = group_of(pubsub, "going")
            (known,) = group.partitions.values()
            revoking = asyncio.create_task(group.revoked([known.serial], PATIENCE_S))
            produce(kafka, "going", [(b"other", b"1")])
            await until(lambda: known.has_seen(2))
            await got[0].ack_durable()
            await revoking
            assert len(got) == 1
            assert committed(kafka, "going", "going").offset == 1

    asyncio.run(scenario())


def test_places_of_rows_are_durable_before_the_commit_that_passes_the_rows(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    make_topic(kafka, "placed")
    done: list[str] = []
    commit = Member.commit

    async def note_and_commit(member: Member, commits: list[Commit]) -> set[int]:
        done.extend("committed" for one in commits if one.offset)
        return await commit(member, commits)

    monkeypatch.setattr(Member, "commit", note_and_commit)

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub:
            await subscribed(pubsub, "placed", "placed")
            ((value, headers),) = rows(1, range(1, 2))
            produce(kafka, "placed", [(b"k", value)], headers=headers)
            write = broker_of(pubsub)._producer.write

            def slowly(topic: str, value: bytes | None, key: bytes | None = None, **options: Any) -> Any:
                async def late() -> tuple[int, int]:
                    await asyncio.sleep(0.3)
                    place = await write(topic, value, key, **options)
                    done.append("written")
                    return place

                is_place = key is not None and key.startswith(b"replay/") and value is not None
                return asyncio.ensure_future(late()) if is_place else write(topic, value, key, **options)

            monkeypatch.setattr(broker_of(pubsub)._producer, "write", slowly)
            assert await handle_all(pubsub, "placed") == [("k", b"1")]
            assert done == ["written", "committed"]

    asyncio.run(scenario())


def test_a_static_member_that_comes_again_finds_its_partition_and_nobody_else_had_it(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    make_topic(kafka, "seats", 2)
    assigned, told = Group.assigned, list[tuple[Group, list[int]]]()

    def listen(group: Group, partitions: list[Assigned]) -> None:
        told.append((group, [one.number for one in partitions]))
        assigned(group, partitions)

    monkeypatch.setattr(Group, "assigned", listen)

    async def scenario() -> None:
        one, two = (f"{kafka_url}&member={name}" for name in ("one", "two"))
        async with PubSub(one) as pubsub:
            await subscribed(pubsub, "seats", "seats")
            sit(pubsub)
            await until(lambda: held(pubsub) == {0, 1})
            async with PubSub(two) as other:
                sit(other)
                await until(lambda: len(held(pubsub)) == len(held(other)) == 1)
                before = held(other)
            told.clear()
            async with PubSub(two) as other:
                sit(other)
                await until(lambda: held(other) == before)
                assert [numbers for group, numbers in told if numbers and group is group_of(pubsub, "seats")] == []

    def sit(pubsub: PubSub) -> None:
        subscription = pubsub.subscription("seats")
        subscription.on("message", lambda message: message.ack())
        subscription.open()

    def held(pubsub: PubSub) -> set[int]:
        group = broker_of(pubsub)._groups.get("seats")
        return set() if group is None else set(group.partitions)

    asyncio.run(scenario())


def test_what_is_in_flight_when_a_partition_is_revoked_may_finish_and_comes_to_nobody_else(
    kafka: KafkaBroker, kafka_url: str
):
    make_topic(kafka, "handover", 2)

    async def scenario() -> None:
        async with PubSub(kafka_url) as pubsub, PubSub(kafka_url) as other:
            await subscribed(pubsub, "handover", "handover")
            for number in range(2):
                produce(kafka, "handover", [(b"key-%d" % number, b"1")], partition=number)
            subscription, got, elsewhere = pubsub.subscription("handover"), list[Message](), list[Message]()
            subscription.on("message", got.append)
            subscription.open()
            await until(lambda: len(got) == 2)
            partitions = group_of(pubsub, "handover").partitions
            joining = other.subscription("handover")
            joining.on("message", elsewhere.append)
            joining.open()
            await until(lambda: any(known.is_ending for known in partitions.values()))
            await asyncio.sleep(0.5)  # a handler at work
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(message.ack_durable() for message in got))
            await until(lambda: "handover" in broker_of(other)._groups)
            moved = group_of(other, "handover").partitions
            await until(lambda: any(known.is_claimed for known in moved.values()))
            async with asyncio.timeout(PATIENCE_S):
                await subscription.wait_until_empty()
            assert elsewhere == []

    asyncio.run(scenario())


def test_a_dead_letter_that_is_there_twice_after_a_crash_names_the_same_source(
    kafka: KafkaBroker, kafka_url: str, monkeypatch: pytest.MonkeyPatch
):
    make_topic(kafka, "paper")
    copies = "seriatim.paper.dead-letters"

    async def bury_and_crash() -> None:
        async with PubSub(kafka_url.replace("max_poll_interval=10", "max_poll_interval=1")) as pubsub:
            await subscribed(pubsub, "paper", "paper", retry=RetryPolicy(max_attempts=1))
            produce(kafka, "paper", [(b"k", b"1")])
            with monkeypatch.context() as patch:
                patch.setattr(Member, "commit", never)
                subscription = pubsub.subscription("paper")
                subscription.on("message", lambda message: message.nack(error="out of paper"))
                subscription.open()
                await until(lambda: "paper" in broker_of(pubsub)._groups)
                await until(lambda: len(read_raw(kafka, copies)) == 1)
                await pubsub.close()

    async def never(*_: object) -> set[int]:
        raise StoreFailed("it crashes before it commits")

    async def take_over() -> None:
        async with PubSub(kafka_url) as pubsub:
            assert await handle_all(pubsub, "paper") == []

    asyncio.run(bury_and_crash())
    assert committed(kafka, "paper", "paper").offset == 0
    asyncio.run(take_over())
    sources = [dict(message.headers())["seriatim-source"] for message in read_raw(kafka, copies)]
    assert sources == [b"paper/0-0"] * 2


def test_a_static_member_that_comes_again_remembers_what_it_wrote_in_its_last_run(kafka: KafkaBroker, kafka_url: str):
    """Kafka gives it its partition back in the same generation: its claims must differ all the same."""
    make_topic(kafka, "again", 1)
    seen, attempts, epochs = list[bytes](), list[int](), list[int]()

    def handle(message: Message) -> None:
        if message.ordering_key == "held":
            attempts.append(message.delivery_attempt)
            message.nack(delay=3600)
        else:
            seen.append(message.data)
            message.ack()

    async def scenario() -> None:
        for run in (b"1", b"2", b"3"):
            async with PubSub(f"{kafka_url}&member=one") as pubsub:
                if not epochs:
                    await subscribed(pubsub, "again", "again")
                    produce(kafka, "again", [(b"held", b"0")])
                subscription = pubsub.subscription("again")
                subscription.on("message", handle)
                subscription.open()
                produce(kafka, "again", [(b"other", run)])
                await until(lambda: run in seen and bool(attempts))  # noqa: B023 - it is awaited here
                epochs.append(group_of(pubsub, "again").partitions[0].epoch)
                await subscription.close()

    asyncio.run(scenario())
    assert attempts == [1]
    assert len(set(epochs)) == 3
