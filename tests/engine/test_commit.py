"""Group commit: what rides together, who hears what, and what is carried on after a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import chain
from math import nan
from types import NoneType
from weakref import WeakSet

import pytest

from seriatim.engine import committer as group_commit
from seriatim.engine.committer import Committer
from seriatim.errors import InvalidArgument, NotFound, OutcomeUnknown, StoreFull, StoreLost
from seriatim.store.base import Cursor, MessageHeader, Record, StagedFile, Transaction, TroubleRow
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import WatchedStore


class Listener:
    """A topic or subscription that writes down what it hears."""

    def __init__(self, row_id: int) -> None:
        self.id = row_id
        self.heard: list[list[int]] = []
        self.refusals: list[tuple[list[int], BaseException]] = []
        self.notes_lost: list[tuple[list[int], str]] = []

    def confirmed(self, offsets: Sequence[int]) -> None:
        self.heard.append(list(offsets))

    def refused(self, offsets: Sequence[int], error: BaseException) -> None:
        self.refusals.append((list(offsets), error))

    def forgotten(self, offsets: Sequence[int], error: BaseException) -> None:
        self.notes_lost.append((list(offsets), str(error)))


class ListeningLog(Listener):
    is_followed = False
    next_offset = 10

    def reserve(self, count: int) -> int:
        self.next_offset += count
        return self.next_offset - count

    def appended(self, records: Sequence[Record]) -> None:
        self.heard.append([record.offset for record in records])

    def batch_appended(self, positions: Sequence[MessageHeader], messages: int, size: int) -> None:
        self.heard.append([position.offset for position in positions])


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
        self.log, self.lane = ListeningLog(self.topic), Listener(self.subscription)
        self._asked: list[tuple[str, asyncio.Future]] = []

    def append(self, *offsets: int) -> None:
        records = [Record(offset, "k", b"%d" % offset) for offset in offsets]
        name = "-".join(map(str, offsets))
        self.hear(name, self.committer.next().append(self.log, records, None))

    def hear(self, name: str, future: asyncio.Future) -> None:
        self._asked.append((name, future))

    @property
    def heard(self) -> list[tuple[str, BaseException | None]]:
        """What was answered, in the order in which it was asked."""
        return [(name, future.exception()) for name, future in self._asked if future.done()]

    def append_batch(self, *files: StagedFile) -> asyncio.Future:
        future = self.committer.next().append_batch(self.log, "writer", 0, files, 0.0)
        self.hear("batch", future)
        return future

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
        bench.hear("other", bench.committer.next().request(lambda work: work.create_topic("other", {})))
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
        bench.committer.next().note_trouble(bench.lane, TroubleRow(1, 1, 5.0, "first", False))
        bench.committer.next().oblige(
            lambda transaction: transaction.pause_key(bench.subscription, "k", "why"), lambda: written.append("paused")
        )
        await bench.store.until_writing()
        bench.settle(2)
        bench.committer.next().note_trouble(bench.lane, TroubleRow(1, 2, 9.0, "second", False))
        bench.store.gate.set()
        await bench.drain()
        assert bench.lane.heard == [[0, 2]]
        assert written == ["paused"]
        assert bench.settled(0, 1, 2) == [0, 2]
        assert bench.store.troubles(bench.subscription) == [TroubleRow(1, 2, 9.0, "second", False)]
        assert [row.key for row in bench.store.paused_keys(bench.subscription)] == ["k"]
        assert [str(failure) for failure in bench.failures] == ["no room", "still no room"]

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


@pytest.mark.parametrize("kind", ["settled", "noted", "changed"])
def test_whatever_kind_was_accepted_alone_is_written_by_a_later_commit_when_one_fails(monkeypatch, kind):
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        bench.store.failures.append(StoreFull("no room"))
        if kind == "settled":
            bench.settle(0)
        elif kind == "noted":
            bench.committer.next().note_trouble(bench.lane, TroubleRow(0, 1, 5.0, "why", False))
        else:
            bench.committer.next().oblige(lambda work: work.pause_key(bench.subscription, "k", None), lambda: None)
        await bench.drain()
        written = {
            "settled": bench.settled(0),
            "noted": [row.offset for row in bench.store.troubles(bench.subscription)],
            "changed": [row.key for row in bench.store.paused_keys(bench.subscription)],
        }
        assert {name for name, rows in written.items() if rows} == {kind}

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


def test_a_copy_that_a_failed_commit_left_is_written_at_its_place_before_what_came_since(monkeypatch):
    async def scenario(bench):
        bench.store.failures.append(StoreFull("no room"))
        bench.store.watch()
        bench.store.gate.clear()
        copies = {bench.log: [Record(0, "k", b"dead letter")]}
        bench.committer.next().oblige(lambda _: None, lambda: None, copies=copies)
        await bench.store.until_writing()
        bench.append(1)
        bench.store.gate.set()
        await bench.drain()
        assert bench.offsets() == [0, 1]
        assert bench.log.heard == [[0, 1]]

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


def test_copies_that_a_failed_commit_left_between_messages_are_written_at_their_places(monkeypatch):
    async def scenario(bench):
        bench.store.failures.append(StoreFull("no room"))
        bench.store.watch()
        bench.store.gate.clear()
        for offset in (0, 2):
            copies = {bench.log: [Record(offset, "k", b"dead letter")]}
            bench.committer.next().oblige(lambda _: None, lambda: None, copies=copies)
        await bench.store.until_writing()
        bench.append(1)
        bench.append(3)
        bench.store.gate.set()
        await bench.drain()
        assert bench.offsets() == [0, 1, 2, 3]

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


def raise_(error: BaseException):
    def change(_: Transaction) -> None:
        raise error

    return change


REFUSALS = [
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    TypeError("not a number"),
    OverflowError("too large"),
    InvalidArgument("can never work"),
]


@pytest.mark.parametrize("error", REFUSALS)
def test_an_obligation_that_is_refused_fails_alone_and_once(error):
    async def scenario(bench):
        bench.append(0, 1, 2)
        await bench.drain()
        heard: list[object] = []
        for number in range(5):
            bench.committer.next().oblige(
                lambda work, number=number: work.pause_key(bench.subscription, f"k{number}", None),
                lambda number=number: heard.append(number),
            )
        bench.committer.next().oblige(raise_(error), lambda: heard.append("written"), heard.append)
        bench.committer.next().note_trouble(bench.lane, TroubleRow(1, 1, 5.0, "why", False))
        bench.settle(0)
        bench.append(3)
        other = bench.committer.next().request(lambda work: work.create_topic("other", {}))
        await bench.drain()
        heard.append(other.exception())
        assert sorted(map(str, heard)) == sorted(map(str, [*range(5), error, None]))
        assert bench.offsets() == [0, 1, 2, 3]
        assert bench.heard[-1] == ("3", None)
        assert bench.settled(0, 1, 2) == [0]
        assert bench.lane.heard == [[0]]
        assert len(bench.store.troubles(bench.subscription)) == 1
        assert len(bench.store.paused_keys(bench.subscription)) == 5
        assert [topic.name for topic in bench.store.catalog().topics] == ["t", "other"]
        assert bench.failures == []  # the store is well
        bench.store.watch()
        bench.append(4)
        await bench.drain()
        assert bench.store.commits == 1  # nothing is left of what was refused

    run(scenario)


def test_everything_that_is_refused_fails_alone_whatever_it_is():
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        bench.committer.next().note_trouble(bench.lane, TroubleRow(0, 1, nan, None, False))
        bench.settle(-1)
        bench.append(1)
        bad = Record(2, "\ud800", b"")
        bench.hear("bad", bench.committer.next().append(bench.log, [bad], None))
        bench.append(3)
        bench.hear("request", bench.committer.next().request(raise_(TypeError("no"))))
        guarded = {bench.log: [Record(4, None, b"")]}
        bench.hear("guarded", bench.committer.next().request(raise_(TypeError("no")), guarded))
        await bench.drain()
        outcomes = {name: type(error) for name, error in bench.heard}
        assert outcomes == {
            "0": NoneType,
            "1": NoneType,
            "bad": InvalidArgument,
            "3": NoneType,
            "request": TypeError,
            "guarded": TypeError,
        }
        assert bench.offsets() == [0, 1, 3]
        assert list(chain.from_iterable(bench.log.heard)) == [0, 1, 3]
        assert [offsets for offsets, _ in bench.lane.refusals] == [[-1]]
        assert bench.store.troubles(bench.subscription) == []
        assert bench.lane.notes_lost == [([0], "not_before must be a finite number, not nan")]

    run(scenario)


def test_a_batch_is_written_and_answered_once_when_something_beside_it_is_refused(stage):
    async def scenario(bench):
        bench.committer.next().oblige(raise_(TypeError("no")), lambda: None, lambda _: None)
        bench.append(0)
        batch = bench.append_batch(stage("a", "1", "2"), stage("b", "3"))
        await bench.drain()
        assert bench.heard == [("0", None), ("batch", None)]
        assert batch.result() == ["10", "11", "12"]
        assert bench.offsets() == [0, 10, 11, 12]

    run(scenario)


def test_the_positions_of_a_batch_are_kept_only_for_those_who_follow_its_log(stage):
    async def scenario(bench):
        bench.append_batch(stage("a", "1", "2"))
        await bench.drain()
        bench.log.is_followed = True
        bench.committer.next().append_batch(bench.log, "other", 0, [stage("b", "3")], 0.0)
        await bench.drain()
        assert bench.log.heard == [[], [12]]

    run(scenario)


def test_a_batch_whose_topic_is_deleted_in_the_same_commit_is_refused(stage):
    async def scenario(bench):
        bench.append_batch(stage("a", "1"))
        bench.committer.next().request(lambda work: work.delete_topic(bench.topic))
        await bench.drain()
        ((answer, error),) = bench.heard
        assert (answer, type(error)) == ("batch", NotFound)
        assert bench.log.heard == []

    run(scenario)


def test_an_obligation_that_nobody_asks_about_is_logged_when_it_is_refused(caplog):
    async def scenario(bench):
        bench.committer.next().oblige(raise_(TypeError("no")), lambda: None)
        await bench.drain()
        assert caplog.messages == ["something that was accepted can't be stored, and is given up: no"]

    run(scenario)


def test_a_copy_and_what_belongs_to_it_are_written_together_or_not_at_all():
    async def scenario(bench):
        refused: list[BaseException] = []
        bench.committer.next().oblige(
            raise_(TypeError("no")), lambda: None, refused.append, {bench.log: [Record(0, "k", b"copy")]}
        )
        bench.append(1)
        await bench.drain()
        assert bench.offsets() == [1]
        assert len(refused) == 1

    run(scenario)


def test_what_follows_a_failure_of_the_store_while_a_commit_is_taken_apart_fails_with_it(monkeypatch):
    async def scenario(bench):
        full, written = StoreFull("no room"), list[str]()
        failing = [full]

        def copy(_: Transaction) -> None:
            if failing and bench.store.entered._value > 2:  # not while everything is still together
                raise failing.pop()

        bench.store.watch()
        bench.committer.next().oblige(raise_(TypeError("no")), lambda: None, lambda _: None)
        copies = {bench.log: [Record(0, "k", b"copy")]}
        bench.committer.next().oblige(copy, lambda: written.append("copied"), copies=copies)
        bench.append(1)
        bench.settle(0)
        await bench.drain()
        assert bench.heard == [("1", full)]
        assert bench.failures == [full]
        assert (bench.offsets(), written) == ([0], ["copied"])  # tried again, at its place
        assert bench.lane.heard == [[0]]

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


def test_the_messages_of_a_request_are_written_among_the_others_or_with_a_refusal_not_at_all():
    async def scenario(bench):
        def refuse(_: Transaction) -> None:
            raise NotFound("nothing to go with")

        bench.append(0)
        bench.hear("done", bench.committer.next().request(lambda _: None, {bench.log: [Record(1, "k", b"1")]}))
        bench.hear("refused", bench.committer.next().request(refuse, {bench.log: [Record(2, "k", b"2")]}))
        bench.append(3)
        await bench.drain()
        assert [(name, type(error)) for name, error in bench.heard] == [
            ("0", NoneType),
            ("done", NoneType),
            ("refused", NotFound),
            ("3", NoneType),
        ]
        assert (bench.offsets(), bench.log.heard) == ([0, 1, 3], [[0, 1, 3]])

    run(scenario)


def test_only_the_last_note_about_a_message_is_written():
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        for failures in (1, 2, 3):
            trouble = TroubleRow(0, failures, 0.0, None, False)
            bench.committer.next().note_trouble(bench.lane, trouble)
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


def test_who_hears_of_an_unknown_outcome_can_not_ask_for_more():
    async def scenario(bench):
        unknown, refusals = OutcomeUnknown("who knows"), list[BaseException]()

        def ask_again() -> None:
            try:
                bench.append(1)
            except OutcomeUnknown as error:
                refusals.append(error)

        bench.store.failures.append(unknown)
        bench.committer.next().request(lambda _: None, is_over=ask_again).add_done_callback(asyncio.Future.exception)
        await bench.drain()
        assert refusals == [unknown]
        assert bench.heard == []

    run(scenario)


def test_what_was_accepted_is_tried_again_after_a_pause_and_not_at_once():
    async def whole() -> None:
        loop, bench = asyncio.get_running_loop(), Bench()
        bench.append(0)
        await bench.drain()
        bench.store.failures += [StoreFull("no room"), StoreFull("still no room")]
        began = loop.time()
        bench.settle(0)
        await bench.drain()
        assert bench.lane.heard == [[0]]
        assert loop.time() - began == pytest.approx(2 * group_commit.RETRY_PAUSE_S)
        await bench.committer.close()

    run_in_virtual_time(whole())


def test_what_comes_during_the_pause_rides_with_what_is_tried_again():
    async def whole() -> None:
        loop, bench = asyncio.get_running_loop(), Bench()
        bench.store.failures.append(StoreFull("no room"))
        began = loop.time()
        bench.settle(0)
        await asyncio.sleep(group_commit.RETRY_PAUSE_S / 2)
        bench.store.watch()
        bench.append(0)
        await bench.drain()
        assert (bench.heard, bench.lane.heard) == ([("0", None)], [[0]])
        assert bench.store.commits == 1
        assert loop.time() - began == pytest.approx(group_commit.RETRY_PAUSE_S)
        await bench.committer.close()

    run_in_virtual_time(whole())


def test_an_outage_counts_from_the_first_commit_that_fails_or_from_the_suspension_to_the_next_success():
    async def whole() -> None:
        loop, bench, seen = asyncio.get_running_loop(), Bench(), list[float | None]()

        async def look_after(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(bench.committer.failing_since)

        await look_after(1.0)
        bench.store.failures += [StoreFull("no room"), StoreFull("still no room")]
        bench.settle(0)
        for _ in range(3):
            await look_after(group_commit.RETRY_PAUSE_S * 0.75)
        assert seen == [None, 1.0, 1.0, None]
        for _ in range(2):
            began = loop.time()
            bench.committer.suspend(OutcomeUnknown("it is opened again"))
            await look_after(1.0)
        assert seen[4:] == [began - 1.0, began - 1.0]
        bench.committer.resume()
        await look_after(0.0)
        assert seen[6:] == [None]
        await bench.committer.close()

    run_in_virtual_time(whole())


# -- while the store is opened again ------------------------------------------------------------------------------------


def test_what_waits_when_the_store_has_to_be_opened_again_fails_and_what_comes_waits():
    async def scenario(bench):
        lost = OutcomeUnknown("it is opened again")
        bench.append(0)
        waiting = bench.committer.next()
        was_open = waiting.is_open
        bench.committer.suspend(lost)
        assert bench.heard == [("0", lost)]
        assert (was_open, waiting.is_open) == (True, False)  # whoever still has it adds nothing to it
        bench.append(1)
        await asyncio.sleep(0)
        assert (bench.heard, bench.store.commits) == ([("0", lost)], 0)
        bench.committer.resume()
        await bench.drain()
        assert bench.heard == [("0", lost), ("1", None)]
        assert bench.offsets() == [1]

    run(scenario)


def test_what_came_during_the_last_commit_of_the_old_store_fails_too_and_the_writer_goes_on_afterwards():
    async def scenario(bench):
        lost, unknown = OutcomeUnknown("it is opened again"), OutcomeUnknown("who knows")
        bench.store.failures.append(unknown)
        bench.store.gate.clear()
        bench.append(0)
        await bench.store.until_writing()
        bench.committer.suspend(lost)
        assert bench.committer.is_writing
        bench.append(1)
        resting = asyncio.ensure_future(bench.committer.come_to_rest(lost))
        await asyncio.sleep(0)
        assert not resting.done()
        bench.store.gate.set()
        await resting
        assert not bench.committer.is_writing
        assert bench.heard == [("0", unknown), ("1", lost)]
        bench.committer.resume()
        assert not bench.committer.is_broken
        bench.append(2)
        await bench.drain()
        assert bench.offsets() == [2]

    run(scenario)


def test_in_a_forked_child_nothing_is_accepted(monkeypatch):
    async def scenario(bench):
        monkeypatch.setattr(group_commit, "_open", WeakSet([bench.committer]))
        group_commit._lose_all_in_child()  # as after a fork, which a test in this process can't look into
        assert bench.committer.is_forked
        with pytest.raises(StoreLost, match=r"^the engine was opened before a fork: open another one in this process$"):
            bench.append(0)

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
        bench.store.failures += [StoreFull("no room")] * 10_000
        bench.settle(0)
        await bench.store.until_writing()
        await bench.committer.close()
        assert len(bench.store.failures) > 9_990
        with pytest.raises(StoreLost, match=r"^the engine was closed: open another one$"):
            bench.append(1)

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


def test_what_waits_when_closing_is_cancelled_hears_that_it_will_not_be_written():
    async def scenario(bench):
        bench.store.gate.clear()
        bench.append(0)
        await bench.store.until_writing()
        bench.append(1)
        closing = asyncio.ensure_future(bench.committer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        ((name, error),) = bench.heard
        assert (name, type(error)) == ("1", StoreLost)
        bench.store.gate.set()
        await asyncio.wait([closing])
        await asyncio.sleep(0)
        assert bench.heard == [("0", None), ("1", error)]
        assert bench.offsets() == [0]

    run(scenario)


def test_when_the_writer_gives_up_nobody_waits_for_it_any_longer_than_for_the_commit_under_way():
    async def scenario(bench):
        lost = StoreLost("taken over")
        bench.append(0)
        bench.committer.fail(lost)
        await bench.drain()
        assert bench.heard == [("0", lost)]

    async def while_writing(bench):
        lost = StoreLost("taken over")
        bench.store.gate.clear()
        bench.append(0)
        await bench.store.until_writing()
        bench.committer.fail(lost)
        draining = asyncio.ensure_future(bench.committer.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        bench.store.gate.set()
        await draining
        assert bench.heard == [("0", None)]

    run(scenario)
    run(while_writing)


def test_when_the_writer_gives_up_what_was_accepted_and_fails_just_then_is_not_tried_again():
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        bench.store.failures += [StoreFull("no room")]
        bench.store.gate.clear()
        bench.settle(0)
        await bench.store.until_writing()
        bench.committer.fail(StoreLost("closed in an outage"))
        resting = asyncio.ensure_future(bench.committer.come_to_rest(StoreLost("closed in an outage")))
        await asyncio.sleep(0)
        bench.store.gate.set()
        await resting
        async with asyncio.timeout(5):
            await bench.committer.close()
        assert bench.settled(0) == []

    run(scenario)


def test_commits_and_failures_are_counted_and_timed(monkeypatch):
    async def scenario(bench):
        bench.append(0)
        await bench.drain()
        times = bench.committer.times
        assert (times.count, times.failed) == (1, 0)
        assert 0 < times.seconds < 60
        bench.store.failures += [StoreFull("no room")] * 3
        bench.settle(0)
        await bench.drain()
        assert (times.count, times.failed) == (2, 3)

    monkeypatch.setattr("seriatim.engine.committer.RETRY_PAUSE_S", 0.001)
    run(scenario)


def test_closing_ends_the_writer():
    threads = set(threading.enumerate())

    async def scenario(bench):
        (writer,) = set(threading.enumerate()) - threads
        assert writer.name == "seriatim-writer"
        assert writer.daemon  # a program that ends without closing anything is not held up
        bench.append(0)
        await bench.drain()

    run(scenario)
    assert set(threading.enumerate()) <= threads
