"""Opening a store again by itself: how often it is tried, whose store it is, and cancellations at every point of the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from seriatim.engine import store_reopening
from seriatim.engine.store_reopening import open_again
from seriatim.errors import (
    OutcomeUnknown,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLost,
    StoreOwned,
)
from seriatim.store.base import Store
from seriatim.store.memory import MemoryStore
from seriatim.store.sqlite.store import SqliteStore
from seriatim.testing import run_in_virtual_time

PASSING = [
    StoreBusy("busy"),
    StoreFull("full"),
    StoreFailed("failed"),
    StoreBroken("broken"),
    OutcomeUnknown("unknown"),
]


async def use_nothing(_: Store) -> None:
    """There is nothing to load."""


class Held:
    """A call in a thread that a test lets go on when it likes."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.begun.set()
        assert self.go_on.wait(10)
        return self.work()

    async def until_begun(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.begun.wait)


async def cancel_repeatedly(task: asyncio.Task[Store], times: int) -> None:
    for _ in range(times):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)


def require_free(path: Path) -> None:
    """See that nobody holds the store."""
    SqliteStore(path).close()


def test_pauses_between_tries_double_up_to_the_longest_one(caplog):
    refusals: list[StoreError] = PASSING * 2

    def opener() -> Store:
        if refusals:
            raise refusals.pop(0)
        return MemoryStore()

    async def main() -> None:
        began = asyncio.get_running_loop().time()
        await open_again(MemoryStore(), opener, use_nothing)
        pauses = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
        assert asyncio.get_running_loop().time() - began == pytest.approx(sum(pauses))
        assert caplog.messages == [
            f"the store can't be opened again yet, next try in {pause} seconds: {error}"
            for pause, error in zip(pauses, PASSING * 2, strict=True)
        ]

    run_in_virtual_time(main())


def test_what_can_not_pass_ends_it():
    def opener() -> Store:
        raise StoreOwned("owned by process 7")

    with pytest.raises(StoreLost, match=r"^another process took the store over: owned by process 7$"):
        asyncio.run(open_again(MemoryStore(), opener, use_nothing))


def test_the_old_store_is_closed_before_another_one_is_opened_and_used(tmp_path):
    path, used = tmp_path / "store.db", list[Store]()

    async def use(store: Store) -> None:
        used.append(store)

    async def main() -> None:
        store = await open_again(SqliteStore(path), lambda: SqliteStore(path), use)
        assert used == [store]
        store.close()

    asyncio.run(main())
    require_free(path)


def test_an_old_store_that_can_not_be_closed_is_left_behind(caplog, monkeypatch):
    def refuse() -> None:
        raise OSError("the file is gone")

    async def main() -> None:
        old = MemoryStore()
        monkeypatch.setattr(old, "close", refuse)
        await open_again(old, MemoryStore, use_nothing)
        assert caplog.messages == ["the failed store could not be closed: the file is gone"]

    asyncio.run(main())


def test_a_store_that_can_not_be_used_is_closed_and_opened_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(store_reopening, "FIRST_PAUSE_S", 0.001)
    path, failures = tmp_path / "store.db", [StoreFailed("while it was loaded")]

    async def use(_: Store) -> None:
        if failures:
            raise failures.pop()

    async def main() -> None:
        store = await open_again(SqliteStore(path), lambda: SqliteStore(path), use)
        assert store.epoch == 3  # its own two openings explain that
        store.close()

    asyncio.run(main())


def test_somebody_else_who_opened_it_in_between_is_told_by_the_epoch(tmp_path):
    path = tmp_path / "store.db"

    def opener() -> Store:
        SqliteStore(path).close()
        return SqliteStore(path)

    why = (
        r"^another process has owned the store since it failed \(its epoch is 3, not 2\): "
        "end this program, and start it again$"
    )
    with pytest.raises(StoreLost, match=why):
        asyncio.run(open_again(SqliteStore(path), opener, use_nothing))
    require_free(path)


# -- cancellations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_is_opened_after_a_cancellation_is_closed_however_often_it_was_cancelled(tmp_path, times):
    path, opened = tmp_path / "store.db", list[Store]()

    def open_store() -> Store:
        opened.append(SqliteStore(path))
        return opened[-1]

    async def main() -> None:
        opener = Held(open_store)
        task = asyncio.ensure_future(open_again(SqliteStore(path), opener, use_nothing))
        await opener.until_begun()
        await cancel_repeatedly(task, times)
        opener.go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert len(opened) == 1
    require_free(path)


@pytest.mark.parametrize("times", [1, 2])
def test_an_opening_that_fails_after_a_cancellation_is_not_tried_again(times):
    def fail() -> Store:
        raise StoreBusy("not now")

    async def main() -> None:
        opener = Held(fail)
        task = asyncio.ensure_future(open_again(MemoryStore(), opener, use_nothing))
        await opener.until_begun()
        await cancel_repeatedly(task, times)
        opener.go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert opener.calls == 1

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cancellation_waits_until_the_old_store_is_closed(tmp_path, monkeypatch, times):
    path = tmp_path / "store.db"

    async def main() -> None:
        old = SqliteStore(path)
        closing = Held(old.close)
        monkeypatch.setattr(old, "close", closing)
        task = asyncio.ensure_future(open_again(old, lambda: pytest.fail("nobody wants it"), use_nothing))
        await closing.until_begun()
        await cancel_repeatedly(task, times)
        assert not task.done()  # whoever cancelled it closes the store too, and must not do so at the same time
        closing.go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert closing.calls == 1

    asyncio.run(main())
    require_free(path)


@pytest.mark.parametrize("times", [1, 2])
def test_a_store_whose_use_is_cancelled_is_closed(tmp_path, times):
    path = tmp_path / "store.db"

    async def main() -> None:
        begun = asyncio.Event()

        async def use(_: Store) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(open_again(SqliteStore(path), lambda: SqliteStore(path), use))
        await begun.wait()
        await cancel_repeatedly(task, times)
        await asyncio.wait([task])
        assert task.cancelled()
        require_free(path)

    asyncio.run(main())
