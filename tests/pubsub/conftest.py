from __future__ import annotations

from collections.abc import Iterator

import pytest

from seriatim.pubsub.options import ServerOptions
from tests.pubsub.served import DEAD, SUBSCRIPTION, TOPIC, Clients, Raw, ServerThread, server_in_thread


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """A server with a new store in memory, which lets leases be as short as a second."""
    with server_in_thread(options=ServerOptions(min_ack_deadline=1)) as server:
        yield server


@pytest.fixture
def clients(server: ServerThread) -> Clients:
    return server.clients


@pytest.fixture
def raw(clients: Clients) -> Raw:
    return clients.raw()


@pytest.fixture
def ordered(raw: Raw) -> Raw:
    """A topic with an ordered subscription."""
    raw.CreateTopic(name=TOPIC)
    raw.CreateTopic(name=DEAD)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)
    return raw


def publish(raw: Raw, *data: str, key: str = "k", **attributes: str) -> list[str]:
    messages = [{"data": one.encode(), "ordering_key": key, "attributes": attributes} for one in data]
    return list(raw.Publish(topic=TOPIC, messages=messages).message_ids)
