"""Proof of worth: each mend of earlier repairs is taken out of a copy of ``src``, and the simulation has to find that.

    python -m tests.simulation.take_outs                    all of take_outs.toml, and a table
    python -m tests.simulation.take_outs "A11 create topic" those whose names begin like this

An entry of take_outs.toml has a ``name`` (the line of the list of repairs, and a word on what it was), a ``file`` below
``src/seriatim``, the exact code ``old``, which stands there once, and the code ``new`` in its place. Where two lines of defence
hide each other, ``also`` has the other changes. ``unseen`` says why no simulation at this level can find it, and ``test`` names
the test that does: it is run instead of the simulation, and has to fail.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.proof import ROOT, write_record
from tests.simulation.run import draw, run
from tests.simulation.shrink import kind_of, replay_command, shrink

ENTRIES = Path(__file__).with_name("take_outs.toml")
SEEDS = 2000
MOST_SECONDS = 900.0
MOST_TEST_SECONDS = 120.0
MOST_SHRINKING = 80
TESTS_FAILED = 1
TEST = "test"
"""Stands in the place of the seed where a test finds what no simulation can."""

Row = dict[str, int | float | str]


def read_entries(path: Path = ENTRIES) -> list[dict[str, Any]]:
    return list(tomllib.loads(path.read_text())["mend"])


def take_out(entry: Mapping[str, Any], source: Path) -> None:
    """Change a copy of the sources."""
    for change in (entry, *entry.get("also", ())):
        path = source / "seriatim" / change["file"]
        code = path.read_text()
        if code.count(change["old"]) != 1:
            raise ValueError(f"{entry['name']}: {change['file']} has the code {code.count(change['old'])} times")
        path.write_text(code.replace(change["old"], change["new"]))


def search(entry: Mapping[str, Any], first: int, seeds: int) -> Row:
    """Run seeds without a mend until one finds that; or the test that has to find it."""
    row: Row = {"mend": entry["name"], "seed": "-", "steps": "-"}
    if "unseen" in entry:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", entry["test"]]
    else:
        command = [sys.executable, "-m", "tests.simulation.take_outs", "--hunt", str(first), str(seeds)]
    try:
        ran = _run_without(entry, command, MOST_TEST_SECONDS if "unseen" in entry else MOST_SECONDS)
    except subprocess.TimeoutExpired:
        if "unseen" in entry:
            return {**row, "seed": TEST, "seen": f"{entry['test']} hangs ({entry['unseen']})"}
        return {**row, "seen": f"nothing within {MOST_SECONDS:.0f} s"}
    if "unseen" in entry:
        is_found = ran.returncode == TESTS_FAILED
        seen = f"{entry['test']} fails" if is_found else f"nothing: {entry['test']} ends with {ran.returncode}"
        return {**row, "seed": TEST if is_found else "-", "seen": f"{seen} ({entry['unseen']})"}
    if ran.returncode != 0:
        return {**row, "seen": f"broken: {ran.stderr[-300:]}"}
    return {**row, **json.loads(ran.stdout.splitlines()[-1])}


def _run_without(entry: Mapping[str, Any], command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run something on a copy of the sources without a mend."""
    with tempfile.TemporaryDirectory(prefix="seriatim-without-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        take_out(entry, source)
        environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
        )


def hunt(first: int, seeds: int) -> Row:
    """Run seeds until something is found, and shrink that."""
    import seriatim

    print(f"hunting in {seriatim.__file__}", file=sys.stderr)
    for seed in range(first, first + seeds):
        program = draw(seed)
        findings = run(program).findings
        if findings:
            short = shrink(program, kind_of(findings[0]), most_runs=MOST_SHRINKING)
            seen = run(short).findings or findings
            return {
                "seed": seed,
                "steps": len(short.steps),
                "seen": seen[0][:160],
                "replay": replay_command(short, program),
            }
    return {"seed": "-", "steps": "-", "seen": f"nothing in {seeds} seeds"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="those whose names begin like this; all without any")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", action="store_true", help="write a record for docs/explanation/proof.md")
    parser.add_argument("--hunt", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hunt:
        print(json.dumps(hunt(*arguments.hunt)))
        return 0
    wanted = [
        entry
        for entry in read_entries()
        if not arguments.names or any(entry["name"].startswith(name) for name in arguments.names)
    ]
    began = time.monotonic()
    rows = search_all(wanted, arguments)
    missed = [row for row in rows if row["seed"] == "-"]
    tested = [row for row in rows if row["seed"] == TEST]
    found = len(rows) - len(missed) - len(tested)
    print(f"{found} of {len(rows)} found, {len(tested)} by tests only, {len(missed)} missed")
    if arguments.record:
        write_record(
            "simulation",
            command=shlex.join(["python", "-m", "tests.simulation.take_outs", *arguments.names]),
            seconds=time.monotonic() - began,
            figures={
                "planted faults": len(rows),
                "planted faults found": found,
                "planted faults found by tests only": len(tested),
                "planted faults missed": len(missed),
            },
            table=[_shown(row) for row in rows],
        )
    return 1 if missed else 0


def _shown(row: Row) -> Row:
    """A row of the table: of what was seen, its kind."""
    seen = str(row["seen"])
    return {
        "mend or planted fault": row["mend"],
        "seed": row["seed"],
        "steps": row["steps"],
        "seen": kind_of(seen) if isinstance(row["seed"], int) else seen,
    }


def search_all(wanted: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> list[Row]:
    rows = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda entry: search(entry, arguments.first, arguments.seeds), wanted):
            print(f"{row['mend']:40} seed {row['seed']!s:>5}  {row['steps']!s:>3} steps  {row['seen']}", flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
