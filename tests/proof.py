"""Records of long runs: what was run, at which commit, with which figures, and what it found.

A run that is worth publishing is committed as a file in ``docs/proof``. ``make docs`` writes docs/explanation/proof.md from
these files, so every figure on that page comes from a run and none is typed by hand.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "docs" / "proof"

Kind = Literal["simulation", "exhaustive", "nemesis", "mutation", "powerloss", "bitrot", "fuzz", "soak", "kafka"]
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
    left_out: Sequence[str] = ()
    """What the run would have done as well, had the machine or the time allowed it."""
    table: Sequence[Mapping[str, Figure]] = field(default=())
    tree: str = ""
    """What ``src`` was. Unlike the commit, it can be found again when work is joined into fewer commits."""


def write_record(
    kind: Kind,
    *,
    command: str,
    seconds: float,
    figures: Mapping[str, Figure],
    found: Sequence[str] = (),
    left_out: Sequence[str] = (),
    table: Sequence[Mapping[str, Figure]] = (),
    folder: Path = RECORDS,
) -> Path:
    """Write down a run that has just ended. Figures of the same name are added up over all runs of a kind."""
    now = datetime.now(UTC)
    record = Record(
        kind=kind,
        date=now.isoformat(timespec="seconds"),
        commit=commit_at_work(),
        command=command,
        seconds=round(seconds, 1),
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[1], 1),
        figures=dict(figures),
        found=list(found),
        left_out=list(left_out),
        table=[dict(row) for row in table],
        tree=tree_at_work(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{now:%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")
    return path


def read_records(folder: Path = RECORDS) -> list[Record]:
    """Every record, oldest first."""
    records = [Record(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: record.date)


PLURAL = re.compile(r"\b(\w+(?:s|sh|ch|x)(?=es\b)|\w+(?=ies\b)|\w+[^s\W](?=s\b))(ies|es|s)\b")


def counted(count: float, things: str) -> str:
    """ "2 clock jumps", and "1 clock jump": of a name in the plural, its first plural word."""
    if count == 1:
        things = PLURAL.sub(lambda word: word[1] + ("y" if word[2] == "ies" else ""), things, count=1)
    return f"{shown(count)} {things}"


def shown(figure: Figure) -> str:
    if isinstance(figure, str):
        return figure
    return f"{figure:,.1f}" if isinstance(figure, float) and figure != int(figure) else f"{int(figure):,}"


JOINED = ("2026-11-18T00:00", "2026-11-18T23:05")
"""Work of this time was joined into fewer commits at its end."""

REBASED = frozenset(
    [
        "2328029",
        "2847939",
        "627c9f1",
        "6845990",
        "7503899",
        "76d4b77",
        "07f0fd2",
        "1bce706",
        "2640788",
        "534cc6a",
        "cad1275",
        "e43fafa",
        "f594686",
        "fa1da3a",
    ]
)
"""Commits of branches that were rebased before they were merged."""


def is_joined(date: str, commit: str) -> bool:
    """Whether the commit that a record names is in the history only as a part of a later one."""
    return JOINED[0] <= date < JOINED[1] or commit[:7] in REBASED


def commit_of(date: str, commit: str, tree: str) -> str:
    """What a record says of the source, as pages show it."""
    return commit + (" (joined)" if is_joined(date, commit) else "") + (f", `src` {tree}" if tree else "")


def joined_note(runs: Iterable[tuple[str, str]]) -> str:
    """What "joined" means, if a page says so of any of these dates and commits."""
    if not any(is_joined(date, commit) for date, commit in runs):
        return ""
    return "*Joined*: that commit is not in the history, because it was joined into a later one or rebased."


def commit_at_work() -> str:
    """The commit that was run, and whether anything was changed since."""
    if (ROOT / "PKG-INFO").exists():
        return "source archive"
    # Records themselves are the one thing that a run changes.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    return git("rev-parse", "--short", "HEAD") + (" (with changes)" if changed else "")


def tree_at_work() -> str:
    """The tree of ``src`` in that commit."""
    return "" if (ROOT / "PKG-INFO").exists() else git("rev-parse", "--short", "HEAD:src")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
