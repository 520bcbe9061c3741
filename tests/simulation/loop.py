"""An event loop without threads, sockets and clocks, on which several simulated processes live.

Rules
    - Time is virtual and stands still while anything can run; then it jumps to the next timer.
    - Every callback, timer and task belongs to the process in whose context it was made (``PROCESS``), or to the world itself.
    - A stopped process runs nothing. What becomes due meanwhile waits until it is continued, and runs then as after a SIGCONT:
      first what was ready, then what can be read, then the timers.
    - A dead process never runs again, and nothing of it is cleaned up: no ``finally``, no ``close``.
    - Work for threads (``run_in_executor``, ``call_soon_threadsafe``) runs in the loop, after a delay.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, ContextVar
from enum import Enum
from typing import Any

PROCESS: ContextVar[Process | None] = ContextVar("simulated-process", default=None)


MOST_TURNS = 200_000
"""A program takes a few thousand turns of the loop."""


class State(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Stuck(Exception):
    """Everybody waits, and no timer is set."""


class Process:
    """What the loop knows of one simulated process."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self.continued_at = -1.0
        self.deaf_until = -1.0  # a connection of it was cut, and it has not heard of that
        self.has_lost_a_peer = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._loop = loop
        self._ready: list[asyncio.Handle] = []
        self._readable: list[asyncio.Handle] = []
        self._due: list[asyncio.Handle] = []

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Whether a callback may run now; that of a stopped process is kept for later."""
        if self.state is State.RUNNING:
            return True
        self._place_of(handle).append(handle)  # those of a dead process, too: nobody may hear that they are destroyed
        return False

    def _place_of(self, handle: asyncio.Handle) -> list[asyncio.Handle]:
        if isinstance(handle, asyncio.TimerHandle):
            return self._due
        return self._readable if isinstance(handle, _Readable) else self._ready

    def stop(self) -> None:
        self.state = State.STOPPED

    def go_on(self) -> None:
        self.state = State.RUNNING
        self.continued_at = self._loop.now
        self._loop.run_again([*self._ready, *self._readable, *self._due])
        self._ready, self._readable, self._due = [], [], []

    def die(self) -> None:
        self.state = State.DEAD

    def forget(self) -> None:
        """Let go of everything that it was about to do, silently."""
        self.die()
        self._ready, self._readable, self._due = [], [], []
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.clear()

    def run(self, work: Any) -> asyncio.Task[Any]:
        """Begin with a coroutine in this process."""
        return self._loop.create_task(work, context=self.context)


class _Runs:
    """What all handles share: the process decides whether they run."""

    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is None or process.may_run(self):
            super()._run()  # type: ignore[misc]


class _Ready(_Runs, asyncio.Handle):
    __slots__ = ()


class _Readable(_Runs, asyncio.Handle):
    """A callback for something that can be read from a socket."""

    __slots__ = ()


class _Timer(_Runs, asyncio.TimerHandle):
    __slots__ = ()


class _Selector:
    """Lets time pass instead of waiting."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        self._turns += 1
        if timeout is None:
            raise Stuck("every task waits and no timer is set")
        if self._turns > MOST_TURNS:
            raise Stuck("there is no end to it")
        self._loop.now += timeout
        return []

    def close(self) -> None:
        """Nothing is open."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module's rules. ``delay`` says how long a piece of work in a thread takes, and the news of its end."""

    def __init__(self, delay: Callable[[], float]) -> None:
        super().__init__()
        self.now = 0.0
        self._delay = delay
        self._selector = _Selector(self)
        self._last: dict[Any, float] = {}

    def time(self) -> float:
        return self.now

    # -- what belongs to whom -------------------------------------------------------------------------------------------

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Ready(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        if not self.is_closed():  # those who were killed may still ask when they are destroyed
            heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_in_world(self, when: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        """Do something at a time that happens whatever processes do."""
        return self.call_at(when, callback, *args, context=Context())

    def call_when_readable(self, process: Process, callback: Any, *args: Any) -> None:
        """Let a process hear of something that came from outside."""
        self._ready.append(_Readable(callback, args, self, process.context))  # type: ignore[attr-defined]

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop, context=Context())
        return task

    # -- threads --------------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run it after a while, also when nobody waits for it any more; one after another in an executor with one thread."""
        future = self.create_future()
        when = self.now + self._delay()
        if executor is not None:
            when = self._last[executor] = max(when, self._last.get(executor, 0.0))
        self.call_at(when, self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        result, error = None, None
        try:
            result = func(*args)
        except Exception as raised:  # noqa: BLE001 - it belongs to whoever waits
            error = raised
        self.call_later(self._delay(), _resolve, future, result, error)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_later(self._delay(), callback, *args, context=context)

    async def shutdown_default_executor(self, *_: Any) -> None:
        """There is none."""

    # -- what a loop with a selector has ----------------------------------------------------------------------------------

    def _process_events(self, event_list: Any) -> None:
        """There are no files."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    # -- sockets: see network.py ------------------------------------------------------------------------------------------

    async def sock_accept(self, sock: Any) -> Any:
        return await sock.accept()

    async def create_connection(self, protocol_factory: Any, *args: Any, sock: Any = None, **options: Any) -> Any:
        return await sock.connect_to(protocol_factory())

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        return await sock.connect_to(protocol_factory())


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
