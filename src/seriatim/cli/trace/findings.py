"""The findings of an audit, made in this process or on Spark, and how they are shown: as a table, as JSON, or as a failed
expectation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import click

from seriatim.cli.common.display import new_table, print_table, readable
from seriatim.cli.common.output import Fields, cell_text, counted, print_rows
from seriatim.core.guarantees import Guarantee, Level, level
from seriatim.core.traces import Witness
from seriatim.engine.reported_status import AuditedSide
from seriatim.errors import GuaranteeNotMet

NO_KEY = "(no key)"
HEADINGS = {"max_displacement": "furthest"}
"""What counts are called where people read them, if not by their own name."""


@dataclass(frozen=True, slots=True)
class KeyFinding:
    """What an audit found about one key, or about the rows without one (None). A count is None where nobody could judge."""

    key: str | None
    rows: int
    counts: Mapping[str, int | None]
    guarantee: Guarantee
    witnesses: tuple[Witness, ...]


class Findings(Protocol):
    """What an audit found about all keys."""

    @property
    def counted(self) -> Sequence[str]:
        """The names of the counts, of each key and of all together."""

    @property
    def is_order_judged(self) -> bool: ...

    @property
    def keys(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def guarantee(self) -> Guarantee:
        """What held for every key."""

    def total(self, count: str) -> int | None: ...

    def worst(self, limit: int) -> list[KeyFinding]: ...

    def lacking(self, expected: Level) -> tuple[int, list[KeyFinding]]:
        """For how many keys ``expected`` did not hold or has rows that can't be judged, and the worst of them, if any."""


def require(findings: Findings, expected: Level, *, allow_empty: bool = False) -> None:
    """Raise GuaranteeNotMet, with a witness, unless ``expected`` held for every key, and every row could be judged."""
    if expected is Level.NONE:
        return
    if not findings.rows and not unjudged(findings):
        if allow_empty:
            return
        raise GuaranteeNotMet(
            f"{expected} was expected but there is nothing to judge: there are no rows; --allow-empty accepts that"
        )
    if expected.guarantee & Guarantee.NO_INVERSION and not findings.is_order_judged:
        raise GuaranteeNotMet(f"{expected} was expected but order could not be judged: name its column, --arrival")
    count, lacking = findings.lacking(expected)
    for found in lacking:
        witness = _against(expected, found.witnesses)
        raise GuaranteeNotMet(
            f"{expected} was expected but did not hold for {counted(count, 'key')}; {_named(found)}: {witness.text}"
        )


def unjudged(findings: Findings) -> int:
    """How many rows nobody could judge."""
    return (findings.total("invalid") or 0) if "invalid" in findings.counted else 0


def _named(found: KeyFinding) -> str:
    return NO_KEY if found.key is None else f"key {readable(found.key)}"


def _against(expected: Level, witnesses: Iterable[Witness]) -> Witness:
    """The first witness that speaks against ``expected``, not against a guarantee that nobody asked for."""
    return next(witness for witness in witnesses if expected.guarantee & witness.denies)


# --- for people ---------------------------------------------------------------------------------------------------------


def print_findings(findings: Findings, top: int) -> None:
    shown = findings.worst(top)
    if shown:
        _print_keys(findings, shown)
    hidden = findings.keys - sum(found.key is not None for found in shown)
    if hidden:
        click.echo(f"and {counted(hidden, 'more key')} (--top)")
    totals = ", ".join(f"{_heading(count)} {cell_text(findings.total(count))}" for count in findings.counted)
    click.echo(f"total: rows {findings.rows}, keys {findings.keys}, {totals}")
    but = f", but {counted(count, 'row')} can't be judged" if (count := unjudged(findings)) else ""
    click.echo(f"held for every key: {_in_words(findings, findings.guarantee)}{but}")


def _print_keys(findings: Findings, shown: Iterable[KeyFinding]) -> None:
    table = new_table("key", "rows", *map(_heading, findings.counted), "guarantee", "first witness")
    for column in table.columns[1 : 2 + len(findings.counted)]:
        column.justify = "right"
    for found in shown:
        counts = (cell_text(found.counts[count]) for count in findings.counted)
        witness = found.witnesses[0].text if found.witnesses else ""
        key = NO_KEY if found.key is None else readable(found.key)
        table.add_row(key, str(found.rows), *counts, _in_words(findings, found.guarantee), witness)
    print_table(table)


def print_comparison(before: Findings, after: Findings) -> None:
    """The totals of two audits, side by side."""
    both = (before, after)
    facts: dict[str, Sequence[object]] = {"keys": [one.keys for one in both], "rows": [one.rows for one in both]}
    facts |= {_heading(count): [one.total(count) for one in both] for count in before.counted}
    facts["held for every key"] = [_in_words(one, one.guarantee) for one in both]
    rows = [{"fact": fact, "before": first, "after": second} for fact, (first, second) in facts.items()]
    print_rows(rows, {"": "fact", "before": "before", "after": "after"})


def _heading(count: str) -> str:
    return HEADINGS.get(count, count)


def _in_words(findings: Findings, guarantee: Guarantee) -> str:
    words = guarantee.in_words()
    return words if findings.is_order_judged else words.replace("none", "order not judged")


# --- for programs -------------------------------------------------------------------------------------------------------


def as_fields(findings: Findings, top: int) -> Fields:
    return {
        "rows": findings.rows,
        "keys": findings.keys,
        "order_judged": findings.is_order_judged,
        **{count: findings.total(count) for count in findings.counted},
        **_guarantee_fields(findings, findings.guarantee),
        "worst": [
            {
                "key": found.key,
                "rows": found.rows,
                **found.counts,
                **_guarantee_fields(findings, found.guarantee),
                "witnesses": [asdict(witness) for witness in found.witnesses],
            }
            for found in findings.worst(top)
        ],
    }


def as_side(title: str, findings: Findings) -> AuditedSide:
    """What the console shows of them."""
    lost, duplicates = (findings.total(count) or 0 for count in ("lost", "duplicates"))
    guarantee = _in_words(findings, findings.guarantee)
    return AuditedSide(title, findings.keys, findings.rows, lost, duplicates, findings.total("reordered"), guarantee)


def _guarantee_fields(findings: Findings, guarantee: Guarantee) -> Fields:
    is_judged = findings.is_order_judged
    return {
        "level": level(guarantee).value if is_judged else None,
        "no_inversion": bool(guarantee & Guarantee.NO_INVERSION) if is_judged else None,
        "no_duplicate": bool(guarantee & Guarantee.NO_DUPLICATE),
        "no_loss": bool(guarantee & Guarantee.NO_LOSS),
    }
