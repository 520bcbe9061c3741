"""What the tests of pipes share: send numbers through a chain and see what comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from seriatim.core.guarantees import Guarantee, Stage
from seriatim.core.traces import Verdict, classify
from seriatim.pipes import Element, Inlet
from seriatim.pipes.chain import Deliver
from seriatim.testing import FaultyRoute, run_in_virtual_time


def bad_route(seed: int = 1, **faults: Any) -> FaultyRoute:
    """Drops 20 %, duplicates 20 % and shuffles within 50, with few messages in a frame so that it has something to shuffle."""
    return FaultyRoute(seed, **({"drop": 0.2, "duplicate": 0.2, "shuffle": 50, "max_frame": 142} | faults))


async def pass_through(element: Element, count: int) -> list[int]:
    received: list[int] = []

    async def deliver(message: bytes) -> None:
        received.append(int(message))

    async with element.run(deliver) as inlet:
        for number in range(1, count + 1):
            await inlet.send(b"%d" % number)
        if not element.explain().guarantee & Guarantee.NO_LOSS:
            await asyncio.sleep(60)  # nobody can know when everything is through
    return received


def received_through(element: Element, count: int = 200) -> list[int]:
    """What comes out of an element when 1 to ``count`` go in, in virtual time."""
    return run_in_virtual_time(pass_through(element, count))


def verdict_on(element: Element, count: int = 200) -> Verdict:
    return classify(received_through(element, count), sent=range(1, count + 1))


class Scripted(Element):
    """Hands on, for each message, what a script says: an unreliable worker without luck."""

    def __init__(self, name: str, gives: Guarantee, script: dict[int, Sequence[int]]) -> None:
        self._stage, self._script = Stage(name, gives), script

    @property
    def stage(self) -> Stage:
        return self._stage

    async def open(self, deliver: Deliver) -> Inlet:
        return _ScriptedInlet(self._script, deliver)


class _ScriptedInlet:
    def __init__(self, script: dict[int, Sequence[int]], deliver: Deliver) -> None:
        self._script, self._deliver = script, deliver

    async def send(self, message: bytes) -> None:
        for number in self._script.get(int(message), [int(message)]):
            await self._deliver(b"%d" % number)

    async def drain(self) -> None:
        """Nothing is ever under way."""

    async def close(self) -> None:
        """There is nothing to close."""
