"""Runs on record: what was measured, when, at which commit, on which machine, with every single reading.

A benchmark that is called with ``--record`` writes a file to docs/benchmarks. ``make docs`` puts the newest one of each on its
page, between the marks ``<!-- benchmark: NAME -->`` and ``<!-- end of benchmark -->``; a test fails when a page is stale. So no
figure in such a block is typed by hand, and what it was computed from can be looked at. Between ``<!-- worked out: NAME -->``
and ``<!-- end of worked out -->`` is a table that is computed from the same run (``CALCULATIONS``).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import state_in_large
from tests.proof import commit_at_work, commit_of, joined_note, tree_at_work

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
IMAGES = ROOT / "docs" / "images"
PAGES = sorted((ROOT / "docs").glob("*/*.md"))
BLOCK = re.compile(r"(<!-- benchmark: (?P<name>[a-z_]+) -->\n).*?(<!-- end of benchmark -->)", re.DOTALL)
WORKED_OUT = re.compile(r"(<!-- worked out: (?P<name>[a-z_]+) -->\n).*?(<!-- end of worked out -->)", re.DOTALL)

UNKNOWN = re.compile(r"\bnan\b( \+ nan\b)?")
"""Figures that were not known when a run was written."""

NONE_YET = "No run is on record yet: `python -m bench.{name} --record` writes one, and `make docs` puts it here."

Cell = str | float | int


@dataclass(frozen=True)
class Run:
    """One run of one benchmark. All rows have the same columns; ``readings`` has every round of everybody who was measured."""

    name: str
    date: str
    commit: str
    command: str
    machine: str
    load: Sequence[float]
    """The load of the machine when the run began, and when it ended, as averages of a minute."""
    rows: Sequence[Mapping[str, Cell]]
    readings: Mapping[str, Sequence[float]]
    tree: str = ""
    """What ``src`` was."""


class Recorder:
    """Begun before the first measurement, so that the load at that time is known."""

    def __init__(self, name: str) -> None:
        if {"--quick", "--record"} <= set(sys.argv):
            raise SystemExit("--quick only shows that it runs: its figures are not for a record")
        self._name = name
        self._load = os.getloadavg()[0]

    def write(
        self, rows: Sequence[Mapping[str, Cell]], readings: Mapping[str, Sequence[float]], folder: Path = FOLDER
    ) -> Path:
        now = datetime.now(UTC)
        run = Run(
            name=self._name,
            date=now.isoformat(timespec="seconds"),
            commit=commit_at_work(),
            command=shlex.join(["python", "-m", f"bench.{self._name}", *sys.argv[1:]]),
            machine=machine(),
            load=[round(self._load, 1), round(os.getloadavg()[0], 1)],
            rows=[dict(row) for row in rows],
            readings={what: list(values) for what, values in readings.items()},
            tree=tree_at_work(),
        )
        folder.mkdir(exist_ok=True)
        path = folder / f"{self._name}-{now:%Y%m%dT%H%M%S}.json"
        path.write_text(json.dumps(asdict(run), indent=1, ensure_ascii=False) + "\n")
        print(f"written: {path}", file=sys.stderr)
        return path


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} × {_processor()}, {memory:.0f} GB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not on Linux
        found = None
    return found[1] if found else platform.machine()


def runs(folder: Path = FOLDER) -> list[Run]:
    """Every run on record, oldest first."""
    read = [Run(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(read, key=lambda run: run.date)


def rewrite(page: str, on_record: Sequence[Run]) -> str:
    """The page with the newest run of each benchmark that it has a block for, and what is worked out from it."""
    newest = {run.name: run for run in on_record}
    page = BLOCK.sub(lambda match: f"{match[1]}{_shown(newest.get(match['name']), match['name'])}\n{match[3]}", page)
    return WORKED_OUT.sub(
        lambda match: f"{match[1]}{_worked_out(newest.get(match['name']), match['name'])}\n{match[3]}", page
    )


CALCULATIONS = {"spark_state": state_in_large.worked_out}
"""What is computed from a run, by the name of its benchmark: rows of a table."""


def _worked_out(run: Run | None, name: str) -> str:
    return NONE_YET.format(name=name) if run is None else _table(list(CALCULATIONS[name](run.rows)))


def _shown(run: Run | None, name: str) -> str:
    if run is None:
        return NONE_YET.format(name=name)
    circumstances = (
        f"`{run.command}` on {run.date[:16].replace('T', ' ')} UTC at commit {commit_of(run.date, run.commit, run.tree)}: "
        f"{run.machine}; "
        f"load {run.load[0]} at the beginning and {run.load[1]} at the end. "
        f"Every reading is in `docs/benchmarks/{_file(run)}`. {joined_note([(run.date, run.commit)])}"
    ).rstrip()
    drawn = (IMAGES / f"{name}.svg").exists()
    picture = f"\n\n![The figures of the table, drawn](../images/{name}.svg)" if drawn else ""
    return f"{circumstances}\n\n{_table(run.rows)}{picture}"


def _table(rows: Sequence[Mapping[str, Cell]]) -> str:
    columns = list(rows[0])
    lines = [
        f"| {' | '.join(columns)} |",
        "|" + "".join("--:|" if isinstance(rows[0][column], int | float) else "---|" for column in columns),
        *(f"| {' | '.join(_cell(row[column]) for column in columns)} |" for row in rows),
    ]
    return "\n".join(lines)


def _file(run: Run) -> str:
    return f"{run.name}-{datetime.fromisoformat(run.date):%Y%m%dT%H%M%S}.json"


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return UNKNOWN.sub("–", value).replace("|", "\\|")
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def main() -> None:
    """Write the pages: part of ``make docs``."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if (written := rewrite(page, runs())) != page:
            path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
