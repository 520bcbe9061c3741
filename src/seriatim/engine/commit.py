"""Group commit: one writer, and whatever arrives while a commit is under way rides in the next.

Rules
    - What a caller is told is done is durable: callbacks run after the commit, in the event loop, in order.
    - A commit is one transaction: it happens as a whole or not at all.
    - *Requests* (messages to append, topics to create) hear of a failure; the caller decides what to do. *Obligations* (acks,
      dead letters, what is noted about failed deliveries) were accepted already: when a commit fails they ride in the next one,
      which is tried after a pause, and what waits for them waits on.
    - What the store refuses for what it is (a value that no store can keep) fails alone: a request hears of it, an obligation
      is given up, logged, and reported to whoever wanted it. Neither is ever tried again together with something else.
    - What is about a topic or a subscription that was deleted meanwhile is void: an obligation is over, a request is refused.
    - When it can't be known whether a commit happened, nothing more is written: every request fails with that error, unless the
      owner opens the store again (``suspend``, ``resume``). What is asked meanwhile waits. Obligations of before are forgotten:
      what the store says then is the truth.

Theory of operation
    The event loop fills one ``Commit`` while a thread writes another. An fsync costs about as much as writing a hundred
    messages, so what counts is how much rides in each commit; a commit therefore starts at the end of the current turn of the
    loop and not at the first change. The thread waits on a queue and costs nothing while there is nothing to write.

    The next message of a busy key waits for the commit of the ack before it, so nothing may stand between two commits: what a
    commit made possible is handed out at once, in the same turn of the loop, and what is acked thereby rides in the next one.

    Everything is checked before it comes here, and stores refuse what they can't keep before they change anything, so a commit
    that is refused as a whole is a rare mishap. The writer then takes it apart: it writes the first half and the second half,
    and takes a half that is refused apart again, until single pieces are left that are refused by themselves. What belongs
    together (a dead letter and its copy) is one piece. A failure of the store itself ends that: nothing may be written after
    something that was not, because offsets rise.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import attrgetter
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol, TypeAlias
from weakref import WeakSet

from seriatim.engine.broker import StagedFile
from seriatim.engine.metrics import CommitTimes
from seriatim.engine.waiting import until_done
from seriatim.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    SeriatimError,
    StoreError,
    StoreLost,
)
from seriatim.log import logger
from seriatim.store.base import Position, Record, Store, Transaction, TroubleRow

RETRY_PAUSE = 0.25

Change = Callable[[Transaction], object]
Written = Callable[[], None]
Answer = Callable[[BaseException | None], None]
Refused = Callable[[BaseException], None]

_next_place = partial(next, count())
"""Requests and obligations are numbered as they come: offsets rise with these numbers, in every log."""


class Log(Protocol):
    """A topic that gets messages in a commit, and hears when they are durable."""

    @property
    def id(self) -> int: ...

    @property
    def is_followed(self) -> bool: ...

    def reserve(self, count: int) -> int: ...
    def appended(self, records: Sequence[Record]) -> None: ...
    def batch_appended(self, positions: Sequence[Position], messages: int, size: int) -> None: ...


class Settler(Protocol):
    """A subscription that settles messages in a commit, and hears when that is durable."""

    @property
    def id(self) -> int: ...

    def confirmed(self, offsets: Sequence[int]) -> None: ...
    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        """The store will never take it that these messages are settled."""


@dataclass(slots=True)
class _Append:
    """Messages that somebody wants to have published."""

    log: Log
    records: Sequence[Record]
    answer: Answer
    place: int = field(default_factory=_next_place)


@dataclass(slots=True)
class _Request:
    """A change that somebody waits for."""

    change: Change
    answer: Answer
    refusal: SeriatimError | None = None

    def write(self, transaction: Transaction) -> None:
        self.refusal = None
        try:
            self.change(transaction)
        except (NotFound, AlreadyExists, InvalidArgument, FailedPrecondition) as refusal:
            # The store refused it and changed nothing; what rides in the same commit is not touched.
            self.refusal = refusal


@dataclass(slots=True)
class _Guarded:
    """A change that somebody waits for, and messages that are written only if the store does not refuse it."""

    condition: _Request
    records: Mapping[Log, Sequence[Record]]
    place: int = field(default_factory=_next_place)


@dataclass(slots=True)
class _Obligation:
    """A change that was accepted already, and messages for other logs that belong to it."""

    change: Change
    written: Written
    refused: Refused
    copies: Mapping[Log, Sequence[Record]]
    place: int = field(default_factory=_next_place)


@dataclass(slots=True)
class Batch:
    """Messages that wait in files, to be written once for a writer and a number.

    Files may hold more than fits into memory, so only the positions are kept, and only when somebody follows the log. A batch
    gets its offsets when its commit starts and is written last: whatever else rides in the commit has lower ones.
    """

    log: Log
    writer: str
    number: int
    files: Sequence[StagedFile]
    published: float
    answer: Callable[[range | None, BaseException | None], None]
    offsets: range = range(0)
    is_new: bool = False
    refusal: NotFound | None = None
    positions: list[Position] = field(default_factory=list)
    is_followed: bool = False

    @property
    def messages(self) -> int:
        return sum(file.messages for file in self.files)

    def begin(self) -> None:
        first = self.log.reserve(self.messages)
        self.offsets, self.is_followed = range(first, first + self.messages), self.log.is_followed

    def write(self, transaction: Transaction) -> None:
        self.is_new, self.refusal = False, None
        self.positions.clear()
        try:
            transaction.append(self.log.id, ())  # before anything is claimed: the topic may have been deleted
        except NotFound as deleted:
            self.refusal = deleted
            return
        self.is_new = transaction.claim_batch(self.writer, self.number)
        first, seen = self.offsets.start, self.positions.extend if self.is_followed else None
        for file in self.files if self.is_new else ():
            transaction.append_staged(self.log.id, file.path, first, self.published, seen)
            first += file.messages

    def finish(self) -> None:
        if self.is_new:
            self.log.batch_appended(self.positions, self.messages, sum(file.size for file in self.files))
        self.answer(self.offsets if self.is_new else None, self.refusal)

    def fail(self, error: BaseException) -> None:
        self.answer(None, error)


_Placed: TypeAlias = _Append | _Guarded | _Obligation
_Part: TypeAlias = _Placed | _Request | Batch


class Commit:
    """What rides in one transaction. While it ``is_open``, more may be added."""

    __slots__ = (
        "_appends",
        "_batches",
        "_changes",
        "_deleted",
        "_guarded",
        "_records",
        "_requests",
        "_settled",
        "_troubles",
        "is_open",
    )

    def __init__(self, is_open: bool = True) -> None:
        self.is_open = is_open
        # requests
        self._records: dict[Log, list[Record]] = {}
        self._appends: list[_Append] = []
        self._requests: list[_Request] = []
        self._batches: list[Batch] = []
        self._guarded: list[_Guarded] = []
        # obligations
        self._settled: dict[Settler, list[int]] = {}
        self._troubles: dict[int, dict[int, TroubleRow]] = {}
        self._changes: list[_Obligation] = []
        # found when it is written: logs that are no more
        self._deleted: dict[Log, NotFound] = {}

    def append(self, log: Log, records: Sequence[Record], answer: Answer) -> None:
        """Request: messages for a log."""
        self._add_append(_Append(log, records, answer))

    def _add_append(self, append: _Append) -> None:
        self._records.setdefault(append.log, []).extend(append.records)
        self._appends.append(append)

    def request(self, change: Change, answer: Answer) -> None:
        """Request: anything else. One that the store refuses fails alone."""
        self._requests.append(_Request(change, answer))

    def append_batch(self, batch: Batch) -> None:
        """Request: messages that wait in files."""
        self._batches.append(batch)

    def append_if(self, condition: Change, records: Mapping[Log, Sequence[Record]], answer: Answer) -> None:
        """Request: a change, and messages for logs that are written only if the store does not refuse the change."""
        self._guarded.append(_Guarded(_Request(condition, answer), records))

    def settle(self, settler: Settler, offsets: Sequence[int]) -> None:
        self.settled_by(settler).extend(offsets)

    def settled_by(self, settler: Settler) -> list[int]:
        """What a subscription settles in this commit: it may add to the list itself while the commit is open."""
        return self._settled.setdefault(settler, [])

    def note_trouble(self, subscription_id: int, trouble: TroubleRow) -> None:
        """Obligation: what is to be known about a message. Only the last note is written."""
        self._troubles.setdefault(subscription_id, {})[trouble.offset] = trouble

    def oblige(
        self,
        change: Change,
        written: Written,
        refused: Refused | None = None,
        copies: Mapping[Log, Sequence[Record]] | None = None,
    ) -> None:
        """Obligation: anything else, with messages for other logs (such as copies of dead letters) that belong to it.

        ``written`` hears that it is durable, ``refused`` that it never will be.
        """
        self._changes.append(_Obligation(change, written, refused or _log_refusal, copies or {}))

    def begin(self) -> None:
        """Nothing more is added: it is about to be written."""
        self.is_open = False
        for batch in self._batches:
            batch.begin()

    def write(self, transaction: Transaction) -> None:
        for subscription_id, troubles in self._troubles.items():
            with suppress(NotFound):
                transaction.note_troubles(subscription_id, troubles.values())
        for guarded in self._guarded:
            guarded.condition.write(transaction)
        for log, records in self._all_records().items():
            self._append(transaction, log, records)
        for settler, offsets in self._settled.items():
            with suppress(NotFound):
                transaction.settle(settler.id, offsets)
        for obligation in self._changes:
            with suppress(NotFound):
                obligation.change(transaction)
        for request in self._requests:
            request.write(transaction)
        for batch in self._batches:
            batch.write(transaction)

    def _append(self, transaction: Transaction, log: Log, records: Sequence[Record]) -> None:
        try:
            transaction.append(log.id, records)
        except NotFound as deleted:
            self._deleted[log] = deleted

    def _all_records(self) -> dict[Log, list[Record]]:
        """All messages, in order. A copy that a failed commit left may be older than what came since."""
        beside = [obligation.copies for obligation in self._changes if obligation.copies]
        beside += [guarded.records for guarded in self._guarded if guarded.condition.refusal is None]
        if not beside:
            return self._records
        together = {log: list(records) for log, records in self._records.items()}
        for each in beside:
            for log, records in each.items():
                together.setdefault(log, []).extend(records)
        return {log: sorted(records, key=_OFFSET) for log, records in together.items()}

    def finish(self) -> None:
        for log, records in self._all_records().items():
            if log not in self._deleted:
                log.appended(records)
        for append in self._appends:
            append.answer(self._deleted.get(append.log))
        for guarded in self._guarded:
            guarded.condition.answer(guarded.condition.refusal)
        for obligation in self._changes:
            obligation.written()
        for settler, offsets in self._settled.items():
            settler.confirmed(offsets)
        # Written last, and therefore told last: what a request deletes was still there for everybody before.
        for request in self._requests:
            request.answer(request.refusal)
        for batch in self._batches:
            batch.finish()

    def fail(self, error: BaseException) -> None:
        """Answer the requests. The obligations are still there for ``take_over``."""
        for append in self._appends:
            append.answer(error)
        for request in [*(guarded.condition for guarded in self._guarded), *self._requests]:
            request.answer(error)
        for batch in self._batches:
            batch.fail(error)

    def has_obligations(self) -> bool:
        return bool(self._settled or self._troubles or self._changes)

    def refuse(self, error: BaseException) -> None:
        """The store will never take this: tell everybody who wants it. The obligations are given up."""
        self.fail(error)
        for subscription_id, troubles in self._troubles.items():
            for offset in troubles:
                what = f"what is to be known about message {offset} of subscription number {subscription_id}"
                logger.error("%s can't be stored, and is forgotten when the store is opened again: %s", what, error)
        for obligation in self._changes:
            obligation.refused(error)
        for settler, offsets in self._settled.items():
            settler.refused(offsets, error)

    def take_over(self, failed: Commit) -> None:
        """Carry what a failed commit was obliged to write, before what has come since."""
        for settler, offsets in failed._settled.items():
            self.settled_by(settler)[:0] = offsets
        for subscription_id, troubles in failed._troubles.items():
            self._troubles[subscription_id] = troubles | self._troubles.get(subscription_id, {})
        self._changes = failed._changes + self._changes

    # -- taken apart ----------------------------------------------------------------------------------------------------

    def pieces(self) -> list[Commit]:
        """The same as commits with one piece each, in an order in which they can be written one after another."""
        pieces: list[Commit] = []
        for subscription_id, troubles in self._troubles.items():
            for trouble in troubles.values():
                pieces.append(Commit())
                pieces[-1].note_trouble(subscription_id, trouble)
        placed: list[_Placed] = [*self._appends, *self._guarded, *self._changes]
        for part in sorted(placed, key=_PLACE):
            pieces.append(Commit())
            pieces[-1].add(part)
        for settler, offsets in self._settled.items():
            pieces.append(Commit())
            pieces[-1].settle(settler, offsets)
        requests: list[_Part] = [*self._requests, *self._batches]
        for request in requests:
            pieces.append(Commit())
            pieces[-1].add(request)
        return pieces

    def add(self, part: _Part) -> None:
        """Let one more part ride in this commit."""
        match part:
            case _Append():
                self._add_append(part)
            case _Guarded():
                self._guarded.append(part)
            case _Obligation():
                self._changes.append(part)
            case _Request():
                self._requests.append(part)
            case Batch():
                self._batches.append(part)

    @classmethod
    def of(cls, commits: Sequence[Commit]) -> Commit:
        """Several commits as one."""
        whole = cls()
        for commit in reversed(commits):
            whole.take_over(commit)
        for commit in commits:
            whole.take_requests(commit)
        return whole

    def take_requests(self, other: Commit) -> None:
        """Carry what others ask for in another commit, after what is asked for here."""
        parts: list[_Part] = [*other._appends, *other._guarded, *other._requests, *other._batches]
        for part in parts:
            self.add(part)


_OFFSET, _PLACE = attrgetter("offset"), attrgetter("place")


def _log_refusal(error: BaseException) -> None:
    logger.error("something that was accepted can't be stored, and is given up: %s", error)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether an error is about what was to be written, and not about the store."""
    return isinstance(error, Exception) and not isinstance(error, StoreError | MemoryError)


