"""The entries of one commit: messages to append, and changes that are requested or already accepted.

Rules
    - A commit is one transaction: it happens as a whole or not at all.
    - Every entry has the same shape: ``write`` it in the transaction, ``finish`` it when it is durable, or let it ``fail``.
      Callers wait for the future of an entry.
    - *Requests* (messages to append, topics to create) fail with their commit; the caller decides what to do. *Obligations*
      (acks, dead letters, notes about failed deliveries) were accepted already: when a commit fails, the next one carries them.
    - A request about a topic or a subscription that has been deleted is refused; an obligation about it is dropped.
    - The messages of a log are appended in the order of their offsets, even if they belong to different entries.

Theory of operation
    Acks are the hot path, so they are not entries: each subscription has a list of offsets (``settled_by``). Values are checked
    before they get here, and stores refuse a value before they change anything, so a commit is rarely refused. Then it is
    split (``pieces``) into commits with one entry each, which can be joined again (``of``). Changes that belong together,
    such as a dead letter and its copy, are one entry.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, pairwise
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from seriatim.engine.message_ids import MessageIds
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from seriatim.log import logger
from seriatim.store.base import MessageHeader, Record, StagedFile, Transaction, TroubleRow

T = TypeVar("T")

Change = Callable[[Transaction], object]

_next_place = partial(next, count())
"""Entries are numbered in order of arrival: in every log, offsets rise with these numbers."""


class Log(Protocol):
    """A topic that gets messages in a commit, and is notified when they are durable."""

    @property
    def id(self) -> int: ...

    @property
    def is_followed(self) -> bool: ...

    def reserve(self, count: int) -> int: ...
    def appended(self, records: Sequence[Record]) -> None: ...
    def batch_appended(self, positions: Sequence[MessageHeader], messages: int, size: int) -> None: ...


class Settler(Protocol):
    """A subscription that settles messages in a commit, and is notified when that is durable."""

    @property
    def id(self) -> int: ...

    def confirmed(self, offsets: Sequence[int]) -> None: ...
    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        """The store refuses for good to settle these messages."""


class Noter(Protocol):
    """A subscription that notes failed deliveries in a commit."""

    @property
    def id(self) -> int: ...

    def forgotten(self, offsets: Sequence[int], error: BaseException) -> None:
        """The store refuses for good the notes about these messages."""


Records: TypeAlias = Mapping[Log, Sequence[Record]]
_NO_RECORDS: Records = {}


@dataclass(slots=True, eq=False)
class _Entry(ABC):
    """A part of a commit. ``records`` are messages that are appended with it."""

    records: Records
    place: int = field(default_factory=_next_place, init=False)

    @abstractmethod
    def write(self, transaction: Transaction) -> None: ...
    @abstractmethod
    def finish(self) -> None: ...
    @abstractmethod
    def fail(self, error: BaseException) -> None: ...


def _new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class _Request(_Entry, Generic[T]):
    """An entry with a future. ``refusal`` says why the store refused it, and changed nothing."""

    future: asyncio.Future[T] = field(default_factory=_new_future, init=False)
    result: T = field(init=False)
    refusal: BaseException | None = field(default=None, init=False)

    def finish(self) -> None:
        if self.refusal is not None:
            self.fail(self.refusal)
        elif not self.future.cancelled():
            self.future.set_result(self.result)

    def fail(self, error: BaseException) -> None:
        if not self.future.cancelled():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class _Append(_Request[T]):
    """Messages for one log."""

    log: Log

    def write(self, transaction: Transaction) -> None:
        """The commit writes the messages of all its entries together."""


@dataclass(slots=True, eq=False)
class _Call(_Request[T]):
    """A change, with messages that are written only if the store does not refuse it."""

    change: Callable[[Transaction], T]
    applied: Callable[[T], None] | None
    is_over: Callable[[], None] | None

    def write(self, transaction: Transaction) -> None:
        self.refusal = None  # it may be written a second time, after a commit that was refused for something else in it
        try:
            self.result = self.change(transaction)
        except (NotFound, AlreadyExists, InvalidArgument, FailedPrecondition) as refusal:
            self.refusal = refusal

    def finish(self) -> None:
        if self.refusal is None and self.is_over is not None:
            self.is_over()
        if self.refusal is None and self.applied is not None:
            self.applied(self.result)
        _Request.finish(self)

    def fail(self, error: BaseException) -> None:
        if self.is_over is not None:
            self.is_over()
        _Request.fail(self, error)


@dataclass(slots=True, eq=False)
class _Batch(_Request[Sequence[str] | None]):
    """Messages staged in files, to be written once for each writer and number; the result of a repetition is None.

    Files may be larger than memory, so only headers are kept, and only if there are subscriptions. A batch gets its offsets
    when its commit starts, and is written last: all other messages of the commit have lower offsets.
    """

    log: Log
    writer: str
    number: int
    files: Sequence[StagedFile]
    published: float
    offsets: range = field(default=range(0), init=False)
    headers: list[MessageHeader] | None = field(default=None, init=False)

    def begin(self) -> None:
        first = self.log.reserve(count := sum(file.messages for file in self.files))
        self.offsets, self.headers = range(first, first + count), [] if self.log.is_followed else None

    def write(self, transaction: Transaction) -> None:
        self.refusal = self.result = None
        try:
            transaction.append(self.log.id, ())  # before anything is claimed: the topic may have been deleted
        except NotFound as deleted:
            self.refusal = deleted
            return
        if not transaction.claim_batch(self.writer, self.number):
            return
        first, seen = self.offsets.start, None
        if self.headers is not None:
            self.headers.clear()
            seen = self.headers.extend
        for file in self.files:
            transaction.append_staged(self.log.id, file.path, first, self.published, seen)
            first += file.messages
        self.result = MessageIds(self.offsets)

    def finish(self) -> None:
        if self.result is not None:
            size = sum(file.size for file in self.files)
            self.log.batch_appended(self.headers or (), len(self.offsets), size)
        _Request.finish(self)


@dataclass(slots=True, eq=False)
class _Obligation(_Entry):
    """A change that was already accepted, with messages for other logs that belong to it."""

    change: Change
    written: Callable[[], None]
    refused: Callable[[BaseException], None]

    def write(self, transaction: Transaction) -> None:
        with suppress(NotFound):  # what it is about was deleted
            self.change(transaction)

    def finish(self) -> None:
        self.written()

    def fail(self, error: BaseException) -> None:
        """The store refuses it for good."""
        self.refused(error)


SMALL_ENTRIES = 64
SMALL_BYTES = 64 * 1024


class Commit:
    """The entries of one transaction. More may be added while it ``is_open``.

    A commit that ``is_small`` has only a few messages and acks, so the time to write it depends on the disk alone.
    """

    __slots__ = (
        "_appends",
        "_batches",
        "_calls",
        "_deleted",
        "_guarded",
        "_obligations",
        "_records",
        "_settled",
        "_troubles",
        "_written",
        "is_open",
        "is_small",
    )

    def __init__(self, is_open: bool = True) -> None:
        self.is_open = is_open
        self.is_small = False  # known when it begins
        # requests
        self._records: dict[Log, list[Record]] = {}  # those of the appends
        self._appends: list[_Append[object]] = []
        self._guarded: list[_Call[object]] = []  # with messages
        self._calls: list[_Call[object]] = []  # without
        self._batches: list[_Batch] = []
        # obligations
        self._settled: dict[Settler, list[int]] = {}
        self._troubles: dict[Noter, dict[int, TroubleRow]] = {}
        self._obligations: list[_Obligation] = []
        # found when it is written: the messages in their order, and logs that are no more
        self._written: dict[Log, list[Record]] = {}
        self._deleted: dict[Log, NotFound] = {}

    # -- adding ---------------------------------------------------------------------------------------------------------

    def append(self, log: Log, records: Sequence[Record], result: T) -> asyncio.Future[T]:
        """Request: messages for a log. The future has ``result`` when they are durable."""
        entry: _Append[T] = _Append({log: records}, log)
        entry.result = result
        self._add(entry)
        return entry.future

    def request(
        self,
        change: Callable[[Transaction], T],
        records: Records = _NO_RECORDS,
        applied: Callable[[T], None] | None = None,
        is_over: Callable[[], None] | None = None,
    ) -> asyncio.Future[T]:
        """Request: a change, with messages that are written only if the store does not refuse it.

        When it is durable, ``applied`` is called with its result, even if nobody waits any more. ``is_over`` is called before
        that, and also if the change failed.
        """
        entry = _Call(records, change, applied, is_over)
        self._add(entry)
        return entry.future

    def append_batch(
        self, log: Log, writer: str, number: int, files: Sequence[StagedFile], published: float
    ) -> asyncio.Future[Sequence[str] | None]:
        """Request: messages staged in files."""
        entry = _Batch(_NO_RECORDS, log, writer, number, files, published)
        self._add(entry)
        return entry.future

    def settle(self, settler: Settler, offsets: Sequence[int]) -> None:
        """Obligation: messages that a subscription has settled."""
        self.settled_by(settler).extend(offsets)

    def settled_by(self, settler: Settler) -> list[int]:
        """The list of offsets that a subscription settles in this commit. It may add to the list while the commit is open."""
        return self._settled.setdefault(settler, [])

    def note_trouble(self, noter: Noter, trouble: TroubleRow) -> None:
        """Obligation: the failed deliveries of a message. Only the last note is written."""
        self._troubles.setdefault(noter, {})[trouble.offset] = trouble

    def oblige(
        self,
        change: Change,
        written: Callable[[], None],
        refused: Callable[[BaseException], None] | None = None,
        copies: Records | None = None,
    ) -> None:
        """Obligation: any other change, with messages for other logs (such as copies of dead letters) that belong to it.

        ``written`` is called when it is durable, ``refused`` if the store refuses it for good.
        """
        self._add(_Obligation(copies or _NO_RECORDS, change, written, refused or _log_refusal))

    def _add(self, entry: _Entry) -> None:
        match entry:
            case _Append():
                self._records.setdefault(entry.log, []).extend(entry.records[entry.log])
                self._appends.append(entry)
            case _Call():
                (self._guarded if entry.records else self._calls).append(entry)
            case _Batch():
                self._batches.append(entry)
            case _Obligation():
                self._obligations.append(entry)

    # -- writing --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Add nothing more: it is about to be written."""
        self.is_open = False
        for batch in self._batches:
            batch.begin()
        if not (self._guarded or self._calls or self._batches or self._obligations or self._troubles):
            entries = sum(map(len, self._records.values())) + sum(map(len, self._settled.values()))
            self.is_small = entries <= SMALL_ENTRIES and (
                not self._records
                or sum([len(record.data) for each in self._records.values() for record in each]) <= SMALL_BYTES
            )

    def write(self, transaction: Transaction) -> None:
        for noter, troubles in self._troubles.items():
            with suppress(NotFound):
                transaction.note_troubles(noter.id, troubles.values())
        for guarded in self._guarded:
            guarded.write(transaction)
        self._written = self._all_records()
        for log, records in self._written.items():
            try:
                transaction.append(log.id, records)
            except NotFound as deleted:
                self._deleted[log] = deleted
        for settler, offsets in self._settled.items():
            with suppress(NotFound):
                transaction.settle(settler.id, offsets)
        for entry in chain(self._obligations, self._calls, self._batches):
            entry.write(transaction)

    def _all_records(self) -> dict[Log, list[Record]]:
        """All messages, in order. A copy left from a failed commit may be older than later messages."""
        if not self._obligations and not self._guarded:
            return self._records
        beside = [entry.records for entry in self._obligations if entry.records]
        beside += [guarded.records for guarded in self._guarded if guarded.refusal is None]
        if not beside:
            return self._records
        parts: dict[Log, list[Sequence[Record]]] = {}
        for log, records in chain(*(each.items() for each in (self._records, *beside))):
            parts.setdefault(log, []).extend([records] if records else [])
        return {log: _in_order(each) for log, each in parts.items()}

    def finish(self) -> None:
        """It is durable: notify all callers, in the order of writing. What one call deletes still exists for the calls before
        it."""
        for log, records in self._written.items():
            if log not in self._deleted:
                log.appended(records)
        for append in self._appends:
            append.refusal = self._deleted.get(append.log)
            append.finish()
        for entry in chain[_Entry](self._guarded, self._obligations):
            entry.finish()
        for settler, offsets in self._settled.items():
            settler.confirmed(offsets)
        for entry in chain[_Entry](self._calls, self._batches):
            entry.finish()

    def fail(self, error: BaseException) -> None:
        """Fail the requests. The obligations are kept for ``take_over``."""
        for request in self.requests():
            request.fail(error)

    def refuse(self, error: BaseException) -> None:
        """The store refuses it for good: fail everything."""
        self.fail(error)
        for noter, troubles in self._troubles.items():
            noter.forgotten(list(troubles), error)
        for obligation in self._obligations:
            obligation.fail(error)
        for settler, offsets in self._settled.items():
            settler.refused(offsets, error)

    def requests(self) -> Iterator[_Append[object] | _Call[object] | _Batch]:
        return chain(self._appends, self._guarded, self._calls, self._batches)

    # -- taken apart, and put together ----------------------------------------------------------------------------------

    def has_obligations(self) -> bool:
        return bool(self._settled or self._troubles or self._obligations)

    def take_over(self, failed: Commit) -> None:
        """Carry the obligations of a failed commit, before the newer entries."""
        for settler, offsets in failed._settled.items():
            self.settled_by(settler)[:0] = offsets
        for noter, troubles in failed._troubles.items():
            self._troubles[noter] = troubles | self._troubles.get(noter, {})
        self._obligations = failed._obligations + self._obligations

    def pieces(self) -> list[Commit]:
        """The same as commits with one piece each, in an order in which they can be written one after another."""
        pieces: list[Commit] = []
        for noter, troubles in self._troubles.items():
            for trouble in troubles.values():
                pieces.append(Commit())
                pieces[-1].note_trouble(noter, trouble)
        ordered = sorted(chain[_Entry](self._appends, self._guarded, self._obligations), key=_PLACE)
        pieces += map(Commit._with, ordered)
        for settler, offsets in self._settled.items():
            pieces.append(Commit())
            pieces[-1].settle(settler, offsets)
        return pieces + list(map(Commit._with, chain[_Entry](self._calls, self._batches)))

    @classmethod
    def _with(cls, entry: _Entry) -> Commit:
        commit = cls()
        commit._add(entry)
        return commit

    @classmethod
    def of(cls, commits: Sequence[Commit]) -> Commit:
        """Several commits as one."""
        whole = cls()
        for commit in reversed(commits):
            whole.take_over(commit)
        for commit in commits:
            for request in commit.requests():
                whole._add(request)
        return whole


_OFFSET, _PLACE = attrgetter("offset"), attrgetter("place")


def _in_order(parts: list[Sequence[Record]]) -> list[Record]:
    """The messages of a log. Each part is in order, and nearly always the parts are, too."""
    parts.sort(key=lambda records: records[0].offset)
    together = list(chain.from_iterable(parts))
    if any(before[-1].offset > after[0].offset for before, after in pairwise(parts)):
        together.sort(key=_OFFSET)
    return together


def _log_refusal(error: BaseException) -> None:
    logger.error("something that was accepted can't be stored, and is given up: %s", error)
