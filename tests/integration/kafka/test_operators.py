"""What operators see of a subscription on Kafka, and what they do to it, whether a member has the partition or nobody has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seriatim import Message, PubSub, RetryPolicy, Subscription
from seriatim.core.lanes.explanation import WaitsFor
from seriatim.errors import InvalidArgument, StaleLease
from seriatim.kafka.group import Group
from seriatim.kafka.partition import Partition
from tests.integration.kafka.conftest import PATIENCE_S
from tests.integration.kafka.test_how_to import command

Scenario = Callable[[PubSub], Awaitable[None]]


async def subscribed(pubsub: PubSub, **options: object) -> Subscription:
    topic = await pubsub.topic("orders").ensure()
    return await topic.subscription("billing").ensure(**options)  # type: ignore[arg-type]


async def publish(pubsub: PubSub, *data: str, key: str = "alice", delay: float = 0) -> list[str]:
    topic = pubsub.topic("orders")
    return [await topic.publish(one.encode(), ordering_key=key, delay=delay) for one in data]


async def first_of(subscription: Subscription) -> Message:
    """Open it, and hold its first message."""
    got: asyncio.Queue[Message] = asyncio.Queue()
    subscription.on("message", got.put_nowait)
    subscription.open()
    return await got.get()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - nobody tells when it is
            await asyncio.sleep(0.05)


async def handled(pubsub: PubSub, count: int) -> list[str]:
    """The data of the messages that are left, which are handled."""
    seen: list[str] = []
    subscription = pubsub.subscription("billing")

    def handle(message: Message) -> None:
        seen.append(message.data.decode())
        message.ack()

    subscription.on("message", handle)
    subscription.open()
    async with asyncio.timeout(PATIENCE_S):
        await subscription.wait_until_empty()
    await subscription.close()
    assert len(seen) == count, seen
    return seen


def test_why_a_key_waits_is_explained_in_the_words_of_the_lanes(run: Callable[[Scenario], None], kafka_url: str):
    async def scenario(pubsub: PubSub) -> None:
        subscription = await subscribed(pubsub, retry=RetryPolicy(min_backoff=600, max_backoff=600))
        (first,) = await publish(pubsub, "1")
        assert (await subscription.explain("bob")).sentence.startswith("it has no messages; ")
        nobody = f"message {first} is ready, but the subscription has no consumer; it needs a consumer"
        assert (await subscription.explain("alice")).sentence == nobody

        message = await first_of(subscription)
        found = await subscription.explain("alice")
        assert found.waits_for is WaitsFor.OUTCOME
        assert found.sentence.startswith(f"message {first} is in flight (attempt 1), since ")
        async with PubSub(kafka_url) as other:
            elsewhere = await other.subscription("billing").explain("alice")
        assert elsewhere.waits_for is WaitsFor.CONSUMER
        seen = f"message {re.escape(first)} is with the member at [^ ]+: in flight, or waiting for the key's turn; .*"
        assert re.fullmatch(seen, elsewhere.sentence)

        message.nack(error="out of {paper}")
        await until(lambda: _is_delayed(subscription))
        await subscription.close()
        found = await subscription.explain("alice")
        assert (found.waits_for, found.until is None) == (WaitsFor.TIME, False)
        assert re.match(r"waits for its retry until [-0-9]+ [:0-9]+ UTC: out of {paper}; it continues", found.sentence)
        (key,) = await subscription.keys()
        assert (key.why, key.state) == (found.sentence, "delayed")

        await subscription.pause()
        await publish(pubsub, "1", key="bob")
        assert (await subscription.explain("bob")).sentence == "the subscription is paused; it needs an operator"

    async def _is_delayed(subscription: Subscription) -> bool:
        return [key.state for key in await subscription.keys()] == ["delayed"]

    run(scenario)


def test_keys_why_is_a_command(kafka_url: str):
    command(kafka_url, "topics", "create", "orders")
    command(kafka_url, "subscriptions", "create", "orders", "billing")
    command(kafka_url, "messages", "publish", "orders", "--key", "alice", "1")
    why = command(kafka_url, "keys", "why", "billing", "alice")
    assert "is ready, but the subscription has no consumer; it needs a consumer" in why
    assert "billing" in command(kafka_url, "store", "stats")


def test_keys_are_found_by_their_state_and_by_a_text(run: Callable[[Scenario], None]):
    async def scenario(pubsub: PubSub) -> None:
        await subscribed(pubsub)
        await publish(pubsub, "1", "2", key="alice")
        await publish(pubsub, "1", key="alina")
        await publish(pubsub, "1", key="bob", delay=600)
        broker = pubsub.broker

        async def keys(**wanted: object) -> list[str | None]:
            return [key.key for key in await broker.list_keys("billing", **wanted)]  # type: ignore[arg-type]

        assert await keys() == ["bob", "alice", "alina"]
        assert await keys(skip=1, limit=1) == ["alice"]
        assert await keys(order="deepest") == ["alice", "alina", "bob"]
        assert await keys(search="ali") == ["alice", "alina"]
        assert await keys(state="ready") == ["alice", "alina"]
        assert await keys(state="delayed", search="ali") == []
        assert await keys(blocked_only=True) == ["bob"]
        stats = (await broker.metrics()).stats["billing"]
        assert (stats.total, stats.ready, stats.delayed, stats.keys, stats.blocked_keys) == (4, 3, 1, 3, 1)

    run(scenario)


def fetch_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages come when what operators asked for has been read."""
    begin, fetched, held = Group._begin, Group.fetched, list[tuple[Any, ...]]()
    has_begun = False

    async def begin_and_release(group: Group, partition: Partition) -> None:
        nonlocal has_begun
        await begin(group, partition)
        has_begun = True
        for found in held:
            fetched(group, *found)

    def hold(group: Group, *found: Any) -> None:
        fetched(group, *found) if has_begun else held.append(found)

    monkeypatch.setattr(Group, "_begin", begin_and_release)
    monkeypatch.setattr(Group, "fetched", hold)


