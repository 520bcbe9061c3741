"""Chains: elements that messages pass through one after another, and the guarantee that remains at the end.

Rules
    - An element takes messages at its inlet and passes them on at its output. ``a | b`` passes the output of ``a`` to ``b``.
    - Every element declares what it keeps and restores of a guarantee, as a stage: while no process fails (``stage``),
      and when processes may crash and restart (``crash_stage``). A chain composes these from left to right
      (``core.guarantees``).
    - A chain that can't provide the required guarantee is refused before anything is opened.
    - ``send`` waits while an element further down has no room: backpressure goes up the whole chain.

A watch reports the strongest guarantee that actually held, and the first violation of the next one. It needs a number for
each message, rising by one in the order of sending. It sees what goes in and what comes out; messages in between are not
lost yet, so losses at the end show only when the chain has drained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias

from seriatim.core.guarantees import Composition, Guarantee, Level, Stage, compose
from seriatim.core.traces import TraceChecker, Verdict
from seriatim.log import logger

Deliver: TypeAlias = Callable[[Any], Awaitable[None]]
"""Where messages go: called with one after another, each when the call before has returned."""


class Inlet(Protocol):
    """Where messages go in."""

    async def send(self, message: Any, /) -> None:
        """Accept a message, waiting for room. It is on its way when this returns."""

    async def drain(self) -> None:
        """Wait until everything that was sent has arrived, as far as that can be known."""

    async def close(self) -> None:
        """Release all resources. Messages on their way may be lost: ``drain`` first."""


class Element(ABC):
    """Something that messages pass through."""

    @property
    @abstractmethod
    def stage(self) -> Stage:
        """What it does to a guarantee while no process fails."""

    @property
    def crash_stage(self) -> Stage:
        """The same when processes may crash and restart."""
        return self.stage

    @abstractmethod
    async def open(self, deliver: Deliver) -> Inlet:
        """Open both ends in this process: messages sent to the inlet are passed to ``deliver``."""

    def __or__(self, other: Element) -> Chain:
        return Chain(*self.elements(), *other.elements())

    def elements(self) -> tuple[Element, ...]:
        """The elements of a chain, or this one."""
        return (self,)

    def explain(self, *, crashes: bool = False) -> Composition:
        """The guarantee that remains, stage by stage; with ``crashes``, when processes may crash and restart."""
        return compose(one.crash_stage if crashes else one.stage for one in self.elements())

    def describe(self) -> str:
        """The same in words: stage by stage, and then what remains after a crash."""
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
            for inlet in inlets:
                await inlet.close()
            raise
        return JoinedInlet(inlets[0].send, *inlets)


class _End(Protocol):
    async def drain(self) -> None: ...
    async def close(self) -> None: ...


class JoinedInlet:
    """Several inlets in the order in which messages pass them, drained and closed one after another."""

    def __init__(self, send: Callable[[Any], Coroutine[Any, Any, None]], *ends: _End) -> None:
        self.send = send
        self._ends = ends

    async def drain(self) -> None:
        for end in self._ends:
            await end.drain()

    async def close(self) -> None:
        for end in self._ends:
            await end.close()


Number = Callable[[Any], int]
"""The number of a message."""


class Watch:
    """Checks the messages of one chain by their numbers, the first of which is ``start``."""

    def __init__(self, number: Number = int, *, start: int = 1, report: Callable[[str], None] | None = None) -> None:
        """``report`` is called at once with the first violation, in words; it is logged otherwise."""
        self._number = number
        self._checker = TraceChecker(start=start)
        self._report = report or (lambda text: logger.warning("a watched chain: %s", text))
        self._reported = False

    def verdict(self, *, drained: bool = True) -> Verdict:
        """What held so far. While messages are on their way, pass ``drained=False``: then they do not count as lost."""
        return self._checker.verdict(so_far=not drained)

    def sent(self, message: Any) -> None:
        """Note a message that goes in."""
        self._checker.expect(self._number(message))

    def received(self, message: Any) -> None:
        """Check a message that comes out."""
        self._checker.observe(self._number(message))
        violation = self._checker.violation
        if violation is not None and not self._reported:
            self._reported = True
            self._report(violation.text)

    def output(self, deliver: Deliver) -> Deliver:
        """``deliver``, watched."""

        async def watched(message: Any) -> None:
            self.received(message)
            await deliver(message)

        return watched

    def inlet(self, inlet: Inlet) -> Inlet:
        """``inlet``, watched."""
        return _WatchedInlet(self, inlet)


class _WatchedInlet:
    def __init__(self, watch: Watch, inlet: Inlet) -> None:
        self._watch, self._inlet = watch, inlet
        self.drain, self.close = inlet.drain, inlet.close

    async def send(self, message: Any) -> None:
        self._watch.sent(message)
        await self._inlet.send(message)
