"""Makes a failing program short: steps are left out, then cancellations, as long as the same kind of finding is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.program import Program
from tests.simulation.run import run


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


def report(program: Program, findings: Sequence[str]) -> str:
    """What was found with a seed, as a short script and the command that replays it."""
    short = shrink(program, kind_of(findings[0]))
    seen = run(short).findings or findings
    return "\n".join(
        [
            f"seed {program.seed}: {len(program.steps)} steps shrunk to {len(short.steps)}",
            *(f"  FOUND {finding}" for finding in seen[:5]),
            short.script(),
            f"replay: {replay_command(short, program)}",
        ]
    )
