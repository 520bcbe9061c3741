"""``seriatim store restore``: a store from a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from seriatim.cli.common.command import with_url
from seriatim.cli.common.output import Output
from seriatim.errors import AlreadyExists, InvalidArgument, NotFound, StoreFailed

PARTS = ("", "-wal", "-shm")
"""A store in SQLite is up to three files. They go together: a write-ahead log left behind would be taken for the new one's."""


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace an existing store, which is kept beside the new one.")
@with_url
def command(url: str, output: Output, file: Path, replace: bool) -> None:
    """Restore a store from a backup.

    FILE is verified first. The store must not be in use: stop the program that owns it. With --replace, an existing store is
    renamed to end in '.replaced'.
    """
    from seriatim.store.sqlite.session import refuse_other_file

    target = _file_of(url)
    if not file.is_file():
        raise NotFound(f"there is no backup at '{file}'")
    refuse_other_file(file)
    if target.exists() and file.samefile(target):
        raise InvalidArgument(f"'{file}' is the store itself: name a backup of it")
    if target.exists() and not replace:
        raise AlreadyExists(f"'{target}' already exists: move it away, add --replace, or name another one with --store")
    replaced = Path(f"{target}.replaced") if replace and target.exists() else None
    _restore(file, target, replaced)
    kept = f"; what was there is now '{replaced}'" if replaced else ""
    fields = {"store": str(target), "backup": str(file), "replaced": None if replaced is None else str(replaced)}
    output.result(fields, f"restored '{target}' from '{file}'{kept}")


def _file_of(url: str) -> Path:
    from seriatim.store import store_file

    file = store_file(url)
    if file is None:
        raise InvalidArgument("only a SQLite store can be restored: correct --store, or use PostgreSQL's own tools")
    if not file.parent.is_dir():
        raise StoreFailed(f"the folder '{file.parent}' does not exist: create it first")
    return file


def _restore(backup: Path, target: Path, replaced: Path | None) -> None:
    from seriatim.store import restore_backup
    from seriatim.store.lock_file import OwnerLock

    with ExitStack() as undo:
        undo.callback(OwnerLock(Path(f"{target}.lock")).release)
        if replaced is not None:
            undo.enter_context(_moved_aside(target, replaced))
        restore_backup(str(backup), str(target))


@contextmanager
def _moved_aside(store: Path, elsewhere: Path) -> Iterator[None]:
    """Rename a store, and rename it back if the block fails."""
    if elsewhere.exists():
        raise AlreadyExists(f"'{elsewhere}' is in the way: move it elsewhere, or delete it")
    _rename(store, elsewhere)
    try:
        yield
    except BaseException:
        _rename(elsewhere, store)
        raise


def _rename(store: Path, new: Path) -> None:
    """Whenever the power fails, the store is whole under one name, and a database under either: none is without its log."""
    from seriatim.store.private_files import write_through

    parts = [part for part in PARTS if Path(f"{store}{part}").exists()]
    try:
        for part in reversed(parts):
            Path(f"{new}{part}").hardlink_to(f"{store}{part}")
            write_through(store.parent)
        for part in parts:
            Path(f"{store}{part}").unlink()
            write_through(store.parent)
    except OSError as error:
        raise StoreFailed(f"'{store}' can't be renamed to '{new}': {error.strerror}") from error
