"""A program that reads topics through the public API and records every message before it acks it.

    python -m tests.nemesis.reader '{"url": …, "who": …, "folder": …, "subscriptions": [...], "is_last": false}'

It reads until SIGTERM; the last one reads until nothing is left. A message whose ack was lost comes again, under the same id.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from seriatim import PubSub
from seriatim.client.message import Message
from seriatim.errors import StoreError
from tests.nemesis.checker import Anomaly
from tests.nemesis.history import Event, Recorder


@dataclass(frozen=True, slots=True)
class Reading:
    """What this process is for."""

    url: str
    who: str
    folder: str
    subscriptions: Sequence[str]
    is_last: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.nemesis.reader", json.dumps(asdict(self))]


def make_topics(url: str, topics: Sequence[str], readers: Sequence[str]) -> None:
    """Topics, and a subscription of each for each reader, before anything is published."""
    with PubSub.blocking(url) as pubsub:
        for name in topics:
            topic = pubsub.topic(name)
            topic.create()
            for reader in readers:
                topic.subscription(subscription_of(reader, name)).create(enable_message_ordering=True)


def subscription_of(reader: str, topic: str) -> str:
    return f"{reader}-{topic}"


def messages_read(events: Sequence[Event], reader: str, topic: str) -> list[Event]:
    """Every message of a topic that a reader got, once, in the order in which it got them first."""
    sub = subscription_of(reader, topic)
    first = {event.id: event for event in reversed(events) if event.what == "read" and event.sub == sub}
    return sorted(first.values(), key=lambda event: event.at)


def check_same(one: Sequence[Event], other: Sequence[Event], topic: str) -> list[Anomaly]:
    """What two readers of a topic saw, key by key: what was there once is there later, at the same place."""
    keys: dict[str, tuple[list[str], list[str]]] = {}
    for place, events in enumerate((one, other)):
        for event in events:
            keys.setdefault(event.key, ([], []))[place].append(event.id)
    return [
        Anomaly(
            "changed", topic, key, len(earlier), f"read {len(earlier)} messages, and {len(later)} later, not the same"
        )
        for key, (earlier, later) in keys.items()
        if earlier != later
    ]


def _handler(record: Recorder, sub: str) -> Callable[[Message], Awaitable[None]]:
    async def handle(message: Message) -> None:
        body = {"attributes": dict(message.attributes), "data": message.data.decode()}
        record("read", sub=sub, key=message.ordering_key or "", id=message.id, body=json.dumps(body))
        message.ack()

    return handle


async def read(reading: Reading) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    record = Recorder(Path(reading.folder), reading.who)
    async with PubSub(reading.url) as pubsub:
        subscriptions = [pubsub.subscription(name) for name in reading.subscriptions]
        for subscription in subscriptions:
            subscription.on("message", _handler(record, subscription.name))
            subscription.on("error", lambda _: None)
            subscription.open(max_messages=100)
        if not reading.is_last:
            await stopping.wait()
            return
        for subscription in subscriptions:
            await subscription.wait_until_empty()


if __name__ == "__main__":
    try:
        asyncio.run(read(Reading(**json.loads(sys.argv[1]))))
    except StoreError as error:  # its owner is gone, or somebody else opens the store: the next life tries again
        sys.exit(f"ended: {type(error).__name__}: {error}")
