"""An operator's hand: what can be seen of a subscription, and done to it, while it is at work.

Rules
    - What a verb has returned is durable.
    - The lanes decide: what they refuse, because somebody else was quicker, is refused with their words.
    - Nobody waits for a lease: an operator's word fences it, or goes around it.
    - Looking at many keys happens in pieces, between which messages go on.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from heapq import nsmallest
from math import inf

from seriatim.core.delivery import DeadLettered, LaneView, Removed, Survey
from seriatim.core.lane import LaneState
from seriatim.core.limits import check_key, reason_of
from seriatim.core.options import LARGEST_WHOLE, require_whole
from seriatim.engine.broker import DeadLetter, KeyInfo, StoredMessage
from seriatim.engine.metrics import SubscriptionStats
from seriatim.engine.options import said_of
from seriatim.engine.subscription import SubscriptionState
from seriatim.errors import FailedPrecondition, NotFound
from seriatim.store.base import DeadLetterRow, Record

PIECE = 5_000
"""So many keys are looked at before others have their turn."""

_TROUBLE = {LaneState.PAUSED: 0, LaneState.DELAYED: 1, LaneState.LEASED: 2, LaneState.SETTLING: 3, LaneState.READY: 4}
_BLOCKED = {LaneState.PAUSED, LaneState.DELAYED}


class Operations(ABC):
    """The part of a broker that is for operators, on top of an engine that knows its subscriptions."""

    @abstractmethod
    def get_subscription(self, name: str) -> SubscriptionState: ...

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    async def finish(self, work: Coroutine[None, None, None]) -> None:
        """Wait for work that is finished once it has begun."""

    @abstractmethod
    async def require_store(self) -> None:
        """Wait while the store is opened again, and all lanes are loaded anew."""

    @abstractmethod
    def topic_name(self, topic_id: int | None) -> str | None:
        """The name of a topic, unless it is deleted."""

    @asynccontextmanager
    async def _steady(self, state: SubscriptionState) -> AsyncIterator[None]:
        """Rely on the lanes: nobody replaces them meanwhile, and they are not those of a store that failed."""
        async with state.steady:
            await self.require_store()
            yield

    # -- looking --------------------------------------------------------------------------------------------------------

    async def stats(self, subscription: str) -> SubscriptionStats:
        state = self.get_subscription(subscription)
        survey, counts = await self._survey(state), state.lanes.counts()
        oldest = (await state.records([survey.oldest])).values() if survey.oldest is not None else ()
        return SubscriptionStats(
            subscription=state.name,
            topic=state.topic.name,
            total=counts.total,
            ready=counts.ready,
            leased=counts.leased,
            delayed=counts.delayed,
            blocked=counts.blocked,
            dead_letters=len(state.dead_letters),
            keys=survey.keys,
            blocked_keys=survey.blocked,
            paused_keys=survey.paused,
            oldest_age=next((max(0.0, self.now() - record.published) for record in oldest), None),
            consumers=state.consumers,
            paused=state.options.paused,
            stopped=said_of(state.flaws),
        )

    @staticmethod
    async def _survey(state: SubscriptionState) -> Survey:
        found = []
        for piece in _pieces(state.lanes.keys()):
            found.append(state.lanes.survey(piece))
            await asyncio.sleep(0)
        oldest = [survey.oldest for survey in found if survey.oldest is not None]
        return Survey(
            sum(survey.keys for survey in found),
            sum(survey.blocked for survey in found),
            sum(survey.paused for survey in found),
            min(oldest, default=None),
        )

    async def list_keys(self, subscription: str, *, limit: int = 100, blocked_only: bool = False) -> list[KeyInfo]:
        """Keys that have messages or are paused, those in trouble first. Paused and delayed keys count as blocked."""
        _check_limit(limit)
        state = self.get_subscription(subscription)
        worst: list[LaneView] = []
        for piece in _pieces(state.lanes.keys()):
            views = [view for key in piece if (view := state.lanes.view(key)) is not None]
            worst = nsmallest(limit, [*worst, *(v for v in views if not blocked_only or v.state in _BLOCKED)], _rank)
            await asyncio.sleep(0)
        records = await state.records(view.head for view in worst if view.head is not None)
        return [self._key_info(state, view, records.get(-1 if view.head is None else view.head)) for view in worst]

    def _key_info(self, state: SubscriptionState, view: LaneView, head: Record | None) -> KeyInfo:
        return KeyInfo(
            key=view.key,
            state=str(view.state),
            depth=view.depth,
            in_flight=view.in_flight,
            head=view.head,
            head_age=max(0.0, self.now() - head.published) if head is not None else None,
            attempts=view.attempts,
            not_before=view.not_before,
            error=view.error,
            why=_why(state, view),
        )

    async def peek(self, subscription: str, key: str | None, limit: int = 10) -> list[StoredMessage]:
        """The first messages of a key, in order, without delivering them."""
        _check_limit(limit)
        if key is not None:
            check_key(key)
        state = self.get_subscription(subscription)
        records = await state.records(state.lanes.offsets(key, limit))
        return [
            StoredMessage(record.offset, record.key, record.data, record.attributes or {}, record.published)
            for _, record in sorted(records.items())
        ]

    # -- the head of a key ----------------------------------------------------------------------------------------------

    async def retry_key(self, subscription: str, key: str | None) -> None:
        """Let what waits for its retry, or for its delay, go out now: the head of a key, and everything it overtook."""
        state = self.get_subscription(subscription)
        async with self._steady(state):
            done = state.carry_out(state.lanes.retry(key, self.now()))
        await done

    async def skip(self, subscription: str, key: str | None) -> int:
        """Settle the head of a key unseen, and return its offset. A lease of it is fenced."""
        state = self.get_subscription(subscription)
        async with self._steady(state):
            effects = state.lanes.skip(key)
            done = state.carry_out(effects)
        await done
        return next(effect.offset for effect in effects if isinstance(effect, Removed))

    async def remove(self, subscription: str, offset: int) -> None:
        """Take a message out of its lane, wherever it stands. One that is in flight can't be removed."""
        state = self.get_subscription(subscription)
        async with self._steady(state):
            record = (await state.records([offset])).get(offset)
            if record is None:
                raise NotFound(f"topic {state.topic.name!r} keeps no message {offset}")
            done = state.carry_out([state.lanes.remove(record.key if state.options.ordering else None, offset)])
        await done

    # -- pausing --------------------------------------------------------------------------------------------------------

    async def pause_key(self, subscription: str, key: str | None, reason: str | None = None) -> None:
        """Give out nothing more of a key; leases that are out go on. Pausing again gives a new reason."""
        state, reason = self.get_subscription(subscription), reason_of(reason)
        if key is not None:
            check_key(key)
        async with self._steady(state):
            if not _is_paused(state, key):
                state.lanes.pause(key)
            state.pause_reasons[key] = reason
            done = state.promise(lambda work: work.pause_key(state.id, key, reason))
        await done

    async def resume_key(self, subscription: str, key: str | None) -> None:
        """Give messages of a key out again. One that had used up its attempts gets one more."""
        state = self.get_subscription(subscription)
        async with self._steady(state):
            if not _is_paused(state, key):
                raise FailedPrecondition(f"key {key!r} of subscription {subscription!r} is not paused")
            done = state.carry_out(state.lanes.resume(key), lambda work: work.resume_key(state.id, key))
            state.pause_reasons.pop(key, None)
        await done

    async def pause(self, subscription: str) -> None:
        """Give out nothing more; leases that are out go on. Survives a restart."""
        await self._set_paused(subscription, True)

    async def resume(self, subscription: str) -> None:
        await self._set_paused(subscription, False)

    async def _set_paused(self, subscription: str, paused: bool) -> None:
        state = self.get_subscription(subscription)
        await self.finish(state.reconfigure(lambda current: replace(current, paused=paused), ["paused"]))

    # -- dead letters ---------------------------------------------------------------------------------------------------

    async def dead_letter(
        self, subscription: str, key: str | None, error: str | None = None, *, rest: bool = False
    ) -> list[int]:
        """Dead-letter the head of a key, or all of it; returns the offsets. Leases of the key are fenced."""
        state, error = self.get_subscription(subscription), reason_of(error)
        async with self._steady(state):
            effects = state.lanes.dead_letter(key, error, rest)
            done = state.carry_out(effects)
        await done
        return [effect.offset for effect in effects if isinstance(effect, DeadLettered)]

    async def dead_letters(self, subscription: str, *, limit: int = 100, after: int = -1) -> list[DeadLetter]:
        _check_limit(limit)
        state = self.get_subscription(subscription)
        await state.accepted()  # a failure that was reported just now may have been the last that was allowed
        return [self._dead_letter(state, row) for row in state.dead_letters.after(after, limit)]

    def _dead_letter(self, state: SubscriptionState, row: DeadLetterRow) -> DeadLetter:
        return DeadLetter(
            offset=row.offset,
            key=row.key,
            attempts=row.attempts,
            time=row.time,
            error=row.error,
            copy_topic=self.topic_name(row.copy_topic_id),
            copy_offset=row.copy_offset,
            returnable=state.dead_letters.is_returnable(row),
        )

    async def redrive(self, subscription: str, offset: int, *, append: bool = False) -> int:
        """Put a dead letter back at its place, or at the end under a new offset; returns its offset then."""
        state = self.get_subscription(subscription)
        await state.accepted()
        async with self._steady(state):
            now_at, done = await state.dead_letters.redrive(offset, append=append)
        await done
        return now_at

    async def purge(self, subscription: str, offsets: Sequence[int]) -> None:
        """Give dead letters up for good."""
        state = self.get_subscription(subscription)
        await state.accepted()
        async with self._steady(state):
            done = state.dead_letters.purge(offsets)
        await done


