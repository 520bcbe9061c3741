"""The blocking API, for programs without an event loop: the same names as in the async classes.

Rules
    - An event loop runs in its own thread. Every call runs there, and the caller waits for it.
    - Coroutines of the async API return when they are done. ``publish`` returns a ``concurrent.futures.Future``: you may wait
      for its ``result()``.
    - ``async with`` becomes ``with``, ``async for`` becomes ``for``.
    - Handlers are plain functions and may block: they run in a thread pool, at most ``workers`` at once. Messages of one key
      are still handled one after another. Any exception in a handler is a failure of its message: ``sys.exit()`` in a handler
      ends neither the program nor the event loop.
    - Closing starts no more handlers and waits for running ones. Calls that wait for something else then (a message, for
      example) raise FailedPrecondition.
    - It is thread-safe.

Theory of operation
    ``blocking.py`` has a class for each class of the async API, with the same methods and types; ``make generate`` writes it
    from the async classes, so the two can't differ. Each object holds its async counterpart and passes every call to the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from seriatim.client.consumer import check_handler
from seriatim.client.message import Message, may_start
from seriatim.client.publisher import PublishFuture
from seriatim.client.stop_signals import stop_on_signal
from seriatim.errors import FailedPrecondition, StoreLost
from seriatim.log import logger

DEFAULT_WORKERS = 32
"""How many blocking handlers run at once by default."""

T = TypeVar("T")
Target = TypeVar("Target")

_END = object()


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self, workers: int = DEFAULT_WORKERS, opened_by: str = "PubSub.blocking(...) as pubsub") -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._opened_by = opened_by
        self.workers = ThreadPoolExecutor(workers, "seriatim-handler")
        self._thread = threading.Thread(target=self._run_loop, name="seriatim-loop", daemon=True)
        self._entrance = threading.Lock()  # nothing is handed to the loop once it is being closed
        self._is_closed = False

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that started the thread. A fork does not copy the thread."""
        return self._pid != os.getpid()

    def start(self) -> None:
        if self._is_closed:
            raise FailedPrecondition("this was closed: make another one with PubSub.blocking(...)")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it. Interrupting the wait cancels it."""
        try:
            self._require_this_process()
            with self._entrance:
                self._require_usable()
                future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise FailedPrecondition("this was closed before it was done") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Stop the thread. Waits for running handlers, and cancels everything else."""
        if self.is_inherited:
            return
        with self._entrance:
            is_first, self._is_closed = not self._is_closed, True
        if not self._thread.is_alive():
            return
        if is_first:
            try:
                asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
            finally:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run_loop(self) -> None:
        while True:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - asyncio lets SystemExit through; callers must not wait for ever
                logger.error("the event loop continues after %r", error, exc_info=error)
            else:
                return

    async def _end(self) -> None:
        await self.loop.run_in_executor(None, self.workers.shutdown)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()

    def _require_this_process(self) -> None:
        if self.is_inherited:
            raise StoreLost("this was opened before a fork, which does not copy threads: open it again in this process")

    def _require_usable(self) -> None:
        if self._is_closed or not self._thread.is_alive():
            raise FailedPrecondition(f"this is not open: use it inside 'with {self._opened_by}'")
        if threading.current_thread() is self._thread:
            raise FailedPrecondition("a blocking call would deadlock inside the event loop: use the async API there")


class Facade(Generic[Target]):
    """The base class of the classes in ``blocking.py``: an object of the async API for programs without an event loop."""

    __slots__ = ("_target", "_thread")
    _facades: ClassVar[dict[type, Callable[[Any, LoopThread], Any]]] = {}  # the blocking class of each async one

    def __init__(self, target: Target, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facade) and self._target is other._target

    def __hash__(self) -> int:
        return hash(id(self._target))

    def _in_event_loop(self) -> tuple[Target, asyncio.AbstractEventLoop]:
        """The object of the async API, and its event loop."""
        return self._target, self._thread.loop

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in the event loop, wait for what it returns, and wrap that."""
        return self._wrap(self._thread.run(_finish(partial(function, *args, **kwargs))))

    def _iterate(self) -> Iterator[Any]:
        iterator = self._thread.run(_finish(partial(aiter, self._target)))  # type: ignore[arg-type]
        try:
            while (message := self._call(anext, iterator, _END)) is not _END:
                yield message
        finally:
            if hasattr(iterator, "aclose"):
                with suppress(FailedPrecondition):  # closed meanwhile, and the iterator with it
                    self._call(iterator.aclose)

    def _in_worker(self, handler: Callable[[Any], object]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """An async handler that runs a plain, possibly blocking one in a worker thread."""

        check_handler(handler, may_be_async=False)

        def work(argument: Any) -> None:
            given = argument if isinstance(argument, list) else [argument]
            # Messages may have waited for a free thread, and their leases may be lost by now.
            left = [each for each in given if not isinstance(each, Message) or may_start(each)]
            if left:
                handler(self._wrap(left if given is argument else argument))

        async def handle(argument: Any) -> None:
            # With its context, by which a handler that closes its own subscription is known.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread.workers, copy_context().run, work, argument)

        return handle

    def _run_until_signal(self, run: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
        """Run a coroutine in the event loop; SIGTERM and Ctrl-C call ``stop`` there."""
        with stop_on_signal(partial(self._thread.call_soon, stop)):
            self._thread.run(run)

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(each) for each in value]
        if value is self._target:
            return self
        kind = self._facades.get(type(value))
        return value if kind is None else kind(value, self._thread)


async def _finish(work: Callable[[], Any]) -> Any:
    """Do something in the loop, and wait for it unless it is a publish."""
    result = work()
    if isinstance(result, PublishFuture):
        return PublishResult(result)
    return await result if inspect.isawaitable(result) else result


class PublishResult(Future[str]):
    """The id of a message, once it is durable; any thread may wait for it. It can't be cancelled: the message is on its way."""

    def __init__(self, published: PublishFuture) -> None:
        super().__init__()
        self._published = published
        self.set_running_or_notify_cancel()
        published.add_done_callback(self._done)

    def result(self, timeout: float | None = None) -> str:
        """Wait for the id of the message. Raises if it was not published."""
        self._published.observed = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, and return why the message was not published, or None."""
        self._published.observed = True
        return super().exception(timeout)

    def _done(self, published: asyncio.Future[str]) -> None:
        # Through the base class, because passing it on does not mean that anybody looked at it.
        error = asyncio.CancelledError() if published.cancelled() else asyncio.Future.exception(published)
        if error is None:
            self.set_result(asyncio.Future.result(published))
        else:
            self.set_exception(error)
