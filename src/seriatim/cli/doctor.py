"""``seriatim doctor``: is everything here that a store needs, and is it well?

Each finding is ok, a warning or a failure, and says what to do unless it is ok.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seriatim import __version__
from seriatim.cli.output import Output, size
from seriatim.cli.session import configured
from seriatim.cli.store import json_option, store_option
from seriatim.config import LoadedConfig
from seriatim.errors import SeriatimError
from seriatim.extras import EXTRAS, is_installed

if TYPE_CHECKING:
    from seriatim.store.base import Catalog
    from seriatim.store.lock_file import Owner
    from seriatim.store.sqlite.inspection import Examination

OK, WARN, FAIL = "ok", "warn", "fail"

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 35, 0)  # RETURNING
LITTLE_SPACE = 1024**3
LARGE_LOG = 256 * 1024**2
MUCH_PENDING = 5_000
SLOW_SYNC = 0.05
SYNCS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    status: str
    found: str
    advice: str | None = None


@click.command("doctor")
@store_option
@json_option
@configured
def command(loaded: LoadedConfig, store: str | None, as_json: bool) -> None:
    """Look at Python, SQLite, the optional parts and the store, and say what to do about what is not well.

    Nothing is changed, and a store that is in use is not disturbed. Exit status 1 means that something failed.
    """
    findings = [*_about_the_program(), *_about_the_store(store or loaded.values.store)]
    columns = {"": "status", "check": "check", "found": "found", "what to do": "advice"}
    Output(as_json).listing([asdict(finding) for finding in findings], columns, empty="")
    if any(finding.status == FAIL for finding in findings):
        raise click.exceptions.Exit(1)


def _about_the_program() -> Iterator[Finding]:
    yield Finding("seriatim", OK, __version__)
    old = tuple(map(int, platform.python_version_tuple()[:2])) < OLDEST_PYTHON
    yield Finding("python", FAIL if old else OK, platform.python_version(), "use Python 3.11 or newer" if old else None)
    old = sqlite3.sqlite_version_info < OLDEST_SQLITE
    advice = "use a Python with SQLite 3.35 or newer" if old else None
    yield Finding("sqlite", FAIL if old else OK, sqlite3.sqlite_version, advice)
    for extra, modules in EXTRAS.items():
        there = all(map(is_installed, modules))
        yield Finding(f"extra {extra}", OK, "installed" if there else "not installed, only needed if you use it")
        if extra == "spark" and there:
            yield _about_java()


def _about_java() -> Finding:
    from seriatim.spark.local.java import find_java

    try:
        java = find_java()
    except SeriatimError as error:
        return Finding("java", FAIL, "none that can run Spark", str(error))
    return Finding("java", OK, f"{java.version}, from {java.origin}")


def _about_the_store(url: str) -> Iterator[Finding]:
    from seriatim.store import store_file

    path = store_file(url)
    if path is None:
        yield from _about_another_store(url)
    elif not path.parent.is_dir():
        yield Finding("store", FAIL, f"the folder '{path.parent}' does not exist", "make it, or correct --store")
    else:
        if path.is_file():
            yield from _about_the_file(path)
        else:
            yield Finding("store", WARN, f"there is no store at '{path}' yet", "its first user creates it")
        yield from _about_the_disk(path.parent)


def _about_another_store(url: str) -> Iterator[Finding]:
    from seriatim.store import open_store

    try:
        reader = open_store(url, read_only=True)
        try:
            catalog = reader.catalog()
            yield Finding("store", OK, f"reachable, {len(catalog.topics)} topics, epoch {reader.epoch}")
            yield from _about_the_options(catalog)
        finally:
            reader.close()
    except SeriatimError as error:
        yield Finding("store", FAIL, str(error), "correct --store, or see to the server")


def _about_the_file(path: Path) -> Iterator[Finding]:
    from seriatim.store import open_store
    from seriatim.store.sqlite.inspection import examine

    try:
        found = examine(path)
    except SeriatimError as error:
        yield Finding("store", FAIL, str(error), "see 'seriatim check', and restore a backup")
        return
    yield Finding("store", OK, f"'{path}', {size(found.file_bytes)}")
    yield _about_the_owner(found.owner)
    yield _about_the_schema(found)
    large = found.log_bytes > LARGE_LOG
    advice = "a reader may be stuck in an old transaction: end it" if large else None
    yield Finding("write-ahead log", WARN if large else OK, size(found.log_bytes), advice)
    behind = found.pending_settlements >= MUCH_PENDING
    advice = "clean-up runs in the owner: let one run for a while" if behind else None
    rows = f"{found.pending_settlements} rows to fold"
    yield Finding("pending upkeep", WARN if behind else OK, rows, advice)
    if found.schema == found.newest_schema:
        reader = open_store(f"sqlite:///{path}", read_only=True)
        try:
            yield from _about_the_options(reader.catalog())
        finally:
            reader.close()


def _about_the_options(catalog: Catalog) -> Iterator[Finding]:
    from seriatim.engine.options import flaws_in

    problems = list(flaws_in(catalog))
    if not problems:
        yield Finding("options", OK, "those of every topic and subscription can be used")
    for problem in problems:
        yield Finding("options", FAIL, f"{problem.where} {problem.what}", "update the topic or subscription")


def _about_the_owner(owner: Owner | None) -> Finding:
    if owner is None:
        return Finding("owner", OK, "nobody: whoever opens the store owns it")
    if owner.process is None or _is_alive(owner.process):
        return Finding("owner", OK, f"{owner}, alive")
    return Finding(
        "owner", WARN, f"{owner}, not found here", "it is in another container, or its lock is held by a child"
    )


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _about_the_schema(found: Examination) -> Finding:
    if found.schema == found.newest_schema:
        return Finding("schema", OK, f"version {found.schema}, the newest")
    old = "none yet" if found.schema is None else f"version {found.schema} of {found.newest_schema}"
    return Finding("schema", WARN, old, "the next owner brings it up to date: make a backup first")


def _about_the_disk(folder: Path) -> Iterator[Finding]:
    from seriatim.store.lock_file import NETWORK_FILE_SYSTEMS, file_system

    kind = file_system(folder)
    network = kind in NETWORK_FILE_SYSTEMS
    advice = "locks can't be trusted there: use a local disk" if network else None
    yield Finding("file system", FAIL if network else OK, kind or "unknown", advice)
    free = shutil.disk_usage(folder).free
    little = free < LITTLE_SPACE
    yield Finding("free space", WARN if little else OK, size(free), "make room" if little else None)
    yield _about_syncing(folder)


def _about_syncing(folder: Path) -> Finding:
    try:
        seconds = statistics.median(_sync_times(folder))
    except OSError as error:
        return Finding("fsync", FAIL, f"'{folder}' can't be written: {error.strerror}", "correct its permissions")
    slow = seconds > SLOW_SYNC
    advice = "every commit waits for it: use a faster disk" if slow else None
    return Finding("fsync", WARN if slow else OK, f"{seconds * 1000:.2f} ms", advice)


def _sync_times(folder: Path) -> list[float]:
    """How long it takes to bring a page to the disk, a few times."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            os.pwrite(file.fileno(), b"\0" * 4096, 0)
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return times
