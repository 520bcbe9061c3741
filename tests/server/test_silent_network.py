"""A network that is cut says nothing to either end: our client notices by itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.needs import lacking
from tests.nemesis import network
from tests.nemesis.network import Network, ip
from tests.nemesis.program import Program

SECONDS = 120.0

CONSUME = """
import asyncio, sys
from seriatim import PubSub
from seriatim.client import channel

channel.KEEPALIVE_S = channel.KEEPALIVE_TIMEOUT_S = 2  # as it is, but sooner

async def main():
    async with PubSub(sys.argv[1]) as pubsub:
        topic = pubsub.topic("events")
        await topic.create()
        subscription = topic.subscription("work")
        await subscription.create()
        subscription.on("message", write)
        subscription.open()
        write(None)
        await asyncio.Event().wait()

def write(message):
    with open(sys.argv[2], "a") as said:
        said.write("ready\\n" if message is None else message.data.decode() + "\\n")
    if message is not None:
        message.ack()

asyncio.run(main())
"""


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as cleanup:
        yield cleanup


def test_a_consumer_that_only_waits_finds_out_that_the_machine_of_the_server_is_gone(
    tmp_path: Path, cleanup: ExitStack
):
    if (why := network.why_not()) is not None:
        lacking(why)
    net, said, store = Network(cleanup), tmp_path / "said", f"sqlite:///{tmp_path / 'store.db'}"
    here, there = net.join("server"), net.join("client")
    serve = ["serve", "--store", store, "--host", here.address, "--port", "8085", "--insecure"]
    command = [sys.executable, "-m", "seriatim", *serve]
    server = Program("server", tmp_path, lambda _: command, surroundings=[here])
    url = f"pubsub://{here.address}:8085/seriatim"
    consumer = Program(
        "consumer", tmp_path, lambda _: [sys.executable, "-c", CONSUME, url, str(said)], surroundings=[there]
    )
    for program in (server, consumer):
        program.start()
        cleanup.callback(program.kill)
    eventually(lambda: said.exists() and "ready" in said.read_text())
    time.sleep(1)
    here.cut()  # so that nobody hears the kernel say that the connection is closed
    server.kill()
    publish_into(store)
    replacement = Program("new", tmp_path, lambda _: command, surroundings=[net.join("new", here.address)])
    replacement.start()
    ip("-n", there.namespace, "neighbour", "flush", "dev", "eth0")  # a new machine makes itself known
    cleanup.callback(replacement.kill)
    eventually(lambda: "hello" in said.read_text())


def publish_into(store: str) -> None:
    from seriatim import PubSub

    async def publish() -> None:
        async with PubSub(store) as pubsub:
            await pubsub.topic("events").publish(b"hello")

    asyncio.run(publish())


def eventually(is_so) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)
