"""An active process and its standbys, as real processes: killed, stopped and woken up again.

Whatever becomes of the active one, the standby takes over, and what the old one does after that changes nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from seriatim.errors import InvalidArgument, StoreBusy, StoreFailed, StoreLost
from seriatim.store import open_store
from seriatim.store.base import Standby
from seriatim.store.postgres import session as postgres_session
from seriatim.store.postgres.ownership import GRACE
from seriatim.store.postgres.store import PostgresReader, PostgresStore
from tests.postgres import schema_of, server
from tests.store.contract.kit import kept, topic_with_subscription
from tests.store.postgres.standby_child import record, write

ROOT = Path(__file__).parents[3]
SHORT = 0.6
"""Seconds: a lease that runs out soon. Who must not lose it, on a machine that may be slow, gets a longer one."""


class Process:
    """Another process with the same store."""

    def __init__(self, url: str, *options: str) -> None:
        command = [sys.executable, "-m", "tests.store.postgres.standby_child", url, *options]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{line}\n")
        self.child.stdin.flush()

    def hear(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.child.pid, number)

    def end(self) -> None:
        self.child.kill()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()
        self.child.wait()


@contextmanager
def process(url: str, *options: str):
    started = Process(url, *options)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def lease() -> float:
    return 30.0


@pytest.fixture
def url(lease) -> str:
    """A store with a topic in it."""
    url = server().new_url(lease=lease)
    with closing(PostgresStore(url)) as store:
        topic_with_subscription(store)
    return url


with_a_short_lease = pytest.mark.parametrize("lease", [SHORT])


@pytest.fixture
def active(url):
    with process(url) as started:
        assert started.hear() == "active 2"
        yield started


def stand_by(url: str) -> PostgresStore:
    """Wait in this process until the store is ours."""
    with Standby() as standby:
        return PostgresStore(url, standby)


def offsets(reader) -> list[int]:
    return kept(reader, reader.catalog().topics[0])


class TestTheActiveProcess:
    def test_a_store_that_is_owned_is_busy_and_the_owner_is_named(self, url, active):
        with pytest.raises(
            StoreBusy, match=rf"owned by process {active.child.pid} on .* \(seriatim\): use it through that process"
        ):
            PostgresStore(url)
        active.tell("write 0")
        assert active.hear() == "done"

    def test_everybody_may_read_beside_it(self, url, active):
        active.tell("write 0")
        assert active.hear() == "done"
        with closing(PostgresReader(url)) as reader:
            assert (offsets(reader), reader.epoch) == ([0], 2)
            active.tell("write 1")
            assert active.hear() == "done"
            assert offsets(reader) == [0, 1]

    def test_it_gives_the_store_back_at_once_when_it_closes(self, url, active):
        active.tell("close 0")
        assert active.hear() == "done"
        with closing(PostgresStore(url)) as store:
            assert store.epoch == 3

    @pytest.mark.parametrize("lease", [2.5])
    def test_it_keeps_the_store_for_longer_than_a_lease(self, url, lease):
        with closing(PostgresStore(url)) as store, Standby() as patience:
            patience.wait(1.2 * lease)
            with pytest.raises(StoreBusy):
                PostgresStore(url)
            write(store, 0)

    def test_it_goes_on_after_its_connections_were_ended(self, url):
        with closing(PostgresStore(url)) as store:
            write(store, 0)
            assert offsets(store) == [0]
            server().end_connections()
            assert offsets(store) == [0]
            write(store, 1)
            with pytest.raises(StoreBusy):
                PostgresStore(url)

    @with_a_short_lease
    def test_its_lease_is_renewed_again_after_the_loss_of_its_connections(self, url):
        with closing(PostgresStore(url)), Standby() as patience:
            for _ in range(2):
                before = server().ask("SELECT renewed FROM owner", schema_of(url))
                while server().ask("SELECT renewed FROM owner", schema_of(url)) == before:
                    patience.wait(0.01)
                server().end_connections()

    def test_when_it_was_killed_the_store_can_be_opened_without_waiting_for_the_lease(self, url, active):
        active.end()
        with closing(PostgresStore(url)) as store:
            assert store.epoch == 3

    def test_when_it_was_killed_it_is_waited_for_until_the_server_has_noticed(self, url, active):
        (backend,) = server().ask("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")[0]
        os.kill(backend, signal.SIGSTOP)
        active.end()
        threading.Timer(2 * GRACE, os.kill, (backend, signal.SIGCONT)).start()
        with closing(PostgresStore(url)) as store:
            assert store.epoch == 3

    @pytest.mark.parametrize("answered", [False, True])
    def test_a_connection_that_ends_inside_a_transaction_has_changed_nothing(self, url, answered):
        with closing(PostgresStore(url)) as store:
            write(store, 0)

            def write_and_lose_the_connection() -> None:
                with store.transaction() as work:
                    work.append(1, [record(1)])
                    server().end_connections()
                    if answered:
                        work.claim_batch("w", 1)

            with pytest.raises(StoreFailed):
                write_and_lose_the_connection()
            assert offsets(store) == [0]
            write(store, 1)
            assert offsets(store) == [0, 1]

    def test_it_is_lost_when_somebody_took_over_while_it_had_no_connection(self, url):
        with closing(PostgresStore(url)) as old:
            write(old, 0)
            server().end_connections()
            with closing(PostgresStore(url)) as new:
                connection = new._pipe.connection
                with pytest.raises(StoreLost, match="another process has taken it over"):
                    write(old, 1)
                write(new, 1)
                assert new._pipe.connection is connection  # the old one has not touched it
                with pytest.raises(StoreLost):
                    old.catalog()


@contextmanager
def locked_packs(url: str):
    """Somebody else has locked the messages, until the end or until this is called."""
    with psycopg.connect(url.partition("&")[0]) as other:
        other.execute(f"LOCK TABLE {schema_of(url)}.packs IN ACCESS EXCLUSIVE MODE".encode())
        yield other.rollback


@contextmanager
def in_a_thread(work):
    """Do something beside the test, which may wait for its end (``join``) and for what it ``raised``."""
    thread = _Beside(work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


class _Beside(threading.Thread):
    def __init__(self, work) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.raised: Exception | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.raised = error


class TestAnOwnerWhoseTransactionStalls:
    @pytest.fixture
    def lease(self) -> float:
        return SHORT

    @pytest.fixture
    def url(self, url):
        return f"{url}&stall_timeout={SHORT}"

    @pytest.fixture
    def store(self, url, monkeypatch):
        monkeypatch.setattr(postgres_session, "LOCK_SECONDS", 20.0)  # not the first to end a wait
        with closing(PostgresStore(url)) as store:
            yield store

    @pytest.fixture
    def stalling(self, store):
        """A transaction that does nothing more until it is told to, and how it is told."""
        inside, go_on = threading.Event(), threading.Event()

        def stall() -> None:
            with store.transaction() as work:
                work.append(1, [record(0)])
                work.claim_batch("waits for an answer", 0)
                inside.set()
                go_on.wait()

        with in_a_thread(stall) as thread:
            inside.wait()
            yield thread, go_on
            go_on.set()

    def test_a_standby_takes_over_while_it_waits_for_a_lock(self, url, store):
        def write_until_the_store_is_lost() -> None:
            while True:  # the owner may be the first to connect again
                with suppress(StoreFailed):
                    write(store, 0)

        with (
            locked_packs(url) as unlock,
            in_a_thread(write_until_the_store_is_lost) as writer,
            closing(stand_by(url)) as new,
        ):
            writer.join()
            assert isinstance(writer.raised, StoreLost)
            unlock()
            assert (new.epoch, offsets(new)) == (3, [])
            write(new, 5)
            assert offsets(new) == [5]

    def test_a_standby_takes_over_while_it_does_nothing_and_what_it_does_then_changes_nothing(self, url, stalling):
        thread, go_on = stalling
        with closing(stand_by(url)) as new:
            write(new, 5)
            go_on.set()
            thread.join()
            assert isinstance(thread.raised, StoreLost)
            assert offsets(new) == [5]

    def test_it_goes_on_when_nobody_takes_over(self, url, store, stalling):
        thread, go_on = stalling
        backend, schema = store._pipe.backend, schema_of(url)
        wait_until(f"SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {backend})")
        (before,) = server().ask("SELECT renewed FROM owner", schema)
        with Standby() as patience:
            patience.wait(SHORT)
        assert server().ask("SELECT renewed FROM owner", schema) == [before]  # still stalled
        go_on.set()
        thread.join()
        assert isinstance(thread.raised, StoreFailed)
        write(store, 0)
        assert (store.epoch, offsets(store)) == (2, [0])

    def test_it_can_be_closed_while_it_waits_for_a_lock(self, url, store):
        with locked_packs(url), in_a_thread(lambda: write(store, 0)) as writer:
            wait_until("SELECT 1 FROM pg_locks WHERE locktype = 'relation' AND NOT granted")
            store.close()
            writer.join()
            assert isinstance(writer.raised, StoreFailed)

    def test_a_statement_that_the_server_is_at_work_on_may_take_longer(self, url, store):
        schema, loop = schema_of(url), "WHILE clock_timestamp() < now() + interval '2 seconds' LOOP END LOOP;"
        body = f"AS $$ BEGIN {loop} RETURN new; END $$"
        server().ask(f"CREATE FUNCTION {schema}.work() RETURNS trigger LANGUAGE plpgsql {body}")
        server().ask(
            f"CREATE TRIGGER work BEFORE INSERT ON {schema}.packs FOR EACH ROW EXECUTE FUNCTION {schema}.work()"
        )
        write(store, 0)
        assert offsets(store) == [0]


class TestAStandby:
    def test_it_takes_over_when_the_active_process_is_killed(self, url, active):
        active.tell("write 0")
        assert active.hear() == "done"
        active.signal(signal.SIGKILL)
        with closing(stand_by(url)) as store:
            assert (store.epoch, offsets(store)) == (3, [0])
            write(store, 1)

    def test_it_takes_over_when_the_active_process_closes(self, url, active):
        with process(url, "standing by") as standby:
            active.tell("close 0")
            assert active.hear() == "done"
            assert standby.hear() == "active 3"

    def test_what_a_killed_process_had_not_committed_is_gone(self, url, active):
        active.tell("write_in_two_parts 0")
        assert active.hear() == "inside"
        active.signal(signal.SIGKILL)
        with closing(stand_by(url)) as store:
            assert offsets(store) == []
            write(store, 0)

    @with_a_short_lease
    @pytest.mark.parametrize("then", ["write 1", "upkeep 0"])
    def test_it_takes_over_from_a_process_that_was_stopped_idle(self, url, active, then):
        active.tell("write 0")
        assert active.hear() == "done"
        active.signal(signal.SIGSTOP)
        with closing(stand_by(url)) as store:
            write(store, 1)
            active.signal(signal.SIGCONT)
            active.tell(then)
            assert active.hear() == "StoreLost"
            assert offsets(store) == [0, 1]
            assert store.read(1, 1, 1) == [record(1)]

    @with_a_short_lease
    @pytest.mark.parametrize(("stopped_in", "before"), [("write_in_two_parts 0", []), ("write_without_waiting 0", [0])])
    def test_it_takes_over_from_a_process_that_was_stopped_inside_a_transaction(self, url, active, stopped_in, before):
        active.tell(stopped_in)
        assert active.hear() == "inside"
        active.signal(signal.SIGSTOP)
        with closing(stand_by(url)) as store:
            assert offsets(store) == before
            write(store, 5)
            active.signal(signal.SIGCONT)
            active.tell("go on")
            assert active.hear() == "StoreLost"
            active.tell("write 6")
            assert active.hear() == "StoreLost"
            assert offsets(store) == [*before, 5]
            assert list(store.check()) == []

    @with_a_short_lease
    def test_a_transaction_says_so_when_the_loss_was_noticed_while_it_was_open(self, url):
        def lose_it(store: PostgresStore, patience: Standby) -> None:
            server().end_connections()
            for table in ("store", "owner"):
                server().ask(f"UPDATE {schema_of(url)}.{table} SET epoch = epoch + 1")
            while not patience.wait(0.05):
                store.catalog()

        def write(store: PostgresStore, patience: Standby) -> None:
            with store.transaction() as work:
                work.append(1, [record(0)])
                work.claim_batch("the server has it", 0)
                with pytest.raises(StoreLost):
                    lose_it(store, patience)

        with closing(PostgresStore(url)) as store, Standby() as patience, pytest.raises(StoreLost):
            write(store, patience)

    def test_exactly_one_of_two_takes_over_and_the_other_follows_it(self, url, active):
        with process(url, "standing by") as first, process(url, "standing by") as second:
            active.signal(signal.SIGKILL)
            heard: dict[str, str] = {}
            threads = [
                threading.Thread(target=lambda name, one: heard.__setitem__(name, one.hear()), args=(name, one))
                for name, one in (("first", first), ("second", second))
            ]
            for thread in threads:
                thread.start()
            with Standby() as patience:
                while not heard:
                    patience.wait(0.05)
                patience.wait(GRACE)
            (winner,) = heard
            assert heard[winner] == "active 3"
            one, other = (first, second) if winner == "first" else (second, first)
            one.tell("write 0")
            one.signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
            assert sorted(heard.values()) == ["active 3", "active 4"]
            other.tell("write 5")
            assert other.hear() == "done"

    def test_its_wait_is_cancelled_from_another_thread(self, url, active):
        with Standby() as standby:
            threading.Timer(0.2, standby.cancel).start()
            with pytest.raises(StoreBusy, match="the wait for it was cancelled"):
                open_store(url, standby=standby)

    def test_a_wait_that_was_cancelled_before_it_began_ends_at_once(self, url, active):
        with Standby() as standby:
            standby.cancel()
            with pytest.raises(StoreBusy):
                open_store(url, standby=standby)

    @with_a_short_lease
    def test_it_outlives_the_loss_of_its_connection(self, url, active):
        with process(url, "standing by") as standby:
            wait_until("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND NOT granted")
            server().ask(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
            )
            active.tell("close 0")
            assert active.hear() == "done"
            assert standby.hear() == "active 3"

    def test_a_wrong_address_is_told_at_once(self):
        with Standby() as standby, pytest.raises(StoreFailed, match="can't connect to"):
            open_store("postgresql://localhost:1/nowhere", standby=standby)

    @pytest.mark.parametrize("other", ["memory://", "sqlite:///store.db"])
    def test_only_a_store_in_postgresql_has_one(self, other):
        with Standby() as standby, pytest.raises(InvalidArgument, match="only a store in PostgreSQL"):
            open_store(other, standby=standby)


def wait_until(question: str) -> None:
    with Standby() as patience:
        while not server().ask(question):
            patience.wait(0.02)
