"""``seriatim trace audit``: check in which order captured messages arrived, per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import reduce
from heapq import nsmallest
from pathlib import Path
from typing import Any

import click

from seriatim.cli.common.command import require_store, run_with_broker, with_url
from seriatim.cli.common.display import progress_display
from seriatim.cli.common.output import Output
from seriatim.cli.common.parameters import Choice
from seriatim.cli.trace import columns_options
from seriatim.cli.trace.files import Columns, Row, Trace, open_trace
from seriatim.cli.trace.findings import (
    Findings,
    KeyFinding,
    as_fields,
    as_side,
    print_comparison,
    print_findings,
    require,
)
from seriatim.core.guarantees import Guarantee, Level, level, meet
from seriatim.core.sequence import SequenceSpace
from seriatim.core.traces import TraceChecker, Verdict
from seriatim.engine.reported_status import leave_audit
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
@columns_options
@click.option(
    "--wrap",
    type=click.IntRange(min=4),
    metavar="M",
    help="Sequence numbers are modulo M (256: 0 to 255, then 0 again).",
)
@click.option("--spark", is_flag=True, help="Use Spark for a single file, too.")
@click.option("--arrival", metavar="COLUMN", help="Spark: the column with the order of arrival.")
@click.option(
    "--payload", multiple=True, metavar="COLUMN", help="Spark: compare duplicates by this column; repeatable."
)
@click.option("--format", "kind", metavar="FORMAT", help="Spark: the format of the input, if not clear from its name.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Spark: write a report in HTML.")
@click.option(
    "--verdicts",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Spark: write the verdict on every key, as parquet.",
)
@click.option("--compare", metavar="PATH", help="Spark: audit this table, too, and compare.")
@click.option(
    "--compare-arrival",
    metavar="COLUMN",
    help="Spark: its column of arrival.  [default: _position, or that of --arrival]",
)
@click.option(
    "--expect",
    type=Choice(Level),
    help="Exit with 1 unless every key has this guarantee (with --compare: in the second table). Rows that can't be judged, "
    "and having no rows at all, count as a failure.",
)
@click.option("--allow-empty", is_flag=True, help="Let --expect pass if there are no rows.")
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="The number of keys to list.")
@click.option("--leave", metavar="NAME", help="Save the verdict, and the report, in the store for the console.")
@with_url
def command(
    url: str,
    output: Output,
    path: str,
    key: str,
    seq: str,
    wrap: int | None,
    spark: bool,
    expect: str | None,
    allow_empty: bool,
    top: int,
    leave: str | None,
    **with_spark: Any,
) -> None:
    """Check in which order captured messages arrived, per key.

    PATH holds one message per row, in order of arrival: CSV with a header, JSON lines, or parquet (needs the extra 'spark').
    '-' is standard input. The worst keys are listed first. The store is needed for --leave only.

    A folder, or any option marked 'Spark', is audited with Spark, which takes the order of arrival from the column --arrival.
    """
    if leave is not None:
        require_store(url)  # before the work
    with ExitStack() as open_until_shown:
        if spark or any(with_spark.values()) or Path(path).is_dir():
            if wrap is not None:
                raise InvalidArgument("with Spark sequences can't wrap yet: audit a single file without --spark")
            looked = _with_spark(path, key, seq, with_spark, show_progress=output.progress)
            found = open_until_shown.enter_context(looked)
        else:
            found = [_in_this_process(path, key, seq, wrap, show_progress=output.progress)]
        _show(found, top, output)
        if leave is not None:
            titles = ("before", "after") if len(found) > 1 else (path,)
            sides = [as_side(title, one) for title, one in zip(titles, found, strict=True)]
            report = with_spark["report"].read_text(encoding="utf-8") if with_spark["report"] else None
            run_with_broker(url, lambda broker: leave_audit(broker, leave, sides, report))
        if expect is not None:
            require(found[-1], Level(expect), allow_empty=allow_empty)


def _show(found: Sequence[Findings], top: int, output: Output) -> None:
    """One audit, or what was before and after."""
    if output.as_json:
        fields = [as_fields(findings, top) for findings in found]
        output.result(fields[0] if len(fields) == 1 else dict(zip(("before", "after"), fields, strict=True)), "")
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
    from seriatim.cli.trace.spark_audit import audited

    return audited(path, key, seq, **options, show_progress=show_progress)


def _observe_all(audit: Audit, trace: Trace, *, show_progress: bool) -> None:
    with progress_display("reading", trace.size, enabled=show_progress and trace.size is not None) as progress:
        for number, row in enumerate(trace.rows, 1):
            audit.observe(row)
            if number % ROWS_BETWEEN_UPDATES == 0:
                progress.move_to(trace.position())
