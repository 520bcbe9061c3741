"""The recent events of keys, for operators, in bounded memory.

Rules
    - Exceptional events are always recorded: failed and expired deliveries, fenced leases, dead letters, and actions of
      operators. The last ``REMEMBERED`` of them are kept, for the whole engine.
    - Superseded messages are always recorded: the last ``SUPERSEDED`` of each subscription.
    - Ordinary deliveries and acks are recorded for watched keys only: those with problems, and those that somebody looked at.
      The last ``WATCHED_EVENTS`` of each key are kept, and the last ``WATCHED_KEYS`` keys of each subscription.
    - While no key of a subscription is watched, a batch of deliveries or acks costs one check of a flag. Watching ends
      ``WATCHED_S`` after the last problem or look; what was recorded until then is kept.
    - A restart loses all of it: everything that must survive is in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from seriatim.core.lanes.types import (
    DeadLettered,
    Expired,
    Fenced,
    KeyPaused,
    LaneEffect,
    Redriven,
    Removed,
    Returned,
    Superseded,
)
from seriatim.engine.broker import SUPERSEDED, KeyEvent
from seriatim.engine.consumer import Delivered

REMEMBERED, WATCHED_EVENTS, WATCHED_KEYS = 20_000, 100, 100
WATCHED_S = 900.0
MAX_LEASED = 10_000
"""At most this many leased messages are remembered."""


class _Noted(NamedTuple):
    time: float
    subscription: int
    key: str | None
    event: str
    offset: int | None
    detail: str | None


class WatchedKeys:
    """The keys of a subscription whose ordinary deliveries and acks are recorded."""

    def __init__(self, subscription: int) -> None:
        self.subscription = subscription
        self.is_active = False
        self.leased: dict[int, str | None] = {}  # messages of these keys that are out, by their offsets
        self._events: dict[str | None, deque[_Noted]] = {}
        self._until = 0.0
        self.left_behind: deque[tuple[float, Superseded]] = deque(maxlen=SUPERSEDED)

    def watch(self, time: float, key: str | None) -> None:
        """Watch a key for a while. If there are too many, the one that was named least recently is dropped."""
        events = self._events.pop(key, None)
        self._events[key] = deque(maxlen=WATCHED_EVENTS) if events is None else events
        if len(self._events) > WATCHED_KEYS:
            del self._events[next(iter(self._events))]
        self.is_active, self._until = True, time + WATCHED_S

    def delivered(self, time: float, messages: Iterable[Delivered]) -> None:
        for lease, record in messages:
            if (events := self._events.get(lease.key)) is not None:
                detail = f"attempt {lease.attempt}" if lease.attempt > 1 else None
                events.append(_Noted(time, self.subscription, lease.key, "delivered", record.offset, detail))
                self.leased[record.offset] = lease.key
        if time > self._until or len(self.leased) > MAX_LEASED:
            self.leased.clear()
            self.is_active = time <= self._until

    def settled(self, time: float, offsets: Iterable[int]) -> None:
        """Messages were settled durably: those that were still in flight have been acked."""
        for offset in offsets:
            if offset in self.leased and (events := self._events.get(key := self.leased.pop(offset))) is not None:
                events.append(_Noted(time, self.subscription, key, "acked", offset, None))

    def superseded(self, time: float, left: Iterable[Superseded]) -> None:
        self.left_behind.extend((time, one) for one in left)

    def of(self, key: str | None) -> list[_Noted]:
        superseded = [
            _Noted(time, self.subscription, key, "superseded", one.offset, f"by message {one.by}")
            for time, one in self.left_behind
            if one.key == key
        ]
        return [*superseded[-WATCHED_EVENTS:], *self._events.get(key, ())]


class History:
    """The events of keys since the engine started."""

    def __init__(self, started: float) -> None:
        self.started = started
        self._events: deque[_Noted] = deque(maxlen=REMEMBERED)

    def note(self, time: float, watched: WatchedKeys, effect: LaneEffect) -> None:
        """Record the effects of the lanes."""
        match effect:
            case Returned(key, offset, attempts, not_before, error):
                event = "failed" if not_before > time else "returned"
                detail: str | None = f"attempt {attempts}: {error or 'no error given'}"
            case DeadLettered(key, offset, attempts, error):
                event, detail = "dead-lettered", error
            case KeyPaused(key, offset, attempts, error):
                event, detail = "paused", f"{attempts} attempts failed: {error}"
            case Removed(key, offset):
                event, detail = "skipped", None
            case Redriven(key, offset):
                event, detail = "redriven", None
            case Expired(lease):
                key, offset, event, detail = lease.key, lease.offset, "lease expired", None
            case Fenced(lease):
                key, offset, event, detail = lease.key, lease.offset, "lease taken back", None
            case _:
                return
        watched.leased.pop(offset, None)
        if key is not None:  # messages without one are not each other's concern
            watched.watch(time, key)
        self.note_event(time, watched.subscription, key, event, offset, detail)

    def note_event(
        self,
        time: float,
        subscription: int,
        key: str | None,
        event: str,
        offset: int | None = None,
        detail: str | None = None,
    ) -> None:
        self._events.append(_Noted(time, subscription, key, event, offset, detail))

    def of(self, watched: WatchedKeys, key: str | None, published: Iterable[tuple[float, int]]) -> list[KeyEvent]:
        """The last events of a key, the latest first, including when its messages were published."""
        subscription = watched.subscription
        noted = [one for one in self._events if one.key == key and one.subscription == subscription]
        stored = [_Noted(time, subscription, key, "published", offset, None) for time, offset in published]
        # Of events at the same time the later one is the one that was noted later.
        found = sorted(enumerate([*stored, *watched.of(key), *noted]), key=lambda one: (one[1].time, one[0]))
        return [
            KeyEvent(
                datetime.fromtimestamp(one.time, UTC),
                one.event,
                None if one.offset is None else str(one.offset),
                one.detail,
            )
            for _, one in reversed(found)
        ]
