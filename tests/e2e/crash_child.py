"""Programs that publish, consume, ack and nack until they are killed, and write down what they were told.

Run as a script this is a nursery: it has imported everything, has no threads and no store, and forks a child for every life that
it is asked for over the socket on its standard input. So a life costs a fork and not the start of an interpreter.

A child says each thing with one write to a pipe, so what it said before a SIGKILL is there for the parent to read:

    P key number 0          a publish was confirmed
    D key number attempt    a message was delivered
    N key number attempt    it was nacked
    T key number attempt    its ack is said now
    A key number attempt    its ack was confirmed to be durable
    G key number attempts   its dead letter was delivered
    S key number 0          the ack of its dead letter is said now
    B key number 0          that was confirmed to be durable

Now and then a key is left out (``-``), and some messages are never acked: they end as dead letters.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from functools import partial
from random import Random

import seriatim.engine.engine as engine_module
from seriatim.core.delivery import RetryPolicy
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription import Consumer, Delivered, SubscriptionState

KEYS = [f"key-{number}" for number in range(5)]
KEYLESS = "-"
NACKED = 0.1
POISONOUS = 0.03
MOST_ATTEMPTS = 3
BACKLOG = 200


class Voice:
    """Where a child says what it was told."""

    def __init__(self, file: int) -> None:
        self._file = file

    def say(self, what: str, key: str | None, number: int, attempt: int = 0) -> None:
        os.write(self._file, f"{what} {key or KEYLESS} {number} {attempt}\n".encode())


class Worker:
    """Acks what it gets, now and then after a nack; what is poisonous it always nacks. Dead letters it acks."""

    def __init__(self, engine: Engine, voice: Voice, random: Random) -> None:
        self._voice = voice
        self._random = random
        self._messages = engine.get_subscription("s")
        self._graves = engine.get_subscription("graves")
        self._news = asyncio.Event()
        self._graves.attach(Consumer(self._visit))
        self._messages.attach(Consumer(self._take))

    async def at_most(self, backlog: int) -> None:
        """Wait until no more than so many messages are queued, or to be buried."""
        while self._queued() > backlog:
            self._news.clear()
            await self._news.wait()

    def _queued(self) -> int:
        quiet = self._messages.lanes.is_quiet() and self._graves.lanes.is_quiet()
        return len(self._messages.lanes) + len(self._graves.lanes) + (not quiet)

    def _take(self, delivered) -> None:
        for one in delivered:
            said = (one.record.key, int(one.record.data), one.lease.attempt)
            self._voice.say("D", *said)
            if is_poisonous(said[1]) or self._random.random() < NACKED:
                self._voice.say("N", *said)
                delay = self._random.choice([None, 0.0, 0.002])
                self._messages.nack(one.lease, delay, error="on purpose")
            else:
                self._ack(self._messages, one, "T", "A", said)

    def _visit(self, delivered) -> None:
        for one in delivered:
            attempts = int(one.record.attributes["seriatim-dead-letter-attempts"])
            key, number = one.record.key, int(one.record.data)
            self._voice.say("G", key, number, attempts)
            self._ack(self._graves, one, "S", "B", (key, number, 0))

    def _ack(self, subscription: SubscriptionState, one: Delivered, now: str, later: str, said) -> None:
        self._voice.say(now, *said)
        subscription.ack(one.lease, partial(self._durable, later, said))

    def _durable(self, what: str, said, error: BaseException | None) -> None:
        if error is None:
            self._voice.say(what, *said)
        self._news.set()


def is_poisonous(number: int) -> bool:
    """Whether a message is never acked; that must not change from life to life."""
    return Random(number).random() < POISONOUS


async def publish(engine: Engine, worker: Worker, voice: Voice, random: Random, first: int) -> None:
    """Publish batches of one key each, as fast as they are confirmed and the worker keeps up."""
    numbers = dict.fromkeys([*KEYS, None], first)
    while True:
        await worker.at_most(BACKLOG)
        key = random.choice([*KEYS, None])
        batch = range(numbers[key], numbers[key] + random.randint(1, 5))
        numbers[key] = batch.stop
        await engine.publish("t", [Outgoing(key, str(number).encode()) for number in batch])
        for number in batch:
            voice.say("P", key, number)


async def prepare(engine: Engine) -> None:
    """Create what an earlier life did not live to create."""
    topics = [topic.name for topic in await engine.list_topics()]
    for name in ("t", "dead"):
        if name not in topics:
            await engine.create_topic(name)
    known = [subscription.name for subscription in await engine.list_subscriptions()]
    retry = RetryPolicy(max_attempts=MOST_ATTEMPTS)
    ordered = SubscriptionOptions(ordering=True, retry=retry, dead_letter_topic="dead")
    for topic, name, options in (("dead", "graves", SubscriptionOptions()), ("t", "s", ordered)):
        if name not in known:
            await engine.create_subscription(topic, name, options)


async def live(url: str, seed: int, first: int, voice: Voice) -> None:
    """One life. With numbers from ``first`` on it publishes until it is killed; without (-1) it ends when all is settled.

    Numbers of an earlier life may be in the store without having been confirmed, so each life begins above all of them.
    """
    random = Random(seed)
    engine = await Engine.open(url)
    await prepare(engine)
    worker = Worker(engine, voice, random)
    if first >= 0:
        await publish(engine, worker, voice, random, first)
    await worker.at_most(0)
    await engine.close()


def nursery(parent: socket.socket) -> None:
    """Fork a child for each request, say its process id, and how it ended."""
    engine_module.UPKEEP_PAUSE = 0.02  # so that clean-up, too, is killed in the middle
    while True:
        request, files, _, _ = socket.recv_fds(parent, 4096, 1)
        if not request:
            return
        child = os.fork()
        if child == 0:
            parent.close()
            url, seed, first = json.loads(request)
            asyncio.run(live(url, seed, first, Voice(files[0])))
            os._exit(0)
        os.close(files[0])
        parent.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        parent.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    nursery(socket.socket(fileno=0))
