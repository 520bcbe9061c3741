"""A worker: a program that handles messages until it is told to stop, by SIGTERM or Ctrl-C.

Handlers that run are finished first, so nothing is handled twice. This one tells itself to stop when nothing is left, so
that the example ends.

Prints:

    resized cat.png to 100 px
    resized cat.png to 200 px
    resized dog.png to 100 px
    stopped; messages left: 0
"""

import asyncio
import os
import signal

from seriatim import Message, PubSub

done: list[str] = []


async def resize(message: Message) -> None:
    """With ``ack="on-return"`` a message is acked when this returns, and retried with backoff when it raises."""
    await asyncio.sleep(0.01)  # the work
    done.append(f"resized {message.ordering_key} to {message.data.decode()} px")


async def main() -> None:
    async with PubSub("sqlite:///images.db") as pubsub:
        images = await pubsub.topic("images").ensure()
        resizing = await images.subscription("resizing").ensure()
        for name, width in [("cat.png", 100), ("dog.png", 100), ("cat.png", 200)]:
            images.publish(str(width).encode(), ordering_key=name)
        await images.flush()

        stopping = asyncio.create_task(stop_when_empty(resizing))
        await resizing.run(resize, concurrency=8, ack="on-return")  # until SIGTERM or Ctrl-C
        await stopping

        print(*sorted(done), sep="\n")
        print("stopped; messages left:", (await resizing.stats()).total)


async def stop_when_empty(subscription) -> None:
    await subscription.wait_until_empty()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    asyncio.run(main())
