"""Every single call to PostgreSQL fails once: nothing is ever half done, and nobody is told something that is not so.

The steps of a script are done one after another on one store. Each is tried again and again, each time with the next of its
calls failing, until it goes through. The faults are real: the server raises an error in place of the statement, or ends the
connection before or after it. A try that fails must leave the store as it was; only when the connection ends during a commit
may it be as after the step, and the error must say that nobody can know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import NamedTuple

import psycopg
import pytest

from seriatim.errors import OutcomeUnknown, StoreError, StoreFailed, StoreFull, StoreLost
from seriatim.store.postgres.store import PostgresReader, PostgresStore
from tests.conftest import SOAK_KILLS
from tests.postgres import schema_of, server
from tests.store.script import STEPS, append_and_settle, create, look_at


class Fault(NamedTuple):
    sqlstate: str | None
    """What the server raises instead of doing what it is asked; None: it ends the connection."""

    after: bool
    """Whether the call is carried out before the connection ends."""

    expected: type[StoreError]


FAULTS = {
    "disk full": Fault("53100", after=False, expected=StoreFull),
    "connection lost before": Fault(None, after=False, expected=StoreFailed),
    "connection lost after": Fault(None, after=True, expected=StoreFailed),
}


class Injector:
    """Counts calls, and lets one of them fail."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.watch(-1)

    def watch(self, fail_at: int) -> None:
        """Count from here on."""
        self.calls, self.fail_at = 0, fail_at
        self.failed: tuple[bytes, psycopg.Connection] | None = None

    def call(self, cursor: FaultyCursor, query, do):
        self.calls += 1
        if self.calls - 1 != self.fail_at:
            return do(query)
        self.failed = (query, cursor.connection)
        return self._fail(cursor.connection.info.backend_pid, query, do)

    def _fail(self, backend: int, query, do):
        if self.fault.sqlstate:
            return do(f"DO $$ BEGIN RAISE SQLSTATE '{self.fault.sqlstate}'; END $$".encode())
        if not self.fault.after:
            server().end_connection(backend)
            return do(query)
        try:
            return do(query)
        finally:
            wait_until_done(backend)
            server().end_connection(backend)


class FaultyCursor(psycopg.RawCursor):
    injector: Injector

    def execute(self, query, params=None, **options):
        def do(statement):
            values = params if statement is query else None
            return super(FaultyCursor, self).execute(statement, values, **options)

        return self.injector.call(self, query, do)


def wait_until_done(backend: int) -> None:
    """Until the server has carried out what it was sent."""
    while not server().ask(f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend} AND wait_event = 'ClientRead'"):
        pass


class Stage:
    """A store whose calls can be made to fail, and eyes that do not fail."""

    def __init__(self, monkeypatch, fault: Fault) -> None:
        self.injector = Injector(fault)
        self.url = server().new_url()
        PostgresStore(self.url).close()
        self.eyes = PostgresReader(self.url)
        monkeypatch.setattr(FaultyCursor, "injector", self.injector, raising=False)
        monkeypatch.setattr(psycopg, "RawCursor", FaultyCursor)
        self.store = PostgresStore(self.url)

    def close(self) -> None:
        self.store.close()
        self.eyes.close()

    def look(self) -> list[str]:
        return look_at(self.eyes)

    def do(self, step, before: list[str], after: list[str], calls: Iterator[int]) -> int:
        """Do a step after some of its calls, or all, have failed once; how many did."""
        for failed, call in enumerate(calls):
            error = self.error_of(step, call)
            found = self.look()
            if error is None or (type(error) is OutcomeUnknown and found == after):
                assert found == after
                return failed
            assert found == before
        raise AssertionError

    def error_of(self, step, call: int) -> StoreError | None:
        """What a step raises when one of its calls fails; None when it does not make so many."""
        writer = self.store._pipe.connection
        self.injector.watch(call)
        try:
            step(self.store)
        except StoreError as error:
            assert self.injector.failed
            self.judge(error, self.injector.failed == (b"COMMIT", writer))
            self.restart_numbers()
            return error
        assert not self.injector.failed
        return None

    def judge(self, error: StoreError, during_commit: bool) -> None:
        """Whether the error told the truth."""
        fault = self.injector.fault
        if fault.sqlstate or not during_commit:
            assert type(error) is fault.expected
            return
        assert type(error) is OutcomeUnknown
        with pytest.raises(StoreLost, match="a commit failed"), self.store.transaction():
            pass
        self.store.close()
        self.store = PostgresStore(self.url)

    def restart_numbers(self) -> None:
        """What was rolled back has used up numbers of topics and subscriptions; the script counts on the first ones."""
        if not self.eyes.catalog().topics:
            for table in ("topics", "subscriptions"):
                server().ask(f"ALTER TABLE {table} ALTER COLUMN id RESTART", schema_of(self.url))


@pytest.fixture(scope="module")
def states() -> list[list[str]]:
    """What a store looks like before and after each step, without faults."""
    with closing(PostgresStore(server().new_url())) as store:
        found = [look_at(store)]
        for step in STEPS:
            step(store)
            found.append(look_at(store))
    return found


@pytest.fixture(params=FAULTS)
def stage(request, monkeypatch):
    stage = Stage(monkeypatch, FAULTS[request.param])
    yield stage
    stage.close()


@pytest.mark.soak
def test_every_call_fails_once_and_nothing_is_half_done(stage, states):
    kind = list(FAULTS.values()).index(stage.injector.fault)
    failed = 0
    for number, step in enumerate(STEPS):
        # Each call fails in one way in ``make test``, and in all of them in ``make soak``.
        own_calls = count() if SOAK_KILLS else count((kind + number) % len(FAULTS), len(FAULTS))
        failed += stage.do(step, *states[number : number + 2], own_calls)
    assert failed > (100 if SOAK_KILLS else 30)


@pytest.mark.parametrize("kind", FAULTS)
def test_an_opening_that_fails_leaves_a_store_that_can_be_opened(monkeypatch, kind):
    injector = Injector(FAULTS[kind])
    monkeypatch.setattr(FaultyCursor, "injector", injector, raising=False)
    monkeypatch.setattr(psycopg, "RawCursor", FaultyCursor)
    url, failures = server().new_url(), 0
    while True:
        injector.watch(failures)
        try:
            store = PostgresStore(url)
        except injector.fault.expected:
            failures += 1
            if failures % 4 == 0:
                url = server().new_url()  # as an opening of a new store, and of one that is there already
        else:
            break
    injector.watch(-1)
    create(store)
    store.close()
    assert failures > 10


def test_an_error_that_the_caller_swallows_is_not_taken_for_a_failed_commit(monkeypatch):
    stage = Stage(monkeypatch, FAULTS["disk full"])
    with closing(stage):
        create(stage.store)
        before = stage.look()

        def swallow() -> None:
            with stage.store.transaction() as work:
                stage.injector.watch(0)
                with pytest.raises(StoreFull):
                    work.claim_batch("w", 1)

        with pytest.raises(StoreFull):
            swallow()
        assert stage.look() == before
        append_and_settle(stage.store)
