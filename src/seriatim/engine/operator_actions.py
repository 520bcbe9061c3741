"""Operators' actions: inspecting and changing a subscription while it is in use.

Rules
    - When a method has returned, its effect is durable.
    - The lanes decide: if they refuse an action, for example because another one came first, their error is raised.
    - No action waits for a lease: it fences the lease, or works around it.
    - Many keys are examined in pieces, so that messages are not held up.
    - The reason why a key waits is determined at one moment, after processing deadlines that have passed. Only the publish time
      of its message may have to be read later, and it does not change the rest of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from heapq import nsmallest
from itertools import chain, islice, takewhile
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from seriatim.core.lanes.explanation import WaitsFor, explain
from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.types import DeadLettered, LaneView, Removed
from seriatim.core.publishing.message_limits import check_key
from seriatim.core.text_checks import reason_of
from seriatim.core.validation import MAX_INTEGER, one_of, require_whole, shown
from seriatim.engine.broker import (
    RANKED_KEYS,
    DeadLetter,
    DeadLetterGroup,
    Explanation,
    KeyDetails,
    KeyGroup,
    KeyInfo,
    KeyOrder,
    KeyState,
    LanePosition,
    PeekedMessage,
    PositionState,
    RedrivePreview,
    RedriveRefusal,
    SupersededMessage,
)
from seriatim.engine.dead_letters import group_of
from seriatim.engine.message_ids import offset_of
from seriatim.engine.metrics import SubscriptionStats
from seriatim.engine.options import said_of
from seriatim.engine.subscription import SubscriptionState
from seriatim.errors import DamagedStore, FailedPrecondition, InvalidArgument, NotFound
from seriatim.store.base import DeadLetterRow, Record, StoreReader

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine

T = TypeVar("T")

PIECE, DESCRIBED = 2_000, 500
"""So many keys are looked at, or described, before others have their turn."""

OLDEST_KEYS = 20_000
"""How many keys, at most, are searched for the oldest message of a subscription."""

LOOK_BACK_FIRST, LOOK_BACK = 2_000, 20_000
"""How many offsets before the head of a key are searched for its earlier messages: at first, and if that finds too few."""

_BLOCKED = (LaneState.PAUSED, LaneState.DELAYED)
_TROUBLE = (*_BLOCKED, LaneState.LEASED, LaneState.SETTLING, LaneState.READY)
"""Tuples: a search by identity is faster than hashing a member of an enum."""

_FREE = {WaitsFor.CONSUMER, WaitsFor.TENANT}
"""A key that waits for one of these is not blocked: it is ready."""


class Operator:
    """Operators' actions on one subscription."""

    def __init__(self, state: SubscriptionState, engine: Engine) -> None:
        self._state = state
        self._engine = engine

    @asynccontextmanager
    async def _lanes_locked(self) -> AsyncIterator[None]:
        """Keep the lanes: they are not replaced in this block, and their store has not failed."""
        async with self._state.lanes_lock:
            await self._engine.recovery.require_store()
            yield

    # -- looking --------------------------------------------------------------------------------------------------------

    async def stats(self) -> SubscriptionStats:
        state = self._state
        first, counts = await self._oldest(), state.lanes.counts()
        oldest = (await state.records([first])).values() if first is not None else ()
        return SubscriptionStats(
            subscription=state.name,
            topic=state.topic.name,
            total=counts.total,
            ready=counts.ready,
            leased=counts.leased,
            delayed=counts.delayed,
            blocked=counts.blocked,
            dead_letters=len(state.dead_letters),
            keys=state.lanes.key_count,
            blocked_keys=state.lanes.blocked_key_count,
            paused_keys=len(state.pause_reasons),
            oldest_age=next((max(0.0, self._engine.now() - record.published) for record in oldest), None),
            consumers=len(state.deliveries),
            paused=state.options.paused,
            stopped=said_of(state.flaws),
        )

    async def _oldest(self) -> int | None:
        """The oldest message. If there are many keys, only those that have been non-empty for longest are examined."""
        found, lanes = [], self._state.lanes
        for piece in _pieces(list(dict.fromkeys([*lanes.keys(OLDEST_KEYS), *lanes.blocked_keys(OLDEST_KEYS)]))):
            found.append(lanes.oldest(piece))
            await asyncio.sleep(0)
        return min((offset for offset in found if offset is not None), default=None)

    async def list_keys(
        self,
        *,
        limit: int = 100,
        blocked_only: bool = False,
        order: KeyOrder = "trouble",
        state: KeyState | None = None,
        search: str = "",
        skip: int = 0,
    ) -> list[KeyInfo]:
        """Keys that have messages or are paused, a page of them in this order. Paused and delayed keys count as blocked."""
        _check_limit(limit)
        _check_limit(skip)
        if order not in _RANKS:
            raise InvalidArgument(f"order is {', '.join(map(repr, _RANKS))}, not {shown(order)}")
        only = None if state is None else one_of("state", LaneState, state)
        wanted = [each for each in (_BLOCKED if blocked_only else _TROUBLE) if only in {None, each}]
        host, size = self._state, skip + limit
        host.deliveries.let_time_pass()
        first: list[tuple[Any, ...]] = []
        views: dict[str | None, LaneView] = {}  # taken when a key was ranked: the page shows what it was sorted by
        for piece in _pieces(await self._candidates(search, wanted, size if order == "trouble" else inf)):
            first = nsmallest(size, chain(first, self._ranked(piece, wanted, _RANKS[order])))
            keys = [key if is_keyed else None for *_, is_keyed, key in first]
            found = ((key, views.get(key) or host.lanes.view(key)) for key in keys)
            views = {key: view for key, view in found if view is not None}
            await asyncio.sleep(0)
        infos: list[KeyInfo] = []
        for described in _pieces(list(views.values())[skip:], DESCRIBED):
            page = [(view, self._explained(view.key, view)) for view in described]
            records = await host.records(_shown(described))
            infos += [self._key_info(view, records, explained(records)) for view, explained in page]
            await asyncio.sleep(0)
        return infos

    def _ranked(
        self, keys: Iterable[str | None], wanted: Container[LaneState], rank: _Rank
    ) -> Iterator[tuple[Any, ...]]:
        """Keys in wanted states behind their ranks, which are equal only if keys have no messages."""
        values_of = self._state.lanes.sort_values
        for key in keys:
            values = values_of(key)
            if values is not None and values[0] in wanted:
                yield (*rank(*values), key is not None, key or "")

    async def group_keys(self, limit: int = 100) -> list[KeyGroup]:
        _check_limit(limit)
        groups: dict[tuple[str, str], list[str | None]] = {}
        lanes, pause_reasons = self._state.lanes, self._state.pause_reasons
        for piece in _pieces(lanes.blocked_keys(RANKED_KEYS)):
            for key in piece:
                if (values := lanes.sort_values(key)) is not None:
                    state, *_, head = values
                    reason = pause_reasons.get(key) or (None if head is None else lanes.failures(head)[1])
                    groups.setdefault((str(state), group_of(reason)), []).append(key)
            await asyncio.sleep(0)
        largest = nsmallest(limit, groups.items(), lambda group: (-len(group[1]), group[0]))
        return [KeyGroup(state, reason, len(keys), keys[0]) for (state, reason), keys in largest]

    async def _candidates(self, search: str, wanted: Sequence[LaneState], enough: float) -> list[str | None]:
        """The keys that are put in order: the blocked ones, and behind them others, unless only blocked ones are wanted, or
        they are enough."""
        lanes, everything = self._state.lanes, not set(wanted) <= set(_BLOCKED)
        if not search:
            blocked = lanes.blocked_keys(RANKED_KEYS)
            are_enough = len(blocked) >= enough and set(_BLOCKED) <= set(wanted)
            others = lanes.keys(RANKED_KEYS) if everything and not are_enough else []
            return list(dict.fromkeys([*blocked, *others]))[:RANKED_KEYS] if others else blocked
        found: list[str | None] = []
        for piece in _pieces(lanes.keys() if everything else lanes.blocked_keys(), 5 * PIECE):  # cheaper than ranking
            found += [key for key in piece if key is not None and search in key]
            if len(found) >= RANKED_KEYS:
                break
            await asyncio.sleep(0)
        return found[:RANKED_KEYS]

    async def describe_key(self, key: str | None, limit: int = 50) -> KeyDetails:
        _check_key(key)
        _check_limit(limit)
        state, lanes = self._state, self._state.lanes
        waiting = lanes.offsets(key, limit)
        head = waiting[0] if waiting else state.topic.next_offset
        before, searched_from = await self._engine.load(lambda store: _earlier(store, state.topic.id, head, key, limit))
        state.deliveries.let_time_pass()
        view = lanes.view(key)
        explained = self._explained(key, view)
        records = await state.records([*waiting, *_shown([view])])
        explanation = explained(records)
        state.watched.watch(self._engine.now(), key)
        return KeyDetails(
            subscription=state.name,
            topic=state.topic.name,
            info=None if view is None else self._key_info(view, records, explanation),
            explanation=explanation,
            positions=[
                self._position(record) for record in [*before, *(records[offset] for offset in sorted(records))]
            ],
            events=self._engine.history.of(
                state.watched, key, [(record.published, record.offset) for record in [*before, *records.values()]]
            )[:limit],
            since=_moment(self._engine.history.started),
            searched_from=None if searched_from is None else str(searched_from),
        )

    def _position(self, record: Record) -> LanePosition:
        state, offset = self._state, record.offset
        row = state.dead_letters.get(offset)
        attempts, error = state.lanes.failures(offset) if row is None else (row.attempts, row.error)
        standing: PositionState = (
            "dead-lettered"
            if row is not None
            else state.lanes.standing_of(record.key if state.options.message_ordering else None, offset)
        )
        return LanePosition(str(offset), standing, _moment(record.published), len(record.data), attempts, error)

    def _key_info(self, view: LaneView, records: Mapping[int, Record], explanation: Explanation) -> KeyInfo:
        head = None if view.head is None else records.get(view.head)
        return KeyInfo(
            key=view.key,
            state=str(view.state),
            depth=view.depth,
            in_flight=view.in_flight,
            head=None if view.head is None else str(view.head),
            head_age=max(0.0, self._engine.now() - head.published) if head is not None else None,
            attempts=view.attempts,
            not_before=None if view.not_before is None else _moment(view.not_before),
            error=view.error,
            why=None if explanation.waits_for in _FREE else explanation.sentence,
        )

    async def explain(self, key: str | None) -> Explanation:
        """What a key waits for, since when, and what would unblock it."""
        _check_key(key)
        self._state.deliveries.let_time_pass()
        view = self._state.lanes.view(key)
        explained = self._explained(key, view)
        is_ready = view is not None and view.state == LaneState.READY  # otherwise no message has to be read
        return explained(await self._state.records(_shown([view] if is_ready else [])))

    def _explained(self, key: str | None, view: LaneView | None) -> Callable[[Mapping[int, Record]], Explanation]:
        """What a key waits for at this moment; the explanation is completed when its next message has been read."""
        state, next_ = self._state, None if view is None else view.next
        room, loaded = state.lanes.room_changed(key), state.loaded
        say = partial(
            explain,
            view,
            pause_reason=state.pause_reasons.get(key),
            halted=_halted(state),
            consumers=len(state.deliveries),
            full_tenant=state.lanes.full_tenant(key),
            barred=None if room is None else max(room, state.switched),
            clock=_clock,
        )

        def explained(records: Mapping[int, Record]) -> Explanation:
            record = None if next_ is None else records.get(next_)
            found = say(published=-inf if record is None or record.published < loaded else record.published)
            since, until = (None if time is None else _moment(time) for time in (found.since, found.until))
            return Explanation(key, found.waits_for, since, until, found.moved_by, found.sentence)

        return explained

    def superseded(self, key: str | None, limit: int) -> list[SupersededMessage]:
        """The last superseded messages, the latest first."""
        _check_key(key)
        _check_limit(limit)
        noted = reversed(self._state.watched.left_behind)
        return [
            SupersededMessage(str(one.offset), one.key, str(one.by), _moment(time))
            for time, one in islice((each for each in noted if key is None or each[1].key == key), limit)
        ]

    async def peek(self, key: str | None, limit: int = 10) -> list[PeekedMessage]:
        """The first messages of a key, in order, without delivering them."""
        _check_limit(limit)
        _check_key(key)
        state = self._state
        records = await state.records(state.lanes.offsets(key, limit))
        return [
            PeekedMessage(
                str(record.offset), record.data, dict(record.attributes or {}), record.key, _moment(record.published)
            )
            for _, record in sorted(records.items())
        ]

    # -- the head of a key ----------------------------------------------------------------------------------------------

    async def retry_key(self, key: str | None) -> None:
        """Deliver now what waits for a retry or a delay: the head of a key, and messages that were overtaken."""
        _check_key(key)
        state = self._state
        async with self._lanes_locked():
            done = state.outcomes.carry_out(state.lanes.retry(key, self._engine.now()))
        await done

    async def skip(self, key: str | None, head: str | None = None) -> str:
        """Settle the head of a key without delivering it, and return its id. Its lease is fenced."""
        _check_key(key)
        state = self._state
        async with self._lanes_locked():
            self._check_head(key, head)
            effects = state.lanes.skip(key, self._engine.now())
            done = state.outcomes.carry_out(effects)
        await done
        return next(str(effect.offset) for effect in effects if isinstance(effect, Removed))

    def _check_head(self, key: str | None, head: str | None) -> None:
        """Refuse to act on the next message of a key, if the expected one was settled in the meantime."""
        wanted, view = None if head is None else offset_of(head), self._state.lanes.view(key)
        if wanted is not None and view is not None and view.head not in (None, wanted):
            raise FailedPrecondition(
                f"key {key!r} stands at message {view.head} now, no longer at {wanted}: look again"
            )

    async def remove(self, message_id: str) -> None:
        """Remove a message from its lane, at any position. A message in flight can't be removed."""
        state, offset = self._state, offset_of(message_id)
        async with self._lanes_locked():
            record = (await state.records([offset])).get(offset)
            if record is None:
                raise NotFound(f"topic {state.topic.name!r} keeps no message {offset}")
            lane_key = record.key if state.options.message_ordering else None
            done = state.outcomes.carry_out([state.lanes.remove(lane_key, offset, self._engine.now())])
        await done

    # -- pausing --------------------------------------------------------------------------------------------------------

    async def pause_key(self, key: str | None, reason: str | None = None) -> None:
        """Stop delivering a key; outstanding leases stay valid. Pausing again replaces the reason."""
        state, reason = self._state, reason_of(reason)
        _check_key(key)
        async with self._lanes_locked():
            if not _is_paused(state, key):
                state.lanes.pause(key, self._engine.now())
            state.pause_reasons[key] = reason
            self._engine.history.note_event(self._engine.now(), state.id, key, "paused", detail=reason)
            done = state.outcomes.write(lambda work: work.pause_key(state.id, key, reason))
        await done

    async def resume_key(self, key: str | None) -> None:
        """Deliver messages of a key again. A message that has used up its attempts gets one more."""
        _check_key(key)
        state = self._state
        async with self._lanes_locked():
            if not _is_paused(state, key):
                raise FailedPrecondition(f"key {key!r} of subscription {state.name!r} is not paused")
            granted = state.lanes.resume(key, self._engine.now())
            done = state.outcomes.carry_out(granted, lambda work: work.resume_key(state.id, key))
            state.pause_reasons.pop(key, None)
            self._engine.history.note_event(self._engine.now(), state.id, key, "resumed")
        await done

    async def set_paused(self, paused: bool) -> None:
        """Stop or continue delivery. The option survives a restart."""
        await self._state.placement.reconfigure(lambda current: replace(current, paused=paused), ["paused"])

    # -- dead letters ---------------------------------------------------------------------------------------------------

    async def dead_letter(
        self, key: str | None, error: str | None = None, *, rest: bool = False, head: str | None = None
    ) -> list[str]:
        """Dead-letter the head of a key, or all of it; returns the ids. Leases of the key are fenced."""
        _check_key(key)
        state, error = self._state, reason_of(error)
        async with self._lanes_locked():
            self._check_head(key, head)
            effects = state.lanes.dead_letter(key, error, rest, self._engine.now())
            done = state.outcomes.carry_out(effects)
        await done
        return [str(effect.offset) for effect in effects if isinstance(effect, DeadLettered)]

    async def dead_letters(
        self, *, limit: int = 100, after: str | None = None, error: str | None = None
    ) -> list[DeadLetter]:
        _check_limit(limit)
        state, last = self._state, -1 if after is None else offset_of(after)
        await state.outcomes.accepted()  # a failure that was reported just now may have been the last that was allowed
        if error is None:
            return [self._dead_letter(state, row) for row in state.dead_letters.after(last, limit)]
        found = [row async for row in self._letters() if row.offset > last and group_of(row.error) == error]
        return [self._dead_letter(state, row) for row in found[:limit]]

    async def group_dead_letters(self, limit: int = 100) -> list[DeadLetterGroup]:
        """Dead letters grouped by error, the largest groups first."""
        _check_limit(limit)
        groups: dict[str, list[DeadLetterRow]] = {}
        async for row in self._letters():
            groups.setdefault(group_of(row.error), []).append(row)
        largest = nsmallest(limit, groups.items(), lambda group: (-len(group[1]), group[0]))
        return [self._group(error, rows) for error, rows in largest]

    def _group(self, error: str, rows: list[DeadLetterRow]) -> DeadLetterGroup:
        times = [row.time for row in rows]
        return DeadLetterGroup(
            error=error,
            letters=len(rows),
            returnable=sum(map(self._state.dead_letters.is_returnable, rows)),
            keys=len({row.key for row in rows}),
            first=_moment(min(times)),
            last=_moment(max(times)),
            example=str(rows[-1].offset),
        )

    async def preview_redrive(
        self, message_ids: Sequence[str] | None = None, *, error: str | None = None
    ) -> RedrivePreview:
        """What a redrive would do now. Nothing is changed."""
        await self._state.outcomes.accepted()
        chosen = None if message_ids is None else set(map(offset_of, message_ids))
        in_place, refused = 0, dict[str, list[int]]()
        async for row in self._letters():
            if (chosen is None or row.offset in chosen) and (error is None or group_of(row.error) == error):
                problem = self._state.dead_letters.redrive_problem(row)
                if problem is None:
                    in_place += 1
                else:
                    refused.setdefault(group_of(problem), []).append(row.offset)
        refusals = [RedriveRefusal(reason, len(offsets), str(offsets[0])) for reason, offsets in refused.items()]
        return RedrivePreview(in_place + sum(refusal.letters for refusal in refusals), in_place, refusals)

    async def _letters(self) -> AsyncIterator[DeadLetterRow]:
        """Every dead letter, in pieces, so that messages are not held up."""
        for number, row in enumerate(self._state.dead_letters.after(-1, len(self._state.dead_letters))):
            if not number % PIECE:
                await asyncio.sleep(0)
            yield row

    def _dead_letter(self, state: SubscriptionState, row: DeadLetterRow) -> DeadLetter:
        return DeadLetter(
            id=str(row.offset),
            ordering_key=row.key,
            attempts=row.attempts,
            time=_moment(row.time),
            error=row.error,
            copy_topic=self._engine.topic_name(row.copy_topic_id),
            copy_id=None if row.copy_offset is None else str(row.copy_offset),
            returnable=state.dead_letters.is_returnable(row),
        )

    async def redrive(self, message_id: str, *, append: bool = False) -> str:
        """Return a dead letter to its place, or to the end under a new id; returns its id there."""
        state, offset = self._state, offset_of(message_id)
        await state.outcomes.accepted()
        async with self._lanes_locked():
            now_at, done = await state.dead_letters.redrive(offset, append=append)
        await done
        return str(now_at)

    async def purge(self, message_ids: Sequence[str]) -> None:
        """Delete dead letters for good."""
        state, offsets = self._state, list(map(offset_of, message_ids))
        await state.outcomes.accepted()
        async with self._lanes_locked():
            done = state.dead_letters.purge(offsets)
        await done


