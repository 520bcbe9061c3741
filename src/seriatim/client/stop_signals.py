"""SIGTERM and Ctrl-C end ``Subscription.run`` in a program's main.

Rules
    - The first signal ends every ``run``; the next one kills the program, even if handlers hang. When every ``run`` has
      returned, the former signal handlers are restored.
    - Only default handlers are replaced, and only in the main thread: a program or framework with handlers of its own keeps
      them, and cancels ``run`` instead.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_stops: list[Callable[[], object]] = []
_previous: dict[int, Any] = {}  # the handlers that were replaced, by signal


@contextmanager
def stop_on_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop``, which must be safe to call at any moment, on SIGTERM and SIGINT while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _previous.update(_default_handlers())
        for number in _previous:
            signal.signal(number, _stop_all)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        while _previous and not _stops:
            signal.signal(*_previous.popitem())


def _stop_all(_signal: int, _frame: object) -> None:
    for number in _previous:
        signal.signal(number, signal.SIG_DFL)
    for stop in _stops:
        stop()


def _default_handlers() -> Iterator[tuple[int, Any]]:
    """The signals that have their default handler (for Ctrl-C also the one of ``asyncio.run``), with that handler."""
    if (handler := signal.getsignal(signal.SIGTERM)) is signal.SIG_DFL:
        yield signal.SIGTERM, handler
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler or (isinstance(handler, partial) and _is_of_runner(handler)):
        yield signal.SIGINT, handler


def _is_of_runner(handler: partial[Any]) -> bool:
    return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
