"""``seriatim audit``: in what order did a captured trace arrive, per key?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from heapq import nsmallest

import click

from seriatim.cli.display import new_table, print_table, progress_display, readable
from seriatim.cli.session import configured
from seriatim.cli.trace import Columns, Row, Trace, open_trace
from seriatim.config import LoadedConfig
from seriatim.core.guarantees import Guarantee, Level, level, meet
from seriatim.core.sequence import SequenceSpace
from seriatim.core.traces import TraceChecker, Verdict, Witness
from seriatim.errors import GuaranteeNotMet, InvalidSequence

COUNTED = ("distinct", "duplicates", "lost", "reordered")
ROWS_BETWEEN_UPDATES = 10_000


class Audit:
    """One checker per key."""

    def __init__(self, space: SequenceSpace) -> None:
        self._space = space
        self._checkers: dict[str, TraceChecker] = {}

    def observe(self, row: Row) -> None:
        checker = self._checkers.get(row.key)
        if checker is None:
            checker = self._checkers[row.key] = TraceChecker(space=self._space)
        try:
            checker.observe(row.sequence)
        except InvalidSequence as error:
            raise InvalidSequence(f"{row.place}: {error}") from error

    def report(self) -> Report:
        return Report({key: checker.verdict() for key, checker in self._checkers.items()})


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on every key."""

    verdicts: Mapping[str, Verdict]

    @property
    def rows(self) -> int:
        return sum(verdict.received for verdict in self.verdicts.values())

    @property
    def guarantee(self) -> Guarantee:
        """What held for every key."""
        return reduce(meet, (verdict.guarantee for verdict in self.verdicts.values()), Guarantee.ABSOLUTE)

    def total(self, count: str) -> int:
        return sum(getattr(verdict, count) for verdict in self.verdicts.values())

    def worst(self, limit: int) -> list[tuple[str, Verdict]]:
        return nsmallest(limit, self.verdicts.items(), key=_rank)

    def lacking(self, expected: Level) -> list[tuple[str, Verdict]]:
        """The keys for which ``expected`` did not hold, the worst first."""
        found = ((key, verdict) for key, verdict in self.verdicts.items() if expected.guarantee & ~verdict.guarantee)
        return sorted(found, key=_rank)


def _rank(item: tuple[str, Verdict]) -> tuple[int, int, str]:
    key, verdict = item
    faults = verdict.duplicates + verdict.lost + verdict.reordered
    return level(verdict.guarantee).guarantee.bit_count(), -faults, key


@click.command("audit")
@click.argument("file")
@click.option("--key", required=True, metavar="COLUMN", help="The column that order is kept within.")
@click.option("--seq", required=True, metavar="COLUMN", help="The column with the number that the source stamped.")
@click.option("--wrap", type=int, metavar="M", help="Sequences count modulo M (256: 0 to 255, then 0 again).")
@click.option(
    "--expect",
    type=click.Choice([known.value for known in Level]),
    help="Fail with exit status 1 unless this guarantee held for every key.",
)
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="How many keys to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@configured
def command(
    loaded: LoadedConfig, file: str, key: str, seq: str, wrap: int | None, expect: str | None, top: int, as_json: bool
) -> None:
    """Judge in what order a captured trace arrived, per key.

    FILE holds one message a row, in order of arrival: CSV with a heading, JSON lines, or parquet (needs the extra
    'spark'). '-' reads standard input. The worst keys are listed first.
    """
    audit = Audit(SequenceSpace(modulus=wrap))
    with open_trace(file, Columns(key, seq)) as trace:
        _observe_all(audit, trace, show_progress=loaded.values.progress)
    report = audit.report()
    if as_json:
        click.echo(json.dumps(_as_json(report, top), ensure_ascii=False))
    else:
        _print_report(report, top)
    if expect is not None:
        _require(report, Level(expect))


def _observe_all(audit: Audit, trace: Trace, *, show_progress: bool) -> None:
    with progress_display("reading", trace.size, enabled=show_progress and trace.size is not None) as progress:
        for number, row in enumerate(trace.rows, 1):
            audit.observe(row)
            if number % ROWS_BETWEEN_UPDATES == 0:
                progress.move_to(trace.position())


def _require(report: Report, expected: Level) -> None:
    lacking = report.lacking(expected)
    if lacking:
        key, verdict = lacking[0]
        witness = _against(expected, verdict.witnesses)
        keys = "1 key" if len(lacking) == 1 else f"{len(lacking)} keys"
        raise GuaranteeNotMet(
            f"{expected} was expected but did not hold for {keys}; key {readable(key)}: {witness.text}"
        )


def _against(expected: Level, witnesses: Iterable[Witness]) -> Witness:
    """The first witness that speaks against ``expected``, not against a guarantee that nobody asked for."""
    return next(witness for witness in witnesses if expected.guarantee & witness.denies)


def _print_report(report: Report, top: int) -> None:
    shown = report.worst(top)
    if shown:
        table = new_table("key", "rows", *COUNTED, "guarantee", "first witness")
        for column in table.columns[1 : 2 + len(COUNTED)]:
            column.justify = "right"
        for key, verdict in shown:
            witness = verdict.witness.text if verdict.witness else ""
            counts = (str(getattr(verdict, count)) for count in COUNTED)
            table.add_row(readable(key), str(verdict.received), *counts, verdict.guarantee.in_words(), witness)
        print_table(table)
    hidden = len(report.verdicts) - len(shown)
    if hidden:
        click.echo(f"and {hidden} more keys (--top)")
    totals = ", ".join(f"{count} {report.total(count)}" for count in COUNTED)
    click.echo(f"total: rows {report.rows}, keys {len(report.verdicts)}, {totals}")
    click.echo(f"held for every key: {report.guarantee.in_words()}")


def _as_json(report: Report, top: int) -> dict[str, object]:
    return {
        "rows": report.rows,
        "keys": len(report.verdicts),
        **{count: report.total(count) for count in COUNTED},
        **_guarantee_as_json(report.guarantee),
        "worst": [
            {
                "key": key,
                "rows": verdict.received,
                **{count: getattr(verdict, count) for count in COUNTED},
                **_guarantee_as_json(verdict.guarantee),
                "witnesses": [asdict(witness) for witness in verdict.witnesses],
            }
            for key, verdict in report.worst(top)
        ],
    }


def _guarantee_as_json(guarantee: Guarantee) -> dict[str, object]:
    return {
        "level": level(guarantee).value,
        "no_inversion": bool(guarantee & Guarantee.NO_INVERSION),
        "no_duplicate": bool(guarantee & Guarantee.NO_DUPLICATE),
        "no_loss": bool(guarantee & Guarantee.NO_LOSS),
    }
