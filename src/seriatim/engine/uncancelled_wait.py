"""Waiting for work that must be completed."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def until_done(work: asyncio.Future[T]) -> T:
    """Wait for ``work``, even if the wait is cancelled; the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 - it is the result of the work
            pass
    if cancelled is not None:
        raise cancelled
    return work.result()
