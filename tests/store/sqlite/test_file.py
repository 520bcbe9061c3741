"""What is special about a store in a SQLite file: its size, its schema, its readers, its damage, its backups."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import threading
from contextlib import closing
from itertools import chain

import pytest

from seriatim.errors import (
    AlreadyExists,
    DamagedStore,
    NewerSchema,
    NotAStore,
    NotFound,
    StoreBusy,
    StoreFailed,
    StoreFull,
)
from seriatim.store import restore_backup
from seriatim.store.base import BLOCK, Cursor, DeadLetterRow
from seriatim.store.sql.cleanup import REWRITING_AGE
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sqlite import session as sqlite_session
from seriatim.store.sqlite import store as sqlite
from seriatim.store.sqlite.inspection import examine
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from tests.store.contract.kit import (
    NOW,
    kept,
    letter,
    nothing_masked,
    records,
    settle,
    settled,
    topic_with_subscription,
    trouble,
    upkeep_until_done,
)
from tests.store.contract.schema import Database, SchemaContract


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def store(path):
    with closing(SqliteStore(path)) as store:
        yield store


def ask(path, statement, *values):
    """Reach behind the store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


class TestSize:
    def test_the_file_stops_growing_behind_one_blocked_key(self, store, path):
        topic, subscription = topic_with_subscription(store)
        sizes, packs = [], []
        for start in range(0, 60_000, 200):
            batch = range(start, start + 200)
            with store.transaction() as work:
                work.append(topic.id, records(batch, size=200))
                work.settle(subscription.id, [offset for offset in batch if offset > 5])
            if start % 2000 == 0:
                upkeep_until_done(store)
                sizes.append(path.stat().st_size + path.with_name("store.db-wal").stat().st_size)
                packs.append(ask(path, "SELECT count(*) FROM packs")[0][0])
        assert max(sizes) == max(sizes[:15])
        assert packs[5:] == [1] * len(packs[5:])
        upkeep_until_done(store)
        assert ask(path, "SELECT count(*) FROM settled_blocks")[0][0] <= 2
        assert kept(store, topic) == [0, 1, 2, 3, 4, 5]

    def test_a_young_pack_is_left_as_it_is_until_nothing_in_it_is_needed(self, store):
        topic, subscription = topic_with_subscription(store, messages=10)
        settle(store, subscription, range(9))
        upkeep_until_done(store, NOW + REWRITING_AGE - 1)
        assert kept(store, topic) == [*range(10)]
        upkeep_until_done(store, NOW + REWRITING_AGE)
        assert kept(store, topic) == [9]
        with store.transaction() as work:
            work.append(topic.id, records(range(10, 20)))
        settle(store, subscription, range(9, 20))
        upkeep_until_done(store, NOW)
        assert kept(store, topic) == []

    def test_no_offset_is_given_twice_although_the_end_of_the_log_was_rewritten(self, store):
        topic, subscription = topic_with_subscription(store, messages=10)
        settle(store, subscription, range(1, 10))
        upkeep_until_done(store)
        assert kept(store, topic) == [0]
        assert store.catalog().topics[0].next_offset == 10

    def test_room_is_given_back_when_a_backlog_is_gone(self, store, path):
        topic, subscription = topic_with_subscription(store)
        for start in range(0, 50_000, 1000):
            with store.transaction() as work:
                work.append(topic.id, records(range(start, start + 1000), size=400))
        upkeep_until_done(store)
        settle(store, subscription, range(50_000))
        upkeep_until_done(store)
        assert ask(path, "PRAGMA page_count")[0][0] <= sqlite.FREE_PAGES_KEPT * 2
        assert list(store.check()) == []

    def test_nothing_is_left_of_a_drained_key(self, store, path):
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            work.append(topic.id, records(range(10), key="somebody"))
            work.note_troubles(subscription.id, [trouble(3)])
            work.pause_key(subscription.id, "somebody", None)
            work.bury(subscription.id, [letter(4)])
        with store.transaction() as work:
            work.resume_key(subscription.id, "somebody")
            work.purge(subscription.id, [4])
            work.settle(subscription.id, range(10))
        upkeep_until_done(store)
        tables = ("packs", "settlements", "settled_blocks", "troubles", "paused_keys", "dead_letters")
        assert {table: ask(path, f"SELECT count(*) FROM {table}")[0][0] for table in tables} == dict.fromkeys(tables, 0)

    def test_a_floor_rises_over_offsets_that_never_were(self, store, path):
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            work.append(topic.id, records([*range(5), *range(10, 15), 3 * BLOCK]))
            work.settle(subscription.id, [*range(5), *range(10, 15)])
        upkeep_until_done(store)
        assert ask(path, "SELECT floor FROM subscriptions") == [(3 * BLOCK,)]
        assert ask(path, "SELECT * FROM settled_blocks") == []

    def test_what_one_piece_kept_is_remembered_by_the_next(self, store):
        """A block reaches over the end of a piece: what is settled in its first half is still kept."""
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            work.append(topic.id, [*records(range(9), size=1000), *records([9])])
            for offset in range(10, 200):
                work.append(topic.id, records([offset]))
            work.append(topic.id, records([2 * BLOCK]))
            work.settle(subscription.id, range(9, 200))
        upkeep_until_done(store)
        assert kept(store, topic) == [*range(10), 2 * BLOCK]
        assert settled(store, subscription, range(10)) == [9]

    def test_the_write_ahead_log_does_not_grow_behind_a_slow_reader(self, store, path):
        topic, _ = topic_with_subscription(store)
        with store.transaction() as work:
            for offset in range(100):
                work.append(topic.id, records([offset]))
        with closing(SqliteReader(path)) as reader:
            slow = reader.headers(topic.id)
            next(slow)
            for offset in range(100, 400):
                with store.transaction() as work:
                    work.append(topic.id, records([offset], size=100_000))
            assert path.with_name("store.db-wal").stat().st_size < 8 * 1024 * 1024
            assert [pack[0].offset for pack in slow] == list(range(1, 400))

    def test_small_leftovers_of_many_packs_are_packed_together(self, store, path):
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            for start in range(0, 10_000, 50):
                work.append(topic.id, records(range(start, start + 50)))
        settle(store, subscription, [offset for offset in range(10_000) if offset % 50])
        for _ in range(2):  # pieces leave leftovers of their own, which the next round puts together
            upkeep_until_done(store)
        assert len(ask(path, "SELECT * FROM packs")) == 1
        assert kept(store, topic) == list(range(0, 10_000, 50))
        assert settled(store, subscription, range(0, 10_000, 50)) == []


