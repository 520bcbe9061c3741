"""What the larger benches share: rounds in which everybody has a turn, one table of what was found, and the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    work: str
    figure: str
    beside: str = ""
    goal: str = ""


class Found:
    """What several rounds found. A ratio is taken within each round, between neighbours in time, and then the median."""

    def __init__(self, names: Iterable[str]) -> None:
        self.values: dict[str, list[float]] = {name: [] for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def of(self, name: str) -> float:
        return median(self.values[name])

    def ratios(self, name: str, other: str) -> list[float]:
        return [a / b for a, b in zip(self.values[name], self.values[other], strict=True)]

    def ratio(self, name: str, other: str) -> float:
        return median(self.ratios(name, other))


class Report:
    """Measures part by part. Figures of one part stand side by side in time, so that a noisy moment hits all of them."""

    def __init__(self, rounds: int) -> None:
        self.round_count = rounds
        self.rows: list[Row] = []
        self.readings: dict[str, list[float]] = {}
        """Every round of everybody who was measured."""

    def say(self, what: str) -> None:
        print(f"measuring {what} ...", file=sys.stderr, flush=True)

    def add(self, work: str, figure: str, beside: str = "", goal: str = "") -> None:
        self.rows.append(Row(work, figure, beside, goal))
        print(" · ".join(filter(None, (work, figure, beside))), file=sys.stderr, flush=True)

    def rounds(self, works: dict[str, Callable[[], float]], at_most: int = 5) -> Found:
        """Several rounds, in each of which everybody has a turn."""
        found, rounds = Found(works), min(self.round_count, at_most)
        for number in range(rounds):
            for name, work in works.items():
                self.say(f"{name}, round {number + 1} of {rounds}")
                found.values[name].append(work())
        for name, values in found.values.items():
            self.readings.setdefault(name, []).extend(values)
        return found

    def show(self, *, as_json: bool) -> None:
        print(json.dumps([asdict(row) for row in self.rows], indent=1) if as_json else _table(self.rows))


def _table(rows: Iterable[Row]) -> str:
    lines = [Row("work", "figure", "beside", "goal"), *rows]
    widths = [max(len(getattr(row, name)) for row in lines) for name in ("work", "figure", "beside")]
    return "\n".join(
        f"{row.work:{widths[0]}}  {row.figure:>{widths[1]}}  {row.beside:{widths[2]}}  {row.goal}".rstrip()
        for row in lines
    )


def options(prog: str, about: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """The command line that all of them understand."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=about)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", choices=parts, action="append", help="one part; may be given several times")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_record_option(parser)
    return parser


def add_record_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", action="store_true", help="also write a record for the docs, in docs/benchmarks")
