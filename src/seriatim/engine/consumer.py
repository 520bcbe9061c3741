"""Who takes messages from a subscription, and how much it takes at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from seriatim.core.delivery import Lease
from seriatim.store.base import Record

TURN = 64
"""How many messages a consumer gets before the next one has its turn."""


class Delivered(NamedTuple):
    """A message given out under a lease."""

    lease: Lease
    record: Record


class Consumer:
    """Somebody who takes messages: ``deliver`` is called with them, ``fenced`` with leases that are lost, ``failed`` with what
    the store did wrong.

    It has room while fewer than ``max_messages`` and less than ``max_bytes`` are outstanding.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Delivered]], None],
        fenced: Callable[[Lease], None] = lambda _: None,
        max_messages: int = 1000,
        max_bytes: float = inf,
        failed: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self.deliver = deliver
        self.fenced = fenced
        self.failed = failed
        # to be called when it has room for another reason than what it said
        self.wake: Callable[[], None] = lambda: None
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.leases: dict[int, Lease] = {}  # what is outstanding, by offset
        self.batches: deque[list[Lease]] = deque()  # what waits for a read
        self._sizes: dict[int, int] = {}
        self._bytes = 0

    def stop(self) -> None:
        """Take nothing more; what is outstanding goes on."""
        self.max_messages = 0

    def room(self) -> int:
        """How many messages it takes now."""
        if self._bytes >= self.max_bytes:
            return 0
        # With a limit on bytes one at a time: how large a message is, is known only when it is at hand.
        return min(self.max_messages - len(self.leases), TURN if self.max_bytes == inf else 1)

    def weigh(self, delivered: Sequence[Delivered]) -> None:
        """Count the bytes of what it gets, if they are limited."""
        if self.max_bytes < inf:
            for lease, record in delivered:
                self._sizes[lease.offset] = len(record.data)
                self._bytes += len(record.data)

    def let_go(self, offset: int) -> Lease:
        if self._sizes:
            self._bytes -= self._sizes.pop(offset, 0)
        return self.leases.pop(offset)