class TestReader:
    def test_a_reader_sees_what_the_live_owner_committed(self, store, path):
        topic, subscription = topic_with_subscription(store, messages=3)
        with closing(SqliteReader(path)) as reader:
            assert reader.catalog() == store.catalog()
            assert reader.cursor(subscription.id) == Cursor(0)
            assert (reader.epoch, reader.url) == (store.epoch, store.url)
            with store.transaction() as work:
                work.append(topic.id, records([3]))
                assert reader.read(topic.id, 0, 9) == records(range(3))
            assert reader.read(topic.id, 0, 9) == records(range(4))

    def test_a_reader_needs_no_owner_and_changes_nothing(self, store, path):
        topic, _ = topic_with_subscription(store, messages=3)
        store.close()
        before = path.read_bytes()
        with closing(SqliteReader(path)) as reader:
            assert kept(reader, topic) == [0, 1, 2]
            assert list(reader.check()) == []
            assert not hasattr(reader, "transaction")
            assert not hasattr(reader, "upkeep")
        assert path.read_bytes() == before

    def test_a_reader_leaves_nothing_beside_a_file_that_was_copied(self, store, path):
        topic_with_subscription(store, messages=3)
        store.close()
        copy = path.with_name("copy.db")
        copy.write_bytes(before := path.read_bytes())
        with closing(SqliteReader(copy)), closing(SqliteReader(copy)) as reader:
            assert list(reader.check()) == []
        examine(copy)
        assert copy.read_bytes() == before
        assert {found.name for found in path.parent.glob("copy*")} == {"copy.db"}

    def test_a_reader_leaves_the_log_of_an_owner_and_that_of_a_crash(self, store, path):
        topic_with_subscription(store, messages=3)
        log = path.with_name("store.db-wal")
        crashed = {name: path.with_name(f"store.db{name}").read_bytes() for name in ("", "-wal")}
        with closing(SqliteReader(path)):
            pass
        assert log.read_bytes() == crashed["-wal"]
        store.close()
        for name, content in crashed.items():
            path.with_name(f"store.db{name}").write_bytes(content)
        with closing(SqliteReader(path)) as reader:
            assert list(reader.check()) == []
        assert log.read_bytes() == crashed["-wal"]

    def test_a_reader_makes_no_store(self, path):
        with pytest.raises(NotFound, match="no store"):
            SqliteReader(path)
        path.touch()
        with pytest.raises(NotAStore, match="is empty: choose another file"):
            SqliteReader(path)

    def test_positions_survive_a_rewrite_of_what_is_being_listed(self, store):
        topic, subscription = topic_with_subscription(store)
        with store.transaction() as work:
            for start in range(0, 2000, 10):
                work.append(topic.id, records(range(start, start + 10)))
        listing = store.headers(topic.id)
        seen = list(next(listing))
        settle(store, subscription, [offset for offset in range(2000) if offset % 10])
        upkeep_until_done(store)
        seen += chain.from_iterable(listing)
        offsets = [position.offset for position in seen]
        assert offsets == sorted(set(offsets))
        assert set(range(0, 2000, 10)) <= set(offsets)


