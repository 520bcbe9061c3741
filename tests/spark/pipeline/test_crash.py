"""kill -9 of the whole driver, at named moments and in ``make soak`` at random ones: after the restart nothing shows it.

One checkpoint goes through all of it. Each life begins with the batch in which the one before died, is hit there by less (a
worker that dies, a task that fails), goes on, and dies in the next batch. The last one ends well. What is in the topics and
in the tables must then be what an undisturbed run writes, row for row and in the same order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from seriatim.spark.compatibility import SPARK
from seriatim.spark.local.session import LOG4J
from seriatim.spark.pipeline import load
from tests.conftest import SOAK_KILLS
from tests.spark.pipeline.crash_points import BEGUN, DRIVER, POINTS, TASK, WORKER, Blow, environment
from tests.spark.pipeline.pipelines import prepare, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_LIFE = 300
IN_TEST = (
    "after-state-write",
    "after-append",
    "between-sinks",
    "before-log-entry",
    "after-log-entry",
    "before-table-commit",
    "after-table-commit",
    "after-sinks",
)
"""The moments of ``make test``: a driver costs many seconds. ``make soak`` has all of them, and random ones."""
LESS = ((WORKER, "before-state-write"), (TASK, "after-state-write"), (WORKER, "after-state-write"))
"""What a life survives, in the batch in which the one before died: Spark tries the task again."""
RANDOM_KILLS = 20 if SOAK_KILLS else 0
LONGEST_WORK = 12.0
"""So long a driver lives at most in which random moments are tried: some batches, even on a busy machine."""
CHILD = f"""
[spark]
spark.master = "local[2,4]"  # a task may fail so often
# A driver that is soon killed had better start quickly.
spark.driver.extraJavaOptions = "-Dlog4j2.configurationFile={LOG4J.as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""


class Patient:
    """A pipeline that is killed again and again."""

    def __init__(self, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self._path, self._notes = path, path.with_name("blows")
        more = "".join(f'"{name}" = "{value}"\n' for name, value in (settings or {}).items())
        path.write_text(path.read_text() + CHILD + more)
        self._notes.touch()

    def blows(self) -> list[str]:
        return self._notes.read_text().splitlines()

    def live(self, *plan: Blow) -> None:
        """One life, that ends with the last blow."""
        earlier = set(self.blows())
        with self._alive(plan) as child:
            assert child.wait(LONGEST_LIFE) == -signal.SIGKILL
        # Several tasks of a batch may come to the same point, and one of an earlier life while this one begins.
        assert [blow for blow in dict.fromkeys(self.blows()) if blow not in earlier] == [str(blow) for blow in plan]

    def live_for(self, seconds: float) -> None:
        """One life, that ends so long after its first batch began."""
        with self._alive(()) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == f"{BEGUN}\n".encode()
            with suppress(subprocess.TimeoutExpired):
                assert child.wait(seconds) == 0, "it ended by itself, and not well"

    def live_to_the_end(self) -> None:
        """One life that nothing disturbs."""
        with self._alive(()) as child:
            assert child.wait(LONGEST_LIFE) == 0

    @contextmanager
    def _alive(self, plan: Sequence[Blow]) -> Iterator[subprocess.Popen[bytes]]:
        """A driver, of which nothing is left afterwards."""
        command = [sys.executable, "-m", "tests.spark.pipeline.pipeline_child", str(self._path)]
        environ = os.environ | environment(plan, self._notes)
        folder = self._path.parent  # Spark's log is there if the checkpoint is no folder
        with subprocess.Popen(
            command, cwd=folder, env=environ, start_new_session=True, stdout=subprocess.PIPE
        ) as child:
            try:
                yield child
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)


def undisturbed(spark: SparkSession, path: Path) -> dict[str, list[Any]]:
    """What the pipeline has written when it has run to its end in the session of the tests."""
    run = load(path).begin(spark)
    assert run.wait(600)
    return written(path.parent)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_pipeline_killed_at_any_moment_writes_what_an_undisturbed_one_writes(spark, tmp_path):
    points = POINTS if SOAK_KILLS else IN_TEST
    traffic: dict[str, Any] = {"batches": len(points) + 2 + 5 * RANDOM_KILLS, "seed": Random().randrange(10**6)}
    traffic["from_files"] = SPARK < (4, 2)  # there a batch of a topic has no limit
    patient = Patient(prepare(tmp_path / "killed", **traffic))
    for batch, point in enumerate(points, 1):
        less = Blow(*LESS[batch % len(LESS)], batch - 1)
        patient.live(less, Blow(DRIVER, point, batch))
    for _ in range(RANDOM_KILLS):
        patient.live_for(Random().uniform(0, LONGEST_WORK))
    out = undisturbed(spark, tmp_path / "killed" / "pipeline.toml")
    expected = undisturbed(spark, prepare(tmp_path / "undisturbed", **traffic))
    assert {name: len(rows) for name, rows in out.items()} == {name: len(rows) for name, rows in expected.items()}
    assert out == expected, traffic
    assert all(expected.values()), f"nothing was late, or lost, or in order, of {traffic}"
    assert len(expected["ordered"]) > len(expected["ledger"]), f"most of it was in vain, of {traffic}"
