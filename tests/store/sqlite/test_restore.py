"""A backup becomes a store again, and what it gives out next was never given out before."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from seriatim.errors import AlreadyExists, DamagedStore, InvalidArgument, NotAStore, NotFound, StoreFailed
from seriatim.store import open_store, restore_backup
from seriatim.store.base import Cursor
from seriatim.store.sqlite.restore import EPOCHS_SKIPPED, OFFSETS_SKIPPED
from seriatim.store.sqlite.store import SqliteReader, SqliteStore
from tests.store.contract.kit import letter, records
from tests.store.sqlite import written_before


@pytest.fixture
def backup(tmp_path) -> Path:
    """A backup of a store with two topics, one of them emptied; the store goes on after it."""
    path = tmp_path / "backup.db"
    with closing(SqliteStore(tmp_path / "lost.db")) as store:
        with store.transaction() as work:
            topic = work.create_topic("orders", {"retain_settled": 0})
            empty = work.create_topic("empty", {})
            row = work.create_subscription(topic.id, "billing", {}, Cursor(0))
            work.append(topic.id, records(range(20)))
            work.settle(row.id, range(10))
            work.bury(row.id, [letter(12)])
            work.append(empty.id, records(range(5)))
            work.create_subscription(empty.id, "done", {}, Cursor(5))
        while store.upkeep(1e12).more_to_do:
            pass
        store.backup(str(path))
        with store.transaction() as work:
            work.append(topic.id, records(range(20, 30)))
    return path


def test_a_restored_store_holds_what_the_backup_holds(tmp_path, backup):
    restore_backup(str(backup), str(tmp_path / "new.db"))
    with closing(SqliteReader(backup)) as before, closing(open_store(f"sqlite:///{tmp_path}/new.db")) as after:
        assert list(after.check()) == []
        assert after.read(1, 0, 99) == before.read(1, 0, 99)
        assert after.cursor(1) == before.cursor(1)
        assert after.dead_letters(1) == before.dead_letters(1)
        assert after.catalog().subscriptions == before.catalog().subscriptions
    assert sorted(path.name for path in tmp_path.iterdir() if "restoring" in path.name) == []


def test_offsets_and_epochs_go_on_far_above_those_of_the_backup(tmp_path, backup):
    restore_backup(str(backup), str(tmp_path / "new.db"))
    with closing(SqliteStore(tmp_path / "new.db")) as store:
        assert store.epoch > 1 + EPOCHS_SKIPPED
        assert [row.next_offset for row in store.catalog().topics] == [20 + OFFSETS_SKIPPED, 5 + OFFSETS_SKIPPED]
        with store.transaction() as work:
            work.append(1, records(range(20 + OFFSETS_SKIPPED, 25 + OFFSETS_SKIPPED)))
            work.settle(1, [*range(20), *range(20 + OFFSETS_SKIPPED, 25 + OFFSETS_SKIPPED)])
            work.unbury(1, [12])
        while store.upkeep(1e12).more_to_do:
            pass
        assert [record.offset for record in store.read(1, 0, 99)] == [12]
        assert list(store.check()) == []


def test_two_restored_stores_do_not_share_epochs(tmp_path, backup):
    epochs = set()
    for number in range(3):
        restore_backup(str(backup), str(tmp_path / f"{number}.db"))
        with closing(SqliteStore(tmp_path / f"{number}.db")) as store:
            epochs.add(store.epoch)
    assert len(epochs) == 3


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_nothing_that_exists_is_overwritten_or_mixed_in(tmp_path, backup, suffix):
    found = tmp_path / f"new.db{suffix}"
    found.write_bytes(b"precious")
    with pytest.raises(AlreadyExists, match=f"new.db{suffix}' already exists: move it away"):
        restore_backup(str(backup), str(tmp_path / "new.db"))
    assert found.read_bytes() == b"precious"


def test_a_store_that_comes_meanwhile_is_not_overwritten(tmp_path, backup, monkeypatch):
    target = tmp_path / "new.db"
    monkeypatch.setattr("seriatim.store.sqlite.restore._go_far_ahead", lambda _: target.write_bytes(b"precious"))
    with pytest.raises(AlreadyExists, match="nothing was restored"):
        restore_backup(str(backup), str(target))
    assert target.read_bytes() == b"precious"


def test_a_backup_with_a_damaged_floor_is_refused(tmp_path, backup):
    with closing(sqlite3.connect(backup)) as connection, connection:
        connection.execute("UPDATE subscriptions SET floor = floor + 1")
    with pytest.raises(DamagedStore, match="is damaged, take another one: subscription 'billing'"):
        restore_backup(str(backup), str(tmp_path / "new.db"))


def test_a_damaged_backup_is_refused(tmp_path, backup):
    with closing(sqlite3.connect(backup)) as connection, connection:
        connection.execute("UPDATE packs SET data = zeroblob(length(data))")
    with pytest.raises(DamagedStore, match="is damaged, take another one: topic 'orders', pack"):
        restore_backup(str(backup), str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()


def test_a_damaged_backup_of_an_earlier_version_is_refused_and_left_as_it_was(tmp_path):
    written_before.unpack(tmp_path)
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(backup)) as connection, connection:
        connection.execute("UPDATE packs SET data = zeroblob(length(data))")
    before = backup.read_bytes()
    with pytest.raises(DamagedStore, match="is damaged, take another one: topic 'dead', pack"):
        restore_backup(str(backup), str(tmp_path / "new.db"))
    assert backup.read_bytes() == before
    assert not (tmp_path / "new.db").exists()


def test_what_is_no_backup_is_refused(tmp_path, backup):
    with pytest.raises(NotFound, match="there is no backup at"):
        restore_backup(str(tmp_path / "nothing.db"), str(tmp_path / "new.db"))
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(NotAStore):
        restore_backup(str(other), str(tmp_path / "new.db"))


def test_an_address_is_not_the_path_of_a_file(backup):
    with pytest.raises(InvalidArgument, match=r"'sqlite:///new\.db' is an address: give the path"):
        restore_backup(backup, "sqlite:///new.db")


@pytest.mark.parametrize("path", [5, None, b"x", "", "a\0b"])
def test_what_can_be_no_path_is_refused_as_either_argument(tmp_path, backup, path):
    with pytest.raises(InvalidArgument, match="The path of the backup "):
        restore_backup(path, tmp_path / "new.db")
    with pytest.raises(InvalidArgument, match="The path of the new store "):
        restore_backup(backup, path)


def test_a_folder_that_does_not_exist_is_named(tmp_path, backup):
    with pytest.raises(StoreFailed, match=r"nowhere/new\.db' can't be written: No such file or directory"):
        restore_backup(str(backup), str(tmp_path / "nowhere" / "new.db"))
