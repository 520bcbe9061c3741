"""What ``seriatim demo`` shows: its progress on standard error, and the results at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from seriatim.cli.common.display import print_table
from seriatim.cli.common.output import duration
from seriatim.core.resequencing.options import Reason
from seriatim.demo.progress import DemoStep, Steps

if TYPE_CHECKING:
    from seriatim.demo.books import Audited, Books, Entry
    from seriatim.demo.folder import DemoFolder

TITLE, BAR, COUNT, TIME = 26, 12, 7, 5
"""Widths of columns: together with a note of 20 characters they fit into a narrow terminal."""
EXAMPLES = 2


# -- while it works -----------------------------------------------------------------------------------------------------


@contextmanager
def show_steps(*, enabled: bool) -> Iterator[Steps]:
    """Steps that are shown on standard error: live on a terminal, otherwise as a line when one begins or ends."""
    console = Console(stderr=True, highlight=False)
    if not enabled:
        yield Steps()
    elif not console.is_terminal:
        yield Steps(_print_line)
    else:
        steps = Steps()
        spinner = Spinner("dots", style="cyan")
        with Live(get_renderable=lambda: _drawn(steps, spinner), console=console, refresh_per_second=8):
            yield steps


def _print_line(step: DemoStep) -> None:
    if step.ended is None:
        click.echo(f"{step.title} ...", err=True)
    else:
        click.echo(
            f"{step.title}: {', '.join(filter(None, ('done', _counted(step), step.note)))}, {_took(step)}", err=True
        )


def _drawn(steps: Steps, spinner: Spinner) -> Table:
    table = Table.grid(padding=(0, 1))
    for width in (1, TITLE, BAR):
        table.add_column(min_width=width, no_wrap=True)
    for width in (COUNT, TIME):
        table.add_column(justify="right", min_width=width, no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for step in steps.all:
        mark = Text("✓", style="green") if step.ended else spinner if step.begun else Text("·", style="dim")
        table.add_row(mark, step.title, _bar(step), _counted(step), _took(step), Text(step.note, style="dim"))
    return table


def _bar(step: DemoStep) -> ProgressBar | str:
    if step.total is None or step.begun is None:
        return ""
    return ProgressBar(total=step.total, completed=step.total if step.ended else step.count, width=BAR)


def _counted(step: DemoStep) -> str:
    return f"{step.count:,}" if step.count else ""


def _took(step: DemoStep) -> str:
    return duration(step.seconds) or ""


# -- at the end ---------------------------------------------------------------------------------------------------------


def show_story(books: Books, folder: DemoFolder, discrepancies: list[str]) -> None:
    """Before and after side by side, the sums, and where everything is."""
    for part in (_side_by_side(books), _sums(books, discrepancies), _places(folder)):
        click.echo()
        print_table(part)
    click.echo(f"\nSee it in the console: seriatim console --store sqlite:///{folder.store}")


def _side_by_side(books: Books) -> Table:
    before, after = books.before, books.after
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    table.add_column("before: raw", justify="right", style="yellow")
    table.add_column("after: ordered", justify="right", style="green")
    for title, count in {
        "messages": "rows",
        "duplicates": "duplicates",
        "overtaken": "reordered",
        "lost": "lost",
    }.items():
        table.add_row(title, f"{getattr(before, count):,}", f"{getattr(after, count):,}")
    table.add_row("order per device", before.guarantee.in_words(), after.guarantee.in_words(), style="bold")
    return table


def _sums(books: Books, discrepancies: list[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    for is_right, sentence in [*_claims(books), *((False, sentence) for sentence in discrepancies)]:
        table.add_row(Text("✓", style="green") if is_right else Text("✗", style="red"), sentence)
    return table


def _claims(books: Books) -> Iterator[tuple[bool, str]]:
    """What the run has shown, each with whether it is true."""
    reasons = {reason: count for reason, count in books.reasons.items() if reason != Reason.LOST}
    kept_back = "".join(f" + {count:,} {reason}" for reason, count in reasons.items())
    yield (
        books.published == books.delivered + books.kept_back,
        f"{books.published:,} published = {books.delivered:,} in order{kept_back}",
    )
    yield (
        books.sent == books.delivered + books.lost,
        f"{books.sent:,} sent = {books.delivered:,} in order + {books.lost:,} lost{_named(books.ledger)}",
    )
    yield (
        books.most_in_flight_per_device <= 1,
        f"at most {books.most_in_flight_per_device} of a device in flight, {books.redeliveries:,} failures repeated in place",
    )


def _named(ledger: Sequence[Entry]) -> str:
    """Some of the numbers that are lost, to show that they are known."""
    lost = [entry for entry in ledger if entry.reason == Reason.LOST]
    if not lost:
        return ""
    named = (
        f"{entry.device} {entry.first}" + (f"–{entry.last}" if entry.size > 1 else "") for entry in lost[:EXAMPLES]
    )
    return f", each in the ledger: {', '.join(named)}{', …' if len(lost) > EXAMPLES else ''}"


def _places(folder: DemoFolder) -> Table:
    places = {
        folder.report: "before and after, as a report for the browser",
        folder.pipeline: "what ran on Spark: see 'seriatim pipeline explain'",
        folder.ordered: "the readings in order, as a table in parquet",
        folder.ledger: "the ledger: what is missing from it, and why",
        folder.store: "the store, with the topics raw and ordered",
    }
    table = Table.grid(padding=(0, 2))
    for path, what in places.items():
        if path.exists():
            table.add_row(Text(str(path), style="cyan"), what)
    return table


def as_fields(books: Books, folder: DemoFolder, discrepancies: list[str]) -> dict[str, Any]:
    """The same for programs. Apart from the folder, it depends on the fleet alone."""
    return {
        "sent": books.sent,
        "published": books.published,
        "delivered": books.delivered,
        "ledger": books.reasons,
        "before": _audited(books.before),
        "after": _audited(books.after),
        "redeliveries": books.redeliveries,
        "most_in_flight_per_device": books.most_in_flight_per_device,
        "discrepancies": discrepancies,
        "folder": str(folder.path),
    }


def _audited(audited: Audited) -> dict[str, Any]:
    return asdict(audited) | {"guarantee": audited.guarantee.in_words()}
