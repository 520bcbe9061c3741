"""A real Spark cluster on this machine: one master and some workers, each a process of its own, from the installed PySpark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyspark

from seriatim.spark.local.java import find_java
from seriatim.spark.local.session import LOOPBACK

T = TypeVar("T")

SPARK_HOME = Path(pyspark.__file__).parent
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What makes a Java start faster that does not run long enough to become fast."""
PATIENCE = 150.0
"""How long anything may take that takes some seconds, on a machine that has other things to do."""


@dataclass(frozen=True)
class Daemon:
    """A process of the cluster, in a process group of its own, and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str) -> str:
        """What the group of a pattern matches, once the process has said so."""
        return wait_for(lambda: self._find(pattern))

    def _find(self, pattern: str) -> str | None:
        said = self.log.read_text(errors="replace")
        assert self.process.poll() is None, said
        found = re.search(pattern, said)
        return found and found[1]

    def kill(self) -> None:
        """The process, and all that it started and that stayed in its group: a worker takes its executors along."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(frozen=True)
class Cluster:
    """``workers`` by their names, which are those of their folders as well."""

    master: str
    folder: Path
    workers: Mapping[str, Daemon]

    def executors(self, worker: str) -> list[Path]:
        """The folders of the executors that a worker started."""
        return list((self.folder / worker).glob("app-*/*"))


@contextmanager
def running_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Each worker has one core, and memory for one small executor. They may not have found their master yet."""
    with ExitStack() as stack:
        master = _start(
            stack, folder, "master", "master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0"
        )
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")
        names = [f"worker-{number}" for number in range(workers)]
        yield Cluster(address, folder, {name: _start_worker(stack, folder, name, address) for name in names})


def _start_worker(stack: ExitStack, folder: Path, name: str, master: str) -> Daemon:
    size = ("--cores", "1", "--memory", "512m")
    ports = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
    return _start(stack, folder, name, "worker.Worker", *ports, *size, "--work-dir", str(folder / name), master)


def _start(stack: ExitStack, folder: Path, name: str, kind: str, *arguments: str) -> Daemon:
    environ = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIVED} -Dspark.master.rest.enabled=false",
    }
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments],
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    daemon = Daemon(process, log)
    stack.callback(daemon.kill)
    return daemon


def wait_for(look: Callable[[], T | None]) -> T:
    """What ``look`` finds, when it finds something."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) is None:
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.02)
    return found
