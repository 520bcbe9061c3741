"""``seriatim audit``: in what order did a captured trace arrive, per key?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import reduce
from heapq import nsmallest
from pathlib import Path
from typing import Any

import click

from seriatim.cli.display import progress_display
from seriatim.cli.findings import Findings, KeyFinding, as_fields, print_comparison, print_findings, require
from seriatim.cli.output import as_json as in_json
from seriatim.cli.session import configured
from seriatim.cli.trace import Columns, Row, Trace, open_trace
from seriatim.config import LoadedConfig
from seriatim.core.guarantees import Guarantee, Level, level, meet
from seriatim.core.sequence import SequenceSpace
from seriatim.core.traces import TraceChecker, Verdict
from seriatim.errors import InvalidArgument, InvalidSequence
from seriatim.extras import EXTRAS, require_extra

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

    counted = ("distinct", "duplicates", "lost", "reordered", "max_displacement")
    is_order_judged = True

    @property
    def keys(self) -> int:
        return len(self.verdicts)

    @property
    def rows(self) -> int:
        return sum(verdict.received for verdict in self.verdicts.values())

    @property
    def guarantee(self) -> Guarantee:
        return reduce(meet, (verdict.guarantee for verdict in self.verdicts.values()), Guarantee.ABSOLUTE)

    def total(self, count: str) -> int:
        counts = (getattr(verdict, count) for verdict in self.verdicts.values())
        return max(counts, default=0) if count == "max_displacement" else sum(counts)

    def worst(self, limit: int) -> list[KeyFinding]:
        return [self._finding(*item) for item in nsmallest(limit, self.verdicts.items(), key=_rank)]

    def lacking(self, expected: Level) -> tuple[int, list[KeyFinding]]:
        found = [item for item in self.verdicts.items() if expected.guarantee & ~item[1].guarantee]
        return len(found), [self._finding(*item) for item in nsmallest(1, found, key=_rank)]

    def _finding(self, key: str, verdict: Verdict) -> KeyFinding:
        counts = {count: getattr(verdict, count) for count in self.counted}
        return KeyFinding(key, verdict.received, counts, verdict.guarantee, verdict.witnesses)


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
    "--verdicts",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="With Spark: write the verdict on every key, as parquet.",
)
@click.option("--compare", metavar="PATH", help="With Spark: audit this table too, and show what was before and after.")
@click.option(
    "--compare-arrival",
    metavar="COLUMN",
    help="Its column of arrival; otherwise _position, if it has that, or that of --arrival.",
)
@click.option(
    "--expect",
    type=click.Choice([known.value for known in Level]),
    help="Fail with exit status 1 unless this guarantee held for every key (with --compare: afterwards). It fails, too, for "
    "rows that can't be judged, and where there are no rows.",
)
@click.option("--allow-empty", is_flag=True, help="Let --expect pass where there are no rows.")
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
    allow_empty: bool,
    top: int,
    as_json: bool,
    **with_spark: Any,
) -> None:
    """Judge in what order a captured trace arrived, per key.

    PATH holds one message a row, in order of arrival: CSV with a heading, JSON lines, or parquet (needs the extra
    'spark'). '-' reads standard input. The worst keys are listed first.

    A folder, or any option that is marked so, uses Spark, which reads its formats and knows no order but that of --arrival.
    """
    with ExitStack() as open_until_shown:
        if spark or any(with_spark.values()) or Path(path).is_dir():
            if wrap is not None:
                raise InvalidArgument("with Spark sequences can't wrap yet: audit a single file without --spark")
            looked = _with_spark(path, key, seq, with_spark, show_progress=loaded.values.progress)
            found = open_until_shown.enter_context(looked)
        else:
            found = [_in_this_process(path, key, seq, wrap, show_progress=loaded.values.progress)]
        _show(found, top, as_json=as_json)
        if expect is not None:
            require(found[-1], Level(expect), allow_empty=allow_empty)


def _show(found: Sequence[Findings], top: int, *, as_json: bool) -> None:
    """One audit, or what was before and after."""
    if as_json:
        fields = [as_fields(findings, top) for findings in found]
        click.echo(in_json(fields[0] if len(fields) == 1 else dict(zip(("before", "after"), fields, strict=True))))
    elif len(found) == 1:
        print_findings(found[0], top)
    else:
        print_comparison(*found)


def _in_this_process(path: str, key: str, seq: str, wrap: int | None, *, show_progress: bool) -> Findings:
    audit = Audit(SequenceSpace(modulus=wrap))
    with open_trace(path, Columns(key, seq)) as trace:
        _observe_all(audit, trace, show_progress=show_progress)
    return audit.report()


def _with_spark(
    path: str, key: str, seq: str, options: dict[str, Any], *, show_progress: bool
) -> AbstractContextManager[Sequence[Findings]]:
    require_extra("spark", *EXTRAS["spark"], what="an audit with Spark")
    from seriatim.cli.spark_audit import audited

    return audited(path, key, seq, **options, show_progress=show_progress)


def _observe_all(audit: Audit, trace: Trace, *, show_progress: bool) -> None:
    with progress_display("reading", trace.size, enabled=show_progress and trace.size is not None) as progress:
        for number, row in enumerate(trace.rows, 1):
            audit.observe(row)
            if number % ROWS_BETWEEN_UPDATES == 0:
                progress.move_to(trace.position())
