"""How commands show tables and progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

# Nobody looks at the width of a pipe or a file, and a program that reads it wants whole lines.
_UNBOUNDED = 10_000


def new_table(*columns: str) -> Table:
    """A table without frame, whose columns a person can read and a program can split."""
    return Table(*columns, box=None, pad_edge=False)


def print_table(table: Table) -> None:
    """Print to standard output: as wide as the terminal, or without folding lines when it is not one."""
    for column in table.columns:
        column.overflow = "fold"
    if sys.stdout.isatty():
        Console(file=sys.stdout, markup=False, highlight=False).print(table)
        return
    console = Console(file=sys.stdout, width=_UNBOUNDED, markup=False, highlight=False)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())


def readable(text: str) -> str:
    """Text that can't disturb a terminal or break a line."""
    return text if text.isprintable() else repr(text)


class ProgressDisplay:
    """A progress bar that counts towards a total, for example the bytes of a file."""

    def __init__(self, progress: Progress, label: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total)

    def move_to(self, position: int, total: int | None = None) -> None:
        """Where it is now, and of how much, if that has changed."""
        self._progress.update(self._task, completed=position, total=total)


@contextmanager
def progress_display(label: str, total: int | None, *, enabled: bool) -> Iterator[ProgressDisplay]:
    """A progress bar on standard error, or none at all when that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not (enabled and sys.stderr.isatty())) as progress:
        yield ProgressDisplay(progress, label, total)
