"""Readers: which queries clean-up waits for."""

from __future__ import annotations

import asyncio

from seriatim.config import Config
from seriatim.engine.connect import open_broker


async def register(url: str) -> None:
    broker = await open_broker(url)
    await broker.register_reader("pipeline", "orders", 1)
    await broker.close()


def test_readers_are_listed_and_deleted(seriatim, told, orders):
    for data in ("one", "two", "three"):
        told("messages", "publish", "orders", data)
    asyncio.run(register(Config().store))
    assert told("readers", "list") == [{"reader": "pipeline", "topic": "orders", "position": "1", "behind": 2}]
    assert seriatim("readers", "delete", "pipeline", "--yes").stdout == "deleted reader 'pipeline'\n"
    assert seriatim("readers", "list").stdout == "there are no readers\n"
    assert "does not exist" in seriatim("readers", "delete", "pipeline", "--yes").stderr
