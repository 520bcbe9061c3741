"""The job itself: publishing, ordering and consuming at the same time, then the books.

The engine that owns the store lives in this process and this event loop. The clients use it directly; Spark's tasks read the
log from the file, and append through the socket beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from seriatim.client.pubsub import PubSub
from seriatim.demo.books import Books
from seriatim.demo.fleet import Crossing
from seriatim.demo.ordering import Ordering
from seriatim.demo.plan import Demo, Topics
from seriatim.demo.senders import publish_arrivals
from seriatim.demo.steps import Step, Steps
from seriatim.demo.subscribers import Subscribers
from seriatim.errors import FailedPrecondition, SeriatimError

SUBSCRIPTION = "control-room"
PATIENCE = 120.0
"""After so many seconds without any progress something must be wrong."""


MakeOrdering = Callable[[Demo, Topics, Steps], Awaitable[Ordering]]


async def run(demo: Demo, make_ordering: MakeOrdering, steps: Steps, stack: AsyncExitStack) -> Books:
    """Run all of it. Whatever is started is put on the stack, to be ended from there."""
    pubsub = await stack.enter_async_context(PubSub(demo.folder.url))
    topics = await Topics.create(pubsub)
    publishing = steps.add("devices send to raw", demo.fleet.sent)
    ordering = await make_ordering(demo, topics, steps)
    stack.push_async_callback(ordering.close)
    return await _Run(demo, topics, ordering, steps, publishing).all_of_it()


class _Run:
    """One run, with its parts."""

    def __init__(self, demo: Demo, topics: Topics, ordering: Ordering, steps: Steps, publishing: Step) -> None:
        self._demo, self._topics, self._ordering, self._steps = demo, topics, ordering, steps
        self._crossing = Crossing(demo.fleet)
        self._publishing = publishing
        self._consuming = steps.add("subscribers handle ordered", demo.fleet.sent)
        self._auditing = steps.add("audit before and after")
        self._subscribers = Subscribers(demo.fleet, self._consuming)

    async def all_of_it(self) -> Books:
        subscription = self._topics.ordered.subscription(SUBSCRIPTION)
        self._subscribers.open(await subscription.create(enable_message_ordering=True))
        await self._at_the_same_time()
        await self._ordering.finish()
        with self._steps.at_work(self._auditing):
            ledger = await self._ordering.ledger()
            before, after = await self._ordering.audit(self._subscribers)
        return Books(self._crossing, ledger, self._subscribers, before, after)

    async def _at_the_same_time(self) -> None:
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
            before = self._steps.how_far()
            await asyncio.sleep(PATIENCE)
            if self._steps.how_far() == before:
                raise FailedPrecondition(
                    f"nothing moved for {PATIENCE:.0f} seconds; please report it, with '{self._demo.folder.path}'"
                )


def _first(group: BaseExceptionGroup[SeriatimError]) -> SeriatimError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