class TestSchema(SchemaContract):
    @pytest.fixture
    def database(self, path) -> Database:
        def of(opener):
            return lambda: opener(path)

        return Database("sqlite", sqlite, of(SqliteStore), of(SqliteReader), lambda sql: ask(path, sql))

    def test_a_newer_schema_leaves_the_file_untouched(self, store, path):
        store.close()
        ask(path, "INSERT INTO migrations VALUES (99, 'from the future')")
        before = path.read_bytes()
        for opener in (SqliteStore, SqliteReader):
            with pytest.raises(NewerSchema):
                opener(path)
        assert path.read_bytes() == before

    def test_a_store_of_the_first_schema_is_brought_to_the_present_one_with_what_it_holds(self, path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "load_migrations", lambda dialect: load_migrations(dialect)[:1])
            old = SqliteStore(path)
            with old.transaction() as work:
                topic = work.create_topic("orders", {})
                work.append(topic.id, records(range(5)))
            old.close()
        ask(
            path,
            f"INSERT INTO subscriptions (topic_id, name, options, floor) VALUES ({topic.id}, 'billing', '{{}}', 2)",
        )
        ask(path, f"INSERT INTO readers (name, topic_id, position) VALUES ('spark', {topic.id}, 3)")
        ask(path, "INSERT INTO topics (name, options, next_offset) VALUES ('passed', '{}', 2)")
        ask(path, "INSERT INTO subscriptions (topic_id, name, options, floor) VALUES (2, 'ahead', '{}', 9)")
        ask(path, "INSERT INTO dead_letters VALUES (1, 1, 'k', 5, 0.0, 'broke', NULL, NULL)")
        store = SqliteStore(path)
        assert store.dead_letters(1) == [DeadLetterRow(1, "k", 5, 0.0, "broke")]
        assert list(store.check()) == []
        assert [row.next_offset for row in store.catalog().topics] == [5, 9]
        upkeep_until_done(store)
        assert kept(store, topic) == list(range(5))  # nobody knows what was published before they began
        store.close()

    def test_a_database_of_another_program_is_refused_untouched(self, path):
        ask(path, "CREATE TABLE theirs (x)")
        before = path.read_bytes()
        for opener in (SqliteStore, SqliteReader):
            with pytest.raises(NotAStore, match="another program"):
                opener(path)
        assert path.read_bytes() == before

    def test_a_file_that_is_no_database_is_refused_untouched(self, path):
        path.write_text("Dear diary, " * 1000)
        for opener in (SqliteStore, SqliteReader):
            with pytest.raises(NotAStore, match=rf"'{path}' is not a SQLite database: choose another file"):
                opener(path)
        assert path.read_text().startswith("Dear diary")
        assert list(path.parent.iterdir()) == [path]

    def test_a_folder_is_refused_before_anything_is_made_beside_it(self, tmp_path):
        (tmp_path / "folder").mkdir()
        for opener in (SqliteStore, SqliteReader):
            with pytest.raises(NotAStore, match="folder' is a folder or a device: name a file"):
                opener(tmp_path / "folder")
        assert [path.name for path in tmp_path.iterdir()] == ["folder"]

    def test_a_store_whose_first_bytes_are_damaged_is_no_other_file(self, path):
        SqliteStore(path).close()
        path.write_bytes(b"damaged!" + path.read_bytes()[8:])
        with pytest.raises(DamagedStore, match="damaged: restore a backup"):
            SqliteStore(path)

    def test_an_empty_file_becomes_a_store(self, path):
        path.touch()
        with closing(SqliteStore(path)) as store:
            assert store.catalog().topics == []

    def test_a_file_name_with_signs_of_a_url_is_taken_as_it_is(self, tmp_path):
        path = tmp_path / "50% off? #1.db"
        with closing(SqliteStore(path)):
            assert path.is_file()

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder in which nobody can make a file")
    def test_a_folder_that_takes_no_file_is_not_called_missing(self):
        with pytest.raises(
            StoreFailed, match=r"'/proc/s.db.lock' can't be opened \(No such file or directory\): choose"
        ):
            SqliteStore("/proc/s.db")

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(StoreFailed, match=r"the folder '.*nowhere' does not exist"):
            SqliteStore(tmp_path / "nowhere" / "store.db")


