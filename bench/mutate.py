"""Mutation testing: ``make mutate``.

mutmut changes a module in hundreds of small ways, one at a time, and runs the module's tests on each. What survives is a place
that no test looks at, or a change that makes no difference.

A run takes hours on a small machine, so it can be done in pieces: each module is mutated alone, with the tests that
bench/mutation/targets.toml names for it, and its result stays in bench/mutation/results_<package>.json, with the commit it was
run at. docs/explanation/mutation-testing.md is written from these files: a table of all modules, and every survivor with the
explanation given for it in bench/mutation/survivors_<package>.toml. A survivor that nobody explained is listed as such.

    make mutate ONLY=core.lanes.lane          one module (several may be named)
    make mutate ONLY=core                     a package
    make mutate ONLY="--stale core"           the modules of core that changed since their result, or have none
    make mutate ONLY="--survivors core.lanes.lane"  what survived once more, with the slow tests too; after tests were added
    make mutate ONLY=--page                   no run: write the page from the results
    make mutate ONLY="--page --record core"   also a record of the results of core, in docs/proof
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.proof import write_record

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "bench" / "mutation"
WORKSHOP = ROOT / "mutants"
PAGE = ROOT / "docs" / "explanation" / "mutation-testing.md"
GOAL = 0.95
UNEXPLAINED = "Not explained yet."

CAUGHT = {"killed", "timed out"}


@dataclass(frozen=True)
class Target:
    """A module to mutate, and what is run on its mutants: ``tests`` on each, ``slow`` only on what survived them."""

    package: str
    module: str
    tests: tuple[str, ...]
    slow: tuple[str, ...]
    deselect: str
    pytest: tuple[str, ...]
    mutmut: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.package}.{self.module}"

    @property
    def path(self) -> str:
        return f"src/seriatim/{self.package}/{self.module.replace('.', '/')}.py"

    @property
    def workshop(self) -> Path:
        return WORKSHOP / self.name

    @property
    def source(self) -> str:
        """A fingerprint of the code, which tells whether a result is about it."""
        return fingerprint((ROOT / self.path).read_text())


def fingerprint(source: str) -> str:
    """A fingerprint of the code alone: comments, docstrings and layout make no difference, nor does the version of Python."""
    return hashlib.sha256(repr(_plain(ast.parse(source))).encode()).hexdigest()[:12]


def _plain(node: object) -> object:
    if isinstance(node, ast.AST):
        fields = [(name, _plain(value)) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return type(node).__name__, fields
    return [_plain(one) for one in node if not _is_docstring(one)] if isinstance(node, list) else node


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@dataclass(frozen=True)
class Survivor:
    mutant: str
    change: str

    @property
    def function(self) -> str:
        """The readable name inside mutmut's own: x for a function, xǁClassǁ for a method."""
        name = self.mutant.rpartition(".")[2].rpartition("__mutmut_")[0]
        return name.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in name else name.removeprefix("x_")


@dataclass(frozen=True)
class Result:
    """What became of the mutants of a module."""

    commit: str
    date: str
    seconds: int
    source: str
    mutants: int
    killed: int
    timed_out: int | None
    """None in results of runs that did not count them apart."""
    survivors: list[Survivor]

    @property
    def endless(self) -> str:
        return "?" if self.timed_out is None else str(self.timed_out)

    @property
    def caught(self) -> int:
        # A mutant that loops for ever is noticed, too.
        return self.killed + (self.timed_out or 0)


# --- what to mutate ---------------------------------------------------------------------------------------------------


@cache
def targets() -> dict[str, Target]:
    found = {}
    for package, group in tomllib.loads((SETTINGS / "targets.toml").read_text()).items():
        for module, own in group["modules"].items():
            target = Target(
                package,
                module,
                tests=tuple(f"tests/{path}" for path in own["tests"]),
                slow=tuple(f"tests/{path}" for path in own.get("slow", [])),
                deselect=own.get("deselect", group.get("deselect", "")),
                pytest=tuple(group.get("pytest", [])),
                mutmut=group.get("mutmut", {}) | own.get("mutmut", {}),
            )
            found[target.name] = target
    return found


def chosen(names: list[str]) -> list[Target]:
    """The targets of these names, each of a module or of a package; all when none is named."""
    unknown = [
        name for name in names if not any(name in (target.name, target.package) for target in targets().values())
    ]
    if unknown:
        sys.exit(f"not a target in bench/mutation/targets.toml: {', '.join(unknown)}")
    return [target for target in targets().values() if not names or target.name in names or target.package in names]


# --- running ----------------------------------------------------------------------------------------------------------


