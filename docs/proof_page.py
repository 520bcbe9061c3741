"""Writes the figures of docs/explanation/proof.md from the records of the runs in docs/proof: ``make docs``."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.proof import Figure, Record, commit_of, counted, joined_note, read_records, shown

PAGE = Path(__file__).parent / "explanation" / "proof.md"
TAKE_OUTS = PAGE.parents[2] / "tests" / "simulation" / "take_outs.toml"
BLOCK = re.compile(r"(<!-- records: (?P<kind>[a-z]+) -->\n).*?(<!-- end of records -->)", re.DOTALL)

MEND, PLANTED = "mend or planted fault", "planted faults"
"""A column of the records of mends that were taken out, and how their figures begin."""

OBJECTIONS = {"anomalies", "objections", "objections of the audit", "findings", "failed seeds"}
"""What a run is for: that there were none is said, too."""

DRAWN = re.compile(r" --(seed|images|damages|seconds) \d+")

SHOWN_RUNS = 12
"""How many runs of a kind the page lists."""


def rewrite(page: str, records: Sequence[Record]) -> str:
    """The page with the figures of these records."""
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_kind[record.kind].append(record)
    return BLOCK.sub(lambda match: f"{match[1]}{_summary(by_kind[match['kind']])}\n{match[3]}", page)


def _summary(records: Sequence[Record]) -> str:
    if not records:
        return "No run of this kind is on record yet."
    return "\n".join(
        [*_totals(records), "", *_runs(records), *_findings(records), *_left_out(records), *_tables(records)]
    )


def _totals(records: Sequence[Record]) -> Iterator[str]:
    if records[0].kind == "exhaustive":  # one world that was visited twice is one world
        yield f"**In all**: {_length(records)}. The latest run of each machine: {_worlds(records)}."
        return
    totals: dict[str, float] = defaultdict(int)
    counting = _latest(records) if records[0].kind == "mutation" else records  # how modules stand is not added up
    for record in counting:
        for name, figure in record.figures.items():
            if not isinstance(figure, str) and not name.startswith(PLANTED):  # the same ones in every run
                totals[name] += figure
    words = [counted(total, _named(name)) for name, total in totals.items() if total or name in OBJECTIONS]
    yield f"**In all**: {_length(records, counting)}; {', '.join(words)}."


def _length(records: Sequence[Record], counting: Sequence[Record] = ()) -> str:
    hours = round(sum(record.seconds for record in counting or records) / 3600, 1)
    return f"{counted(len(records), 'runs')}, {hours:.1f} hours"


def _worlds(records: Sequence[Record]) -> str:
    rows = [row for machine, record in _latest_of_machines(records) for row in _worlds_of(machine, record)]
    figures = {
        "worlds": len(rows),
        "states": _sum(rows, "states"),
        "transitions": _sum(rows, "transitions"),
        "commands refused": _sum(rows, "refused"),
    }
    return ", ".join(counted(figure, name) for name, figure in figures.items())


def _latest(records: Sequence[Record]) -> list[Record]:
    """The latest record of each command, whatever the seed and how many times."""
    return list({DRAWN.sub("", record.command): record for record in records}.values())


def _runs(records: Sequence[Record]) -> Iterator[str]:
    if len(records) > SHOWN_RUNS:
        yield f"The latest {SHOWN_RUNS} of them (all are in `docs/proof`):"
        yield ""
    yield "| when (UTC) | commit | command | minutes | load | figures |"
    yield "|---|---|---|--:|--:|---|"
    for record in records[-SHOWN_RUNS:]:
        figures = ", ".join(f"{_named(name)} {shown(figure)}" for name, figure in record.figures.items())
        yield (
            f"| {record.date[:16].replace('T', ' ')} | {_commit(record)} | `{record.command}` "
            f"| {record.seconds / 60:.1f} | {record.load} on {record.cores} cores | {figures} |"
        )
    if note := joined_note((record.date, record.commit) for record in records[-SHOWN_RUNS:]):
        yield ""
        yield note


def _commit(record: Record) -> str:
    return commit_of(record.date, record.commit, record.tree)


def _findings(records: Sequence[Record]) -> Iterator[str]:
    found = dict.fromkeys(sentence for record in records for sentence in record.found)
    yield ""
    unnoticed = any(
        "not noticed" in _named(name) and figure for record in records for name, figure in record.figures.items()
    )
    nothing = "nothing but what is counted as not noticed." if unnoticed else "nothing."
    yield "**Found**:" if found else f"**Found**: {nothing}"
    if found:
        yield ""
        yield from (f"- {sentence}" for sentence in found)


def _left_out(records: Sequence[Record]) -> Iterator[str]:
    left_out = sorted({what for record in records for what in record.left_out})
    if left_out:
        yield ""
        yield "**Left out** of some of these runs:"
        yield ""
        yield from (f"- {what}" for what in left_out)


def _tables(records: Sequence[Record]) -> Iterator[str]:
    kind = records[0].kind
    if kind == "exhaustive":
        yield from _machines(records)
    elif kind == "simulation":
        yield from _take_outs(records)
    else:
        yield from _latest_tables(records)


def _machines(records: Sequence[Record]) -> Iterator[str]:
    """The latest run of each machine. Its worlds are many and alike: the records have a row for each of them."""
    yield ""
    yield "The latest run of each machine:"
    yield ""
    yield from _table(
        [
            _machine(machine, _worlds_of(machine, record), _commit(record))
            for machine, record in _latest_of_machines(records)
        ]
    )


def _latest_of_machines(records: Sequence[Record]) -> list[tuple[str, Record]]:
    latest: dict[str, Record] = {}
    for record in records:
        latest |= dict.fromkeys((str(row["machine"]) for row in record.table), record)
    return sorted(latest.items())


def _worlds_of(machine: str, record: Record) -> list[Mapping[str, Figure]]:
    return [row for row in record.table if row["machine"] == machine]


def _machine(machine: str, worlds: Sequence[Mapping[str, Figure]], commit: str) -> dict[str, Figure]:
    largest = max(worlds, key=lambda world: float(world["states"]))
    return {
        "machine": machine,
        "commit": commit,
        "worlds": len(worlds),
        "states": _sum(worlds, "states"),
        "transitions": _sum(worlds, "transitions"),
        "commands refused": _sum(worlds, "refused"),
        "minutes": round(_sum(worlds, "seconds") / 60, 1),
        "states of the largest": largest["states"],
        "the largest": largest["world"],
    }


def _sum(rows: Sequence[Mapping[str, Figure]], column: str) -> float:
    return sum(float(row[column]) for row in rows)


def _take_outs(records: Sequence[Record]) -> Iterator[str]:
    """What became of each mend that was taken out, and of each planted fault, when it was run last."""
    latest = {
        row[MEND]: {**row, "commit": _commit(record)} for record in records for row in record.table if MEND in row
    }
    if not latest:
        return
    seeds = [row["seed"] for row in latest.values()]
    missed, tested = seeds.count("-"), seeds.count("test")
    yield ""
    yield (
        f"**Mends taken out and planted faults**: {len(seeds)}. The simulation found {len(seeds) - missed - tested}; "
        f"{tested} are out of its reach and found by a test; {missed} were missed. "
        "`python -m tests.simulation.take_outs` runs them:"
    )
    if missing := [
        entry["name"] for entry in tomllib.loads(TAKE_OUTS.read_text())["mend"] if entry["name"] not in latest
    ]:
        yield ""
        yield f"{len(missing)} more have no run on record yet: {'; '.join(missing)}."
    yield ""
    yield from _table(list(latest.values()))


def _latest_tables(records: Sequence[Record]) -> Iterator[str]:
    for record in _latest([record for record in records if record.table]):
        yield ""
        yield f"`{record.command}`, {record.date[:10]}, commit {_commit(record)}:"
        yield ""
        yield from _table(record.table)


def _table(rows: Sequence[Mapping[str, Figure]]) -> Iterator[str]:
    columns = list(rows[0])
    is_number = [not any(isinstance(row[column], str) for row in rows) for column in columns]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('--:' if number else '---' for number in is_number)}|"
    for row in rows:
        yield f"| {' | '.join(shown(row[column]).replace('|', '¦') for column in columns)} |"


def _named(figure: str) -> str:
    """A figure of a part, such as "rounds, sqlite", without the comma that divides figures."""
    whole, comma, part = figure.partition(", ")
    return f"{whole} ({part})" if comma else figure


def main() -> None:
    PAGE.write_text(rewrite(PAGE.read_text(), read_records()))


if __name__ == "__main__":
    main()
