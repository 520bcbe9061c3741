"""The figures of a running pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seriatim.cli.common.output import counted

if TYPE_CHECKING:
    from seriatim.spark.pipeline.run import Run


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
            f"pipeline '{name}': {counted(self.batches, 'batch')}, {counted(self.rows_in, 'row')} in, "
            f"{self.ordered:,} ordered, {self.held:,} held\nledger: {self.ledger_text}"
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