def prepare(target: Target, tests: tuple[str, ...]) -> None:
    """Give mutmut a folder in which it sees the project with settings of the target's own."""
    shutil.rmtree(target.workshop, ignore_errors=True)
    (target.workshop / "mutants").mkdir(parents=True)
    for name in ("src", "tests", "docs"):
        (target.workshop / name).symlink_to(ROOT / name)
    settings: dict[str, Any] = {
        "source_paths": ["src"],
        "only_mutate": [target.path],
        "also_copy": ["docs"],
        "pytest_add_cli_args": pytest_options(target),
        "pytest_add_cli_args_test_selection": list(tests),
    } | target.mutmut
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    project = (ROOT / "pyproject.toml").read_text()
    (target.workshop / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]))


def run(target: Target, children: int) -> Result:
    """Run the quick tests on every mutant."""
    began, commit, source = time.monotonic(), commit_now(), target.source  # of the start: they may change meanwhile
    outcomes = run_mutants(target, target.tests, children)
    counts = Counter(outcomes.values())
    missed = [name for name, what in outcomes.items() if what not in CAUGHT]
    return Result(
        commit=commit,
        date=today(),
        seconds=round(time.monotonic() - began),
        source=source,
        mutants=len(outcomes),
        killed=counts["killed"],
        timed_out=counts["timed out"],
        survivors=list(map(Survivor, missed, differences(target, missed))),
    )


def run_survivors(target: Target, children: int) -> Result:
    """Run all tests, the slow ones too, on what survived the run before."""
    kept = results(target.package).get(target.module)
    if kept is None or kept.source != target.source:
        sys.exit(f"{target.name}: there is no result of this source; run it without --survivors")
    if not kept.survivors:
        return kept
    began = time.monotonic()
    survivors = {survivor.mutant for survivor in kept.survivors}
    outcomes = run_mutants(target, target.tests + target.slow, children, survivors)
    counts = Counter(outcomes[survivor.mutant] for survivor in kept.survivors)
    return replace(
        kept,
        commit=commit_now(),
        date=today(),
        seconds=kept.seconds + round(time.monotonic() - began),
        killed=kept.killed + counts["killed"],
        timed_out=(kept.timed_out or 0) + counts["timed out"],
        survivors=[survivor for survivor in kept.survivors if outcomes[survivor.mutant] not in CAUGHT],
    )


GENERATE = """
from mutmut import __main__ as mutmut
mutmut.set_mutant_under_test("mutant_generation")
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.create_mutants(1)
mutmut.collect_or_load_stats(mutmut.get_mutant_runner(1))
"""
"""What ``mutmut run`` does before the first mutant: it writes the mutants, and finds out which tests reach which function."""


def run_mutants(target: Target, tests: tuple[str, ...], children: int, only: set[str] | None = None) -> dict[str, str]:
    """What became of each mutant."""
    prepare(target, tests)
    call(target, target.workshop, "-c", GENERATE)
    plans = {mutant: plan for mutant, plan in plan_runs(target).items() if only is None or mutant in only}
    reached = {mutant: plan for mutant, plan in plans.items() if plan[0]}
    checks = dict.fromkeys((NOTHING, BROKEN), max(reached.values(), key=lambda plan: len(plan[0]), default=([], 0.0)))
    plan, outcomes = target.workshop / "plan.json", target.workshop / "outcomes.json"
    plan.write_text(json.dumps(checks | reached))
    options = ["--rootdir=.", f"--mutants={plan}", f"--outcomes={outcomes}", f"--children={children}"]
    options += ["-s", "--tb=native", *pytest_options(target)]
    pytest = ["-m", "pytest", "-p", "bench.mutant_runner", *options, *tests]
    mutants = target.workshop / "mutants"
    paths = os.pathsep.join(map(str, (mutants / "src", mutants, ROOT)))  # the mutants come before the source
    call(target, mutants, *pytest, PYTHONPATH=paths, MUTANT_UNDER_TEST="")
    found: dict[str, str] = json.loads(outcomes.read_text())
    if reached and (found.pop(NOTHING), found.pop(BROKEN)) != ("survived", "killed"):
        sys.exit(f"{target.name}: the tests fail without a mutant, or pass without working code")
    return dict.fromkeys(plans, "no tests") | found


def pytest_options(target: Target) -> list[str]:
    return ["-p", "no:xdist", "-p", "no:cacheprovider", *target.pytest, "-k", target.deselect]


NOTHING, BROKEN = "none", "fail"
"""Two names that mutmut's code understands as well: no mutant at all, and one in which every function fails."""


