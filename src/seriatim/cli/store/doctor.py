"""``seriatim store doctor``: diagnose the installation and the store.

Each finding is ok, a warning or a failure. Those that are not ok say what to do.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seriatim import __version__
from seriatim.cli.common.command import run_with_broker, with_url
from seriatim.cli.common.output import Output, counted, size
from seriatim.errors import DamagedStore, NotSupported, SeriatimError, StoreFailed
from seriatim.extras import EXTRAS, is_installed

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, StoreHealth
    from seriatim.store.base import Catalog
    from seriatim.store.lock_file import Owner

OK, WARN, FAIL = "ok", "warn", "fail"
KAFKA = "kafka://"

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 35, 0)  # RETURNING
LITTLE_SPACE = 1024**3
LARGE_LOG = 256 * 1024**2
MUCH_PENDING = 5_000
SLOW_SYNC_S = 0.05
SYNCS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    status: str
    found: str
    advice: str | None = None


def _judge(check: str, found: str, *, is_bad: bool, advice: str, status: str = WARN) -> Finding:
    """A finding that is ok unless something is bad; then it has a status and advice."""
    return Finding(check, status, found, advice) if is_bad else Finding(check, OK, found)


@click.command("doctor")
@with_url
def command(url: str, output: Output) -> None:
    """Diagnose the installation and the store.

    Checks Python, SQLite, the extras and the store, and says how to fix what is wrong. Nothing is changed, and a store in use
    is not disturbed. At an http:// or pubsub:// address, its owner is asked. Exits with 1 if a check fails.
    """
    findings = [*_check_program(), *_check_store(url)]
    columns = {"": "status", "check": "check", "found": "found", "what to do": "advice"}
    output.listing([asdict(finding) for finding in findings], columns, empty="")
    if any(finding.status == FAIL for finding in findings):
        raise click.exceptions.Exit(1)


def _check_program() -> Iterator[Finding]:
    yield Finding("seriatim", OK, __version__)
    old = sys.version_info < OLDEST_PYTHON
    yield _judge("python", platform.python_version(), is_bad=old, advice="use Python 3.11 or newer", status=FAIL)
    old = sqlite3.sqlite_version_info < OLDEST_SQLITE
    advice = "use a Python with SQLite 3.35 or newer"
    yield _judge("sqlite", sqlite3.sqlite_version, is_bad=old, advice=advice, status=FAIL)
    for extra, modules in EXTRAS.items():
        is_there = all(map(is_installed, modules))
        yield Finding(f"extra {extra}", OK, "installed" if is_there else "not installed, only needed if you use it")
        if extra == "spark" and is_there:
            yield _check_java()


def _check_java() -> Finding:
    from seriatim.spark.local.java import find_java

    try:
        java = find_java()
    except SeriatimError as error:
        return Finding("java", FAIL, "none that can run Spark", str(error))
    return Finding("java", OK, f"{java.version}, from {java.origin}")


def _check_store(url: str) -> Iterator[Finding]:
    from seriatim.client.addresses import API_SCHEMES, SERVER_SCHEME
    from seriatim.store import store_file

    if url.startswith(KAFKA):
        yield from _check_kafka(url)
        return
    if url.startswith((*API_SCHEMES, SERVER_SCHEME)):
        yield from _check_owner_of(url)
        return
    if url.startswith("memory:"):
        yield Finding(
            "store", FAIL, "a store in memory belongs to the program that made it", "name a file with --store"
        )
        return
    path = store_file(url)
    if path is None:
        yield from _check_server(url)
        return
    try:
        yield from _check_path(path)
    except OSError as error:
        yield Finding("store", FAIL, f"'{error.filename}': {error.strerror}", "correct the permissions, or --store")


def _check_path(path: Path) -> Iterator[Finding]:
    if not path.parent.is_dir():
        yield Finding("store", FAIL, f"the folder '{path.parent}' does not exist", "create it, or correct --store")
    else:
        if path.exists():
            yield from _check_file(path)
        else:
            yield Finding("store", WARN, f"there is no store at '{path}' yet", "its first user creates it")
        yield from _check_disk(path.parent)


def _check_server(url: str) -> Iterator[Finding]:
    from seriatim.store import open_store

    try:
        with closing(open_store(url, read_only=True)) as reader:
            catalog = reader.catalog()
            yield Finding("store", OK, f"reachable, {counted(len(catalog.topics), 'topic')}, epoch {reader.epoch}")
            yield from _check_options(catalog)
    except SeriatimError as error:
        yield Finding("store", FAIL, str(error), "correct --store, or check the server")


def _check_owner_of(url: str) -> Iterator[Finding]:
    """What the owner of a store says of it, through its admin API."""
    found: list[Finding] = []

    async def ask(broker: Broker) -> None:
        topics = len(await broker.list_topics())
        found.append(Finding("store", OK, f"reachable, {counted(topics, 'topic')}"))
        try:
            found.extend(_findings(await broker.health()))
        except NotSupported:
            found.append(
                Finding("health", WARN, "the server does not tell", "let it 'serve --console', or run this there")
            )

    try:
        run_with_broker(url, ask)
    except SeriatimError as error:
        found.append(Finding("store", FAIL, str(error), "correct --store, or check the server"))
    yield from found


def _findings(health: StoreHealth) -> Iterator[Finding]:
    yield Finding(
        "owner", OK, f"epoch {health.epoch}, {health.kind}" + ("" if health.size is None else f", {size(health.size)}")
    )
    commits = health.commits
    mean = f", {commits.seconds / commits.count * 1000:.2f} ms each" if commits.count else ""
    stuck, advice = (
        health.down or (health.failing_since and health.last_problem),
        "look at the log of the owner, and its disk",
    )
    told = f": {stuck}" if stuck else ""
    said = f"{counted(commits.count, 'commit')}{mean}, {commits.failed} failed{told}"
    yield _judge("commits", said, is_bad=bool(stuck), advice=advice, status=FAIL)
    if health.last_problem and not stuck:
        said = f"{health.last_problem_time:%Y-%m-%d %H:%M:%S} UTC: {health.last_problem}"
        yield Finding("last problem", WARN, said, "it has passed; look at the log of the owner")
    yield from _option_findings([(one.where, one.what) for one in health.options])


def _check_kafka(url: str) -> Iterator[Finding]:
    found: list[Finding] = []

    async def check(broker: Broker) -> None:
        from seriatim.kafka.broker import KafkaBroker

        assert isinstance(broker, KafkaBroker)
        found.append(Finding("store", OK, f"reachable, {counted(len(await broker.list_topics()), 'topic')}"))
        flaws = [
            Finding("subscriptions", FAIL if flaw.is_failure else WARN, flaw.what, flaw.advice)
            async for flaw in broker.flaws()
        ]
        found.extend(flaws or [Finding("subscriptions", OK, "their topics and partitions are as they were")])

    try:
        run_with_broker(url, check)
    except SeriatimError as error:
        found.append(Finding("store", FAIL, str(error), "correct --store, or check the brokers"))
    yield from found


def _check_file(path: Path) -> Iterator[Finding]:
    from seriatim.store import open_store
    from seriatim.store.sqlite.inspection import examine

    try:
        found = examine(path)
    except SeriatimError as error:
        is_ours = isinstance(error, DamagedStore)
        advice = "correct the permissions, or --store" if isinstance(error, StoreFailed) else "correct --store"
        advice = "run 'seriatim store check', and restore a backup" if is_ours else advice
        yield Finding("store", FAIL, str(error), advice)
        return
    yield Finding("store", OK, f"'{path}', {size(found.file_bytes)}")
    yield _check_owner(found.owner)
    is_newest = found.schema == found.newest_schema
    version = "none yet" if found.schema is None else f"version {found.schema} of {found.newest_schema}"
    advice = "the next owner upgrades it: make a backup first"
    yield _judge(
        "schema", f"version {found.schema}, the newest" if is_newest else version, is_bad=not is_newest, advice=advice
    )
    large, advice = found.log_bytes > LARGE_LOG, "a reader may be stuck in an old transaction: stop it"
    yield _judge("write-ahead log", size(found.log_bytes), is_bad=large, advice=advice)
    behind, advice = found.pending_settlements >= MUCH_PENDING, "clean-up runs in the owner: let one run for a while"
    yield _judge("pending upkeep", f"{found.pending_settlements} rows to fold", is_bad=behind, advice=advice)
    if is_newest:
        with closing(open_store(f"sqlite:///{path}", read_only=True)) as reader:
            yield from _check_options(reader.catalog())


def _check_options(catalog: Catalog) -> Iterator[Finding]:
    from seriatim.engine.options import flaws_in

    yield from _option_findings([(problem.where, problem.what) for problem in flaws_in(catalog)])


def _option_findings(problems: list[tuple[str, str]]) -> Iterator[Finding]:
    if not problems:
        yield Finding("options", OK, "valid for every topic and subscription")
    for where, what in problems:
        yield Finding("options", FAIL, f"{where} {what}", "use 'topics update' or 'subscriptions update'")


def _check_owner(owner: Owner | None) -> Finding:
    if owner is None:
        return Finding("owner", OK, "nobody: whoever opens the store owns it")
    if owner.process is None or _is_alive(owner.process):
        return Finding("owner", OK, f"{owner}, alive")
    return Finding(
        "owner", WARN, f"{owner}, not found here", "it is in another container, or a child process holds its lock"
    )


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _check_disk(folder: Path) -> Iterator[Finding]:
    from seriatim.store.lock_file import NETWORK_FILE_SYSTEMS, file_system

    kind = file_system(folder)
    is_network, advice = kind in NETWORK_FILE_SYSTEMS, "locks can't be trusted there: use a local disk"
    yield _judge("file system", kind or "unknown", is_bad=is_network, advice=advice, status=FAIL)
    free = shutil.disk_usage(folder).free
    yield _judge("free space", size(free), is_bad=free < LITTLE_SPACE, advice="free some space")
    try:
        seconds = statistics.median(_sync_times(folder))
    except OSError as error:
        yield Finding("fsync", FAIL, f"'{folder}' can't be written: {error.strerror}", "correct its permissions")
        return
    is_slow, advice = seconds > SLOW_SYNC_S, "every commit waits for it: use a faster disk"
    yield _judge("fsync", f"{seconds * 1000:.2f} ms", is_bad=is_slow, advice=advice)


def _sync_times(folder: Path) -> list[float]:
    """How long it takes to write a page to the disk, a few times."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            os.pwrite(file.fileno(), b"\0" * 4096, 0)
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return times
