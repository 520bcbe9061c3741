"""Unary pulls: everybody who pulls from a subscription shares one consumer.

Rules
    - A pull is answered as soon as there is something, with all of it that is at hand, up to what was asked for. When nothing
      comes in time the answer is empty.
    - The consumer has room only for what somebody waits for. What was pulled stays leased until it is acked or nacked, or its
      deadline has passed: there is no connection whose end could say more.
    - A response is full when it has ``FULL_RESPONSE`` bytes; what does not fit stays where it was.
    - What came for a pull whose caller has gone is given back, and counts as not tried.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from seriatim.engine.consumer import TURN, Consumer, Delivered
from seriatim.server.consumers import Member, Members, is_final

FULL_RESPONSE = 2 * 1024 * 1024


class _Taker(Consumer):
    """Takes as much as is wanted, and nothing when nobody waits."""

    def __init__(self, puller: Puller) -> None:
        super().__init__(puller.deliver, failed=puller.fail)
        self._puller = puller

    def room(self) -> int:
        return 0 if self._puller.is_full else min(TURN, self._puller.missing())

    def weigh(self, delivered: Sequence[Delivered]) -> int:
        return self._puller.fitting(delivered)


class Puller:
    """The unary pulls of one subscription."""

    def __init__(self, members: Members, subscription: str) -> None:
        self.error: BaseException | None = None
        self._wanted = 0
        self._ready: deque[Delivered] = deque()
        self._size = 0  # bytes of what is ready
        self._news = asyncio.Event()
        self._consumer = _Taker(self)
        self.member: Member = members.join(subscription, self._consumer)

    async def pull(self, most: int, wait: float) -> list[Delivered]:
        """Up to ``most`` messages, at least one unless none comes within ``wait`` seconds."""
        self._wanted += most
        self._consumer.wake()
        found: list[Delivered] = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not found:
                        await self._news.wait()
                        found = self._take(most)
        finally:
            self._wanted -= most
            self._give_back_surplus()
        return found

    # -- for the consumer -----------------------------------------------------------------------------------------------

    def missing(self) -> int:
        """How many messages are waited for and have not come."""
        return self._wanted - len(self._ready)

    @property
    def is_full(self) -> bool:
        """Whether what is ready fills a response."""
        return self._size >= FULL_RESPONSE

    def fitting(self, delivered: Sequence[Delivered]) -> int:
        """How many of some messages are still taken."""
        for number, (_, record) in enumerate(delivered):
            if self.is_full:
                return number
            self._size += len(record.data)
        return len(delivered)

    def deliver(self, delivered: Sequence[Delivered]) -> None:
        self._ready += delivered
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """The subscription is gone, or the store."""
        if is_final(error):
            self.error = error
            self._news.set()

    # -- how ------------------------------------------------------------------------------------------------------------

    def _take(self, most: int) -> list[Delivered]:
        if self.error is not None:
            raise self.error
        found: list[Delivered] = []
        while self._ready and len(found) < most:
            one = self._ready.popleft()
            self._size -= len(one.record.data)
            if self.member.holds(one.lease):  # it may have expired, or been fenced, meanwhile
                found.append(one)
        if not self._ready:
            self._news.clear()
        self._consumer.wake()  # somebody else may wait for what did not fit
        return found

    def _give_back_surplus(self) -> None:
        """What came for a caller who has gone, and nobody else waits for."""
        while self.missing() < 0:
            lease, record = self._ready.pop()
            self._size -= len(record.data)
            self._consumer.give_back([lease])
