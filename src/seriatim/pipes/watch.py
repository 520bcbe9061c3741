"""Watching a chain at work: the strongest guarantee that actually held, and the first violation of the next.

A watch needs a number for each message, rising by one in the order of sending: what its source stamped on it. It sees
what goes in and what comes out; what is on its way in between is not lost yet, so losses at the end show only when the
chain has drained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seriatim.core.traces import TraceChecker, Verdict
from seriatim.log import logger

if TYPE_CHECKING:
    from seriatim.pipes.chain import Deliver, Inlet

Number = Callable[[Any], int]
"""The number of a message."""


class Watch:
    """Judges the messages of one chain by their numbers, the first of which is ``start``."""

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
        self._checker.expect(self._number(message))

    def received(self, message: Any) -> None:
        self._checker.observe(self._number(message))
        violation = self._checker.violation
        if violation is not None and not self._reported:
            self._reported = True
            self._report(violation.text)

    def output(self, deliver: Deliver) -> Deliver:
        async def watched(message: Any) -> None:
            self.received(message)
            await deliver(message)

        return watched

    def inlet(self, inlet: Inlet) -> Inlet:
        return _WatchedInlet(self, inlet)


class _WatchedInlet:
    def __init__(self, watch: Watch, inlet: Inlet) -> None:
        self._watch, self._inlet = watch, inlet
        self.drain, self.close = inlet.drain, inlet.close

    async def send(self, message: Any) -> None:
        self._watch.sent(message)
        await self._inlet.send(message)
