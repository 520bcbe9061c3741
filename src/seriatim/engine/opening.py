"""How a program gets a broker: one function, so that fronts need not know what kind of broker an address leads to."""

from __future__ import annotations

from seriatim.engine.broker import Broker
from seriatim.engine.engine import Engine


async def open_broker(url: str) -> Broker:
    """The broker at ``url``: an engine in this process, which owns the store until it is closed."""
    return await Engine.open(url)  # type: ignore[return-value]  # until the engine can travel in time
