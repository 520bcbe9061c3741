"""How commands show tables and progress. Rich is imported when something is shown: it takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status
    from rich.table import Table

# Nobody looks at the width of a pipe or a file, and a program that reads it wants whole lines.
_UNBOUNDED = 10_000


def new_table(*columns: str) -> Table:
    """A table without a frame, easy to read and to split."""
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def print_table(table: Table) -> None:
    """Print to standard output: as wide as the terminal, or without folding lines if it is not one."""
    from rich.console import Console

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
        """Set the position, and the total if it has changed."""
        self._progress.update(self._task, completed=position, total=total)


@contextmanager
def progress_display(label: str, total: int | None, *, enabled: bool) -> Iterator[ProgressDisplay]:
    """A progress bar on standard error, or none if that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not (enabled and sys.stderr.isatty())) as progress:
        yield ProgressDisplay(progress, label, total)


class StatusLine:
    """The state of long work on standard error: live on a terminal, elsewhere a line at intervals, if it has changed."""

    def __init__(self, *, enabled: bool, interval: float = inf) -> None:
        self._interval = interval if enabled else inf
        self._printed, self._next = "", time.monotonic() + self._interval
        self._live = _live_status() if enabled and sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, text: str) -> None:
        from rich.text import Text

        if self._live:
            self._live.update(Text(text))
        elif text != self._printed and time.monotonic() >= self._next:
            self.notice(text)
            self._printed, self._next = text, time.monotonic() + self._interval

    def notice(self, text: str) -> None:
        """Print a line that stays."""
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            click.echo(text, err=True)


def _live_status() -> Status:
    from rich.console import Console
    from rich.status import Status

    return Status("starting", console=Console(file=sys.stderr, highlight=False))
