"""Looking after a store: check, backup, restore, doctor."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from seriatim.store import open_store
from seriatim.store.lock_file import OwnerLock


@pytest.fixture
def filled(told, orders) -> Path:
    for data in ("one", "two", "three"):
        told("messages", "publish", "orders", data, "--key", "a")
    return Path("seriatim.db")


def damage(file: Path) -> None:
    """Change a byte of a payload, as a bad disk would."""
    with closing(sqlite3.connect(file)) as connection:
        (id_, data) = connection.execute("SELECT id, data FROM packs ORDER BY id LIMIT 1").fetchone()
        connection.execute("UPDATE packs SET data = ? WHERE id = ?", (bytes([data[0] ^ 1]) + data[1:], id_))
        connection.commit()


def test_check_says_that_nothing_is_wrong(seriatim, told, filled):
    assert told("store", "check") == {"sound": True, "topics": 1, "subscriptions": 1, "messages": 3, "problems": []}
    result = seriatim("store", "check", "--store", "sqlite:///seriatim.db")
    assert (result.exit_code, result.stdout) == (0, "no problems found: 1 topic, 1 subscription, 3 messages\n")


def test_check_works_beside_an_owner(told, filled):
    store = open_store("sqlite:///seriatim.db")
    try:
        assert told("store", "check")["sound"] is True
    finally:
        store.close()


def test_check_names_the_damage_and_fails(seriatim, filled):
    damage(filled)
    result = seriatim("store", "check", "--json")
    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["where"].startswith("topic 'orders', pack ")
    result = seriatim("store", "check")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "1 problem found: restore a backup")


def spoil_options(filled: Path) -> None:
    """Let the subscription and the topic have options that can't be used."""
    store = open_store(f"sqlite:///{filled}")
    try:
        catalog = store.catalog()
        with store.transaction() as work:
            work.update_topic(catalog.topics[0].id, {"retention": "7d"})
            work.update_subscription(catalog.subscriptions[0].id, {"message_ordering": True, "retry": None})
    finally:
        store.close()


def test_options_that_can_not_be_used_are_shown_wherever_one_looks(seriatim, told, filled):
    spoil_options(filled)
    result = seriatim("store", "check")
    assert result.exit_code == 1
    *problems, last = result.stdout.splitlines()
    assert last == "2 problems found"
    assert "topic 'orders'" in problems[-2]
    assert "subscription 'billing'" in problems[-1]
    result = seriatim("store", "doctor", "--json")
    assert result.exit_code == 1
    assert [row["status"] for row in json.loads(result.stdout) if row["check"] == "options"] == ["fail", "fail"]
    why = "options that can't be used (retry must be a RetryPolicy, not None): set retry anew"
    assert told("store", "stats")[0]["stopped"] == why
    assert told("subscriptions", "list")[0]["problem"] == why
    assert told("topics", "list")[0]["problem"].endswith("set retention anew")
    for command in (["store", "stats"], ["subscriptions", "list"]):
        assert why in seriatim(*command).stdout


def test_check_of_nothing_is_an_error(seriatim):
    result = seriatim("store", "check", "--store", "sqlite:///nowhere.db")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: there is no store at 'nowhere.db': create one with 'seriatim topics create', or correct --store\n",
    )


def test_a_backup_is_restored_elsewhere(told, filled):
    written = told("store", "backup", "copy.db")
    assert Path(written["file"]) == Path("copy.db").absolute()
    assert written["bytes"] == Path("copy.db").stat().st_size
    told("store", "restore", "copy.db", "--store", "sqlite:///second.db")
    peeked = told("keys", "peek", "billing", "a", "--store", "sqlite:///second.db")
    assert [row["data"] for row in peeked] == ["one", "two", "three"]


