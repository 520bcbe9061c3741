"""The two ends of a pipe in an event loop: they do the IO, and the state machines decide.

Rules
    - A machine is asked to ``advance`` once at the end of a turn of the loop, no matter how much happened in it, and when
      its deadline is due. So messages that arrive together leave together.
    - The output takes messages one after another. They are settled, and may be confirmed, when it has taken them.
    - When the output raises, the receiving end stops: nothing more is delivered or confirmed, and waiting callers get the
      error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

from seriatim.core.pipes.protocol import (
    FRAMES,
    Confirm,
    Data,
    DeliveredRun,
    Finished,
    Hello,
    OnFull,
    PipeEffect,
    PipeOptions,
    Welcome,
)
from seriatim.core.pipes.receiver import MAX_RANGES, PipeReceiver
from seriatim.core.pipes.sender import PipeSender
from seriatim.core.resequencing.options import LedgerEntry
from seriatim.errors import FailedPrecondition
from seriatim.log import logger
from seriatim.pipes.chain import Deliver
from seriatim.pipes.frames import HEAD_BYTES, Aside, decode, encode
from seriatim.pipes.route import Port, Route

RANGE_BYTES = 10
"""A missing range takes no more, unless a billion messages are under way."""

Report = Callable[[LedgerEntry[bytes]], None]
"""Called with whatever is given up or dropped."""


def log_entry(entry: LedgerEntry[bytes]) -> None:
    logger.warning("a pipe gave up %d to %d (%s): %s", entry.first, entry.last, entry.reason, entry.detail)


class Machine(Protocol):
    @property
    def deadline(self) -> float | None: ...
    def advance(self, now: float) -> list[PipeEffect]: ...


M = TypeVar("M", bound=Machine)


class _End(Generic[M]):
    """What both ends share: a machine, a port, and one timer."""

    def __init__(self, machine: M, report: Report) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._report = report
        self._port: Port | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_awake = self._is_closed = self._has_warned = False

    def _warn_of_old_epoch(self, other: str) -> None:
        """Warn once: it may be an old frame, or the other end's epochs don't increase, so that all its frames are ignored."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a pipe received a frame from an earlier session of its %s; if it stays stuck, its epochs don't increase",
                other,
            )

    def _send(self, frame: bytes) -> None:
        if self._port is not None:
            self._port.send(frame)

    def wake(self) -> None:
        """Let the machine advance at the end of this turn of the loop."""
        if not self._is_awake and not self._is_closed:
            self._is_awake = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._is_awake = False
        if self._is_closed:
            return
        self._apply(self._machine.advance(self._loop.time()))
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self._machine.deadline
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline:
                return  # it rings in time, and looks again then
            self._timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._advance()

    def _apply(self, effects: list[PipeEffect]) -> None:
        for effect in effects:
            if isinstance(effect, FRAMES):
                self._send(encode(effect))
            elif isinstance(effect, LedgerEntry):
                self._report(effect)
            else:
                self._carry_out(effect)

    def _carry_out(self, effect: Finished | DeliveredRun) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._port is not None:
            await self._port.close()


