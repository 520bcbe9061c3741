"""A whole store at a glance, and its logs page by page: what front ends show to operators.

Rules
    - Thousands of subscriptions are processed in pieces, so that messages are not held up; each costs a few counters.
    - A page of messages is bounded by their number, by their size, and by how many are read to find those of one key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

from seriatim.core.validation import MAX_INTEGER, require_whole
from seriatim.engine.broker import MessagePage, Named, Overview, PeekedMessage, Trouble
from seriatim.engine.metrics import CommitTimes, DeliveryCounts, TopicCounts
from seriatim.errors import NotFound
from seriatim.store.base import StoreReader

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine
    from seriatim.engine.registry import Registry
    from seriatim.engine.subscription import SubscriptionState

PIECE = 500
"""How many subscriptions are processed before other work has its turn."""

LEAST_KEYS, MOST_KEYS = 10, 20_000
"""How many keys of a subscription are searched for its oldest message: those that have been non-empty for longest, and as many
blocked ones. All subscriptions with messages share the larger number."""

NAMED, SLOW_S = 5, 60.0
"""How many subscriptions with a problem are named, and how long messages may wait while there are consumers."""

READ_AT_ONCE, READ_AT_MOST, MAX_PAGE_BYTES = 100, 5_000, 16 * 1024 * 1024
"""How many messages are read at once and for one page, and how large the data of a page may get."""


async def overview_of(
    engine: Engine, registry: Registry, commits: CommitTimes, *, search: str, limit: int, skip: int
) -> Overview:
    require_whole("limit", limit, 0, MAX_INTEGER)
    require_whole("skip", skip, 0, MAX_INTEGER)
    subscriptions = list(registry.subscriptions.values())
    sums: dict[str, Any] = dict.fromkeys(("messages", "leased", "dead_letters", "keys", "blocked_keys"), 0)
    async for state in _in_pieces(subscriptions):
        sums["dead_letters"] += len(state.dead_letters)
        if state.lanes.key_count:  # most of many subscriptions are empty
            counts = state.lanes.counts()
            sums["messages"] += counts.total
            sums["leased"] += counts.leased
            sums["keys"] += state.lanes.key_count
            sums["blocked_keys"] += state.lanes.blocked_key_count
    closer = await _closer_look(engine, subscriptions, search, limit, skip) if limit else {"worst": []}
    return Overview(
        time=_moment(engine.now()),
        started=_moment(engine.history.started),
        topics=len(registry.topics),
        subscriptions=len(subscriptions),
        published=_sum(TopicCounts, [topic.counts for topic in registry.topics.values()]),
        deliveries=_sum(DeliveryCounts, [state.counts for state in subscriptions]),
        commits=replace(commits, buckets=list(commits.buckets)),
        **sums,
        **closer,
    )


async def _closer_look(
    engine: Engine, subscriptions: Sequence[SubscriptionState], search: str, limit: int, skip: int
) -> dict[str, Any]:
    """What an overview contains about single subscriptions."""
    ages = await _ages(engine, subscriptions)
    troubles: dict[Trouble, list[str]] = {trouble: [] for trouble in get_args(Trouble)}
    ranked: list[tuple[Any, ...]] = []
    async for state in _in_pieces(subscriptions):
        age = ages.get(state)
        for trouble in _troubles_of(state, age):
            troubles[trouble].append(state.name)
        if search in state.name:
            ranked.append((*_rank(state, age), state.name))
    worst = []
    for *_, name in nsmallest(skip + limit, ranked)[skip:]:
        with suppress(NotFound):  # deleted meanwhile
            worst.append(await engine.stats(name))
    return {
        "worst": worst,
        "oldest_age": max(ages.values(), default=None),
        "troubles": {trouble: Named(len(names), names[:NAMED]) for trouble, names in troubles.items()},
    }


async def _in_pieces(subscriptions: Sequence[SubscriptionState]) -> AsyncIterator[SubscriptionState]:
    """The subscriptions, with pauses between pieces for other work."""
    for number, state in enumerate(subscriptions, 1):
        yield state
        if not number % PIECE:
            await asyncio.sleep(0)


async def _ages(engine: Engine, subscriptions: Sequence[SubscriptionState]) -> dict[SubscriptionState, float]:
    """The age of the oldest message of each subscription that has messages.

    Publish times are cached, so that the store is read only for messages that have become the oldest since.
    """
    waiting = [state for state in subscriptions if len(state.lanes)]
    most_keys = max(LEAST_KEYS, MOST_KEYS // max(1, len(waiting)))
    unknown: dict[int, set[int]] = {}
    oldest: dict[SubscriptionState, int] = {}
    async for state in _in_pieces(waiting):
        lanes = state.lanes
        offset = lanes.oldest([*lanes.keys(most_keys), *lanes.blocked_keys(most_keys)])
        if offset is None:
            continue
        oldest[state] = offset
        if state.oldest[0] != offset and (record := state.topic.recent(offset)) is not None:
            state.oldest = (offset, record.published)
        if state.oldest[0] != offset:
            unknown.setdefault(state.topic.id, set()).add(offset)
    published = await engine.load(lambda store: _published(store, unknown)) if unknown else {}
    for state, offset in oldest.items():
        if (time := published.get((state.topic.id, offset))) is not None:
            state.oldest = (offset, time)
    now = engine.now()
    return {state: max(0.0, now - state.oldest[1]) for state, offset in oldest.items() if state.oldest[0] == offset}


def _published(store: StoreReader, wanted: Mapping[int, set[int]]) -> dict[tuple[int, int], float]:
    """When messages were published, by topic and offset. A few at a time are in memory."""
    found: dict[tuple[int, int], float] = {}
    for topic_id, offsets in wanted.items():
        ordered = sorted(offsets)
        for first in range(0, len(ordered), READ_AT_ONCE):
            with suppress(NotFound):  # the topic was deleted meanwhile
                records = store.fetch(topic_id, ordered[first : first + READ_AT_ONCE])
                found |= {(topic_id, record.offset): record.published for record in records}
    return found


def _rank(state: SubscriptionState, age: float | None) -> tuple[Any, ...]:
    """Subscriptions that can't continue by themselves come first, then those that have waited longest."""
    stopped = bool(state.flaws) or state.options.paused
    return (not stopped, -state.lanes.blocked_key_count, -len(state.dead_letters), -(age or 0.0))


