"""The dead letters of a subscription: how messages are buried, and how they come back.

Rules
    - Burying is one transaction: a copy for the dead-letter topic if there is one, and a row that says why. Without a topic
      (none was named, or it is deleted) the row alone is written. The message stays in its log, and is never dropped.
    - A dead letter can go back to its place until a later message of its key is settled. That is written down in the
      transaction that settles the later message, so a restart knows it too.
    - Coming back is one transaction as well. At its place the message is what it was, with fresh attempts. Appended, it is a
      new message of its topic, which other subscriptions see too; ``seriatim-redriven-offset`` says what it was.
    - A copy in a dead-letter topic stays there: it belongs to whoever consumes that topic.

Theory of operation
    Every row is mirrored in memory once it is durable. ``_places`` holds, by key, the offsets that could still go back; it is
    empty as long as there are no dead letters, so that an ordinary ack pays nothing for them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from seriatim.core.delivery import DeadLettered, Effect, Settled
from seriatim.core.lanes import Lanes
from seriatim.core.limits import reason_of
from seriatim.engine.commit import RETRY_PAUSE, Change, Log
from seriatim.engine.metrics import DeliveryCounts
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.services import Services
from seriatim.engine.topic import TopicState
from seriatim.errors import NotFound, RedriveRefused, SeriatimError
from seriatim.log import logger
from seriatim.store.base import DeadLetterRow, Record

# What a dead letter says of itself in the dead-letter topic.
SOURCE, OFFSET, PUBLISHED, ATTEMPTS, ERROR = (
    "seriatim-dead-letter-subscription",
    "seriatim-dead-letter-offset",
    "seriatim-dead-letter-published",
    "seriatim-dead-letter-attempts",
    "seriatim-dead-letter-error",
)
REDRIVEN = "seriatim-redriven-offset"

READS = 20
"""How often a message that can't be read for its copy is tried again, before it is buried without one."""

LONGEST_ERROR = 1024
"""An error is cut to so many bytes where it becomes an attribute, which may not be longer."""


class Host(Protocol):
    """What dead letters need of their subscription."""

    id: int
    name: str
    topic: TopicState
    options: SubscriptionOptions
    lanes: Lanes
    counts: DeliveryCounts

    def confirmed(self, offsets: Sequence[int]) -> None: ...
    def carry_out(self, effects: Sequence[Effect]) -> Awaitable[None]: ...
    def refused(self, offsets: Sequence[int], error: BaseException) -> None: ...
    def promise_with(self, change: Change, copies: Mapping[Log, Sequence[Record]]) -> Awaitable[None]: ...
    def run(self, work: Coroutine[None, None, None]) -> None: ...
    async def records(self, offsets: Iterable[int]) -> dict[int, Record]: ...


