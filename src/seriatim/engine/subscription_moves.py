"""Moves a subscription to another position or to other lanes: changed options, a seek, detaching.

Rules
    - A move loads the lanes from the store again, while nothing is in flight, nothing is delivered, and newly published
      messages are held back (``subscription_states.py``).
    - Moves take place one after another, and each sees the result of the one before. Lanes are replaced only while nothing
      operates on them (``lanes_lock``).
    - If a move fails, the old lanes continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from seriatim.core.lanes.tenants import new_lanes
from seriatim.core.lanes.types import RetryPolicy
from seriatim.engine.lane_loading import Loaded, load_lanes
from seriatim.engine.options import SubscriptionOptions, require_repaired
from seriatim.engine.subscription_filter import SubscriptionFilter
from seriatim.engine.subscription_states import LifeEvent
from seriatim.errors import FailedPrecondition, StoreBroken, StoreError
from seriatim.store.base import StoreReader

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine
    from seriatim.engine.subscription import SubscriptionState


class Placement:
    """Gives a subscription other lanes."""

    def __init__(self, host: SubscriptionState, engine: Engine) -> None:
        self._host = host
        self._engine = engine
        self._one_at_a_time = asyncio.Lock()

    def load(self, store: StoreReader, options: SubscriptionOptions) -> Loaded:
        """The stored state of the subscription, in new lanes. May run in a thread."""
        host = self._host
        lanes = new_lanes(options.delivery, max(host.lanes.next_token, self._engine.first_token()))
        lanes.advance(self._engine.now())  # so that what is due is not taken for delayed
        return load_lanes(lanes, store, host.id, host.topic.id, options, host.filter)

    async def reconfigure(
        self, change: Callable[[SubscriptionOptions], SubscriptionOptions], names: Sequence[str] | None
    ) -> None:
        """Continue with the options that ``change`` returns. If they need other lanes, outstanding leases finish first.

        ``names`` are the options that are set, None for all. Unusable ones must be among them."""
        host = self._host
        async with self._one_at_a_time:
            require_repaired(f"subscription {host.name!r}", host.flaws, names)
            options = change(host.options)
            if host.flaws:
                host.filter = SubscriptionFilter(host.id, options.filter, self._engine.commit, host.name)
            while not host.flaws and _shape(options) == _shape(before := host.options):
                await self._write_options(options)
                if host.options is before:
                    host.change(options)
                    host.lanes.set_retry(options.retry)
                    host.deliveries.wake()
                    return
                options = change(host.options)  # the store was opened again meanwhile, and held others
            await self._replace_lanes(options)
            host.flaws = {}
            host.deliveries.wake()
            if not options.message_ordering:
                host.dead_letters.give_up_places()

    async def detach(self) -> None:
        """Drop everything, and accept nothing more. Outstanding leases are fenced."""
        host = self._host
        async with self._one_at_a_time:
            options = replace(host.options, detached=True)
            host.deliveries.fence_all()
            await self._replace_lanes(options, lambda: self._write_detached(options))
            host.flaws = {}
            detached = f"subscription {host.name!r} is detached: it receives no more messages"
            host.deliveries.report(FailedPrecondition(detached))

    async def relocate(self, move: Callable[[], Awaitable[None]]) -> None:
        """Continue from where ``move`` puts the subscription in the store. Outstanding leases are fenced; accepted acks are
        written before."""
        async with self._one_at_a_time:
            self._host.deliveries.fence_all()
            await self._replace_lanes(None, move)

    async def _write_detached(self, options: SubscriptionOptions) -> None:
        await self._write_options(options)
        self._host.filter.reject_all()

    async def _write_options(self, options: SubscriptionOptions) -> None:
        id_, values = self._host.id, options.to_json()
        await self._engine.change(lambda work: work.update_subscription(id_, values))

    async def _replace_lanes(
        self, options: SubscriptionOptions | None, move: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """``options`` None: those in force when ``move`` is done. The store may be reopened before."""
        host, until = self._host, -1
        host.life.require_open()
        host.life.step(LifeEvent.MOVE)
        try:
            await host.deliveries.until_quiet()
            async with host.lanes_lock:
                await host.deliveries.until_quiet()  # once more: an operator may have been at work
                await host.outcomes.accepted()  # what is noted about failed deliveries must be in the store
                loaded, options = await self._load_anew(options, move)
                await host.outcomes.accepted()  # what was loaded and is not here yet comes before this
                host.use(loaded, options)
                until = loaded.until
        finally:
            host.life.step(LifeEvent.MOVED)
            host.release_held_back(until)

    async def _load_anew(
        self, given: SubscriptionOptions | None, move: Callable[[], Awaitable[None]] | None
    ) -> tuple[Loaded, SubscriptionOptions]:
        if move is not None:
            await move()
        options = given or self._host.options
        try:
            loaded = await self._engine.load(lambda store: self.load(store, options))
        except StoreError as error:
            if move is not None:  # the store says something else than the lanes that there are: those must not go on
                self._engine.recovery.failed(
                    StoreBroken(f"subscription {self._host.name!r} could not be loaded again: {error}")
                )
            raise
        if move is None:  # written when everything else has succeeded: what fails before has changed nothing
            await self._write_options(options)
        return loaded, options


def _shape(options: SubscriptionOptions) -> tuple[object, ...]:
    """The options that lanes are built for. All others can be changed while lanes are in use."""
    return options.message_ordering, replace(options.delivery, retry=RetryPolicy(mode=options.retry.mode))
