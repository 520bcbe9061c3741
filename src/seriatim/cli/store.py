"""How a command works on a store: it gets a broker, runs in one event loop, and ends cleanly.

Rules
    - A command is an async function whose first arguments are the broker and the output.
    - The first Ctrl-C or SIGTERM cancels the command; the broker is then closed as always, so that leases are given back and no
      lock or socket is left behind (``signals.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.output import Output
from seriatim.cli.session import configured
from seriatim.cli.signals import run_until_signal
from seriatim.config import LoadedConfig
from seriatim.errors import NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

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
    run_until_signal(lambda stack: _open_and_work(url, work, stack))


async def _open_and_work(url: str, work: Callable[[Broker], Awaitable[None]], stack: AsyncExitStack) -> None:
    from seriatim.engine.opening import open_broker

    broker = await open_broker(url)
    stack.push_async_callback(broker.close)
    await work(broker)
