"""The same API for programs without an event loop: every name of the async classes, blocking.

Rules
    - An event loop runs in a thread of its own. Whatever is called here runs there, and the caller waits for it.
    - What is awaited in the async API returns when it is done. ``publish`` returns a ``concurrent.futures.Future``: wait for
      its ``result()``, or don't.
    - ``async with`` becomes ``with``, ``async for`` becomes ``for``.
    - Handlers are plain functions and may block: they run in a pool of threads, at most ``workers`` at once. Messages of one
      key still come one after another. Whatever a handler raises is a failure of its message: ``sys.exit()`` in a handler ends
      neither the program nor the event loop.
    - Closing waits for the handlers that run and starts no more. A call that waits for something else then (a message, for
      example) raises FailedPrecondition.
    - Every thread of the program may use it.

Theory of operation
    ``Blocking`` stands in front of one object of the async API and hands every access over; what comes back is wrapped in turn
    when it belongs to that API. There is no second list of methods, so nothing can be forgotten or differ.
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
from types import TracebackType
from typing import Any, TypeVar

from seriatim.client.consumer import MessageStream
from seriatim.client.message import Message, may_start
from seriatim.client.publisher import Publisher, PublishFuture
from seriatim.client.pubsub import PubSub
from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.errors import FailedPrecondition, StoreLost
from seriatim.log import logger

WORKERS = 32
"""How many blocking handlers run at once unless told otherwise."""

T = TypeVar("T")

_OURS = (PubSub, Topic, Subscription, Publisher, Message, MessageStream)
_PLAIN = frozenset(name for name, known in vars(Message).items() if isinstance(known, property))
"""What can be read of a message without asking the loop: it never changes."""


_END = object()


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.workers = ThreadPoolExecutor(workers, "seriatim-handler")
        self._thread = threading.Thread(target=self._run_loop, name="seriatim-loop", daemon=True)
        self._entrance = threading.Lock()  # nothing is handed to the loop once it is being closed
        self._is_closed = False

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
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
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

    def close(self) -> None:
        """Stop the thread. Handlers that run are waited for; whatever else waits is cancelled."""
        if self._pid != os.getpid():
            return
        with self._entrance:
            is_first, self._is_closed = not self._is_closed, True
        if not self._thread.is_alive():
            return
        if is_first:
            try:
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run_loop(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - asyncio lets SystemExit through; callers must not wait for ever
                logger.error("the event loop goes on after %r", error, exc_info=error)
            else:
                return

    async def _end(self) -> None:
        await self._loop.run_in_executor(None, self.workers.shutdown)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _require_this_process(self) -> None:
        if self._pid != os.getpid():
            raise StoreLost("this was opened before a fork, and its thread did not come along: open it again here")

    def _require_usable(self) -> None:
        if self._is_closed or not self._thread.is_alive():
            raise FailedPrecondition("this is not open: use it inside 'with PubSub.blocking(...) as pubsub'")
        if threading.current_thread() is self._thread:
            raise FailedPrecondition("this would wait for itself: use the async API inside the event loop")


class Blocking:
    """An object of the async API, for plain code. It has the same names; see the module's rules."""

    __slots__ = ("_target", "_thread")

    def __init__(self, target: Any, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        target = self._target
        if isinstance(target, Message) and name in _PLAIN:
            return getattr(target, name)
        if inspect.isroutine(getattr(type(target), name, None)):
            return partial(self._call, name)
        return self._call_in_loop(partial(getattr, target, name))

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def __enter__(self) -> Blocking:
        if isinstance(self._target, PubSub):
            self._thread.start()
        try:
            self._call("__aenter__")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call("__aexit__", kind, error, trace)
        finally:
            self._end()

    def _end(self) -> None:
        if isinstance(self._target, PubSub):
            self._thread.close()

    def __iter__(self) -> Iterator[Any]:
        iterator = self._call_in_loop(partial(aiter, self._target))
        try:
            while (message := self._call_in_loop(partial(anext, iterator, _END))) is not _END:
                yield message
        finally:
            if hasattr(iterator, "aclose"):
                with suppress(FailedPrecondition):  # closed meanwhile, and the iterator with it
                    self._call_in_loop(iterator.aclose)

    def on(self, event: str, handler: Callable[[Any], object]) -> None:
        """Call a plain function, which may block, with every message or every error."""
        workers = self._thread.workers

        def work(message: Message) -> None:
            if may_start(message):  # it may have waited for a free thread
                handler(self._wrap(message))

        async def handle(message: Message) -> None:
            # With its context, by which a handler that closes its own subscription is known.
            await asyncio.get_running_loop().run_in_executor(workers, copy_context().run, work, message)

        async def report(error: BaseException) -> None:
            await asyncio.get_running_loop().run_in_executor(workers, copy_context().run, handler, error)

        self._call("on", event, handle if event == "message" else report)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        arguments = [arg._target if isinstance(arg, Blocking) else arg for arg in args]  # noqa: SLF001 - one of us
        return self._call_in_loop(partial(getattr(self._target, name), *arguments, **kwargs))

    def _call_in_loop(self, work: Callable[[], Any]) -> Any:
        return self._wrap(self._thread.run(_finish(work)))

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, _OURS):
            return self if value is self._target else Blocking(value, self._thread)
        if isinstance(value, list):
            return [self._wrap(each) for each in value]
        return value


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
        self._published.observed = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._published.observed = True
        return super().exception(timeout)

    def _done(self, published: asyncio.Future[str]) -> None:
        # Through the base class, because passing it on does not mean that anybody looked at it.
        error = asyncio.CancelledError() if published.cancelled() else asyncio.Future.exception(published)
        if error is None:
            self.set_result(asyncio.Future.result(published))
        else:
            self.set_exception(error)
