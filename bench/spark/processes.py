"""What the processes of a Spark session take: memory at most, and processor time. They are its Java and its Python workers.

Read from ``/proc``, so Linux only. Pages that several workers share (they are forks of one process) are counted by their
share.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import NamedTuple

EVERY = 0.1
MEGABYTE = 2**20


class Peaks:
    """Watches while it is entered. Peaks are in megabytes."""

    def __init__(self) -> None:
        self.java = self.workers = 0.0
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(EVERY):
            java, workers = 0.0, 0.0
            for process in _descendants(os.getpid()):
                with suppress(OSError):  # it may end while it is looked at
                    if _name(process) == "java":
                        java += _share(process)
                    else:
                        workers += _share(process)
            self.java, self.workers = max(self.java, java), max(self.workers, workers)


class Spent(NamedTuple):
    """Seconds of a processor."""

    java: float
    python: float


class Ticks(NamedTuple):
    """What one process has spent, and its children that have ended."""

    parent: int
    is_java: bool
    own: int
    of_ended: int


def processor_ticks() -> dict[int, Ticks]:
    """What all of them have spent so far, by process."""
    found = {}
    for process in _descendants(os.getpid()):
        with suppress(OSError):
            status = _status(process)
            own, system, of_ended, system_of_ended = map(int, status[11:15])
            is_java = _name(process) == "java"
            found[process] = Ticks(int(status[1]), is_java, own + system, of_ended + system_of_ended)
    return found


def spent_since(before: dict[int, Ticks]) -> Spent:
    """Also by those that have ended. Who ended together with its parent has left its ticks to nobody: it is not counted."""
    after = processor_ticks()
    known = [ticks for process, ticks in before.items() if process in after or ticks.parent in after]
    java, python = (
        sum(_of(ticks, is_java=is_java) for ticks in after.values())
        - sum(_of(ticks, is_java=is_java) for ticks in known)
        for is_java in (True, False)
    )
    hertz = os.sysconf("SC_CLK_TCK")
    return Spent(java / hertz, python / hertz)


def _of(ticks: Ticks, *, is_java: bool) -> int:
    """Children of Java are Python."""
    if is_java:
        return ticks.own if ticks.is_java else 0
    return ticks.of_ended if ticks.is_java else ticks.own + ticks.of_ended


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                children[int(_status(int(entry.name))[1])].append(int(entry.name))
    found = [root]
    for process in found:
        found.extend(children[process])
    return found[1:]


def _status(process: int) -> list[str]:
    """The fields of its ``stat`` behind the name, which may have blanks in it."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _name(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def _share(process: int) -> float:
    """The proportional set size."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    return 0.0
