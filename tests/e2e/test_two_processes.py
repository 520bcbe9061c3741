"""Programs that share a store: one owns it, the others reach it, whoever ends or is killed."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from seriatim import PubSub
from seriatim.client.consumer import ConsumeOptions
from seriatim.client.message import Message
from seriatim.engine.engine import Engine
from seriatim.errors import OutcomeUnknown, SeriatimError

CHILD = Path(__file__).with_name("linked_child.py")
HOUR = 3600.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def run() -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a scenario, which may not take for ever."""

    def run(scenario: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await scenario()

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def child(url: str, work: str, stdout: int = asyncio.subprocess.PIPE) -> AsyncIterator[Process]:
    """A program at work on the store; it is ended at the end, if it lives."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), url, work, stdin=asyncio.subprocess.PIPE, stdout=stdout
    )
    try:
        yield process
        if process.returncode is None:
            await process.communicate(b"")
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def hear(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


@asynccontextmanager
async def listening(pipe: int) -> AsyncIterator[asyncio.StreamReader]:
    """What is said into a pipe, without blocking the loop in which others may be served."""
    reader = asyncio.StreamReader()
    with os.fdopen(pipe) as file:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        yield reader
        transport.close()


async def kill(process: Process) -> None:
    process.kill()
    await process.wait()


@asynccontextmanager
async def prepared(url: str, ack_deadline: float = HOUR) -> AsyncIterator[PubSub]:
    """A store with topic t and ordered subscription s, owned by this process."""
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("t").create()
        await topic.subscription("s").create(enable_message_ordering=True, ack_deadline=ack_deadline)
        yield pubsub


class Inbox:
    """A subscriber that keeps what it gets."""

    def __init__(self, pubsub: PubSub) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        subscription = pubsub.subscription("s")
        subscription.on("message", self.messages.put_nowait)
        subscription.open()


def test_a_publish_of_another_process_wakes_the_subscriber_of_the_owner(run, url):
    async def scenario() -> None:
        async with prepared(url) as pubsub:
            inbox = Inbox(pubsub)
            async with child(url, "publish") as other:
                assert await hear(other) == "linked"
                message = await inbox.messages.get()
                assert (message.data, message.ordering_key) == (b"0", "k")
                assert await hear(other) == f"P {message.id}"
                message.ack()

    run(scenario)


def test_a_publish_of_the_owner_wakes_the_subscriber_of_another_process(run, url):
    async def scenario() -> None:
        async with prepared(url) as pubsub, child(url, "settle") as other:
            assert await hear(other) == "linked"
            await pubsub.topic("t").publish(b"0", ordering_key="k")
            assert await hear(other) == "D k 0"

    run(scenario)


def test_two_processes_consume_one_subscription_in_order_and_never_two_of_a_key_at_once(run, url):
    keys, numbers = [f"key-{number}" for number in range(5)], range(40)

    async def scenario() -> None:
        # Both say what happens into one pipe, in which nothing that was said after something else comes before it.
        heard, said = os.pipe()

        def settle(message: Message) -> None:
            for what in "DT":
                os.write(said, f"{what} {message.ordering_key} {message.data.decode()} here\n".encode())
            message.ack()

        async with prepared(url) as pubsub, listening(heard) as lines, child(url, "settle", said):
            assert await lines.readline() == b"linked\n"
            attached, topic = pubsub.subscription("s"), pubsub.topic("t")
            attached.on("message", settle)
            attached.open(ConsumeOptions(max_messages=1))
            for number in numbers:
                for key in keys:
                    topic.publish(str(number).encode(), ordering_key=key)
            story = [(await lines.readline()).decode().split() for _ in range(2 * len(keys) * len(numbers))]
        os.close(said)
        by_key: dict[str, list[str]] = defaultdict(list)
        for what, key, which, *_ in story:
            by_key[key].append(f"{what}{which}")
        assert by_key == {key: [f"{what}{number}" for number in numbers for what in "DT"] for key in keys}
        assert {words[-1] == "here" for words in story} == {True, False}, "both had their share"

    run(scenario)


def test_what_a_killed_process_held_is_given_out_again_at_once(run, url):
    async def scenario() -> None:
        async with prepared(url) as pubsub, child(url, "hold") as other:
            assert await hear(other) == "linked"
            for number in range(3):
                await pubsub.topic("t").publish(str(number).encode(), ordering_key=f"key-{number}")
                assert await hear(other) == f"D key-{number} {number}"
            inbox = Inbox(pubsub)
            await kill(other)
            again = [await inbox.messages.get() for _ in range(3)]
            assert sorted(message.data for message in again) == [b"0", b"1", b"2"]
            assert {message.delivery_attempt for message in again} == {1}, "the lease of an hour was not waited for"

    run(scenario)


def test_when_the_owner_is_killed_a_linked_program_takes_over_with_its_subscribers(run, url):
    async def scenario() -> None:
        async with prepared(url):
            pass
        async with child(url, "own") as owner:
            assert await hear(owner) == "owner"
            async with PubSub(url) as pubsub:
                assert not isinstance(pubsub.broker, Engine)
                inbox, topic = Inbox(pubsub), pubsub.topic("t")
                await topic.publish(b"before", ordering_key="k")
                first = await inbox.messages.get()
                await kill(owner)
                again = await inbox.messages.get()
                assert (first.data, again.data, again.delivery_attempt) == (b"before", b"before", 1)
                again.ack()
                await topic.publish(b"after", ordering_key="k")
                assert (await inbox.messages.get()).data == b"after"
                async with child(url, "publish") as third:
                    assert [await hear(third), await hear(third)] == ["linked", "P 2"]

    run(scenario)


def test_a_publish_under_way_when_the_owner_is_killed_fails_as_unknown_or_is_there_once(run, url):
    async def scenario() -> None:
        async with prepared(url):
            pass
        async with child(url, "own") as owner:
            assert await hear(owner) == "owner"
            async with PubSub(url) as pubsub:
                topic = pubsub.topic("t")
                futures = [topic.publish(str(n).encode(), ordering_key=f"key-{n}") for n in range(200)]
                await futures[0]
                await kill(owner)
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
                failed = [outcome for outcome in outcomes if isinstance(outcome, SeriatimError)]
                assert all(isinstance(error, OutcomeUnknown) for error in failed)
                inbox = Inbox(pubsub)
                await topic.publish(b"last", ordering_key="last")
                got: list[bytes] = []
                while not got or got[-1] != b"last":
                    got.append((await inbox.messages.get()).data)
                assert len(got) == len(set(got)), "nothing was published twice"
                confirmed = {str(n).encode() for n, outcome in enumerate(outcomes) if isinstance(outcome, str)}
                assert confirmed <= set(got)

    run(scenario)


def test_with_ids_all_publishes_under_way_when_the_owner_is_killed_are_there_once(run, url):
    async def scenario() -> None:
        async with prepared(url):
            pass
        async with child(url, "own") as owner:
            assert await hear(owner) == "owner"
            async with PubSub(url) as pubsub:
                topic = pubsub.topic("t")
                futures = [
                    topic.publish(str(n).encode(), ordering_key=f"key-{n % 20}", dedup_id=str(n)) for n in range(400)
                ]
                await futures[0]
                await kill(owner)
                ids = await asyncio.gather(*futures)
                inbox = Inbox(pubsub)
                await topic.publish(b"last", ordering_key="last")
                got = defaultdict[str | None, list[int]](list)
                async with asyncio.timeout(20):
                    for _ in range(len(futures) + 1):
                        message = await inbox.messages.get()
                        if message.data != b"last":
                            got[message.ordering_key].append(int(message.data))
                            assert message.id == ids[int(message.data)]
                        message.ack()
                assert got == {f"key-{first}": list(range(first, 400, 20)) for first in range(20)}

    run(scenario)


def test_of_programs_that_start_at_the_same_moment_on_a_new_file_one_owns_it_and_the_others_are_linked(run, url):
    async def scenario() -> None:
        async with child(url, "open") as first, child(url, "open") as second, child(url, "open") as third:
            assert sorted([await hear(one) for one in (first, second, third)]) == ["linked", "linked", "owner"]

    run(scenario)
