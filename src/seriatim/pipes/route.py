"""Routes: ways from one place to another, each with what it promises.

Rules
    - A route carries frames (bytes) from its sending to its receiving end, and frames of a pipe's receiver back.
    - It declares the order that it keeps (``order``), how often a frame may arrive (``mode``) and, if it may lose some,
      how many get through (``reliability``). Whatever it does beyond that is a bug of the route; ``Watch`` shows it.
    - Nothing here makes good what a route breaks. That is what pipes are for.

To add a route, subclass ``Route``, say what it promises, and open its two ends. A port that is sent to never waits and
never raises because of the other end: a frame that can't be carried is lost, if the route may lose frames.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from seriatim.core.guarantees import DeliveryMode, Guarantee, Stage, together
from seriatim.errors import InvalidArgument
from seriatim.pipes.chain import Deliver, Element, Inlet

Hear: TypeAlias = Callable[[bytes], None]
"""Called with each frame that arrives, in the event loop."""


class Port(Protocol):
    """One end of a route."""

    def send(self, frame: bytes) -> None:
        """Hand a frame to the route."""

    @property
    def is_ready(self) -> bool:
        """False while the route would rather not take more; ``ready`` waits until it does."""

    async def ready(self) -> None: ...
    async def close(self) -> None: ...


class Route(Element):
    """A way for frames. Its attributes say what it promises."""

    name: str = "route"
    order: Guarantee = Guarantee.NONE
    mode: DeliveryMode = DeliveryMode.BEST_EFFORT
    reliability: float = 1.0
    why: str = ""
    max_frame: int = 60_000
    """No frame may be larger."""

    @property
    def stage(self) -> Stage:
        return Stage(self.name, together(self.order, self.mode), reliability=self.reliability, why=self.why)

    @abstractmethod
    async def open_sender(self, hear: Hear) -> Port:
        """The end where messages go in; ``hear`` gets what the other end sends back."""

    @abstractmethod
    async def open_receiver(self, hear: Hear) -> Port:
        """The end where messages come out."""

    async def open(self, deliver: Deliver) -> Inlet:
        """The bare route: each message is a frame."""
        pump = Pump(deliver)
        try:
            receiver = await self.open_receiver(pump.put)
            return _BareInlet(self, await self.open_sender(lambda _: None), receiver, pump)
        except BaseException:
            await pump.close()
            raise


class Pump:
    """Hands messages to an output one after another."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._queue: deque[bytes] = deque()
        self._filled, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._task = asyncio.create_task(self._run())

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, message: bytes) -> None:
        self._queue.append(message)
        if not self._filled.is_set():
            self._filled.set()
            self._empty.clear()

    async def drain(self) -> None:
        """Wait until the output has taken everything, or has failed: then raise what it raised."""
        waiting = asyncio.create_task(self._empty.wait())
        await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    def check(self) -> None:
        """Raise what the output raised."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # whoever drains has heard of it

    async def _run(self) -> None:
        queue, deliver = self._queue, self._deliver
        while True:
            while queue:
                await deliver(queue.popleft())
            self._filled.clear()
            self._empty.set()
            await self._filled.wait()


class _BareInlet:
    """What is sent is a frame of its own. What comes out waits for the output; the route itself knows nothing of
    that."""

    HIGH_WATER = 1024

    def __init__(self, route: Route, sender: Port, receiver: Port, pump: Pump) -> None:
        self._route, self._sender, self._receiver, self._pump = route, sender, receiver, pump
        self._max = route.max_frame

    async def send(self, message: bytes) -> None:
        if len(message) > self._max:
            raise InvalidArgument(
                f"a message of {len(message):,} bytes is too large for {self._route.name} ({self._max:,})"
            )
        self._sender.send(message)
        if not self._sender.is_ready:
            await self._sender.ready()
        if len(self._pump) > self.HIGH_WATER:
            await self._pump.drain()

    async def drain(self) -> None:
        await self._sender.ready()
        await asyncio.sleep(0)
        await self._pump.drain()

    async def close(self) -> None:
        await self._sender.close()
        await self._receiver.close()
        await self._pump.close()
