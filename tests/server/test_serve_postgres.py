"""``seriatim serve`` on PostgreSQL: as on a file, and with a second server that stands by."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from tests.postgres import server
from tests.server.conftest import make_ordered, publish
from tests.server.served import PATIENCE, SUBSCRIPTION, Clients, Raw, ServerProcess
from tests.server.test_resources import take

Serve = Callable[..., ServerProcess]
LEASE = 60.0
"""Seconds. Much longer than a test: nobody waits for the lease of an owner that is seen to be dead."""


@pytest.fixture
def url() -> str:
    return server().new_url(lease=LEASE)


@contextmanager
def clients_of(served: ServerProcess) -> Iterator[Clients]:
    clients = Clients(f"127.0.0.1:{served.port}")
    try:
        yield clients
    finally:
        clients.close()


def take_all_by_key(raw: Raw, count: int) -> dict[str, list[str]]:
    """Take and ack messages as they come; their data begins with their key."""
    by_key: dict[str, list[str]] = {}
    for _ in range(count):
        for data in take(raw, 1):
            by_key.setdefault(data[0], []).append(data[1:])
    return by_key


def test_a_nacked_message_comes_again_before_those_behind_it(serve: Serve, url: str):
    with clients_of(serve(url)) as clients:
        make_ordered(clients)
        raw = clients.raw()
        stream = raw.stream()
        publish(raw, "0", "1", "2")
        came = []
        for is_nacked in (False, True, False, False):
            (received,) = stream.take(1)
            came.append(received.message.data.decode())
            (stream.nack if is_nacked else stream.ack)(received)
        assert came == ["0", "1", "1", "2"]


def test_killed_and_started_again_nothing_is_lost_or_out_of_order(serve: Serve, url: str):
    killed = serve(url)
    with clients_of(killed) as clients:
        make_ordered(clients)
        raw = clients.raw()
        for key in "ab":
            publish(raw, *(f"{key}{number}" for number in range(10)), key=key)
        done = take_all_by_key(raw, 5)
        held = raw.Pull(subscription=SUBSCRIPTION, max_messages=2).received_messages
        killed.kill()
    assert held, "some are out when it is killed"
    with clients_of(serve(url)) as clients:
        raw = clients.raw()
        publish(raw, "a10", key="a")
        left = take_all_by_key(raw, 16)
    assert done.get("a", []) + left["a"] == [str(number) for number in range(11)]
    assert done.get("b", []) + left["b"] == [str(number) for number in range(10)]


def test_a_standby_serves_when_the_first_server_is_killed(serve: Serve, url: str):
    first = serve(url)
    standby = serve(url, 0, "--standby", waits=True)
    with clients_of(first) as clients:
        make_ordered(clients)
        raw = clients.raw()
        publish(raw, "0", "1", "2")
        assert take(raw, 1) == ["0"]
        until_somebody_stands_by()
        assert not standby.is_ready, "a store has one owner"
        first.kill()
    with clients_of(standby) as clients:
        assert [take(clients.raw(), 1) for _ in range(2)] == [["1"], ["2"]]
    assert standby.terminate() == 0


def until_somebody_stands_by() -> None:
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND NOT granted"
    deadline = monotonic() + PATIENCE
    while not server().ask(waiting):
        assert monotonic() < deadline, "nobody stands by"


def test_the_password_is_on_no_output(url: str):
    """The server of the tests asks for none, so that any will do."""
    mark = "&" if "?" in url else "?"
    command = [
        sys.executable,
        "-m",
        "seriatim",
        "-vv",
        "serve",
        "--port",
        "0",
        "--store",
        f"{url}{mark}password=hunter2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    rest, errors = process.communicate(timeout=PATIENCE)
    assert "password=***" in line
    assert "hunter2" not in line + rest + errors
