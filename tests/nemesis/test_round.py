"""What a round reports: faults that can't be done here, anomalies, and programs that say what they should not."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.nemesis.__main__ import announce, round_seconds
from tests.nemesis.checker import Anomaly
from tests.nemesis.fault import Fault
from tests.nemesis.history import Event
from tests.nemesis.mode import Arena, Mode
from tests.nemesis.program import Program
from tests.nemesis.round import Report, Round

LOST = Anomaly("lost", "s", "k", 1, "planted")


class Impossible(Fault):
    name, counted_as = "impossible", "impossible things"

    def missing(self) -> str | None:
        return "nobody can"

    def apply(self, program: Program, random: Random) -> float | None:
        raise AssertionError("it was applied")


class Calm(Mode):
    """A program that waits, and whatever a test plants."""

    name = "calm"
    says = ""
    anomalies: Sequence[Anomaly] = ()
    impossible: Sequence[Fault] = ()

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        code = f"import sys, time; print({self.says!r}, file=sys.stderr, flush=True); time.sleep(60)"
        self.programs = [Program("p", arena.folder, lambda _: [sys.executable, "-c", code])]
        self.faults += self.impossible

    def has_begun(self) -> bool:
        said = self.arena.folder / "p.stderr"
        return said.exists() and said.stat().st_size > 0

    def drain(self) -> None:
        pass

    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        return list(self.anomalies)


@pytest.fixture
def reports() -> Iterator[list[Report]]:
    made: list[Report] = []
    yield made
    for report in made:
        shutil.rmtree(report.folder, ignore_errors=True)


def run(mode: type[Mode], reports: list[Report]) -> Report:
    reports.append(Round(mode, seed=1, seconds=0.1).run())
    return reports[-1]


def test_a_round_without_findings_leaves_nothing_behind(reports):
    report = run(Calm, reports)
    assert report.found == []
    assert not report.folder.exists()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_a_round_that_is_interrupted_leaves_nothing_behind(interruption):
    folders: list[Path] = []

    class Interrupted(Calm):
        def drain(self) -> None:
            folders.append(self.arena.folder)
            raise interruption

    with pytest.raises(interruption):
        run(Interrupted, [])
    assert not folders[0].exists()


def test_an_anomaly_is_reported_and_what_everybody_saw_is_kept(reports):
    class Losing(Calm):
        anomalies = (LOST, LOST)

    report = run(Losing, reports)
    assert report.found == [f"lost: 2, such as {LOST}"]
    assert report.folder.exists()


def test_a_trace_on_standard_error_is_a_finding(reports):
    class Complaining(Calm):
        says = "Traceback (most recent call last):"

    assert set(run(Complaining, reports).found) == {"p: Traceback (most recent call last):"}


def test_a_fault_that_this_machine_cant_do_is_left_out_and_named(reports, monkeypatch, tmp_path):
    class Limited(Calm):
        impossible = (Impossible(),)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert run(Limited, reports).missing == {"impossible": "nobody can"}
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RuntimeError, match="nobody can"):
        run(Limited, reports)


@pytest.mark.parametrize(
    ("minutes", "modes", "seconds"), [(2, 7, 8), (3, 7, pytest.approx(13.7, abs=0.1)), (10, 7, 30), (2, 1, 30)]
)
def test_a_short_run_has_short_rounds_so_that_it_reaches_more_modes(minutes, modes, seconds):
    assert round_seconds(minutes, modes) == seconds


@pytest.mark.parametrize(
    ("minutes", "said"), [(2, "reach about 4 of 7 modes"), (2, "MINUTES=6 reaches all"), (6, "in 7 modes in turn")]
)
def test_a_run_says_at_once_how_many_modes_it_reaches(minutes, said):
    assert said in announce([Calm] * 7, minutes, round_seconds(minutes, 7))


def test_a_fault_without_an_occasion_is_not_counted(reports):
    class Never(Impossible):
        def missing(self) -> str | None:
            return None

        def apply(self, program: Program, random: Random) -> float | None:
            return None

    class Uneventful(Calm):
        def __init__(self, arena: Arena) -> None:
            super().__init__(arena)
            self.faults = [Never()]

    assert run(Uneventful, reports).faults == {}
