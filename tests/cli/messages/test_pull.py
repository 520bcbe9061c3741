"""Pulling: a look that changes nothing, or work that is done."""

from __future__ import annotations

import asyncio

import pytest

from seriatim.cli.messages.pull import take
from seriatim.client.consumer import ConsumeOptions, MessageStream
from seriatim.engine.connect import open_broker
from seriatim.engine.engine import Engine
from seriatim.errors import StoreFull, StoreLost


@pytest.fixture
def queued(told, orders) -> None:
    for key, data in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        told("messages", "publish", "orders", data, "--key", key)


def test_a_look_shows_the_head_of_each_key_and_changes_nothing(told, queued):
    for _ in range(2):
        assert [(row["data"], row["attempt"]) for row in told("messages", "pull", "billing", "--wait", "0.2")] == [
            ("a1", 1),
            ("b1", 1),
        ]
    assert told("store", "stats", "billing")[0]["total"] == 3


def test_with_ack_messages_are_worked_off_in_order(told, queued):
    pulled = [row["data"] for row in told("messages", "pull", "billing", "--ack", "--wait", "0.2")]
    assert sorted(pulled) == ["a1", "a2", "b1"]
    assert pulled.index("a1") < pulled.index("a2")
    assert told("store", "stats", "billing")[0]["total"] == 0


def test_it_stops_after_so_many(told, queued):
    assert told("messages", "pull", "billing", "--ack", "--limit", "1", "--wait", "1m")["data"] == "a1"
    assert told("store", "stats", "billing")[0]["total"] == 2


def test_a_message_has_stable_fields(told, queued):
    (first, _) = told("messages", "pull", "billing", "--wait", "0.2")
    published = first.pop("published")
    assert published.endswith("Z")
    assert first == {"id": "0", "key": "a", "data": "a1", "encoding": "text", "attributes": {}, "attempt": 1}


def test_people_see_id_key_and_data_on_one_line_that_can_not_disturb_a_terminal(seriatim, told, orders):
    told("messages", "publish", "orders", stdin="two\nlines\x1b[2J")
    assert seriatim("messages", "pull", "billing", "--wait", "0.2").stdout == "0  -  'two\\nlines\\x1b[2J'\n"
    told("messages", "pull", "billing", "--ack", "--wait", "0.2")
    told("messages", "publish", "orders", "--key", "k", stdin=b"\xff")
    assert seriatim("messages", "pull", "billing", "--wait", "0.2").stdout == "1  k  base64:/w==\n"


def test_a_subscription_without_messages_says_so(seriatim, orders):
    result = seriatim("messages", "pull", "billing", "--wait", "0")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no messages in subscription 'billing' within 0s\n"
    assert seriatim("messages", "pull", "billing", "--wait", "0", "--json").output == ""


def test_a_pull_that_gets_nothing_says_what_keeps_messages_back(seriatim, told, orders):
    told("messages", "publish", "orders", "a1", "--key", "a", "--delay", "1h")
    result = seriatim("messages", "pull", "billing", "--wait", "0")
    assert result.stderr.endswith("within 0s, but 1 message is there: see 'seriatim keys list billing'\n")
    told("subscriptions", "pause", "billing")
    result = seriatim("messages", "pull", "billing", "--wait", "0")
    assert result.stderr.endswith("within 0s: it is paused, see 'seriatim subscriptions resume billing'\n")


def test_who_follows_hears_that_the_store_is_lost_and_not_of_what_passes():
    async def scenario() -> None:
        broker = await open_broker("memory://")
        assert isinstance(broker, Engine)
        await broker.create_topic("orders")
        await broker.create_subscription("orders", "billing")
        stream = MessageStream(broker, "billing", ConsumeOptions())
        following = asyncio.create_task(take(stream, 1, None))
        await asyncio.sleep(0)
        broker.recovery.failed(StoreFull("there is no room"))
        await asyncio.sleep(0)
        assert not following.done()
        broker.recovery.failed(StoreLost("another process has taken it over"))
        with pytest.raises(StoreLost, match="taken it over"):
            await following
        stream.close()
        await broker.close()

    asyncio.run(scenario())