class TestDamage:
    @pytest.mark.parametrize(
        ("statement", "where", "what"),
        [
            ("UPDATE packs SET data = zeroblob(length(data))", "pack", "checksum"),
            ("UPDATE packs SET head = x'01'", "pack", "cut off"),
            ("UPDATE packs SET messages = 7 WHERE first_offset = 0", "pack", "listed with 7"),
            ("UPDATE packs SET first_offset = 4 WHERE first_offset = 5", "pack", "although 4 comes before"),
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
            ("INSERT INTO settlements VALUES (1, 1, 0, x'FF00000000000000')", "subscription", "settled offset 255"),
            ("INSERT INTO settlements VALUES (1, 1, 0, x'FF')", "subscription", "whole number of values"),
            ("INSERT INTO settled_blocks VALUES (1, 0, x'FF')", "subscription", "block"),
            ("DELETE FROM topics", "table packs", "points to one of topics that does not exist"),
            ("DELETE FROM subscriptions", "table troubles", "points to one of subscriptions"),
            ("SELECT 1", "", ""),
        ],
    )
    def test_the_check_says_what_is_wrong(self, store, path, statement, where, what):
        topic, subscription = topic_with_subscription(store, messages=5)
        with store.transaction() as work:
            work.append(topic.id, records(range(5, 10)))
            work.note_troubles(subscription.id, [trouble(1)])
        ask(path, statement)
        found = list(store.check())
        assert bool(found) == bool(what)
        assert not what or any(where in problem.where and what in problem.what for problem in found)

    def test_a_damaged_page_is_found(self, store, path):
        topic, _ = topic_with_subscription(store, messages=2000)
        store.close()
        with path.open("r+b") as file:
            file.seek(4096 * 5)
            file.write(b"\xa5" * 4096 * 3)
        with closing(SqliteReader(path)) as damaged:
            assert list(damaged.check())
            with pytest.raises(DamagedStore):
                damaged.read(topic.id, 0, 5000)

    def test_damaged_data_is_never_handed_out(self, store, path):
        topic, _ = topic_with_subscription(store, messages=5)
        ask(path, "UPDATE packs SET data = zeroblob(length(data))")
        with pytest.raises(DamagedStore, match="checksum"):
            store.fetch(topic.id, [1])
        assert kept(store, topic) == [0, 1, 2, 3, 4]


