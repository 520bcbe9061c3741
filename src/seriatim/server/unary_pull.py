"""Unary pulls: all pulls from a subscription share one consumer.

Rules
    - A pull is answered as soon as there are messages, with all that are at hand, up to the requested number. If none arrive in
      time, the response is empty.
    - The consumer has room only for what pulls are waiting for. Pulled messages stay leased until they are acked or nacked, or
      until their deadline: there is no connection whose end could tell more.
    - A response is full when it has ``RESPONSE_FULL_BYTES`` bytes; the rest waits for the next pull.
    - Messages that arrive for a pull whose caller is gone are released, and the attempts do not count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from seriatim.engine.consumer import TURN, Consumer, Delivered
from seriatim.server.consumers import ConsumerRegistry, RegisteredConsumer, is_final

RESPONSE_FULL_BYTES = 2 * 1024 * 1024


class _Taker(Consumer):
    """A consumer with room for as many messages as pulls are waiting for."""

    def __init__(self, puller: Puller) -> None:
        super().__init__(puller.deliver, failed=puller.fail)
        self._puller = puller

    def room(self) -> int:
        return 0 if self._puller.is_full else min(TURN, self._puller.missing())

    def weigh(self, delivered: Sequence[Delivered]) -> int:
        return self._puller.fitting(delivered)


class Puller:
    """The unary pulls of one subscription."""

    def __init__(self, members: ConsumerRegistry, subscription: str) -> None:
        self.error: BaseException | None = None
        self._wanted = 0
        self._ready: deque[Delivered] = deque()
        self._size = 0  # bytes of what is ready
        self._changed = asyncio.Event()
        self._consumer = _Taker(self)
        self.member: RegisteredConsumer = members.join(subscription, self._consumer)

    async def pull(self, most: int, wait: float) -> list[Delivered]:
        """Up to ``most`` messages, at least one unless none comes within ``wait`` seconds."""
        self._wanted += most
        self._consumer.wake()
        found: list[Delivered] = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not found:
                        await self._changed.wait()
                        found = self._take(most)
        finally:
            self._wanted -= most
            while self.missing() < 0:  # it came for a caller who has gone, and nobody else waits for it
                lease, record = self._ready.pop()
                self._size -= len(record.data)
                self._consumer.give_back([lease])
        return found

    # -- for the consumer -----------------------------------------------------------------------------------------------

    def missing(self) -> int:
        """How many messages pulls are still waiting for."""
        return self._wanted - len(self._ready)

    @property
    def is_full(self) -> bool:
        """Whether the messages at hand fill a response."""
        return self._size >= RESPONSE_FULL_BYTES

    def fitting(self, delivered: Sequence[Delivered]) -> int:
        """How many of these messages still fit."""
        for number, (_, record) in enumerate(delivered):
            if self.is_full:
                return number
            self._size += len(record.data)
        return len(delivered)

    def deliver(self, delivered: Sequence[Delivered]) -> None:
        self._ready += delivered
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """The subscription is gone, or the store."""
        if is_final(error):
            self.error = error
            self._changed.set()

    # -- how ------------------------------------------------------------------------------------------------------------

    def _take(self, most: int) -> list[Delivered]:
        if self.error is not None:
            raise self.error
        found: list[Delivered] = []
        while self._ready and len(found) < most:
            one = self._ready.popleft()
            self._size -= len(one.record.data)
            if self.member.attachment.holds(one.lease):  # it may have expired, or been fenced
                found.append(one)
        if not self._ready:
            self._changed.clear()
        self._consumer.wake()  # another pull may wait for what did not fit
        return found
