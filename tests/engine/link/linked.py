"""A served engine, and a way to reach it over the link."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.link.remote import RemoteBroker
from seriatim.engine.link.server import LinkServer
from seriatim.store import open_store


class Linked:
    """An engine that is served, and a way to reach it."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.engine = engine
        self.path = path
        self.server = LinkServer(cast(Broker, engine), path)

    async def client(self) -> Broker:
        return cast(Broker, await RemoteBroker.connect(self.path))


@asynccontextmanager
async def linked(tmp_path: Path, store=None):
    """A served engine on a memory store."""
    engine = Engine(store or open_store("memory://"))
    await engine.start()
    link = Linked(engine, tmp_path / "store.db.sock")
    await link.server.start()
    try:
        yield link
    finally:
        await link.server.close()
        await engine.close()


def run_bounded(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario, which may not take for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


def outgoing(*data: str, key: str | None = "k") -> list[Outgoing]:
    return [Outgoing(key, one.encode()) for one in data]
