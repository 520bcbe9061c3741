"""Reopens a store that failed.

Rules
    - After a commit with an unknown outcome, and after any failure that makes the handle unusable (a lost connection), the old
      handle is closed and a new one is opened. If that fails for a temporary reason, it is retried after a pause that doubles.
    - In between, the store has no owner. Another owner would raise the epoch, so an epoch higher than our own attempts explain
      shows that there was one. In that case, and if there is another owner now, the store is lost: taking it by force would
      leave two programs that believe they own it.
    - An attempt that failed half-way may have raised the epoch, so each allows for one. An owner that came and went between two
      such attempts may go unnoticed. Its messages don't (``Registry.take``), and everything else is loaded again anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from seriatim.engine.uncancelled_wait import until_done
from seriatim.errors import OutcomeUnknown, StoreBroken, StoreBusy, StoreFailed, StoreFull, StoreLost, StoreOwned
from seriatim.log import logger
from seriatim.store.base import Store

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 5.0

Opener = Callable[[], Store]


async def open_again(old: Store, opener: Opener, use: Callable[[Store], Awaitable[None]]) -> Store:
    """Close a store, reopen it, and ``use`` it; raises StoreLost if another process owns it, or owned it in between."""
    highest, pause = old.epoch, FIRST_PAUSE_S
    await _close(old)
    while True:
        highest += 1
        try:
            return await _open_and_use(opener, highest, use)
        except StoreOwned as error:
            raise StoreLost(f"another process took the store over: {error}") from error
        except (StoreBusy, StoreFull, StoreFailed, StoreBroken, OutcomeUnknown) as error:
            logger.warning("the store can't be opened again yet, next try in %s seconds: %s", pause, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_S)


async def _open_and_use(opener: Opener, highest: int, use: Callable[[Store], Awaitable[None]]) -> Store:
    store = await _open(opener)
    try:
        if store.epoch > highest:
            raise StoreLost(
                f"another process has owned the store since it failed (its epoch is {store.epoch}, not {highest}): "
                "end this program, and start it again"
            )
        await use(store)
    except BaseException:
        await _close(store)
        raise
    return store


async def _open(opener: Opener) -> Store:
    opening = asyncio.get_running_loop().run_in_executor(None, opener)
    try:
        return await until_done(opening)
    except asyncio.CancelledError:
        if opening.exception() is None:  # a thread can't be stopped, and nobody will have what it opened
            await _close(opening.result())
        raise


async def _close(store: Store) -> None:
    """Whoever cancels this closes the store too, and must not do so at the same time: it is closed when this returns."""
    try:
        await until_done(asyncio.get_running_loop().run_in_executor(None, store.close))
    except Exception as error:  # noqa: BLE001 - it failed already; what counts is whether it can be opened again
        logger.warning("the failed store could not be closed: %s", error)
