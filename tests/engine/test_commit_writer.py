"""Who writes a commit: the thread, or the loop itself while small commits are quick."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from seriatim.engine import committer as group_commit
from seriatim.engine.engine import Engine
from seriatim.errors import InvalidArgument, OutcomeUnknown
from seriatim.store.base import Record, Transaction, UpkeepReport
from tests.engine.conftest import WatchedStore
from tests.engine.test_commit import Bench

QUICK, SLOW = 0.0001, 0.01
TRUST = 40
"""So many quick commits, and the loop writes the next one."""


class Disk(WatchedStore):
    """A store on a disk of which a test says how long a commit takes. It notes who wrote each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = QUICK
        self.now = 0.0
        self.by_loop: list[bool] = []

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self.by_loop.append(threading.current_thread() is threading.main_thread())
        self.now += self.seconds
        with super().transaction() as transaction:
            yield transaction


class Scene(Bench):
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("tests.engine.test_commit.WatchedStore", Disk)
            super().__init__()
        assert isinstance(self.store, Disk)
        self.disk = self.store
        self.offset = 0

    async def commit(self, seconds: float = QUICK, size: int = 1) -> bool:
        """Write one commit that takes so long: whether the loop wrote it."""
        self.disk.seconds = seconds
        self.append(*range(self.offset, self.offset + size))
        self.offset += size
        await self.drain()
        return self.disk.by_loop[-1]

    async def earn_trust(self) -> None:
        for _ in range(TRUST):
            await self.commit()
        assert await self.commit()


@pytest.fixture
def play(monkeypatch):
    def run(scenario) -> None:
        async def whole() -> None:
            scene = Scene(monkeypatch)
            monkeypatch.setattr(group_commit, "perf_counter", lambda: scene.disk.now)
            try:
                await scenario(scene)
            finally:
                await scene.committer.close()

        asyncio.run(whole())

    return run


def test_the_thread_writes_until_commits_have_been_quick_for_a_while(play):
    async def scenario(scene):
        assert not any([await scene.commit() for _ in range(20)])
        await scene.earn_trust()
        assert scene.offsets() == list(range(scene.offset))
        assert [error for _, error in scene.heard] == [None] * scene.offset

    play(scenario)


def test_on_a_slow_disk_the_loop_never_writes(play):
    async def scenario(scene):
        assert not any([await scene.commit(SLOW) for _ in range(3 * TRUST)])

    play(scenario)


def test_a_disk_that_becomes_slow_stalls_the_loop_once(play, monkeypatch):
    async def scenario(scene):
        monkeypatch.setattr(group_commit, "RESPITE", 1e9)
        await scene.earn_trust()
        assert await scene.commit(SLOW)
        assert not any([await scene.commit(SLOW) for _ in range(5)])
        assert not any([await scene.commit() for _ in range(3 * TRUST)]), "it was to keep away for a long time"

    play(scenario)


def test_when_the_disk_is_quick_again_the_loop_writes_again(play, monkeypatch):
    async def scenario(scene):
        monkeypatch.setattr(group_commit, "RESPITE", 0)
        await scene.earn_trust()
        assert await scene.commit(SLOW)
        assert not await scene.commit(), "one slow commit is enough"
        await scene.earn_trust()

    play(scenario)


def test_commits_that_are_a_little_too_slow_are_given_back_to_the_thread_by_their_average(play):
    async def scenario(scene):
        await scene.earn_trust()
        wrote = [await scene.commit(group_commit.QUICK_S * 1.5) for _ in range(20)]
        assert wrote[0]
        assert not any(wrote[10:])

    play(scenario)


def test_what_is_large_or_may_take_long_is_written_by_the_thread(play):
    async def scenario(scene):
        await scene.earn_trust()
        assert not await scene.commit(SLOW, size=65)
        assert await scene.commit(size=64), "and its time says nothing about the small ones"
        large = [Record(scene.offset, "k", b"." * 100_000)]
        scene.offset += 1
        scene.hear("large", scene.committer.next().append(scene.log, large, None))
        await scene.drain()
        assert not scene.disk.by_loop[-1]
        await scene.committer.next().request(lambda work: work.topic(scene.topic))
        assert not scene.disk.by_loop[-1]
        scene.committer.next().oblige(lambda work: work.pause_key(scene.subscription, "k", None), lambda: None)
        await scene.drain()
        assert not scene.disk.by_loop[-1]
        assert await scene.commit()

    play(scenario)


def test_while_somebody_else_writes_to_the_store_the_loop_does_not_wait_for_it(play):
    async def scenario(scene):
        await scene.earn_trust()
        scene.committer.writer.is_shared = True
        assert not await scene.commit()
        scene.committer.writer.is_shared = False
        assert await scene.commit()

    play(scenario)


def test_clean_up_says_that_it_writes_to_the_store():
    class Cleaned(WatchedStore):
        look: Callable[[], bool]

        def upkeep(self, now: float) -> UpkeepReport:
            seen.append(self.look())
            return super().upkeep(now)._replace(more_to_do=len(seen) < 2)

    async def scenario() -> None:
        store = Cleaned()
        engine = Engine(store)
        store.look = lambda: engine.recovery.committer.writer.is_shared
        await engine.clean_up()
        seen.append(store.look())
        await engine.close()

    seen: list[bool] = []
    asyncio.run(scenario())
    assert seen == [True, True, False]


def test_a_store_on_a_server_is_written_by_the_thread_alone(play, monkeypatch):
    monkeypatch.setattr(Disk, "url", "postgresql://server/database")

    async def scenario(scene):
        assert not any([await scene.commit() for _ in range(2 * TRUST)])

    play(scenario)


def test_what_the_store_refuses_fails_alone_also_when_the_loop_writes(play):
    async def scenario(scene):
        await scene.earn_trust()
        bad = Record(scene.offset, 5, b"")  # type: ignore[arg-type]  # no key
        scene.hear("bad", scene.committer.next().append(scene.log, [bad], None))
        scene.offset += 1
        assert await scene.commit()
        assert [name for name, error in scene.heard if isinstance(error, InvalidArgument)] == ["bad"]
        assert scene.offsets()[-1] == scene.offset - 1

    play(scenario)


def test_an_unknown_outcome_ends_all_writing_also_when_the_loop_wrote(play):
    async def scenario(scene):
        await scene.earn_trust()
        lost = OutcomeUnknown("the disk failed")
        scene.disk.failures = [lost]
        assert await scene.commit()
        assert scene.heard[-1][1] is lost
        assert scene.failures == [lost]
        with pytest.raises(OutcomeUnknown):
            scene.committer.next()

    play(scenario)


def test_an_interrupt_while_the_loop_writes_leaves_an_unknown_outcome_and_then_has_its_way(play):
    heard = []

    async def scenario(scene):
        await scene.earn_trust()
        scene.disk.failures = [KeyboardInterrupt()]
        try:
            await scene.commit()
        finally:
            heard.extend([scene.heard[-1][1], *scene.failures])

    with pytest.raises(KeyboardInterrupt):
        play(scenario)
    assert [type(error) for error in heard] == [OutcomeUnknown, OutcomeUnknown]
