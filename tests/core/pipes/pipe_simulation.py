"""Two ends of a pipe over a bad network on a manual clock, with crashes and restarts: no loop, no sleeping, no luck."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from seriatim.core.pipes.protocol import (
    FRAMES,
    Confirm,
    Data,
    DeliveredRun,
    Finished,
    Frame,
    Hello,
    PipeOptions,
    Welcome,
)
from seriatim.core.pipes.receiver import PipeReceiver
from seriatim.core.pipes.sender import PipeSender
from seriatim.core.resequencing.options import LedgerEntry
from seriatim.testing import FaultyNetwork

LINGER = 0.02


@dataclass
class Durable:
    """What survives a crash, as far as the ends are durable: epochs always; an outbox and an output with its position if so."""

    sender_epoch: int = 0
    receiver_epoch: int = 0
    outbox: dict[int, bytes] = field(default_factory=dict)
    next_index: int = 1
    position: int | None = None


class World:
    """A pipe, its network, and what came out of it."""

    def __init__(
        self,
        options: PipeOptions,
        forth: FaultyNetwork[Frame],
        back: FaultyNetwork[Frame],
        *,
        durable_sender: bool = True,
        durable_receiver: bool = True,
        output_delay: float = 0.0,
    ) -> None:
        self.options, self.forth, self.back = options, forth, back
        self.durable_sender, self.durable_receiver = durable_sender, durable_receiver
        self.output_delay = output_delay
        self.now = 0.0
        self.disk = Durable(position=1 if durable_receiver and durable_sender else None)
        self.received: list[bytes] = []
        self.ledger: list[LedgerEntry[bytes]] = []
        self.frames = 0
        self.last_sent: dict[int, float] = {}
        self.queue: list[DeliveredRun] = []
        self.output_free = 0.0
        self.start_sender()
        self.start_receiver()

    # -- ends -----------------------------------------------------------------------------------------------------------

    def start_sender(self) -> None:
        self.disk.sender_epoch += 1
        epoch = self.disk.sender_epoch
        if not self.durable_sender:
            self.sender = PipeSender(self.options, epoch)
            return
        first = min(self.disk.outbox, default=self.disk.next_index)
        self.sender = PipeSender(self.options, epoch, first=first)
        for index in sorted(self.disk.outbox):
            assert index == self.sender.next_index
            self.sender.push(self.disk.outbox[index], self.now)

    def start_receiver(self) -> None:
        self.disk.receiver_epoch += 1
        self.queue.clear()
        position = self.disk.position if self.durable_receiver else None
        self.receiver = PipeReceiver(self.options, self.disk.receiver_epoch, position=position)

    # -- running --------------------------------------------------------------------------------------------------------

    def push(self, message: bytes) -> bool:
        """False when there is no room: back-pressure."""
        if self.sender.room <= 0:
            return False
        index = self.sender.next_index
        self.apply(self.sender.push(message, self.now))
        if self.durable_sender:
            self.disk.outbox[index] = message
            self.disk.next_index = index + 1
        return True

    def apply(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, FRAMES):
                self.frames += 1
                to = self.forth if isinstance(effect, Hello | Data) else self.back
                to.send(effect, self.now)
                self.last_sent[id(to)] = self.now
            elif isinstance(effect, DeliveredRun):
                self.queue.append(effect)
            elif isinstance(effect, Finished):
                for index in range(effect.first, effect.end):
                    self.disk.outbox.pop(index, None)
            else:
                self.ledger.append(effect)

    def output(self) -> None:
        """The output takes what waits: with its position in one step, if it is durable."""
        while self.queue and self.output_free <= self.now:
            run = self.queue.pop(0)
            self.received += run.messages
            self.disk.position = max(self.disk.position or 0, run.end)
            self.receiver.settle(run.first, run.end)
            self.output_free = self.now + self.output_delay

    def turn(self) -> None:
        """Let everything happen that can happen now."""
        for frame in self.arrivals(self.forth):
            assert isinstance(frame, Hello | Data)
            self.apply(self.receiver.receive(frame, self.now))
        for frame in self.arrivals(self.back):
            assert isinstance(frame, Welcome | Confirm)
            self.apply(self.sender.receive(frame, self.now))
        self.output()
        self.apply(self.receiver.advance(self.now))
        self.apply(self.sender.advance(self.now))

    def arrivals(self, network: FaultyNetwork[Frame]) -> list[Frame]:
        """What arrives. A network in which all copies wait to be overtaken lets them go after a while."""
        if self.lets_go(network) <= self.now:
            return network.drain()
        return network.receive(self.now)

    def lets_go(self, network: FaultyNetwork[Frame]) -> float:
        waits = network.is_busy and network.next_arrival() is None
        return self.last_sent[id(network)] + LINGER if waits else inf

    def next_event(self) -> float:
        times = [self.sender.deadline, self.receiver.deadline, self.forth.next_arrival(), self.back.next_arrival()]
        times += [self.lets_go(self.forth), self.lets_go(self.back)]
        if self.queue:
            times.append(self.output_free)
        return min((time for time in times if time is not None), default=inf)

    def step(self) -> None:
        """Go to the next moment at which something happens."""
        self.turn()
        self.now = max(self.now + 1e-6, min(self.next_event(), self.now + 60))

    def run_until_confirmed(self, limit: float = 1e6) -> None:
        end = self.now + limit
        while self.sender.kept or self.queue or self.sender.peer is None:
            self.step()
            assert self.now < end, "no progress"


def bad_network(seed: int, drop: float = 0.2, duplicate: float = 0.2, shuffle: int = 50, delay=(0.0, 0.01)):
    return FaultyNetwork[Frame](seed, drop=drop, duplicate=duplicate, shuffle=shuffle, delay=delay)
