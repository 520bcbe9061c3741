"""How a command works on a store: it gets a broker, runs in one event loop, and ends cleanly.

Rules
    - A command is an async function whose first arguments are the broker and the output.
    - The first Ctrl-C or SIGTERM cancels the command; the broker is then closed as always, so that leases are given back and no
      lock or socket is left behind, and the exit status is that of the signal (130 or 143). A second one ends the process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.output import Output
from seriatim.cli.session import configured
from seriatim.config import LoadedConfig
from seriatim.errors import NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

STOPPING = (signal.SIGINT, signal.SIGTERM)

store_option = click.option("--store", metavar="URL", help="The store, if not the configured one.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


AsyncCommand = Callable[..., Coroutine[Any, Any, None]]


def with_broker(command: AsyncCommand) -> Callable[..., None]:
    """Make an async function a command with the options ``--store`` and ``--json``, on a store that exists."""
    return _with_broker(command, require_store)


def with_new_broker(command: AsyncCommand) -> Callable[..., None]:
    """The same on a store that is made if it does not exist."""
    return _with_broker(command, lambda _: None)


def require_store(url: str) -> None:
    """Raise when there is no store at ``url`` yet: a command that only looks makes none where an address is misspelt."""
    from seriatim.store import store_file

    file = store_file(url)
    if file is not None and not file.exists():
        raise NotFound(f"there is no store at '{file}': make one with 'seriatim topics create', or correct --store")


def _with_broker(command: AsyncCommand, admit: Callable[[str], None]) -> Callable[..., None]:
    @store_option
    @json_option
    @configured
    @wraps(command)
    def run(loaded: LoadedConfig, /, *args: Any, store: str | None, as_json: bool, **kwargs: Any) -> None:
        url, output = store or loaded.values.store, Output(as_json, progress=loaded.values.progress)
        admit(url)
        run_with_broker(url, lambda broker: command(broker, output, *args, **kwargs))

    return run


def run_with_broker(url: str, work: Callable[[Broker], Awaitable[None]]) -> None:
    """Open the broker at ``url``, let ``work`` use it, and close it."""
    with asyncio.Runner() as runner:
        runner.run(_run(url, work))


async def _run(url: str, work: Callable[[Broker], Awaitable[None]]) -> None:
    stack = AsyncExitStack()
    task = asyncio.create_task(_open_and_work(url, work, stack))
    with _SignalTrap(task) as trap:
        try:
            # Closing is not part of the task: a signal may cancel the work, and never the cleaning up.
            async with stack:
                await asyncio.wait([task])
                task.result()
        except asyncio.CancelledError:
            if trap.caught is None:
                raise
            raise click.exceptions.Exit(128 + trap.caught) from None


async def _open_and_work(url: str, work: Callable[[Broker], Awaitable[None]], stack: AsyncExitStack) -> None:
    from seriatim.engine.opening import open_broker

    broker = await open_broker(url)
    stack.push_async_callback(broker.close)
    await work(broker)


class _SignalTrap:
    """Cancels a task at the first signal that asks to stop. The next one finds nobody listening."""

    def __init__(self, task: asyncio.Task[None]) -> None:
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