class SenderEnd(_End[PipeSender]):
    """The end that accepts messages."""

    def __init__(self, machine: PipeSender, options: PipeOptions, report: Report = log_entry) -> None:
        super().__init__(machine, report)
        self._waits = options.on_full is OnFull.WAIT
        self._changed = asyncio.Event()  # set when messages are confirmed or given up, or nothing can be any more
        self._failure: BaseException | None = None
        self.on_aside: Callable[[bytes], None] = lambda _: None

    async def connect(self, route: Route) -> None:
        self._port = await route.open_sender(self._on_frame)
        self.wake()

    async def send(self, message: bytes) -> None:
        """Accept a message; with ``on_full="wait"``, wait for room."""
        if self._failure is not None:
            raise self._failure
        if not self._machine.accept(message):
            await self._push(message)
        if not self._is_awake:
            self.wake()

    async def _push(self, message: bytes) -> None:
        """The slow path: there is no room, or never will be."""
        while self._machine.room <= 0 and self._waits:
            await self._change()
        self._apply(self._machine.push(message, self._loop.time()))

    async def drain(self) -> None:
        """Wait until everything is confirmed, or given up."""
        while self._machine.kept:
            await self._change()

    def fail(self, error: BaseException) -> None:
        """Stop, and raise this error to everybody who waits."""
        self._failure = error
        self._changed.set()

    async def close(self) -> None:
        self.fail(FailedPrecondition("this pipe was closed: open it again"))
        await super().close()

    async def _change(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._changed.clear()
        await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _on_frame(self, data: bytes) -> None:
        frame = decode(data)
        if isinstance(frame, Welcome | Confirm):
            if isinstance(frame, Welcome) and frame.receiver < (self._machine.peer or 0):
                self._warn_of_old_epoch("receiver")
            self._apply(self._machine.receive(frame, self._loop.time()))
            self.wake()
        elif isinstance(frame, Aside):
            self.on_aside(frame)

    def _apply(self, effects: list[PipeEffect]) -> None:
        super()._apply(effects)
        if effects:
            self._changed.set()

    def _carry_out(self, effect: Finished | DeliveredRun) -> None:
        """``_apply`` wakes up callers that wait for room."""


class Output(Protocol):
    """Receives the messages of a pipe. A message may be confirmed once its call has returned."""

    async def take(self, run: DeliveredRun, settle: Callable[[int], None]) -> None:
        """Take the messages of a run, and call ``settle`` with the index up to which that is done."""


class ReceiverEnd(_End[PipeReceiver]):
    """The end that delivers messages."""

    def __init__(self, machine: PipeReceiver, output: Output | None, report: Report = log_entry) -> None:
        super().__init__(machine, report)
        self._queue: deque[DeliveredRun] = deque()
        self._filled, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._output = output
        self._task: asyncio.Task[None] | None = None
        self._in_hand: int | None = None  # what whoever iterates has, and has not finished
        self.failed: Callable[[BaseException], None] = lambda error: logger.error("a pipe stopped: %s", error)

    async def connect(self, route: Route) -> None:
        """Open the receiving end of a route, and begin to deliver."""
        self._port = await route.open_receiver(self._on_frame)
        if self._output is not None:
            self._task = asyncio.create_task(self._hand_over(self._output))
            self._task.add_done_callback(self._ended)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Messages in order. One counts as taken when the next is requested, or when this end is closed without an error."""
        while True:
            run = await self._next()
            for index, message in enumerate(run.messages, run.first):
                self._in_hand = index
                yield message
                self._in_hand = None
                self._settle(index, index + 1)

    async def wait(self) -> None:
        """Wait until the output fails, and raise its error."""
        if self._task is None:
            raise FailedPrecondition(
                "this end has no function or output to deliver to: iterate over its messages instead"
            )
        await asyncio.shield(self._task)

    async def drain(self) -> None:
        """Wait until the output has taken everything that has arrived."""
        while self._queue or not self._idle.is_set():
            waiting = asyncio.create_task(self._idle.wait())
            await asyncio.wait({waiting, self._task or waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._task is not None and self._task.done():
                return

    def finish(self) -> None:
        """Close without an error: the current message counts as taken, and is confirmed to the sender first."""
        if self._in_hand is not None:
            self._settle(self._in_hand, self._in_hand + 1)
        self._apply(self._machine.farewell(self._loop.time()))

    def send_aside(self, frame: bytes) -> None:
        """Send a frame back that belongs to an enclosing pipe."""
        self._send(encode(Aside(frame)))

    async def close(self) -> None:
        """Stop delivering, and release the route."""
        if self._task is not None:
            self._task.remove_done_callback(self._ended)
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # whoever waits for it has heard
        await super().close()

    async def _hand_over(self, output: Output) -> None:
        while True:
            run = await self._next()

            def settle(end: int, first: int = run.first) -> None:
                self._settle(first, end)

            await output.take(run, settle)

    async def _next(self) -> DeliveredRun:
        while not self._queue:
            self._idle.set()
            self._filled.clear()
            await self._filled.wait()
        self._idle.clear()
        return self._queue.popleft()

    def _settle(self, first: int, end: int) -> None:
        self._machine.settle(first, end)
        self.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def _on_frame(self, data: bytes) -> None:
        frame = decode(data)
        if isinstance(frame, Hello | Data):
            if isinstance(frame, Hello) and frame.sender < (self._machine.sender or 0):
                self._warn_of_old_epoch("sender")
            self._apply(self._machine.receive(frame, self._loop.time()))
            self.wake()

    def _carry_out(self, effect: Finished | DeliveredRun) -> None:
        if isinstance(effect, DeliveredRun):
            self._queue.append(effect)
            self._filled.set()


class CallOutput:
    """Calls a function with each message.

    Settling costs more than a quick call, so it happens after as many messages as take about ``pause``: after each one when the
    function is slow.
    """

    MAX_BATCH = 64

    def __init__(self, deliver: Deliver, pause: float) -> None:
        self._deliver, self._pause = deliver, pause
        self._time = asyncio.get_running_loop().time
        self._size = 1

    async def take(self, run: DeliveredRun, settle: Callable[[int], None]) -> None:
        at, deliver = 0, self._deliver
        while at < len(run.messages):
            begin, size = self._time(), self._size
            for message in run.messages[at : at + size]:
                await deliver(message)
            at += size
            settle(min(run.first + at, run.end))
            is_quick = self._time() - begin < self._pause
            self._size = min(2 * size, self.MAX_BATCH) if is_quick else max(size // 2, 1)


def max_message(route: Route) -> int:
    """How many bytes of messages fit into a frame of this route."""
    return route.max_frame - HEAD_BYTES


def max_ranges(route: Route) -> int:
    """How many missing ranges fit into a frame of this route."""
    return min(MAX_RANGES, max(1, max_message(route) // RANGE_BYTES))
