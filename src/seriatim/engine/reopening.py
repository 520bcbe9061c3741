"""A store that failed is opened again.

Rules
    - After a commit whose outcome nobody knows, and after anything else that made the handle useless (a lost connection), the
      old handle is closed and a new one is opened. While that fails for a reason that may pass, it is tried again after a
      pause that doubles.
    - The ownership of the store is free for a moment meanwhile. Whoever takes it raises the epoch of the store, so an epoch
      that is not the one after ours says that somebody else was there. Then, and when somebody else is there now, the store
      is lost: opening it by force would take it away from its new owner.
    - An opening that failed half-way may itself have raised the epoch. That looks the same, and counts the same: rather down
      than two owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from seriatim.errors import OutcomeUnknown, StoreBroken, StoreBusy, StoreFailed, StoreFull, StoreLost, StoreOwned
from seriatim.log import logger
from seriatim.store.base import Store

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0

Opener = Callable[[], Store]


async def open_again(old: Store, opener: Opener, use: Callable[[Store], Awaitable[None]]) -> Store:
    """Close a store, open it again, and ``use`` it; raises StoreLost when somebody else has it, or had it in between."""
    store, pause = old, FIRST_PAUSE
    while True:
        epoch = store.epoch
        await _close(store)
        try:
            store = await _open(opener, epoch)
            await use(store)
            return store
        except StoreOwned as error:
            raise StoreLost(f"another process took the store over: {error}") from error
        except (StoreBusy, StoreFull, StoreFailed, StoreBroken, OutcomeUnknown) as error:
            logger.warning("the store can't be opened again yet, next try in %s seconds: %s", pause, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _open(opener: Opener, epoch: int) -> Store:
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, opener)
    try:
        store = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread goes on, and nobody will have what it opens.
        opening.add_done_callback(_close_unwanted)
        raise
    if store.epoch != epoch + 1:
        await _close(store)
        raise StoreLost(
            f"another process has owned the store since it failed (its epoch is {store.epoch}, not {epoch + 1}): "
            "end this program, and start it again"
        )
    return store


def _close_unwanted(opening: asyncio.Future[Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _close(store: Store) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(None, store.close)
    except Exception as error:  # noqa: BLE001 - it failed already; what counts is whether it can be opened again
        logger.warning("the failed store could not be closed: %s", error)
