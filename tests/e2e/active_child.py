"""The active program of the standby test: it owns the store, holds a message, and does what it is told."""

from __future__ import annotations

import asyncio
import sys

from seriatim import PubSub
from seriatim.errors import SeriatimError


async def main(url: str) -> None:
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("orders").create()
        subscription = await topic.subscription("shipping").create(enable_message_ordering=True, ack_deadline=600)
        for number in range(3):
            await topic.publish(str(number).encode(), ordering_key="k")
        async for message in subscription:
            say(f"holding {message.data.decode()}")
            await asyncio.to_thread(sys.stdin.readline)
            await attempt(topic.publish(b"from the old owner", ordering_key="k"))
            await attempt(message.ack_durable())
            break


async def attempt(work) -> None:
    try:
        await work
    except SeriatimError as error:
        say(type(error).__name__)
    else:
        say("done")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
