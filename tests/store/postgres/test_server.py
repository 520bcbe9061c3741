"""A store in a real PostgreSQL: its schema, who may do what, what it survives, and what its errors say."""

from __future__ import annotations

import logging
import os
from contextlib import closing

import psycopg
import pytest

from seriatim import extras
from seriatim.errors import (
    FailedPrecondition,
    InvalidArgument,
    MissingExtra,
    NotAStore,
    NotFound,
    StoreBusy,
    StoreFailed,
    StoreLost,
)
from seriatim.store import open_store
from seriatim.store.base import Cursor, PausedRow, ReaderRow, Standby
from seriatim.store.postgres import session as postgres_session
from seriatim.store.postgres import store as postgres
from seriatim.store.postgres.session import PostgresSession
from seriatim.store.postgres.store import PostgresReader, PostgresStore
from tests.postgres import schema_of, server
from tests.store.contract.kit import kept, letter, records, settle, topic_with_subscription, trouble, upkeep_until_done
from tests.store.contract.schema import Database, SchemaContract


@pytest.fixture
def url(postgres_url) -> str:
    return postgres_url


@pytest.fixture
def store(url):
    with closing(PostgresStore(url)) as store:
        yield store


def ask(url: str, statement: str) -> list[tuple]:
    return server().ask(statement, schema_of(url))


class TestOpening:
    def test_an_address_of_postgresql_opens_a_store_in_it(self, url):
        with closing(open_store(url)) as store, closing(open_store(url, read_only=True)) as reader:
            assert isinstance(store, PostgresStore)
            assert (reader.url, reader.epoch) == (store.url, store.epoch) == (url, 1)
            assert not hasattr(reader, "transaction")

    def test_the_older_name_of_the_scheme_is_understood(self, url):
        with closing(open_store(url.replace("postgresql://", "postgres://"))) as store:
            assert store.catalog().topics == []

    def test_two_schemas_of_a_database_are_two_stores(self, store):
        topic_with_subscription(store)
        with closing(PostgresStore(server().new_url())) as other:
            assert other.catalog().topics == []

    def test_a_schema_that_is_there_and_empty_becomes_a_store(self, url):
        server().ask(f"CREATE SCHEMA {schema_of(url)}")
        with closing(PostgresStore(url)) as store:
            assert store.catalog().topics == []

    def test_a_reader_makes_no_store(self, url):
        with pytest.raises(NotFound, match=f"no store in schema '{schema_of(url)}'"):
            PostgresReader(url)
        assert server().ask(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(url)}'") == []

    def test_the_tables_of_another_program_are_refused_untouched(self, url):
        server().ask(f"CREATE SCHEMA {schema_of(url)}")
        ask(url, "CREATE TABLE store (theirs int)")
        for opener in (PostgresStore, PostgresReader):
            with pytest.raises(NotAStore, match="tables of another program: choose another one with"):
                opener(url)
        assert ask(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema_of(url)}'") == [("store",)]

    def test_a_missing_extra_is_named(self, monkeypatch):
        monkeypatch.setattr(extras, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"pip install 'seriatim\[postgres\]'"):
            open_store("postgresql://db/orders")

    @pytest.mark.parametrize("opener", [PostgresStore, PostgresReader])
    def test_a_server_that_is_not_there_is_named_without_secrets(self, opener):
        with pytest.raises(StoreFailed, match=r"can't connect to postgresql://me:\*\*\*@localhost:1/orders") as caught:
            opener("postgresql://me:hunter2@localhost:1/orders")
        assert "hunter2" not in str(caught.value)

    def test_a_database_that_does_not_exist_is_said_to_be_so(self, url):
        with pytest.raises(StoreFailed, match='database "nothing" does not exist'):
            PostgresStore(url.replace("/postgres?", "/nothing?"))

    @pytest.mark.parametrize(
        "wrong",
        [
            "postgresql://me:hunter2/@db/x",
            "postgresql://me:hunter2?@db/x",
            "postgresql://me:@db/x?hunter2=1",
            "postgresql://me:%zzhunter2@db/x",
        ],
    )
    def test_an_address_that_is_none_is_refused_without_secrets(self, wrong):
        with pytest.raises(InvalidArgument, match="write postgresql://user@host:port/database") as caught:
            PostgresStore(wrong)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_no_secret_is_in_the_address_of_an_open_store_or_in_the_log(self, url, caplog):
        secret = url.replace("postgres@", "postgres:hunter2@")
        with (
            caplog.at_level(logging.DEBUG),
            closing(PostgresStore(secret + "&lease=0.2")) as store,
            Standby() as patience,
        ):
            ask(url, "UPDATE owner SET epoch = 99")
            while not store._unusable:
                patience.wait(0.01)
        assert store.url == url.replace("postgres@", "postgres:***@") + "&lease=0.2"
        assert "hunter2" not in caplog.text


