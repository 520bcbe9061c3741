"""What happens when the store fails: the commit is retried, the store is reopened, or the engine goes down.

Rules
    - The committer retries a commit that fails for a temporary reason. Only consumers are notified.
    - After a commit with an unknown outcome, and when the handle is unusable, the store is reopened (``store_reopening.py``).
      In the meantime leases are fenced, and requests wait.
    - If another process owns it then, or it is unusable, the engine is down for good, and all requests fail with the reason.
    - Leases are fenced only when no write is in progress that could still be confirmed.
    - An engine that is being closed waits for its store for ``OUTAGE_TIMEOUT_S``, and then goes down: handlers and publishers
      that wait for the store must not keep a program from exiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from seriatim.engine.committer import Committer
from seriatim.engine.deliveries import Pump
from seriatim.engine.registry import Registry
from seriatim.engine.store_reopening import Opener, open_again
from seriatim.errors import OutcomeUnknown, StoreBroken, StoreError, StoreLost
from seriatim.log import logger
from seriatim.store.base import Store

OUTAGE_TIMEOUT_S = 10.0
"""How long closing the engine waits for an unavailable store."""


class Recovery:
    """Decides what a failure of the store means for the committer and the subscriptions. ``down`` is the reason if the engine
    is down for good."""

    def __init__(
        self,
        store: Store,
        opener: Opener | None,
        registry: Registry,
        pump: Pump,
        load: Callable[[Store], Awaitable[None]],
        begin: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """``load`` continues with the contents of a store; ``begin`` starts work that is completed before the store is
        released."""
        self.committer = Committer(store, pump, self.failed)
        self._registry = registry
        self._opener, self._load, self._begin = opener, load, begin
        self.down: BaseException | None = None
        self.last_problem: tuple[float, str] | None = None  # when the store failed last, by the loop's clock, and how
        self._ready = asyncio.Event()  # not set while the store is opened again
        self._ready.set()
        self._reopening: asyncio.Task[None] | None = None
        self._outage_watch: asyncio.Task[None] | None = None

    @property
    def has_store(self) -> bool:
        """Whether the store can be read without waiting for it."""
        return self._ready.is_set() and self.down is None

    async def require_store(self) -> None:
        """Wait while the store is being reopened."""
        await self._ready.wait()
        if self.down is not None:
            raise self.down

    def failed(self, error: BaseException) -> None:
        """Something failed that no caller waits for: log it, and notify every consumer.

        When writing has ended for good, nothing more is delivered, either.
        """
        logger.error("the store failed: %s", error)
        self.last_problem = (self.committer.loop.time(), str(error))
        self._tell_consumers(error)
        if isinstance(error, OutcomeUnknown | StoreBroken) and self._opener is not None:
            self._open_again(error, self._opener)
        elif isinstance(error, OutcomeUnknown | StoreLost):
            self._go_down(error)

    def _tell_consumers(self, error: BaseException) -> None:
        for subscription in self._registry.subscriptions.values():
            subscription.deliveries.report(error)

    # -- opened again ---------------------------------------------------------------------------------------------------

    def _open_again(self, error: BaseException, opener: Opener) -> None:
        if self._ready.is_set() and self.down is None:
            self._ready.clear()
            self.committer.suspend(error)
            if not self.committer.is_writing:
                self._suspend_all(error)
            reopening = self._reopen(error, opener)
            self._reopening = asyncio.get_running_loop().create_task(reopening, name="seriatim-reopening")

    async def _reopen(self, error: BaseException, opener: Opener) -> None:
        """Release the old handle, open a new one, and continue from its contents."""
        await self.committer.come_to_rest(error)
        self._suspend_all(error)
        try:
            await open_again(self.committer.store, opener, self._load)
        except StoreError as lost:
            self._tell_consumers(lost)
            self._go_down(lost)
            return
        logger.warning("the store was opened again")
        self.committer.resume()
        self._ready.set()

    def _suspend_all(self, error: BaseException) -> None:
        for subscription in self._registry.subscriptions.values():
            subscription.suspend(error)

    # -- down -----------------------------------------------------------------------------------------------------------

    def _go_down(self, error: BaseException) -> None:
        """Go down for good: all current and later requests fail with this error."""
        self.down = self.down or error
        self.committer.fail(self.down)
        self._ready.set()
        if not self.committer.is_writing:
            self._close_all(self.down)
        else:
            self._begin(self._come_to_an_end(self.down))
        logger.error("the engine is down: %s", self.down)

    async def _come_to_an_end(self, error: BaseException) -> None:
        await self.committer.come_to_rest(error)
        self._close_all(error)

    def _close_all(self, error: BaseException) -> None:
        self._suspend_all(error)
        for subscription in self._registry.subscriptions.values():
            subscription.close(error)

    # -- closed ---------------------------------------------------------------------------------------------------------

    def begin_closing(self) -> None:
        if self._outage_watch is None:
            watch = self._limit_outage()
            self._outage_watch = asyncio.get_running_loop().create_task(watch, name="seriatim-outage-watch")

    async def _limit_outage(self) -> None:
        """Go down if the store has been unavailable for too long."""
        now = asyncio.get_running_loop().time
        began = now()
        while True:
            since = self.committer.failing_since
            left = OUTAGE_TIMEOUT_S if since is None else max(since, began) + OUTAGE_TIMEOUT_S - now()
            if left <= 0:
                break
            await asyncio.sleep(left)
        if not await self._stop_reopening():
            self._go_down(StoreLost("the engine was closed while its store could not be written"))

    async def stop(self) -> None:
        """Stop waiting for the store."""
        if self._outage_watch is not None:
            self._outage_watch.cancel()
            await asyncio.wait([self._outage_watch])
        await self._stop_reopening()

    async def _stop_reopening(self) -> bool:
        """Stop reopening the store; whether it was being reopened."""
        if self._reopening is None or self._reopening.done():
            return False
        self._reopening.cancel()
        await asyncio.wait([self._reopening])
        self._go_down(StoreLost("the engine was closed before its store could be opened again"))
        return True
