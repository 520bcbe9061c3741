"""Clean-up: removes unneeded data from the store, a while after a change, and in small pieces."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from seriatim.engine.registry import Registry
from seriatim.errors import SeriatimError, StoreError
from seriatim.log import logger

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine

PAUSE_S = 1.0
"""How long after a change clean-up begins, so that it is worth while and disturbs little."""

REST = 9.0
"""After a piece it pauses for this many times the duration of the piece, so that it delays few messages."""

UNHURRIED_PIECES = 1000
"""After this many pieces without reaching the end it pauses only as long as it works, because it may be falling behind."""

IDLE_PAUSE_S = 3600.0
"""How often it looks for data that expires without any change."""


class Upkeep:
    """A task that cleans up. Every change sets ``changed``."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine, self._registry = engine, registry
        self.changed = asyncio.Event()
        self.task = asyncio.create_task(self._keep_up(), name="seriatim-upkeep")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _keep_up(self) -> None:
        recovery = self._engine.recovery
        while recovery.down is None:
            with suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the event.
                async with asyncio.timeout(IDLE_PAUSE_S):
                    await self.changed.wait()
            await asyncio.sleep(PAUSE_S)
            self.changed.clear()
            try:
                await self.clean_up()
            except SeriatimError as error:
                recovery.failed(error)
            except Exception:  # noqa: BLE001 - nobody else would clean up
                logger.exception("clean-up failed and will be tried again after the next change")

    async def clean_up(self) -> None:
        """Clean up now, in pieces between which others may write."""
        engine, time, writer = self._engine, asyncio.get_running_loop().time, self._engine.recovery.committer.writer
        if self.settle_rejected():
            await engine.drain()
        for pieces in count(1):
            begin, writer.is_shared = time(), True
            try:
                report = await engine.read(lambda store: store.upkeep(engine.now()))
            finally:
                writer.is_shared = False
            if not report.more_to_do:
                return
            await asyncio.sleep((time() - begin) * (REST if pieces < UNHURRIED_PIECES else 1))

    def settle_rejected(self) -> bool:
        """Settle messages rejected by filters in the next commit; False if there are none, or writing has ended."""
        try:
            return sum(subscription.filter.settle() for subscription in self._registry.subscriptions.values()) > 0
        except StoreError:
            return False
