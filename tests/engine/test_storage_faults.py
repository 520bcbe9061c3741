"""Every storage call of an engine's life fails once: publishers hear the truth, nothing is lost, repeated or out of order.

A script (open, publish, consume, change options, clean up, close, open again) runs once without faults, to learn how many calls
it makes of SQLite, and then again for every call, which fails in one of four ways. Whoever is told that something failed tries
again; after an unknown outcome the engine opens its store again by itself. A witness follows every word, and in the end
everything must be settled.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from seriatim.engine import topic as topic_module
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import OutcomeUnknown, StoreError
from seriatim.testing import run_in_virtual_time
from tests import fire
from tests.conftest import SOAK_KILLS, fast_folder
from tests.store.sqlite.faulty_sqlite import FAULTS, REAL_CONNECT, Injector, connect
from tests.witness import KEYLESS, Name, Witness, what_waits

KEYS = ["a", None, "a", "b"]
BATCHES = [(KEYS[number], range(number * 2, number * 2 + 2)) for number in range(4)]
ONE_DAY = 24 * 3600.0


class Life:
    """One run of the script, through however many openings it takes."""

    def __init__(self, url: str) -> None:
        self.said: list[tuple[str, str, int, int]] = []
        self.refused: set[Name] = set()
        self._perhaps_published: set[Name] = set()
        self._url = url
        self._engine: Engine | None = None
        self._worker: fire.Worker | None = None

    async def run(self) -> None:
        for key, numbers in BATCHES[:2]:
            await self._insist(partial(self._publish, key, numbers))
        await self._insist(self._change_options)
        for key, numbers in BATCHES[2:]:
            await self._insist(partial(self._publish, key, numbers))
        await self._insist(self._drain)
        await self._insist(lambda engine: engine.clean_up())
        await self._close()
        await self._insist(self._drain)
        await self._close()

    async def _insist(self, step) -> None:
        """Do a step until it succeeds. Only one call fails, so that is soon."""
        for _ in range(5):
            try:
                await step(await self._opened())
                return
            except StoreError:
                await asyncio.sleep(1)
        raise AssertionError("one fault, and it never works again")

    def _say(self, what: str, key: str, number: int, attempt: int) -> None:
        self.said.append((what, key, number, attempt))

    async def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = await Engine.open(self._url)
        if self._worker is None:
            await fire.prepare(self._engine)
            self._worker = fire.Worker(self._engine, self._say, Random(5))
        return self._engine

    async def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.notice_new_beginning()

    async def _publish(self, key: str | None, numbers: range, engine: Engine) -> None:
        """A batch that failed is never published under the same numbers again: if it turns up all the same, that is a lie."""
        names = {(key or KEYLESS, number) for number in numbers}
        if names <= self.refused | self._perhaps_published:
            return
        try:
            await engine.publish("t", [Outgoing(key, str(number).encode()) for number in numbers])
        except OutcomeUnknown:
            self._perhaps_published |= names
            raise
        except StoreError:
            self.refused |= names
            raise
        for name in sorted(names):
            self._say("P", *name, 0)

    async def _change_options(self, engine: Engine) -> None:
        options = engine.get_subscription("s").options
        changed = SubscriptionOptions(True, 5.0, options.retry, dead_letter_topic=options.dead_letter_topic)
        await engine.update_subscription("s", changed)

    async def _drain(self, _: Engine) -> None:
        assert self._worker is not None
        async with asyncio.timeout(ONE_DAY):
            await self._worker.at_most(0)


def run(template: Path, path: Path, monkeypatch, injector: Injector) -> Witness:
    shutil.copy(template, path)
    monkeypatch.setattr(sqlite3, "connect", partial(connect, injector))
    life, witness = Life(f"sqlite:///{path}"), Witness(fire.MAX_DELIVERY_ATTEMPTS)
    run_in_virtual_time(life.run())
    monkeypatch.setattr(sqlite3, "connect", REAL_CONNECT)
    witness.forbid(life.refused)
    for said in life.said:
        if said[0] == "K":
            witness.hear_kill()
        else:
            witness.hear(*said)
    assert what_waits(f"sqlite:///{path}") == set()
    witness.judge_end()
    return witness


@pytest.fixture
def folder() -> Iterator[Path]:
    """Calls are made to fail, not disks: the files may lie in memory."""
    with TemporaryDirectory(dir=fast_folder()) as found:
        yield Path(found)


@pytest.fixture
def template(folder) -> Path:
    """A store with topics and subscriptions: how those are created under fire is tested with the store."""

    async def create() -> None:
        engine = await Engine.open(f"sqlite:///{folder}/template.db")
        await fire.prepare(engine)
        await engine.close()

    asyncio.run(create())
    return folder / "template.db"


@pytest.fixture
def small_memory(monkeypatch):
    """Payloads are read from the store, so that reads fail too; half of all messages end as dead letters."""
    monkeypatch.setattr(topic_module, "CACHED_BYTES", 2)
    monkeypatch.setattr(fire, "POISONOUS", 0.3)


def test_the_script_runs_through_without_faults(folder, template, monkeypatch, small_memory):
    injector = Injector()
    witness = run(template, folder / "store.db", monkeypatch, injector)
    assert len(witness.published) == len(BATCHES) * 2
    assert witness.buried
    assert injector.calls > 100


# Each call fails in one way in `make test`; in `make soak`, where the first one moves on, in all of them.
@pytest.mark.soak
@pytest.mark.parametrize("first_kind", range(len(FAULTS) if SOAK_KILLS else 1))
def test_every_call_fails_once_and_everything_drains_in_order(
    folder, template, monkeypatch, small_memory, first_kind, caplog
):
    caplog.set_level("CRITICAL", "seriatim")
    counting, kinds = Injector(), list(FAULTS.values())
    run(template, folder / "without.db", monkeypatch, counting)
    fired = 0
    for number in range(counting.calls):
        injector = Injector(number, kinds[(number + first_kind) % len(kinds)])
        run(template, folder / f"{number}.db", monkeypatch, injector)
        fired += injector.failed is not None
    # How much rides in one commit depends on threads, so a run may make a few calls less than the first one.
    assert fired > 0.8 * counting.calls
