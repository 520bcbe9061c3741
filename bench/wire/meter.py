"""What a stretch of work takes: seconds of the clock, and what either side did with the processors meanwhile."""

from __future__ import annotations

import os
from math import isnan, nan
from pathlib import Path
from time import perf_counter
from typing import NamedTuple


class Share(NamedTuple):
    """Of a process, as parts of the time that passed (nan: not known)."""

    busy: float = nan
    """So many processors all its threads kept busy."""

    waiting: float = nan
    """So much of the time its main thread, which runs the event loop, could have run and got no processor."""

    def __str__(self) -> str:
        return "–" if isnan(self.busy) else f"{self.busy:.2f} + {self.waiting:.2f}"


class Reading(NamedTuple):
    """Messages a second, and what the two sides took."""

    rate: float
    server: Share = Share()
    client: Share = Share()


class Meter:
    """Measures what happens inside ``with``: filling a backlog, for one, does not count."""

    def __init__(self, server: int) -> None:
        """``server`` is the id of its process; the client is this process."""
        self._processes = server, os.getpid()

    def __enter__(self) -> None:
        self._before = [_processor_seconds(process) for process in self._processes]
        self._begun = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds = perf_counter() - self._begun
        self._after = [_processor_seconds(process) for process in self._processes]

    def reading(self, messages: int) -> Reading:
        server, client = (
            Share(*((end - begun) / self._seconds for begun, end in zip(before, after, strict=True)))
            for before, after in zip(self._before, self._after, strict=True)
        )
        return Reading(messages / self._seconds, server, client)


def _processor_seconds(process: int) -> tuple[float, float]:
    """User and system time of a process, and how long its main thread waited for a processor, as Linux tells it."""
    folder = Path(f"/proc/{process}")
    try:
        after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        waited = int((folder / "schedstat").read_text().split()[1])
    except FileNotFoundError:
        return nan, nan
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK"), waited / 1e9
