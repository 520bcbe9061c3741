"""``Subscription.run`` and ``pull``: how programs consume."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seriatim import PubSub, RetryPolicy
from seriatim.errors import InvalidArgument, NotFound, StaleLease
from seriatim.testing import run_in_virtual_time
from tests.client.conftest import Received, ordered, publish


def test_run_calls_its_handler_until_it_is_cancelled(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        received, working, finished = Received(), asyncio.Event(), []

        async def handle(message) -> None:
            received.add(message)
            if message.data == b"slow":
                working.set()
                await asyncio.sleep(0.05)
                finished.append(message.data)
            message.ack()

        running = asyncio.create_task(subscription.run(handle, concurrency=3))
        await publish(topic, "1", "slow")
        await working.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (received.data, finished) == (["1", "slow"], [b"slow"])
        await publish(topic, "later")
        assert (await subscription.stats()).ready == 1

    run(scenario)


def test_at_most_so_many_handlers_run_at_once(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        at_once, most = 0, 0

        async def handle(message) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1

        for number in range(20):
            await publish(topic, str(number), key=str(number))
        running = asyncio.create_task(subscription.run(handle, concurrency=4, ack="on-return"))
        await subscription.wait_until_empty()
        running.cancel()
        await asyncio.wait([running])
        assert most == 4

    run(scenario)


def test_handlers_can_be_registered_by_a_decorator(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        received = Received()

        @subscription.handler
        async def handle(message) -> None:
            received.add_and_ack(message)

        running = asyncio.create_task(subscription.run())
        await publish(topic, "1", "2")
        assert await received.wait(2) == ["1", "2"]
        await pubsub.close()
        await running  # it has ended, without an error
        assert asyncio.iscoroutinefunction(handle)

    run(scenario)


def test_a_handler_that_was_given_to_run_is_forgotten_after_it(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        received = Received()
        for number in range(2):
            running = asyncio.create_task(subscription.run(received.add_and_ack))
            await publish(topic, str(number))
            await received.wait(number + 1)
            await subscription.close()
            await running
        assert received.data == ["0", "1"]

    run(scenario)


def test_run_raises_when_its_subscription_is_deleted(run):
    async def scenario(pubsub: PubSub) -> None:
        _, subscription = await ordered(pubsub)
        running = asyncio.create_task(subscription.run(print))
        await asyncio.sleep(0.01)
        await pubsub.broker.delete_subscription(subscription.name)
        with pytest.raises(NotFound):
            await running
        with pytest.raises(NotFound):
            await subscription.run(print)

    run(scenario)


@pytest.mark.parametrize(
    "option",
    [
        {"concurrency": 0},
        {"concurrency": "3"},
        {"concurrency": 0, "batch": 2},
        {"batch": "5"},
        {"batch": 0},
        {"ack": "later"},
        {"max_extension": -1},
    ],
)
def test_wrong_options_are_refused(run, option):
    async def scenario(pubsub: PubSub) -> None:
        _, subscription = await ordered(pubsub)
        with pytest.raises(InvalidArgument):
            await subscription.run(print, **option)

    run(scenario)


@pytest.mark.parametrize("timeout", [float("nan"), "5s", b"5", [], True])
def test_pull_refuses_what_is_no_timeout(run, timeout):
    async def scenario(pubsub) -> None:
        _, subscription = await ordered(pubsub)
        with pytest.raises(InvalidArgument, match="timeout must be a number of seconds"):
            await subscription.pull(timeout=timeout)

    run(scenario)


def _generator(message):
    yield message


async def _async_generator(message):
    yield message


@pytest.mark.parametrize("handler", [None, "handle", 3, _generator, _async_generator])
def test_what_can_not_handle_messages_is_refused(run, handler):
    """A generator function would be called and never run, and its message acked."""

    async def scenario(pubsub) -> None:
        _, subscription = await ordered(pubsub)
        with pytest.raises(InvalidArgument, match="a handler"):
            subscription.on("message", handler)

    run(scenario)


def test_an_async_function_can_not_be_a_handler_of_the_blocking_api():
    async def handle(message) -> None:
        raise AssertionError

    with PubSub.blocking() as pubsub:
        subscription = pubsub.topic("t").ensure().subscription("s").ensure()
        for register in (lambda: subscription.on("message", handle), lambda: subscription.run(handle, ack="on-return")):
            with pytest.raises(InvalidArgument, match="can't be async: give a plain function"):
                register()


def test_what_a_handler_returns_is_awaited_before_its_message_is_acked(run):
    async def scenario(pubsub) -> None:
        topic, subscription = await ordered(pubsub)
        done = []

        async def work(message) -> None:
            await asyncio.sleep(1)
            done.append(message.data)

        subscription.on("message", lambda message: asyncio.ensure_future(work(message)))
        subscription.open(ack="on-return")
        topic.publish(b"1", ordering_key="k")
        topic.publish(b"2", ordering_key="k")
        await asyncio.sleep(1.5)
        assert done == [b"1"], "the second waits for the first"
        await subscription.wait_until_empty()
        assert done == [b"1", b"2"]

    run(scenario)


@pytest.mark.parametrize("name", [None, 3, [], {}, "", b"t"])
def test_what_can_not_be_a_name_is_refused_at_once(run, name):
    async def scenario(pubsub) -> None:
        for named in (pubsub.topic, pubsub.subscription, pubsub.topic("t").subscription):
            with pytest.raises(InvalidArgument, match="name"):
                named(name)

    run(scenario)


def test_topics_and_subscriptions_show_their_names(run):
    async def scenario(pubsub) -> None:
        assert repr(pubsub.topic("t")) == "Topic('t')"
        assert repr(pubsub.subscription("s")) == "Subscription('s')"

    run(scenario)
    with PubSub.blocking() as blocking:
        assert repr(blocking.topic("t")) == "<blocking Topic('t')>"


PROGRAM = """
import asyncio, sys
from seriatim import PubSub