def _check_limit(limit: object) -> None:
    require_whole("limit", limit, 0, LARGEST_WHOLE)


def _pieces(keys: list[str | None]) -> Iterator[list[str | None]]:
    return (keys[first : first + PIECE] for first in range(0, len(keys), PIECE))


def _rank(view: LaneView) -> tuple[int, int, float]:
    """Those in trouble first; among equals what failed most often, then what is oldest."""
    return _TROUBLE.get(LaneState(view.state), len(_TROUBLE)), -view.attempts, inf if view.head is None else view.head


def _is_paused(state: SubscriptionState, key: str | None) -> bool:
    view = state.lanes.view(key)
    return view is not None and view.state == LaneState.PAUSED


def _why(state: SubscriptionState, view: LaneView) -> str | None:
    """What a key waits for, in words."""
    if view.state == LaneState.PAUSED:
        reason = state.pause_reasons.get(view.key)
        return f"paused: {reason}" if reason else "paused"
    if view.state == LaneState.DELAYED:
        return _why_delayed(view)
    if view.state == LaneState.LEASED:
        return _why_leased(view)
    if view.state == LaneState.SETTLING:
        return "its acknowledgement is being written"
    if state.flaws:
        return f"the subscription is stopped: {said_of(state.flaws)}"
    return "the subscription is paused" if state.options.paused else None


def _why_delayed(view: LaneView) -> str:
    until = "a moment from now" if view.not_before is None else _clock(view.not_before)
    if not view.attempts:
        return f"delayed until {until}"
    return f"waits for its retry until {until}" + (f": {view.error}" if view.error else "")


def _why_leased(view: LaneView) -> str:
    if view.key is None:
        return f"{view.in_flight} messages without a key are in flight"
    return f"message {view.head} is in flight (attempt {view.attempts})"


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
