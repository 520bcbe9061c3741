"""A program that dead-letters all of a key, by hand, by the policy or from the handler, and is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys

from seriatim import PubSub
from seriatim.engine.engine import Engine


async def handle(url: str) -> None:
    async with PubSub(url) as pubsub:
        subscription = pubsub.subscription("s")
        subscription.on("message", lambda message: message.dead_letter("not for us", rest=True))
        subscription.open()
        os.write(1, b".")
        await subscription.wait_until_empty()


async def live(url: str, how: str) -> None:
    engine = await Engine.open(url)
    os.write(1, b".")
    if how == "by hand":
        await engine.dead_letter("s", "k", "on purpose", rest=True)
    else:
        await engine.get_subscription(
            "s"
        ).deliveries.until_empty()  # a crash had used up the attempts of the first message
    await engine.close()


if __name__ == "__main__":
    store, way = sys.argv[1:]
    asyncio.run(handle(store) if way == "by the handler" else live(store, way))
