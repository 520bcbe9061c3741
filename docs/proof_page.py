"""Writes the figures of docs/explanation/proof.md from the records of the runs in docs/proof: ``make docs``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.proof import Figure, Record, read_records

PAGE = Path(__file__).parent / "explanation" / "proof.md"
BLOCK = re.compile(r"(<!-- records: (?P<kind>[a-z]+) -->\n).*?(<!-- end of records -->)", re.DOTALL)


def rewrite(page: str, records: Sequence[Record]) -> str:
    """The page with the figures of these records."""
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_kind[record.kind].append(record)
    return BLOCK.sub(lambda match: f"{match[1]}{_summary(by_kind[match['kind']])}\n{match[3]}", page)


def _summary(records: Sequence[Record]) -> str:
    if not records:
        return "No run of this kind is on record yet."
    return "\n".join([*_totals(records), "", *_runs(records), *_findings(records), *_tables(records)])


def _totals(records: Sequence[Record]) -> Iterator[str]:
    totals: dict[str, float] = defaultdict(int)
    for record in records:
        for name, figure in record.figures.items():
            if not isinstance(figure, str):
                totals[name] += figure
    words = [f"{_shown(total)} {_named(name)}" for name, total in totals.items() if total]
    hours = sum(record.seconds for record in records) / 3600
    yield f"**In all**: {len(records)} {'run' if len(records) == 1 else 'runs'}, {hours:.1f} hours; {', '.join(words)}."


def _runs(records: Sequence[Record]) -> Iterator[str]:
    yield "| when (UTC) | commit | command | minutes | load | figures |"
    yield "|---|---|---|--:|--:|---|"
    for record in records:
        figures = ", ".join(f"{_named(name)} {_shown(figure)}" for name, figure in record.figures.items())
        yield (
            f"| {record.date[:16].replace('T', ' ')} | {record.commit} | `{record.command}` "
            f"| {record.seconds / 60:.1f} | {record.load} on {record.cores} cores | {figures} |"
        )


def _findings(records: Sequence[Record]) -> Iterator[str]:
    found = dict.fromkeys(sentence for record in records for sentence in record.found)
    yield ""
    yield "**Found**:" if found else "**Found**: nothing."
    if found:
        yield ""
        yield from (f"- {sentence}" for sentence in found)


def _tables(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if record.table:
            yield ""
            yield f"`{record.command}`, {record.date[:10]}, commit {record.commit}:"
            yield ""
            yield from _table(record.table)


def _table(rows: Sequence[Mapping[str, Figure]]) -> Iterator[str]:
    columns = list(rows[0])
    is_number = [not isinstance(rows[0][column], str) for column in columns]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('--:' if number else '---' for number in is_number)}|"
    for row in rows:
        yield f"| {' | '.join(_shown(row[column]).replace('|', '¦') for column in columns)} |"


def _named(figure: str) -> str:
    """A figure of a part, such as "rounds, sqlite", without the comma that divides figures."""
    whole, comma, part = figure.partition(", ")
    return f"{whole} ({part})" if comma else figure


def _shown(figure: Figure) -> str:
    if isinstance(figure, str):
        return figure
    return f"{figure:,.1f}" if isinstance(figure, float) and figure != int(figure) else f"{int(figure):,}"


def main() -> None:
    PAGE.write_text(rewrite(PAGE.read_text(), read_records()))


if __name__ == "__main__":
    main()
