"""A wall clock that jumps, forward and back, while a program runs (libfaketime).

The monotonic clock stays true, as on a real machine whose time somebody sets. With that, libfaketime 0.9.10 breaks Python's
``time.sleep``: only programs that do without it can have such a clock. All of Seriatim's own do.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from tests.debian import NotAvailable, unpacked
from tests.nemesis.fault import Fault
from tests.nemesis.program import Program, Surroundings

LIBRARY = "usr/lib/*-linux-gnu/faketime/libfaketimeMT.so.1"
SHARED_MEMORY = Path("/dev/shm")
JUMPS_S = (-86_400, -3_600, -60, -5, 5, 60, 3_600, 86_400)
FARTHEST_S = 3 * 86_400
"""How far a clock may stray from the truth. Retention times are longer: what they remove is meant to be removed."""


class Clock(Surroundings):
    """The wall clock of one machine: of all programs that have it among their surroundings."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ahead_s = 0
        self._set(0)

    @property
    def environment(self) -> dict[str, str]:
        if why_not() is not None:
            return {}
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def forget(self, process: int) -> None:
        """Remove what libfaketime leaves of a process that was killed."""
        for name in (f"faketime_shm_{process}", f"sem.faketime_sem_{process}"):
            (SHARED_MEMORY / name).unlink(missing_ok=True)

    def jump(self, seconds: int) -> None:
        self._set(max(-FARTHEST_S, min(FARTHEST_S, self._ahead_s + seconds)))

    def _set(self, ahead_s: int) -> None:
        self._ahead_s = ahead_s
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.chmod(0o644)
        new.rename(self._file)


class ClockJump(Fault):
    """The wall clock jumps, and stays there until it jumps again."""

    name, counted_as, weight = "clock jump", "clock jumps", 2

    def missing(self) -> str | None:
        return why_not()

    def fits(self, program: Program) -> bool:
        return program.find(Clock) is not None

    def apply(self, program: Program, random: Random) -> float:
        program.get(Clock).jump(random.choice(JUMPS_S))
        return 0


@cache
def why_not() -> str | None:
    try:
        _library()
    except NotAvailable as error:
        return str(error)
    return None


@cache
def _library() -> Path:
    for root in (Path("/"), None):
        found = list((root or unpacked(("libfaketime",))).glob(LIBRARY))
        if found:
            return found[0]
    raise NotAvailable(f"there is no {LIBRARY} in libfaketime")
