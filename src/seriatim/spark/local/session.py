"""A Spark session for our commands and tests: local, small and quiet.

In your own program, create a session as usual: the transformations of this package work with any session.

The output of Spark and its Java goes to a file, never to the terminal: Spark raises its errors in Python anyway, and errors
name the file if it has more details. ``PYSPARK_PYTHON`` is the running interpreter, so that workers find the same packages.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from seriatim.errors import FailedPrecondition
from seriatim.extras import require_extra
from seriatim.spark.local.java import find_java
from seriatim.spark.settings import WORTH_SETTING

require_extra("spark", "pyspark", what="Spark")

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
ANY_CORES = "local[*]"
PARTITIONS_ON_A_CLUSTER = 32
LOG4J = Path(__file__).with_name("log4j2.properties")


def local_session(
    name: str = "seriatim", *, settings: Mapping[str, str] | None = None, log_file: Path | None = None
) -> SparkSession:
    """The session of this process, or a new one on all cores of this machine if there is none.

    ``settings`` are Spark's own. Spark's log goes to ``log_file``, by default an unnamed temporary file.
    """
    from pyspark import SparkConf
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    given = settings or {}
    master = given.get("spark.master", ANY_CORES)
    address = driver_address(master)
    chosen = {"spark.app.name": name, **_SETTINGS, **_on(master, address), **given}
    # Not loadDefaults: no Java runs yet that could be asked for them.
    conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
    _start_java(conf, log_file, address)
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True  # what it prints is raised as well
    return SparkSession.builder.config(conf=conf).getOrCreate()


_SETTINGS = {
    "spark.master": ANY_CORES,
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    **WORTH_SETTING,
    # Python workers need much memory for a moment in every batch. Returning it and requesting it again, page by page, costs
    # a quarter of their time: let Arrow keep it for ten seconds, and the C library 256 MB of it.
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "10000",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(2**28),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(2**25),
    # A file of sequences and times is read as what it says, not as a session's time zone would have it.
    "spark.sql.session.timeZone": "UTC",
}


def driver_address(master: str) -> str | None:
    """The address at which the driver is found: by the workers of a standalone cluster, or on this machine alone.

    None where Spark has to find out, as on YARN and Kubernetes.
    """
    if master.startswith("local"):
        return LOOPBACK
    if not (found := re.match(r"spark://([^:,/]+):(\d+)", master)):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((found[1], int(found[2])))
        except OSError as error:
            raise FailedPrecondition(
                f"can't reach {master} from this machine: {error}; correct spark.master"
            ) from error
        address: str = probe.getsockname()[0]
        return address


def _on(master: str, address: str | None) -> dict[str, str]:
    """Where the driver is found, and the parts of a shuffle: two hundred small ones cost more than their work.

    State is bound to the number of its partitions. On a cluster that must not depend on the machine of the driver.
    """
    found = {} if address is None else {"spark.driver.host": address, "spark.driver.bindAddress": address}
    parts = os.cpu_count() or 1 if master.startswith("local") else PARTITIONS_ON_A_CLUSTER
    return {**found, "spark.sql.shuffle.partitions": str(parts)}


def _start_java(conf: SparkConf, log_file: Path | None, address: str | None) -> None:
    """Start the Java process of this session, its output in the file, and let Spark know it."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    environ = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    os.environ.update(environ if address is None else {**environ, "SPARK_LOCAL_IP": address})
    with tempfile.TemporaryFile() if log_file is None else log_file.open("w+b") as log:
        try:
            # In a session of its own: how it ends is for us to say (``shutdown.py``), and not for a Ctrl-C in the terminal.
            options = {"stdout": log, "stderr": log, "start_new_session": True}
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except PySparkException as error:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
            raise FailedPrecondition(f"Spark's Java did not start: {said or error}") from error
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 (the only way to pass arguments to Popen)
