"""Group commit: one writer; everything that arrives during a commit goes into the next one.

Rules
    - Callers are notified only when their change is durable: callbacks run after the commit, in the event loop, in order.
    - When a commit fails, its requests fail. Its obligations go into the next one, which is tried after a pause; their callers
      keep waiting.
    - A value that the store refuses for good fails alone, and is never retried together with other entries: a request fails, an
      obligation is given up, logged, and reported to its owner.
    - If it is unknown whether a commit happened, nothing more is written: every request fails with that error, unless the owner
      reopens the store (``suspend``, ``resume``). New requests wait during that time. Earlier obligations are dropped, because
      the store then tells what happened.

Theory of operation
    The event loop fills one ``Commit`` while another is written. An fsync costs about as much as writing a hundred messages, so
    throughput depends on the size of commits. A commit therefore starts at the end of the current turn of the loop, not at
    the first change.

    The next message of a busy key waits for the commit of the previous ack, so there must be no delay between two commits: the
    messages that a commit made ready are delivered at once, in the same turn of the loop, and their acks go into the next one.

    A thread writes, so that the loop does not wait for the disk. Handing a commit to the thread and back costs nearly as much
    as a small commit on a fast disk; there the loop writes small commits itself (``Writer``).

    The writer splits a refused commit: it writes each half, and splits a refused half again, until single refused pieces are
    left. A failure of the store itself ends this: because offsets must rise, nothing may be written after a piece that failed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from weakref import WeakSet

from seriatim.engine.commit import Commit
from seriatim.engine.metrics import CommitTimes
from seriatim.engine.uncancelled_wait import until_done
from seriatim.errors import OutcomeUnknown, StoreError, StoreLost
from seriatim.store.base import Store

RETRY_PAUSE_S = 0.25

QUICK_S = 0.0006
"""The loop writes small commits while they take less than this on average: about the cost of handing them to the thread."""

FIRST_AVERAGE_S = 0.05
"""The assumed duration of a commit before any was measured: after some thirty fast ones the loop begins to write."""

STALL_S = 0.005
RESPITE = 100
"""When a commit stalls the loop for longer than ``STALL_S``, the thread writes for this many times as long: stalls take at most
a hundredth of the time, however the disk behaves."""

_Outcome = tuple[Commit, BaseException | None]


class Writer:
    """Writes commits in the order in which they are ``put``, and reports their outcomes in the loop.

    A thread writes them. While small commits are fast, the loop writes them itself: it follows the average of the last few
    commits, so a slow disk brings the thread back, and a fast disk the loop. This applies only to stores in memory or in local
    files, because a server may take any time to answer. While ``is_shared``, clean-up writes to the store, too, and the loop
    would have to wait for it.
    """

    def __init__(
        self, write: Callable[[Commit], list[_Outcome]], report: Callable[[list[_Outcome]], None], is_local: bool
    ) -> None:
        self._write, self._report = write, report
        self.is_local = is_local
        self.is_shared = False
        self._average_s = FIRST_AVERAGE_S
        self._respite_until = 0.0
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Commit | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="seriatim-writer", daemon=True)
        self._thread.start()

    def put(self, commit: Commit) -> None:
        if not commit.is_small:
            self._queue.put(commit)
        elif (
            self._average_s < QUICK_S
            and self.is_local
            and not self.is_shared
            and self._loop.time() >= self._respite_until
        ):
            outcomes, seconds = self._timed(commit)
            if seconds > STALL_S:
                self._respite_until = self._loop.time() + RESPITE * seconds
            self._report(outcomes)
        else:
            self._queue.put(commit)

    def _timed(self, commit: Commit) -> tuple[list[_Outcome], float]:
        began = perf_counter()
        outcomes = self._write(commit)
        seconds = perf_counter() - began
        if commit.is_small:
            self._average_s += (seconds - self._average_s) / 8
        return outcomes, seconds

    def _write_all(self) -> None:
        while (commit := self._queue.get()) is not None:
            self._loop.call_soon_threadsafe(self._report, self._timed(commit)[0])

    async def stop(self) -> None:
        """End the thread when it has done its work, and wait for that."""
        self._queue.put(None)
        await until_done(asyncio.get_running_loop().run_in_executor(None, self._thread.join))


class Committer:
    """Writes commits one after another, with a writer of its own."""

    def __init__(
        self, store: Store, on_success: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.store = store
        self._on_success = on_success
        self._on_failure = on_failure
        self.times = CommitTimes()
        self.loop = asyncio.get_running_loop()
        self._filling: Commit | None = None
        self._scheduled = False
        self.is_writing = False  # a commit is with the thread, or the loop has not heard of its end yet
        self._closing = False
        self._suspended = False
        self._broken: BaseException | None = None
        self.failing_since: float | None = None  # when the first commit failed after which none has succeeded
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.is_forked = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._interrupt: BaseException | None = None  # what ended a commit that the loop was writing
        self.writer = Writer(self._write, self._written, store.url.startswith(("sqlite:", "memory:")))
        _open.add(self)

    @property
    def is_broken(self) -> bool:
        """Whether writing has ended for good."""
        return self._broken is not None

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
        """Wait until everything is written, or writing has ended for good."""
        await self._idle.wait()

    async def close(self) -> None:
        """Write the remaining entries once, and stop the thread. Obligations that fail now are not retried: they did not
        happen."""
        self._closing = True
        try:
            await self.drain()
        finally:
            self._broken = self._broken or StoreLost("the engine was closed: open another one")
            self._fail_waiting(self._broken)  # there is something only if this is cancelled
            await self.writer.stop()

    # -- when the store has to be opened again --------------------------------------------------------------------------

    def suspend(self, error: BaseException) -> None:
        """Write nothing until ``resume``: waiting entries fail, new ones wait."""
        self._suspended, self._broken = True, None
        self.failing_since = self.failing_since or self.loop.time()
        self._fail_waiting(error)

    async def come_to_rest(self, error: BaseException) -> None:
        """Wait for the current commit, and drop newer entries, because they may depend on one that failed."""
        if self.is_writing:
            await self._at_rest.wait()
            self._fail_waiting(error)

    def resume(self) -> None:
        """Continue, with the reopened ``store``."""
        self._suspended, self.failing_since = False, None
        if self._filling is None:
            self._idle.set()
        else:
            self._schedule()

    def fail(self, error: BaseException) -> None:
        """Write nothing more: everything fails with this error."""
        self._broken = error
        self._fail_waiting(error)
        if not self.is_writing:
            self._idle.set()

    def _fail_waiting(self, error: BaseException) -> None:
        """Fail waiting entries, so that none overtakes one that failed. Obligations are dropped."""
        waiting, self._filling = self._filling, None
        if waiting is not None:
            waiting.is_open = False
            waiting.fail(error)

    # -- writing --------------------------------------------------------------------------------------------------------

    def _schedule(self, pause: float = 0) -> None:
        if self.is_writing or self._scheduled or self._suspended:
            return
        self._scheduled = True
        if pause:
            self.loop.call_later(pause, self._start)
        else:
            self.loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._suspended:
            return
        commit, self._filling = self._filling, None
        if commit is not None:
            commit.begin()
            self.is_writing = True
            self._at_rest.clear()
            self.writer.put(commit)
            if (interrupt := self._interrupt) is not None:
                self._interrupt = None
                raise interrupt

    def _write(self, commit: Commit) -> list[_Outcome]:
        error = self._write_whole(commit)
        return self._write_apart(commit) if _is_refusal(error) else [(commit, error)]

    def _write_whole(self, commit: Commit) -> BaseException | None:
        began = perf_counter()
        try:
            with self.store.transaction() as transaction:
                commit.write(transaction)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the commit must hear of it
            self.times.failed += 1
            return error
        except BaseException as interrupt:  # noqa: BLE001 - raised again when everybody has heard
            # A signal's, while the loop wrote. It may have come when the commit was made and nobody had been told yet.
            self.times.failed += 1
            self._interrupt = interrupt
            return OutcomeUnknown(f"a commit was interrupted by {interrupt!r}: it is not known whether it happened")
        self.times.observe(perf_counter() - began)
        return None

    def _write_apart(self, commit: Commit) -> list[_Outcome]:
        """Write everything except pieces that are refused for good. After a failure of the store, the rest fails, too."""
        outcomes: list[_Outcome] = []
        failure: BaseException | None = None
        waiting = [commit.pieces()]
        while waiting:
            pieces = waiting.pop()
            whole = Commit.of(pieces)
            error = failure or self._write_whole(whole)
            if len(pieces) > 1 and _is_refusal(error):
                middle = len(pieces) // 2
                waiting += [pieces[middle:], pieces[:middle]]
                continue
            outcomes.append((whole, error))
            failure = None if _is_refusal(error) else error
        return outcomes

    def _written(self, outcomes: list[_Outcome]) -> None:
        self.is_writing = False
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
            self.failing_since = None
            self._on_success()
        else:
            self._failed(failed[0] if len(failed) == 1 else Commit.of(failed), failure)

    def _failed(self, commit: Commit, error: BaseException) -> None:
        self.failing_since = self.failing_since or self.loop.time()
        is_over = isinstance(error, OutcomeUnknown | StoreLost)
        if is_over and not self._suspended:
            self._broken = error  # before anybody hears of it, so that nothing more is accepted
        commit.fail(error)
        if is_over:
            if not self._suspended:
                self.fail(error)
        elif commit.has_obligations() and not self._closing and self._broken is None:
            self._filling = self._filling or Commit()
            self._filling.take_over(commit)
            self._schedule(RETRY_PAUSE_S)
        self._on_failure(error)

    def lose_in_child(self) -> None:
        """Called in a forked child, which has neither the thread nor the right to write."""
        self.is_forked = True
        self._broken = StoreLost("the engine was opened before a fork: open another one in this process")


def _is_refusal(error: BaseException | None) -> bool:
    """Whether an error is about the written values, not about the store."""
    return isinstance(error, Exception) and not isinstance(error, StoreError | MemoryError)


_open: WeakSet[Committer] = WeakSet()


def is_writing(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a writer thread is about to call back into ``loop``."""
    return any(committer.is_writing for committer in _open if committer.loop is loop)


def _lose_all_in_child() -> None:
    for committer in list(_open):
        committer.lose_in_child()


os.register_at_fork(after_in_child=_lose_all_in_child)
