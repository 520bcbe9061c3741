"""Makes a failing program short: steps are left out, then cancellations, as long as the same kind of finding is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.program import Program
from tests.simulation.run import run

LONGEST_DETAIL = 120


def kind_of(finding: str) -> str:
    return finding.partition(":")[0]


def shrink(program: Program, kind: str, most_runs: int = 400) -> Program:
    """A program with as few steps as can be found that still has a finding of a kind."""
    runs = 0

    def fails(candidate: Program) -> bool:
        nonlocal runs
        runs += 1
        return runs <= most_runs and any(kind_of(finding) == kind for finding in run(candidate).findings)

    numbers = _fewest([step.number for step in program.steps], lambda kept: fails(program.only(kept)))
    program = program.only(numbers)
    for step in program.steps:
        if step.cancel is not None and fails(program.calm([step.number])):
            program = program.calm([step.number])
    return program


def _fewest(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Delta debugging: leave out ever smaller parts."""
    kept, size = list(items), max(1, len(items) // 2)
    while True:
        start, is_smaller = 0, False
        while start < len(kept):
            candidate = kept[:start] + kept[start + size :]
            if fails(candidate):
                kept, is_smaller = candidate, True
            else:
                start += size
        if size == 1 and not is_smaller:
            return kept
        size = max(1, size // 2)


def replay_command(program: Program, original: Program) -> str:
    """How to run just this again."""
    words = f"--seed {program.seed}"
    if len(program.steps) < len(original.steps):
        words += f" --keep {','.join(str(step.number) for step in program.steps) or 'none'}"
    cancels = {step.number for step in original.steps if step.cancel is not None}
    calm = [str(step.number) for step in program.steps if step.number in cancels and step.cancel is None]
    if calm:
        words += f" --calm {','.join(calm)}"
    return f'make simulate ARGS="{words}"'


@dataclass(frozen=True, slots=True)
class Report:
    """What was found with a seed: one sentence, and a short script with the command that replays it."""

    sentence: str
    script: str


def report(program: Program, findings: Sequence[str]) -> Report:
    short = shrink(program, kind_of(findings[0]))
    seen = run(short).findings or findings
    replay = replay_command(short, program)
    lines = [
        f"seed {program.seed}: {len(program.steps)} steps shrunk to {len(short.steps)}",
        *(f"  FOUND {finding}" for finding in seen[:5]),
        short.script(),
        f"replay: {replay}",
    ]
    kind, _, detail = seen[0].partition(": ")
    return Report(f"Seed {program.seed}, {kind}: {_first_words(detail)} (`{replay}`)", "\n".join(lines))


def _first_words(text: str) -> str:
    """As much of a finding as fits into a sentence, on one line and without what a page would take for markup."""
    words = " ".join(text.split()).replace("<", "‹").replace(">", "›")
    return words if len(words) <= LONGEST_DETAIL else f"{words[:LONGEST_DETAIL]}…"
