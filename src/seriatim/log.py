"""One logger for all of Seriatim.

The library only ever adds a ``NullHandler``, so that a program that embeds it decides what is shown. The command line calls
:func:`configure`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LOGGER_NAME = "seriatim"

logger = logging.getLogger(LOGGER_NAME)
logger.addHandler(logging.NullHandler())

_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object a line; what was passed as ``extra`` becomes fields of its own."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def configure(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Write entries of ``level`` and above to ``stream`` (standard error), replacing what an earlier call set up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter("%(levelname)s: %(message)s"))
    for former in logger.handlers[:]:
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
