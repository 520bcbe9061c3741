"""A script of one edge node: short names for its messages, and short answers."""

from __future__ import annotations

from typing import Any

from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import (
    DeathIgnored,
    EdgeMessage,
    Kind,
    NodeOrdering,
    Ordered,
    RebirthRequested,
    StatusChanged,
)
from seriatim.testing.clock import ManualClock


def nbirth(seq: int, bd: int = 0, at: int | None = None) -> EdgeMessage[str]:
    return EdgeMessage(Kind.NBIRTH, f"nbirth {seq}", seq, at, None, bd)


def ndeath(bd: int | None = 0) -> EdgeMessage[str]:
    return EdgeMessage(Kind.NDEATH, "ndeath", None, None, None, bd)


def ndata(seq: int, at: int | None = None) -> EdgeMessage[str]:
    return EdgeMessage(Kind.NDATA, f"ndata {seq}", seq, at)


def ddata(seq: int, at: int | None = None, device: str = "d") -> EdgeMessage[str]:
    return EdgeMessage(Kind.DDATA, f"ddata {seq}", seq, at, device)


def dbirth(seq: int, at: int | None = None, device: str = "d") -> EdgeMessage[str]:
    return EdgeMessage(Kind.DBIRTH, f"dbirth {seq}", seq, at, device)


def ddeath(seq: int, at: int | None = None, device: str = "d") -> EdgeMessage[str]:
    return EdgeMessage(Kind.DDEATH, f"ddeath {seq}", seq, at, device)


class Script:
    """An edge node under a manual clock, and everything that it said so far."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.node: EdgeNode[str] = EdgeNode(NodeOrdering(**{"reorder_timeout": 2.0, **options}), "g/n")
        self.effects: list[Any] = []

    def send(self, *messages: EdgeMessage[str]) -> list[str]:
        """What these messages release."""
        before = len(self.effects)
        for message in messages:
            self.effects += self.node.receive(message, self.clock.now())
        return self.bodies(before)

    def wait(self, seconds: float) -> list[str]:
        """What is released while time passes, at every deadline on the way."""
        before, end = len(self.effects), self.clock.now() + seconds
        while (deadline := self.node.deadline) is not None and deadline <= end:
            self.clock.set(max(deadline, self.clock.now()))
            self.effects += self.node.advance(self.clock.now())
        self.clock.set(end)
        self.effects += self.node.advance(end)
        return self.bodies(before)

    def bodies(self, since: int = 0) -> list[str]:
        return [effect.message.body for effect in self.effects[since:] if isinstance(effect, Ordered)]

    @property
    def flags(self) -> list[str | None]:
        return [effect.flag for effect in self.effects if isinstance(effect, Ordered)]

    @property
    def requests(self) -> list[RebirthRequested]:
        return [effect for effect in self.effects if isinstance(effect, RebirthRequested)]

    @property
    def ledger(self) -> list[tuple[str, str | tuple[int, int]]]:
        """The reason of each entry, with the message or the numbers that it is about."""
        entries = [effect for effect in self.effects if isinstance(effect, LedgerEntry)]
        return [(e.reason.value, e.message.body if e.message else (e.first, e.last)) for e in entries]

    @property
    def ignored_deaths(self) -> list[str]:
        return [effect.detail for effect in self.effects if isinstance(effect, DeathIgnored)]

    @property
    def statuses(self) -> list[tuple[str | None, str, int | None]]:
        return [(e.device, e.status.value, e.stamp) for e in self.effects if isinstance(e, StatusChanged)]