class TestTrouble:
    def test_a_full_disk_changes_nothing_and_work_goes_on_when_there_is_room(self, store):
        topic, _ = topic_with_subscription(store, messages=3)
        before = store.catalog()
        store._writer.execute("PRAGMA max_page_count = 60")
        with pytest.raises(StoreFull, match="free some space"):
            self.create_and_append_much(store, topic)
        assert store.catalog() == before
        store._writer.execute("PRAGMA max_page_count = 1000000")
        self.create_and_append_much(store, topic)
        assert kept(store, topic) == [0, 1, 2, 3]

    @staticmethod
    def create_and_append_much(store, topic):
        with store.transaction() as work:
            work.create_topic("other", {})
            work.append(topic.id, records([3], size=1_000_000))

    def test_an_error_that_the_caller_swallows_still_ends_the_transaction(self, store):
        topic, _ = topic_with_subscription(store, messages=3)
        store._writer.execute("PRAGMA max_page_count = 60")
        with pytest.raises(StoreFull):
            self.swallow_and_go_on(store, topic)
        assert kept(store, topic) == [0, 1, 2]

    @staticmethod
    def swallow_and_go_on(store, topic):
        with store.transaction() as work:
            for size in (1_000_000, 1):
                with pytest.raises(StoreFull):
                    work.append(topic.id, records([3], size=size))

    def test_a_file_that_another_program_has_locked_is_busy(self, path, monkeypatch):
        monkeypatch.setattr(sqlite_session, "BUSY_SECONDS", 0.01)
        with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusy, match="let it finish"), store.transaction():
                pass
            other.execute("ROLLBACK")
            topic_with_subscription(store)


class TestBackup:
    def test_a_backup_holds_everything(self, store, tmp_path):
        topic, subscription = topic_with_subscription(store, messages=10)
        settle(store, subscription, [0, 1, 5])
        store.backup(str(tmp_path / "copy.db"))
        with closing(SqliteStore(tmp_path / "copy.db")) as copy:
            assert copy.catalog() == store.catalog()
            assert copy.cursor(subscription.id) == store.cursor(subscription.id)
            assert copy.read(topic.id, 0, 99) == store.read(topic.id, 0, 99)
            assert list(copy.check()) == []

    def test_a_backup_is_of_one_moment_while_the_store_is_in_use(self, store, tmp_path):
        topic, subscription = topic_with_subscription(store)
        done = threading.Event()

        def write() -> None:
            offset = 0
            while not done.is_set():
                with store.transaction() as work:
                    work.append(topic.id, records([offset], size=2000))
                    work.settle(subscription.id, [offset])
                offset += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(5):
                store.backup(str(tmp_path / f"{number}.db"))
        finally:
            done.set()
            writer.join()
        for number in range(5):
            with closing(SqliteReader(tmp_path / f"{number}.db")) as copy:
                assert list(copy.check()) == []
                assert copy.cursor(subscription.id) == Cursor(len(kept(copy, topic)))

    def test_a_backup_never_overwrites(self, store, tmp_path):
        (tmp_path / "copy.db").write_text("precious")
        with pytest.raises(AlreadyExists):
            store.backup(str(tmp_path / "copy.db"))
        assert (tmp_path / "copy.db").read_text() == "precious"

    @pytest.mark.parametrize("links", [True, False])
    def test_a_file_that_comes_while_the_backup_is_made_is_not_overwritten(self, store, tmp_path, monkeypatch, links):
        goal = tmp_path / "copy.db"
        copy_to = SqliteReader._copy_to

        def copy_slowly(self, file):
            copy_to(self, file)
            goal.write_text("precious")

        monkeypatch.setattr(SqliteReader, "_copy_to", copy_slowly)
        if not links:
            without_hard_links(monkeypatch)
        with pytest.raises(AlreadyExists):
            store.backup(str(goal))
        assert goal.read_text() == "precious"
        assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []

    def test_a_backup_needs_no_hard_links(self, store, tmp_path, monkeypatch):
        topic_with_subscription(store, messages=3)
        without_hard_links(monkeypatch)
        store.backup(str(tmp_path / "copy.db"))
        with closing(SqliteReader(tmp_path / "copy.db")) as copy:
            assert copy.catalog() == store.catalog()

    def test_two_backups_to_one_file_do_not_spoil_each_other(self, store, tmp_path):
        topic_with_subscription(store, messages=1000)
        outcomes: list[type | None] = []

        def back_up() -> None:
            try:
                store.backup(str(tmp_path / "copy.db"))
            except AlreadyExists:
                outcomes.append(AlreadyExists)
            else:
                outcomes.append(None)

        threads = [threading.Thread(target=back_up) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes, key=str) == [AlreadyExists] * 3 + [None]
        with closing(SqliteReader(tmp_path / "copy.db")) as copy:
            assert list(copy.check()) == []

    def test_a_backup_to_nowhere_fails_and_the_store_goes_on(self, store, tmp_path):
        with pytest.raises(StoreFailed):
            store.backup(str(tmp_path / "nowhere" / "copy.db"))
        topic_with_subscription(store)


