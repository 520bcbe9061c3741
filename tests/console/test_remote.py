"""The admin API as the command line uses it: backups that are complete or absent, addresses, and standbys."""

from __future__ import annotations

import asyncio
import sqlite3
import tracemalloc

import pytest

from seriatim.console import ConsoleServer
from seriatim.console.remote import open_api
from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Outgoing
from seriatim.errors import AlreadyExists, FailedPrecondition, OutcomeUnknown, StoreBusy
from tests.certificates import new_certificate
from tests.console.consoles import OPERATOR, orders, running, tokens_file

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


def test_a_standby_leads_to_the_owner_of_the_store_if_tls_proves_it(tmp_path):
    made = new_certificate()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)

    async def ask(owner: str, ca: str | None) -> list[str | None]:
        standby = ConsoleServer(None, port=0, access=Access.load(tokens_file(tmp_path)))
        standby.console.find_owner = lambda: owner
        await standby.start()
        api = open_api(standby.address, OPERATOR, ca)
        try:
            await api.pause_key("shipping", "order-6", "through a standby")
            return [info.key for info in await api.list_keys("shipping", state="paused")]
        finally:
            await standby.stop()

    with running(tmp_path, tls=(certificate, key)) as owner:
        assert asyncio.run(ask(owner.address, str(certificate))) == ["order-2", "order-6"]
        with pytest.raises(FailedPrecondition, match="your token was not sent"):
            asyncio.run(ask(owner.address, None))
    with running(tmp_path) as owner, pytest.raises(StoreBusy, match=f"its owner is at {owner.address}"):
        asyncio.run(ask(owner.address, None))
