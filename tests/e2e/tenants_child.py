"""A program that handles the keys of limited tenants and dead-letters some of its messages, until it is killed.

``P KEY NUMBER``: a publish is durable. ``D KEY NUMBER``: a message is delivered. ``E KEY NUMBER``: its handler ends. ``A KEY
NUMBER``: its ack is durable. ``G KEY NUMBER``: it is given up. ``L KEY NUMBER REASON``, at the end: a dead letter.
"""

from __future__ import annotations

import asyncio
import os
import sys
from random import Random

from seriatim import Message, PubSub, PubSubMessage

LIMIT = 2
KEYS = [f"{tenant}/{number}" for tenant in ("acme", "initech") for number in range(4)]


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def reason_for(number: int) -> str:
    return f"no-use-{number}"


async def main(url: str, first: int) -> None:
    """Begin with the number ``first``; with -1, publish nothing and end when all is settled."""
    random = Random(first)
    async with PubSub(url) as pubsub:
        topic, dead = [await pubsub.topic(name).ensure() for name in ("t", "dead")]
        letters = await dead.subscription("letters").ensure()
        subscription = await topic.subscription("s").ensure(tenant_limit=LIMIT, dead_letter_topic="dead")

        async def handle(message: Message) -> None:
            key, number = message.ordering_key, int(message.data)
            say("D", key, number)
            await asyncio.sleep(random.choice([0, 0.002]))
            say("E", key, number)
            if number % 5 == 3:
                message.dead_letter(reason_for(number))
                say("G", key, number)
            else:
                await message.ack_durable()
                say("A", key, number)

        subscription.on("message", handle)
        subscription.open()
        while first >= 0:
            chosen = [(random.choice(KEYS), number) for number in range(first, first + 10)]
            await topic.publish_many([PubSubMessage(str(number).encode(), key) for key, number in chosen])
            for key, number in chosen:
                say("P", key, number)
            first += len(chosen)
            if random.random() < 0.1:
                await subscription.wait_until_empty()
        await subscription.wait_until_empty()
        reasons = {letter.id: letter.error for letter in await subscription.dead_letters(limit=100_000)}
        say("R", *sorted(map(str, reasons.values())))
        while found := await letters.pull(100, timeout=3):  # the next of a key comes after the ack is durable
            for letter in found:
                say("L", letter.ordering_key, letter.data.decode())
                letter.ack()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
