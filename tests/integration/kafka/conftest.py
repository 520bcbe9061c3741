"""Scenarios on Kafka: every test gets a broker without topics, with four partitions for each topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from seriatim import PubSub
from tests.kafka_broker import KafkaBroker

OPTIONS = "partitions=4&session_timeout=6&max_poll_interval=10"
PATIENCE_S = 60.0


@pytest.fixture
def kafka_url(kafka: KafkaBroker) -> Iterator[str]:
    """The address of a Kafka that has no topics, and has none again afterwards."""
    yield f"kafka://{kafka.bootstrap}?{OPTIONS}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    if names := [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]:
        for deleted in admin.delete_topics(names, operation_timeout=30).values():
            deleted.result()
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    for gone in admin.delete_consumer_groups(groups).values() if groups else ():
        gone.exception()


@pytest.fixture
def run(kafka_url: str) -> Callable[[Callable[[PubSub], Awaitable[None]]], None]:
    """Run a scenario on Kafka, as the other stores run it: with one partition, because scenarios tell what comes first."""
    return lambda scenario: asyncio.run(_with_pubsub(kafka_url.replace("partitions=4", "partitions=1"), scenario))


async def _with_pubsub(url: str, scenario: Callable[[PubSub], Awaitable[None]]) -> None:
    async with asyncio.timeout(PATIENCE_S), PubSub(url) as pubsub:
        await scenario(pubsub)