class TestSchema(SchemaContract):
    @pytest.fixture
    def database(self, url) -> Database:
        def of(opener):
            return lambda: opener(url)

        return Database("postgres", postgres, of(PostgresStore), of(PostgresReader), lambda sql: ask(url, sql))


class TestDurability:
    @pytest.mark.parametrize(
        ("default", "used"), [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")]
    )
    def test_a_commit_is_durable_whatever_the_default_of_the_server_is(self, url, monkeypatch, default, used):
        monkeypatch.setenv("PGOPTIONS", f"-c synchronous_commit={default}")
        with closing(PostgresStore(url)) as store:
            assert store._pipe.connection.execute(b"SHOW synchronous_commit").fetchone() == (used,)

    def test_a_commit_of_appends_and_settlements_asks_for_no_answer_but_the_commit(self, store, monkeypatch):
        topic, subscription = topic_with_subscription(store)
        asked: list[str] = []
        rows = PostgresSession.rows

        def watched(session, query, *values):
            asked.append(query)
            return rows(session, query, *values)

        monkeypatch.setattr(PostgresSession, "rows", watched)
        for offset in range(3):
            asked.clear()
            with store.transaction() as work:
                work.append(topic.id, records([offset]))
                work.settle(subscription.id, [offset])
        assert asked == []
        assert kept(store, topic) == [0, 1, 2]

    @pytest.mark.parametrize("text", ["\0", "\0\1\1a\1b\0a", "ä\u2028", "\\x00'\""])
    def test_any_text_comes_back_as_it_was(self, store, text):
        with store.transaction() as work:
            topic = work.create_topic(text, {text: text})
            subscription = work.create_subscription(topic.id, text, {}, Cursor(0))
            work.append(topic.id, records([0, 1], key=text))
            work.pause_key(subscription.id, text, text)
            work.bury(subscription.id, [letter(0)._replace(key=text, error=text)])
            work.note_troubles(subscription.id, [trouble(1)._replace(error=text)])
        (found,) = store.catalog().topics
        assert (found.name, found.options) == (text, {text: text})
        assert store.catalog().subscriptions[0].name == text
        assert store.read(topic.id, 0, 1)[0].key == text
        assert store.paused_keys(subscription.id) == [PausedRow(text, text)]
        assert store.dead_letters(subscription.id)[0] == letter(0)._replace(key=text, error=text)
        assert store.troubles(subscription.id)[0].error == text

    def test_names_are_listed_in_the_same_order_on_every_server(self, store):
        with store.transaction() as work:
            topic = work.create_topic("t", {})
            for name in ("b", "B", "ä", "a"):
                work.put_reader(ReaderRow(name, topic.id, 0))
        assert [reader.name for reader in store.catalog().readers] == ["B", "a", "b", "ä"]


class TestOwnership:
    def test_a_transaction_of_a_former_owner_changes_nothing(self, store, url):
        topic, _ = topic_with_subscription(store)
        ask(url, "UPDATE store SET epoch = epoch + 1")
        with pytest.raises(StoreLost, match="another process has taken it over"), store.transaction() as work:
            work.append(topic.id, records([0]))
        assert ask(url, "SELECT * FROM packs") == []
        with pytest.raises(StoreLost):
            store.upkeep(0.0)

    def test_nobody_can_take_over_in_the_middle_of_a_transaction(self, store, url):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            work.claim_batch("w", 1)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                ask(url, "SELECT * FROM store FOR SHARE NOWAIT")
            work.append(topic.id, records([0]))
        assert ask(url, "SELECT count(*) FROM packs") == [(1,)]

    def test_an_idle_owner_finds_out_by_itself_that_another_has_taken_over(self, url):
        with closing(PostgresStore(url + "&lease=0.2")) as store, Standby() as patience:
            ask(url, "UPDATE owner SET epoch = epoch + 1")
            while not store._unusable:
                patience.wait(0.01)
            with pytest.raises(StoreLost, match="another process has taken it over"):
                store.catalog()

    def test_what_another_program_has_locked_is_busy_and_work_goes_on_afterwards(self, url, monkeypatch):
        monkeypatch.setattr(postgres_session, "LOCK_SECONDS", 0.05)
        with closing(PostgresStore(url)) as store:
            topic, _ = topic_with_subscription(store)
            with psycopg.connect(server().url("public").partition("&")[0]) as other:
                other.execute(f"LOCK TABLE {schema_of(url)}.packs".encode())
                with pytest.raises(StoreBusy, match="let it finish"), store.transaction() as work:
                    work.append(topic.id, records([0]))
            with store.transaction() as work:
                work.append(topic.id, records([0]))
            assert kept(store, topic) == [0]

    def test_a_role_that_may_only_read_can_read_and_not_own(self, store, url):
        topic, _ = topic_with_subscription(store, messages=3)
        store.close()
        schema = schema_of(url)
        server().ask(f"CREATE ROLE only_{schema} LOGIN")
        theirs = url.replace("postgres@", f"only_{schema}@")
        with pytest.raises(StoreFailed, match="grant it USAGE on the schema"):
            PostgresReader(theirs)
        server().ask(f"GRANT USAGE ON SCHEMA {schema} TO only_{schema}")
        server().ask(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO only_{schema}")
        with closing(PostgresReader(theirs)) as reader:
            assert kept(reader, topic) == [0, 1, 2]
            assert list(reader.check()) == []
        with pytest.raises(StoreFailed, match="the role may not do this"):
            PostgresStore(theirs)

    def test_a_store_that_was_opened_before_a_fork_refuses_everything_in_the_child(self, store, url):
        topic, _ = topic_with_subscription(store, messages=3)
        assert kept(store, topic) == [0, 1, 2]
        child = os.fork()
        if child == 0:
            os._exit(attempts_in_a_child(store))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with store.transaction() as work:  # and nothing that the child did has touched the connections of the parent
            work.append(topic.id, records([3]))
        assert kept(store, topic) == [0, 1, 2, 3]

    def test_the_connections_of_readers_are_used_again(self, store):
        topic, _ = topic_with_subscription(store, messages=3)
        for _ in range(20):
            store.read(topic.id, 0, 9)
            with pytest.raises(NotFound):
                store.cursor(99)
        used = server().ask("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        assert used[0][0] < 10


def attempts_in_a_child(store) -> int:
    """How many of three things were refused."""
    refused = 0
    for attempt in (store.catalog, lambda: store.upkeep(0.0), lambda: store.transaction().__enter__()):
        try:
            attempt()
        except StoreLost:
            refused += 1
    store.close()
    return refused


class TestDamage:
    @pytest.mark.parametrize(
        ("statement", "where", "what"),
        [
            ("UPDATE packs SET data = decode(repeat('00', length(data)), 'hex')", "pack", "checksum"),
            ("UPDATE packs SET head = '\\x01'", "pack", "cut off"),
            ("UPDATE packs SET messages = 7 WHERE first_offset = 0", "pack", "listed with 7"),
            (
                "UPDATE subscriptions SET floor = 11, floor_checksum = 4294967296",
                "subscription 'billing'",
                "log ends at 10",
            ),
            ("UPDATE subscriptions SET floor = 1", "subscription 'billing'", "the floor of subscription 1 is damaged"),
            ("UPDATE topics SET options = '{} 1'", "store", "the options of topic 'orders' are damaged"),
            (
                "UPDATE troubles SET failures = 9",
                "subscription 'billing'",
                "what is known of message 1 in subscription 1",
            ),
            (
                "INSERT INTO settlements (subscription_id, undone, offsets) VALUES (1, 0, '\\xFF')",
                "subscription",
                "whole number",
            ),
            ("SET session_replication_role = replica; DELETE FROM topics", "table packs", "points to one of topics"),
            (
                "SET session_replication_role = replica; DELETE FROM subscriptions",
                "table troubles",
                "points to one of subs",
            ),
            (
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'packs_in_order'::regclass",
                "database",
                "REINDEX",
            ),
            ("SELECT 1", "", ""),
        ],
    )
    def test_the_check_says_what_is_wrong(self, store, url, statement, where, what):
        topic, subscription = topic_with_subscription(store, messages=5)
        with store.transaction() as work:
            work.append(topic.id, records(range(5, 10)))
            work.note_troubles(subscription.id, [trouble(1)])
        ask(url, statement)
        ask(url, "SET session_replication_role = origin")
        found = list(store.check())
        assert bool(found) == bool(what)
        assert not what or any(where in problem.where and what in problem.what for problem in found)

    def test_a_backup_is_left_to_postgresql(self, store, tmp_path):
        with pytest.raises(FailedPrecondition, match="pg_dump --schema=s"):
            store.backup(str(tmp_path / "copy"))
        assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_drained_key(store, url):
    topic, subscription = topic_with_subscription(store)
    with store.transaction() as work:
        work.append(topic.id, records(range(10), key="somebody"))
        work.note_troubles(subscription.id, [trouble(3)])
        work.bury(subscription.id, [letter(4)])
        work.purge(subscription.id, [4])
    settle(store, subscription, range(10))
    upkeep_until_done(store)
    tables = ("packs", "settlements", "settled_blocks", "troubles", "paused_keys", "dead_letters")
    assert {table: ask(url, f"SELECT count(*) FROM {table}")[0][0] for table in tables} == dict.fromkeys(tables, 0)