def plan_runs(target: Target) -> dict[str, tuple[list[str], float]]:
    """The tests that reach each mutant, the quickest first, and the seconds that they take."""
    folder = target.workshop / "mutants"
    mutants = json.loads((folder / f"{target.path}.meta").read_text())["exit_code_by_key"]
    stats = json.loads((folder / "mutmut-stats.json").read_text())
    seconds: dict[str, float] = stats["duration_by_test"]
    reaching: dict[str, list[str]] = stats["tests_by_mangled_function_name"]
    plans = {}
    for mutant in mutants:
        tests = sorted(reaching.get(mutant.rpartition("__mutmut_")[0], []), key=lambda test: (seconds[test], test))
        plans[mutant] = tests, sum(seconds[test] for test in tests)
    return plans


def call(target: Target, folder: Path, *arguments: str, **variables: str) -> None:
    """Run Python in a folder of the workshop."""
    environment = os.environ | {"HYPOTHESIS_PROFILE": "mutate"} | variables
    with (log := target.workshop / "log.txt").open("a") as output:
        ended = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=environment, stdout=output, stderr=output, check=False
        )
    if ended.returncode:
        sys.exit(f"{target.name} failed, see {log.relative_to(ROOT)}")


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def commit_now() -> str:
    """The commit that is run, with a plus if the source or the tests have changes that are not committed."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True).stdout
    changes = subprocess.run(
        [*git, "status", "--porcelain", "src", "tests"], capture_output=True, text=True, check=True
    )
    return commit.strip() + ("+" if changes.stdout else "")


SHOW = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
print(json.dumps([get_diff_for_mutant(mutant, path=sys.argv[1]) for mutant in sys.argv[2:]]))
"""


def differences(target: Target, mutants: list[str]) -> list[str]:
    """What mutants changed: the removed and added lines of each. mutmut itself would be started anew to show each of them."""
    command = [sys.executable, "-c", SHOW, target.path, *mutants]
    shown = subprocess.run(command, cwd=target.workshop, capture_output=True, text=True, check=True).stdout
    return [
        "\n".join(
            f"{line[0]} {line[1:].strip()}"
            for line in diff.splitlines()
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        )
        for diff in json.loads(shown)
    ]


# --- results and the page ---------------------------------------------------------------------------------------------


def results_path(package: str) -> Path:
    return SETTINGS / f"results_{package}.json"


def results(package: str) -> dict[str, Result]:
    path = results_path(package)
    stored: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return {
        module: Result(**fields | {"survivors": [Survivor(**survivor) for survivor in fields["survivors"]]})
        for module, fields in stored.items()
    }


def keep(target: Target, result: Result) -> None:
    kept = results(target.package) | {target.module: result}
    fields = {module: asdict(kept[module]) for module in sorted(kept)}
    results_path(target.package).write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n")


def explanations(package: str) -> dict[tuple[str, str], str]:
    """Why a mutant survives, by module and change."""
    path = SETTINGS / f"survivors_{package}.toml"
    entries = tomllib.loads(path.read_text())["survivor"] if path.exists() else []
    return {
        (module, change.strip()): entry["why"]
        for entry in entries
        for module, changes in entry["changes"].items()
        for change in changes
    }


def packages() -> list[str]:
    return list(dict.fromkeys(target.package for target in targets().values()))


def share(found: list[Result]) -> float:
    mutants = sum(result.mutants for result in found)
    return sum(result.caught for result in found) / mutants if mutants else 0.0


def in_words(found: list[Result]) -> str:
    caught, mutants = sum(result.caught for result in found), sum(result.mutants for result in found)
    return f"{share(found):.1%}, {caught} of {mutants}"


def every_result() -> list[Result]:
    return [result for package in packages() for result in results(package).values()]


def stale() -> list[Target]:
    """The targets whose code is not the one that their result is about, as far as is known."""
    kept = {package: results(package) for package in packages()}
    return [
        target
        for target in targets().values()
        if (result := kept[target.package].get(target.module)) and result.source != target.source
    ]


def staleness() -> str:
    """How many results are about earlier code. Which ones, the tables say."""
    return (
        f'Of {len(every_result())} results {len(stale())} are marked "changed": the code of that module has changed since, '
        "or the source that was\nmutated is no longer in the history, so that nobody can tell. Comments and docstrings do not "
        "count. `make mutate ONLY=--stale` runs\nthese again."
    )


def page() -> str:
    lines = [
        "# Mutation testing: the last results",
        "",
        "Written by `make mutate`. mutmut changes a module in many small ways, one at a time, and runs the module's tests on",
        "each change; a change that no test notices has survived. Modules are run one by one, so each result names its commit.",
        "A mutant that ran out of time (an endless loop, as a rule) counts as killed and is also counted apart.",
        "",
        f"Goal: {GOAL:.0%} of the mutants killed. Result: **{in_words(every_result())}**.",
        "",
        staleness(),
    ]
    for package in packages():
        lines += table(package)
    lines += ["", "## What survived, and why", "", "Each block is a change that no test notices."]
    for package in packages():
        lines += survivors_by_reason(package)
    return "\n".join(lines) + "\n"


