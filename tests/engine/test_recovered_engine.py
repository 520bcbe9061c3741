"""A store that fails is opened again: nothing acknowledged is lost, nothing settled comes again, and nobody is told a lie.

The faults are SQLite's own: a COMMIT reports an I/O error, either without or after having done its work.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from seriatim.client.pubsub import PubSub
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import (
    DamagedStore,
    NotFound,
    OutcomeUnknown,
    PublishingPaused,
    StaleLease,
    StoreBroken,
    StoreFailed,
    StoreLost,
)
from seriatim.store import open_store
from seriatim.store.sqlite.store import SqliteStore
from tests.engine.conftest import Collector, work_off

REAL_CONNECT = sqlite3.connect
ORDERED = SubscriptionOptions(message_ordering=True)
OUTCOMES = pytest.mark.parametrize("happens", [False, True], ids=["did not happen", "happened"])


class Disk:
    """Lets commits, and openings, of a store fail."""

    def __init__(self) -> None:
        self.commits: list[bool] = []  # for each commit that will fail: whether it happens all the same
        self.failing_openings = 0
        self.openings = 0

    def connect(self, address, *args, **options):
        if not str(address).endswith("mode=rwc"):
            return REAL_CONNECT(address, *args, **options)
        self.openings += 1
        if self.failing_openings:
            self.failing_openings -= 1
            raise io_error()
        connection = REAL_CONNECT(address, *args, **options, factory=FaultyConnection)
        connection.disk = self
        return connection


class FaultyConnection(sqlite3.Connection):
    disk: Disk

    def execute(self, statement, *values):
        if statement == "COMMIT" and self.disk.commits:
            if self.disk.commits.pop(0):
                super().execute(statement)
            raise io_error()
        return super().execute(statement, *values)


def io_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


@pytest.fixture
def disk(monkeypatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(sqlite3, "connect", disk.connect)
    monkeypatch.setattr("seriatim.engine.store_reopening.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("seriatim.engine.store_reopening.MAX_PAUSE_S", 0.01)
    monkeypatch.setattr("seriatim.engine.upkeep.PAUSE_S", 3600)
    return disk


@pytest.fixture
def run(tmp_path: Path):
    """Run a scenario with an engine that can open its store again, and look whether the store is whole afterwards."""
    path = tmp_path / "store.db"

    def run(scenario, opener=None) -> None:
        asyncio.run(with_engine(path, scenario, opener))
        with closing(open_store(f"sqlite:///{path}", read_only=True)) as store:
            assert list(store.check()) == []

    return run


async def with_engine(path: Path, scenario, opener=None) -> None:
    engine = Engine(SqliteStore(path), opener or partial(SqliteStore, path))
    await engine.start()
    await engine.create_topic("t", TopicOptions(retain_settled=None))
    await engine.create_subscription("t", "s", ORDERED)
    try:
        async with asyncio.timeout(20):
            await scenario(engine)
    finally:
        await engine.close()


def publish(engine, *data: str, key: str | None = "k"):
    return engine.publish("t", [Outgoing(key, one.encode()) for one in data])


async def until_open_again(engine) -> None:
    await asyncio.sleep(0)
    await engine.recovery.require_store()


def test_a_store_with_a_relative_path_is_opened_again_where_it_was(tmp_path, disk, monkeypatch):
    async def scenario() -> None:
        engine = await Engine.open("sqlite:///store.db")
        monkeypatch.chdir(tmp_path / "there")
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await engine.create_topic("t")
        await engine.create_topic("u")
        await engine.close()

    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asyncio.run(scenario())
    assert list((tmp_path / "there").iterdir()) == []
    with closing(open_store(f"sqlite:///{tmp_path}/here/store.db", read_only=True)) as store:
        assert [topic.name for topic in store.catalog().topics] == ["u"]


# -- what callers hear ----------------------------------------------------------------------------------------------------


@OUTCOMES
def test_a_publish_of_unknown_outcome_says_so_and_the_consumers_see_what_is_true(run, disk, happens):
    async def scenario(engine):
        got = Collector(max_messages=1)
        attachment = engine.attach("s", got.consumer)
        disk.commits = [happens]
        with pytest.raises(OutcomeUnknown, match=r"it is unknown whether .* look before you write the same again"):
            await publish(engine, "unknown")
        (offset,) = await publish(engine, "after")
        assert offset == "1", "an offset that may have been used is not given again"
        expected = [b"unknown", b"after"] if happens else [b"after"]
        for number in range(len(expected)):
            attachment.ack((await got.wait(number + 1))[-1].lease)
        await engine.drain()
        assert got.data == expected
        assert [type(error) for error in got.failures] == [OutcomeUnknown]
        assert disk.openings == 2

    run(scenario)


@OUTCOMES
def test_an_ack_of_unknown_outcome_is_reported_and_the_store_is_the_truth(run, disk, happens):
    async def scenario(engine):
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "first", "second")
        first = (await got.wait(1))[0]
        disk.commits = [happens]
        told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        attachment.ack(first.lease, told.set_result)
        assert type(await told) is OutcomeUnknown
        again = (await got.wait(2))[1]
        assert again.record.data == (b"second" if happens else b"first")
        assert again.lease.token > first.lease.token

    run(scenario)


def test_leases_are_fenced_and_their_consumers_are_told(run, disk):
    async def scenario(engine):
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "mine")
        lease = (await got.wait(1))[0].lease
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "other", key="x")
        again = (await got.wait(2))[1]
        assert (got.fenced, again.record.data, again.lease.attempt) == ([0], b"mine", 1)
        with pytest.raises(StaleLease):
            attachment.ack(lease)
        attachment.ack(again.lease)
        await engine.drain()
        assert engine._store.cursor(engine.get_subscription("s").id).has(0)

    run(scenario)


@pytest.mark.parametrize("exchanges", [False, True], ids=["as it is", "while its lanes are exchanged"])
def test_a_subscription_with_messages_is_not_called_empty_while_the_store_is_opened_again(run, disk, exchanges):
    async def scenario(engine):
        await publish(engine, "waits")
        waiting = asyncio.ensure_future(engine.wait_until_empty("s"))
        disk.commits, disk.failing_openings = [False], 3
        with pytest.raises(OutcomeUnknown):
            await (
                engine.update_subscription("s", replace(ORDERED, window=2)) if exchanges else publish(engine, "lost")
            )
        asked_meanwhile = asyncio.ensure_future(engine.wait_until_empty("s"))
        await until_open_again(engine)
        await engine.drain()
        assert not waiting.done()
        assert not asked_meanwhile.done()
        assert await work_off(engine, 1) == [b"waits"]
        await asyncio.gather(waiting, asked_meanwhile)

    run(scenario)


def test_what_waited_for_the_failed_commit_fails_with_it_and_what_comes_later_waits(run, disk):
    async def scenario(engine):
        disk.commits = [True]
        disk.failing_openings = 3
        first = publish(engine, "first")
        await asyncio.sleep(0)  # the commit is under way
        second = publish(engine, "second")
        assert [type(error) for error in await asyncio.gather(first, second, return_exceptions=True)] == [
            OutcomeUnknown
        ] * 2
        third, topics = publish(engine, "third"), asyncio.create_task(engine.list_topics())
        await engine.create_topic("another")
        assert await third == ["2"]
        assert [topic.next_offset for topic in await topics] == [3]
        assert await work_off(engine, 2) == [b"first", b"third"]
        assert disk.openings == 5

    run(scenario)


@OUTCOMES
def test_topics_and_subscriptions_of_unknown_outcome_are_there_or_not_as_the_store_says(run, disk, happens):
    async def scenario(engine):
        for change in (
            lambda: engine.create_topic("new"),
            lambda: engine.create_subscription("t", "new"),
            lambda: engine.update_subscription("s", SubscriptionOptions(message_ordering=True, ack_deadline=77)),
            lambda: engine.update_topic("t", TopicOptions(retention=5)),
        ):
            disk.commits = [happens]
            with pytest.raises(OutcomeUnknown):
                await change()
            await until_open_again(engine)
        assert [topic.name for topic in await engine.list_topics()] == sorted(["t", "new"][: 1 + happens])
        assert [each.name for each in await engine.list_subscriptions()] == sorted(["s", "new"][: 1 + happens])
        assert (await engine.describe_subscription("s")).options.ack_deadline == (77 if happens else 10)
        assert engine.get_topic("t").options.retention == (5 if happens else TopicOptions().retention)
        disk.commits = [happens]
        with pytest.raises(OutcomeUnknown):
            await engine.delete_topic("t")
        await until_open_again(engine)
        assert ("t" in [topic.name for topic in await engine.list_topics()]) is not happens
        if happens:
            with pytest.raises(NotFound):
                engine.get_subscription("s")

    run(scenario)


@OUTCOMES
def test_a_seek_of_unknown_outcome_leaves_the_subscription_where_the_store_has_it(run, disk, happens, monkeypatch):
    async def scenario(engine):
        await publish(engine, "a", "b", "c")
        await work_off(engine, 3)
        move = engine.move

        def fail_and_move(*args):
            disk.commits = [happens]
            return move(*args)

        monkeypatch.setattr(engine, "move", fail_and_move)
        with pytest.raises(OutcomeUnknown):
            await engine.seek_to_message("s", "1")
        await until_open_again(engine)
        assert await work_off(engine, 2 if happens else 0) == ([b"b", b"c"] if happens else [])

    run(scenario)


def test_a_seek_that_is_asked_for_while_the_store_is_opened_again_is_done_afterwards(run, disk):
    async def scenario(engine):
        got = Collector()
        engine.attach("s", got.consumer)
        await publish(engine, "a", "b")
        await got.wait(1)
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "lost", key="other")
        await engine.seek_to_message("s", "1")
        assert (await got.wait(2))[1].record.data == b"b"
        assert len(engine.get_subscription("s").lanes) == 1

    run(scenario)


def test_a_key_that_is_paused_while_the_store_is_opened_again_is_paused_here_and_in_the_store(run, disk):
    async def scenario(engine):
        await publish(engine, "a")
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "lost", key="other")
        await engine.pause_key("s", "k", "while it is opened")
        (view,) = await engine.list_keys("s")
        assert (view.key, view.state, view.head) == ("k", "paused", "0")
        assert [row.key for row in engine._store.paused_keys(engine.get_subscription("s").id)] == ["k"]
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "lost", key="other")
        assert await engine.skip("s", "k") == "0", "what waits is known again by then"

    run(scenario)


@pytest.mark.parametrize("happens", [True, False])
def test_a_seek_while_the_store_is_opened_again_keeps_the_options_that_the_store_has(run, disk, happens):
    async def scenario(engine):
        before = engine.get_subscription("s").options.ack_deadline
        disk.commits = [happens]
        changing = asyncio.ensure_future(
            engine.update_subscription("s", SubscriptionOptions(ack_deadline=1.0), ["ack_deadline"])
        )
        seeking = asyncio.ensure_future(engine.seek_to_message("s", "0"))
        with pytest.raises(OutcomeUnknown):
            await changing
        await seeking
        assert engine.get_subscription("s").options.ack_deadline == (1.0 if happens else before)

    run(scenario)


@pytest.mark.parametrize("happens", [True, False])
def test_a_change_of_options_while_the_store_is_opened_again_keeps_the_others_that_the_store_has(run, disk, happens):
    """Else the lanes that were loaded with those and the options that are in force would be two different things."""

    async def scenario(engine):
        before = engine.get_subscription("s").options.ack_deadline
        disk.commits = [happens]
        changing = asyncio.ensure_future(
            engine.update_subscription("s", SubscriptionOptions(ack_deadline=1.0), ["ack_deadline"])
        )
        pausing = asyncio.ensure_future(engine.update_subscription("s", SubscriptionOptions(paused=True), ["paused"]))
        with pytest.raises(OutcomeUnknown):
            await changing
        await pausing
        options = engine.get_subscription("s").options
        assert (options.ack_deadline, options.paused) == (1.0 if happens else before, True)

    run(scenario)


def test_clean_up_that_fails_with_unknown_outcome_also_opens_the_store_again(run, disk):
    async def scenario(engine):
        await publish(engine, "a")
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await got.wait(1)
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await engine.clean_up()
        engine.recovery.failed(OutcomeUnknown("as the upkeep task does"))
        await until_open_again(engine)
        again = (await got.wait(2))[1]
        attachment.ack(again.lease)
        await publish(engine, "b")
        assert (await got.wait(3))[2].record.data == b"b"

    run(scenario)


def test_a_cursor_above_a_publish_that_failed_does_not_swallow_what_comes_after_a_restart(tmp_path, disk):
    async def before() -> None:
        engine = await Engine.open(f"sqlite:///{tmp_path}/store.db")
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", ORDERED)
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "lost")
        await engine.create_subscription("t", "late", ORDERED)
        await engine.seek_to_time("s", engine.now() + 60)
        await engine.close()

    async def after() -> None:
        engine = await Engine.open(f"sqlite:///{tmp_path}/store.db")
        await publish(engine, "new")
        assert await work_off(engine, 1) == await work_off(engine, 1, "late") == [b"new"]
        await engine.close()

    asyncio.run(before())
    asyncio.run(after())


def test_a_key_whose_publish_is_of_unknown_outcome_stays_paused_until_it_is_resumed(tmp_path, disk):
    async def scenario() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/store.db") as pubsub:
            topic = pubsub.topic("t")
            await topic.create()
            sub = topic.subscription("s")
            await sub.create(enable_message_ordering=True)
            errors: list[BaseException] = []
            sub.on("error", errors.append)
            got: list[bytes] = []

            async def handle(message) -> None:
                got.append(message.data)
                await message.ack_durable()
                if len(got) == 2:
                    both.set()

            both = asyncio.Event()
            sub.on("message", handle)
            sub.open()
            disk.commits = [False]
            with pytest.raises(OutcomeUnknown):
                await topic.publish(b"unknown", ordering_key="k")
            with pytest.raises(PublishingPaused):
                await topic.publish(b"next", ordering_key="k")
            await topic.publish(b"other", ordering_key="x")
            topic.resume_publishing("k")
            await topic.publish(b"again", ordering_key="k")
            await both.wait()
            assert sorted(got) == [b"again", b"other"]
            assert [type(error) for error in errors] == [OutcomeUnknown]

    asyncio.run(scenario())


def test_a_failure_is_logged_and_that_the_store_was_opened_again(run, disk, caplog):
    async def scenario(engine):
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown) as unknown:
            await publish(engine, "unknown")
        assert "seriatim-reopening" in {task.get_name() for task in asyncio.all_tasks()}
        await until_open_again(engine)
        assert caplog.messages == [f"the store failed: {unknown.value}", "the store was opened again"]

    run(scenario)


def test_a_store_that_fails_twice_is_opened_again_once_and_meanwhile_nothing_is_held(run, disk):
    async def scenario(engine):
        got, broken = Collector(), StoreBroken("it is of no use any more")
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "first")
        (first,) = await got.wait(1)
        waiting = publish(engine, "waits")
        for _ in range(2):
            engine.recovery.failed(broken)
        with pytest.raises(StaleLease):
            attachment.ack(first.lease)
        with pytest.raises(StoreBroken, match="of no use"):
            await waiting
        attachment.ack((await got.wait(2))[1].lease)
        attachment.detach()
        await publish(engine, "a")
        assert disk.openings == 2
        assert await work_off(engine, 1) == [b"a"]

    run(scenario)


def test_what_comes_while_the_last_commit_of_a_store_is_written_fails_with_the_store(run, disk):
    async def scenario(engine):
        broken, got = StoreBroken("it is of no use any more"), Collector(max_messages=1)
        heard: list[BaseException | None] = []
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "first", key="first")
        (first,) = await got.wait(1)
        written = publish(engine, "written")
        await asyncio.sleep(0)
        assert engine.recovery.committer.is_writing
        engine.recovery.failed(broken)
        attachment.ack(first.lease, heard.append)
        attachment.detach()
        late = engine.recovery.committer.next().request(lambda work: work.create_topic("late", {}))
        assert len(await written) == 1
        with pytest.raises(StoreBroken) as told:
            await late
        assert told.value is broken
        assert heard == [broken]
        await until_open_again(engine)
        assert await work_off(engine, 2) == [b"first", b"written"]

    run(scenario)


def test_an_engine_without_a_way_to_open_its_store_again_goes_down_when_its_last_commit_is_written(tmp_path):
    async def scenario() -> None:
        engine, lost = Engine(SqliteStore(tmp_path / "store.db")), StoreLost("taken")
        got, heard = Collector(), list[BaseException | None]()
        await engine.start()
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", ORDERED)
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "first")
        (first,) = await got.wait(1)
        attachment.ack(first.lease, heard.append)
        await asyncio.sleep(0)
        assert engine.recovery.committer.is_writing
        engine.recovery.failed(lost)
        await engine.recovery.committer.drain()
        await asyncio.sleep(0)
        assert heard == [None]
        with pytest.raises(StoreLost, match="taken"):
            attachment.ack(first.lease)
        await engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", ["retire_topic", "delete_topic", "delete_subscription"])
def test_what_was_deleted_although_nobody_knew_is_gone_when_the_store_is_opened_again(run, disk, verb):
    async def scenario(engine):
        disk.commits = [True]
        with pytest.raises(OutcomeUnknown):
            await getattr(engine, verb)("s" if verb == "delete_subscription" else "t")
        await until_open_again(engine)
        topics = [info.name for info in await engine.list_topics()]
        subscriptions = [info.name for info in await engine.list_subscriptions()]
        assert ("t" in topics, subscriptions) == (
            verb == "delete_subscription",
            ["s"] if verb == "retire_topic" else [],
        )

    run(scenario)


# -- when it can't be opened again ----------------------------------------------------------------------------------------


def test_while_opening_fails_it_is_tried_again(run, disk):
    async def scenario(engine):
        disk.commits, disk.failing_openings = [False], 4
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "unknown")
        await publish(engine, "a")
        assert disk.openings == 6
        assert await work_off(engine, 1) == [b"a"]

    run(scenario)


def assert_down(engine, got: Collector, message: str) -> None:
    with pytest.raises(StoreLost, match=message):
        publish(engine, "more")
    with pytest.raises(StoreLost, match=message):
        engine.commit()
    assert any(isinstance(error, StoreLost) for error in got.failures)


def test_when_another_owner_holds_the_store_meanwhile_it_is_lost(run, disk, tmp_path):
    others: list[SqliteStore] = []

    def opener() -> SqliteStore:
        with_other = SqliteStore(tmp_path / "store.db")
        others.append(with_other)
        return SqliteStore(tmp_path / "store.db")

    async def scenario(engine):
        got = Collector()
        engine.attach("s", got.consumer)
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "unknown")
        with pytest.raises(StoreLost, match="another process took the store over: the store is owned by process"):
            await engine.list_topics()
        assert_down(engine, got, "another process took the store over")
        others.pop().close()
        assert_down(engine, got, "another process took the store over")

    run(scenario, opener)


def test_an_owner_that_came_and_went_is_noticed(run, disk, tmp_path):
    def opener() -> SqliteStore:
        SqliteStore(tmp_path / "store.db").close()
        return SqliteStore(tmp_path / "store.db")

    async def scenario(engine):
        got = Collector()
        engine.attach("s", got.consumer)
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "unknown")
        with pytest.raises(
            StoreLost, match=r"another process has owned the store since it failed \(its epoch is 3, not 2\)"
        ):
            await engine.create_topic("another")
        assert_down(engine, got, "another process has owned the store")

    run(scenario, opener)


def test_a_store_that_was_taken_over_is_not_opened_again(run, disk, tmp_path):
    async def scenario(engine):
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await publish(engine, "a", "b")
        lease = (await got.wait(1))[0].lease
        with closing(REAL_CONNECT(tmp_path / "store.db")) as other, other:
            other.execute("UPDATE store SET epoch = epoch + 1")
        with pytest.raises(StoreLost, match="another process has taken it over"):
            await publish(engine, "c")
        await asyncio.sleep(0)
        assert_down(engine, got, "another process has taken it over")
        assert got.fenced == [0]
        with pytest.raises(StoreLost, match="another process has taken it over"):
            attachment.ack(lease)
        assert disk.openings == 1

    run(scenario)


def test_a_store_that_turns_out_to_be_damaged_is_not_tried_for_ever(run, disk, tmp_path):
    def opener() -> SqliteStore:
        raise DamagedStore("the file of the store is damaged: restore a backup")

    async def scenario(engine):
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "unknown")
        with pytest.raises(DamagedStore, match="restore a backup"):
            await engine.list_topics()

    run(scenario, opener)


def test_without_a_way_to_open_it_again_the_engine_stays_down(run, disk, tmp_path, caplog):
    async def scenario():
        engine = Engine(SqliteStore(tmp_path / "store.db"))
        await engine.start()
        await engine.create_topic("t")
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown) as unknown:
            await publish(engine, "unknown")
        with pytest.raises(OutcomeUnknown):
            publish(engine, "more")
        assert caplog.messages == [f"the store failed: {unknown.value}", f"the engine is down: {unknown.value}"]
        await engine.close()

    asyncio.run(scenario())


def test_an_engine_can_be_closed_while_its_store_can_not_be_opened(run, disk, tmp_path):
    async def scenario(engine):
        disk.commits, disk.failing_openings = [False], 10**9
        with pytest.raises(OutcomeUnknown):
            await publish(engine, "unknown")
        waiting = publish(engine, "waits")
        await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(StoreLost, match="closed before its store could be opened again"):
            await waiting
        disk.failing_openings = 0
        SqliteStore(tmp_path / "store.db").close()

    async def whole() -> None:
        engine = Engine(SqliteStore(tmp_path / "store.db"), partial(SqliteStore, tmp_path / "store.db"))
        await engine.start()
        await engine.create_topic("t")
        await scenario(engine)

    asyncio.run(whole())


def test_a_seek_whose_lanes_can_not_be_loaded_opens_the_store_again(run, disk, monkeypatch):
    failures = [StoreFailed("the disk is gone for a moment")]
    headers = SqliteStore.headers

    def fail_once(self, *args):
        if failures:
            raise failures.pop()
        return headers(self, *args)

    async def scenario(engine):
        await publish(engine, "a", "b")
        await work_off(engine, 2)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        monkeypatch.setattr(SqliteStore, "headers", fail_once)
        with pytest.raises(StoreFailed, match="gone for a moment"):
            await engine.seek_to_message("s", "0")
        reported = "subscription 's' could not be loaded again: the disk is gone for a moment"
        assert [str(failure) for failure in got.failures] == [reported]
        attachment.detach()
        await until_open_again(engine)
        assert await work_off(engine, 2) == [b"a", b"b"]

    run(scenario)


# -- all of it together ---------------------------------------------------------------------------------------------------


class Load:
    """Publishers and a consumer that go on through faults, and what they were told."""

    def __init__(self, engine: Engine, keys: int) -> None:
        self.engine = engine
        self.certain: dict[str, list[int]] = defaultdict(list)
        self.possible: dict[str, list[int]] = defaultdict(list)
        self.delivered: dict[str, list[int]] = defaultdict(list)
        self.done: set[tuple[str, int]] = set()
        self.keys = [f"key{number}" for number in range(keys)]
        self.got = Collector()
        self.got.consumer.deliver = self.deliver
        self.attachment = engine.attach("s", self.got.consumer)

    def deliver(self, delivered) -> None:
        for lease, record in delivered:
            number = int(record.data)
            assert (record.key, number) not in self.done, "what is settled does not come again"
            self.delivered[record.key].append(number)
            with suppress(StaleLease, OutcomeUnknown):
                self.attachment.ack(lease, partial(self.told, record.key, number))

    def told(self, key: str, number: int, error: BaseException | None) -> None:
        if error is None:
            self.done.add((key, number))

    async def publish(self, key: str, count: int) -> None:
        first = len(self.possible[key])
        for number in range(first, first + count):
            self.possible[key].append(number)
            with suppress(OutcomeUnknown):
                await publish(self.engine, str(number), key=key)
                self.certain[key].append(number)

    async def finish(self) -> None:
        """Until everything that is there is settled."""
        subscription = self.engine.get_subscription("s")
        while len(subscription.lanes) or not subscription.lanes.is_quiet():
            await self.engine.drain()


@pytest.mark.parametrize("seed", range(6))
def test_under_load_nothing_is_lost_or_settled_twice_and_order_is_kept(run, disk, seed):
    rng = random.Random(seed)

    async def scenario(engine):
        load = Load(engine, 5)

        async def break_things() -> None:
            for _ in range(10):
                await asyncio.sleep(rng.random() * 0.01)
                await engine.recovery.require_store()
                disk.commits = [rng.random() < 0.5, rng.random() < 0.5][
                    : rng.choice([1, 1, 2])
                ]  # the second at the opening
                disk.failing_openings = rng.choice([0, 0, 1])

        while disk.openings <= 4:  # on a slow machine little happens while things break
            await asyncio.gather(break_things(), *(load.publish(key, 60) for key in load.keys))
        await load.finish()
        for key in load.keys:
            first_deliveries = list(dict.fromkeys(load.delivered[key]))
            assert first_deliveries == sorted(first_deliveries), "in order"
            assert set(load.certain[key]) <= set(first_deliveries) <= set(load.possible[key])
            last_seen = -1
            for number in load.delivered[
                key
            ]:  # a repetition begins with what was not settled, never with what was passed
                assert number >= last_seen
                last_seen = number

    run(scenario)


def test_a_consumer_that_lost_its_leases_with_the_store_has_room_for_as_many_bytes_again(run, disk):
    async def scenario(engine):
        got = Collector(max_bytes=1)
        engine.attach("s", got.consumer)
        await engine.publish("t", [Outgoing("k", b"1")])
        await got.wait(1)
        disk.commits = [False]
        with pytest.raises(OutcomeUnknown):
            await engine.publish("t", [Outgoing("another", b"2")])
        assert (await got.wait(2))[1].record.data == b"1"

    run(scenario)
