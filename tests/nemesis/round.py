"""One round: programs under fire for a while, then calm, a drain, and the judgement."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.nemesis.checker import Anomaly
from tests.nemesis.fault import Fault
from tests.nemesis.history import read_all
from tests.nemesis.mode import Arena, Mode
from tests.nemesis.network import PREFIX
from tests.nemesis.program import Program

BEGIN_S = 300.0
LONGEST_PAUSE_S = 2.0
MOST_TROUBLES = 10
MOST_MORE = 10
"""How many times longer a round may last in which nothing could be disturbed."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a round did and found."""

    mode: str
    seed: int
    seconds: float
    events: Counter[str]
    faults: Counter[str]
    missing: dict[str, str]
    """What this machine can't do, and why."""
    anomalies: list[Anomaly]
    troubles: list[str]
    folder: Path

    @property
    def found(self) -> list[str]:
        """Each kind of anomaly once, and the first troubles."""
        kinds = Counter(anomaly.kind for anomaly in self.anomalies)
        examples = {anomaly.kind: anomaly for anomaly in reversed(self.anomalies)}
        return [
            *(f"{kind}: {count}, such as {examples[kind]}" for kind, count in kinds.items()),
            *self.troubles[:MOST_TROUBLES],
        ]


@dataclass(frozen=True, slots=True)
class _Ongoing:
    fault: Fault
    program: Program
    until: float


@contextmanager
def _removed_when_interrupted(folder: Path) -> Iterator[None]:
    """Nobody will look at a round that was ended from outside, by Ctrl-C or SIGTERM. After an error it is kept."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(folder)
        raise


class Round:
    """One round of one mode. Its decisions follow from the seed; the timing of the machine does not."""

    def __init__(self, mode: type[Mode], seed: int, seconds: float) -> None:
        self._mode_type, self._seed, self._seconds = mode, seed, seconds
        self._random = Random(f"{mode.name} {seed}")
        self._ongoing: list[_Ongoing] = []
        self._counts: Counter[str] = Counter()
        self._missing: dict[str, str] = {}

    def run(self) -> Report:
        begun = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        with _removed_when_interrupted(folder), ExitStack() as cleanup:
            arena = Arena(folder, self._seed, self._random, cleanup)
            mode = self._mode_type(arena)
            cleanup.callback(_kill_all, mode)
            faults = self._possible(mode)
            self._begin(mode)
            self._torment(mode, faults)
            self._heal(float("inf"))
            _start_missing([program for program in mode.programs if not program.is_client])  # clients may wait for them
            mode.finish()
            mode.drain()
        report = self._judge(mode, time.monotonic() - begun)
        if not report.found:
            shutil.rmtree(folder)
        return report

    def _possible(self, mode: Mode) -> list[Fault]:
        self._missing = {fault.name: why for fault in mode.faults if (why := fault.missing()) is not None}
        self._missing |= mode.missing
        if self._missing and os.environ.get("CI") == "true":
            raise RuntimeError(f"nothing may be left out where CI=true: {self._missing}")
        return [fault for fault in mode.faults if fault.name not in self._missing]

    def _begin(self, mode: Mode) -> None:
        """Wait until the programs do what they are for: a round in which nothing happens would prove nothing."""
        end = time.monotonic() + BEGIN_S
        while not mode.has_begun():
            if time.monotonic() > end:
                raise RuntimeError(
                    f"nothing happened within {BEGIN_S:.0f} s although nothing was disturbed: {mode.arena.folder}"
                )
            _start_missing(mode.programs)
            time.sleep(0.1)

    def _torment(self, mode: Mode, faults: list[Fault]) -> None:
        """Disturb for as long as the round lasts, and on a slow machine until something was disturbed at all."""
        end = time.monotonic() + self._seconds
        while (now := time.monotonic()) < end or (not self._counts and now < end + MOST_MORE * self._seconds):
            _start_missing(mode.programs)
            self._heal(time.monotonic())
            time.sleep(self._random.uniform(0.05, LONGEST_PAUSE_S))
            self._disturb(self._random.choice(mode.programs), faults)

    def _disturb(self, program: Program, faults: list[Fault]) -> None:
        """Let something happen to a program that runs and has no other trouble."""
        if not (program.is_running and program.may_be_disturbed) or any(
            one.program is program for one in self._ongoing
        ):
            return
        fitting = [fault for fault in faults if fault.fits(program)]
        (fault,) = self._random.choices(fitting, weights=[fault.weight for fault in fitting])
        if fault.needs_calm:
            self._heal(float("inf"))
        lasts = fault.apply(program, self._random)
        if lasts is None:
            return
        if lasts > 0:
            self._ongoing.append(_Ongoing(fault, program, time.monotonic() + lasts))
        self._counts[fault.counted_as] += 1

    def _heal(self, now: float) -> None:
        for one in [one for one in self._ongoing if one.until <= now]:
            one.fault.heal(one.program)
            self._ongoing.remove(one)

    def _judge(self, mode: Mode, seconds: float) -> Report:
        events = read_all(mode.arena.folder)
        troubles = list(mode.arena.troubles)
        for program in mode.programs:
            troubles += [*program.troubles, *program.suspicious()]
        return Report(
            mode=mode.name,
            seed=self._seed,
            seconds=seconds,
            events=Counter(event.what for event in events),
            faults=self._counts,
            missing=self._missing,
            anomalies=mode.judge(events),
            troubles=troubles,
            folder=mode.arena.folder,
        )


def _start_missing(programs: Iterable[Program]) -> None:
    for program in programs:
        if not program.is_running:
            program.start()


def _kill_all(mode: Mode) -> None:
    for program in mode.programs:
        program.kill()
