"""A linked client that is stopped and continued begins with no message that it has lost meanwhile."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from seriatim import PubSub
from tests.client.conftest import Received

CHILD = Path(__file__).with_name("stopped_child.py")
SHORT = 0.4
"""Seconds: leases run out while the client is stopped."""


class Child:
    """The client; what it says comes line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hear(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    def say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


@asynccontextmanager
async def child_of(url: str, kind: str) -> AsyncIterator[Child]:
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, CHILD, url, kind, stdin=pipe, stdout=pipe)
    try:
        yield Child(process)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def owner(url: str):
    """The owner of the store with a subscription whose leases run out soon, and a handler of its own."""
    async with asyncio.timeout(30), PubSub(url) as pubsub:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(enable_message_ordering=True, ack_deadline=SHORT)
        received = Received()
        subscription.on("message", received.add_and_ack)
        yield topic, subscription, received


@pytest.mark.parametrize("kind", ["plain", "async", "stream"])
def test_deliveries_that_waited_in_the_socket_of_a_stopped_client_are_not_begun_with(tmp_path, kind):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        async with owner(url) as (topic, subscription, received), child_of(url, kind) as child:
            assert await child.hear() == "ready"
            child.signal(signal.SIGSTOP)
            for number in (b"1", b"2", b"3"):
                topic.publish(number, ordering_key="k")
            await topic.flush()
            assert (await subscription.stats()).leased == 1  # it is with the client, which does not know
            subscription.open()
            assert await received.wait(3) == ["1", "2", "3"]
            await subscription.close()
            child.signal(signal.SIGCONT)
            await topic.publish(b"4", ordering_key="k")
            assert await child.hear() == "4"

    asyncio.run(scenario())


def test_what_waits_for_a_free_thread_is_not_begun_with_when_it_was_lost(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario() -> None:
        async with owner(url) as (topic, subscription, received), child_of(url, "blocking") as child:
            await topic.publish(b"busy", ordering_key="a")
            assert await child.hear() == "busy"
            await topic.publish(b"queued", ordering_key="b")
            await asyncio.sleep(SHORT)  # the client keeps both leases alive
            assert (await subscription.stats()).leased == 2
            child.signal(signal.SIGSTOP)
            subscription.open()
            assert sorted(await received.wait(2)) == ["busy", "queued"]
            await subscription.close()
            child.signal(signal.SIGCONT)
            child.say()
            await topic.publish(b"next", ordering_key="b")
            assert await child.hear() == "next"

    asyncio.run(scenario())
