from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from seriatim.server.options import ServerOptions
from tests.server.served import DEAD, SUBSCRIPTION, TOPIC, Clients, Raw, ServerProcess, ServerThread, server_in_thread


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """A server with a new store in memory, which lets leases be as short as a second."""
    with server_in_thread(options=ServerOptions(min_ack_deadline=1)) as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerProcess]]:
    """Start server processes, and wait until they serve; whatever is still running at the end of a test is killed."""
    started: list[ServerProcess] = []

    def start(*given: str | int, waits: bool = False) -> ServerProcess:
        started.append(ServerProcess(*given))  # type: ignore[arg-type]
        assert waits or started[-1].ready
        return started[-1]

    yield start
    for server in started:
        server.kill()


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


def make_ordered(clients: Clients) -> None:
    """The same through a server that is a process, with leases that do not run out."""
    raw = clients.raw()
    raw.CreateTopic(name=TOPIC)
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True, ack_deadline_seconds=60)


def publish(raw: Raw, *data: str, key: str = "k", **attributes: str) -> list[str]:
    messages = [{"data": one.encode(), "ordering_key": key, "attributes": attributes} for one in data]
    return list(raw.Publish(topic=TOPIC, messages=messages).message_ids)
