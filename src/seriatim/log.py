"""One logger for all of Seriatim.

The library adds no handler: the program that embeds it decides what is shown, and where it has not configured logging, Python
writes warnings and errors to standard error. A handler that always fails must not fail in silence. The command line calls
:func:`configure`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import threading
from datetime import UTC, datetime
from typing import TextIO

LOGGER_NAME = "seriatim"

logger = logging.getLogger(LOGGER_NAME)

LIBRARIES = ("aiohttp", "asyncio", "grpc", "mqtt")
"""Libraries whose warnings are shown like ours."""

STDERR = 2

_ABSEIL = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ ")
"""How a line of gRPC's core begins: level, date, time and thread."""

_ABSEIL_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}

_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object per line; what was passed as ``extra`` becomes fields of its own."""

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


class _Handler(logging.StreamHandler[TextIO]):
    """A handler that ``configure`` has added, and may remove."""


def configure(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Write entries of ``level`` and above to ``stream`` (standard error), replacing the set-up of an earlier call. Warnings of
    the libraries that we use are written in the same way."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter("%(levelname)s: %(message)s"))
    for former in logger.handlers[:]:
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    for name in LIBRARIES:
        _replace_handler(logging.getLogger(name), handler)


def _replace_handler(library: logging.Logger, handler: logging.Handler) -> None:
    for former in library.handlers[:]:
        if isinstance(former, _Handler):
            library.removeHandler(former)
    library.addHandler(handler)


def capture_native_lines() -> TextIO:
    """Turn what native libraries (gRPC's core) write to standard error into log entries. Returns the real standard error, to
    which entries must be written.

    They write to the file descriptor itself, so it becomes a pipe that a thread reads. What a library writes while it kills
    the process may be lost.
    """
    real = os.fdopen(os.dup(STDERR), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    reading, writing = os.pipe()
    os.dup2(writing, STDERR)
    os.close(writing)
    sys.stderr = real
    thread = threading.Thread(target=_log_lines, args=(reading,), name="native log lines", daemon=True)
    thread.start()
    atexit.register(_end_capture, real, thread)
    return real


def _end_capture(real: TextIO, thread: threading.Thread) -> None:
    os.dup2(real.fileno(), STDERR)  # which closes the pipe: the thread reads what is left, and ends
    thread.join(1.0)


def _log_lines(descriptor: int) -> None:
    native = logging.getLogger(f"{LOGGER_NAME}.native")
    with open(descriptor, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            found = _ABSEIL.match(line)
            level = _ABSEIL_LEVELS[found[1]] if found else logging.WARNING
            if text := line[found.end() if found else 0 :].strip():
                native.log(level, "%s", text)