async def handle(message):
    print("began", flush=True)
    await asyncio.sleep(0.3)
    message.ack()
    print("done", flush=True)

async def main():
    async with PubSub(sys.argv[1]) as pubsub:
        topic = await pubsub.topic("t").ensure()
        subscription = await topic.subscription("s").ensure()
        other = await topic.subscription("other").ensure()
        topic.publish(b"x", ordering_key="k")
        await asyncio.gather(subscription.run(handle), other.run(print, ack="on-return"))
        print("left", (await subscription.stats()).total, flush=True)

asyncio.run(main())
"""

BLOCKING_PROGRAM = """
import sys, time
from seriatim import PubSub

def handle(message):
    print("began", flush=True)
    time.sleep(0.3)
    message.ack()
    print("done", flush=True)

with PubSub.blocking(sys.argv[1]) as pubsub:
    topic = pubsub.topic("t").ensure()
    subscription = topic.subscription("s").ensure()
    topic.publish(b"x", ordering_key="k")
    subscription.run(handle)
    print("left", subscription.stats().total, flush=True)
"""


HANGING_PROGRAM = """
import asyncio
from seriatim import PubSub
from seriatim.client import subscription

subscription.SLOW_STOP_S = 0.1

async def handle(message):
    print("began", flush=True)
    await asyncio.sleep(3600)

async def main():
    async with PubSub() as pubsub:
        topic = await pubsub.topic("t").ensure()
        subscription = await topic.subscription("s").ensure()
        topic.publish(b"x")
        await subscription.run(handle)

asyncio.run(main())
"""


BLOCKING_HANGING_PROGRAM = """
import time
from seriatim import PubSub
from seriatim.client import subscription

subscription.SLOW_STOP_S = 0.1

def handle(message):
    print("began", flush=True)
    time.sleep(3600)

