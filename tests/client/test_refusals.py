"""What the API refuses at once, and what it makes fit: a bad value never harms a good one."""

from __future__ import annotations

import asyncio
import os
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from seriatim import Batching, ConsumeOptions, FlowControl, PublishOptions, PubSub, Queue, RetryPolicy
from seriatim.core.lanes.types import OnExhausted, RetryMode
from seriatim.errors import InvalidArgument
from seriatim.testing import run_in_virtual_time
from tests.client.conftest import Received, ordered, publish

NOT_DURATIONS: list[Any] = ["5", nan, inf, -1, True, 1e300]

NOT_TEXT: Any = 5


class Mute(Exception):
    """An error that can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError


# -- publishing ---------------------------------------------------------------------------------------------------------


def test_one_dict_of_attributes_can_be_used_for_many_messages(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(enable_message_ordering=True)
        attributes = {}
        for number in ("1", "2", "3"):
            attributes["n"] = number
            topic.publish(b"", ordering_key="k", attributes=attributes)
        attributes.clear()
        await topic.flush()
        assert [message.attributes for message in await subscription.peek("k")] == [{"n": "1"}, {"n": "2"}, {"n": "3"}]

    run(scenario)


@pytest.mark.parametrize("delay", NOT_DURATIONS)
def test_a_message_with_a_delay_that_is_none_fails_at_once_and_alone(run, delay):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        good = topic.publish(b"1", ordering_key="k")
        with pytest.raises(InvalidArgument, match=r"^delay must be"):
            topic.publish(b"2", ordering_key="k", delay=delay)
        later = topic.publish(b"3", ordering_key="k")
        await topic.flush()
        assert (await good, await later) == ("0", "1")

    run(scenario)


@pytest.mark.parametrize("attributes", [[("a", "b")], {"a": "\ud800"}, {"a": 1}, "a=b"])
def test_a_message_with_attributes_that_are_none_fails_at_once_and_alone(run, attributes):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        good = topic.publish(b"1", ordering_key="k")
        with pytest.raises(InvalidArgument, match=r"^Attribute"):
            topic.publish(b"2", ordering_key="k", attributes=attributes)
        await topic.flush()
        assert await good == "0"

    run(scenario)


@pytest.mark.parametrize(
    "options",
    [{"batching": None}, {"batching": 5}, {"flow_control": {}}, {"message_ordering": "yes"}, {"message_ordering": 1}],
)
def test_every_option_of_publishing_has_its_type(options):
    with pytest.raises(InvalidArgument, match=f"^{next(iter(options))} must be"):
        PublishOptions(**options)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", nan, [inf], {"a": "\ud800"}])
def test_a_value_that_is_no_json_is_refused_and_its_key_goes_on(run, value):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        with pytest.raises(InvalidArgument, match="can't be published as JSON"):
            topic.publish_json(value, ordering_key="k")
        assert await topic.publish_json({"a": [1, None, "é"]}, ordering_key="k") == "0"

    run(scenario)


def test_a_topic_takes_no_other_publish_options(run):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        with pytest.raises(InvalidArgument, match=r"^options must be a PublishOptions"):
            topic.set_publish_options(Batching())
        assert await topic.publish(b"still works") == "0"

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ConsumeOptions, {"max_messages": "5"}),
        (ConsumeOptions, {"max_bytes": "5"}),
        (ConsumeOptions, {"max_bytes": nan}),
        (ConsumeOptions, {"max_extension": "5"}),
        (ConsumeOptions, {"max_extension": nan}),
        (ConsumeOptions, {"max_extension": 10**400}),
        (Batching, {"max_milliseconds": nan}),
        (FlowControl, {"timeout": "5"}),
        (RetryPolicy, {"min_backoff": nan}),
        (RetryPolicy, {"max_backoff": "5"}),
        (RetryPolicy, {"max_attempts": 2.5}),
        (RetryPolicy, {"mode": None}),
    ],
)
def test_every_other_option_has_its_type(kind, options):
    with pytest.raises(InvalidArgument, match=f"^{next(iter(options))} must be"):
        kind(**options)


# -- deliveries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("\ud800"), ValueError("x" * 100_000), Mute()])
def test_a_handler_may_raise_any_error_and_the_store_goes_on(run, error):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        other = await pubsub.topic("other").create()
        received = Received()

        def handler(message):
            received.add(message)
            if message.delivery_attempt == 1:
                raise error
            message.ack()

        subscription.on("message", handler)
        subscription.on("error", lambda _: None)
        subscription.open()
        await publish(topic, "1", "2")
        assert await received.wait(4) == ["1", "1", "2", "2"]
        await subscription.wait_until_empty()
        assert await other.publish(b"to another topic") == "0"
        await subscription.close()

    run(scenario)


def test_an_error_can_be_given_as_an_exception(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1")
        stream = subscription.messages()
        (await anext(stream)).nack(delay=60, error=ValueError("\udce9"))
        assert [key.error for key in await subscription.keys()] == ["ValueError: \\udce9"]
        await publish(topic, "2")
        with pytest.raises(InvalidArgument, match=r"^A reason must be a str or an exception, not int$"):
            await subscription.pause_key("k", NOT_TEXT)

    run(scenario)


@pytest.mark.parametrize("delay", NOT_DURATIONS)
def test_a_nack_with_a_delay_that_is_none_keeps_the_message_and_its_place(run, delay):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1", "2")
        stream = subscription.messages()
        first = await anext(stream)
        with pytest.raises(InvalidArgument, match=r"^delay must be"):
            first.nack(delay=delay)
        with pytest.raises(InvalidArgument, match=r"^seconds must be"):
            first.extend(delay)
        first.ack()
        assert (await anext(stream)).data == b"2"
        assert [key.state for key in await subscription.keys()] == ["leased"]

    run(scenario)


def test_a_deadline_that_is_over_rings_once():
    async def scenario():
        async with PubSub("memory://") as pubsub:
            topic, subscription = await ordered(pubsub)
            received = Received()
            subscription.on("message", received.add)
            subscription.open()
            await publish(topic, "1")
            await received.wait(1)
            received.messages[0].extend(0)
            await received.wait(2)
            await asyncio.sleep(5)
            assert received.data == ["1", "1"]
            assert (await subscription.stats()).leased == 1

    run_in_virtual_time(scenario())


# -- options and names --------------------------------------------------------------------------------------------------


NOT_CHANGES: list[Any] = [
    {"retry": None},
    {"retry": {"max_attempts": 3}},
    {"window": "2"},
    {"message_ordering": None},
    {"ack_deadline": 0},
    {"ack_deadline": nan},
    {"release": None},
    {"dead_letter_topic": 5},
]


def test_options_that_are_none_are_refused_before_anything_is_written(run_with_restarts):
    async def before(pubsub):
        topic, subscription = await ordered(pubsub)
        for change in NOT_CHANGES:
            with pytest.raises(InvalidArgument):
                await subscription.set_options(**change)
        await publish(topic, "1")

    async def after(pubsub):
        subscription = pubsub.subscription("ordered-sub")
        assert (await subscription.options()).message_ordering is True
        assert [message.data for message in await subscription.peek("k")] == [b"1"]

    run_with_restarts(before, after)


@pytest.mark.parametrize("name", [None, "", "\ud800", 5])
def test_names_that_can_not_be_stored_are_refused(run, name):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        for named in (pubsub.topic, topic.subscription):
            with pytest.raises(InvalidArgument, match=r"^(Topic|Subscription) name "):
                await named(name).create()
        assert await topic.publish(b"") == "0"

    run(scenario)


def test_a_queue_refuses_at_once_what_can_never_work(tmp_path):
    with Queue(f"sqlite:///{tmp_path}/queue.db", "q") as queue:
        for delay in NOT_DURATIONS:
            with pytest.raises(InvalidArgument, match=r"^delay must be"):
                queue.push(b"", "k", delay=delay)
        queue.push(b"1", "k")
        queue.push(b"2", "k")
        item = queue.reserve(5)
        item.rollback(error=ValueError("\ud800"))
        with queue.reserve(5) as item:
            assert item.data == b"1"
        assert queue.pop(5).data == b"2"


# -- what an operator asks ----------------------------------------------------------------------------------------------

NOT_LIMITS: list[Any] = [-1, 2**63, 1.5, nan, inf, True, None, "5", b"5"]


@pytest.mark.parametrize("limit", NOT_LIMITS)
def test_a_limit_that_is_no_count_is_refused(run, limit):
    async def scenario(pubsub):
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(enable_message_ordering=True)
        await topic.publish(b"1", ordering_key="k")
        for look in (subscription.keys, subscription.dead_letters, lambda limit: subscription.peek("k", limit)):
            with pytest.raises(InvalidArgument, match="limit must be a whole number"):
                await look(limit=limit)
        assert len(await subscription.peek("k", 1)) == len(await subscription.keys(limit=1)) == 1

    run(scenario)


@pytest.mark.parametrize("key", ["", "\ud800", b"k", ["k"]])
def test_looking_at_a_key_that_can_be_none_is_refused(run, key):
    async def scenario(pubsub):
        subscription = await (await pubsub.topic("t").create()).subscription("s").create(enable_message_ordering=True)
        with pytest.raises(InvalidArgument, match="Ordering key"):
            await subscription.peek(key)

    run(scenario)


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 1025, 5])
def test_seeking_to_a_snapshot_that_can_have_no_such_name_is_refused(run, name):
    async def scenario(pubsub):
        subscription = await (await pubsub.topic("t").create()).subscription("s").create(enable_message_ordering=True)
        with pytest.raises(InvalidArgument, match="Snapshot name"):
            await subscription.seek(snapshot=name)

    run(scenario)


# -- addresses and paths ------------------------------------------------------------------------------------------------

NOT_ADDRESSES: list[Any] = [None, 5, b"memory://", "sqlite:///a\0b", "sqlite:///\ud800.db", "pubsub://127.0.0.1:1/\0"]


@pytest.mark.parametrize("address", NOT_ADDRESSES)
def test_an_address_that_is_none_is_refused_before_anything_is_opened(address):
    with pytest.raises(InvalidArgument, match="The address of a store"):
        PubSub(address)
    with pytest.raises(InvalidArgument, match="The address of a store"):
        Queue(address, "calls")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "http://127.0.0.1:8086",
            "the admin API at an http:// address is for commands: give a program the store, or pubsub://",
        ),
        ("postgress://u:secret@h/d", "no address begins with 'postgress://': .*; did you mean postgres://?"),
        ("redis://h", "no address begins with 'redis://': write sqlite:///FILE, .*memory://$"),
    ],
)
def test_an_address_of_another_kind_is_refused_with_what_there_is(address, said):
    async def connect() -> None:
        async with PubSub(address):
            pass

    with pytest.raises(InvalidArgument, match=said) as refused:
        asyncio.run(connect())
    assert "secret" not in str(refused.value)


def test_a_store_and_its_backup_may_have_names_that_are_not_utf_8(tmp_path):
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    folder.mkdir()

    async def scenario():
        async with PubSub(f"sqlite:///{folder}/store.db") as owner, PubSub(f"sqlite:///{folder}/store.db") as other:
            await other.topic("t").create()
            await owner.backup(folder / "backup.db")

    asyncio.run(scenario())
    assert (folder / "backup.db").exists()


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_backup_to_a_path_that_can_be_none_is_refused(run, path):
    async def scenario(pubsub):
        with pytest.raises(InvalidArgument, match="The path of a backup"):
            await pubsub.backup(path)

    run(scenario)


# -- queues -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["5", nan, True, 10**400, 1e300])
def test_a_queue_refuses_a_timeout_that_is_none_and_reserves_nothing(timeout):
    with Queue("memory://", "calls") as queue:
        queue.push(b"1")
        for wait in (queue.reserve, queue.pop, queue.drain):
            with pytest.raises(InvalidArgument, match="timeout must be a number of seconds"):
                wait(timeout=timeout)
        assert queue.pop(timeout=inf).data == b"1"


@pytest.mark.parametrize("longest", [nan, -1, "5", 10**400])
def test_a_queue_refuses_a_longest_reservation_that_is_none_when_it_is_opened(longest):
    with pytest.raises(InvalidArgument, match="max_reservation"):
        Queue("memory://", "calls", max_reservation=longest)


# -- standing by --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["memory://", "sqlite:///{}/store.db", "pubsub://127.0.0.1:1/project"])
def test_only_a_store_in_postgresql_can_be_stood_by_for(address, tmp_path):
    async def scenario() -> None:
        async with PubSub(address.format(tmp_path), standby=True):
            pass

    with pytest.raises(InvalidArgument, match=r"only a store in PostgreSQL has standbys"):
        asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("on_exhausted", ["dead-letter", "dead-letter-rest", "pause"])
def test_the_choices_of_a_retry_policy_may_be_texts(on_exhausted):
    policy = RetryPolicy(mode="overtake", on_exhausted=on_exhausted)
    assert policy == RetryPolicy(mode=RetryMode.OVERTAKE, on_exhausted=OnExhausted(on_exhausted))
    assert policy.mode is RetryMode.OVERTAKE


@pytest.mark.parametrize("verb", ["retry", "skip", "dead_letter", "pause_key", "resume_key", "peek", "explain"])
@pytest.mark.parametrize("key", [[], {}, 3, "", "x" * 1025], ids=["list", "dict", "number", "empty", "long"])
def test_what_can_not_be_a_key_is_refused_by_every_operation_on_one(run, verb, key):
    async def scenario(pubsub):
        _, subscription = await ordered(pubsub)
        with pytest.raises(InvalidArgument, match="Ordering key"):
            await getattr(subscription, verb)(key)

    run(scenario)
