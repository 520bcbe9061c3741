"""An event loop with virtual time: an hour of timers passes in a moment, and deterministically.

Rules
    - ``loop.time()`` stands still while anything can run. When nothing can, it jumps to the next timer.
    - Work in threads takes no virtual time: while a writer thread commits, or an executor runs a call, the loop waits in real
      time, and the clock stands still.
    - If no timer is set, no thread is at work and no file or socket is watched, the program is deadlocked. This raises, so a
      test that would hang fails instead.

Theory of operation
    An event loop asks its selector to wait until a file is ready or the next timer is due. Ours polls the files without
    waiting, and then advances the clock by the time that it was asked to wait. That would be wrong while a thread is about to
    call back. Work gets into threads in two ways, and both are counted. ``run_in_executor`` is overridden. The engine's writer
    threads are queried (``engine.committer.is_writing``): a commit counts as in progress from the moment when the loop hands it
    over until the loop has processed its end, so there is no gap in between.

    **Not covered**: threads that a test starts itself, and sockets. The clock doesn't wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import ulp
from selectors import DefaultSelector, SelectorKey
from typing import Any, TypeVar

from seriatim.engine.committer import is_writing
from seriatim.errors import FailedPrecondition

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module's rules. The clock begins at ``start``."""

    def __init__(self, start: float = 0.0) -> None:
        self._virtual_now = start
        self._calls_in_threads = 0
        super().__init__(_JumpingSelector(self._pass))
        self._set_resolution()

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self._virtual_now

    def run_in_executor(self, executor: Any, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Like asyncio's. Virtual time stands still until the call has ended."""
        future = super().run_in_executor(executor, function, *args)
        self._calls_in_threads += 1
        future.add_done_callback(self._call_ended)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Like asyncio's. Virtual time stands still until it has ended."""
        self._calls_in_threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._calls_in_threads -= 1

    def _call_ended(self, _: asyncio.Future[Any]) -> None:
        self._calls_in_threads -= 1

    def _pass(self, seconds: float | None, watches_files: bool) -> bool:
        """Advance virtual time instead of waiting; False if there is something real to wait for."""
        if self._calls_in_threads or is_writing(self):
            return False
        if seconds is None:
            if watches_files:
                return False
            raise FailedPrecondition(
                "deadlock: every task waits, no timer is set and no thread is at work; look for an event that is never set, "
                "or a message that is never published"
            )
        self._virtual_now += seconds
        self._set_resolution()
        return True

    def _set_resolution(self) -> None:
        """asyncio runs a timer that is due before ``time() + resolution``, which has to be a later moment: after half a year,
        a nanosecond is lost in the rounding."""
        self._clock_resolution = max(1e-9, ulp(self._virtual_now))


class _JumpingSelector(DefaultSelector):
    """A selector that advances virtual time instead of waiting."""

    def __init__(self, let_pass: Callable[[float | None, bool], bool]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        watches_files = len(self.get_map()) > 1  # besides the loop's own, through which threads wake it up
        return [] if self._let_pass(timeout, watches_files) else super().select(None)


def run_in_virtual_time(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """``asyncio.run`` on a loop with virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main)
