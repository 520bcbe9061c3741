"""A program that dead-letters all of a key, and is killed while it does."""

from __future__ import annotations

import asyncio
import os
import sys

from seriatim.engine.engine import Engine


async def live(url: str, by_hand: bool) -> None:
    engine = await Engine.open(url)
    os.write(1, b".")
    if by_hand:
        await engine.dead_letter("s", "k", "on purpose", rest=True)
    else:
        await engine.get_subscription("s").wait_until_empty()  # a crash had used up the attempts of the first message
    await engine.close()


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2] == "by hand"))