def without_hard_links(monkeypatch) -> None:
    def refuse(*_) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


class TestModes:
    """What is in a store is for its user only, as its socket is."""

    @staticmethod
    def modes(folder) -> dict[str, str]:
        return {path.name: f"{path.stat().st_mode & 0o777:o}" for path in folder.iterdir()}

    def test_everything_that_is_made_is_for_its_user_only(self, tmp_path):
        with nothing_masked():
            with closing(SqliteStore(tmp_path / "store.db")) as store:
                topic_with_subscription(store, messages=3)
                store.backup(str(tmp_path / "copy.db"))
                found = self.modes(tmp_path)
            restore_backup(tmp_path / "copy.db", tmp_path / "new.db")
            found |= self.modes(tmp_path)
        assert found.keys() >= {"store.db", "store.db-wal", "store.db-shm", "store.db.lock", "copy.db", "new.db"}
        assert set(found.values()) == {"600"}

    def test_the_mode_of_a_file_that_exists_is_left_as_it_is(self, tmp_path):
        SqliteStore(tmp_path / "store.db").close()
        (tmp_path / "store.db").chmod(0o640)
        SqliteStore(tmp_path / "store.db").close()
        assert self.modes(tmp_path)["store.db"] == "640"

    def test_a_database_elsewhere_that_is_linked_to_is_private_too(self, tmp_path):
        (tmp_path / "store.db").symlink_to(tmp_path / "elsewhere.db")
        with nothing_masked():
            SqliteStore(tmp_path / "store.db").close()
        assert self.modes(tmp_path)["elsewhere.db"] == "600"


def test_connections_are_opened_as_newer_pythons_want_it(path, monkeypatch):
    """Since Python 3.13 everything but the address has to be named."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda address, /, **options: connect(address, **options))
    with closing(SqliteStore(path)) as store:
        topic_with_subscription(store)
        assert [topic.name for topic in store.catalog().topics] == ["orders"]


class TestARelativePath:
    def test_it_means_the_folder_in_which_the_store_was_opened(self, tmp_path, monkeypatch):
        for name in ("here", "there"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with closing(SqliteStore("store.db")) as store, closing(SqliteReader("store.db")) as reader:
            topic, _ = topic_with_subscription(store, messages=3)
            monkeypatch.chdir(tmp_path / "there")
            with store._pool.use(), reader._pool.use():  # so that others have to be opened
                assert kept(store, topic) == kept(reader, topic) == [0, 1, 2]
            reader.backup("copy.db")
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["copy.db"]


def test_a_committed_transaction_is_synchronised_to_the_disk(store):
    assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._writer.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert store._writer.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_upkeep_of_a_store_with_many_topics_needs_several_pieces(store):
    for name in ("a", "b", "c"):
        with store.transaction() as work:
            topic = work.create_topic(name, {"retention": 0})
            for offset in range(200):
                work.append(topic.id, records([offset]))
    reports = [store.upkeep(NOW)]
    while reports[-1].more_to_do:
        reports.append(store.upkeep(NOW))
    assert len(reports) > 1
    assert sum(report.messages_removed for report in reports) == 600
