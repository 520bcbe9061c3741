"""A program that consumes a subscription on Kafka, and writes down what it sees: ``worker.py URL FILE [unfenced]``.

Each line is a JSON list: the monotonic time, what happened (begin, acked, refused, failed), the key, and the message's number.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

from seriatim import Message, PubSub
from seriatim.errors import StaleLease
from seriatim.kafka.group import Group
from seriatim.kafka.member import Member
from seriatim.kafka.partition import Commit


def break_fencing() -> None:
    """Keep partitions that somebody else has, and call everything committed."""

    async def revoked(*_: object) -> None: ...

    async def commit(_: object, commits: list[Commit]) -> set[int]:
        return {commit.serial for commit in commits}

    Group.revoked = revoked  # type: ignore[method-assign, assignment]
    Group.lost = lambda *_: None  # type: ignore[method-assign]
    Member.commit = commit  # type: ignore[method-assign, assignment]


async def main(url: str, file: str, fencing: str = "fenced") -> None:
    if fencing == "unfenced":
        break_fencing()
    log = -1
    chance = random.Random(os.getpid())

    def note(what: str, message: Message) -> None:
        nonlocal log
        if log < 0:
            log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        line = [time.monotonic(), what, message.ordering_key, int(message.data)]
        os.write(log, json.dumps(line).encode() + b"\n")

    async def handle(message: Message) -> None:
        note("begin", message)
        await asyncio.sleep(chance.random() * 0.01)
        if chance.random() < 0.02:
            note("failed", message)
            raise ValueError("by chance")
        try:
            await message.ack_durable()
        except StaleLease:
            note("refused", message)
        else:
            note("acked", message)

    async with PubSub(url) as pubsub:
        subscription = pubsub.subscription("work")
        subscription.on("error", lambda _: None)
        await subscription.run(handle)


asyncio.run(main(*sys.argv[1:]))
