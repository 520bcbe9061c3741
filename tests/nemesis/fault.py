"""What can happen to a program, and the faults that need nothing but a signal."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar

from tests.nemesis.program import Program

POLITE_END_S = 100.0
"""More than our client lets a call to a server take that can't be reached."""


class Fault(ABC):
    """Something that a round does to its programs now and then.

    ``counted_as`` is the name in the figures. ``weight``: how often it is chosen, compared with others. ``needs_calm``:
    everything else is healed before, because what it waits for may depend on that.
    """

    name: ClassVar[str]
    counted_as: ClassVar[str]
    weight: ClassVar[int] = 1
    needs_calm: ClassVar[bool] = False

    def missing(self) -> str | None:
        """Why this machine can't do it."""
        return None

    def fits(self, program: Program) -> bool:
        """Whether it can happen to this program, which is running."""
        return True

    @abstractmethod
    def apply(self, program: Program, random: Random) -> float | None:
        """Do it. Returns for how many seconds it lasts: then it is healed; 0 where there is nothing to heal.

        None: there was no occasion, and nothing was done.
        """

    def heal(self, program: Program) -> None:  # noqa: B027 - most faults are over at once
        """Undo it. The program may have ended and been started again since."""


class Kill(Fault):
    name, counted_as, weight = "kill", "kills", 3

    def apply(self, program: Program, random: Random) -> float:
        program.kill()
        return 0


class Stop(Fault):
    """SIGSTOP, and SIGCONT later: a pause that the program itself can't see."""

    name, counted_as, weight = "stop", "stops", 4

    def apply(self, program: Program, random: Random) -> float:
        program.send(signal.SIGSTOP)
        return random.choice([0.1, 0.5, 2.0, 4.0])

    def heal(self, program: Program) -> None:
        program.record("continued")
        program.send(signal.SIGCONT)


class End(Fault):
    """A polite end, which a program has to reach by itself."""

    name, counted_as, needs_calm = "end", "polite ends", True

    def apply(self, program: Program, random: Random) -> float:
        program.end(POLITE_END_S)
        return 0


SIGNALS: list[Fault] = [Kill(), Stop(), End()]
