"""The dead letters of a subscription: dead-lettering, and redriving.

Rules
    - Dead-lettering is one transaction: a copy for the dead-letter topic if there is one, and a row with the reason. Without a
      topic (none was named, or it was deleted) only the row is written. The message stays in its log, and is never dropped.
    - Messages that leave together (the rest of a key) are dead-lettered in one transaction. The order of decisions is kept, so
      copies are in the order of their key, even if some of them had to be read from disk.
    - A dead letter can return to its place until a later message of its key is settled. The lanes track this; it is stored in
      the transaction that settles the later message, so it survives a restart.
    - Redriving is one transaction, too. In its place, the message is unchanged and has all its attempts again. Appended, it is
      a new message of its topic, for other subscriptions as well; ``seriatim-redriven-offset`` has its old offset.
    - A copy in a dead-letter topic stays there, for the consumers of that topic.

Theory of operation
    Every row is mirrored in memory once it is durable.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from seriatim.core.lanes.types import DeadLettered
from seriatim.core.text_checks import reason_of
from seriatim.engine.commit import Log
from seriatim.engine.committer import RETRY_PAUSE_S
from seriatim.engine.topic import TopicState
from seriatim.errors import NotFound, RedriveRefused, SeriatimError
from seriatim.log import logger
from seriatim.store.base import DeadLetterRow, Record

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine
    from seriatim.engine.subscription import SubscriptionState

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
"""How often reading a message for its copy is retried, before it is dead-lettered without one."""

MAX_ERROR_CHARACTERS = 1024
"""An error is cut to this many bytes where it becomes an attribute, which may not be longer."""


def group_of(error: str | None) -> str:
    """The group of an error: its text, without numbers and quoted names."""
    return _DETAILS.sub("#", error or "no error given")


_DETAILS = re.compile(r"(?<!\w)'[^']*'|\d+")


class _Burial(NamedTuple):
    """Messages that leave their lanes together, and the topic for their copies."""

    letters: Sequence[DeadLettered]
    target: TopicState | None

    def letters_to_read(self) -> list[DeadLettered]:
        return [letter for letter in self.letters if self.target is not None or letter.key is None]


class DeadLetters:
    """The dead letters of a subscription."""

    def __init__(self, host: SubscriptionState, engine: Engine) -> None:
        self._host = host
        self._engine = engine
        self._rows: dict[int, DeadLetterRow] = {}
        self._burials: deque[_Burial] = deque()  # those that wait for a read, the first one's or their own

    def load(self, rows: Sequence[DeadLetterRow]) -> None:
        """Begin with the rows of the store. The lanes already know which of them can return."""
        self._rows = {row.offset: row for row in rows}

    # -- looking --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    def after(self, offset: int, limit: int) -> list[DeadLetterRow]:
        """The first dead letters above an offset."""
        return [self._rows[known] for known in sorted(self._rows) if known > offset][:limit]

    def get(self, offset: int) -> DeadLetterRow | None:
        return self._rows.get(offset)

    def redrive_problem(self, row: DeadLetterRow) -> str | None:
        """Why a dead letter can't return to its place now; None if it can."""
        return self._host.lanes.redrive_problem(self._lane_key(row), row.offset)

    def is_returnable(self, row: DeadLetterRow) -> bool:
        return self._host.lanes.is_returnable(self._lane_key(row), row.offset)

    # -- messages leave -------------------------------------------------------------------------------------------------

    def bury(self, letters: Sequence[DeadLettered]) -> None:
        """Dead-letter messages, all of them or none. Messages not in memory are read first, and later calls wait for that."""
        target = self._engine.topic(self._host.options.dead_letter_topic or "")
        burial = _Burial(letters, target)
        records = None if self._burials else self._recent(burial)
        if records is not None:
            self._write(burial, records)
            return
        self._burials.append(burial)
        if len(self._burials) == 1:
            self._host.run(self._read_and_bury())

    @property
    def is_burying(self) -> bool:
        """Whether dead letters still wait for a read, and are not in a commit yet."""
        return bool(self._burials)

    def leave_burials(self) -> None:
        """The engine is closed: dead letters that still wait for a read are decided again by the next engine."""
        for letter in (letter for burial in self._burials for letter in burial.letters):
            if self._host.options.retry.is_exhausted(letter.attempts):
                self._host.outcomes.note_failure(letter.key, letter.offset, letter.attempts, 0.0, letter.error)

    def forget_burials(self) -> None:
        """Drop everything that is not written yet: it is decided again when the lanes are loaded."""
        self._burials.clear()

    def _recent(self, burial: _Burial) -> dict[int, Record] | None:
        """The records that dead-lettering needs, if they are in memory: for copies, and for the keys of messages that are
        delivered without order."""
        recent = self._host.topic.recent
        found = {letter.offset: record for letter in burial.letters if (record := recent(letter.offset)) is not None}
        return found if all(letter.offset in found for letter in burial.letters_to_read()) else None

    async def _read_and_bury(self) -> None:
        while self._burials:
            burial = self._burials[0]
            self._write(burial, await self._read(burial))
            self._burials.popleft()
        self._host.deliveries.wake()  # somebody may wait until nothing is under way

    async def _read(self, burial: _Burial) -> dict[int, Record]:
        for _ in range(READS):
            try:
                return await self._host.records(letter.offset for letter in burial.letters_to_read())
            except SeriatimError as error:
                self._engine.recovery.failed(error)
                await asyncio.sleep(RETRY_PAUSE_S)
        return {}  # better dead letters without copies than a key that waits for ever

    def _write(self, burial: _Burial, records: Mapping[int, Record]) -> None:
        rows, copies = list[DeadLetterRow](), list[Record]()
        for letter in burial.letters:
            row, copy = self._row(letter, burial.target, records.get(letter.offset))
            rows.append(row)
            copies += () if copy is None else (copy,)
        id_, target = self._host.id, burial.target
        self._engine.commit().oblige(
            lambda work: work.bury(id_, rows),
            lambda: self._buried(rows),
            partial(self._not_buried, burial),
            {} if target is None else {target: copies},
        )

    def _row(
        self, letter: DeadLettered, target: TopicState | None, record: Record | None
    ) -> tuple[DeadLetterRow, Record | None]:
        """The row of a dead letter, and its copy if there is one."""
        now, key = self._engine.now(), letter.key if record is None else record.key
        # Where keys are not ordered nobody watches what else of a key is settled.
        overtaken = key is not None and not (letter.key and self._host.lanes.is_returnable(letter.key, letter.offset))
        row = DeadLetterRow(letter.offset, key, letter.attempts, now, letter.error, overtaken=overtaken)
        if target is None or record is None:
            return row, None
        copy = Record(target.reserve(1), record.key, record.data, self._attributes(record, letter), now)
        return row._replace(copy_topic_id=target.id, copy_offset=copy.offset), copy

    def _not_buried(self, burial: _Burial, error: BaseException) -> None:
        """The store refuses these dead letters for good: write them without copies, and with another error."""
        offsets = [letter.offset for letter in burial.letters]
        if burial.target is None:
            self._host.outcomes.refused(offsets, error)
            return
        fields = {"subscription": self._host.name, "message_ids": list(map(str, offsets))}
        logger.error("messages %s can't be copied to topic %r: %s", offsets, burial.target.name, error, extra=fields)
        reason = reason_of(f"its copy can't be stored: {error}")
        self._write(_Burial([letter._replace(error=reason) for letter in burial.letters], None), {})

    def _buried(self, rows: Sequence[DeadLetterRow]) -> None:
        self._rows.update((row.offset, row) for row in rows)
        self._host.counts.dead_lettered += len(rows)
        self._host.outcomes.confirmed([row.offset for row in rows])

    def _attributes(self, record: Record, letter: DeadLettered) -> dict[str, str]:
        why = {
            SOURCE: self._host.name,
            OFFSET: str(letter.offset),
            PUBLISHED: str(record.published),
            ATTEMPTS: str(letter.attempts),
            ERROR: (letter.error or "").encode()[:MAX_ERROR_CHARACTERS].decode(errors="ignore"),
        }
        return {**(record.attributes or {}), **why}

    # -- later messages are settled -------------------------------------------------------------------------------------

    def write_overtaken(self) -> None:
        """Messages are being settled: in the same transaction, the earlier dead letters of their keys lose their places."""
        lanes = self._host.lanes
        overtaken, lanes.overtaken = lanes.overtaken, []
        self._overtake(overtaken)

    def give_up_places(self) -> None:
        """Keys are no longer ordered, so nothing tracks which later messages of a key are settled."""
        keyed = [row.offset for row in self._rows.values() if row.key is not None]
        if keyed:
            self._overtake(keyed)

    def _overtake(self, offsets: list[int]) -> None:
        id_ = self._host.id
        self._engine.commit().oblige(lambda work: work.overtake(id_, offsets), lambda: None)

    # -- messages come back ---------------------------------------------------------------------------------------------

    async def redrive(self, offset: int, *, append: bool) -> tuple[int, Awaitable[None]]:
        """Return a dead letter to its place, or to the end. Returns its new offset, and a future for when that is durable."""
        self._require(offset)
        record = (await self._host.records([offset])).get(offset)
        row = self._require(offset)  # somebody else may have been quicker
        if record is None:
            raise RedriveRefused(f"the payload of message {offset} is no longer kept: purge the dead letter")
        return self._append(row, record) if append else (offset, self._put_back(row))

    def _put_back(self, row: DeadLetterRow) -> Awaitable[None]:
        effects = [self._host.lanes.redrive(self._lane_key(row), row.offset, self._engine.now())]
        del self._rows[row.offset]
        return self._host.outcomes.carry_out(effects)

    def _append(self, row: DeadLetterRow, record: Record) -> tuple[int, Awaitable[None]]:
        topic, attributes = self._host.topic, {**(record.attributes or {}), REDRIVEN: str(row.offset)}
        again = Record(topic.reserve(1), record.key, record.data, attributes, self._engine.now())
        return again.offset, self._purge([row.offset], {topic: [again]})

    def purge(self, offsets: Sequence[int]) -> Awaitable[None]:
        """Delete dead letters for good."""
        return self._purge(offsets, {})

    def _purge(self, offsets: Sequence[int], instead: Mapping[Log, Sequence[Record]]) -> Awaitable[None]:
        for row in {self._require(offset) for offset in offsets}:
            self._host.lanes.forget_dead_letter(self._lane_key(row), row.offset)
            del self._rows[row.offset]
        id_, gone = self._host.id, sorted(set(offsets))
        return self._host.outcomes.write(lambda work: work.purge(id_, gone), instead)

    def _require(self, offset: int) -> DeadLetterRow:
        try:
            return self._rows[offset]
        except KeyError:
            raise NotFound(f"message {offset} is not a dead letter of subscription {self._host.name!r}") from None

    def _lane_key(self, row: DeadLetterRow) -> str | None:
        return row.key if self._host.options.message_ordering else None
