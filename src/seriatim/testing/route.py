"""A route through a faulty network, for tests of pipes. Its faults are reproducible for the same seed."""

from __future__ import annotations

import asyncio
from functools import partial

from seriatim.core.guarantees import DeliveryMode, Guarantee
from seriatim.pipes.route import OnFrame, Port, Route
from seriatim.testing.network import FaultyNetwork

LINGER_S = 0.05
"""A copy that waits to be overtaken is released when nothing was sent for this many seconds."""


class FaultyRoute(Route):
    """Both directions drop, duplicate, shuffle and delay (see ``FaultyNetwork``). Use it on a loop with virtual
    time."""

    order = Guarantee.NONE
    mode = DeliveryMode.BEST_EFFORT
    why = "drops, repeats and shuffles, on purpose"

    def __init__(
        self,
        seed: int,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        shuffle: int = 0,
        delay: tuple[float, float] = (0.0, 0.0),
        max_frame: int = 60_000,
    ) -> None:
        self.name = f"faulty network {seed}"
        self.max_frame = max_frame
        network = partial(FaultyNetwork[bytes], drop=drop, duplicate=duplicate, shuffle=shuffle, delay=delay)
        self.forth, self.back = Line(network(seed)), Line(network(seed + 1))

    async def open_sender(self, on_frame: OnFrame) -> Port:
        return _FaultyPort(self.forth, self.back, on_frame)

    async def open_receiver(self, on_frame: OnFrame) -> Port:
        return _FaultyPort(self.back, self.forth, on_frame)


class Line:
    """One direction."""

    def __init__(self, network: FaultyNetwork[bytes]) -> None:
        self.network = network
        self.on_frame: OnFrame | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_sent = 0.0

    def send(self, frame: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        self.network.send(frame, self._last_sent)
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        arrival = self.network.next_arrival()
        when = self._last_sent + LINGER_S if arrival is None else arrival
        if self._timer is not None and self._timer.when() > when:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        arrived = self.network.receive(now)
        if not arrived and self.network.next_arrival() is None and now >= self._last_sent + LINGER_S:
            arrived = self.network.drain()
        elif self.network.is_busy:
            self._set_timer(loop)
        for frame in arrived:
            if self.on_frame is not None:
                self.on_frame(frame)


class _FaultyPort:
    is_ready = True

    def __init__(self, out: Line, into: Line, on_frame: OnFrame) -> None:
        self._in, into.on_frame = into, on_frame
        self.send = out.send

    async def ready(self) -> None:
        """Always."""

    async def close(self) -> None:
        self._in.on_frame = None
