"""The charts of an audit: SVG that scales with the screen while its text keeps its size.

Positions are in percent, and dots are drawn in a separate box, which may be distorted. Every chart has a title and a
description, and bar charts also have a table below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

KINDS = {"in order": "a", "overtaken": "b", "copy": "c"}
LETTERS_IN_A_ROW = 42
FAULTS = {"reordered": "b", "duplicates": "c", "lost": "d", "invalid": "e"}
"""Conflicts are among the duplicates."""


class Point(NamedTuple):
    """A row of one key: its place by arrival, its number, and whether it was in order, overtaken, or a copy."""

    at: int
    number: int
    kind: str


class Trail(NamedTuple):
    """Rows of one key in order of arrival."""

    key: str
    points: tuple[Point, ...]


class Bucket(NamedTuple):
    label: str
    size: int


class KeyRow(NamedTuple):
    """What is wrong with one key. What could not be judged is None."""

    key: str
    rows: int
    duplicates: int
    lost: int
    reordered: int | None
    invalid: int
    max_displacement: int | None
    guarantee: str | None
    witness: str | None

    @property
    def faults(self) -> int:
        return self.duplicates + self.lost + (self.reordered or 0) + self.invalid


# --- words and tables ----------------------------------------------------------------------------------------------------


def figure(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are markup. The first column names its row."""
    first, *others = heading
    names = f'<th scope="col">{first}</th>' + "".join(f'<th scope="col" class="n">{name}</th>' for name in others)
    lines = []
    for name, *values in rows:
        cells = "".join(f'<td class="n">{value}</td>' for value in values)
        lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _as_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"<details><summary>as a table</summary>{table(heading, rows)}</details>"


# --- dots ---------------------------------------------------------------------------------------------------------------


def scatter(trail: Trail, name: str, height: int = 230) -> str:
    """The rows of a key: further right the later they came, higher the higher their number."""
    x = _scale([point.at for point in trail.points], 0, 1000)
    y = _scale([point.number for point in trail.points], 1000, 0)
    places = {kind: [(x(point.at), y(point.number)) for point in trail.points if point.kind == kind] for kind in KINDS}
    paths = (f'<path class="{style}" d="{_dots(places[kind])}"/>' for kind, style in KINDS.items() if places[kind])
    about = f"{len(trail.points):,} rows by arrival: " + ", ".join(f"{len(places[kind]):,} {kind}" for kind in KINDS)
    picture = _svg(height, _axes(trail.points, height) + _box("".join(paths), height), name, about)
    return f"<figure><figcaption>{escape(short(name))}</figcaption>{picture}</figure>"


def _box(dots: str, height: int) -> str:
    size = f'x="1%" y="14" width="98%" height="{height - 40}"'
    return f'<svg class="dots" {size} viewBox="0 0 1000 1000" preserveAspectRatio="none">{dots}</svg>'


def _axes(points: Sequence[Point], height: int) -> str:
    numbers, last = [point.number for point in points], max(point.at for point in points)
    bottom = height - 20
    return (
        f'<line x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/><line x1="0" x2="0" y1="8" y2="{bottom}"/>'
        f'<text x="6" y="16">number {max(numbers):,}</text>'
        f'<text x="0" y="{height - 4}">row 0, number {min(numbers):,}</text>'
        f'<text x="100%" y="{height - 4}" text-anchor="end">row {last:,}</text>'
    )


def _scale(values: Sequence[int], start: float, end: float) -> Callable[[int], float]:
    low, high = min(values), max(values)
    return lambda value: start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)


def _dots(places: Iterable[tuple[float, float]]) -> str:
    """A path of strokes without length, which round caps make dots: far less text than a circle for each."""
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in places)


# --- bars ---------------------------------------------------------------------------------------------------------------


