"""The plan of a run: its fleet, folder and topics, and what stands between the topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from seriatim.client.pubsub import PubSub
from seriatim.client.topic import Topic
from seriatim.demo.books import Audited, Entry
from seriatim.demo.fleet import Fleet
from seriatim.demo.folder import DemoFolder
from seriatim.demo.subscribers import Subscribers

RAW, ORDERED = "raw", "ordered"


@dataclass(frozen=True, slots=True)
class Demo:
    """What to run, where, and how many readings per second the network delivers."""

    fleet: Fleet
    folder: DemoFolder
    per_second: float


@dataclass(frozen=True, slots=True)
class Topics:
    """The two topics of the demo. Both keep everything, so that it can be inspected afterwards."""

    raw: Topic
    ordered: Topic

    @classmethod
    async def create(cls, pubsub: PubSub) -> Topics:
        forever = {"retention": None, "retain_settled": None}
        return cls(await pubsub.topic(RAW).create(**forever), await pubsub.topic(ORDERED).create(**forever))


class Ordering(Protocol):
    """Resequences ``raw`` into ``ordered`` and a ledger, while others publish and consume."""

    async def work(self) -> None:
        """Start, keep its steps up to date, and raise if it fails. It continues by itself when this is cancelled."""

    async def finish(self) -> None:
        """Everything was delivered: return when everything is written and nothing is running any more."""

    async def ledger(self) -> list[Entry]: ...

    async def audit(self, subscribers: Subscribers) -> tuple[Audited, Audited]:
        """The order before and after."""

    async def close(self) -> None:
        """Stop everything, at any moment."""
