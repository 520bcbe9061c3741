"""Connections in memory between simulated processes of one machine.

Rules
    - Bytes arrive in order, after a delay, in a buffer of the receiving end. A stopped process reads them all at once when it
      goes on; what it wrote before it was stopped is on its way.
    - When a process dies its peers hear of it. A connection that is cut loses what is on its way, and each end hears of that at
      a time of its own.
    - A connection is full while more than ``high`` bytes are unread by the other end.

Not modelled: bytes of one write that arrive in pieces, and a kernel that takes no more while a connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimulatedLoop, State


class Network:
    """Who listens where, and all connections."""

    def __init__(self, loop: SimulatedLoop, delay: Callable[[], float], high: float) -> None:
        self.loop = loop
        self.delay = delay
        self.high = high
        self._listeners: dict[Path, Listener] = {}
        self.links: list[Link] = []

    def listen(self, path: Path) -> Listener:
        listener = self._listeners[path] = Listener(self, path)
        return listener

    def hang_up(self, listener: Listener) -> None:
        if self._listeners.get(listener.path) is listener:
            del self._listeners[listener.path]

    def connect(self, path: Path) -> End:
        listener = self._listeners.get(path)
        if listener is None or listener.process.state is State.DEAD:
            raise ConnectionRefusedError("nobody listens")
        link = Link(self, _current_process(), listener.process)
        self.links.append(link)
        listener.arrive(link.ends[1])
        return link.ends[0]

    def process_died(self, process: Process) -> None:
        for link in self.links:
            for end in link.ends:
                if end.process is process:
                    link.hang_up(end, ConnectionResetError("the other process died"))


def _current_process() -> Process:
    process = PROCESS.get()
    assert process is not None, "only processes use the network"
    return process


class Listener:
    """In the place of a listening socket and of its file."""

    def __init__(self, network: Network, path: Path) -> None:
        self.path = path
        self.process = _current_process()
        self.socket = self
        self._network = network
        self._backlog: deque[End] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def close(self) -> None:
        self._network.hang_up(self)
        for end in self._backlog:
            end.close()
        self._backlog.clear()

    def arrive(self, end: End) -> None:
        self._backlog.append(end)
        self._network.loop.call_when_readable(self.process, self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def accept(self) -> tuple[End, None]:
        while not self._backlog:
            self._waiter = self._network.loop.create_future()
            await self._waiter
        return self._backlog.popleft(), None


class Link:
    """One connection: two ends, and what is on its way between them."""

    def __init__(self, network: Network, *processes: Process) -> None:
        self.network = network
        self.is_cut = False
        self.ends = [End(self, process) for process in processes]
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]

    @property
    def is_open(self) -> bool:
        return not self.is_cut and not any(end.is_over for end in self.ends)

    def send(self, sender: End, arrive: Callable[..., None], *what: Any) -> None:
        """Let something happen at the other end, after everything that was sent before."""
        loop = self.network.loop
        sender.last_arrival = max(sender.last_arrival, loop.now + self.network.delay())
        sender.on_its_way.append((arrive, what))
        loop.call_in_world(sender.last_arrival, self._arrive, sender)

    def _arrive(self, sender: End) -> None:
        arrive, what = sender.on_its_way.popleft()  # timers of one moment ring in any order
        if not self.is_cut:
            arrive(*what)

    def hang_up(self, end: End, error: Exception | None) -> None:
        """One end is over: the other one hears of it after what was sent before."""
        if not end.is_over:
            end.is_over = end.peer.process.has_lost_a_peer = True
            self.send(end, end.peer.hear_end, error)

    def cut(self, seconds: tuple[float, float]) -> None:
        """Lose what is on its way; each end hears of it after some seconds."""
        self.is_cut = True
        for end, delay in zip(self.ends, seconds, strict=True):
            end.process.has_lost_a_peer = True
            end.process.deaf_until = max(end.process.deaf_until, self.network.loop.now + delay)
            self.network.loop.call_in_world(
                self.network.loop.now + delay, end.hear_end, ConnectionResetError("the connection was cut")
            )


class End(asyncio.Transport):
    """One end of a connection: its socket, and the transport on top of it."""

    peer: End

    def __init__(self, link: Link, process: Process) -> None:
        super().__init__()
        self.process = process
        self.is_over = False
        self.last_arrival = 0.0
        self.on_its_way: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._link = link
        self._loop = link.network.loop
        self._protocol: asyncio.Protocol | None = None
        self._buffer = bytearray()
        self._end: list[Exception | None] = []
        self._is_lost = False
        self._is_closing = False
        self._is_paused = False
        self._is_full = False

    # -- as a socket ------------------------------------------------------------------------------------------------------

    async def connect_to(self, protocol: asyncio.Protocol) -> tuple[End, asyncio.Protocol]:
        self._protocol = protocol
        made = self._loop.create_future()
        self._loop.call_soon(protocol.connection_made, self)
        self._loop.call_soon(self._start, made)
        try:
            await made
        except BaseException:
            self.close()
            raise
        return self, protocol

    def _start(self, made: asyncio.Future[None]) -> None:
        if not made.done():
            made.set_result(None)
        self._read_soon()

    # -- what comes -------------------------------------------------------------------------------------------------------

    def hear(self, data: bytes) -> None:
        self._buffer += data
        self._read_soon()

    def hear_end(self, error: Exception | None) -> None:
        self._end = [error]
        self._read_soon()

    def _read_soon(self) -> None:
        if self._protocol is not None and not self._is_lost:
            self._loop.call_when_readable(self.process, self._read)

    def _read(self) -> None:
        if self._is_lost or self._is_paused or self._protocol is None:
            return
        data, self._buffer = bytes(self._buffer), bytearray()
        if data and not self._is_closing:
            self._protocol.data_received(data)
            self._link.send(self, self.peer.hear_of_room)
        if self._end and not self._is_paused:
            self._lose(self._end[0])

    def hear_of_room(self) -> None:
        self._loop.call_when_readable(self.process, self._go_on_writing)

    def _go_on_writing(self) -> None:
        if self._is_full and not self._is_lost and len(self.peer._buffer) <= self._link.network.high / 4:
            self._is_full = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._link.hang_up(self, error)
        self._loop.call_soon(self._report_loss, error)

    def _report_loss(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # -- as a transport ---------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_lost or self._is_closing:
            return
        self._link.send(self, self.peer.hear, bytes(data))
        if not self._is_full and len(self.peer._buffer) > self._link.network.high:
            self._is_full = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._lose(None)

    def abort(self) -> None:
        self._buffer.clear()
        self.close()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The network says how much is too much."""
