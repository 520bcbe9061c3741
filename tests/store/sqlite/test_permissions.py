"""Where a permission is missing, it is named with the file or folder that it is missing for."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.errors import StoreFailed
from seriatim.store.sqlite.store import SqliteReader, SqliteStore

NOBODY = 65534


@pytest.fixture
def folder(monkeypatch) -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest, with a store."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", name)
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        with closing(SqliteStore(folder / "store.db")):
            pass
        (folder / "store.db.lock").unlink()
        (folder / "store.db").chmod(0o644)
        yield folder
        folder.chmod(0o755)


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user to whom permissions apply."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def refusal_of_a_reader(path: Path) -> str:
    with as_nobody(), pytest.raises(StoreFailed) as refused, closing(SqliteReader(path)):
        pass
    return str(refused.value)


def test_a_store_that_may_not_be_read(folder):
    (folder / "store.db").chmod(0)
    assert refusal_of_a_reader(folder / "store.db") == (
        f"no permission to read '{folder}/store.db': correct the permissions, or run this as the user of the store (unable to "
        "open database file)"
    )


def test_a_store_in_a_folder_that_may_not_be_written(folder):
    folder.chmod(0o555)
    assert refusal_of_a_reader(folder / "store.db").startswith(
        f"no permission to write in '{folder}', where SQLite keeps files beside the store, even to read it: "
    )


def test_a_backup_can_be_read_in_a_folder_that_may_not_be_written(folder):
    with closing(SqliteReader(folder / "store.db")) as reader:
        reader.backup(str(folder / "backup.db"))
    (folder / "backup.db").chmod(0o644)
    folder.chmod(0o555)
    with as_nobody(), closing(SqliteReader(folder / "backup.db")) as reader:
        assert list(reader.check()) == []


def test_the_doctor_advises_to_correct_permissions(folder):
    def findings() -> dict[str, dict[str, str]]:
        found = CliRunner().invoke(cli, ["store", "doctor", "--store", f"sqlite:///{folder}/store.db", "--json"])
        return {row["check"]: row for row in json.loads(found.stdout)}

    assert findings()["store"]["status"] == "ok"  # and whatever it needs is imported
    (folder / "store.db").chmod(0)
    with as_nobody():
        found = findings()["store"]
    assert (found["status"], found["advice"]) == ("fail", "correct the permissions, or --store")
    assert found["found"].startswith(f"no permission to read '{folder}/store.db'")
    folder.chmod(0o600)
    os.chdir("/")
    with as_nobody():
        os.environ["HOME"] = "/"
        found = findings()["store"]
    assert (found["status"], found["found"]) == ("fail", f"'{folder}/store.db': Permission denied")


def test_a_configuration_that_may_not_be_read(folder):
    (folder / "seriatim.toml").write_text("progress = false")
    (folder / "seriatim.toml").chmod(0)
    with as_nobody():
        result = CliRunner().invoke(cli, ["config"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: the configuration file 'seriatim.toml' can't be read (Permission denied): correct the permissions of the file "
    )
