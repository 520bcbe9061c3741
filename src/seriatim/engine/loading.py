"""What a store holds of a subscription, as lanes: after a restart, a seek, a change of options."""

from __future__ import annotations

from math import isnan
from typing import NamedTuple

from seriatim.core.delivery import RetryMode, SavedMessage
from seriatim.core.lanes import Lanes
from seriatim.core.options import LATEST_TIME_S
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.sieve import Sieve
from seriatim.store.base import DeadLetterRow, PausedRow, Position, StoreReader, TroubleRow


class Loaded(NamedTuple):
    """What the store holds of a subscription, up to and with the offset ``until``, but for what its filter ``rejected``."""

    lanes: Lanes
    floor: int
    until: int
    rejected: list[int]
    letters: list[DeadLetterRow]
    paused: list[PausedRow]


def load_lanes(
    lanes: Lanes, store: StoreReader, subscription_id: int, topic_id: int, options: SubscriptionOptions, sieve: Sieve
) -> Loaded:
    """Queue what waits in ``lanes``, whose time must be the present."""
    cursor, rejected = store.cursor(subscription_id), list[int]()
    until = cursor.floor - 1  # also when nothing is there: what is below the floor is settled, whoever still brings it
    troubles = {row.offset: row for row in store.troubles(subscription_id)}
    letters, paused = store.dead_letters(subscription_id), store.paused_keys(subscription_id)
    buried = {row.offset for row in letters}
    for row in paused:
        lanes.pause(row.key)
    for positions in store.positions(topic_id, cursor.floor):
        for position in positions:
            if cursor.has(position.offset) or position.offset in buried:
                continue
            if sieve.rejects(position):
                rejected.append(position.offset)
            else:
                _load_one(lanes, options, position, troubles.get(position.offset))
        until = positions[-1].offset
    return Loaded(lanes, cursor.floor, until, rejected, letters, paused)


def _load_one(lanes: Lanes, options: SubscriptionOptions, position: Position, trouble: TroubleRow | None) -> None:
    key = position.key if options.ordering else None
    if trouble is None:
        lanes.push(key, position.offset, lanes.now, _time(position.not_before) - lanes.now)
    else:
        # Whether others may pass it is decided anew: it may have been noted while other options were in force.
        passes = trouble.steps_aside and passes_retries(key, options)
        not_before = _time(trouble.not_before)
        lanes.admit(SavedMessage(key, trouble.offset, trouble.failures, not_before, trouble.error, steps_aside=passes))


def _time(seconds: float) -> float:
    """A time that lanes can wait for: earlier versions stored whatever they were given."""
    return 0.0 if isnan(seconds) else min(seconds, LATEST_TIME_S)


def passes_retries(key: str | None, options: SubscriptionOptions) -> bool:
    """Whether later messages pass one that waits for its retry."""
    return key is None or options.retry.mode is RetryMode.OVERTAKE
