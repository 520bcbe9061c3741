"""A program that publishes, consumes, acks and nacks until it is killed, and writes down what it was told.

Each line goes to the pipe with one write, so what was written before a SIGKILL is there for the parent to read:

    P key number    a publish was confirmed
    D key number    a message was delivered
    N key number    it was nacked
    T key number    its ack is said now
    A key number    its ack was confirmed to be durable
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from random import Random

from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription import Consumer, SubscriptionState

KEYS = [f"key-{number}" for number in range(5)]
NACKED = 0.1
BACKLOG = 200


def say(what: str, key: str | None, number: int) -> None:
    os.write(1, f"{what} {key} {number}\n".encode())


class Worker:
    """Acks what it gets, now and then after a nack."""

    def __init__(self, subscription: SubscriptionState, random: Random) -> None:
        self._subscription = subscription
        self._random = random
        self.settled = asyncio.Event()
        subscription.attach(Consumer(self._take))

    async def at_most(self, backlog: int) -> None:
        """Wait until no more than so many messages are queued."""
        while len(self._subscription.lanes) > backlog:
            self.settled.clear()
            await self.settled.wait()

    def _durable(self, key: str | None, number: int, error: BaseException | None) -> None:
        if error is None:
            say("A", key, number)
        self.settled.set()

    def _take(self, delivered) -> None:
        for lease, record in delivered:
            number = int(record.data)
            say("D", record.key, number)
            if self._random.random() < NACKED:
                say("N", record.key, number)
                self._subscription.nack(lease, error="on purpose")
            else:
                say("T", record.key, number)
                self._subscription.ack(lease, partial(self._durable, record.key, number))


async def publish(engine: Engine, worker: Worker, random: Random, numbers: dict[str, int]) -> None:
    """Publish batches of one key each, as fast as they are confirmed and the worker keeps up."""
    while True:
        await worker.at_most(BACKLOG)
        key = random.choice(KEYS)
        batch = range(numbers[key], numbers[key] + random.randint(1, 5))
        numbers[key] = batch.stop
        await engine.publish("t", [Outgoing(key, str(number).encode()) for number in batch])
        for number in batch:
            say("P", key, number)


async def main(url: str, seed: int, first: int) -> None:
    random = Random(seed)
    engine = await Engine.open(url)
    if not await engine.list_topics():
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", SubscriptionOptions(ordering=True))
    worker = Worker(engine.get_subscription("s"), random)
    if first >= 0:
        # Numbers of an earlier life may be in the store without having been confirmed: begin above all of them.
        await publish(engine, worker, random, dict.fromkeys(KEYS, first))
    await worker.at_most(0)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
