"""Who waits for something to become durable, and hears of it, or of the reason why it did not."""

from __future__ import annotations

import asyncio
from functools import partial

from seriatim.engine.broker import Told


class Promises:
    """What a subscription owes: answers about single messages, by their offsets, and about whole commits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: dict[int, Told] = {}
        self._open: dict[asyncio.Future[None], None] = {}  # in the order in which they were made

    def __bool__(self) -> bool:
        """Whether anybody waits for a message."""
        return bool(self._told)

    def expect(self, offset: int, told: Told) -> None:
        """Somebody wants to hear what becomes of a message."""
        self._told[offset] = told

    def of(self, offset: int) -> asyncio.Future[None]:
        """What becomes of a message, as a future."""
        promise, self._told[offset] = self.new()
        return promise

    def new(self) -> tuple[asyncio.Future[None], Told]:
        """A future, and how to keep what it promises, or to say why not."""
        promise: asyncio.Future[None] = self._loop.create_future()
        self._open[promise] = None
        promise.add_done_callback(self._open.pop)
        return promise, partial(_tell_future, promise)

    def tell(self, offset: int, error: BaseException | None) -> None:
        """A message is settled for good, or will not be."""
        if (told := self._told.pop(offset, None)) is not None:
            told(error)

    def break_all(self, error: BaseException) -> None:
        """Nothing more becomes durable."""
        for offset in list(self._told):
            self.tell(offset, error)
        for promise in list(self._open):
            _tell_future(promise, error)


def _tell_future(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def all_of(*futures: asyncio.Future[None]) -> None:
    await asyncio.gather(*futures)
