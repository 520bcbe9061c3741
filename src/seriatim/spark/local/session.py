"""A Spark session for our commands and tests: local, small and quiet.

In a program of your own, make a session as you always do: the transformations of this package work with any.

What Spark and its Java say goes to a file, never to the terminal: Spark raises its errors in Python anyway, and the
file is named where that does not tell enough. ``PYSPARK_PYTHON`` is the running interpreter, so that the workers find
what the program finds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from seriatim.errors import FailedPrecondition
from seriatim.extras import require_extra
from seriatim.spark.local.java import find_java

require_extra("spark", "pyspark", what="Spark")

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
LOG4J = Path(__file__).with_name("log4j2.properties")


def local_session(
    name: str = "seriatim", *, settings: Mapping[str, str] | None = None, log_file: Path | None = None
) -> SparkSession:
    """The session of this process; a new one on all cores of this machine when there is none.

    ``settings`` are Spark's own. What Spark logs goes to ``log_file``, by default a temporary file without a name.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    conf = _configuration({"spark.app.name": name, **_SETTINGS, **_for_this_machine(), **(settings or {})})
    _start_java(conf, log_file)
    _hush()
    return SparkSession.builder.config(conf=conf).getOrCreate()


_SETTINGS = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The size of a batch for Python is limited by its rows. Given a limit in bytes, Spark adds them up again with every row,
    # which costs more than writing the row; the largest number there is means that it is not to ask.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Python workers need much memory for a moment in every batch. Returning it and requesting it again, page by page, costs
    # a quarter of their time: let Arrow keep it for ten seconds, and the C library 256 MB of it.
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "10000",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(2**28),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(2**25),
    # A file of sequences and times is read as what it says, not as a session's time zone would have it.
    "spark.sql.session.timeZone": "UTC",
}


def _for_this_machine() -> dict[str, str]:
    """As many tasks as cores: a shuffle of two hundred small parts costs more than the work."""
    return {
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
    }


def _configuration(settings: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    # Not loadDefaults: no Java runs yet that could be asked for them.
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _hush() -> None:
    """Keep PySpark from printing errors that it raises as well."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _open_log(path: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile() if path is None else path.open("w+b")


def _start_java(conf: SparkConf, log_file: Path | None) -> None:
    """Start the Java process of this session, its output in the file, and let Spark know it."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    environ = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    os.environ.update(environ)
    with _open_log(log_file) as log:
        try:
            # In a session of its own: how it ends is for us to say (``shutdown.py``), and not for a Ctrl-C in the terminal.
            options = {"stdout": log, "stderr": log, "start_new_session": True}
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except PySparkException as error:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
            raise FailedPrecondition(f"Spark's Java did not start: {said or error}") from error
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 (the only way to pass arguments to Popen)
