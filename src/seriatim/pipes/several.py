"""Several routes as one: frames take one after the other, and nobody knows which arrives first.

Guarantees hold per route. Over several together the order is gone, however good each of them is, and of the rest there
is what all of them give. A pipe around them restores what is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from itertools import cycle

from seriatim.core.guarantees import Guarantee, Stage, meet
from seriatim.errors import InvalidArgument
from seriatim.pipes.route import Hear, Port, Route


class Several(Route):
    """Routes that share the frames of one pipe."""

    def __init__(self, *routes: Route) -> None:
        if len(routes) < 2:
            raise InvalidArgument("several routes are two or more: use a single one as it is")
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

    async def open_sender(self, hear: Hear) -> Port:
        return await self._open([route.open_sender for route in self._routes], hear)

    async def open_receiver(self, hear: Hear) -> Port:
        return await self._open([route.open_receiver for route in self._routes], hear)

    async def _open(self, openers: Sequence[Callable[[Hear], Awaitable[Port]]], hear: Hear) -> Port:
        ports: list[Port] = []
        try:
            for opener in openers:
                ports += [await opener(hear)]
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
