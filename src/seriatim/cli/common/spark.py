"""A Spark session for commands, with a progress bar, and the tables that they read and write."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seriatim.cli.common.display import ProgressDisplay, progress_display
from seriatim.errors import AlreadyExists, InvalidArgument, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
    ".avro": "avro",
}
HEADING = {"csv": {"header": "true", "inferSchema": "true", "mode": "FAILFAST"}, "json": {"mode": "FAILFAST"}}
"""How formats without types of their own are read: a malformed line is an error, and nothing is skipped."""
SECONDS_BETWEEN_UPDATES = 0.2


@contextmanager
def spark_session(*, show_progress: bool) -> Iterator[SparkSession]:
    """A session with a progress bar. Its errors become ours."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from seriatim.spark.failures import unwrapped
    from seriatim.spark.local.session import local_session

    with progress_display("working", None, enabled=show_progress) as progress:
        session = local_session()
        done = threading.Event()
        watcher = threading.Thread(target=_follow_tasks, args=(session, progress, done), daemon=True)
        watcher.start()
        try:
            yield session
        except (PySparkException, Py4JJavaError) as error:  # the second is what Spark has no Python error for
            raise unwrapped(error) from error
        finally:
            done.set()
            watcher.join()


def _follow_tasks(session: SparkSession, progress: ProgressDisplay, done: threading.Event) -> None:
    """Show how many tasks of the running stages have finished."""
    tracker = session.sparkContext.statusTracker()
    while not done.wait(SECONDS_BETWEEN_UPDATES):
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        if stages:
            total = sum(stage.numTasks for stage in stages)
            progress.move_to(sum(stage.numCompletedTasks for stage in stages), total)


def read_frame(spark: SparkSession, path: str, kind: str | None) -> DataFrame:
    """The table in a file or a folder, in the format that is named or that the names of its files tell."""
    is_local = not is_address(path)
    if is_local and not Path(path).exists():
        raise NotFound(f"there is no file or folder '{path}'")
    kind = kind or format_of(path)
    # Java has a working folder of its own.
    place = str(Path(path).absolute()) if is_local else path
    return spark.read.format(kind).options(**HEADING.get(kind, {})).load(place)


def refuse_to_overwrite(path: str) -> None:
    """Raise unless a table can be written to a local path: nothing is overwritten, and its folder exists."""
    place = Path(path)
    if place.exists():
        raise exists_already(path)
    if not place.parent.is_dir():
        raise NotFound(f"there is no folder '{place.parent}' to write to")


def refuse_to_overwrite_address(spark: SparkSession, address: str) -> None:
    """The same for an address that Spark can write to, ``s3a://…`` for example."""
    jvm, context = spark._jvm, spark._jsc  # noqa: SLF001 (PySpark has no other way to its file systems)
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(address)
    if path.getFileSystem(context.hadoopConfiguration()).exists(path):
        raise exists_already(address)


def exists_already(path: str) -> AlreadyExists:
    return AlreadyExists(f"'{path}' already exists: choose another path, or remove it")


def is_address(path: str) -> bool:
    return "://" in path


def save_frame(frame: DataFrame, path: str, kind: str) -> None:
    writer = frame.write.format(kind).mode("error")
    # Java has a working folder of its own.
    place = path if is_address(path) else str(Path(path).absolute())
    (writer.option("header", "true") if kind == "csv" else writer).save(place)


def format_of(path: str) -> str:
    found = {FORMATS[ending] for name in _names(Path(path)) if (ending := Path(name).suffix) in FORMATS}
    if len(found) != 1:
        known = ", ".join(sorted(set(FORMATS.values())))
        problem = "has files of several formats" if found else "has no known file extension"
        raise InvalidArgument(f"'{path}' {problem}: name the format with --format, such as {known}")
    return found.pop()


def _names(path: Path) -> Iterator[str]:
    if path.is_dir():
        for _, folders, names in os.walk(path):  # what begins like this holds no rows, as Spark has it
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            yield from (name for name in names if not name.startswith(("_", ".")))
    else:
        yield path.name