def _earlier(
    store: StoreReader, topic_id: int, head: int, key: str | None, limit: int
) -> tuple[list[Record], int | None]:
    """The last messages of a key before its head, and from which offset on they were searched for (None: from the first)."""
    earliest, first, found = store.earliest(topic_id), head, list[int]()
    last = max(earliest, head - LOOK_BACK)
    for start in (max(last, head - LOOK_BACK_FIRST), last):
        if start < first and len(found) < limit:
            found = _offsets_of(store, topic_id, key, start, first) + found
            first = start
    if len(found) > limit:
        found = found[-limit:]
        first = found[0]
    return store.fetch(topic_id, found), None if first <= earliest else first


def _offsets_of(store: StoreReader, topic_id: int, key: str | None, first: int, end: int) -> list[int]:
    headers = takewhile(lambda header: header.offset < end, chain.from_iterable(store.headers(topic_id, first)))
    return [header.offset for header in headers if header.key == key]


def _check_key(key: str | None) -> None:
    """None stands for the messages without a key."""
    if key is not None:
        check_key(key)


def _check_limit(limit: object) -> None:
    require_whole("limit", limit, 0, MAX_INTEGER)


def _pieces(items: list[T], size: int | None = None) -> Iterator[list[T]]:
    size = size or PIECE
    return (items[first : first + size] for first in range(0, len(items), size))


