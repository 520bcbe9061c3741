"""Statistics that pages request often: samples of the last hour (a few bytes each, of the whole store) with the rates
between them, and queries whose results open pages share."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from seriatim.engine.broker import Overview
from seriatim.errors import SeriatimError

if TYPE_CHECKING:
    from seriatim.console.app import Console

INTERVAL_S, KEPT = 10.0, 360
FRESH_S = 1.0
"""Several open pages share a sample that is not older than this."""

SPARED, OLDEST_S, MAX_LOOKS = 160, 5.0, 100
"""A page has up to four looks, which together may take a fortieth of the time: less than the 3 % that an open page may cost."""
AT_ONCE = 2
"""How many queries of one token, and of all pages together, may run at a time: delivery takes turns with them, and must not
wait for hundreds."""

T = TypeVar("T")


class Looks:
    """Queries of the store whose results open pages share, to limit their total cost.

    A result is reused for ``SPARED`` times its cost, at most ``OLDEST_S``: cheap ones are always fresh. A change by an
    operator of this console invalidates all results.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[asyncio.Future[Any], list[float]]] = {}
        self._turns = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(AT_ONCE))  # by token name

    async def take_turn(self, who: str, ask: Callable[[], Awaitable[T]]) -> T:
        async with self._turns[who]:
            return await ask()

    def clear(self) -> None:
        self._found = {}

    async def share(self, what: Hashable, ask: Callable[[], Awaitable[T]], who: str = "") -> T:
        found, now = self._found, asyncio.get_running_loop().time
        known = found.pop(what, None)
        if known is None or (known[1] and now() > known[1][0]):
            until: list[float] = []  # when the query ends
            begun, known = now(), (asyncio.ensure_future(self.take_turn(who, ask)), until)
            known[0].add_done_callback(
                lambda done: until.append(
                    -1.0 if done.cancelled() or done.exception() else now() + min(SPARED * (now() - begun), OLDEST_S)
                )
            )
        found[what] = known
        if len(found) > MAX_LOOKS:
            del found[next(iter(found))]
        answer: T = await asyncio.shield(known[0])
        return answer


class Sample(NamedTuple):
    time: float
    published: int
    acked: int
    failed: int
    messages: int
    blocked_keys: int


class Sampler:
    """Takes a sample every ten seconds, and keeps those of the last hour."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._latest: deque[Sample] = deque(maxlen=8)  # for open pages: rates of the last seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            with suppress(SeriatimError):  # an unavailable store leaves a gap
                self._samples.append(await self._sample())
            await asyncio.sleep(INTERVAL_S)

    async def _sample(self) -> Sample:
        if self._latest and asyncio.get_running_loop().time() - self._looked < FRESH_S:
            return self._latest[-1]
        sample = sample_of(await self._console.require_broker().overview(limit=0))
        self._looked = asyncio.get_running_loop().time()
        self._latest.append(sample)
        return sample

    async def figures(self) -> dict[str, Any]:
        """The numbers of the overview: rates of the last seconds, and current totals."""
        now = await self._sample()
        before = next((one for one in self._latest if one.time < now.time), now)
        seconds = max(now.time - before.time, 0.001)
        return {
            "in": (now.published - before.published) / seconds,
            "out": (now.acked - before.acked) / seconds,
            "failing": (now.failed - before.failed) / seconds,
            "messages": now.messages,
            "blocked_keys": now.blocked_keys,
        }

    def series(self) -> dict[str, list[tuple[float, float]]]:
        """Points of the last hour: seconds ago, and a rate or a number."""
        samples = list(self._samples)
        end = samples[-1].time if samples else 0.0
        found: dict[str, list[tuple[float, float]]] = {"in": [], "out": [], "failing": [], "messages": []}
        for before, after in pairwise(samples):
            seconds, ago = max(after.time - before.time, 0.001), end - after.time
            found["in"].append((ago, (after.published - before.published) / seconds))
            found["out"].append((ago, (after.acked - before.acked) / seconds))
            found["failing"].append((ago, (after.failed - before.failed) / seconds))
            found["messages"].append((ago, after.messages))
        return found

    _looked = 0.0


def sample_of(overview: Overview) -> Sample:
    deliveries = overview.deliveries
    failed = deliveries.nacked + deliveries.expired
    return Sample(
        overview.time.timestamp(),
        overview.published.published,
        deliveries.acked,
        failed,
        overview.messages,
        overview.blocked_keys,
    )
