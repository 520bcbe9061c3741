"""A program that publishes many messages at a time and handles them in batches, until it is killed, and says what it was told.

``P KEY NUMBER``: a publish is durable. ``D KEY NUMBER …``: a batch is delivered. ``A KEY NUMBER``: an ack is durable. ``L KEY
NUMBER``, at the end: a dead letter. Numbers that end in 7 can't be handled.
"""

from __future__ import annotations

import asyncio
import os
import sys
from random import Random

from seriatim import Message, PubSub, PubSubMessage, RetryPolicy

BATCH = 8
MAX_ATTEMPTS = 12  # more than it is killed, so that no crash uses them up


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def main(url: str, first: int) -> None:
    """Begin with the number ``first``; with -1, publish nothing and end when all is settled."""
    random = Random(first)
    async with PubSub(url) as pubsub:
        topic, dead = [await pubsub.topic(name).ensure() for name in ("t", "dead")]
        letters = await dead.subscription("letters").ensure()
        retry = RetryPolicy.immediate(max_attempts=MAX_ATTEMPTS)
        subscription = await topic.subscription("s").ensure(retry=retry, dead_letter_topic="dead")

        async def handle(messages: list[Message]) -> None:
            key, numbers = messages[0].ordering_key, [int(message.data) for message in messages]
            say("D", key, *numbers)
            await asyncio.sleep(random.choice([0, 0.002]))
            if any(number % 10 == 7 for number in numbers):
                raise ValueError("can't be handled")
            for place in sorted({random.randrange(len(messages)), len(messages) - 1}):
                await messages[place].ack_durable()
                say("A", key, numbers[place])

        subscription.on("message", handle)
        subscription.on("error", lambda _: None)
        subscription.open(batch=BATCH)
        while first >= 0:
            key, numbers = random.choice("ab"), range(first, first + random.randint(1, 2 * BATCH))
            await topic.publish_many([PubSubMessage(str(number).encode(), key) for number in numbers])
            for number in numbers:
                say("P", key, number)
            first = numbers.stop
            if random.random() < 0.1:
                await subscription.wait_until_empty()
        await subscription.wait_until_empty()
        while found := await letters.pull(100, timeout=3):  # the next of a key comes after the ack is durable
            for letter in found:
                say("L", letter.ordering_key, letter.data.decode())
                letter.ack()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
