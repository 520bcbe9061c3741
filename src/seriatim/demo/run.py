"""A run: publishing, resequencing and consuming at the same time, then the accounts.

The engine that owns the store lives in this process and this event loop. The clients use it directly; Spark's tasks read the
log from the file, and append through the socket beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from seriatim.client.pubsub import PubSub
from seriatim.client.topic import Topic
from seriatim.demo.books import Books
from seriatim.demo.fleet import Crossing
from seriatim.demo.plan import Demo, Ordering, Topics
from seriatim.demo.progress import DemoStep, Steps
from seriatim.demo.subscribers import Subscribers
from seriatim.errors import FailedPrecondition, SeriatimError

SUBSCRIPTION = "control-room"
STALL_TIMEOUT_S = 120.0
"""Without any progress for this long, something must be wrong."""

TURNS_PER_SECOND = 20

MakeOrdering = Callable[[Demo, Topics, Steps], Awaitable[Ordering]]


async def run(
    demo: Demo,
    make_ordering: MakeOrdering,
    steps: Steps,
    stack: AsyncExitStack,
    opened: Callable[[Any], Awaitable[None]] | None = None,
) -> Books:
    """Run the demo. Whatever is started is put on the stack, which stops it. ``opened`` gets the broker at the start."""
    pubsub = await stack.enter_async_context(PubSub(demo.folder.url))
    if opened is not None:
        await opened(pubsub.broker)
    topics = await Topics.create(pubsub)
    publishing = steps.add("devices send to raw", demo.fleet.sent)
    ordering = await make_ordering(demo, topics, steps)
    stack.push_async_callback(ordering.close)
    return await _Run(demo, topics, ordering, steps, publishing).run()


class _Run:
    """One run, with its parts."""

    def __init__(self, demo: Demo, topics: Topics, ordering: Ordering, steps: Steps, publishing: DemoStep) -> None:
        self._demo, self._topics, self._ordering, self._steps = demo, topics, ordering, steps
        self._crossing = Crossing(demo.fleet)
        self._publishing = publishing
        self._consuming = steps.add("subscribers handle ordered", demo.fleet.sent)
        self._auditing = steps.add("audit before and after")
        self._subscribers = Subscribers(demo.fleet, self._consuming)

    async def run(self) -> Books:
        subscription = self._topics.ordered.subscription(SUBSCRIPTION)
        self._subscribers.open(await subscription.create())
        await self._until_all_is_consumed()
        await self._ordering.finish()
        with self._steps.at_work(self._auditing):
            ledger = await self._ordering.ledger()
            before, after = await self._ordering.audit(self._subscribers)
        return Books(self._crossing, ledger, self._subscribers, before, after)

    async def _until_all_is_consumed(self) -> None:
        """Publish and order until every subscriber has seen the last reading."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish())
                behind = [group.create_task(self._ordering.work()), group.create_task(self._require_progress())]
                await group.create_task(self._consume())
                for task in behind:
                    task.cancel()
        except* SeriatimError as group:
            raise _first(group) from None

    async def _publish(self) -> None:
        with self._steps.at_work(self._publishing) as step:
            await publish_arrivals(self._crossing, self._topics.raw, step, per_second=self._demo.per_second)

    async def _consume(self) -> None:
        with self._steps.at_work(self._consuming):
            await self._subscribers.seen_all.wait()

    async def _require_progress(self) -> None:
        while True:
            before = self._steps.progress()
            await asyncio.sleep(STALL_TIMEOUT_S)
            if self._steps.progress() == before:
                raise FailedPrecondition(
                    f"no progress for {STALL_TIMEOUT_S:.0f} seconds; please report this, with '{self._demo.folder.path}'"
                )


def _first(group: BaseExceptionGroup[SeriatimError]) -> SeriatimError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


async def publish_arrivals(crossing: Crossing, topic: Topic, step: DemoStep, *, per_second: float) -> None:
    """Publish every reading when it arrives, with its device as the key. All of them are durable at the end."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for arrival in crossing:
        topic.publish(arrival.payload(), ordering_key=arrival.reading.device)
        step.count = crossing.sent
        ahead = begun + crossing.sent / per_second - loop.time()
        if ahead > 1 / TURNS_PER_SECOND:
            await asyncio.sleep(ahead)
            step.note = f"{crossing.arrivals:,} arrived"
    await topic.flush()
    step.note = f"{crossing.arrivals:,} arrived"
