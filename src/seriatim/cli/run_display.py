"""What a pipeline at work looks like: live on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

if TYPE_CHECKING:
    from seriatim.spark.pipeline.run import Run

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far a run is."""

    batch: int | None = None
    batches: int = 0
    rows_in: int = 0
    ordered: int = 0
    held: int = 0
    ledger: Mapping[str, int] = field(default_factory=dict)
    rate: float = 0.0

    @classmethod
    def of(cls, run: Run) -> Snapshot:
        totals = run.totals()
        return cls(
            batch=totals.last_batch,
            batches=totals.batches,
            rows_in=totals.rows_in,
            ordered=totals.rows["ordered"],
            held=totals.held,
            ledger={reason: count for reason, count in sorted(totals.ledger.items()) if count},
            rate=totals.rate,
        )

    @property
    def ledger_text(self) -> str:
        return ", ".join(f"{count:,} {reason}" for reason, count in self.ledger.items()) or "nothing"

    def line(self) -> str:
        if self.batch is None:
            return "waiting for the first batch"
        return (
            f"batch {self.batch}: {self.rows_in:,} in, {self.ordered:,} ordered, {self.held:,} held, "
            f"ledger: {self.ledger_text}; {self.rate:,.0f} rows/s"
        )

    def summary(self, name: str) -> str:
        return (
            f"pipeline '{name}': {self.batches:,} batches, {self.rows_in:,} rows in, {self.ordered:,} ordered, "
            f"{self.held:,} held\nledger: {self.ledger_text}"
        )

    def as_fields(self, name: str) -> dict[str, Any]:
        return {
            "pipeline": name,
            "batches": self.batches,
            "rows": self.rows_in,
            "ordered": self.ordered,
            "held": self.held,
            "ledger": dict(self.ledger),
        }


class RunDisplay:
    """One line on standard error every so many seconds, when something has happened."""

    def __init__(self) -> None:
        self._shown = Snapshot()
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES

    def show(self, snapshot: Snapshot) -> None:
        has_news = snapshot.batch is not None and snapshot != self._shown
        if has_news and time.monotonic() >= self._next:
            self.say(snapshot.line())
            self._shown, self._next = snapshot, time.monotonic() + SECONDS_BETWEEN_LINES

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put away."""


class LiveDisplay(RunDisplay):
    """The same figures, always the latest, in place."""

    def __init__(self) -> None:
        super().__init__()
        self._spinner = Spinner("dots", Text("starting"))
        self._live = Live(
            Group(self._spinner),
            console=Console(file=sys.stderr, highlight=False),
            transient=True,
            refresh_per_second=8,
        )

    @classmethod
    def for_terminal(cls, *, enabled: bool) -> RunDisplay:
        """A live one where it can be seen, otherwise lines; none at all when nobody wants to see progress."""
        if not enabled:
            return Silent()
        return cls() if sys.stderr.isatty() else RunDisplay()

    def show(self, snapshot: Snapshot) -> None:
        self._spinner.update(text=Text(snapshot.line()))

    def say(self, text: str) -> None:
        self._spinner.update(text=Text(text))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class Silent(RunDisplay):
    def say(self, text: str) -> None:
        """Nobody wants to know."""
