"""Routes: transports for frames that declare what they promise.

Rules
    - A route carries frames (bytes) from its sending to its receiving end, and frames of a pipe's receiver back.
    - It declares the order that it keeps (``order``), how often a frame may arrive (``mode``) and, if it may lose frames,
      the share that arrives (``reliability``). If it does worse, that is a bug of the route; ``Watch`` shows it.
    - Routes repair nothing. That is what pipes are for.

To add a route, subclass ``Route``, declare its promises, and open its two ends. ``send`` of a port never waits, and never
raises because of the other end: a frame that can't be carried is lost, if the route may lose frames.

``Multipath`` combines several routes, which take turns. Guarantees hold per route: over several routes there is no order,
and of the other guarantees only those that all of them give. A pipe around them restores what is missing.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from itertools import cycle
from typing import Any, Protocol, TypeAlias

from seriatim.core.guarantees import DeliveryMode, Guarantee, Stage, meet, together
from seriatim.errors import InvalidArgument
from seriatim.pipes.chain import Deliver, Element, Inlet

OnFrame: TypeAlias = Callable[[bytes], None]
"""Called with each frame that arrives, in the event loop."""


class Port(Protocol):
    """One end of a route."""

    def send(self, frame: bytes) -> None:
        """Hand a frame to the route."""

    @property
    def is_ready(self) -> bool:
        """False while the sender should pause; ``ready`` waits until the route takes more."""

    async def ready(self) -> None:
        """Wait until the route takes more."""

    async def close(self) -> None:
        """Release the resources of this end."""


class Route(Element):
    """A transport for frames. Its attributes declare what it promises."""

    name: str = "route"
    order: Guarantee = Guarantee.NONE
    mode: DeliveryMode = DeliveryMode.BEST_EFFORT
    reliability: float = 1.0
    why: str = ""
    max_frame: int = 60_000
    """No frame may be larger."""

    @property
    def stage(self) -> Stage:
        """What the route promises while nothing crashes."""
        return Stage(self.name, together(self.order, self.mode), reliability=self.reliability, why=self.why)

    @abstractmethod
    async def open_sender(self, on_frame: OnFrame) -> Port:
        """Open the sending end; ``on_frame`` is called with frames that the other end sends back."""

    @abstractmethod
    async def open_receiver(self, on_frame: OnFrame) -> Port:
        """Open the receiving end; ``on_frame`` is called with frames that arrive."""

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
    """Passes messages to an output one after another."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._queue: deque[Any] = deque()
        self._filled, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._task = asyncio.create_task(self._run())

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, message: Any) -> None:
        self._queue.append(message)
        if not self._filled.is_set():
            self._filled.set()
            self._empty.clear()

    async def drain(self) -> None:
        """Wait until the output has taken everything. If it failed, raise its error."""
        waiting = asyncio.create_task(self._empty.wait())
        await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    def check(self) -> None:
        """Raise the error of the output, if any."""
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
    """Sends each message as a frame. Received messages wait for the output; the route doesn't know about that."""

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


class Multipath(Route):
    """Routes that share the frames of one pipe."""

    def __init__(self, *routes: Route) -> None:
        if len(routes) < 2:
            raise InvalidArgument("give two routes or more: a single one works as it is")
        self._routes = routes
        self.name = " & ".join(route.name for route in routes)
        self.max_frame = min(route.max_frame for route in routes)

    @property
    def stage(self) -> Stage:
        return self._as_one([route.stage for route in self._routes])

    @property
    def crash_stage(self) -> Stage:
        return self._as_one([route.crash_stage for route in self._routes])

    def _as_one(self, stages: Sequence[Stage]) -> Stage:
        passes = reduce(meet, (stage.passes for stage in stages)) & ~Guarantee.NO_INVERSION
        reliability = sum(stage.reliability for stage in stages) / len(stages)
        return Stage(
            self.name, passes, reliability=reliability, why="a message may overtake one that took another route"
        )

    async def open_sender(self, on_frame: OnFrame) -> Port:
        return await self._open([route.open_sender for route in self._routes], on_frame)

    async def open_receiver(self, on_frame: OnFrame) -> Port:
        return await self._open([route.open_receiver for route in self._routes], on_frame)

    async def _open(self, openers: Sequence[Callable[[OnFrame], Awaitable[Port]]], on_frame: OnFrame) -> Port:
        ports: list[Port] = []
        try:
            for opener in openers:
                ports += [await opener(on_frame)]
        except BaseException:
            await _Ports(ports).close()
            raise
        return _Ports(ports)


class _Ports:
    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = ports
        self._turn = cycle(ports)

    def send(self, frame: bytes) -> None:
        next(self._turn).send(frame)

    @property
    def is_ready(self) -> bool:
        return all(port.is_ready for port in self._ports)

    async def ready(self) -> None:
        for port in self._ports:
            await port.ready()

    async def close(self) -> None:
        for port in self._ports:
            await port.close()