def test_a_look_at_a_backup_leaves_nothing_beside_it(told, filled, tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    told("store", "backup", str(folder / "backup.db"))
    store = f"sqlite:///{folder / 'backup.db'}"
    assert told("store", "check", "--store", store)["sound"]
    told("store", "doctor", "--store", store)
    told("store", "restore", str(folder / "backup.db"), "--store", f"sqlite:///{tmp_path / 'restored.db'}")
    assert [path.name for path in folder.iterdir()] == ["backup.db"]


def test_a_file_that_exists_is_not_overwritten_by_a_backup(seriatim, filled):
    Path("copy.db").write_text("precious")
    result = seriatim("store", "backup", "copy.db")
    assert result.exit_code == 1
    assert "already exists: choose another name for the backup" in result.stderr
    assert Path("copy.db").read_text() == "precious"


def test_a_store_that_is_there_is_replaced_only_on_demand_and_kept(seriatim, told, filled):
    told("store", "backup", "copy.db")
    told("messages", "publish", "orders", "four", "--key", "a")
    result = seriatim("store", "restore", "copy.db")
    assert result.exit_code == 1
    assert "'seriatim.db' already exists: move it away, add --replace" in result.stderr
    assert told("store", "restore", "copy.db", "--replace")["replaced"] == "seriatim.db.replaced"
    assert told("store", "stats")[0]["total"] == 3
    assert told("store", "stats", "--store", "sqlite:///seriatim.db.replaced")[0]["total"] == 4


def test_a_store_is_not_restored_from_itself(seriatim, told, filled):
    result = seriatim("store", "restore", "seriatim.db", "--replace")
    assert (result.exit_code, result.stderr) == (2, "error: 'seriatim.db' is the store itself: name a backup of it\n")
    assert told("store", "stats")[0]["total"] == 3


def test_a_damaged_backup_is_refused_before_anything_changes(seriatim, told, filled):
    told("store", "backup", "copy.db")
    damage(Path("copy.db"))
    result = seriatim("store", "restore", "copy.db", "--replace")
    assert result.exit_code == 1
    assert "the backup 'copy.db' is damaged" in result.stderr
    assert told("store", "check")["sound"] is True


@pytest.mark.parametrize(
    ("backup", "error"), [("missing.db", "there is no backup at 'missing.db'"), ("text", "is not a SQLite database")]
)
def test_what_is_no_backup_is_refused(seriatim, filled, backup, error):
    Path("text").write_text("no backup" * 100)
    result = seriatim("store", "restore", backup, "--store", "sqlite:///new.db")
    assert result.exit_code == 1
    assert error in result.stderr
    assert not list(Path().glob("new.db*"))


def test_a_store_in_use_is_not_replaced(seriatim, told, filled):
    told("store", "backup", "copy.db")
    lock = OwnerLock(Path("seriatim.db.lock"))
    try:
        result = seriatim("store", "restore", "copy.db", "--replace")
    finally:
        lock.release()
    assert result.exit_code == 1
    assert "the store is owned by process" in result.stderr
    assert not Path("seriatim.db.replaced").exists()


def findings(result) -> dict[str, dict[str, str]]:
    return {row["check"]: row for row in json.loads(result.stdout)}


def test_the_doctor_finds_a_sound_store_well(seriatim, filled):
    result = seriatim("store", "doctor", "--json")
    assert result.exit_code == 0, result.output
    found = findings(result)
    assert {row["status"] for row in found.values()} <= {"ok", "warn"}
    assert found["schema"]["found"].endswith("the newest")
    assert found["owner"]["found"].startswith("nobody")
    assert {"python", "sqlite", "extra spark", "store", "pending upkeep", "file system", "free space", "fsync"} <= set(
        found
    )


def test_the_doctor_names_the_owner(seriatim, filled):
    lock = OwnerLock(Path("seriatim.db.lock"))
    try:
        found = findings(seriatim("store", "doctor", "--json"))
    finally:
        lock.release()
    assert found["owner"]["status"] == "ok"
    assert found["owner"]["found"].endswith(", alive")


def test_the_doctor_says_what_to_do_where_there_is_no_store(seriatim):
    found = findings(seriatim("store", "doctor", "--json"))
    assert (found["store"]["status"], found["store"]["advice"]) == ("warn", "its first user creates it")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("sqlite:///missing/folder/s.db", "the folder 'missing/folder' does not exist"),
        ("sqlite:///text", "is not a SQLite database"),
        ("sqlite:///.", "is a folder or a device: name a file"),
    ],
)
def test_the_doctor_fails_with_a_store_that_can_not_be_used(seriatim, url, what):
    Path("text").write_text("no store" * 100)
    result = seriatim("store", "doctor", "--store", url, "--json")
    assert result.exit_code == 1
    assert findings(result)["store"]["status"] == "fail"
    assert what in findings(result)["store"]["found"]
    assert findings(result)["store"]["advice"]


def test_the_doctor_prints_a_table_for_people(seriatim, filled):
    lines = seriatim("store", "doctor").stdout.splitlines()
    assert lines[0].split() == ["check", "found", "what", "to", "do"]
    assert [line.split()[1] for line in lines[1:4]] == ["seriatim", "python", "sqlite"]


def test_options_that_can_not_be_used_are_repaired_by_updates(seriatim, told, filled):
    spoil_options(filled)
    told("topics", "update", "orders", "--retention", "1d")
    told("subscriptions", "update", "billing", "--max-attempts", "3")
    assert told("store", "check")["problems"] == []
    shown = told("subscriptions", "show", "billing")
    assert (shown["problem"], shown["retry"]["max_attempts"]) == (None, 3)
