"""kill -9 of the whole driver, at named moments and in ``make soak`` at random ones: after the restart nothing shows it.

One checkpoint goes through all of it. Each life begins with the batch in which the one before died, is hit there by less (a
worker that dies, a task that fails), goes on, and dies in the next batch. The last one ends well. What is in the topics and
in the tables must then be what an undisturbed run writes, row for row and in the same order.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from seriatim.spark.pipeline import load
from seriatim.spark.session import LOG4J
from tests.conftest import SOAK_KILLS
from tests.spark.crash_points import DRIVER, POINTS, TASK, WORKER, Blow, environment
from tests.spark.pipelines import prepare, written

ROOT = Path(__file__).parents[2]
LONGEST_LIFE = 120
IN_TEST = (
    "before-state-write",
    "after-state-write",
    "before-append",
    "after-append",
    "between-sinks",
    "before-table-shown",
    "after-sinks",
)
"""The moments of ``make test``: a driver costs many seconds. ``make soak`` has all of them, and random ones."""
LESS = (
    Blow(WORKER, "before-state-write", 0),
    Blow(WORKER, "after-state-write", 0),
    Blow(TASK, "after-state-write", 0),
)
QUICK_START = f"-Dlog4j2.configurationFile={LOG4J.as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CHILD = f"""
[spark]
spark.master = "local[2,4]"  # a task may fail four times
spark.python.daemon.module = "tests.spark.crashing_daemon"
spark.driver.extraJavaOptions = "{QUICK_START}"
"""


class Patient:
    """A pipeline that is killed again and again."""

    def __init__(self, path: Path) -> None:
        self._path, self._notes = path, path.with_name("blows")
        self._notes.touch()

    def live(self, *plan: Blow) -> None:
        """One life, that ends as planned."""
        noted = self.blows()
        child = self._born(plan)
        assert child.wait(LONGEST_LIFE) == -signal.SIGKILL
        assert self.blows()[len(noted) :] == [str(blow) for blow in plan]

    def live_for(self, seconds: float) -> None:
        """One life that ends so long after it began to work."""
        child = self._born((Blow("nothing", "before-first-sink", 0),))
        assert child.stdout is not None
        child.wait(seconds)

    def _born(self, plan: tuple[Blow, ...]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.pipeline_child", str(self._path)]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environ = os.environ | environment(list(plan), self._notes) | {"PYTHONPATH": paths}
        return subprocess.Popen(command, env=environ, start_new_session=True)

    def blows(self) -> list[str]:
        return self._notes.read_text().splitlines()
