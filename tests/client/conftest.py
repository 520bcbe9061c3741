from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seriatim import Message, PubSub
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic

Scenario = Callable[[PubSub], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite"])
def run(request, tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario on a new store of each kind."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    return lambda scenario: asyncio.run(_with_pubsub(url, scenario))


@pytest.fixture
def run_with_restarts(tmp_path: Path) -> Callable[..., None]:
    """Run scenarios on one store, which is closed between them, and opened again."""

    def run(*scenarios: Scenario) -> None:
        for scenario in scenarios:
            asyncio.run(_with_pubsub(f"sqlite:///{tmp_path}/store.db", scenario))

    return run


async def _with_pubsub(url: str, scenario: Scenario) -> None:
    async with asyncio.timeout(20), PubSub(url) as pubsub:
        await scenario(pubsub)


async def ordered(pubsub: PubSub, **options) -> tuple[Topic, Subscription]:
    """A topic, and a subscription that is ordered by default."""
    topic = await pubsub.topic("ordered-events").create()
    subscription = await topic.subscription("ordered-sub").create(**options)
    return topic, subscription


async def publish(topic: Topic, *data: str, key: str | None = "k") -> list[str]:
    return [await topic.publish(one.encode(), ordering_key=key) for one in data]


def offset_in(message_id: str) -> int:
    """The offset that an id names: it is the id, or on Kafka what follows the partition."""
    return int(message_id.rpartition("-")[2])


class Received:
    """What a handler saw, and a way to wait for so many."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._news = asyncio.Event()

    @property
    def data(self) -> list[str]:
        return [message.data.decode() for message in self.messages]

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._news.set()

    def add_and_ack(self, message: Message) -> None:
        self.add(message)
        message.ack()

    async def wait(self, count: int) -> list[str]:
        while len(self.messages) < count:
            self._news.clear()
            await self._news.wait()
        return self.data
