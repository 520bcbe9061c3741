"""Loads the lanes of a subscription from the store: after a restart, a seek, a change of options.

Python's cycle collector is paused while loading. A million messages make millions of objects, none of which is garbage, and the
collector would examine all of them again and again, which took more than half of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from math import inf, isnan
from operator import attrgetter
from typing import NamedTuple

from seriatim.core.lanes.lanes import Lanes
from seriatim.core.validation import MAX_TIME_S
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.subscription_filter import SubscriptionFilter
from seriatim.store.base import DeadLetterRow, MessageHeader, PausedRow, StoreReader, TroubleRow

_KEY, _OFFSET, _NOT_BEFORE = attrgetter("key"), attrgetter("offset"), attrgetter("not_before")


class Loaded(NamedTuple):
    """The stored state of a subscription, up to the offset ``until``, without the messages that its filter ``rejected``."""

    lanes: Lanes
    floor: int
    until: int
    rejected: list[int]
    letters: list[DeadLetterRow]
    paused: list[PausedRow]


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_collector_at_rest()
def load_lanes(
    lanes: Lanes,
    store: StoreReader,
    subscription_id: int,
    topic_id: int,
    options: SubscriptionOptions,
    subscription_filter: SubscriptionFilter,
) -> Loaded:
    """Queue the waiting messages in ``lanes``, whose time must be the current one."""
    cursor, rejected = store.cursor(subscription_id), list[int]()
    until = cursor.floor - 1  # also when nothing is there: what is below the floor is settled, whoever still brings it
    troubles = {row.offset: row for row in store.troubles(subscription_id)}
    letters, paused = store.dead_letters(subscription_id), store.paused_keys(subscription_id)
    buried = {row.offset for row in letters}
    for row in paused:
        lanes.pause(row.key)
    for letter in letters:
        key = letter.key if options.message_ordering else None
        if key is None or not letter.overtaken:
            lanes.remember_dead_letter(key, letter.offset)
    for headers in store.headers(topic_id, cursor.floor):
        until, waiting = headers[-1].offset, headers
        if cursor.blocks or buried or headers[0].offset < cursor.floor:
            waiting = [each for each in headers if not cursor.has(each.offset) and each.offset not in buried]
        waiting, unwanted = subscription_filter.split(waiting)
        rejected += unwanted
        if any(map(_NOT_BEFORE, waiting)) or not troubles.keys().isdisjoint(map(_OFFSET, waiting)):
            for header in waiting:
                _load_one(lanes, options, header, troubles.get(header.offset))
        else:
            keys = map(_KEY, waiting) if options.message_ordering else repeat(None)
            lanes.push_all(zip(keys, map(_OFFSET, waiting), strict=False))
    return Loaded(lanes, cursor.floor, until, rejected, letters, paused)


def _load_one(lanes: Lanes, options: SubscriptionOptions, header: MessageHeader, trouble: TroubleRow | None) -> None:
    key = header.key if options.message_ordering else None
    if trouble is None:
        lanes.push(key, header.offset, -inf, _time(header.not_before) - lanes.now)  # since when is not known
    else:
        # Whether others may pass it is decided anew: it may have been noted while other options were in force.
        aside = trouble.steps_aside and options.retry.lets_pass(key)
        not_before = _time(trouble.not_before)
        lanes.admit(key, trouble.offset, trouble.failures, not_before, trouble.error, steps_aside=aside)


def _time(seconds: float) -> float:
    """A time that lanes can wait for: earlier versions stored whatever they were given."""
    return 0.0 if isnan(seconds) else min(seconds, MAX_TIME_S)
