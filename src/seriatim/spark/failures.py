"""What Spark complains about, in one line.

An error of a task reaches the driver as text: the stack trace of the worker, wrapped in one of Java. Where it was one of ours,
its own message says what happened and what to do, and the rest is for Spark's log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from seriatim import errors
from seriatim.errors import FailedPrecondition, SeriatimError

_OURS = re.compile(r"^(?:[\w.: ]*\s)?seriatim\.errors\.\w+: (.+)$", re.MULTILINE)
_FAILED_STREAM = re.compile(r"terminated with exception: (.+)", re.DOTALL)
_NO_SOURCE = re.compile(r"(?:Failed to find|find) (?:the )?data source: `?([\w.-]+)")
_PYTHON = re.compile(r"^(?!\s|Traceback)((?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")

PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "avro": "org.apache.spark:spark-avro_2.13:{spark}",
}
"""Connectors of Spark that are not part of it."""


def in_one_line(error: BaseException, secrets: Mapping[str, str] | None = None) -> str:
    """What happened, without stack traces and without the values of ``secrets``."""
    text = _essence(error)
    for value, name in (secrets or {}).items():
        text = text.replace(value, name)
    return text


def _essence(error: BaseException) -> str:
    if isinstance(error, SeriatimError):
        return error.message
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    missing = _NO_SOURCE.search(text)
    if missing:
        return _missing_connector(missing[1])
    return f"Spark: {_first_line(text) or type(error).__name__}"


def _first_line(text: str) -> str:
    failed = _FAILED_STREAM.search(text)
    text = failed[1] if failed else text
    python = _PYTHON.findall(text)
    line = python[-1] if python and "Traceback" in text else text.strip().partition("\n")[0]
    return _STATE.sub("", line).strip()


def _missing_connector(name: str) -> str:
    import pyspark

    package = PACKAGES.get(name)
    if package is None:
        return f"Spark has no format '{name}': correct it, or add its package to [spark] as \"spark.jars.packages\""
    return (
        f"Spark's connector for '{name}' is not installed: add its package to the pipeline, "
        f'[spark] "spark.jars.packages" = "{package.format(spark=pyspark.__version__)}"'
    )


_TOLD = re.compile(r"^\s*seriatim\.errors\.(\w+): (.+?)\s*$", re.MULTILINE)


def unwrapped(error: BaseException) -> SeriatimError:
    """The error of ours that made Spark fail; if it was none, one with the first line of what Spark says."""
    if isinstance(error, SeriatimError):
        return error
    text = str(error)
    for name, message in _TOLD.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SeriatimError):
            return kind(message)
    return FailedPrecondition(f"Spark: {next(iter(text.splitlines()), type(error).__name__)}")
