"""Ordered work, ours and others': the same messages, keys and handlers on every server, and a judge of every run.

    python -m bench.ordering [--quick] [--only NAME …] [--before COMMIT] [--minutes 45] [--record]

Every run publishes its messages (200 bytes, 1,000 keys) and works them off in one process of its own, which writes down when
each message began, failed and was done. The judge reads that journal: each key's messages must be done in the order of
publishing, one at a time, every one once. **A run that it objects to has no figure**, and the table says why.

Participants have turns within each round, so that a noisy moment hits all of them; figures are medians of the rounds. How many
messages they get depends on how fast they were before: a run lasts about a second. ``--before`` runs ours at another commit
in the same rounds, and shows the ratio beside our figures. ``--record`` writes the table with every reading to
docs/benchmarks, and draws docs/images/ordering.svg. Whoever is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

from bench.ordering.participants import PARTICIPANTS, Participant
from bench.ordering.picture import drawn
from bench.ordering.work import QUICK_SCENARIOS, SCENARIOS, Objection, Scenario, Work, judge
from bench.record import IMAGES, ROOT, Recorder
from bench.report import add_record_option

PICTURE = IMAGES / "ordering.svg"
BEFORE = ", before"
TIMEOUT_S = 60.0
"""A run that takes longer has no figure."""


@dataclass(frozen=True)
class Size:
    first: int
    """Messages of the run before the first round, which tells how many the others get."""
    most: int
    seconds: float
    rounds: int
    minutes: float
    scenarios: Sequence[Scenario]


FULL, QUICK = Size(300, 20_000, 1.0, 5, 45.0, SCENARIOS), Size(100, 100, 0.0, 1, 2.0, QUICK_SCENARIOS)


@dataclass
class Result:
    """What a participant reached in a scenario: messages handled a second, one figure for each round, or why there is none."""

    rates: list[float] = field(default_factory=list)
    published: list[float] = field(default_factory=list)
    messages: int = 0
    objection: str | None = None

    @property
    def figure(self) -> float | None:
        return median(self.rates) if self.rates and self.objection is None else None


class Bench:
    def __init__(self, size: Size, participants: dict[str, Participant], minutes: float | None = None) -> None:
        self._size = size
        self._participants = participants
        self._deadline = monotonic() + (minutes or size.minutes) * 60
        self._runs = 0
        self.results: dict[tuple[str, str], Result] = {}
        self.left_out: dict[str, str] = {}

    def measure(self) -> None:
        with ExitStack() as stack:
            addresses: dict[str, str] = {}
            for name, participant in list(self._participants.items()):
                print(f"starting {name} ...", file=sys.stderr, flush=True)
                try:
                    addresses[name] = stack.enter_context(participant.server())
                except (RuntimeError, TimeoutError, OSError) as error:
                    del self._participants[name]
                    self.left_out[name] = f"its server did not start: {error}"
                    print(f"{name} is left out: {error}", file=sys.stderr)
            for scenario in self._size.scenarios:
                for number in range(self._size.rounds):
                    for name, participant in self._participants.items():
                        self._turn(name, participant, addresses[name], scenario, number)
                self._say(scenario)

    def _turn(self, name: str, participant: Participant, address: str, scenario: Scenario, number: int) -> None:
        result = self.results.setdefault((name, scenario.name), Result())
        if result.objection is not None:
            return
        if monotonic() > self._deadline:
            result.objection = None if result.rates else "out of time"
            return
        try:
            if number == 0:
                rate, published = self._run(participant, address, Work(scenario, self._size.first, self._name()))
                wanted = int(min(rate, published) * self._size.seconds)
                result.messages = max(self._size.first, min(self._size.most, wanted))
                if self._size.rounds == 1:
                    result.rates.append(rate)
                    result.published.append(published)
                    return
            rate, published = self._run(participant, address, Work(scenario, result.messages, self._name()))
            result.rates.append(rate)
            result.published.append(published)
        except Objection as objection:
            result.objection = str(objection)

    def _name(self) -> str:
        self._runs += 1
        return f"run-{self._runs}"

    def _run(self, participant: Participant, address: str, work: Work) -> tuple[float, float]:
        """Messages handled and published a second, if the judge has no objection."""
        command = [
            sys.executable,
            "-m",
            "bench.ordering.worker",
            participant.client,
            address,
            json.dumps(work.to_json()),
        ]
        try:
            process = subprocess.run(
                command, env=participant.environment, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Objection(f"not done within {TIMEOUT_S:.0f} s") from None
        if process.returncode:
            lines = process.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"]
            raise Objection(f"it failed: {lines[-1][:200]}")
        said = json.loads(process.stdout)
        judge(work, [(what, number) for what, number in said["events"]])
        publishing, handling = said["seconds"]
        return work.messages / handling, work.messages / publishing

    def _say(self, scenario: Scenario) -> None:
        for name in self._participants:
            print(f"{scenario.name} · {name} · {self._cell(name, scenario)}", file=sys.stderr, flush=True)

    def _cell(self, name: str, scenario: Scenario) -> str:
        result = self.results[name, scenario.name]
        before = self.results.get((f"{name}{BEFORE}", scenario.name))
        if result.figure is None or before is None or before.figure is None:
            return shown(result, self._size.rounds)
        ratio = median(now / then for now, then in zip(result.rates, before.rates, strict=False))
        return f"{shown(result, self._size.rounds)} ({ratio:.2f}x before)"

    def rows(self, left_out: dict[str, str]) -> list[dict[str, str]]:
        found = [
            {"who": name, "version and settings": participant.about()}
            | {scenario.name: self._cell(name, scenario) for scenario in self._size.scenarios}
            for name, participant in self._participants.items()
        ]
        return found + [
            {"who": name, "version and settings": f"left out: {why}"}
            | {scenario.name: "–" for scenario in self._size.scenarios}
            for name, why in (left_out | self.left_out).items()
        ]

    def readings(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for (name, scenario), result in self.results.items():
            if result.objection is None:
                found[f"{name}: {scenario}: handled/s, {result.messages} messages"] = result.rates
                found[f"{name}: {scenario}: published/s"] = result.published
        return found


def shown(result: Result, rounds: int) -> str:
    if (figure := result.figure) is None:
        return f"no figure: {result.objection}"
    of_rounds = f" ({len(result.rates)} of {rounds} rounds)" if len(result.rates) < rounds else ""
    return f"{figure:,.0f}/s{of_rounds}"


@contextmanager
def checked_out(commit: str | None) -> Iterator[Path | None]:
    """The sources of another commit."""
    if commit is None:
        yield None
        return
    with TemporaryDirectory(prefix="bench-ordering-") as folder:
        place = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(place), commit], cwd=ROOT, check=True)
        try:
            yield place / "src"
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def taking_part(only: list[str] | None, before: Path | None) -> tuple[dict[str, Participant], dict[str, str]]:
    """Who can take part, and who is left out, with the reason."""
    chosen = {name: one for name, one in PARTICIPANTS.items() if not only or any(part in name for part in only)}
    there, left_out = dict[str, Participant](), dict[str, str]()
    for name, participant in chosen.items():
        if (why := participant.missing()) is not None:
            left_out[name] = why
            continue
        there[name] = participant
        if before is not None and participant.is_ours:
            there[f"{name}{BEFORE}"] = participant.at(before)
    return there, left_out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ordering", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="few messages, to see that everybody runs")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="those whose name contains this; may be given several times"
    )
    parser.add_argument("--before", metavar="COMMIT", help="also measure ours at another commit")
    parser.add_argument("--minutes", type=float, help="begin no run later than this (45, or 2 with --quick)")
    parser.add_argument(
        "--picture", type=Path, help="where to draw the picture; with --record docs/images/ordering.svg"
    )
    add_record_option(parser)
    arguments = parser.parse_args()
    recorder, size = Recorder("ordering"), QUICK if arguments.quick else FULL
    with checked_out(arguments.before) as before:
        participants, left_out = taking_part(arguments.only, before)
        for name, why in left_out.items():
            print(f"{name} is left out: {why}", file=sys.stderr)
        if not participants:
            raise SystemExit("nobody can take part")
        bench = Bench(size, participants, arguments.minutes)
        bench.measure()
        rows = bench.rows(left_out)
    print(json.dumps(rows, indent=1, ensure_ascii=False))
    figures = {key: result.figure for key, result in bench.results.items()}
    if picture := arguments.picture or (PICTURE if arguments.record else None):
        picture.write_text(
            drawn([scenario.name for scenario in size.scenarios], list(participants), figures), encoding="utf-8"
        )
    if arguments.record:
        recorder.write(rows, bench.readings())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(ROOT / "src"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers are stopped whatever ends it
    main()
