"""What a run is given: a fleet, a folder and two topics."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim.client.pubsub import PubSub
from seriatim.client.topic import Topic
from seriatim.demo.fleet import Fleet
from seriatim.demo.folder import DemoFolder

RAW, ORDERED = "raw", "ordered"


@dataclass(frozen=True, slots=True)
class Demo:
    """What is to be run, where, and how many readings a second the network delivers."""

    fleet: Fleet
    folder: DemoFolder
    per_second: float


@dataclass(frozen=True, slots=True)
class Topics:
    """The two topics of the demo. Both keep everything, so that it can be looked at afterwards."""

    raw: Topic
    ordered: Topic

    @classmethod
    async def create(cls, pubsub: PubSub) -> Topics:
        forever = {"retention": None, "retain_settled": None}
        return cls(await pubsub.topic(RAW).create(**forever), await pubsub.topic(ORDERED).create(**forever))
