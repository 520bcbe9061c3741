"""The picture: one group of bars for each scenario, one bar for each participant, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

WIDTH, LEFT, TOP, BAR, GAP = 900, 150, 70, 13, 22
LOW, HIGH = 1.0, 5.0
"""The ends of the scale: ten and a hundred thousand messages a second."""
COLOURS = (
    "#1f6feb",
    "#58a6ff",
    "#d29922",
    "#f85149",
    "#a371f7",
    "#3fb950",
    "#8b949e",
    "#6e7681",
    "#db61a2",
    "#79c0ff",
    "#e3b341",
    "#116329",
    "#ffa198",
    "#1b7c83",
    "#824a00",
)


def drawn(scenarios: Sequence[str], names: Sequence[str], figures: Mapping[tuple[str, str], float | None]) -> str:
    """An SVG of the figures. Who has none in a scenario has no bar there, and the words "no figure"."""
    parts, y = list[str](), TOP
    for index, name in enumerate(names):
        x, row = LEFT + index % 5 * 150, 14 + index // 5 * 16
        parts.append(f'<rect x="{x}" y="{row}" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="{row + 9}">{escape(name)}</text>')
    for scenario in scenarios:
        middle = y + len(names) * BAR / 2
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end" font-weight="bold">{escape(scenario)}</text>'
        )
        for index, name in enumerate(names):
            parts.append(_bar(figures.get((name, scenario)), y, COLOURS[index % len(COLOURS)]))
            y += BAR
        y += GAP
    for exponent in range(int(LOW), int(HIGH) + 1):
        line = f"{_x(10**exponent):.0f}"
        parts.insert(0, f'<line x1="{line}" y1="{TOP - 6}" x2="{line}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{line}" y="{y + 14}" text-anchor="middle">{10**exponent:,}/s</text>')
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" font-family="sans-serif" font-size="11">'
    return "\n".join([frame, f'<rect width="{WIDTH}" height="{y + 24}" fill="white"/>', *parts, "</svg>", ""])


def _x(figure: float) -> float:
    return LEFT + (min(HIGH, max(LOW, log10(figure))) - LOW) / (HIGH - LOW) * (WIDTH - LEFT - 90)


def _bar(figure: float | None, y: float, colour: str) -> str:
    if figure is None:
        return f'<text x="{LEFT + 4}" y="{y + BAR - 3}" fill="#6e7681">no figure</text>'
    width = _x(figure) - LEFT
    bar = f'<rect x="{LEFT}" y="{y + 1}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'
    return f'{bar}<text x="{LEFT + width + 4:.1f}" y="{y + BAR - 3}">{figure:,.0f}</text>'
