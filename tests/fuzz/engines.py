"""Targets with an engine behind them, on a memory store, which serves many inputs and is then opened anew."""

from __future__ import annotations

import asyncio

from seriatim.engine.engine import Engine


class EngineTarget:
    """Whatever goes wrong in the background is a finding, too."""

    INPUTS = 200

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._failures: list[object] = []

    def __call__(self, data: bytes) -> None:
        if self._loop is None or self._count >= self.INPUTS:
            self.close()
            self._loop, self._count = asyncio.new_event_loop(), 0
            self._loop.set_exception_handler(lambda _, context: self._failures.append(context))
            self._engine = self._loop.run_until_complete(Engine.open("memory://"))
            self._loop.run_until_complete(self.start(self._engine))
        self._count += 1
        self._loop.run_until_complete(self.take(self._engine, data))
        failures, self._failures = self._failures, []
        assert not failures, failures

    async def start(self, engine: Engine) -> None:
        raise NotImplementedError

    async def take(self, engine: Engine, data: bytes) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        """Before the engine is closed."""

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self.end())
            self._loop.run_until_complete(self._engine.close())
            self._loop.close()
            self._loop = None
