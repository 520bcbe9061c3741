"""Mutation testing of the core: ``make mutate``.

mutmut changes the core in thousands of small ways, one at a time, and runs the tests of the core on each. What survives is a
place that no test looks at, or a change that makes no difference. The result goes to docs/explanation/mutation-testing.md: a
table of all modules, and every survivor with the explanation given for it in bench/survivors.toml. A survivor that nobody
explained is listed as such.

A full run takes a while; ``make mutate ONLY=lane`` does one module and prints its survivors without touching the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE = "src/seriatim/core"
RESULTS = ROOT / "mutants" / CORE
PAGE = ROOT / "docs" / "explanation" / "mutation-testing.md"
EXPLANATIONS = ROOT / "bench" / "survivors.toml"
GOAL = 0.9

SURVIVED = 0
TIMED_OUT = {24, -24, 36, 152, 255}
NO_TESTS = {5, 33}


@dataclass(frozen=True)
class Module:
    name: str
    outcomes: Counter[str]
    survivors: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.outcomes.total()

    @property
    def killed(self) -> int:
        # A mutant that loops for ever is noticed, too.
        return self.outcomes["killed"] + self.outcomes["timed out"]


def share_killed(modules: list[Module]) -> tuple[float, str]:
    killed, total = sum(module.killed for module in modules), sum(module.total for module in modules)
    return killed / total, f"{killed / total:.1%}, {killed} of {total}"


def run_mutmut(patterns: list[str]) -> None:
    environment = os.environ | {"HYPOTHESIS_PROFILE": "mutate"}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(os.cpu_count() or 1), *patterns]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def outcome(exit_code: int | None) -> str:
    if exit_code == SURVIVED:
        return "survived"
    if exit_code in TIMED_OUT:
        return "timed out"
    if exit_code in NO_TESTS:
        return "no tests"
    return "not run" if exit_code is None else "killed"


def read_results() -> list[Module]:
    modules = []
    for path in sorted(RESULTS.glob("*.meta")):
        codes: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
        outcomes = Counter(outcome(code) for code in codes.values())
        survivors = tuple(name for name, code in codes.items() if outcome(code) in ("survived", "no tests"))
        if codes:
            modules.append(Module(path.name.removesuffix(".py.meta"), outcomes, survivors))
    return modules


def difference(mutant: str) -> str:
    """What a mutant changed: its removed and added lines."""
    command = [sys.executable, "-m", "mutmut", "show", mutant]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    changed = (line for line in shown.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---"))
    return "\n".join(line[0] + " " + line[1:].strip() for line in changed)


def page(modules: list[Module], differences: dict[str, str], explanations: dict[str, str]) -> str:
    rows = [
        f"| `{module.name}` | {module.total} | {module.killed} | {module.total - module.killed} | "
        f"{module.killed / module.total:.1%} |"
        for module in modules
    ]
    lines = [
        "# Mutation testing of the core: the last result",
        "",
        f"Written by `make mutate`. Goal: {GOAL:.0%} of the mutants killed. Result: **{share_killed(modules)[1]}**.",
        "",
        "| module | mutants | killed | survived | killed, share |",
        "|---|--:|--:|--:|--:|",
        *rows,
        "",
        "## What survived, and why",
        "",
        "Each block is a change that no test notices.",
    ]
    for reason in dict.fromkeys(explanations.get(change, "Not explained yet.") for change in differences.values()):
        same = [
            name for name, change in differences.items() if explanations.get(change, "Not explained yet.") == reason
        ]
        lines += ["", f"**{reason}**"]
        for name in same:
            lines += ["", f"`{name.split('.')[2]}`, `{function_of(name)}`", "", "```diff", differences[name], "```"]
    return "\n".join(lines) + "\n"


def function_of(mutant: str) -> str:
    """The readable name inside mutmut's own: x for a function, xǁClassǁ for a method."""
    name = mutant.rpartition(".")[2].rpartition("__mutmut_")[0]
    return name.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in name else name.removeprefix("x_")


def read_explanations() -> dict[str, str]:
    entries = tomllib.loads(EXPLANATIONS.read_text())["survivor"] if EXPLANATIONS.exists() else []
    return {change.strip(): entry["why"] for entry in entries for change in entry["changes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="modules of the core, such as lane; all when none is named")
    arguments = parser.parse_args()
    run_mutmut([f"seriatim.core.{name}.*" for name in arguments.only])
    modules = [module for module in read_results() if not arguments.only or module.name in arguments.only]
    differences = {name: difference(name) for module in modules for name in module.survivors}
    text = page(modules, differences, read_explanations())
    if arguments.only:
        print(text)
    else:
        PAGE.write_text(text)
        print(f"written: {PAGE.relative_to(ROOT)}")
    share, in_words = share_killed(modules)
    print(f"mutants killed: {in_words}")
    if share < GOAL:
        sys.exit(f"below the goal of {GOAL:.0%}")


if __name__ == "__main__":
    main()
