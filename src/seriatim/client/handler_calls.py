"""Running handlers, and waiting for them to end.

Rules
    - A call of a handler is running from the moment it is scheduled until its task is done.
    - Callers outside of handlers wait until nothing is running.
    - A handler may wait, too, if it closes its own subscription or another one. It does not wait for itself, nor for handlers
      that wait in the same way. Otherwise two handlers that close each other's subscription would deadlock.

Theory of operation
    Each call has a mark in its context, which is inherited by the tasks that the handler starts, and by the worker threads of
    the blocking API. This is how ``wait`` knows that a handler called it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any


class _Call:
    """One call of a handler."""

    __slots__ = ("calls", "is_over", "waits")

    def __init__(self, calls: HandlerCalls) -> None:
        self.calls = calls
        self.is_over = False
        self.waits = 0  # how many times it waits for other handlers just now


_current: ContextVar[_Call | None] = ContextVar("seriatim-handler", default=None)


def inside_handler() -> bool:
    """Whether this is called by a handler that has not ended, directly or by a task that it started."""
    call = _current.get()
    return call is not None and not call.is_over


def leave_handler() -> None:
    """Separate this task from the handler that started it."""
    _current.set(None)


class HandlerCalls:
    """The running handlers of one consumer or PubSub."""

    def __init__(self, when_idle: Callable[[], None] = lambda: None) -> None:
        self._when_idle = when_idle
        self._running: dict[_Call, asyncio.Task[None]] = {}
        self._waiting = 0  # how many of them wait for others
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """Whether anything is at work."""
        return bool(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, which handles its own errors, in a task."""
        call = _Call(self)
        task = asyncio.get_running_loop().create_task(_run(call, work))
        self._running[call] = task

        def done(_: asyncio.Task[None]) -> None:
            work.close()  # in case it was cancelled before it began
            self._ended(call)

        task.add_done_callback(done)

    async def wait(self) -> None:
        """Wait until nothing is running or, inside a handler, until everything else has ended or is waiting, too."""
        mine = _current.get()
        if mine is None or mine.is_over:
            while self._running:
                await self._change()
            return
        mine.waits += 1
        mine.calls.count_waiting(mine.waits == 1)
        try:
            if self._waiting < len(self._running):
                await self._change()  # then they all waited, and each may go on, whatever the others do next
        finally:
            mine.waits -= 1
            mine.calls.count_waiting(-(mine.waits == 0))

    def count_waiting(self, more: int) -> None:
        self._waiting += more
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        if self._waiting < len(self._running):
            return  # nobody could go on
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _ended(self, call: _Call) -> None:
        call.is_over = True
        del self._running[call]
        self._wake_waiters()
        if not self._running:
            self._when_idle()


async def _run(call: _Call, work: Coroutine[Any, Any, None]) -> None:
    _current.set(call)
    await work
