"""What a crash leaves of a map of lanes, and the recovery from it that users run: ``load_lanes``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from seriatim.core.lanes.lanes import Lanes
from seriatim.engine.commit import Commit
from seriatim.engine.lane_loading import load_lanes
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription_filter import SubscriptionFilter
from seriatim.store.base import Cursor, DeadLetterRow, MessageHeader, PausedRow, TroubleRow
from tests.core.lanes.naive_lanes import IN_A_BATCH

SomeLanes = TypeVar("SomeLanes", bound=Lanes)


@dataclass(frozen=True, slots=True)
class SavedMessage:
    key: str | None
    offset: int
    failures: int = 0
    not_before: float = -inf
    error: str | None = None
    steps_aside: bool = False

    @property
    def is_new(self) -> bool:
        """Whether nothing but its own delay is known of it."""
        return not self.failures and self.error is None and (not self.steps_aside or self.key is None)


@dataclass(frozen=True, slots=True)
class SavedLanes:
    """What a store holds of lanes. Leases are not: their messages are at their places again."""

    now: float
    next_token: int
    messages: tuple[SavedMessage, ...]
    paused: tuple[str | None, ...]
    returnable: tuple[tuple[str | None, int], ...]

    def cursor(self, _: int) -> Cursor:
        return Cursor(0)

    def headers(self, _: int, first: int) -> Iterator[Sequence[MessageHeader]]:
        assert first == 0
        for message in self.messages:
            not_before = message.not_before if message.is_new else 0.0
            yield [MessageHeader(message.offset, message.key, None, max(not_before, 0.0))]

    def troubles(self, _: int) -> list[TroubleRow]:
        return [
            TroubleRow(known.offset, known.failures, known.not_before, known.error, known.steps_aside)
            for known in self.messages
            if not known.is_new
        ]

    def dead_letters(self, _: int) -> list[DeadLetterRow]:
        return [DeadLetterRow(offset, key, 0, 0.0, None) for key, offset in self.returnable]

    def paused_keys(self, _: int) -> list[PausedRow]:
        return [PausedRow(key, None) for key in self.paused]


def saved(lanes: Lanes, count_leases: bool = True, batched: Collection[int] = ()) -> SavedLanes:
    """What a crash now would leave: nothing is leased, and what was not confirmed did not happen.

    ``count_leases`` says whether the record of each lease had been written; its delivery then counts as an attempt, but for
    messages that went out in batches.
    """
    changes = {offset: str(change) for offset, (_, change) in lanes._unconfirmed.items()}
    leaving = [(lane.key, offset) for offset, (lane, _) in lanes._unconfirmed.items()]
    flying = [(key, offset) for key, lane in lanes._lanes.items() for offset in lanes._out(lane)]
    tried = {offset for _, offset in flying} | {offset for offset, change in changes.items() if change == "settled"}
    waiting = [(key, offset) for key, lane in lanes._lanes.items() for offset in (*lane.waiting, *(lane.aside or ()))]
    messages = [
        _saved_message(lanes, key, offset, count_leases and offset in tried, offset in batched)
        for key, offset in (*waiting, *flying, *leaving)
        if changes.get(offset) != "redriven"
    ]
    dead = [(key, offset) for key, offsets in lanes._dead.items() for offset in offsets if offset not in changes]
    dead += [(key, offset) for key, offset in leaving if changes[offset] == "redriven"]
    return SavedLanes(
        now=lanes.now,
        next_token=lanes.next_token,
        messages=tuple(sorted(messages, key=lambda message: message.offset)),
        paused=tuple(lane.key for lane in lanes._lanes.values() if lane.paused),
        returnable=tuple(sorted(dead, key=lambda known: known[1])),
    )


def _saved_message(lanes: Lanes, key: str | None, offset: int, tried: bool, batched: bool) -> SavedMessage:
    trouble, error = lanes._troubles.get(offset), IN_A_BATCH if tried and batched else None
    if trouble is None:
        return SavedMessage(key, offset, int(tried and not batched), error=error)
    failures = trouble.failures + (tried and not batched)
    return SavedMessage(key, offset, failures, trouble.not_before, error or trouble.error, trouble.steps_aside)


def crashed(lanes: SomeLanes, count_leases: bool = True, batched: Collection[int] = ()) -> SomeLanes:
    """Lanes of the same kind, loaded from what a crash leaves of these. Wherever lanes are loaded, time has begun."""
    if lanes.now == -inf:
        lanes.advance(0.0)
    held, delivery = saved(lanes, count_leases, batched), lanes._delivery
    options = SubscriptionOptions(
        message_ordering=True,
        retry=delivery.retry,
        window=delivery.window,
        release=delivery.release,
        keep=delivery.keep,
        tenant_limit=delivery.tenant_limit,
        tenant_separator=delivery.tenant_separator,
    )
    new = type(lanes)(delivery, held.next_token)
    new.advance(held.now)
    store: Any = held  # as much of a store as loading asks for
    load_lanes(new, store, 1, 1, options, SubscriptionFilter(1, None, Commit))
    return new
