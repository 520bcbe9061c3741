"""Every single call to SQLite fails once: nothing is ever half done, and nobody is told something that is not so.

A script of steps is run once without faults, to learn how many calls it makes and what the store looks like after each step.
Then it is run again for every call, with one kind of fault (in ``make soak`` with every kind). The step that fails must raise
the right error and leave the store as it was before it; only a failed commit may leave it as after it, and must say that
nobody can know.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seriatim.errors import OutcomeUnknown, StoreBroken, StoreError, StoreFailed, StoreLost
from seriatim.store.base import DocumentRow
from seriatim.store.sqlite.session import SqliteSession
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from tests.conftest import SOAK_KILLS, fast_folder
from tests.store.script import STEPS, append_and_settle, create, look_at
from tests.store.sqlite.faulty_sqlite import FAULTS, REAL_CONNECT, Fault, Injector, connect


def look(path):
    """Everything, through eyes that do not fail."""
    with closing(SqliteReader(path)) as reader:
        return look_at(reader)


class Stage:
    """A fresh store, and calls that can be made to fail."""

    def __init__(self, path, monkeypatch) -> None:
        self.path, self._monkeypatch = path, monkeypatch

    def use(self, injector) -> None:
        self._monkeypatch.setattr(sqlite3, "connect", partial(connect, injector))

    def use_no_faults(self) -> None:
        self._monkeypatch.setattr(sqlite3, "connect", REAL_CONNECT)

    def look(self):
        self.use_no_faults()
        return look(self.path)


def states_without_faults(stage) -> tuple[list, int]:
    """What the store looks like before and after each step, and how many calls all of them make."""
    injector = Injector()
    stage.use(injector)
    states = []
    with closing(SqliteStore(stage.path)) as store:
        states.append(stage.look())
        for step in STEPS:
            stage.use(injector)
            step(store)
            states.append(stage.look())
    return states, injector.calls


def run_with_fault(stage, states, fail_at: int, fault: Fault) -> None:
    injector = Injector(fail_at, fault)
    stage.use(injector)
    try:
        store = SqliteStore(stage.path)
    except fault.expected:
        stage.use_no_faults()
        store = SqliteStore(stage.path)  # whatever happened at the opening, it can be opened again
    for number, step in enumerate(STEPS):
        stage.use(injector)
        try:
            step(store)
        except StoreError as error:
            before, after = states[number : number + 2]
            store = recovered(stage, store, error, injector, before, after)
            if stage.look() == before:
                step(store)
            assert stage.look() == after
    store.close()
    assert injector.failed is not None


def recovered(stage, store, error, injector, before, after) -> SqliteStore:
    """A store that works, after a look at whether the error told the truth."""
    statement, writes = injector.failed
    expected = injector.fault.expected
    if statement != "COMMIT" or not writes or expected is not StoreFailed:
        assert type(error) is expected, statement
        assert stage.look() == before, statement
        return store
    assert type(error) is OutcomeUnknown
    assert stage.look() in (before, after)
    with pytest.raises(StoreLost, match="a commit failed"), store.transaction():
        pass
    store.close()
    return SqliteStore(stage.path)


def test_the_script_runs_through_without_faults(tmp_path, monkeypatch):
    states, calls = states_without_faults(Stage(tmp_path / "store.db", monkeypatch))
    assert len(states) == len(STEPS) + 1
    assert calls > 100


@pytest.fixture
def folder() -> Iterator[Path]:
    """Calls are made to fail, not disks: the files may be in memory."""
    with TemporaryDirectory(dir=fast_folder()) as found:
        yield Path(found)


@pytest.mark.soak
@pytest.mark.parametrize("kind", FAULTS)
def test_every_call_fails_once_and_nothing_is_half_done(folder, monkeypatch, kind):
    states, calls = states_without_faults(Stage(folder / "without.db", monkeypatch))
    own_calls = range(calls) if SOAK_KILLS else range(list(FAULTS).index(kind), calls, len(FAULTS))
    for number in own_calls:
        run_with_fault(Stage(folder / f"{number}.db", monkeypatch), states, number, FAULTS[kind])


def test_an_error_that_the_caller_swallows_is_not_taken_for_a_failed_commit(tmp_path, monkeypatch):
    injector = Injector(fault=FAULTS["I/O error"])
    stage = Stage(tmp_path / "store.db", monkeypatch)
    stage.use(injector)
    with closing(SqliteStore(stage.path)) as store:
        create(store)
        before = stage.look()

        def swallow() -> None:
            with store.transaction() as work:
                work.put_document(DocumentRow("kind", "name", "text"))
                injector.fail_at = injector.calls
                with pytest.raises(StoreFailed):
                    work.settle(1, [1])

        with pytest.raises(StoreFailed):
            swallow()
        assert stage.look() == before
        append_and_settle(store)


def test_a_commit_that_a_signal_interrupts_ends_the_handle_and_the_file_says_what_happened(tmp_path, monkeypatch):
    command = SqliteSession.command

    def interrupted(session: SqliteSession, statement: str) -> None:
        command(session, statement)
        if statement == "COMMIT":
            raise KeyboardInterrupt

    store = SqliteStore(tmp_path / "store.db")
    with monkeypatch.context() as patched:
        patched.setattr(SqliteSession, "command", interrupted)
        with pytest.raises(KeyboardInterrupt), store.transaction() as work:
            work.create_topic("t", {})
    with pytest.raises(StoreBroken, match="a commit was interrupted"), store.transaction():
        pass
    store.close()
    with closing(SqliteStore(tmp_path / "store.db")) as again:
        assert [topic.name for topic in again.catalog().topics] == ["t"]
