"""Named moments at which a pipeline is hit: its whole driver dies, or one worker does, or a task fails.

A *plan* in the environment says what happens where; ``install`` wraps the functions on the way, in every Python process of the
driver (``crashing/sitecustomize.py``). Nothing of the product knows of it. Whatever happens is noted in a file first, so
that a test can tell that it did.

====================  ==================================================================================
before-state-write    a task has decided, and its state is not written yet
after-state-write     its state is written, and none of its rows is given out
before-first-sink     the batch is computed, and nothing is written
before-append         the rows for a topic are staged, and the owner has not appended them
after-append          the owner has appended them, and Spark does not know
between-sinks         one sink has the batch, and the next has not
before-table-shown    the files of a table are written, and can't be seen yet
after-table-shown     they can be seen, and Spark does not know
before-log-entry      the files of a Delta table are written, and its log does not have them
after-log-entry       its log has them, and Spark does not know
before-table-commit   the files of an Iceberg table are written, and its catalog does not have them
after-table-commit    its catalog has them, and Spark does not know
after-iceberg-sink    an Iceberg table has its rows, and the next sink does not
after-sinks           every sink has the batch, and Spark has not noted it as done
after-commit          Spark has noted it, and the next batch begins
====================  ==================================================================================
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BEGUN = "the first batch begins"
"""What a child says then, on standard output."""
PLAN, NOTES, GROUP = "CRASH_PLAN", "CRASH_NOTES", "CRASH_GROUP"

ROOT, HOOK = Path(__file__).parents[3], Path(__file__).with_name("crashing")

DRIVER, WORKER, TASK = "driver dies", "worker dies", "task fails"

POINTS = (
    "before-state-write",
    "after-state-write",
    "before-first-sink",
    "before-append",
    "after-append",
    "between-sinks",
    "before-table-shown",
    "after-table-shown",
    "before-log-entry",
    "after-log-entry",
    "before-table-commit",
    "after-table-commit",
    "after-iceberg-sink",
    "after-sinks",
    "after-commit",
)


class Blow(NamedTuple):
    """What happens, where and in which batch."""

    what: str
    point: str
    batch: int

    def __str__(self) -> str:
        return f"{self.what} {self.point} in batch {self.batch}"


def environment(plan: Sequence[Blow], notes: Path) -> dict[str, str]:
    """What a child is told of its fate."""
    paths = os.pathsep.join([str(HOOK), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {PLAN: json.dumps(plan), NOTES: str(notes), "PYTHONPATH": paths}


def install() -> None:
    """Wrap what lies on the way of a worker, or of the process that writes to a topic."""
    from seriatim.spark.state.batch_versions import StateFolder
    from seriatim.spark.state.files import LocalFiles
    from seriatim.spark.topics.sink import Staging

    _wrap(StateFolder, "commit", _batch_of_state, before="before-state-write", after="after-state-write")
    _wrap(Staging, "_append", lambda self, writer, batch, files: batch, before="before-append", after="after-append")
    _wrap(LocalFiles, "show_folder", _batch_of_folder, before="before-table-shown", after="after-table-shown")


def install_in_driver() -> None:
    from seriatim.spark.pipeline import delta_table, iceberg_table
    from seriatim.spark.pipeline import run as runner
    from seriatim.spark.pipeline.exactly_once import ICEBERG

    _wrap(delta_table, "_commit", _batch_of_entry, before="before-log-entry", after="after-log-entry")
    _wrap(iceberg_table, "_commit", _batch_of_commit, before="before-table-commit", after="after-table-commit")
    _wrap(runner.Run, "_write", _say_once)
    _wrap(runner, "reports_of", _batch_at_work, after="before-first-sink")
    _wrap(runner, "write", lambda batch, format_, options: batch.number, after="between-sinks")
    _wrap(
        runner,
        "write",
        lambda batch, format_, _: batch.number if format_ == ICEBERG else -1,
        after="after-iceberg-sink",
    )
    _wrap(runner.Run, "_write_all", lambda self, tagged, number: number, after="after-sinks")
    _wrap(runner.Run, "_write", lambda self, tagged, number: number - 1, before="after-commit")


def _say_once(self: object, tagged: object, number: int) -> int:
    if not said:
        print(BEGUN, flush=True)  # noqa: T201
        said.append(BEGUN)
    return number


said: list[str] = []


def _batch_of_state(self: object, known: object, partition: int, batch: int, outcome: object) -> int:
    return batch


def _batch_of_folder(self: object, staged: str, name: str) -> int:
    found = re.fullmatch(r"batch=(\d+)", name)
    return int(found[1]) if found else -1


def _batch_of_entry(table: object, staged: object, transaction: Any) -> int:
    return int(transaction.version)


def _batch_of_commit(table: object, paths: object, properties: dict[str, str]) -> int:
    return int(*properties.values())


def _batch_at_work(tagged: Any) -> int:
    return int(tagged.sparkSession.sparkContext.getLocalProperty("streaming.sql.batchId"))


def _wrap(
    owner: Any, name: str, batch_of: Callable[..., int], *, before: str | None = None, after: str | None = None
) -> None:
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        batch = batch_of(*args, **{key: value for key, value in kwargs.items() if key != "writer"})
        _reach(before, batch)
        result = plain(*args, **kwargs)
        _reach(after, batch)
        return result

    setattr(owner, name, wrapped)


def _reach(point: str | None, batch: int) -> None:
    for blow in (Blow(*one) for one in json.loads(os.environ.get(PLAN, "[]"))):
        if (blow.point, blow.batch) == (point, batch) and (blow.what == DRIVER or _is_first_attempt()):
            _strike(blow)


def _is_first_attempt() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() == 0


def _strike(blow: Blow) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{blow}\n")
    if blow.what == TASK:
        raise RuntimeError(f"on purpose: {blow}")
    if blow.what == DRIVER:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # a worker has a group of its own
