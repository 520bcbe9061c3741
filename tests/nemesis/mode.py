"""A mode: which programs take part in a round, how they are drained, and what was promised to them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar

from tests.nemesis.checker import Anomaly
from tests.nemesis.fault import POLITE_END_S, SIGNALS, Fault
from tests.nemesis.history import Event, read_all
from tests.nemesis.program import Program


@dataclass(slots=True)
class Arena:
    """What a round gives to its mode."""

    folder: Path
    """Histories and what programs write to standard error. Removed after a round without findings."""
    seed: int
    random: Random
    cleanup: ExitStack
    """Whatever a mode sets up and has to remove."""
    troubles: list[str] = field(default_factory=list)
    """Findings that are not anomalies of the history: something hung, failed, or was not drained."""


class Mode(ABC):
    """One way of using Seriatim under fire. A round makes a new one.

    A mode sets everything up in ``__init__`` (removal: ``arena.cleanup``) and fills ``programs`` and ``faults``. The round
    starts each program whenever it does not run, in their order. Once the mode ``has_begun`` it applies the faults, heals them,
    and calls ``finish``, ``drain`` and ``judge``.
    """

    name: ClassVar[str]
    is_cheap: ClassVar[bool] = True
    """Whether ``make test`` runs a round of it."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.programs: list[Program] = []
        self.faults: list[Fault] = list(SIGNALS)
        self.missing: dict[str, str] = {}
        """What this machine can't do, and why."""

    def has_begun(self) -> bool:
        """Whether there is something to disturb: at first, whether a publish was confirmed."""
        return any(event.what == "published" for event in read_all(self.arena.folder))

    def finish(self) -> None:
        """End all programs politely: clients first, then what they depend on, last started first."""
        clients = [program for program in self.programs if program.is_client]
        for client in clients:
            client.ask_to_end()
        for client in clients:
            client.expect_end(POLITE_END_S)
        for program in reversed([program for program in self.programs if not program.is_client]):
            program.end(POLITE_END_S)

    @abstractmethod
    def drain(self) -> None:
        """Without any fault: let everything that is left be delivered. What can't be is a trouble."""

    @abstractmethod
    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        """What in the histories breaks a promise."""


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]