def _shown(views: Iterable[LaneView | None]) -> list[int]:
    """The messages that are needed to show keys."""
    return [offset for view in views if view is not None for offset in (view.head, view.next) if offset is not None]


_Rank = Callable[[LaneState, int, int, int | None], tuple[float, ...]]
_RANKS: dict[KeyOrder, _Rank] = {
    # Among equals what failed most often, then what is oldest; keys without messages come last, by name.
    "trouble": lambda state, attempts, _, head: (_TROUBLE.index(state), -attempts, inf if head is None else head),
    "oldest": lambda _, __, ___, head: (inf if head is None else head,),
    "deepest": lambda _, __, depth, head: (-depth, inf if head is None else head),
}


def _halted(state: SubscriptionState) -> str | None:
    """Why a subscription delivers nothing, if that is so."""
    if state.flaws:
        return f"the subscription is stopped: {said_of(state.flaws)}"
    return "the subscription is paused" if state.options.paused else None


def _is_paused(state: SubscriptionState, key: str | None) -> bool:
    view = state.lanes.view(key)
    return view is not None and view.state == LaneState.PAUSED


def _clock(time: float) -> str:
    return _moment(time).strftime("%Y-%m-%d %H:%M:%S UTC")


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError) as error:
        raise DamagedStore(f"a time in the store is damaged: restore a backup ({error})") from error
