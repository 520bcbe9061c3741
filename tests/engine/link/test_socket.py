"""The socket beside a store: whose it is, who may use it, and what strangers can do to it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from seriatim.engine.connect import open_broker
from seriatim.engine.link import address, frames, remote, server
from seriatim.engine.link.address import Listener, socket_path
from seriatim.errors import (
    FailedPrecondition,
    StoreLost,
)
from tests.engine.conftest import ids
from tests.engine.link.linked import outgoing, run_bounded

# -- the socket --------------------------------------------------------------------------------------------------------


def test_the_socket_is_for_its_user_only_from_its_first_moment(tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(Path, "chmod", lambda path, _: modes.append(stat.S_IMODE(path.stat().st_mode)))
    listener = Listener(tmp_path / "store.db.sock")
    assert modes == [0o600]
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
    listener.close()
    assert not listener.path.exists()


class Claims:
    """The end of a connection whose user is as told."""

    def __init__(self, user: int) -> None:
        self._user = user

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        return struct.pack("3i", 4711, self._user, 100)


@pytest.mark.parametrize(("user", "enters"), [(1000, True), (0, True), (1001, False), (65534, False)])
def test_only_the_same_user_and_root_may_enter(monkeypatch, user, enters):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert address.is_allowed(cast(socket.socket, Claims(user))) is enters


def test_the_user_of_a_connection_is_asked_of_the_operating_system():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert address.peer_user(ours) == os.getuid()


def test_another_user_is_turned_away(run_linked, monkeypatch, caplog):
    async def scenario(link, client):
        monkeypatch.setattr(server, "is_allowed", lambda _: False)
        with pytest.raises(ConnectionResetError):
            await link.client()
        assert "a connection of another user was refused" in caplog.text
        assert await client.list_topics(), "those who are in stay"

    run_linked(scenario)


def test_a_socket_that_a_dead_owner_left_is_replaced(tmp_path):
    path = tmp_path / "store.db.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    listener = Listener(path)
    address.connect(path).close()
    listener.close()


def test_a_socket_that_is_not_its_own_is_not_removed(tmp_path):
    path = tmp_path / "store.db.sock"
    former = Listener(path)
    successor = Listener(path)
    former.close()
    address.connect(path).close()
    successor.close()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_not_touched(tmp_path, caplog):
    async def scenario() -> None:
        broker = await open_broker(f"sqlite:///{tmp_path}/store.db")
        await broker.create_topic("t")
        await broker.close()

    path = tmp_path / "store.db.sock"
    path.write_text("mine")
    run_bounded(scenario)
    assert path.read_text() == "mine"
    assert "is in the way of the store's socket" in caplog.text


@pytest.mark.parametrize("folder", ["f" * 10, "f" * 150], ids=["short folder", "long folder"])
@pytest.mark.parametrize("name", ["store.db", "s" * 150], ids=["short name", "long name"])
def test_a_store_with_a_long_path_is_reached_all_the_same(tmp_path, folder, name):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/{folder}/{name}"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.create_topic("t")
        assert [one.name for one in await other.list_topics()] == ["t"]
        await other.close()
        await owner.close()
        assert not socket_path(tmp_path / folder / name).exists()

    (tmp_path / folder).mkdir(parents=True)
    run_bounded(scenario)


def test_long_names_that_differ_have_sockets_that_differ():
    long = "s" * 150
    assert socket_path(Path(f"/d/{long}a")) != socket_path(Path(f"/d/{long}b"))
    assert socket_path(Path("/d/store.db")) == Path("/d/store.db.sock")


# -- strangers ---------------------------------------------------------------------------------------------------------


def test_another_version_of_the_link_is_refused_and_the_error_says_what_to_do(run_linked, monkeypatch):
    async def scenario(link, client):
        monkeypatch.setattr(remote, "VERSION", frames.VERSION + 1)
        with pytest.raises(FailedPrecondition, match=r"speaks version 6 .* version 7: run the same version"):
            await link.client()
        assert await client.list_topics()

    run_linked(scenario)


async def hang_up_is_heard(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(5):
        while await reader.read(65536):
            pass


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 16,
        struct.pack("!II", 2, 0) + b"{}",
        struct.pack("!II", 6, 0) + b'["No"]',
        frames.encode(frames.Detach(1)),
        frames.encode(frames.Hello(frames.VERSION, 1)) + frames.encode(frames.Durable([1])),
        frames.encode(frames.Hello(frames.VERSION, 1)) + 2 * frames.encode(frames.Attach(1, "s", 1, 1.0)),
    ],
    ids=["http", "too large", "no list", "no message", "no greeting", "an answer", "a channel twice"],
)
def test_whoever_does_not_speak_the_language_is_hung_up_on_and_nobody_else(run_linked, said, caplog):
    async def scenario(link, client):
        reader, writer = await asyncio.open_unix_connection(str(link.path))
        writer.write(said)
        await hang_up_is_heard(reader)
        writer.close()
        assert await client.list_topics()
        assert "an invalid frame" in caplog.text

    run_linked(scenario)


def test_whoever_does_not_greet_is_hung_up_on(run_linked, monkeypatch):
    monkeypatch.setattr(server, "GREETING_TIMEOUT_S", 0.05)

    async def scenario(link, client):
        reader, writer = await asyncio.open_unix_connection(str(link.path))
        await hang_up_is_heard(reader)
        writer.close()

    run_linked(scenario)


# -- forks -------------------------------------------------------------------------------------------------------------


def in_a_forked_child(check: Callable[[], object]) -> None:
    """Run ``check`` in a forked child and see that it did not raise."""
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException as error:  # noqa: BLE001
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_in_a_forked_child_the_link_refuses_everything_and_the_parent_goes_on(tmp_path):
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/store.db"
        owner, other = await open_broker(url), await open_broker(url)
        await owner.create_topic("t")

        def refused() -> None:
            with pytest.raises(StoreLost, match="does not survive a fork"):
                other.publish("t", outgoing("1"))

        in_a_forked_child(refused)
        assert await other.publish("t", outgoing("1")) == ids(1)
        await other.close()
        await owner.close()

    run_bounded(scenario)


def test_a_forked_child_keeps_no_socket_of_the_link_open(run_linked):
    async def scenario(link, client):
        sockets = [link.server._listener.socket, *(one for one in list(address._open) if one.fileno() >= 0)]
        assert len(sockets) >= 3

        def closed() -> None:
            assert [one for one in sockets if one.fileno() >= 0] == []

        in_a_forked_child(closed)

    run_linked(scenario)
