"""A disk that outlives processes, its faults, and the writer that stands in for the engine's thread.

Rules
    - What was committed stays, whoever dies. What was not is gone.
    - One living process owns the store. Each opening raises the epoch.
    - A fault hits the next commits, one each. Those that are said to change nothing change nothing; of an unknown outcome one
      kind happened and the other did not. After it that opening of the store is good for nothing.
    - In an outage every commit has the same fault, and the store can't be opened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from seriatim.engine.uncancelled_wait import until_done
from seriatim.errors import (
    InvalidArgument,
    OutcomeUnknown,
    StoreBroken,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreLost,
    StoreOwned,
)
from seriatim.store.base import Record, Transaction
from seriatim.store.memory import MemoryStore
from tests.simulation.loop import PROCESS, Process, State

FAULTS = ("full", "failed", "busy", "unknown, not written", "unknown, written", "broken", "refused", "stall")


OUTAGE_S = 60.0
"""How long an outage lasts at most: longer than anybody who closes may wait for the store."""


class Disk:
    """What is stored, and who owns it."""

    def __init__(self) -> None:
        self.content = MemoryStore()
        self.faults: deque[str] = deque()
        self.read_faults = 0
        self.open_faults = 0
        self.outage = ""
        self.epoch = 0
        self.hits = 0
        self.log: dict[tuple[str, int], Record] = {}  # every message that was ever written, by topic and offset
        self.synced: dict[int, int] = {}  # by epoch: what was accepted before this stamp is written
        self.failures = 0
        self._next: dict[int, int] = {}  # the first offset of each topic that is not remembered
        self.owners: dict[int, Process] = {}  # by epoch
        self.opened: dict[int, float] = {}  # when, by epoch
        self._owner: DiskStore | None = None

    def open(self) -> DiskStore:
        process = PROCESS.get()
        assert process is not None
        if self._owner is not None and self._owner.is_held:
            raise StoreOwned(f"process {self._owner.process.name} owns the store")
        if self.open_faults or self.outage:
            self.open_faults = max(0, self.open_faults - 1)
            self.hits += 1
            raise StoreFailed("the disk fails while the store is opened")
        self.epoch += 1
        self._owner = DiskStore(self, process, self.epoch)
        self.owners[self.epoch], self.opened[self.epoch] = process, asyncio.get_running_loop().time()
        return self._owner

    def is_owned_by(self, process: Process) -> bool:
        return self._owner is not None and self._owner.is_held and self._owner.process is process

    def remember(self) -> None:
        """Something was written: keep the new messages, whatever is cleaned up later."""
        for row in self.content.catalog().topics:
            first = self._next.get(row.id, 0)
            if row.next_offset > first:
                self._next[row.id] = row.next_offset
                new = self.content.read(row.id, first, 10_000)
                self.log.update(((row.name, record.offset), record) for record in new)

    def heal(self) -> None:
        self.faults.clear()
        self.read_faults = self.open_faults = 0
        self.outage = ""


class DiskStore:
    """One opening of a disk, with all verbs of a store."""

    url = "sqlite:////simulated/store.db"

    def __init__(self, disk: Disk, process: Process, epoch: int) -> None:
        self.process = process
        self.epoch = epoch
        self._disk = disk
        self._closed = False
        self._broken = False

    @property
    def is_held(self) -> bool:
        return not self._closed and self.process.state is not State.DEAD

    def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreLost("the store can't be used any more, because it was closed")
        if self._broken:
            raise StoreBroken("this handle failed: open the store again")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        try:
            with self._transaction() as work:
                yield work
        except BaseException:
            self._disk.failures += 1
            raise

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        self._require_open()
        fault = self._disk.outage or (self._disk.faults.popleft() if self._disk.faults else "")
        self._disk.hits += bool(fault)
        self._fail_before(fault)
        with self._disk.content.transaction() as work:
            yield work
            if fault == "unknown, not written":
                self._broken = True
                raise OutcomeUnknown("the commit failed half-way")
        self._disk.remember()
        if fault == "unknown, written":
            self._broken = True
            raise OutcomeUnknown("the commit failed half-way")

    def _fail_before(self, fault: str) -> None:
        if fault == "full":
            raise StoreFull("no room on the disk")
        if fault == "failed":
            raise StoreFailed("the disk failed")
        if fault == "busy":
            raise StoreBusy("somebody locks the store")
        if fault == "refused":
            raise InvalidArgument("the database does not take this")
        if fault == "broken":
            self._broken = True
            raise StoreBroken("the handle failed before anything was written")

    def upkeep(self, now: float) -> Any:
        self._require_open()
        return self._disk.content.upkeep(now)

    def __getattr__(self, name: str) -> Any:
        """Everything that only reads."""
        if name.startswith("_"):
            raise AttributeError(name)
        self._require_open()
        if self._disk.read_faults:
            self._disk.read_faults -= 1
            self._disk.hits += 1
            raise StoreFailed("the disk can't be read")
        return getattr(self._disk.content, name)


class Writer:
    """Writes a commit after a while, as the thread does; ``latency`` says how long it takes. A small commit that takes no time
    is written in the loop at once."""

    latency: Callable[[], float] = staticmethod(lambda: 0.0)
    stamp: Callable[[], int] = staticmethod(lambda: 0)
    disk = Disk()

    def __init__(self, write: Callable[[Any], Any], report: Callable[[Any], None], is_local: bool) -> None:
        assert is_local
        self._write, self._report = write, report
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._rest: asyncio.Future[None] | None = None
        self.is_shared = False

    def put(self, commit: Any) -> None:
        latency = type(self).latency()
        if commit.is_small and not latency and not self.is_shared:
            self._report(self._write_one(commit, self.stamp()))
        else:
            self._waiting += 1
            self._loop.call_later(latency, self._write_later, commit, self.stamp())

    def _write_one(self, commit: Any, stamp: int) -> Any:
        epoch, failures = self.disk.epoch, self.disk.failures
        outcomes = self._write(commit)
        if self.disk.failures == failures:
            self.disk.synced[epoch] = stamp
        return outcomes

    def _write_later(self, commit: Any, stamp: int) -> None:
        self._loop.call_soon_threadsafe(self._report, self._write_one(commit, stamp))
        self._waiting -= 1
        if not self._waiting and self._rest is not None:
            self._rest.set_result(None)

    async def stop(self) -> None:
        if self._waiting:
            self._rest = self._loop.create_future()
            await until_done(self._rest)
