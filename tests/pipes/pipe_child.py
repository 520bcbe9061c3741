"""One end of a pipe over UDP in a process of its own, to be killed: ``pipe_child.py sender|receiver STORE PORT COUNT``.

Each says on its standard output how far it is. A sender ends when everything is confirmed, a receiver when its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from seriatim.engine.broker import Broker
from seriatim.engine.connect import open_broker
from seriatim.pipes import Outbox, Pipe, TopicOutput, Udp

NAME = "p"
BATCH = 25


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def send(broker: Broker, port: int, count: int) -> None:
    pipe = Pipe(
        Udp(port), name=NAME, outbox=Outbox(broker, "outbox"), window=64, queue=256, timeout=0.05, max_timeout=0.2
    )
    async with pipe.sending() as out:
        taken = await broker.position_of(f"pipe {NAME} outbox")  # what a former life took in needs no second time
        for first in range(taken, count, BATCH):
            await asyncio.gather(*(out.send(b"%d" % number) for number in range(first, min(first + BATCH, count))))
            say(min(first + BATCH, count))
        await out.drain()
        say("drained")


async def receive(broker: Broker, port: int, _: int) -> None:
    pipe = Pipe(Udp(port), name=NAME, output=TopicOutput(broker, "out", key="k"))
    async with pipe.receiving():
        say("listening")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def main(role: str, store: str, port: str, count: str) -> None:
    broker = await open_broker(f"sqlite:///{Path(store)}")
    try:
        await {"sender": send, "receiver": receive}[role](broker, int(port), int(count))
    finally:
        await broker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
