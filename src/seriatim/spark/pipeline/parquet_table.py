"""Tables: the batches of a streaming query as parquet files, each written exactly once and atomically.

Rules
    1. A table belongs to one writer from its first batch on: a streaming query, by its id. Other writers are refused, and so
       are batches with other columns, and folders that contain something else.
    2. A batch appears atomically. Its files are written in a hidden folder that readers ignore. When they are complete, have as
       many rows as the tasks wrote, and are on disk, a single rename makes them part of the table.
    3. The batches of a writer are consecutive, so its progress is one number: the largest batch that is visible or recorded.
       A repeated batch adds nothing, even if its rows differ.
    4. A batch without rows is only recorded, unless it is the first: then it defines the columns of the table.
    5. One process writes at a time, under a lock that ends with it. So anything that is staged when a batch begins was left
       behind by a process that is gone, and is removed.

Layout::

    TABLE/batch=000000000041/part-….parquet     a batch; Spark and Arrow show its number as column ``batch``
    TABLE/_seriatim/table.json                  whose table it is, its columns, the last batch without rows
    TABLE/_seriatim/lock                        held while a batch is written
    TABLE/_seriatim/staging/…                   a batch that is being written

Only folders that can be renamed atomically are supported: local ones, or shared ones with the same path on every machine.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from zlib import crc32

from seriatim.core.validation import require_whole
from seriatim.errors import DamagedStore, FailedPrecondition, InvalidArgument, StoreOwned
from seriatim.log import logger
from seriatim.spark.pipeline.staging import stage
from seriatim.spark.state.files import TEMPORARY, LocalFiles, failures
from seriatim.store.lock_file import OwnerLock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH = "batch"
FOLDER = "_seriatim"
MANIFEST, LOCK, STAGING = f"{FOLDER}/table.json", f"{FOLDER}/lock", f"{FOLDER}/staging"
FORMAT = 1


def write_batch(frame: DataFrame, path: str | Path, batch: int, *, writer: str, rows: int | None = None) -> bool:
    """Write one batch of a query to the table at ``path``, once; False if it had been written before.

    Call it within ``foreachBatch``, with Spark's number of the batch; ``writer`` is the id of the streaming query
    (``query_of(frame)``). ``rows`` is the number of rows, if it is known. Otherwise the frame is persisted while it is counted
    and written, so that it is computed once.
    """
    require_whole("batch", batch, 0)
    _require_rows_of_a_table(frame, writer)
    table = ParquetTable(local_folder(str(path)), writer)
    with table.lock():
        return table.add(frame, batch, rows)


@contextmanager
def cached(frame: DataFrame) -> Iterator[None]:
    """Keep the rows of a frame for several actions, unless the caller does."""
    level = frame.storageLevel
    if level.useMemory or level.useDisk:
        yield
        return
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


@dataclass(frozen=True, slots=True)
class TableManifest:
    """What a table knows of itself. ``empty``: the last batch that had no rows, -1 for none."""

    writer: str
    columns: tuple[tuple[str, str], ...]
    empty: int = -1
    format: int = FORMAT


class ParquetTable:
    """The table in a folder, as one writer sees it."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._folder, self._writer = folder, writer
        self._files = LocalFiles(str(folder))

    @contextmanager
    def lock(self) -> Iterator[None]:
        with failures(f"making the table '{self._folder}'"):
            self._files.make_folder(self._folder / FOLDER)
        try:
            lock = OwnerLock(self._folder / LOCK)
        except StoreOwned as error:
            raise StoreOwned(
                f"another process is writing to the table '{self._folder}': give each query its own table"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def add(self, frame: DataFrame, batch: int, rows: int | None = None) -> bool:
        """Write a batch, unless that was done before. The lock must be held."""
        manifest = self._read_manifest() or self._new()
        own = TableManifest(self._writer, _columns_of(frame), manifest.empty)
        done = self._last_done(manifest, batch)
        if done >= 0:
            self._require_same(manifest, own)
        self._clear()
        if batch <= done:
            logger.info("batch %d was written to the table '%s' before: nothing was added", batch, self._folder)
            return False
        staged = f"{STAGING}/{uuid.uuid4().hex}"
        if self._write(frame, staged, rows) or done < 0:
            self._note(own)
            self._files.show_folder(staged, f"{BATCH}={batch:012d}")
        else:
            self._note(replace(own, empty=batch))
        self._clear()
        return True

    # -- whose table it is ----------------------------------------------------------------------------------------------

    def _new(self) -> TableManifest:
        """A table in a folder that has nothing in it."""
        if others := [name for name in self._files.names("") if name != FOLDER]:
            raise FailedPrecondition(
                f"the folder '{self._folder}' contains {others[0]!r}, and is not a table that Seriatim wrote: name a new folder"
            )
        return TableManifest(self._writer, ())

    def _require_same(self, manifest: TableManifest, own: TableManifest) -> None:
        if manifest.writer != own.writer:
            raise FailedPrecondition(
                f"the table '{self._folder}' belongs to query {manifest.writer} and not to {own.writer}: give each query its "
                "own table; a query that starts over with a new checkpoint needs a new one, too"
            )
        if set(manifest.columns) != set(own.columns):
            raise FailedPrecondition(
                f"the table '{self._folder}' has the columns {_listed(manifest.columns)}, and this batch has "
                f"{_listed(own.columns)}: write to a new table"
            )

    def _read_manifest(self) -> TableManifest | None:
        content = self._files.read(MANIFEST)
        if content is None:
            return None
        try:
            known = json.loads(content)
            if known.get("format", FORMAT) != FORMAT:  # whose checksum may be another
                raise FailedPrecondition(
                    f"the table '{self._folder}' was written by a newer Seriatim: write with that one"
                )
            if known.pop("checksum", None) not in {None, _checksum(known)}:  # None: written by an earlier version
                raise ValueError("the checksum is wrong")
            manifest = TableManifest(**known | {"columns": tuple((name, kind) for name, kind in known["columns"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedStore(f"'{self._folder / MANIFEST}' is damaged: restore it, or begin a new table") from error
        return manifest

    def _note(self, manifest: TableManifest) -> None:
        if manifest != self._read_manifest():
            known = asdict(manifest)
            self._files.write(MANIFEST, json.dumps({**known, "checksum": _checksum(known)}, indent=1).encode())

    # -- batches --------------------------------------------------------------------------------------------------------

    def _last_done(self, manifest: TableManifest, batch: int) -> int:
        """The last batch that can be seen or is noted, -1 for none.

        Mostly that is the one before, which takes two looks. Only otherwise is the folder listed: it grows with every batch.
        """
        before = batch > 0 and (manifest.empty == batch - 1 or self._is_shown(batch - 1))
        if before and manifest.empty < batch and not self._is_shown(batch):
            return batch - 1
        names = (name.partition("=") for name in self._files.names(""))
        numbers = [int(number) for name, _, number in names if name == BATCH and number.isdecimal()]
        return max(*numbers, manifest.empty, -1)

    def _is_shown(self, batch: int) -> bool:
        return (self._folder / f"{BATCH}={batch:012d}").exists()

    def _clear(self) -> None:
        """Remove what is not finished: under the lock, no other process is writing it."""
        self._files.delete_folder(STAGING)
        for name in self._files.names(FOLDER):
            if name.endswith(TEMPORARY):
                self._files.delete(f"{FOLDER}/{name}")

    def _write(self, frame: DataFrame, staged: str, rows: int | None) -> int:
        """Let the tasks write their rows, and return how many there are.

        They are counted by an action of their own unless the caller did: Spark's ``Observation`` may never arrive.
        """
        if rows is None:
            with cached(frame):
                return self._write(frame, staged, frame.count())
        stage(frame, self._files, staged, rows)
        return rows


def _checksum(known: dict[str, Any]) -> int:
    return crc32(json.dumps(known, sort_keys=True).encode())


def local_folder(path: str) -> Path:
    """The folder that a path or a ``file:`` address names; other addresses are refused."""
    address = urlsplit(path)
    if address.scheme in {"", "file"}:
        return Path(unquote(address.path) if address.scheme else path).absolute()
    raise InvalidArgument(
        f"a table can't be at {path}: only in a local or shared folder does a batch appear in one step. Elsewhere, write with "
        f"Spark's own writeStream.format('parquet')"
    )


def _require_rows_of_a_table(frame: DataFrame, writer: str) -> None:
    if not writer:
        raise InvalidArgument("a table needs a writer: the id of the streaming query")
    if frame.isStreaming:
        raise InvalidArgument("a streaming frame has no batch yet: call write_batch within foreachBatch")
    if BATCH in (column.lower() for column in frame.columns):
        raise InvalidArgument(
            f"a table shows the number of each batch as column {BATCH!r}: give that column of yours another name"
        )


def _columns_of(frame: DataFrame) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.dataType.simpleString()) for field in frame.schema)


def _listed(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