@pytest.mark.parametrize("messages_come", ["first", "last"])
def test_a_skip_before_anybody_consumes_is_obeyed_by_the_first_member(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch, messages_come: str
):
    if messages_come == "last":
        fetch_late(monkeypatch)

    async def scenario(pubsub: PubSub) -> None:
        subscription = await subscribed(pubsub)
        first, *_ = await publish(pubsub, "1", "2", "3")
        assert await subscription.skip("alice") == first
        assert await handled(pubsub, 2) == ["2", "3"]

    run(scenario)


def test_a_message_that_is_removed_is_not_delivered(run: Callable[[Scenario], None]):
    async def scenario(pubsub: PubSub) -> None:
        subscription = await subscribed(pubsub)
        _, second, _ = await publish(pubsub, "1", "2", "3")
        await subscription.remove(second)
        assert await handled(pubsub, 2) == ["1", "3"]

    run(scenario)


def test_what_is_in_flight_is_skipped_and_its_ack_refused(run: Callable[[Scenario], None]):
    async def scenario(pubsub: PubSub) -> None:
        subscription = await subscribed(pubsub)
        await publish(pubsub, "1")
        message = await first_of(subscription)
        await subscription.skip("alice")
        async with asyncio.timeout(PATIENCE_S):
            await subscription.wait_until_empty()
        with pytest.raises(StaleLease):
            await message.ack_durable()

    run(scenario)


def test_a_key_is_dead_lettered_and_its_letters_are_found_by_their_error(run: Callable[[Scenario], None]):
    async def scenario(pubsub: PubSub) -> None:
        subscription = await subscribed(pubsub)
        await publish(pubsub, "1", "2", key="alice")
        await publish(pubsub, "1", key="bob")
        await subscription.dead_letter("alice", "order 17 is unknown")
        await subscription.dead_letter("bob", "out of paper")
        assert await handled(pubsub, 1) == ["2"]
        broker = pubsub.broker
        groups = await broker.group_dead_letters("billing")
        assert [(group.error, group.letters, group.keys) for group in groups] == [
            ("order # is unknown", 1, 1),
            ("out of paper", 1, 1),
        ]
        (letter,) = await broker.dead_letters("billing", error="order # is unknown")
        assert (letter.ordering_key, letter.error) == ("alice", "order 17 is unknown")

    run(scenario)


def test_wrong_arguments_of_operators_are_named_and_do_no_harm(run: Callable[[Scenario], None]):
    async def scenario(pubsub: PubSub) -> None:
        await subscribed(pubsub)
        broker = pubsub.broker
        wrong: list[Callable[[], Awaitable[Any]]] = [
            lambda: broker.peek("billing", "alice", -1),
            lambda: broker.peek("billing", 7),  # type: ignore[arg-type]
            lambda: broker.explain("billing", "\ud800"),
            lambda: broker.pause_key("billing", 7),  # type: ignore[arg-type]
            lambda: broker.dead_letters("billing", limit="3"),  # type: ignore[arg-type]
            lambda: broker.remove("billing", "999999999999-0"),
        ]
        for call in wrong:
            with pytest.raises(InvalidArgument):
                await call()
        await publish(pubsub, "1")
        assert await broker.peek("billing", "alice", 0) == []
        assert await handled(pubsub, 1) == ["1"]

    run(scenario)
