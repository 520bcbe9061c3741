"""Errors as Spark reports them, turned back into one line and an error of ours.

An error that a task raises reaches the driver as text: the traceback of the worker, within the message of a job, within that of
the query. The line that says what happened and what to do is in there.
"""

from __future__ import annotations

import re

from seriatim import errors
from seriatim.errors import FailedPrecondition, SeriatimError

_TOLD = re.compile(r"^\s*seriatim\.errors\.(\w+): (.+?)\s*$", re.MULTILINE)
_OF_STREAM = re.compile(r"terminated with exception: (.+)", re.DOTALL)
_OF_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
_NO_FORMAT = re.compile(r"find (?:the )?data source: `?([\w.-]+?)`?[. ]")
_NO_FILE_SYSTEM = re.compile(r"Class (org\.apache\.hadoop\.fs\.\S+) not found|No FileSystem for scheme \"?(\w+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")

PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "avro": "org.apache.spark:spark-avro_2.13:{spark}",
}
"""Connectors of Spark that have to be fetched."""


def unwrapped(error: BaseException) -> SeriatimError:
    """The error of ours that made Spark fail; if it was none, one with the line of what Spark says that tells most."""
    if isinstance(error, SeriatimError):
        return error
    text = _said(error)
    for name, message in _TOLD.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SeriatimError):
            return kind(message)
    missing = _NO_FORMAT.search(text)
    if missing:
        return FailedPrecondition(_without_connector(missing[1]))
    file_system = _NO_FILE_SYSTEM.search(text)
    if file_system:
        return FailedPrecondition(
            f"Spark has no connector for that address ({file_system[1] or file_system[2]} is missing): add its package to "
            "spark.jars.packages; for s3a:// that is org.apache.hadoop:hadoop-aws, in the version of Spark's Hadoop"
        )
    return FailedPrecondition(f"Spark: {_telling_line(text) or type(error).__name__}")


def _said(error: BaseException) -> str:
    """Its text. The bridge to Java puts words of its own before those of Java."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.getMessage() or java.toString()).strip()


def _telling_line(text: str) -> str:
    of_stream = _OF_STREAM.search(text)
    text = of_stream[1] if of_stream else text
    of_python = _OF_PYTHON.findall(text) if "Traceback" in text else []
    line = of_python[-1] if of_python else text.strip().partition("\n")[0]
    return _STATE.sub("", line).strip(" ;")


def _without_connector(name: str) -> str:
    import pyspark

    if name not in PACKAGES:
        return f"Spark has no format '{name}': correct it, or add the package that has it to spark.jars.packages"
    package = PACKAGES[name].format(spark=pyspark.__version__)
    return f"Spark's connector for '{name}' is not there: add its package to spark.jars.packages, {package}"
