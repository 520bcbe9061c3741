"""Programs that publish, consume, ack and nack until they are killed, and write down what they were told.

Run as a script this is a nursery: it has imported everything, has no threads and no store, and forks a child for every life
that it is asked for over the socket on its standard input. So a life costs a fork and not the start of an interpreter.

A child says each thing (see ``tests/fire.py``) with one write to a pipe, so what it said before a SIGKILL is there to be read.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from random import Random

import seriatim.engine.upkeep as upkeep_module
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from tests.fire import Say, Worker, prepare
from tests.witness import KEYLESS

KEYS = [f"key-{number}" for number in range(5)]
BACKLOG = 200


def voice(file: int) -> Say:
    """A way to say something, to whoever reads the other end."""

    def say(what: str, key: str, number: int, attempt: int) -> None:
        os.write(file, f"{what} {key} {number} {attempt}\n".encode())

    return say


async def publish(engine: Engine, worker: Worker, say: Say, random: Random, first: int) -> None:
    """Publish batches of one key each, as fast as they are confirmed and the worker keeps up."""
    numbers = dict.fromkeys([*KEYS, None], first)
    while True:
        await worker.at_most(BACKLOG)
        key = random.choice([*KEYS, None])
        batch = range(numbers[key], numbers[key] + random.randint(1, 5))
        numbers[key] = batch.stop
        await engine.publish("t", [Outgoing(key, str(number).encode()) for number in batch])
        for number in batch:
            say("P", key or KEYLESS, number, 0)


async def live(url: str, seed: int, first: int, say: Say) -> None:
    """One life. With numbers from ``first`` on it publishes until it is killed; without (-1) it ends when all is settled.

    Numbers of an earlier life may be in the store without having been confirmed, so each life begins above all of them.
    """
    random = Random(seed)
    engine = await Engine.open(url)
    await prepare(engine)
    worker = Worker(engine, say, random)
    if first >= 0:
        await publish(engine, worker, say, random, first)
    await worker.at_most(0)
    await engine.close()


def nursery(parent: socket.socket) -> None:
    """Fork a child for each request, say its process id, and how it ended."""
    upkeep_module.PAUSE_S = 0.02  # so that clean-up, too, is killed in the middle
    while True:
        request, files, _, _ = socket.recv_fds(parent, 4096, 1)
        if not request:
            return
        child = os.fork()
        if child == 0:
            parent.close()
            url, seed, first = json.loads(request)
            asyncio.run(live(url, seed, first, voice(files[0])))
            os._exit(0)
        os.close(files[0])
        parent.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        parent.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    nursery(socket.socket(fileno=0))
