"""Proof of worth: each mend of earlier repairs is taken out of a copy of ``src``, and the simulation has to find that.

    python -m tests.simulation.take_outs                    all of take_outs.toml, and a table
    python -m tests.simulation.take_outs "A11 create topic" those whose names begin like this

An entry of take_outs.toml has a ``name`` (the line of the list of repairs, and a word on what it was), a ``file`` below
``src/seriatim``, the exact code ``old``, which stands there once, and the code ``new`` in its place. Where two lines of defence
hide each other, ``also`` has the other changes.
"""

from __future__ import annotations

import argparse
import json
import os
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
    """Run seeds without a mend until one finds that."""
    with tempfile.TemporaryDirectory(prefix="seriatim-without-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        take_out(entry, source)
        environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "tests.simulation.take_outs", "--hunt", str(first), str(seeds)]
        try:
            hunt = subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"mend": entry["name"], "seed": "-", "steps": "-", "seen": f"nothing within {MOST_SECONDS:.0f} s"}
    if hunt.returncode != 0:
        return {"mend": entry["name"], "seed": "-", "steps": "-", "seen": f"broken: {hunt.stderr[-300:]}"}
    found = json.loads(hunt.stdout.splitlines()[-1])
    return {"mend": entry["name"], **found}


def hunt(first: int, seeds: int) -> Row:
    """Run seeds until something is found, and shrink that."""
    import seriatim

    print(f"hunting in {seriatim.__file__}", file=sys.stderr)
    for seed in range(first, first + seeds):
        program = draw(seed)
        findings = run(program).findings
        if findings:
            short = shrink(program, kind_of(findings[0]), most_runs=150)
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
    found = [row for row in rows if row["seed"] != "-"]
    print(f"{len(found)} of {len(rows)} found")
    if arguments.record:
        write_record(
            "simulation",
            command="python -m tests.simulation.take_outs",
            seconds=time.monotonic() - began,
            figures={"mends taken out": len(rows), "mends missed and found": len(found)},
            table=[{name: value for name, value in row.items() if name != "replay"} for row in rows],
        )
    return 0 if len(found) == len(rows) else 1


def search_all(wanted: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> list[Row]:
    rows = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda entry: search(entry, arguments.first, arguments.seeds), wanted):
            print(f"{row['mend']:40} seed {row['seed']!s:>5}  {row['steps']!s:>3} steps  {row['seen']}", flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
