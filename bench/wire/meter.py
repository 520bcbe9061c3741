"""What a stretch of work takes: seconds of the clock, and seconds of the processors on either side."""

from __future__ import annotations

import os
from math import nan
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple


class Reading(NamedTuple):
    """Messages a second, and how many processors each side kept busy meanwhile (nan: not known)."""

    rate: float
    server: float = nan
    client: float = nan


class Meter:
    """Measures what happens inside ``with``: filling a backlog, for one, does not count."""

    def __init__(self, server: int) -> None:
        """``server`` is the id of its process; the client is this process."""
        self._server = server

    def __enter__(self) -> None:
        self._begun = self._clocks()

    def __exit__(self, *_: object) -> None:
        self._seconds, self._by_server, self._by_client = (
            end - begun for begun, end in zip(self._begun, self._clocks(), strict=True)
        )

    def reading(self, messages: int) -> Reading:
        return Reading(messages / self._seconds, self._by_server / self._seconds, self._by_client / self._seconds)

    def _clocks(self) -> tuple[float, float, float]:
        return perf_counter(), _processor_seconds(self._server), process_time()


def _processor_seconds(process: int) -> float:
    """User and system time of a process, as Linux tells it."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return nan
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
