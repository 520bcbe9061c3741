"""A subscription: its lanes, and the owners of everything around them.

Rules
    - The lanes (``core.lanes.lanes``) decide what is delivered and when. Nothing here decides order.
    - The owners: ``life`` of when messages may flow (``subscription_states.py``), ``deliveries`` of consumers and the timer,
      ``outcomes`` of acks and failures and of when they are durable, ``placement`` of the position in the log, and
      ``dead_letters`` of messages that left undelivered. Operators' actions are in ``operator_actions.py``.
    - When the store must be reopened, leases are fenced at once, and changes that were accepted but not written did not happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from itertools import repeat
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from seriatim.core.lanes.tenants import new_lanes
from seriatim.engine.broker import SubscriptionInfo
from seriatim.engine.dead_letters import DeadLetters
from seriatim.engine.deliveries import Deliveries
from seriatim.engine.key_history import WatchedKeys
from seriatim.engine.lane_loading import Loaded
from seriatim.engine.metrics import DeliveryCounts
from seriatim.engine.options import Flaws, SubscriptionOptions, read_subscription_options, said_of
from seriatim.engine.outcomes import Outcomes
from seriatim.engine.subscription_filter import SubscriptionFilter
from seriatim.engine.subscription_moves import Placement
from seriatim.engine.subscription_states import LifeEvent, LifeState, SubscriptionLife
from seriatim.engine.topic import TopicState
from seriatim.log import logger
from seriatim.store.base import MessageHeader, Record, SubscriptionRow

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine

_KEY, _OFFSET, _NOT_BEFORE = attrgetter("key"), attrgetter("offset"), attrgetter("not_before")


class SubscriptionState:
    """The engine's state of one subscription."""

    def __init__(self, row: SubscriptionRow, topic: TopicState, engine: Engine) -> None:
        self.id = row.id
        self.name = row.name
        self.topic = topic
        self.flaws: Flaws = {}  # what is wrong with the options that the store holds: then nothing is given out
        self.options = self.read_options(row)
        self.lanes = new_lanes(self.options.delivery, engine.first_token())
        self.lanes_lock = asyncio.Lock()  # held while somebody relies on the lanes not being replaced
        self.filter = SubscriptionFilter(row.id, self.options.filter, engine.commit, row.name)
        if self.options.detached:
            self.filter.reject_all()
        self.counts = DeliveryCounts()
        self.watched = WatchedKeys(row.id)
        self.pause_reasons: dict[str | None, str | None] = {}
        self.oldest = (-1, 0.0)  # its oldest message when somebody looked last, and when that was published
        self.loaded = engine.now()  # when the lanes were; whatever was published before may have been ready before
        self.switched = -inf  # when the subscription was last paused or resumed, if that was after
        self.life = SubscriptionLife()
        self.deliveries = Deliveries(self, engine)
        self.outcomes = Outcomes(self, engine)
        self.dead_letters = DeadLetters(self, engine)
        self.placement = Placement(self, engine)
        self._engine = engine
        self._held_back: list[Record | MessageHeader] = []  # what comes while it is not active
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began

    def info(self) -> SubscriptionInfo:
        return SubscriptionInfo(self.name, self.topic.name, self.options, said_of(self.flaws))

    def read_options(self, row: SubscriptionRow) -> SubscriptionOptions:
        """The stored options. If some are unusable, the subscription is stopped."""
        options, self.flaws = read_subscription_options(row.options)
        if self.flaws:
            logger.error("subscription %r is stopped, because it has %s", self.name, said_of(self.flaws))
        return options

    # -- messages -------------------------------------------------------------------------------------------------------

    def push(self, records: Sequence[Record | MessageHeader]) -> None:
        """Queue messages that are durable."""
        if self.life.state is not LifeState.ACTIVE:
            self._held_back += records
            return
        wanted = self.filter.sift(records)
        if any(map(_NOT_BEFORE, wanted)):
            self._push_delayed(wanted)
        elif self.options.message_ordering:
            self.lanes.push_all(zip(map(_KEY, wanted), map(_OFFSET, wanted), strict=True))
        else:
            self.lanes.push_all(zip(repeat(None), map(_OFFSET, wanted)))
        self.outcomes.write_superseded()
        self.deliveries.wake()

    def _push_delayed(self, records: Sequence[Record | MessageHeader]) -> None:
        now, ordering, lanes = self._engine.now(), self.options.message_ordering, self.lanes
        for record in records:
            lanes.push(record.key if ordering else None, record.offset, now, record.not_before - now)

    async def records(self, offsets: Iterable[int]) -> dict[int, Record]:
        """Messages by their offsets, without delivering them, except those that are no longer kept."""
        wanted = sorted(set(offsets))
        known = {offset: record for offset in wanted if (record := self.topic.recent(offset)) is not None}
        missing = [offset for offset in wanted if offset not in known]
        fetched = await self._engine.fetch(self.topic.id, missing) if missing else []
        return known | {record.offset: record for record in fetched}

    # -- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start as a new subscription, without stored state."""
        self.life.step(LifeEvent.LOAD)

    def resume(self, options: SubscriptionOptions, loaded: Loaded) -> None:
        """Continue with the stored state. A move in progress continues, too, and then releases the messages that are held
        back."""
        self.life.step(LifeEvent.LOAD)
        self.use(loaded, options)
        self.release_held_back(loaded.until)

    def use(self, loaded: Loaded, options: SubscriptionOptions) -> None:
        """Replace the lanes by newly loaded ones."""
        self.lanes, self.options = loaded.lanes, options
        self.loaded, self.switched = self._engine.now(), -inf
        # The floor may be above the last message: that one may have failed after it was counted on.
        self.topic.skip_offsets_below(loaded.floor)
        self.dead_letters.load(loaded.letters)
        self.pause_reasons = {row.key: row.reason for row in loaded.paused}
        self.filter.settle_later(loaded.rejected)
        self.outcomes.write_superseded()

    def change(self, options: SubscriptionOptions) -> None:
        """Continue with other options."""
        if options.paused is not self.options.paused:
            self.switched = self._engine.now()
        self.options = options

    def release_held_back(self, until: int) -> None:
        """If messages may flow again, queue those published meanwhile, except those that were loaded."""
        if self.life.state is LifeState.ACTIVE:
            records, self._held_back = self._held_back, []
            self.push([record for record in records if record.offset > until])

    def suspend(self, error: BaseException) -> None:
        """The store is unavailable: fence every lease, deliver nothing, and drop changes that are not written."""
        self.life.step(LifeEvent.SUSPEND)
        self._held_back = []
        self._cancel_tasks()
        self.dead_letters.forget_burials()
        self.outcomes.fail_waiting(error)
        lost, self.lanes = self.lanes, new_lanes(self.options.delivery, self.lanes.next_token)
        self.deliveries.lose_all(lost)

    def close(self, why: BaseException) -> None:
        """Stop the timer, reads and consumers. Later acks and nacks raise this error."""
        if self.life.state is not LifeState.CLOSED:
            self.life.close(why)
            self.deliveries.close()
            self._cancel_tasks()

    # -- work in the background -----------------------------------------------------------------------------------------

    def run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._engine.recovery.failed(error)

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
