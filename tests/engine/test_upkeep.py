"""How clean-up makes room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from seriatim.engine import upkeep
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import StoreFailed, StoreLost
from seriatim.store.base import UpkeepReport
from seriatim.store.memory import MemoryStore
from seriatim.testing import run_in_virtual_time
from tests.engine.conftest import Collector

PIECE_S = 0.001


def seconds_of(pieces: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a clean-up of so many pieces of a millisecond takes."""
    left = pieces

    async def read(_: Engine, __: object) -> UpkeepReport:
        nonlocal left
        left -= 1
        await asyncio.sleep(PIECE_S)
        return UpkeepReport(0, 0, 0, more_to_do=left > 0)

    async def scenario() -> float:
        engine, loop = Engine(MemoryStore()), asyncio.get_running_loop()
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "read", read)
            began = loop.time()
            await engine.clean_up()
            took = loop.time() - began
        await engine.close()
        return took

    return run_in_virtual_time(scenario())


def test_clean_up_works_a_tenth_of_the_time(monkeypatch):
    assert seconds_of(5, monkeypatch) == pytest.approx(PIECE_S * (5 + 4 * 9))


def test_clean_up_that_does_not_come_to_its_end_works_half_of_the_time(monkeypatch):
    monkeypatch.setattr(upkeep, "UNHURRIED_PIECES", 3)
    assert seconds_of(7, monkeypatch) == pytest.approx(PIECE_S * (7 + 2 * 9 + 4))


class CountingStore(MemoryStore):
    """Notes when it is cleaned up, and fails as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.cleaned: list[float] = []
        self.failures: list[Exception] = []

    def upkeep(self, now: float) -> UpkeepReport:
        self.cleaned.append(now)
        if self.failures:
            raise self.failures.pop(0)
        return super().upkeep(now)


def run_with(scenario: Callable[[Engine, CountingStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = CountingStore()
        engine = Engine(store)
        await engine.start()
        try:
            await scenario(engine, store)
        finally:
            await engine.close()

    run_in_virtual_time(whole())


def test_clean_up_begins_a_while_after_a_change_once_for_all_that_happened_meanwhile():
    async def scenario(engine: Engine, store: CountingStore) -> None:
        await asyncio.sleep(upkeep.PAUSE_S * 3)
        before, began = len(store.cleaned), engine.now()
        await engine.create_topic("t")
        await asyncio.sleep(upkeep.PAUSE_S / 2)
        assert len(store.cleaned) == before
        await engine.create_topic("u")
        await asyncio.sleep(upkeep.PAUSE_S)
        assert len(store.cleaned) == before + 1
        assert store.cleaned[-1] == pytest.approx(began + upkeep.PAUSE_S, abs=0.01)
        await asyncio.sleep(upkeep.IDLE_PAUSE_S / 2)
        assert len(store.cleaned) == before + 1

    run_with(scenario)


def test_what_expires_with_time_alone_is_looked_for_now_and_then():
    async def scenario(engine: Engine, store: CountingStore) -> None:
        await asyncio.sleep(upkeep.PAUSE_S * 3)
        before = len(store.cleaned)
        await asyncio.sleep(3 * (upkeep.IDLE_PAUSE_S + upkeep.PAUSE_S))
        assert len(store.cleaned) == before + 3
        assert store.cleaned[-1] - store.cleaned[-2] == pytest.approx(upkeep.IDLE_PAUSE_S + upkeep.PAUSE_S, abs=0.01)

    run_with(scenario)


def test_a_mistake_in_clean_up_is_logged_and_it_is_tried_again_after_the_next_change(caplog):
    async def scenario(engine: Engine, store: CountingStore) -> None:
        await asyncio.sleep(upkeep.PAUSE_S * 3)
        store.failures = [ZeroDivisionError()]
        before = len(store.cleaned)
        for number in range(2):
            await engine.create_topic(f"t{number}")
            await asyncio.sleep(upkeep.PAUSE_S * 2)
        assert len(store.cleaned) == before + 2
        (record,) = [record for record in caplog.records if "clean-up" in record.getMessage()]
        assert record.getMessage() == "clean-up failed and will be tried again after the next change"
        assert record.exc_info is not None

    run_with(scenario)


def test_a_store_that_fails_during_clean_up_is_reported_to_consumers():
    async def scenario(engine: Engine, store: CountingStore) -> None:
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", SubscriptionOptions())
        got = Collector()
        engine.attach("s", got.consumer)
        await asyncio.sleep(upkeep.PAUSE_S * 3)
        store.failures = [StoreFailed("the disk is gone for a moment")]
        await engine.create_topic("u")
        await asyncio.sleep(upkeep.PAUSE_S * 2)
        assert [str(error) for error in got.failures] == ["the disk is gone for a moment"]

    run_with(scenario)


def test_what_a_filter_rejected_is_settled_and_written_before_clean_up_looks():
    async def scenario(engine: Engine, store: CountingStore) -> None:
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", SubscriptionOptions(filter='attributes.a = "b"'))
        await engine.publish("t", [Outgoing("k", b"rejected")])
        await engine.clean_up()
        assert (await engine.describe_topic("t")).earliest == 1

    run_with(scenario)


def test_clean_up_goes_on_when_what_filters_rejected_can_not_be_written(monkeypatch):
    async def scenario(engine: Engine, store: CountingStore) -> None:
        await engine.create_topic("t")
        await engine.create_subscription("t", "s", SubscriptionOptions(filter='attributes.a = "b"'))

        def refuse() -> int:
            raise StoreLost("nothing can be written any more")

        monkeypatch.setattr(engine.get_subscription("s").filter, "settle", refuse)
        assert not engine._upkeep.settle_rejected()

    run_with(scenario)


def test_whoever_looks_at_tasks_sees_which_one_cleans_up():
    async def scenario(engine: Engine, store: CountingStore) -> None:
        assert "seriatim-upkeep" in [task.get_name() for task in asyncio.all_tasks()]

    run_with(scenario)


def test_others_learn_that_clean_up_uses_the_store_while_it_does():
    async def scenario(engine: Engine, store: CountingStore) -> None:
        writer, seen = engine.recovery.committer.writer, list[bool]()
        real = store.upkeep

        def look(now: float) -> UpkeepReport:
            seen.append(writer.is_shared)
            return real(now)

        store.upkeep = look  # type: ignore[method-assign]
        await engine.clean_up()
        store.failures = [StoreFailed("the disk is gone")]
        with pytest.raises(StoreFailed):
            await engine.clean_up()
        assert (seen, writer.is_shared) == ([True, True], False)

    run_with(scenario)
