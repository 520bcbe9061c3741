"""Document 004, the map of strict ordered queues: its four bullets, and the caveats that do not hold here."""

from __future__ import annotations

import asyncio

import pytest

from seriatim import RetryPolicy
from tests.client.conftest import Received, ordered, publish


def test_bullet_1_every_item_may_name_the_group_that_it_belongs_to(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "ringing", "answered", key="call-A")
        await publish(topic, "ringing", key="call-B")
        assert {view.key: view.depth for view in await subscription.keys()} == {"call-A": 2, "call-B": 1}

    run(scenario)


@pytest.mark.parametrize("gone", ["committed", "moved to the dead letters", "removed"])
def test_bullet_2_an_item_is_not_served_until_those_before_it_are_gone(run, gone):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "caller-pushed-#7", "call-ended", key="call-A")
        received = Received()
        subscription.on("message", received.add)
        subscription.open()
        await received.wait(1)
        await publish(topic, "ringing", key="call-B")
        assert await received.wait(2) == ["caller-pushed-#7", "ringing"], "the other call goes on"
        if gone == "committed":
            received.messages[0].ack()
        elif gone == "moved to the dead letters":
            await subscription.dead_letter("call-A")
        else:
            await subscription.skip("call-A")
        assert await received.wait(3) == ["caller-pushed-#7", "ringing", "call-ended"]

    run(scenario)


def test_bullet_3_an_item_that_is_rolled_back_blocks_those_of_its_group_that_were_pushed_after_it(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub, retry=RetryPolicy(min_backoff=300, max_backoff=600))
        received = Received()

        def roll_back(message):
            received.add(message)
            message.nack(error="not now")

        subscription.on("message", roll_back)
        subscription.open()
        first, _ = await publish(topic, "1", "2", key="call-A")
        await received.wait(1)
        await publish(topic, "3", key="call-A")
        await publish(topic, "ringing", key="call-B")
        assert await received.wait(2) == ["1", "ringing"]
        (blocked,) = [view for view in await subscription.keys() if view.key == "call-A"]
        assert (blocked.state, blocked.depth, blocked.attempts, blocked.head) == ("delayed", 3, 1, first)
        await subscription.retry("call-A")
        assert await received.wait(3) == ["1", "ringing", "1"], "it comes again, and first"

    run(scenario)


def test_bullet_4_a_delay_on_insertion_is_honoured_and_blocks_its_own_group_only(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        received, loop = Received(), asyncio.get_running_loop()
        subscription.on("message", received.add_and_ack)
        subscription.open()
        await publish(topic, "calling", key="call-B")
        await received.wait(1)  # so it is at work: on Kafka that takes seconds
        began = loop.time()
        await topic.publish(b"later", ordering_key="call-A", delay=1)
        await publish(topic, "behind it", key="call-A")
        await publish(topic, "ringing", key="call-B")
        assert await received.wait(2) == ["calling", "ringing"]
        assert await received.wait(4) == ["calling", "ringing", "later", "behind it"]
        assert loop.time() - began >= 1

    run(scenario)


def test_caveat_that_does_not_hold_items_can_be_removed_by_their_id(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        _, second, _ = await publish(topic, "1", "2", "3", key="call-A")
        await subscription.remove(second)
        assert [message.data for message in await subscription.peek("call-A")] == [b"1", b"3"]

    run(scenario)