with PubSub.blocking() as pubsub:
    topic = pubsub.topic("t").ensure()
    subscription = topic.subscription("s").ensure()
    topic.publish(b"x")
    subscription.run(handle)
"""


@pytest.mark.parametrize("program", [HANGING_PROGRAM, BLOCKING_HANGING_PROGRAM], ids=["async", "blocking"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_that_hangs_keeps_the_program_until_the_second_signal_and_it_says_so(program, number):
    with _start(program) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        assert process.stderr.readline() == (
            "waiting for running handlers of subscription 's'; a second signal ends the program at once\n"
        )
        process.send_signal(number)
        assert process.wait(20) == -number


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - it may be ignored here
    )


@pytest.mark.parametrize("program", [PROGRAM, BLOCKING_PROGRAM], ids=["async", "blocking"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_cleanly_when_it_is_told_to(tmp_path: Path, program, number):
    for _ in range(2):  # and can be run twice
        process = _start(program, f"sqlite:///{tmp_path}/store.db")
        assert process.stdout is not None
        while process.stdout.readline() != "began\n":
            assert process.poll() is None
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert output.splitlines()[-2:] == ["done", "left 0"]


def test_a_program_with_a_handler_of_its_own_keeps_it():
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))

    async def main() -> None:
        async with PubSub() as pubsub:
            _, subscription = await ordered(pubsub)
            running = asyncio.create_task(subscription.run(print))
            await asyncio.sleep(0.05)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])

    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]


# -- pull --------------------------------------------------------------------------------------------------------------


def test_pull_takes_what_is_ready_one_of_each_key(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await publish(topic, "a1", "a2", key="a")
        await publish(topic, "b1", key="b")
        assert sorted(message.data for message in await subscription.pull(10, timeout=5)) == [b"a1", b"b1"]
        assert await subscription.pull(10, timeout=0) == []

    run(scenario)


def test_what_was_pulled_can_be_settled_and_the_next_follows(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub, retry=RetryPolicy.immediate())
        await publish(topic, "1", "2", "3")
        seen = []
        for number in range(4):
            (message,) = await subscription.pull(5, timeout=5)
            seen.append(message.data)
            if number == 1:
                message.nack()
            else:
                await message.ack_durable()
        assert seen == [b"1", b"2", b"2", b"3"]
        assert await subscription.pull(timeout=0.0) == []
        assert (await subscription.stats()).consumers == 0

    run(scenario)


def test_pull_takes_no_more_than_was_asked_for(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        for number in range(10):
            await publish(topic, str(number), key=str(number))
        first = await subscription.pull(3, timeout=5)
        assert 1 <= len(first) <= 3
        rest: list = []
        while len(first) + len(rest) < 10:
            rest += await subscription.pull(10, timeout=5)
        assert len({message.id for message in first + rest}) == 10

    run(scenario)


def test_pull_waits_for_the_first_message_and_gives_up_in_time():
    async def main() -> None:
        async with PubSub() as pubsub:
            topic, subscription = await ordered(pubsub)
            started = asyncio.get_running_loop().time()
            assert await subscription.pull(timeout=30) == []
            assert asyncio.get_running_loop().time() - started == pytest.approx(30, abs=0.1)
            pulling = asyncio.create_task(subscription.pull())
            await asyncio.sleep(100)
            await publish(topic, "late")
            (message,) = await pulling
            assert message.data == b"late"
            await asyncio.sleep(11)  # its lease is not extended
            with pytest.raises(StaleLease):
                message.ack()

    run_in_virtual_time(main())


def test_closing_gives_back_what_was_pulled(run):
    async def scenario(pubsub: PubSub) -> None:
        topic, subscription = await ordered(pubsub)
        await publish(topic, "1")
        (message,) = await subscription.pull(timeout=5)
        await subscription.close()
        with pytest.raises(StaleLease):
            message.ack()
        (again,) = await subscription.pull(timeout=5)
        assert (again.data, again.delivery_attempt) == (b"1", 1)

    run(scenario)