class DeadLetters:
    """What left the lanes of a subscription undelivered."""

    def __init__(self, host: Host, services: Services) -> None:
        self._host = host
        self._services = services
        self._rows: dict[int, DeadLetterRow] = {}
        self._places: dict[str, list[int]] = {}

    def load(self, rows: Sequence[DeadLetterRow], options: SubscriptionOptions, lanes: Lanes) -> None:
        """Begin with what the store holds, and let new lanes know which of it can go back."""
        places: dict[str, list[int]] = {}
        for row in sorted(rows):
            key = row.key if options.ordering else None
            if not row.overtaken or key is None:
                lanes.remember_dead_letter(key, row.offset)
            if not row.overtaken and key is not None:
                places.setdefault(key, []).append(row.offset)
        self._rows, self._places = {row.offset: row for row in rows}, places

    # -- looking --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    def after(self, offset: int, limit: int) -> list[DeadLetterRow]:
        """The first dead letters above an offset."""
        return [self._rows[known] for known in sorted(self._rows) if known > offset][:limit]

    def is_returnable(self, row: DeadLetterRow) -> bool:
        return self._host.lanes.is_returnable(self._lane_key(row), row.offset)

    # -- messages leave -------------------------------------------------------------------------------------------------

    def bury(self, letter: DeadLettered) -> None:
        """Dead-letter a message. For its copy, and for the key of one that is delivered without order, it has to be read."""
        target = self._services.topic(self._host.options.dead_letter_topic or "")
        record = self._host.topic.recent(letter.offset)
        if letter.key is not None and self._host.lanes.is_returnable(letter.key, letter.offset):
            insort(self._places.setdefault(letter.key, []), letter.offset)
        if record is not None or (target is None and letter.key is not None):
            self._write_burial(letter, target, record)
        else:
            self._host.run(self._read_and_bury(letter, target))

    async def _read_and_bury(self, letter: DeadLettered, target: TopicState | None) -> None:
        record = None
        for _ in range(READS):
            try:
                record = (await self._host.records([letter.offset])).get(letter.offset)
                break
            except SeriatimError as error:
                self._services.failed(error)
                await asyncio.sleep(RETRY_PAUSE)
        # Better a dead letter without a copy than a key that waits for ever.
        self._write_burial(letter, target, record)

    def _write_burial(self, letter: DeadLettered, target: TopicState | None, record: Record | None) -> None:
        commit, now, id_ = self._services.commit(), self._services.now(), self._host.id
        key = letter.key if record is None else record.key
        # Where keys are not ordered nobody watches what else of a key is settled.
        overtaken = key is not None and not (letter.key and self._has_place(letter.key, letter.offset))
        copies: dict[Log, Sequence[Record]] = {}
        row = DeadLetterRow(letter.offset, key, letter.attempts, now, letter.error, overtaken=overtaken)
        if target is not None and record is not None:
            copy = Record(target.reserve(1), record.key, record.data, self._epitaph(record, letter), now)
            copies[target] = [copy]
            row = row._replace(copy_topic_id=target.id, copy_offset=copy.offset)
        refused = partial(self._not_buried, letter, target)
        commit.oblige(lambda work: work.bury(id_, [row]), lambda: self._buried(row), refused, copies)

    def _not_buried(self, letter: DeadLettered, target: TopicState | None, error: BaseException) -> None:
        """The store will never take a dead letter as it is: better one without a copy, and with another error."""
        if target is None:
            self._host.refused([letter.offset], error)
            return
        logger.error("message %d can't be copied to topic %r: %s", letter.offset, target.name, error)
        self._write_burial(letter._replace(error=reason_of(f"its copy can't be stored: {error}")), None, None)

    def _buried(self, row: DeadLetterRow) -> None:
        self._rows[row.offset] = row
        self._host.counts.dead_lettered += 1
        self._host.confirmed([row.offset])

    def _epitaph(self, record: Record, letter: DeadLettered) -> dict[str, str]:
        said = {
            SOURCE: self._host.name,
            OFFSET: str(letter.offset),
            PUBLISHED: str(record.published),
            ATTEMPTS: str(letter.attempts),
            ERROR: (letter.error or "").encode()[:LONGEST_ERROR].decode(errors="ignore"),
        }
        return {**(record.attributes or {}), **said}

    # -- later messages are settled -------------------------------------------------------------------------------------

    @property
    def has_places(self) -> bool:
        """Whether a dead letter could still go back to its place, so that somebody must watch what is settled."""
        return bool(self._places)

    def settled(self, settled: Iterable[Settled]) -> None:
        """Messages are being settled: in the same transaction, the dead letters before them lose their places."""
        if not self._places:
            return
        passed = [offset for message in settled for offset in self._lose_places(message)]
        if passed:
            self._overtake(passed)

    def give_up_places(self) -> None:
        """Keys are not ordered any more, so that nobody watches what else of a key is settled."""
        keyed = [row.offset for row in self._rows.values() if row.key is not None]
        if keyed:
            self._overtake(keyed)

    def _overtake(self, offsets: list[int]) -> None:
        id_ = self._host.id
        self._services.commit().oblige(lambda work: work.overtake(id_, offsets), lambda: None)

    def _lose_places(self, message: Settled) -> list[int]:
        places = self._places.get(message.key) if message.key is not None else None
        if not places:
            return []
        passed = places[: bisect_left(places, message.offset)]
        for offset in passed:
            self._lose_place(message.key, offset)
        return passed

    def _has_place(self, key: str, offset: int) -> bool:
        return offset in self._places.get(key, ())

    def _lose_place(self, key: str | None, offset: int) -> None:
        if key is not None and self._has_place(key, offset):
            self._places[key].remove(offset)
            if not self._places[key]:
                del self._places[key]

    # -- messages come back ---------------------------------------------------------------------------------------------

    async def redrive(self, offset: int, *, append: bool) -> tuple[int, Awaitable[None]]:
        """Put a dead letter back at its place, or at the end. Returns its offset then, and what waits until it is durable."""
        self._require(offset)
        record = (await self._host.records([offset])).get(offset)
        row = self._require(offset)  # somebody else may have been quicker
        if record is None:
            raise RedriveRefused(f"the payload of message {offset} is no longer kept: purge the dead letter")
        return self._append(row, record) if append else (offset, self._put_back(row))

    def _put_back(self, row: DeadLetterRow) -> Awaitable[None]:
        effects = [self._host.lanes.redrive(self._lane_key(row), row.offset)]
        self._forget(row)
        return self._host.carry_out(effects)

    def _append(self, row: DeadLetterRow, record: Record) -> tuple[int, Awaitable[None]]:
        topic, attributes = self._host.topic, {**(record.attributes or {}), REDRIVEN: str(row.offset)}
        again = Record(topic.reserve(1), record.key, record.data, attributes, self._services.now())
        return again.offset, self._purge([row.offset], {topic: [again]})

    def purge(self, offsets: Sequence[int]) -> Awaitable[None]:
        """Give dead letters up for good."""
        return self._purge(offsets, {})

    def _purge(self, offsets: Sequence[int], instead: Mapping[Log, Sequence[Record]]) -> Awaitable[None]:
        for row in {self._require(offset) for offset in offsets}:
            self._host.lanes.forget_dead_letter(self._lane_key(row), row.offset)
            self._forget(row)
        id_, gone = self._host.id, sorted(set(offsets))
        return self._host.promise_with(lambda work: work.purge(id_, gone), instead)

    def _require(self, offset: int) -> DeadLetterRow:
        try:
            return self._rows[offset]
        except KeyError:
            raise NotFound(f"message {offset} is no dead letter of subscription {self._host.name!r}") from None

    def _forget(self, row: DeadLetterRow) -> None:
        del self._rows[row.offset]
        self._lose_place(row.key, row.offset)

    def _lane_key(self, row: DeadLetterRow) -> str | None:
        return row.key if self._host.options.ordering else None
