"""A backup that is downloaded: piece by piece into a file that is there when it is complete, and otherwise not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import tracemalloc

import pytest

from seriatim.console.remote import open_api
from seriatim.engine.broker import Outgoing
from seriatim.errors import AlreadyExists, OutcomeUnknown
from tests.console.consoles import OPERATOR, orders, running

MEBIBYTE = 1024 * 1024


async def large(engine):
    await orders(engine)
    for _ in range(16):
        await engine.publish("orders", [Outgoing("large", b"x" * MEBIBYTE)])


def test_a_backup_is_never_in_memory_as_a_whole(tmp_path):
    with running(tmp_path, large, f"sqlite:///{tmp_path}/a.db") as console:
        api, copy = open_api(console.address, OPERATOR), tmp_path / "copy.db"
        tracemalloc.start()
        try:
            asyncio.run(api.backup(str(copy)))
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert copy.stat().st_size > 16 * MEBIBYTE
        assert most < 8 * MEBIBYTE
        assert copy.stat().st_mode & 0o777 == 0o600
        with pytest.raises(AlreadyExists, match="choose another name"):
            asyncio.run(api.backup(str(copy)))
    connection = sqlite3.connect(copy)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_download_that_breaks_off_leaves_nothing(tmp_path):
    async def scenario():
        async def break_off(reader, writer):
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 10)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(break_off, "127.0.0.1", 0)
        async with server:
            api = open_api(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", OPERATOR)
            with pytest.raises(OutcomeUnknown, match="no answer"):
                await api.backup(str(tmp_path / "copy.db"))
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/login", "/", ""])
def test_the_address_that_the_console_prints_leads_to_its_api(tmp_path, path):
    with running(tmp_path) as console:

        async def ask() -> list[str]:
            api = open_api(f"{console.address}{path}?token={OPERATOR}")
            try:
                return [topic.name for topic in await api.list_topics()]
            finally:
                await api.close()

        assert "orders" in asyncio.run(ask())
