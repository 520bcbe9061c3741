"""A program that publishes and handles a subscription that keeps the latest, until it is killed, and says what it was told.

``P KEY NUMBER``: a publish is durable, ``D KEY NUMBER``: a message is delivered, ``A KEY NUMBER``: its ack is durable.
"""

from __future__ import annotations

import asyncio
import os
import sys
from random import Random

from seriatim import Message, PubSub


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def main(url: str, first: int) -> None:
    """Begin with the number ``first``; with -1, publish nothing and end when all is settled."""
    random = Random(first)
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("t").ensure()
        subscription = await topic.subscription("s").ensure(keep="latest")

        async def handle(message: Message) -> None:
            say("D", message.ordering_key, message.data.decode())
            await asyncio.sleep(random.choice([0, 0.002]))
            if first >= 0 and random.random() < 0.2:
                message.nack(delay=0)
            else:
                await message.ack_durable()
                say("A", message.ordering_key, message.data.decode())

        subscription.on("message", handle)
        subscription.open()
        while first >= 0:
            key = random.choice("ab")
            await topic.publish(str(first).encode(), ordering_key=key)
            say("P", key, first)
            first += 1
        await subscription.wait_until_empty()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
