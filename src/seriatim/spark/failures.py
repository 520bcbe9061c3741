"""Converts the errors that Spark reports back to our errors, with one line of text.

An error in a task reaches the driver as text: the traceback of the worker, inside the message of a job, inside that of the
query. Somewhere in it is the line that says what happened and what to do.
"""

from __future__ import annotations

import re

from seriatim import errors
from seriatim.errors import FailedPrecondition, SeriatimError

_OUR_ERROR = re.compile(r"^\s*seriatim\.errors\.(\w+): (.+?)\s*$", re.MULTILINE)
_STREAM_FAILURE = re.compile(r"terminated with exception: (.+)", re.DOTALL)
_PYTHON_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
_NO_FORMAT = re.compile(r"find (?:the )?data source: `?([\w.-]+?)`?[. ]")
_NO_FILE_SYSTEM = re.compile(r"Class (org\.apache\.hadoop\.fs\.\S+) not found|No FileSystem for scheme \"?(\w+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")

KAFKA_LOSS = "not available in Kafka any more"

PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "avro": "org.apache.spark:spark-avro_2.13:{spark}",
}
"""Connectors of Spark that have to be fetched."""


def unwrapped(error: BaseException) -> SeriatimError:
    """Our error that made Spark fail; for any other error, FailedPrecondition with the most specific line of its text."""
    if isinstance(error, SeriatimError):
        return error
    text = _text_of(error)
    for name, message in _OUR_ERROR.findall(text):
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
    if KAFKA_LOSS in text:
        return FailedPrecondition(
            "Kafka no longer has messages that were not read yet; to continue without them, set failOnDataLoss to false"
        )
    return FailedPrecondition(f"Spark: {_most_specific_line(text) or type(error).__name__}")


def _text_of(error: BaseException) -> str:
    """The text of an error, without what the bridge to Java puts before it."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java.getMessage() or java.toString()).strip()


def _most_specific_line(text: str) -> str:
    of_stream = _STREAM_FAILURE.search(text)
    text = of_stream[1] if of_stream else text
    of_python = _PYTHON_ERROR.findall(text) if "Traceback" in text else []
    line = of_python[-1] if of_python else text.strip().partition("\n")[0]
    return _STATE.sub("", line).strip(" ;")


def _without_connector(name: str) -> str:
    import pyspark

    if name not in PACKAGES:
        return f"Spark has no format '{name}': correct it, or add the package that has it to spark.jars.packages"
    package = PACKAGES[name].format(spark=pyspark.__version__)
    return f"Spark's connector for '{name}' is missing: add its package to spark.jars.packages, {package}"
