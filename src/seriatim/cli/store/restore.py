"""``seriatim restore``: make a store from a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from seriatim.cli.output import Output
from seriatim.cli.session import configured
from seriatim.cli.store import json_option, store_option
from seriatim.config import LoadedConfig
from seriatim.errors import AlreadyExists, InvalidArgument, StoreFailed

PARTS = ("", "-wal", "-shm")
"""A store in SQLite is up to three files. They go together: a write-ahead log left behind would be taken for the new one's."""


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace a store that is there; it is kept beside the new one.")
@store_option
@json_option
@configured
def command(loaded: LoadedConfig, file: Path, replace: bool, store: str | None, as_json: bool) -> None:
    """Make the store from the backup FILE.

    The backup is checked first. The store must not be in use: end the program that owns it. With --replace, the store that is
    there is kept under the same name with '.replaced' at its end.
    """
    target = _file_of(store or loaded.values.store)
    replaced = Path(f"{target}.replaced") if replace and target.exists() else None
    _restore(file, target, replaced)
    kept = f"; what was there is now '{replaced}'" if replaced else ""
    fields = {"store": str(target), "backup": str(file), "replaced": None if replaced is None else str(replaced)}
    Output(as_json).result(fields, f"restored '{target}' from '{file}'{kept}")


def _file_of(url: str) -> Path:
    from seriatim.store import store_file

    file = store_file(url)
    if file is None:
        raise InvalidArgument("only a store in a SQLite file can be restored: correct --store, or see to its server")
    if not file.parent.is_dir():
        raise StoreFailed(f"the folder '{file.parent}' does not exist: make it first")
    return file


def _restore(backup: Path, target: Path, replaced: Path | None) -> None:
    from seriatim.store import restore_backup
    from seriatim.store.lock_file import OwnerLock

    with ExitStack() as undo:
        undo.callback(OwnerLock(Path(f"{target}.lock")).release)
        if replaced is not None:
            undo.enter_context(_out_of_the_way(target, replaced))
        elif target.exists():
            raise AlreadyExists(
                f"'{target}' exists already: move it away, add --replace, or name another one with --store"
            )
        restore_backup(str(backup), str(target))


@contextmanager
def _out_of_the_way(store: Path, elsewhere: Path) -> Iterator[None]:
    """Rename a store, and name it as before if what is done meanwhile fails."""
    if elsewhere.exists():
        raise AlreadyExists(f"'{elsewhere}' is in the way: move it elsewhere, or delete it")
    _rename(store, elsewhere)
    try:
        yield
    except BaseException:
        _rename(elsewhere, store)
        raise


def _rename(store: Path, new: Path) -> None:
    for part in PARTS:
        if (found := Path(f"{store}{part}")).exists():
            found.rename(f"{new}{part}")
