"""Changes that look before they write, one after another for each resource.

Rules
    - What is decided from the present state of a resource (a mask applied to it, a revision added to it) is decided and carried
      out in one turn, and no other change of that resource comes in between.
    - A call that has begun is finished, also when its caller has gone (``calls.py``), so nobody leaves in the middle of a turn.
    - Whoever needs two resources takes the subscription first, then its topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Whose turn it is to change a resource, for all resources of one kind by their names."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._wanted: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Nobody else changes the resource of this name meanwhile."""
        self._wanted[name] += 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                yield
        finally:
            self._wanted[name] -= 1
            if not self._wanted[name]:
                del self._wanted[name], self._locks[name]