def is_slow(*, consumers: int, paused: bool, blocked_keys: int, oldest_age: float | None) -> bool:
    """Whether messages wait for a long time for no visible reason."""
    return bool(consumers and not paused and not blocked_keys and oldest_age and oldest_age > SLOW_S)


def _troubles_of(state: SubscriptionState, age: float | None) -> Iterator[Trouble]:
    paused, consumers = state.options.paused, len(state.deliveries)
    if state.flaws:
        yield "stopped"
    elif is_slow(consumers=consumers, paused=paused, blocked_keys=state.lanes.blocked_key_count, oldest_age=age):
        yield "slow"
    if len(state.lanes) and paused:
        yield "paused"
    elif len(state.lanes) and not consumers:
        yield "deserted"
    if len(state.dead_letters):
        yield "dead-lettered"


def _sum(kind: type[Any], counts: list[Any]) -> Any:
    values = attrgetter(*asdict(kind()))
    return kind(*map(sum, zip(*map(values, counts), strict=True)))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def read_page(store: StoreReader, topic_id: int, first: int, limit: int, key: str | None) -> MessagePage:
    """Messages from an offset on, of one key or of all."""
    found: list[PeekedMessage] = []
    size = 0
    for _ in range(READ_AT_MOST // READ_AT_ONCE):
        records = store.read(topic_id, first, READ_AT_ONCE)
        for record in records:
            first = record.offset + 1
            if key in {None, record.key}:
                moment = _moment(record.published)
                found.append(
                    PeekedMessage(str(record.offset), record.data, record.attributes or {}, record.key, moment)
                )
                size += len(record.data)
            if len(found) == limit or size > MAX_PAGE_BYTES:
                return MessagePage(found, str(first))
        if len(records) < READ_AT_ONCE:
            return MessagePage(found, None)
    return MessagePage(found, str(first))
