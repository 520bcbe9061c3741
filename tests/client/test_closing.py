"""Closing: what runs is waited for, nothing more starts, nobody waits for ever, and the store is always given back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from seriatim import Batching, PublishOptions, PubSub
from seriatim.errors import FailedPrecondition, NotFound, StoreFailed
from seriatim.store import open_store
from tests.client.conftest import Received, ordered, publish

WAIT = 10


def run_bounded(scenario) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await scenario()

    asyncio.run(bounded())


def is_free(url: str) -> bool:
    """Whether nobody owns the store."""
    open_store(url).close()
    return True


class Gate:
    """An async handler that begins, waits until it may go on, and acks."""

    def __init__(self) -> None:
        self.begun = Received()
        self.ended: list[str] = []
        self.open = asyncio.Event()

    async def __call__(self, message) -> None:
        self.begun.add(message)
        await self.open.wait()
        message.ack()
        self.ended.append(message.data.decode())


def handled_by(subscription, gate: Gate) -> None:
    async def handle(message) -> None:
        await gate(message)

    subscription.on("message", handle)
    subscription.open()


# -- handlers that run --------------------------------------------------------------------------------------------------


def test_closing_waits_for_handlers_that_run_accepts_their_acks_and_starts_no_more(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        gate = Gate()
        handled_by(subscription, gate)
        await publish(topic, "1", "2", "3")
        await gate.begun.wait(1)
        closing = asyncio.create_task(subscription.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.open.set()
        await closing
        assert gate.ended == gate.begun.data == ["1"]
        assert (await subscription.stats()).total == 2

    run(scenario)


def test_after_a_restart_with_a_backlog_nothing_runs_when_close_has_returned(run_with_restarts):
    """The messages come from the store then, while it is being closed."""

    async def fill(pubsub):
        topic, _ = await ordered(pubsub)
        for number in range(512):
            topic.publish(b"%d" % number, ordering_key=f"k{number}")
        await topic.flush()

    async def close_at_once(pubsub):
        subscription = pubsub.subscription("ordered-sub")
        running: list[str] = []
        ended: list[str] = []
        begun = asyncio.Event()

        async def handle(message) -> None:
            begun.set()
            running.append(message.id)
            await asyncio.sleep(0.05)
            message.ack()
            running.remove(message.id)
            ended.append(message.id)

        subscription.on("message", handle)
        subscription.open()
        await begun.wait()
        await subscription.close()
        assert running == []
        await asyncio.sleep(0.1)
        assert running == []
        assert (await subscription.stats()).total == 512 - len(ended)

    run_with_restarts(fill, close_at_once)


def test_blocking_handlers_that_wait_for_a_thread_are_given_back_when_it_closes():
    begun, running = [], threading.Event()
    go_on = threading.Event()

    def handler(message) -> None:
        begun.append(message.data)
        running.set()
        assert go_on.wait(WAIT)
        message.ack()

    with PubSub.blocking(workers=1) as pubsub:
        topic = pubsub.topic("t")
        topic.create()
        subscription = topic.subscription("s")
        subscription.create(enable_message_ordering=True)
        for number in range(20):
            topic.publish(b"%d" % number, ordering_key=f"k{number}")
        topic.flush()
        subscription.on("message", handler)
        subscription.open()
        assert running.wait(WAIT)
        threading.Timer(0.05, go_on.set).start()
        subscription.close()
        assert begun == [b"0"]
        assert subscription.stats().total == 19


# -- closing inside a handler -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_a_task", [False, True])
@pytest.mark.parametrize("what", ["subscription", "pubsub"])
def test_a_handler_may_close_its_subscription_or_the_pubsub_and_its_ack_is_accepted(tmp_path, what, in_a_task):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        acked = asyncio.Event()
        async with PubSub(url) as pubsub:
            topic, subscription = await ordered(pubsub)

            async def handle(message) -> None:
                close = (subscription if what == "subscription" else pubsub).close
                await (asyncio.create_task(close()) if in_a_task else close())
                message.ack()
                acked.set()

            subscription.on("message", handle)
            subscription.open()
            await publish(topic, "1", "2")
            await acked.wait()
        async with PubSub(url) as pubsub:
            assert (await pubsub.subscription("ordered-sub").stats()).total == 1
        assert is_free(url)

    run_bounded(scenario)


def test_handlers_that_close_each_others_subscription_all_end(run):
    async def scenario(pubsub):
        topic, first = await ordered(pubsub)
        second = await topic.subscription("second").create()
        both, ended = asyncio.Barrier(2), asyncio.Semaphore(0)

        def closing(*others):
            async def handle(message) -> None:
                await both.wait()
                for other in others:
                    await other.close()
                message.ack()
                ended.release()

            return handle

        first.on("message", closing(second, first))
        second.on("message", closing(first, second))
        first.open()
        second.open()
        await publish(topic, "1")
        await ended.acquire()
        await ended.acquire()
        await asyncio.gather(first.close(), second.close())
        assert (await first.stats()).total == (await second.stats()).total == 0

    run(scenario)


def test_a_handler_that_closes_its_subscription_waits_for_the_others(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        both = asyncio.Barrier(2)
        ends: list[bytes] = []

        async def handle(message) -> None:
            await both.wait()
            if message.data == b"closes":
                await subscription.close()
            else:
                await asyncio.sleep(0.05)
            message.ack()
            ends.append(message.data)

        subscription.on("message", handle)
        subscription.open()
        await publish(topic, "works", key="a")
        await publish(topic, "closes", key="b")
        await subscription.wait_until_empty()
        assert ends == [b"works", b"closes"]

    run(scenario)


def test_an_error_handler_may_close_its_subscription(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        closed = asyncio.Event()

        def handle(message) -> None:
            raise ValueError("enough")

        async def report(_) -> None:
            await subscription.close()
            closed.set()

        subscription.on("message", handle)
        subscription.on("error", report)
        subscription.open()
        await publish(topic, "1")
        await closed.wait()

    run(scenario)


def test_a_blocking_handler_may_close_its_subscription():
    closed = threading.Event()
    with PubSub.blocking() as pubsub:
        topic = pubsub.topic("t")
        topic.create()
        subscription = topic.subscription("s")
        subscription.create(enable_message_ordering=True)

        def handler(message) -> None:
            subscription.close()
            message.ack()
            closed.set()

        subscription.on("message", handler)
        subscription.open()
        topic.publish(b"1", ordering_key="k")
        topic.publish(b"2", ordering_key="k")
        assert closed.wait(WAIT)
        subscription.close()
        assert subscription.stats().total == 1


# -- closing twice, at once, impatiently --------------------------------------------------------------------------------


def test_closing_again_does_nothing_and_everybody_who_closes_waits_for_the_same_end(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        async with PubSub(url) as pubsub:
            topic, subscription = await ordered(pubsub)
            gate = Gate()
            handled_by(subscription, gate)
            await publish(topic, "1")
            await gate.begun.wait(1)
            closers = [asyncio.create_task(one.close()) for one in (pubsub, subscription, pubsub, subscription)]
            await asyncio.sleep(0.01)
            assert not any(closer.done() for closer in closers)
            gate.open.set()
            await asyncio.gather(*closers)
            assert gate.ended == ["1"]
            await subscription.close()
            await pubsub.close()
            assert is_free(url)
        await pubsub.close()

    run_bounded(scenario)


def test_a_close_that_is_cancelled_goes_on_and_ends_with_the_handlers(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        pubsub = await PubSub(url).__aenter__()
        topic, subscription = await ordered(pubsub)
        gate = Gate()
        handled_by(subscription, gate)
        await publish(topic, "1", "2")
        await gate.begun.wait(1)
        for part in (subscription, pubsub):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await part.close()
        with pytest.raises(FailedPrecondition, match="still run"):
            subscription.open()
        gate.open.set()
        await pubsub.close()
        assert gate.ended == ["1"]
        assert is_free(url)

    run_bounded(scenario)


def test_the_store_is_given_back_when_the_program_ends_while_a_handler_hangs(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        pubsub = await PubSub(url).__aenter__()
        topic, subscription = await ordered(pubsub)
        gate = Gate()
        handled_by(subscription, gate)
        await publish(topic, "1")
        await gate.begun.wait(1)
        asyncio.create_task(pubsub.close())  # noqa: RUF006 - it is left alone on purpose
        await asyncio.sleep(0.01)

    async def look() -> None:
        async with PubSub(url) as pubsub:
            message = await anext(pubsub.subscription("ordered-sub").messages())
            assert (message.data, message.delivery_attempt) == (b"1", 1)  # cancelled is not failed

    run_bounded(scenario)
    assert is_free(url)
    run_bounded(look)


# -- whatever goes wrong ------------------------------------------------------------------------------------------------


def test_everything_is_closed_although_one_subscription_fails_and_then_that_is_raised(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        pubsub = await PubSub(url).__aenter__()
        topic, bad = await ordered(pubsub)
        good = await topic.subscription("good").create()
        gate = Gate()
        handled_by(good, gate)
        handled_by(bad, gate)

        def fail() -> None:
            raise StoreFailed("no way out")

        assert bad._runner is not None
        monkeypatch.setattr(bad._runner._attachment, "detach", fail)
        topic.set_publish_options(PublishOptions(Batching(max_messages=1000, max_milliseconds=60_000)))
        published = topic.publish(b"1", ordering_key="k")
        with pytest.raises(StoreFailed, match="no way out"):
            await pubsub.close()
        assert published.result() == "0"
        assert is_free(url)
        await pubsub.close()

    run_bounded(scenario)


def test_a_handler_that_asks_for_new_subscriptions_while_everything_is_closed_is_in_nobodys_way(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    refused = []

    async def scenario() -> None:
        begun = asyncio.Event()
        async with PubSub(url) as pubsub:
            topic, subscription = await ordered(pubsub)

            async def handle(message) -> None:
                begun.set()
                await asyncio.sleep(0.02)
                new = await topic.subscription("new").create()
                new.on("message", print)
                for take in (new.open, new.messages):
                    try:
                        take()
                    except FailedPrecondition as error:
                        refused.append(str(error))
                await pubsub.topic("results").create()
                await pubsub.topic("results").publish(b"late")
                message.ack()

            subscription.on("message", handle)
            subscription.open()
            await publish(topic, "1")
            await begun.wait()
        async with PubSub(url) as pubsub:
            assert (await pubsub.subscription("ordered-sub").stats()).total == 0
            assert [topic.next_offset for topic in await pubsub.topics() if topic.name == "results"] == [1]

    run_bounded(scenario)
    assert refused == ["this PubSub is being closed: open another one to receive messages"] * 2


# -- open again ---------------------------------------------------------------------------------------------------------


def test_a_pubsub_that_was_closed_can_be_opened_again_in_another_event_loop_too(tmp_path):
    pubsub = PubSub(f"sqlite:///{tmp_path}/store.db")
    topic = pubsub.topic("t")
    subscription = topic.subscription("s")

    async def create() -> None:
        async with pubsub:
            await topic.create()
            await subscription.create()
            topic.set_publish_options(PublishOptions(Batching(max_messages=1)))
            await topic.publish(b"1")

    async def go_on() -> None:
        received = Received()
        async with pubsub:
            await topic.publish(b"2")
            subscription.on("message", received.add_and_ack)
            subscription.open()
            await received.wait(2)
        async with pubsub:
            assert (await subscription.stats()).total == 0

    run_bounded(create)
    run_bounded(go_on)


def test_what_is_open_already_is_not_opened_again(tmp_path):
    async def scenario() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/store.db") as pubsub:
            with pytest.raises(FailedPrecondition, match="already open"):
                await pubsub.__aenter__()

    run_bounded(scenario)


def test_a_blocking_pubsub_that_was_closed_says_what_to_do():
    with PubSub.blocking() as pubsub:
        pubsub.close()
    with pytest.raises(FailedPrecondition, match="make another one"), pubsub:
        pass
    with pytest.raises(FailedPrecondition, match="not open"):
        pubsub.topic("t")


# -- streams ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("close", ["stream", "subscription"])
def test_every_reader_of_a_closed_stream_ends_and_so_does_one_that_asks_later(run, close):
    async def scenario(pubsub):
        _, subscription = await ordered(pubsub)
        stream = subscription.messages()
        readers = [asyncio.create_task(anext(stream, "over")) for _ in range(3)]
        await asyncio.sleep(0)
        if close == "stream":
            stream.close()
        else:
            await subscription.close()
        assert await asyncio.gather(*readers) == ["over"] * 3
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(scenario)


def test_every_reader_hears_that_the_subscription_is_gone_also_later(run):
    async def scenario(pubsub):
        _, subscription = await ordered(pubsub)
        stream = subscription.messages()
        readers = [asyncio.create_task(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        await pubsub.broker.delete_subscription("ordered-sub")
        errors = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(error).__name__ for error in errors] == ["NotFound", "NotFound"]
        with pytest.raises(NotFound):
            await anext(stream)
        stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(scenario)


def test_a_reader_hears_that_its_subscription_is_detached(run):
    async def scenario(pubsub):
        _, subscription = await ordered(pubsub)
        reader = asyncio.create_task(anext(subscription.messages()))
        await asyncio.sleep(0)
        await pubsub.broker.detach_subscription("ordered-sub")
        with pytest.raises(FailedPrecondition, match="detached"):
            await reader

    run(scenario)


def test_a_message_that_a_reader_has_can_be_acked_while_handlers_are_waited_for(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        other = await topic.subscription("other").create()
        gate, stream = Gate(), other.messages()
        handled_by(subscription, gate)
        await publish(topic, "1")
        message = await anext(stream)
        await gate.begun.wait(1)
        closing = asyncio.create_task(pubsub.close())
        assert await anext(stream, "over") == "over"
        message.ack()
        gate.open.set()
        await closing

    run(scenario)


# -- handlers and names -------------------------------------------------------------------------------------------------


def test_a_handler_that_is_registered_while_the_subscription_is_open_gets_messages_from_then_on(run):
    async def scenario(pubsub):
        topic, subscription = await ordered(pubsub)
        first, second = Received(), Received()
        subscription.on("message", first.add_and_ack)
        subscription.open()
        await publish(topic, "1")
        await first.wait(1)
        subscription.on("message", second.add)
        await publish(topic, "2")
        assert await second.wait(1) == ["2"]
        assert first.data == ["1", "2"]

    run(scenario)


def test_a_subscription_is_the_same_with_and_without_its_topic(run):
    async def scenario(pubsub):
        found = pubsub.subscription("s")
        topic = await pubsub.topic("t").create()
        assert topic.subscription("s") is found
        assert pubsub.subscription("s") is found
        received = Received()
        await found.create()
        found.on("message", received.add_and_ack)
        topic.subscription("s").open()
        await publish(topic, "1")
        await received.wait(1)

    run(scenario)


def test_a_subscription_is_created_on_the_topic_that_was_asked_for(run):
    async def scenario(pubsub):
        first, second = await pubsub.topic("first").create(), await pubsub.topic("second").create()
        first.subscription("s")
        await second.subscription("s").create()
        assert [info.topic for info in await pubsub.subscriptions()] == ["second"]

    run(scenario)


def test_a_pubsub_that_is_entered_twice_at_the_same_moment_is_opened_once(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        pubsub = PubSub(url)
        entered = await asyncio.gather(pubsub.__aenter__(), pubsub.__aenter__(), return_exceptions=True)
        assert [type(one) for one in entered] == [PubSub, FailedPrecondition]
        await pubsub.topics()
        await pubsub.close()
        assert is_free(url)

    run_bounded(scenario)
