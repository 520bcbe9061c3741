"""Our own client, ``PubSub("pubsub://…")``: the same program embedded, and against a server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from seriatim import Batching, PublishOptions, PubSub, PubSubMessage
from seriatim.client import channel
from seriatim.client.channel import Address, Channel
from seriatim.client.message import Message
from seriatim.core.lanes.types import Keep, RetryPolicy
from seriatim.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    PublishingPaused,
    StaleLease,
    Unauthenticated,
)
from seriatim.server.options import ServerOptions
from seriatim.server.server import Tls
from tests.certificates import new_certificate
from tests.server.served import PATIENCE, SUBSCRIPTION, ServerProcess, server_in_thread
from tests.server.test_access import tokens_in

Program = Callable[[PubSub], Coroutine[Any, Any, None]]


@pytest.fixture(params=["embedded", "served"])
def run(request) -> Callable[[Program], None]:
    """Run a program on a store of its own, and against a server."""

    async def within(url: str, program: Program) -> None:
        async with asyncio.timeout(PATIENCE), PubSub(url) as pubsub:
            await program(pubsub)

    def run(program: Program) -> None:
        if request.param == "embedded":
            asyncio.run(within("memory://", program))
        else:
            with server_in_thread(options=ServerOptions(min_ack_deadline=1)) as server:
                asyncio.run(within(f"pubsub://{server.clients.address}/demo", program))

    return run


async def ordered(pubsub: PubSub, **options: Any):
    topic = await pubsub.topic("orders").create()
    return topic, await topic.subscription("work").create(enable_message_ordering=True, **options)


def test_the_same_id_is_stored_once_and_is_no_attribute_of_what_is_delivered(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        first = await topic.publish(b"paid", ordering_key="k", dedup_id="a", attributes={"b": "c"})
        assert await topic.publish(b"paid", ordering_key="k", dedup_id="a") == first
        with pytest.raises(AlreadyExists, match="dedup_id 'a' belongs to another message"):
            await topic.publish(b"unpaid", ordering_key="other", dedup_id="a")
        await topic.publish(b"next", ordering_key="k")
        got = []
        async for message in subscription.messages():
            got.append((message.data, dict(message.attributes)))
            await message.ack_durable()
            if len(got) == 2:
                break
        assert got == [(b"paid", {"b": "c"}), (b"next", {})]

    run(program)


def test_messages_come_in_order_with_everything_that_was_said(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        assert await topic.publish(b"first", ordering_key="k", attributes={"a": "b"}) == "0"
        for data in (b"second", b"third"):
            topic.publish(data, ordering_key="k")
        seen = []
        async for message in subscription:
            seen.append((message.id, message.data, message.ordering_key, dict(message.attributes)))
            message.ack()
            if len(seen) == 3:
                break
        assert seen[0] == ("0", b"first", "k", {"a": "b"})
        assert [data for _, data, *_ in seen] == [b"first", b"second", b"third"]

    run(program)


def test_a_nacked_message_comes_again_first_and_handlers_are_called_one_by_one(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        seen, running, done = list[bytes](), 0, asyncio.Event()

        async def handle(message: Message) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1
            seen.append(message.data)
            message.nack() if seen == [b"0", b"1"] else message.ack()
            if len(seen) == 5:
                done.set()

        subscription.on("message", handle)
        subscription.open()
        for number in range(4):
            topic.publish(b"%d" % number, ordering_key="k")
        await done.wait()
        await subscription.close()
        assert seen == [b"0", b"1", b"1", b"2", b"3"]

    run(program)


def test_what_was_acked_before_closing_does_not_come_again(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        for number in range(3):
            await topic.publish(b"%d" % number, ordering_key="k")
        for expected in (b"0", b"1", b"2"):
            stream = subscription.messages()
            message = await anext(stream)
            assert message.data == expected
            message.ack()
            stream.close()

    run(program)


def test_an_ack_that_is_waited_for(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        await topic.publish(b"0", ordering_key="k")
        stream = subscription.messages()
        await (await anext(stream)).ack_durable()
        stream.close()

    run(program)


def test_what_comes_while_handlers_are_waited_for_is_given_back_untried(run):
    async def program(pubsub):
        await pubsub.topic("graves").create()
        options = {"dead_letter_topic": "graves", "retry": RetryPolicy.immediate(max_attempts=5)}
        topic, subscription = await ordered(pubsub, **options)
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await go_on.wait()
            message.ack()

        subscription.on("message", handle)
        subscription.open()
        await topic.publish(b"1", ordering_key="k")
        await begun.wait()
        closing = asyncio.create_task(subscription.close())
        await asyncio.sleep(0)
        await topic.publish(b"2", ordering_key="other")
        await asyncio.sleep(0.2)  # the server may send it, and would send it again at once when it were nacked
        go_on.set()
        await closing
        message = await anext(subscription.messages())
        assert (message.data, message.delivery_attempt) == (b"2", 1)
        message.ack()

    run(program)


def test_an_ack_that_is_waited_for_and_comes_too_late_is_refused(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub, ack_deadline=1.0)
        await topic.publish(b"1", ordering_key="k")
        stream = subscription.messages(max_extension=0)
        message = await anext(stream)
        again = await anext(stream)
        with pytest.raises(StaleLease):
            await message.ack_durable()
        await again.ack_durable()
        stream.close()

    run(program)


def test_a_durable_ack_that_can_not_be_sent_before_the_end_has_an_unknown_outcome(monkeypatch):
    monkeypatch.setattr("seriatim.client.server_stream.CLOSE_TIMEOUT_S", 0.1)

    server = ServerProcess("memory://")

    async def program() -> None:
        async with asyncio.timeout(PATIENCE), PubSub(f"pubsub://127.0.0.1:{server.port}/demo") as pubsub:
            topic, subscription = await ordered(pubsub)
            await topic.publish(b"1", ordering_key="k")
            message = await anext(subscription.messages())
            server.process.send_signal(signal.SIGSTOP)
            ack = asyncio.create_task(message.ack_durable())
            await asyncio.sleep(0)
        with pytest.raises(OutcomeUnknown, match="may come again"):
            await ack

    try:
        asyncio.run(program())
    finally:
        server.kill()


def test_a_stream_without_permission_raises_instead_of_waiting_for_ever(tmp_path):
    async def read(address: str) -> None:
        async with asyncio.timeout(PATIENCE), PubSub(f"pubsub://{address}/demo?token=wrong") as pubsub:
            await anext(pubsub.subscription("work").messages())

    with server_in_thread(access=tokens_in(tmp_path)) as server, pytest.raises(Unauthenticated):
        asyncio.run(read(server.clients.address))


def test_resources_and_their_errors(run):
    async def program(pubsub):
        retry = RetryPolicy(min_backoff=10, max_backoff=20, max_attempts=5)
        await pubsub.topic("graves").create()
        _, subscription = await ordered(
            pubsub, retry=retry, dead_letter_topic="graves", window=4, filter="attributes:a"
        )
        options = await subscription.options()
        assert (options.retry, options.dead_letter_topic, options.window) == (retry, "graves", 4)
        await asyncio.gather(
            subscription.set_options(ack_deadline=33),
            subscription.set_options(retry=RetryPolicy(min_backoff=11, max_backoff=22, max_attempts=6)),
            subscription.set_options(window=5),
        )
        options = await subscription.options()
        assert (options.ack_deadline, options.window, options.dead_letter_topic) == (33, 5, "graves")
        assert options.retry == RetryPolicy(min_backoff=11, max_backoff=22, max_attempts=6)
        await subscription.set_options(keep="latest")
        await subscription.set_options(window=6)
        options = await subscription.options()
        assert (options.keep, options.window) == (Keep.LATEST, 6)
        await subscription.set_options(keep="all")
        options = await subscription.options()
        assert (options.keep, options.window) == (Keep.ALL, 6)
        await subscription.set_options(dead_letter_topic=None)
        assert (await subscription.options()).dead_letter_topic is None
        assert sorted(info.name for info in await pubsub.topics()) == ["graves", "orders"]
        assert [(info.name, info.topic) for info in await pubsub.subscriptions()] == [("work", "orders")]
        with pytest.raises(AlreadyExists):
            await pubsub.topic("orders").create()
        with pytest.raises(NotFound):
            await pubsub.topic("nowhere").delete()
        with pytest.raises(InvalidArgument):
            await pubsub.topic("orders").subscription("bad").create(filter="nonsense")

    run(program)


def test_a_subscription_that_keeps_the_latest(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub, keep="latest")
        for number in range(4):
            await topic.publish(str(number).encode(), ordering_key="k")
        (message,) = await subscription.pull(10, timeout=5)
        assert message.data == b"3"
        await message.ack_durable()
        assert await subscription.pull(10, timeout=0) == []

    run(program)


def test_time_travel(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        snapshot = await subscription.snapshot("then")
        assert (snapshot.name, snapshot.topic) == ("then", "orders")
        await topic.publish(b"0", ordering_key="k")
        for _ in range(2):
            stream = subscription.messages()
            await (await anext(stream)).ack_durable()
            stream.close()
            await subscription.seek(snapshot="then")
        assert [info.name for info in await pubsub.snapshots()] == ["then"]
        await pubsub.delete_snapshot("then")

    run(program)


def test_a_subscription_that_is_not_there_is_reported(run):
    async def program(pubsub):
        with pytest.raises(NotFound):
            async for _ in pubsub.subscription("nothing"):
                pass

    run(program)


def test_what_the_api_has_no_words_for():
    async def program(address: str) -> None:
        async with PubSub(f"pubsub://{address}/demo") as pubsub:
            topic, subscription = await ordered(pubsub)
            with pytest.raises(NotSupported, match="the Pub/Sub API can't list keys: give the server an admin API"):
                await subscription.keys()
            with pytest.raises(NotSupported, match="the Pub/Sub API can't explain what a key waits for: give"):
                await subscription.explain("k")
            with pytest.raises(NotSupported, match="the Pub/Sub API can't list superseded messages: give"):
                await subscription.superseded()
            with pytest.raises(NotSupported, match="no options for dedup ids"):
                await pubsub.topic("ids").create(dedup_window=600)
            with pytest.raises(NotSupported, match="delay messages"):
                await topic.publish(b"later", delay=1.0)
            with pytest.raises(NotSupported, match="no option tenant_limit"):
                await topic.subscription("shared").create(tenant_limit=3)
            with pytest.raises(NotSupported, match="no option release"):
                await topic.subscription("fast").create(release="receipt")
            await topic.publish(b"0", ordering_key="k")
            (message,) = await subscription.pull(timeout=5)
            with pytest.raises(NotSupported, match="the Pub/Sub API can't dead-letter message"):
                message.dead_letter("no use")
            message.ack()
            with pytest.raises(InvalidArgument, match="can't be updated"):
                await subscription.set_options(message_ordering=False)

    with server_in_thread() as server:
        asyncio.run(program(server.clients.address))


def test_a_message_that_the_api_cannot_take_fails_alone():
    async def program(address: str) -> None:
        async with PubSub(f"pubsub://{address}/demo") as pubsub:
            topic, subscription = await ordered(pubsub)
            topic.set_publish_options(PublishOptions(Batching(max_milliseconds=1000)))
            given = [("a", 0.0), ("a", 0.0), ("a", 5.0), ("a", 0.0), (None, 0.0), (None, 5.0), (None, 0.0), ("b", 0.0)]
            futures = [
                topic.publish(b"%d" % number, ordering_key=key, delay=delay)
                for number, (key, delay) in enumerate(given)
            ]
            published = await asyncio.gather(*futures, return_exceptions=True)
            kinds = [type(one) for one in published]
            assert kinds == [str, str, NotSupported, PublishingPaused, str, NotSupported, str, str]
            assert topic.paused_keys() == ("a",)
            handled = list[bytes]()
            while len(handled) < 5:
                for message in await subscription.pull(10, timeout=5):
                    handled.append(message.data)
                    message.ack()
            assert sorted(handled) == [b"0", b"1", b"4", b"6", b"7"]

    with server_in_thread() as server:
        asyncio.run(program(server.clients.address))


@pytest.mark.parametrize("parameters", ["", "?tls=true", "?ca={folder}/other.pem"])
def test_an_address_with_the_wrong_tls_says_that_no_server_answers_there(tmp_path, monkeypatch, parameters):
    (tmp_path / "other.pem").write_bytes(new_certificate()[0])
    monkeypatch.setattr(channel, "CALL_TIMEOUT_S", 1.0)

    async def publish(address: str) -> None:
        async with PubSub(f"pubsub://{address}/demo{parameters.format(folder=tmp_path)}") as pubsub:
            with pytest.raises(
                OutcomeUnknown, match=rf"no server answers at {address} \(.+\): .* also tls and ca; the call"
            ):
                await pubsub.topic("orders").create()

    with server_in_thread(tls=Tls(*new_certificate())) as server:
        asyncio.run(publish(server.clients.address))


def test_a_certificate_that_is_not_there_is_named():
    async def scenario() -> None:
        with pytest.raises(
            InvalidArgument, match=r"ca of a pubsub address, 'nowhere.pem', can't be read: No such file"
        ):
            async with PubSub("pubsub://127.0.0.1:1/demo?ca=nowhere.pem"):
                pass

    asyncio.run(scenario())


def test_tls_and_a_token(tmp_path):
    tls = Tls(*new_certificate())
    (tmp_path / "ca.pem").write_bytes(tls.certificate)

    async def create(address: str, token: str) -> None:
        async with PubSub(f"pubsub://{address}/demo?ca={tmp_path}/ca.pem&token={token}") as pubsub:
            await pubsub.topic("orders").create()

    with server_in_thread(access=tokens_in(tmp_path), tls=tls) as server:
        asyncio.run(create(server.clients.address, "root"))
        with pytest.raises(Unauthenticated):
            asyncio.run(create(server.clients.address, "wrong"))


def test_a_consumer_goes_on_when_the_server_is_killed_and_started_again(tmp_path):
    url, seen = f"sqlite:///{tmp_path}/store.db", list[bytes]()

    async def program() -> None:
        server = servers[0]
        async with PubSub(f"pubsub://127.0.0.1:{server.port}/demo") as pubsub:
            topic, subscription = await ordered(pubsub)
            for number in range(10):
                topic.publish(b"%d" % number, ordering_key="k")
            await topic.flush()
            async for message in subscription:
                seen.append(message.data)
                if len(seen) == 5:
                    server.kill()
                    servers.append(await asyncio.to_thread(ServerProcess, url, server.port))
                else:
                    message.ack()
                if message.data == b"9":
                    break

    servers = [ServerProcess(url)]
    try:
        asyncio.run(asyncio.wait_for(program(), 2 * PATIENCE))
    finally:
        servers[-1].kill()
    numbers = [int(data) for data in seen]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(10))


@pytest.mark.parametrize(
    "url",
    [
        "pubsub://",
        "pubsub://host",
        "pubsub://host/a/b",
        "pubsub:///project",
        "pubsub://host:x/p",
        "pubsub://me:secret@host/p",
        "pubsub://host/p?x=1",
        "pubsub://host/p?tls",
        "pubsub://host/p?tls=",
        "pubsub://host/p?tls=yes",
        "pubsub://host/p?tls=True",
        "pubsub://host/p?tls=1&tls=0",
        "pubsub://host/p?tls=0&ca=ca.pem",
        "pubsub://host/p?token=",
        "pubsub://host/p?token=secret%0A",
        "pubsub://host/p#secret",
    ],
)
def test_addresses_that_are_refused_without_showing_a_secret(url):
    with pytest.raises(InvalidArgument) as refused:
        Address.parse(url)
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("query", "token", "is_secure"),
    [
        ("", None, False),
        ("?tls=true", None, True),
        ("?tls=1", None, True),
        ("?tls=false", None, False),
        ("?tls=0", None, False),
        ("?ca=ca.pem", None, True),
        ("?token=a+b%2Bc%26d=", "a+b+c&d=", False),
    ],
)
def test_what_the_parameters_of_an_address_mean(query, token, is_secure):
    address = Address.parse(f"pubsub://[::1]:8085/shop{query}")
    assert (address.target, address.project) == ("[::1]:8085", "shop")
    assert (address.token, address.is_secure) == (token, is_secure)
    assert token is None or token not in repr(address)


def test_a_client_that_is_refused_tries_again_less_and_less_often_until_it_is_served(monkeypatch):
    monkeypatch.setattr("seriatim.client.server_stream.MIN_PAUSE_S", 0.02)
    tries, enough = list[float](), asyncio.Event()
    open_stream = Channel.stream

    def stream(channel: Channel) -> Any:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 6:
            enough.set()
        return open_stream(channel)

    monkeypatch.setattr(Channel, "stream", stream)

    async def program(address: str, make_room: Callable[[], None]) -> None:
        async with asyncio.timeout(PATIENCE), PubSub(f"pubsub://{address}/demo") as pubsub:
            topic, subscription = await ordered(pubsub)
            await topic.publish(b"0", ordering_key="k")
            messages = subscription.messages()
            await enough.wait()
            assert tries[5] - tries[4] >= 0.3, "0.02 doubled four times"
            make_room()
            assert (await anext(messages)).data == b"0"
            messages.close()

    with server_in_thread(options=ServerOptions(max_streams_per_client=1)) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name="projects/demo/topics/first")
        raw.CreateSubscription(name=SUBSCRIPTION + "-first", topic="projects/demo/topics/first")
        occupying = raw.stream(subscription=SUBSCRIPTION + "-first")
        occupying.send()
        occupying.receive()
        asyncio.run(program(server.clients.address, occupying.hang_up))


def test_many_messages_are_published_at_once_and_written_in_lists_across_keys(run):
    async def program(pubsub):
        topic, subscription = await ordered(pubsub)
        sent = [PubSubMessage(str(number).encode(), f"k{number % 4}") for number in range(20)]
        assert len(set(await topic.publish_many(sent))) == 20
        got: dict[str, list[int]] = {}
        errors = list[BaseException]()
        subscription.on("error", errors.append)

        async def write(messages: list[Message]) -> None:
            assert len({message.ordering_key for message in messages}) == len(messages)
            if len(messages) > 1 and not errors:
                raise ValueError("not this time")
            for message in messages:
                got.setdefault(str(message.ordering_key), []).append(int(message.data))
                message.ack()
            if sum(map(len, got.values())) == 20:
                subscription.stop()

        await subscription.run(write, batch=10, across_keys=True)
        assert got == {f"k{key}": list(range(key, 20, 4)) for key in range(4)}

    run(program)


def test_batches_of_one_key_are_refused_by_a_server_with_the_reason():
    async def program(url: str) -> None:
        async with PubSub(url) as pubsub:
            _, subscription = await ordered(pubsub)
            with pytest.raises(NotSupported, match="one lease per message"):
                await subscription.run(print, batch=10)

    with server_in_thread(options=ServerOptions(min_ack_deadline=1)) as server:
        asyncio.run(program(f"pubsub://{server.clients.address}/demo"))


def test_with_ids_all_publishes_under_way_when_the_server_is_killed_are_there_once(tmp_path) -> None:
    servers = [ServerProcess(f"sqlite:///{tmp_path}/store.db")]

    async def program() -> None:
        port = servers[0].port
        async with asyncio.timeout(PATIENCE), PubSub(f"pubsub://127.0.0.1:{port}/demo") as pubsub:
            topic, subscription = await ordered(pubsub)
            futures = [topic.publish(b"%d" % n, ordering_key=f"key-{n % 20}", dedup_id=str(n)) for n in range(2000)]
            await futures[0]
            servers[0].kill()
            servers.append(ServerProcess(f"sqlite:///{tmp_path}/store.db", port))
            ids = await asyncio.gather(*futures)
            for key in range(20):  # each key ends with this, and with nothing behind it
                topic.publish(b"-1", ordering_key=f"key-{key}")
            got: dict[str | None, list[int]] = {}
            async for message in subscription:
                got.setdefault(message.ordering_key, []).append(int(message.data))
                assert message.data == b"-1" or message.id == ids[int(message.data)]
                await message.ack_durable()
                if [numbers[-1] for numbers in got.values()] == [-1] * 20:
                    break
            assert got == {f"key-{first}": [*range(first, 2000, 20), -1] for first in range(20)}

    try:
        asyncio.run(program())
    finally:
        for server in servers:
            server.kill()
