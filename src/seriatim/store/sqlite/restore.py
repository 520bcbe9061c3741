"""Restoring a store from a backup.

Rules
    - A backup of an earlier version is accepted: the schema of the copy is updated.
    - The copy is checked before it becomes a store, and the backup is never changed. An existing store is never overwritten,
      nor is anything written next to what a lost store left behind: its write-ahead log would be taken for part of the
      restored store.
    - A file under the target's name is always complete: the copy has a temporary name until all of it is on the disk.
    - The backup does not know what happened after it, but clients may. So that nothing new is confused with what they saw, the
      restored store continues far above the backup:
        - **Epochs** rise by 65,536 and a random number up to a million. No fencing token of the lost store is reused, unless
          the store was opened more than 65,536 times since the backup. Two stores restored from the same backup use the same
          tokens only by chance: about one in a million for each time that one of them is opened.
        - **Offsets** of every topic rise by 16,777,216. No message id is reused, unless more messages than that were published
          to the topic since the backup.
    - **Not guaranteed**: messages published after the backup are lost, and messages settled after it are delivered again.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from itertools import islice
from pathlib import Path

from seriatim.core.text_checks import check_address
from seriatim.errors import AlreadyExists, DamagedStore, InvalidArgument, NotFound, StoreFailed
from seriatim.store.private_files import put_in_place, unfinished
from seriatim.store.sql.queries import load_migrations
from seriatim.store.sql.schema import migrate
from seriatim.store.sqlite.session import SqliteSession, connect_writer
from seriatim.store.sqlite.store import SqliteReader

EPOCHS_SKIPPED = 1 << 16
RANDOM_EPOCHS = 1 << 20
OFFSETS_SKIPPED = 1 << 24

PROBLEMS_SHOWN = 5


def restore_backup(backup: str | Path, target: str | Path) -> None:
    """Restore a backup (a file written by ``Engine.backup`` or ``Store.backup``) to ``target``."""
    _check_path("The path of the backup", backup)
    _check_path("The path of the new store", target)
    if "://" in str(target):
        raise InvalidArgument(f"'{target}' is an address: give the path of the file that is to become the store")
    source, goal = Path(backup), Path(target)
    _refuse_leftovers(goal)
    _refuse_other_file(source)
    try:
        with unfinished(goal) as partial:
            shutil.copyfile(source, partial)
            _update_schema(partial)
            _refuse_damage(partial, source)
            _go_far_ahead(partial)
            put_in_place(partial, goal)
    except FileExistsError:
        raise AlreadyExists(f"'{goal}' already exists: nothing was restored") from None
    except OSError as error:
        raise StoreFailed(f"'{goal}' can't be written: {error.strerror}") from error


def _check_path(what: str, path: object) -> None:
    text = str(path) if isinstance(path, Path) else path
    check_address(what, text)
    if not text:
        raise InvalidArgument(f"{what} cannot be empty")


def _refuse_leftovers(goal: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        found = Path(f"{goal}{suffix}")
        if found.exists():
            raise AlreadyExists(f"'{found}' already exists: move it away, or restore under another name")


def _refuse_other_file(source: Path) -> None:
    if not source.is_file():
        raise NotFound(f"there is no backup at '{source}'")
    SqliteReader(source, may_be_older=True).close()


def _update_schema(path: Path) -> None:
    with closing(connect_writer(path)) as connection:
        session = SqliteSession(connection)
        session.command("BEGIN IMMEDIATE")
        migrate(session, load_migrations("sqlite"), new=False)
        session.command("COMMIT")


def _refuse_damage(copy: Path, source: Path) -> None:
    with closing(SqliteReader(copy)) as reader:
        problems = [f"{where}: {what}" for where, what in islice(reader.check(), PROBLEMS_SHOWN)]
    if problems:
        raise DamagedStore(f"the backup '{source}' is damaged, take another one: {'; '.join(problems)}")


def _go_far_ahead(path: Path) -> None:
    with closing(connect_writer(path)) as connection:
        session = SqliteSession(connection)
        session.command("BEGIN IMMEDIATE")
        session.run("skip_epochs", EPOCHS_SKIPPED + secrets.randbelow(RANDOM_EPOCHS))
        session.run("skip_offsets", OFFSETS_SKIPPED)
        session.command("COMMIT")
