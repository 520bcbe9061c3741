"""Local delivery within this process, with absolute order.

Frames are handed over at the end of the sender's turn of the event loop: all frames of that turn together, in order, each
once. A crash loses the frames on their way, because both ends are in one process; it doesn't disorder any.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

from seriatim.core.guarantees import DeliveryMode, Guarantee, Stage
from seriatim.errors import FailedPrecondition
from seriatim.pipes.route import OnFrame, Port, Route

HIGH_WATER = 512
"""A sender with more frames waiting than this yields to the event loop."""


class InProcess(Route):
    """A route inside this process. It has one sender and one receiver at a time."""

    order = Guarantee.ABSOLUTE
    mode = DeliveryMode.EXACTLY_ONCE
    why = "local delivery"

    def __init__(self, name: str = "in process") -> None:
        self.name = name
        self._forth, self._back = _Direction(), _Direction()

    @property
    def crash_stage(self) -> Stage:
        return Stage(self.name, Guarantee.STRICT, why="what is under way dies with its process")

    async def open_sender(self, on_frame: OnFrame) -> Port:
        return _LocalPort(self._forth, self._back, on_frame)

    async def open_receiver(self, on_frame: OnFrame) -> Port:
        return _LocalPort(self._back, self._forth, on_frame)


class _Direction:
    """One direction."""

    def __init__(self) -> None:
        self.on_frame: OnFrame | None = None
        self.frames: deque[bytes] = deque()
        self._flow: asyncio.Event | None = None
        self._is_scheduled = False

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_scheduled = False
        frames, on_frame = self.frames, self.on_frame
        while frames and on_frame is not None:  # what nobody hears waits for somebody
            on_frame(frames.popleft())
        if self._flow is not None:
            self._flow.set()
            self._flow = None

    async def flow(self) -> None:
        """Wait until everything that was sent is handed over."""
        if self.frames and self.on_frame is not None:
            self._flow = self._flow or asyncio.Event()
            await self._flow.wait()

    def begin(self, on_frame: OnFrame) -> None:
        if self.on_frame is not None:
            raise FailedPrecondition(
                "this end of an in-process route is already open: close it first, or use another route"
            )
        self.on_frame = on_frame
        if self.frames and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)


class _LocalPort:
    def __init__(self, out: _Direction, into: _Direction, on_frame: OnFrame) -> None:
        into.begin(on_frame)
        self._out, self._in = out, into
        self.send = out.send

    @property
    def is_ready(self) -> bool:
        return len(self._out.frames) < (HIGH_WATER if self._out.on_frame is not None else inf)

    async def ready(self) -> None:
        await self._out.flow()

    async def close(self) -> None:
        self._in.on_frame = None