def table(package: str) -> list[str]:
    found, changed = results(package), {target.module for target in stale() if target.package == package}
    missing = [f"`{target.module}`" for target in chosen([package]) if target.module not in found]
    return [
        "",
        f"## `{package}`: {in_words(list(found.values()))}" if found else f"## `{package}`: not run yet",
        "",
        "| module | mutants | killed | of these timed out | survived | killed, share | commit | date |",
        "|---|--:|--:|--:|--:|--:|---|---|",
        *(
            f"| `{module}` | {result.mutants} | {result.caught} | {result.endless} | {len(result.survivors)} | "
            f"{share([result]):.1%} | {result.commit}{', changed' if module in changed else ''} | {result.date} |"
            for module, result in found.items()
        ),
        *(["", f"Without a result so far: {', '.join(missing)}."] if missing else []),
        *(
            ["", f"Not mutated, and not in these figures: {', '.join(untried)}."]
            if (untried := left_out(package))
            else []
        ),
    ]


def left_out(package: str) -> list[str]:
    """The modules of a package that are no targets."""
    folder = ROOT / "src/seriatim" / package
    modules = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.stem != "__init__"]
    targeted = {target.module for target in chosen([package])}
    return [f"`{name}`" for name in sorted(".".join(module.parts) for module in modules) if name not in targeted]


def survivors_by_reason(package: str) -> list[str]:
    reasons = explanations(package)
    places: dict[str, list[str]] = {}
    for module, result in results(package).items():
        for survivor in result.survivors:
            reason = reasons.get((module, survivor.change), UNEXPLAINED)
            block = ["", f"`{package}.{module}`, `{survivor.function}`", "", "```diff", survivor.change, "```"]
            places.setdefault(reason, []).extend(block)
    return [line for reason, blocks in places.items() for line in ["", f"**{reason}**", *blocks]]


COLLECTED = "collected from the modules' results:"
"""What stands in a record in the place of a command: modules are run one by one, as the commits in its table say."""


def record(names: list[str]) -> Path:
    """Write a record of the results of the chosen targets. No run is behind it but those of the modules."""
    found = [(target, results(target.package).get(target.module)) for target in chosen(names)]
    known = [(target, result) for target, result in found if result]
    survivors = [
        explanations(target.package).get((target.module, survivor.change), UNEXPLAINED)
        for target, result in known
        for survivor in result.survivors
    ]
    return write_record(
        "mutation",
        command=f"{COLLECTED} {', '.join(names) or 'all'}",
        seconds=sum(result.seconds for _, result in known),
        figures={
            "modules": len(known),
            "modules that changed since their run": sum(result.source != target.source for target, result in known),
            "mutants": sum(result.mutants for _, result in known),
            "killed": sum(result.caught for _, result in known),
            "survivors explained": sum(reason != UNEXPLAINED for reason in survivors),
            "survivors not explained": survivors.count(UNEXPLAINED),
        },
        table=[
            {
                "module": target.name,
                "mutants": result.mutants,
                "killed": result.caught,
                "share killed": f"{share([result]):.1%}",
                "commit": result.commit,
            }
            for target, result in known
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "only", nargs="*", help="modules or packages, such as core.lanes.lane or core; all when none is named"
    )
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1, help="mutants that run at the same time")
    parser.add_argument("--stale", action="store_true", help="only modules that changed since their result")
    parser.add_argument(
        "--survivors", action="store_true", help="only mutants that survived the run before, or were not run"
    )
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--record", action="store_true", help="write a record of the results of the chosen modules")
    arguments = parser.parse_args()
    for target in [] if arguments.page else chosen(arguments.only):
        kept = results(target.package).get(target.module)
        if arguments.stale and kept and kept.source == target.source:
            continue
        result = (run_survivors if arguments.survivors else run)(target, arguments.children)
        keep(target, result)
        print(f"{target.name}: {in_words([result])} in {result.seconds} s")
        for survivor in result.survivors:
            print(f"\n{survivor.function}\n{survivor.change}")
    PAGE.write_text(page())
    if arguments.record:
        print(f"written: {record(arguments.only).relative_to(ROOT)}")
    print(f"written: {PAGE.relative_to(ROOT)}; mutants killed: {in_words(every_result())}")
    if share(every_result()) < GOAL:
        sys.exit(f"below the goal of {GOAL:.0%}")


if __name__ == "__main__":
    main()
