"""Work that Ctrl-C and SIGTERM end cleanly.

The first signal cancels the work; whatever it opened is then closed as always, and the exit status is that of the signal (130
or 143). A second signal kills the process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, TypeVar

import click

T = TypeVar("T")

STOPPING = (signal.SIGINT, signal.SIGTERM)


def run_until_signal(work: Callable[[AsyncExitStack], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` in an event loop of its own. What it puts on the stack is closed at its end, or when it is stopped."""
    with asyncio.Runner() as runner:
        return runner.run(_run(work))


async def _run(work: Callable[[AsyncExitStack], Coroutine[Any, Any, T]]) -> T:
    stack = AsyncExitStack()
    task = asyncio.create_task(work(stack))
    with _SignalTrap(task) as trap:
        try:
            # Closing is not part of the task: a signal may cancel the work, and never the cleaning up.
            async with stack:
                await asyncio.wait([task])
                return task.result()
        except asyncio.CancelledError:
            if trap.caught is None:
                raise
            raise click.exceptions.Exit(128 + trap.caught) from None


class _SignalTrap:
    """Cancels a task at the first signal that asks to stop. The next one finds nobody listening."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.caught: int | None = None
        self._task = task
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> _SignalTrap:
        for number in STOPPING:
            self._loop.add_signal_handler(number, self._catch, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in STOPPING:
            self._loop.remove_signal_handler(number)

    def _catch(self, number: int) -> None:
        self.caught = number
        self.__exit__(None, None, None)
        self._task.cancel()
