"""``seriatim audit``: in what order did a captured trace arrive, per key?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import reduce
from heapq import nsmallest
from pathlib import Path
from typing import Any, Protocol

import click

from seriatim.cli.display import new_table, print_table, progress_display, readable
from seriatim.cli.session import configured
from seriatim.cli.trace import Columns, Row, Trace, open_trace
from seriatim.config import LoadedConfig
from seriatim.core.guarantees import Guarantee, Level, level, meet
from seriatim.core.sequence import SequenceSpace
from seriatim.core.traces import TraceChecker, Verdict, Witness
from seriatim.errors import GuaranteeNotMet, InvalidArgument, InvalidSequence
from seriatim.extras import EXTRAS, require_extra

COUNTED = ("distinct", "duplicates", "lost", "reordered")
ROWS_BETWEEN_UPDATES = 10_000


class Findings(Protocol):
    """What an audit found, whoever looked."""

    @property
    def counted(self) -> Sequence[str]:
        """The names of the totals."""

    @property
    def is_order_judged(self) -> bool: ...

    @property
    def keys(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def guarantee(self) -> Guarantee: ...

    def total(self, count: str) -> int: ...

    def worst(self, limit: int) -> list[tuple[str, Verdict]]: ...

    def lacking(self, expected: Level) -> tuple[int, list[tuple[str, Verdict]]]: ...


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

    counted = COUNTED
    is_order_judged = True

    @property
    def keys(self) -> int:
        return len(self.verdicts)

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

    def lacking(self, expected: Level) -> tuple[int, list[tuple[str, Verdict]]]:
        """For how many keys ``expected`` did not hold, and the worst of them, if any."""
        found = [item for item in self.verdicts.items() if expected.guarantee & ~item[1].guarantee]
        return len(found), nsmallest(1, found, key=_rank)


def _rank(item: tuple[str, Verdict]) -> tuple[int, int, str]:
    key, verdict = item
    faults = verdict.duplicates + verdict.lost + verdict.reordered
    return level(verdict.guarantee).guarantee.bit_count(), -faults, key


@click.command("audit")
@click.argument("path")
@click.option("--key", required=True, metavar="COLUMN", help="The column that order is kept within.")
@click.option("--seq", required=True, metavar="COLUMN", help="The column with the number that the source stamped.")
@click.option("--wrap", type=int, metavar="M", help="Sequences count modulo M (256: 0 to 255, then 0 again).")
@click.option(
    "--spark", is_flag=True, help="Use Spark, as for a folder: for tables that are too large for one process."
)
@click.option("--arrival", metavar="COLUMN", help="With Spark: the column that gives the order of arrival.")
@click.option(
    "--payload", multiple=True, metavar="COLUMN", help="With Spark: compare copies by this column; repeatable."
)
@click.option(
    "--format", "kind", metavar="FORMAT", help="With Spark: the format of the input, if its name does not tell."
)
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="With Spark: draw it in a page of HTML."
)
@click.option(
    "--expect",
    type=click.Choice([known.value for known in Level]),
    help="Fail with exit status 1 unless this guarantee held for every key.",
)
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="How many keys to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@configured
def command(
    loaded: LoadedConfig,
    /,
    path: str,
    key: str,
    seq: str,
    wrap: int | None,
    spark: bool,
    expect: str | None,
    top: int,
    as_json: bool,
    **with_spark: Any,
) -> None:
    """Judge in what order a captured trace arrived, per key.

    PATH holds one message a row, in order of arrival: CSV with a heading, JSON lines, or parquet (needs the extra
    'spark'). '-' reads standard input. The worst keys are listed first.

    A folder, or any option that is marked so, uses Spark, which reads its formats and knows no order but that of --arrival.
    """
    if spark or any(with_spark.values()) or Path(path).is_dir():
        if wrap is not None:
            raise InvalidArgument("with Spark sequences can't wrap yet: audit a single file without --spark")
        show = _with_spark(path, key, seq, with_spark, show_progress=loaded.values.progress)
    else:
        show = nullcontext(_in_this_process(path, key, seq, wrap, show_progress=loaded.values.progress))
    with show as findings:
        if as_json:
            click.echo(json.dumps(_as_json(findings, top), ensure_ascii=False))
        else:
            _print_report(findings, top)
        if expect is not None:
            _require(findings, Level(expect))


def _in_this_process(path: str, key: str, seq: str, wrap: int | None, *, show_progress: bool) -> Findings:
    audit = Audit(SequenceSpace(modulus=wrap))
    with open_trace(path, Columns(key, seq)) as trace:
        _observe_all(audit, trace, show_progress=show_progress)
    return audit.report()


def _with_spark(
    path: str, key: str, seq: str, options: dict[str, Any], *, show_progress: bool
) -> AbstractContextManager[Findings]:
    require_extra("spark", *EXTRAS["spark"], what="an audit with Spark")
    from seriatim.cli.spark_audit import audited

    return audited(path, key, seq, **options, show_progress=show_progress)


def _observe_all(audit: Audit, trace: Trace, *, show_progress: bool) -> None:
    with progress_display("reading", trace.size, enabled=show_progress and trace.size is not None) as progress:
        for number, row in enumerate(trace.rows, 1):
            audit.observe(row)
            if number % ROWS_BETWEEN_UPDATES == 0:
                progress.move_to(trace.position())


def _require(findings: Findings, expected: Level) -> None:
    if expected.guarantee & Guarantee.NO_INVERSION and not findings.is_order_judged:
        raise GuaranteeNotMet(f"{expected} was expected but order could not be judged: name its column, --arrival")
    count, lacking = findings.lacking(expected)
    for key, verdict in lacking:
        witness = _against(expected, verdict.witnesses)
        keys = "1 key" if count == 1 else f"{count} keys"
        raise GuaranteeNotMet(
            f"{expected} was expected but did not hold for {keys}; key {readable(key)}: {witness.text}"
        )


def _against(expected: Level, witnesses: Iterable[Witness]) -> Witness:
    """The first witness that speaks against ``expected``, not against a guarantee that nobody asked for."""
    return next(witness for witness in witnesses if expected.guarantee & witness.denies)


def _print_report(report: Findings, top: int) -> None:
    shown = report.worst(top)
    if shown:
        table = new_table("key", "rows", *COUNTED, "guarantee", "first witness")
        for column in table.columns[1 : 2 + len(COUNTED)]:
            column.justify = "right"
        for key, verdict in shown:
            witness = verdict.witness.text if verdict.witness else ""
            counts = (str(getattr(verdict, count)) for count in COUNTED)
            table.add_row(readable(key), str(verdict.received), *counts, _in_words(report, verdict.guarantee), witness)
        print_table(table)
    hidden = report.keys - len(shown)
    if hidden:
        click.echo(f"and {hidden} more keys (--top)")
    totals = ", ".join(f"{count} {report.total(count)}" for count in report.counted)
    click.echo(f"total: rows {report.rows}, keys {report.keys}, {totals}")
    click.echo(f"held for every key: {_in_words(report, report.guarantee)}")


def _in_words(report: Findings, guarantee: Guarantee) -> str:
    return guarantee.in_words() if report.is_order_judged else guarantee.in_words().replace("none", "order not judged")


def _as_json(report: Findings, top: int) -> dict[str, object]:
    return {
        "rows": report.rows,
        "keys": report.keys,
        "order_judged": report.is_order_judged,
        **{count: report.total(count) for count in report.counted},
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
