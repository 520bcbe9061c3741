"""A linked client that the test stops and continues. It says which messages its handlers begin with.

Usage: stopped_child.py URL plain|async|stream|blocking
"""

from __future__ import annotations

import asyncio
import sys
import threading

from seriatim import PubSub


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def begin(message) -> None:
    say(message.data.decode())
    message.ack()


async def begin_async(message) -> None:
    begin(message)


async def handle(url: str, handler) -> None:
    async with PubSub(url) as pubsub:
        subscription = pubsub.subscription("s")
        subscription.on("message", handler)
        subscription.open()
        await subscription.stats()  # the owner has heard of this consumer
        say("ready")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def iterate(url: str) -> None:
    async with PubSub(url) as pubsub:
        stream = pubsub.subscription("s").messages()
        await pubsub.subscription("s").stats()
        say("ready")
        async for message in stream:
            begin(message)


def handle_in_one_thread(url: str) -> None:
    released = threading.Event()

    def handler(message) -> None:
        say(message.data.decode())
        if message.data == b"busy":
            released.wait()
        else:
            message.ack()

    with PubSub.blocking(url, workers=1) as pubsub:
        subscription = pubsub.subscription("s")
        subscription.on("message", handler)
        subscription.open()
        sys.stdin.readline()
        released.set()
        sys.stdin.readline()


if __name__ == "__main__":
    url, kind = sys.argv[1:]
    if kind == "blocking":
        handle_in_one_thread(url)
    elif kind == "stream":
        asyncio.run(iterate(url))
    else:
        asyncio.run(handle(url, begin if kind == "plain" else begin_async))