def bars(
    buckets: Sequence[Bucket], highest: int, style: str, title: str, heading: tuple[str, str], height: int = 210
) -> str:
    """One bar for each bucket, on a scale up to ``highest``; nothing at all where all are empty."""
    if not any(bucket.size for bucket in buckets):
        return ""
    bottom, step = height - 22, 100 / len(buckets)
    scale = (bottom - 18) / highest
    drawn = [_grid_line(bottom - scale * value) for value in (0, highest / 2, highest)]
    drawn.append(f'<text x="0" y="14">{highest:,}</text>')
    for at, (label, size) in enumerate(buckets):
        drawn.append(_bar((at + 0.08) * step, step * 0.84, bottom, scale * size, style, f"{label}: {size:,}"))
    drawn.extend(_bar_labels(buckets, step, height - 6))
    about = f"{sum(bucket.size for bucket in buckets):,} in all"
    rows = [(escape(label), f"{size:,}") for label, size in buckets if size]
    return f"<figure>{_svg(height, ''.join(drawn), title, about)}{_as_table(heading, rows)}</figure>"


def _grid_line(y: float) -> str:
    return f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'


def _bar_labels(buckets: Sequence[Bucket], step: float, y: float) -> Iterator[str]:
    """All labels where there is room, on a phone too, otherwise the first and the last."""
    if sum(len(bucket.label) + 1 for bucket in buckets) <= LETTERS_IN_A_ROW:
        for at, bucket in enumerate(buckets):
            yield f'<text x="{(at + 0.5) * step:.2f}%" y="{y}" text-anchor="middle">{escape(bucket.label)}</text>'
    else:
        yield f'<text x="0" y="{y}">{escape(buckets[0].label)}</text>'
        yield f'<text x="100%" y="{y}" text-anchor="end">{escape(buckets[-1].label)}</text>'


def _bar(x: float, width: float, bottom: float, height: float, style: str, tip: str) -> str:
    """A bar from ``x`` percent on, that stands on ``bottom``. What is there can be seen, however little it is."""
    if not height:
        return ""
    size = f'x="{x:.2f}%" width="{width:.2f}%" y="{bottom - max(height, 1.5):.1f}" height="{max(height, 1.5):.1f}"'
    return f'<rect class="{style}" {size}><title>{escape(tip)}</title></rect>'


def key_bars(worst: Sequence[KeyRow], highest: int, row_height: int = 42) -> str:
    if not worst:
        return ""
    rows = "".join(_key_bar(row, at * row_height, highest) for at, row in enumerate(worst))
    about = "; ".join(f"{row.key}: {row.faults:,}" for row in worst)
    picture = _svg(row_height * len(worst), rows, "Faults of the worst keys", about)
    heading = ("key", "rows", *FAULTS, "furthest behind", "guarantee", "first witness")
    table = [
        [
            escape(row.key),
            figure(row.rows),
            *(figure(getattr(row, fault)) for fault in FAULTS),
            figure(row.max_displacement),
            row.guarantee or "not judged",
            escape(row.witness or ""),
        ]
        for row in worst
    ]
    return f"<figure>{picture}{_as_table(heading, table)}</figure>"


def _key_bar(row: KeyRow, y: int, highest: int) -> str:
    """The name of a key, and below it a bar of its faults."""
    parts, x = [f'<text class="name" x="0" y="{y + 15}">{escape(short(row.key))}</text>'], 0.0
    for fault, style in FAULTS.items():
        count = getattr(row, fault) or 0
        width = 100 * count / highest if highest else 0
        parts.append(_bar(x, width, y + 34, 13 if count else 0, style, f"{row.key}: {fault} {count:,}"))
        x += width
    parts.append(f'<text x="100%" y="{y + 15}" text-anchor="end">{row.faults:,}</text>')
    return "".join(parts)


def short(key: str) -> str:
    return key if len(key) <= 40 else f"{key[:39]}…"


def _svg(height: int, content: str, title: str, about: str) -> str:
    labels = f"<title>{escape(title)}</title><desc>{escape(about)}</desc>"
    return f'<svg height="{height}" role="img" aria-label="{escape(f"{title}. {about}")}">{labels}{content}</svg>'
