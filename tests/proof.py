"""Records of long runs: what was run, at which commit, with which figures, and what it found.

A run that is worth publishing is committed as a file in ``docs/proof``. ``make docs`` writes docs/explanation/proof.md from
these files, so every figure on that page comes from a run and none is typed by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "docs" / "proof"

Kind = Literal["simulation", "exhaustive", "nemesis", "mutation"]
Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Record:
    """One run. ``table`` is for what has a row per module, configuration or mend; all its rows have the same columns."""

    kind: Kind
    date: str
    commit: str
    command: str
    seconds: float
    cores: int
    load: float
    figures: Mapping[str, Figure]
    found: Sequence[str] = ()
    table: Sequence[Mapping[str, Figure]] = field(default=())


def write_record(
    kind: Kind,
    *,
    command: str,
    seconds: float,
    figures: Mapping[str, Figure],
    found: Sequence[str] = (),
    table: Sequence[Mapping[str, Figure]] = (),
    folder: Path = RECORDS,
) -> Path:
    """Write down a run that has just ended. Figures of the same name are added up over all runs of a kind."""
    now = datetime.now(UTC)
    record = Record(
        kind=kind,
        date=now.isoformat(timespec="seconds"),
        commit=_commit(),
        command=command,
        seconds=round(seconds, 1),
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[1], 1),
        figures=dict(figures),
        found=list(found),
        table=[dict(row) for row in table],
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{now:%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")
    return path


def read_records(folder: Path = RECORDS) -> list[Record]:
    """Every record, oldest first."""
    records = [Record(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: record.date)


def _commit() -> str:
    """The commit that was run, and whether anything was changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    # Records themselves are the one thing that a run changes.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    return git("rev-parse", "--short", "HEAD") + (" (with changes)" if changed else "")
