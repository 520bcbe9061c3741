"""Staged rows as parquet files: tasks write them, and the driver verifies that it sees all of them.

The files are below the folder of a table, under a name that nothing refers to yet. The table then adds them, by a rename or an
entry in its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pyarrow import parquet

from seriatim.errors import FailedPrecondition
from seriatim.spark.state.files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


class StagedFile(NamedTuple):
    """A file of parquet; ``path`` begins in the folder of the table."""

    path: str
    size: int
    rows: int


def stage(frame: DataFrame, files: LocalFiles, folder: str, rows: int) -> list[StagedFile]:
    """Let the tasks write their rows into a new folder, and return the files that have rows."""
    # Spark's own mark of success is not needed here.
    writer = frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.parquet(f"{files.address}/{folder}")
    staged = [_look(files, f"{folder}/{name}") for name in files.names(folder) if name.endswith(".parquet")]
    found = sum(file.rows for file in staged)
    if found != rows:
        raise FailedPrecondition(
            f"{rows} rows were written to the table '{files.root}', but {found} can be seen here: name a folder that every "
            "machine sees"
        )
    return [file for file in staged if file.rows]


def _look(files: LocalFiles, path: str) -> StagedFile:
    with files.open(path) as file:
        rows = int(parquet.read_metadata(file).num_rows)
        return StagedFile(path, file.seek(0, 2), rows)


@contextmanager
def timestamps_in_microseconds(session: SparkSession) -> Iterator[None]:
    """Write times as table formats want them. A batch of a stream has a session of its own: no other query notices."""
    before = session.conf.get(TIMESTAMPS)
    session.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        session.conf.set(TIMESTAMPS, str(before))
