"""Chains: what messages go through, one element after another, and what is left of their order behind it.

Rules
    - An element takes messages at its inlet and hands them on at its output. ``a | b`` hands on to ``b`` what ``a``
      gives.
    - Every element declares what it keeps and restores of a guarantee, as a stage: while everything lives (``stage``),
      and when processes may crash and restart (``crash_stage``). A chain is multiplied out from left to right
      (``core.guarantees``).
    - A chain that is asked for more than it gives is refused before anything is opened.
    - ``send`` waits while an element further down has no room: back-pressure goes up the whole chain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias

from seriatim.core.guarantees import Composition, Guarantee, Level, Stage, compose
from seriatim.pipes.watch import Watch

Deliver: TypeAlias = Callable[[Any], Awaitable[None]]
"""Where messages go: called with one after another, each when the call before has returned."""


class Inlet(Protocol):
    """Where messages go in."""

    async def send(self, message: Any) -> None:
        """Take a message in. Waits for room; what it has returned from is on its way."""

    async def drain(self) -> None:
        """Wait until everything that was sent is through, as far as that can be known."""

    async def close(self) -> None:
        """Let go of everything. What is still on its way may be lost: ``drain`` first."""


class Element(ABC):
    """Something that messages go through."""

    @property
    @abstractmethod
    def stage(self) -> Stage:
        """What it does to a guarantee while everything lives."""

    @property
    def crash_stage(self) -> Stage:
        """The same when processes may crash and restart."""
        return self.stage

    @abstractmethod
    async def open(self, deliver: Deliver) -> Inlet:
        """Begin to work, both ends in this process: what goes into the inlet comes to ``deliver``."""

    def __or__(self, other: Element) -> Chain:
        return Chain(*self.elements(), *other.elements())

    def elements(self) -> tuple[Element, ...]:
        return (self,)

    def explain(self, *, crashes: bool = False) -> Composition:
        """What is left of a guarantee behind this, stage by stage; with ``crashes``, also when processes restart."""
        return compose(one.crash_stage if crashes else one.stage for one in self.elements())

    def describe(self) -> str:
        """The same in words: stage by stage, and then what a crash would leave."""
        lines = self.explain().describe()
        last = self.explain(crashes=True)
        lines.append(f"across crashes: {last.guarantee.in_words()}")
        lines += [
            f"   {step.stage.name}: {step.reason}"
            for step in last.steps
            if step.stage.passes != Guarantee.ABSOLUTE or step.stage.why
        ]
        return "\n".join(lines)

    @asynccontextmanager
    async def run(
        self,
        deliver: Deliver,
        *,
        require: Level | Guarantee = Level.NONE,
        crashes: bool = False,
        watch: Watch | None = None,
    ) -> AsyncIterator[Inlet]:
        """Work inside the block; at its end wait until everything is through. GuaranteeNotMet, before anything is
        opened, when ``require`` is more than the chain gives. ``watch`` sees what goes in and what comes out."""
        self.explain(crashes=crashes).require(require)
        inlet = await self.open(watch.output(deliver) if watch is not None else deliver)
        try:
            yield watch.inlet(inlet) if watch is not None else inlet
            await inlet.drain()
        finally:
            await inlet.close()


class Chain(Element):
    """Elements, one after another."""

    def __init__(self, *elements: Element) -> None:
        self._elements = elements

    def elements(self) -> tuple[Element, ...]:
        return self._elements

    @property
    def stage(self) -> Stage:
        return self._as_one(self.explain())

    @property
    def crash_stage(self) -> Stage:
        return self._as_one(self.explain(crashes=True))

    def _as_one(self, whole: Composition) -> Stage:
        name = " | ".join(step.stage.name for step in whole.steps)
        restores = compose((step.stage for step in whole.steps), Guarantee.NONE).guarantee
        return Stage(name, whole.guarantee, restores, whole.reliability)

    async def open(self, deliver: Deliver) -> Inlet:
        """Open the elements from the last to the first, each before anything can reach it."""
        inlets: list[Inlet] = []
        try:
            for element in reversed(self._elements):
                inlets.insert(0, await element.open(inlets[0].send if inlets else deliver))
        except BaseException:
            await _close_all(inlets)
            raise
        return _ChainInlet(inlets)


class _ChainInlet:
    def __init__(self, inlets: list[Inlet]) -> None:
        self._inlets = inlets
        self.send = inlets[0].send

    async def drain(self) -> None:
        for inlet in self._inlets:
            await inlet.drain()

    async def close(self) -> None:
        await _close_all(self._inlets)


async def _close_all(inlets: list[Inlet]) -> None:
    for inlet in inlets:
        await inlet.close()
