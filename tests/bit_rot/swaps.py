"""Files that were swapped with others of their kind: each is whole, and at the wrong place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from seriatim.errors import SeriatimError
from seriatim.pipes import FileEpochs
from seriatim.spark.pipeline.parquet_table import MANIFEST, ParquetTable, TableManifest
from seriatim.spark.state.binding import BINDING
from seriatim.spark.state.files import LocalFiles
from seriatim.store.pack import encode
from seriatim.store.sqlite.restore import restore_backup
from seriatim.store.sqlite.store import SqliteReader
from seriatim.store.staged_messages import check_staged, read_staged, write_staged
from tests.bit_rot.stores import content_of, fill
from tests.spark.state.test_batch_versions import Query, rows
from tests.store.contract.kit import records

ONE, OTHER = "one", "other"
COLUMNS = (("n", "int"),)


class Swap(NamedTuple):
    """``make`` makes something in a folder of its own, of the one or of the other; ``read`` uses it as its owner would."""

    file: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    is_noticed: bool


def _make_state(folder: Path) -> None:
    Query(LocalFiles(str(folder)), query=folder.name).run(0, rows(0, 1))


def _read_state(folder: Path) -> object:
    return Query(LocalFiles(str(folder)), query=folder.name).run(1, rows(2))


def _make_manifest(folder: Path) -> None:
    (folder / MANIFEST).parent.mkdir()
    ParquetTable(folder, folder.name)._note(TableManifest(folder.name, COLUMNS, empty=3))


def _read_manifest(folder: Path) -> object:
    table = ParquetTable(folder, folder.name)
    manifest = table._read_manifest()
    assert manifest is not None
    table._require_same(manifest, TableManifest(folder.name, COLUMNS))
    return manifest


def _make_staged(folder: Path) -> None:
    write_staged(folder / "staged", [encode(records(range(3), folder.name, published=0.0))])


def _read_staged(folder: Path) -> object:
    check_staged(folder / "staged", 3)
    return list(read_staged(folder / "staged"))


def _make_epochs(folder: Path) -> None:
    for _ in range(3 if folder.name == ONE else 7):
        asyncio.run(FileEpochs(folder / "epoch").next())


def _next_epoch(folder: Path) -> object:
    return asyncio.run(FileEpochs(folder / "epoch").next())


def _make_backup(folder: Path) -> None:
    store, _ = fill(folder / "store.db", 3 if folder.name == ONE else 7)
    store.backup(str(folder / "backup.db"))
    store.close()


def _read_backup(folder: Path) -> object:
    restored = folder / "restored.db"
    for earlier in folder.glob("restored.db*"):
        earlier.unlink()
    restore_backup(folder / "backup.db", restored)
    with closing(SqliteReader(restored)) as reader:
        return content_of(reader)


SWAPS: Mapping[str, Swap] = {
    "bindings of two states": Swap(BINDING, _make_state, _read_state, is_noticed=True),
    "manifests of two tables": Swap(MANIFEST, _make_manifest, _read_manifest, is_noticed=True),
    "staged files of two batches": Swap("staged", _make_staged, _read_staged, is_noticed=False),
    "epochs of two pipes": Swap("epoch", _make_epochs, _next_epoch, is_noticed=False),
    "backups of two stores": Swap("backup.db", _make_backup, _read_backup, is_noticed=False),
}
"""What goes unnoticed says nothing of whose it is: ``docs/explanation/guarantees.md`` says so."""


def is_noticed(scratch: Path, swap: Swap) -> bool:
    """Whether a swap is refused. Otherwise what is read is the other's, whole."""
    folders = [scratch / ONE, scratch / OTHER]
    for folder in folders:
        folder.mkdir(parents=True)
        swap.make(folder)
    contents = [(folder / swap.file).read_bytes() for folder in folders]
    for folder, content in zip(folders, reversed(contents), strict=True):
        (folder / swap.file).write_bytes(content)
    try:
        swapped = [swap.read(folder) for folder in folders]
    except SeriatimError:
        return True
    for folder, content in zip(folders, contents, strict=True):
        (folder / swap.file).write_bytes(content)
    assert swapped == [swap.read(folder) for folder in reversed(folders)], "it is neither the one nor the other"
    return False
