"""Stops Spark's Java, at any moment, and all processes that it started.

``local_session`` starts Java in its own process session. A Ctrl-C in the terminal does not reach it, so the program decides how
it ends; and its child processes (Python workers, readers of sources) can be found by that session, even after Java has exited.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from seriatim.extras import require_extra

require_extra("spark", "pyspark", what="Spark")

EXIT_TIMEOUT_S = 5.0
"""How long Java, and then its children, may take to exit before they are killed."""
POLL_INTERVAL_S = 0.02


def end_java() -> None:
    """End the Java process that ``local_session`` started, whatever it is doing, and return when all of it is gone.

    It would end by itself with this process. Call this when that, or what Spark is doing, takes too long: calls under way in
    other threads raise.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001 (where the process is)
    if gateway is None or gateway.proc is None:
        return
    updates = getattr(context, "_accumulatorServer", None)  # there is none while a session is being made
    if updates is not None:
        updates.handle_error = lambda *_: None  # that Java has hung up is what we want, and not worth a stack trace
    # Py4J logs what it also raises, to its own logger and to the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    _end(gateway.proc)
    if updates is not None:
        updates.shutdown()
    gateway.shutdown()
    # As if there had been none: the next session starts a Java of its own.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _end(leader: subprocess.Popen[bytes]) -> None:
    leader.terminate()
    try:
        leader.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        leader.kill()
        leader.wait()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while left := list(_members(leader.pid)):  # not our children, so they can't be waited for
        if time.monotonic() > deadline:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(POLL_INTERVAL_S)


def _members(session: int) -> Iterator[int]:
    """The processes of a session that run. Without /proc none is found, and they end a moment after Java."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            # After the name, which may hold anything: state, parent, group, session.
            state, _, _, belongs_to = entry.read_text().rpartition(")")[2].split()[:4]
            if int(belongs_to) == session and state != "Z":
                yield int(entry.parent.name)
