"""The hours of a day as a picture: small charts below each other, one for each thing that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tests.day.work import Hour

WIDTH, ROW, LEFT = 720, 74, 150
MEASURED = {
    "memory_mb": "memory, MiB",
    "store_mb": "database, MiB",
    "log_mb": "write-ahead log, MiB",
    "median_ms": "publish, median, ms",
    "p99_ms": "publish, 99 %, ms",
}


def svg(hours: Sequence[Hour], title: str) -> str:
    rows = [
        _row(number, name, [asdict(hour)[field] for hour in hours])
        for number, (field, name) in enumerate(MEASURED.items())
    ]
    height = ROW * len(rows) + 24
    labels = "".join(
        f'<text x="{_x(number, len(hours)):.0f}" y="{height - 6}" text-anchor="middle">{number}</text>'
        for number in range(0, len(hours), max(1, len(hours) // 8))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" '
        f'role="img">\n<title>{title}</title>\n<rect width="100%" height="100%" fill="white"/>\n{chr(10).join(rows)}\n'
        f"{labels}\n</svg>\n"
    )


def _x(number: int, count: int) -> float:
    return LEFT + number * (WIDTH - LEFT - 20) / max(1, count - 1)


def _row(number: int, name: str, values: Sequence[float]) -> str:
    top, highest = number * ROW + 10, max(values) or 1.0
    bottom = top + ROW - 22
    points = " ".join(
        f"{_x(at, len(values)):.1f},{bottom - value / highest * (ROW - 22):.1f}" for at, value in enumerate(values)
    )
    return (
        f'<text x="8" y="{top + 24}">{name}</text>'
        f'<text x="{LEFT - 8}" y="{top + 10}" text-anchor="end" fill="#666">{highest:g}</text>'
        f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end" fill="#666">0</text>'
        f'<path d="M{LEFT} {bottom}H{WIDTH - 20}" stroke="#ccc"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>'
    )