_Outcome = tuple[Commit, BaseException | None]


class WriterThread:
    """Writes commits in a thread, in the order in which they are ``put``."""

    def __init__(self, write: Callable[[Commit], None]) -> None:
        self._write = write
        self._queue: SimpleQueue[Commit | None] = SimpleQueue()
        self.put: Callable[[Commit], None] = self._queue.put
        self._thread = threading.Thread(target=self._write_all, name="seriatim-writer", daemon=True)
        self._thread.start()

    def _write_all(self) -> None:
        while (commit := self._queue.get()) is not None:
            self._write(commit)

    async def stop(self) -> None:
        """Let the thread end after what it was given, and wait for that."""
        self._queue.put(None)
        await until_done(asyncio.get_running_loop().run_in_executor(None, self._thread.join))


class Committer:
    """Writes commits one after another, with a writer of its own."""

    def __init__(
        self, store: Store, on_success: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._store = store
        self._on_success = on_success
        self._on_failure = on_failure
        self.times = CommitTimes()
        self._loop = asyncio.get_running_loop()
        self._filling: Commit | None = None
        self._scheduled = False
        self._writing = False
        self._closing = False
        self._suspended = False
        self._broken: BaseException | None = None
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.is_forked = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._writer = WriterThread(self._write_and_report)
        _open.add(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be written any more."""
        return self._broken is not None

    @property
    def is_writing(self) -> bool:
        """Whether a commit is with the thread, or the loop has not heard of its end yet."""
        return self._writing

    def next(self) -> Commit:
        """The commit that is being filled; it is written soon."""
        if self._broken is not None:
            raise self._broken
        if self._filling is None:
            self._filling = Commit()
            self._idle.clear()
            self._schedule()
        return self._filling

    async def drain(self) -> None:
        """Wait until there is nothing left to write, or nothing can be written any more."""
        await self._idle.wait()

    async def close(self) -> None:
        """Write what there is, once, and stop the thread. Obligations that fail now are tried no more: they did not happen."""
        self._closing = True
        try:
            await self.drain()
        finally:
            self._broken = self._broken or StoreLost("the engine was closed: open another one")
            self._forget_waiting(self._broken)  # there is something only if this is cancelled
            await self._writer.stop()

    # -- when the store has to be opened again --------------------------------------------------------------------------

    def suspend(self, error: BaseException) -> None:
        """Write nothing until ``resume``: what waits fails, what comes waits."""
        self._suspended, self._broken = True, None
        self._forget_waiting(error)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is being written."""
        return not self._writing

    async def come_to_rest(self, error: BaseException) -> None:
        """Wait for the commit that is under way, and forget what came meanwhile: it may rest on something that failed."""
        if self._writing:
            await self._at_rest.wait()
            self._forget_waiting(error)

    def resume(self, store: Store) -> None:
        self._store, self._suspended = store, False
        if self._filling is None:
            self._idle.set()
        else:
            self._schedule()

    def give_up(self, error: BaseException) -> None:
        """Write nothing any more."""
        self._broken = error
        self._forget_waiting(error)
        if not self._writing:
            self._idle.set()

    def _forget_waiting(self, error: BaseException) -> None:
        """Fail what waits, so that nothing overtakes what failed before it. Obligations are forgotten."""
        waiting, self._filling = self._filling, None
        if waiting is not None:
            waiting.is_open = False
            waiting.fail(error)

    # -- writing --------------------------------------------------------------------------------------------------------

    def _schedule(self, pause: float = 0) -> None:
        if self._writing or self._scheduled or self._suspended:
            return
        self._scheduled = True
        if pause:
            self._loop.call_later(pause, self._start)
        else:
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._suspended:
            return
        commit, self._filling = self._filling, None
        if commit is not None:
            commit.begin()
            self._writing = True
            self._at_rest.clear()
            self._writer.put(commit)

    def _write_and_report(self, commit: Commit) -> None:
        error = self._write(commit)
        outcomes = self._write_apart(commit) if _is_refusal(error) else [(commit, error)]
        self._loop.call_soon_threadsafe(self._written, outcomes)

    def _write(self, commit: Commit) -> BaseException | None:
        began = perf_counter()
        try:
            with self._store.transaction() as transaction:
                commit.write(transaction)
        except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait for the commit must hear of it
            self.times.failed += 1
            return error
        self.times.observe(perf_counter() - began)
        return None

    def _write_apart(self, commit: Commit) -> list[_Outcome]:
        """Write everything but the pieces that are refused by themselves. What follows a failure of the store fails with it."""
        outcomes: list[_Outcome] = []
        failure: BaseException | None = None
        waiting = [commit.pieces()]
        while waiting:
            pieces = waiting.pop()
            whole = Commit.of(pieces)
            error = failure or self._write(whole)
            if len(pieces) > 1 and _is_refusal(error):
                middle = len(pieces) // 2
                waiting += [pieces[middle:], pieces[:middle]]
                continue
            outcomes.append((whole, error))
            failure = None if _is_refusal(error) else error
        return outcomes

    def _written(self, outcomes: list[_Outcome]) -> None:
        self._writing = False
        self._at_rest.set()
        try:
            self._tell(outcomes)
        finally:  # whatever those who hear of it do, the next commit is written
            if self._filling is not None:
                self._schedule()
            elif not self._scheduled:
                self._idle.set()

    def _tell(self, outcomes: list[_Outcome]) -> None:
        failed: list[Commit] = []
        failure: BaseException | None = None
        for commit, error in outcomes:
            if error is None:
                commit.finish()
            elif _is_refusal(error):
                commit.refuse(error)
            else:
                failed.append(commit)
                failure = error
        if failure is None:
            self._on_success()
        else:
            self._failed(failed[0] if len(failed) == 1 else Commit.of(failed), failure)

    def _failed(self, commit: Commit, error: BaseException) -> None:
        is_over = isinstance(error, OutcomeUnknown | StoreLost)
        if is_over and not self._suspended:
            self._broken = error  # before anybody hears of it, so that nothing more is accepted
        commit.fail(error)
        if is_over:
            if not self._suspended:
                self.give_up(error)
        elif commit.has_obligations() and not self._closing:
            self._filling = self._filling or Commit()
            self._filling.take_over(commit)
            self._schedule(RETRY_PAUSE)
        self._on_failure(error)

    def lose_in_child(self) -> None:
        """Called in a forked child, which has neither the thread nor the right to write."""
        self.is_forked = True
        self._broken = StoreLost("the engine was opened before a fork: open another one in this process")


_open: WeakSet[Committer] = WeakSet()


def is_writing(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a writer thread is about to call back into ``loop``."""
    return any(committer.is_writing for committer in _open if committer.loop is loop)


def _lose_all_in_child() -> None:
    for committer in list(_open):
        committer.lose_in_child()


os.register_at_fork(after_in_child=_lose_all_in_child)
