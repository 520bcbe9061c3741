"""Group commit: what rides together, who hears what, and what is carried on after a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from seriatim.engine.commit import Committer
from seriatim.errors import OutcomeUnknown, StoreFull, StoreLost
from seriatim.store.base import Cursor, Record, TroubleRow
from tests.engine.conftest import WatchedStore


class Listener:
    """A topic or subscription that writes down what it hears."""

    def __init__(self, row_id: int) -> None:
        self.id = row_id
        self.heard: list[list[int]] = []

    def confirmed(self, offsets: Sequence[int]) -> None:
        self.heard.append(list(offsets))

    def appended(self, records: Sequence[Record]) -> None:
        self.heard.append([record.offset for record in records])


class Bench:
    """A store with one topic and one subscription, its committer, and what was heard."""

    def __init__(self) -> None:
        self.store = WatchedStore()
        with self.store.transaction() as transaction:
            self.topic = transaction.create_topic("t", {}).id
            self.subscription = transaction.create_subscription(self.topic, "s", {}, Cursor(0)).id
        self.store.watch()
        self.failures: list[BaseException] = []
        self.committer = Committer(self.store, lambda: None, self.failures.append)
        self.log, self.lane = Listener(self.topic), Listener(self.subscription)
        self.heard: list[tuple[str, BaseException | None]] = []

    def append(self, *offsets: int) -> None:
        records = [Record(offset, "k", b"%d" % offset) for offset in offsets]
        name = "-".join(map(str, offsets))
        self.committer.next().append(self.log, records, lambda error: self.heard.append((name, error)))

    def settle(self, *offsets: int) -> None:
        self.committer.next().settle(self.lane, list(offsets))

    def offsets(self) -> list[int]:
        return [record.offset for record in self.store.read(self.topic, 0, 1000)]

    def settled(self, *offsets: int) -> list[int]:
        cursor = self.store.cursor(self.subscription)
        return [at for at in offsets if at < cursor.floor or cursor.blocks.get(0, 0) >> at & 1]

    async def drain(self) -> None:
        await self.committer.drain()
        while self.store.entered.acquire(blocking=False):
            pass


def run(scenario) -> None:
    async def whole() -> None:
        bench = Bench()
        try:
            await scenario(bench)
        finally:
            bench.store.gate.set()
            await bench.committer.close()

    asyncio.run(whole())


def test_what_is_changed_in_one_turn_of_the_loop_rides_in_one_commit():
    async def scenario(bench):
        bench.append(0, 1)
        bench.append(2)
        bench.settle(0)
        await bench.drain()
        assert bench.store.commits == 1
        assert bench.offsets() == [0, 1, 2]
        assert bench.log.heard == [[0, 1, 2]]
        assert bench.heard == [("0-1", None), ("2", None)]
        assert bench.lane.heard == [[0]]

    run(scenario)


def test_nobody_hears_of_a_commit_before_it_is_durable_and_what_comes_meanwhile_rides_in_the_next():
    async def scenario(bench):
        bench.store.gate.clear()
        bench.append(0)
        await bench.store.until_writing()
        bench.append(1)
        bench.append(2)
        bench.settle(0)
        await asyncio.sleep(0)
        assert (bench.heard, bench.lane.heard) == ([], [])
        bench.store.gate.set()
        await bench.drain()
        assert bench.store.commits == 2
        assert bench.heard == [("0", None), ("1", None), ("2", None)]
        assert bench.lane.heard == [[0]]

    run(scenario)


def test_a_request_hears_of_its_failure_and_leaves_nothing_behind():
    async def scenario(bench):
        full = StoreFull("no room")
        bench.store.failures.append(full)
        bench.append(0)
        bench.committer.next().request(
            lambda transaction: transaction.create_topic("other", {}),
            lambda error: bench.heard.append(("other", error)),
        )
        await bench.drain()
        assert bench.heard == [("0", full), ("other", full)]
        assert bench.failures == [full]
        assert bench.offsets() == []
        assert [topic.name for topic in bench.store.catalog().topics] == ["t"]
        bench.append(1)
        await bench.drain()
        assert bench.offsets() == [1]

    run(scenario)


def test_what_was_accepted_is_written_by_a_later_commit_when_one_fails(monkeypatch):
    async def scenario(bench):
        bench.append(0, 1, 2)
        await bench.drain()
        bench.store.failures += [StoreFull("no room"), StoreFull("still no room")]
        written: list[str] = []
        bench.store.watch()
        bench.store.gate.clear()
        bench.settle(0)
        bench.committer.next().note_trouble(bench.subscription, TroubleRow(1, 1, 5.0, "first", False))
        bench.committer.next().oblige(
            lambda transaction: transaction.pause_key(bench.subscription, "k", "why"), lambda: written.append("paused")
        )
        await bench.store.until_writing()
        bench.settle(2)
        bench.committer.next().note_trouble(bench.subscription, TroubleRow(1, 2, 9.0, "second", False))
        bench.store.gate.set()
        await bench.drain()
        assert bench.lane.heard == [[0, 2]]
        assert written == ["paused"]
        assert bench.settled(0, 1, 2) == [0, 2]
        assert bench.store.troubles(bench.subscription) == [TroubleRow(1, 2, 9.0, "second", False)]
        assert [row.key for row in bench.store.paused_keys(bench.subscription)] == ["k"]
        assert [str(failure) for failure in bench.failures] == ["no room", "still no room"]

    monkeypatch.setattr("seriatim.engine.commit.RETRY_PAUSE", 0.001)
    run(scenario)


def test_a_copy_that_a_failed_commit_left_is_written_at_its_place_before_what_came_since(monkeypatch):
    async def scenario(bench):
        bench.store.failures.append(StoreFull("no room"))
        bench.store.watch()
        bench.store.gate.clear()
        bench.committer.next().copy(bench.log, Record(0, "k", b"dead letter"))
        await bench.store.until_writing()
        bench.append(1)
        bench.store.gate.set()
        await bench.drain()
        assert bench.offsets() == [0, 1]
        assert bench.log.heard == [[0, 1]]

    monkeypatch.setattr("seriatim.engine.commit.RETRY_PAUSE", 0.001)
    run(scenario)


def test_only_the_last_note_about_a_message_is_written():
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        for failures in (1, 2, 3):
            trouble = TroubleRow(0, failures, 0.0, None, False)
            bench.committer.next().note_trouble(bench.subscription, trouble)
        await bench.drain()
        assert bench.store.troubles(bench.subscription) == [TroubleRow(0, 3, 0.0, None, False)]

    run(scenario)


@pytest.mark.parametrize("error", [OutcomeUnknown("who knows"), StoreLost("taken over")])
def test_after_an_unknown_outcome_nothing_more_is_written(error):
    async def scenario(bench):
        bench.store.failures.append(error)
        bench.store.gate.clear()
        bench.append(0)
        bench.settle(0)
        await bench.store.until_writing()
        bench.append(1)
        bench.store.gate.set()
        await bench.drain()
        assert bench.heard == [("0", error), ("1", error)]
        assert bench.lane.heard == []
        assert bench.store.commits == 0
        with pytest.raises(type(error), match=str(error)):
            bench.append(2)

    run(scenario)


def test_with_nothing_to_write_there_is_nothing_to_wait_for():
    async def scenario(bench):
        await bench.drain()
        assert bench.store.commits == 0

    run(scenario)


def test_closing_does_not_wait_for_ever_for_a_store_that_fails(monkeypatch):
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        bench.store.failures += [StoreFull("no room")] * 100
        bench.settle(0)
        await bench.store.until_writing()

    monkeypatch.setattr("seriatim.engine.commit.RETRY_PAUSE", 0.001)
    run(scenario)


def test_closing_ends_the_writer():
    threads = threading.active_count()

    async def scenario(bench):
        assert threading.active_count() == threads + 1
        bench.append(0)
        await bench.drain()

    run(scenario)
    assert [thread.name for thread in threading.enumerate() if thread.name == "seriatim-writer"] == []
