"""Ordered processors: a worker runs on many messages concurrently, and its results keep the order of the messages.

Rules
    - ``ordered_map(worker, concurrency=n)`` runs the worker on up to ``n`` messages at a time, and passes its results on
      according to its ``level``. An absolute or strict processor waits for the result of each message before it passes on
      the next one's; with level ``none`` each result is passed on when it is ready.
    - ``worker_level`` declares a worker that is weaker than that, and the processor is no stronger. A worker that returns no
      result for a message (``DROP``) loses it, so it is strict at most, and must be declared so.
    - A worker that raises stops the processor: nothing after that message is passed on, and senders get the error.
    - Messages in progress are only in this process: a crash loses them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from seriatim.core.guarantees import Guarantee, Level, Stage
from seriatim.core.validation import one_of, require_whole
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.pipes.chain import Deliver, Element, Inlet

Worker = Callable[[Any], Awaitable[Any]]


class _Drop:
    """The result of a worker that gives none."""

    def __repr__(self) -> str:
        return "DROP"


DROP: Final = _Drop()


class OrderedMap(Element):
    """A processor. Make one with ``ordered_map``."""

    def __init__(self, worker: Worker, concurrency: int, level: Level, worker_level: Level, name: str) -> None:
        self._worker, self._concurrency, self._level = worker, concurrency, level
        self._worker_level, self._name = worker_level, name

    @property
    def stage(self) -> Stage:
        gives = self._level.guarantee if self._level is not Level.NONE else Guarantee.NO_DUPLICATE | Guarantee.NO_LOSS
        why = f"{self._concurrency} at a time, results in {'order' if self._is_ordered else 'any order'}"
        if self._worker_level is not Level.ABSOLUTE:
            why += f"; its worker is {self._worker_level}"
        return Stage(self._name, gives & self._worker_level.guarantee, why=why)

    @property
    def crash_stage(self) -> Stage:
        alive = self.stage
        return Stage(alive.name, alive.passes & ~Guarantee.NO_LOSS, why="what is at work dies with its process")

    @property
    def _is_ordered(self) -> bool:
        return self._level is not Level.NONE

    async def open(self, deliver: Deliver) -> Inlet:
        may_drop = not self._worker_level.guarantee & Guarantee.NO_LOSS
        return _WorkerPool(self._worker, self._concurrency, deliver, ordered=self._is_ordered, may_drop=may_drop)


def ordered_map(
    worker: Worker,
    *,
    concurrency: int = 1,
    level: Level | str = Level.ABSOLUTE,
    worker_level: Level | str = Level.ABSOLUTE,
    name: str | None = None,
) -> OrderedMap:
    """A processor that runs ``worker`` on up to ``concurrency`` messages at once, and passes its results on in order."""
    require_whole("concurrency", concurrency, 1)
    title = name or f"ordered_map({getattr(worker, '__name__', 'worker')})"
    return OrderedMap(
        worker, concurrency, one_of("level", Level, level), one_of("worker_level", Level, worker_level), title
    )


class _WorkerPool:
    """Messages in progress. Their tasks are queued in the order of the messages."""

    def __init__(self, worker: Worker, concurrency: int, deliver: Deliver, *, ordered: bool, may_drop: bool) -> None:
        self._worker, self._deliver = worker, deliver
        self._ordered, self._may_drop = ordered, may_drop
        self._room = asyncio.Semaphore(concurrency)
        self._tasks: deque[asyncio.Task[Any]] = deque()
        self._turn = asyncio.Lock()  # results are handed on one at a time
        self._filled, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._failure: BaseException | None = None
        self._emitter = asyncio.create_task(self._emit_in_order()) if ordered else None

    async def send(self, message: Any) -> None:
        await self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        task = asyncio.create_task(self._work(message))
        self._tasks.append(task)
        self._filled.set()
        self._idle.clear()
        if not self._ordered:
            task.add_done_callback(self._forget)

    async def _work(self, message: Any) -> Any:
        result = await self._worker(message)
        if not self._ordered:
            async with self._turn:
                await self._hand_on(result)
        return result

    async def _emit_in_order(self) -> None:
        while True:
            await self._filled.wait()
            try:
                await self._hand_on(await self._tasks[0])
            except Exception as error:  # noqa: BLE001 - a worker may raise anything; whoever sends hears of it
                self._fail(error)
                return
            self._tasks.popleft()
            self._make_room()

    async def _hand_on(self, result: Any) -> None:
        if result is not DROP:
            await self._deliver(result)
        elif not self._may_drop:
            raise InvalidArgument("a worker that may drop messages is strict at most: say worker_level='strict'")

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._make_room()

    def _make_room(self) -> None:
        self._room.release()
        if not self._tasks:
            self._filled.clear()
            self._idle.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._room.release()  # whoever waits for room finds out
        self._idle.set()

    async def drain(self) -> None:
        """Wait for all messages in progress; raise the error of a worker."""
        await self._idle.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        self._failure = self._failure or FailedPrecondition("this processor was closed: open it again")
        tasks = [*self._tasks, *([self._emitter] if self._emitter else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
