"""A program that uses a store beside others. Each line it says goes to its standard output with one write:

    owner, linked   how it has the store
    D key number    a message was delivered
    T key number    its ack is said now
    P offset        a publish was confirmed

It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from seriatim import PubSub
from seriatim.client.consumer import ConsumeOptions
from seriatim.client.message import Message
from seriatim.engine.engine import Engine


def say(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def settle(message: Message) -> None:
    say("D", message.ordering_key, message.data.decode())
    say("T", message.ordering_key, message.data.decode())
    message.ack()


def hold(message: Message) -> None:
    say("D", message.ordering_key, message.data.decode())


async def main(url: str, work: str) -> None:
    handlers: dict[str, Callable[[Message], None]] = {"settle": settle, "hold": hold}
    async with PubSub(url) as pubsub:
        if work in handlers:
            subscription = pubsub.subscription("s")
            subscription.on("message", handlers[work])
            subscription.open(ConsumeOptions(max_messages=1 if work == "settle" else 1000))
            await pubsub.broker.list_topics()  # when this is answered, the consumer is attached
        say("owner" if isinstance(pubsub.broker, Engine) else "linked")
        if work == "publish":
            say("P", await pubsub.topic("t").publish(b"0", ordering_key="k"))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
