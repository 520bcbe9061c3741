"""Drawing the page of an audit: pure text in, text out. HTML, CSS and SVG of our own, in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple


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


class KeyBar(NamedTuple):
    """What is wrong with one key."""

    key: str
    duplicates: int
    lost: int
    reordered: int

    @property
    def faults(self) -> int:
        return self.duplicates + self.lost + self.reordered


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that is drawn. Without an order of arrival there are no trails, displacements or gaps."""

    title: str
    total: Mapping[str, Any]
    worst: tuple[KeyBar, ...]
    trails: tuple[Trail, ...] = ()
    displacements: tuple[Bucket, ...] = ()
    gaps: tuple[Bucket, ...] = ()


KINDS = {"in order": "a", "overtaken": "b", "copy": "c"}
FAULTS = {"reordered": "b", "duplicates": "c", "lost": "d"}

STYLE = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #ffffff; --ink: #1d2129; --soft: #626a78; --line: #e3e3de;
  --a: #2a78d6; --b: #e0602c; --c: #8a5cd1; --d: #b8860b; --good: #1a7f4b; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --card: #1d2026; --ink: #eceef2; --soft: #9aa3b2;
  --line: #333842; --a: #5b9df0; --b: #f08a5d; --c: #b48cf2; --d: #e0b040; --good: #4cc38a; --bad: #f0766a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0; }
p { margin: 2px 0 12px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 10px; margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 10px 14px; } .tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; } .good { color: var(--good); } .bad { color: var(--bad); }
section { padding: 16px 18px; margin-top: 14px; }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 14px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 0 14px; }
svg { width: 100%; height: auto; display: block; overflow: visible; }
text { fill: var(--soft); font: 11px system-ui, sans-serif; } text.name { fill: var(--ink); }
.axis { stroke: var(--line); fill: none; } .dots { fill: none; stroke-width: 3.2; stroke-linecap: round; }
.dots.a { stroke: var(--a); } .dots.b { stroke: var(--b); } .dots.c { stroke: var(--c); }
rect.a { fill: var(--a); } rect.b { fill: var(--b); } rect.c { fill: var(--c); } rect.d { fill: var(--d); }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin: 0 5px 0 12px; }
.key.a { background: var(--a); } .key.b { background: var(--b); }
.key.c { background: var(--c); } .key.d { background: var(--d); }
"""


def draw(page: Page) -> str:
    """The whole page."""
    body = "".join((_heading(page), _tiles(page.total), *_sections(page)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Audit of {escape(page.title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _heading(page: Page) -> str:
    held = page.total["guarantee"]
    verdict = (
        "order could not be judged: no column of arrival was named" if held is None else f"held for every key: {held}"
    )
    return f"<h1>Audit of {escape(page.title)}</h1><p>{page.total['keys']:,} keys, {page.total['rows']:,} rows; {verdict}</p>"


def _tiles(total: Mapping[str, Any]) -> str:
    shown = {name: total[name] for name in ("duplicates", "conflicts", "lost", "reordered", "invalid")}
    tiles = [
        _tile(name, _figure(value), "" if value is None else "bad" if value else "good")
        for name, value in shown.items()
    ]
    tiles.insert(4, _tile("furthest behind", _figure(total["max_displacement"]), ""))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _figure(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _tile(name: str, figure: str, mood: str) -> str:
    return f'<div class="tile"><b class="{mood}">{figure}</b><span>{name}</span></div>'


def _sections(page: Page) -> Iterable[str]:
    if page.trails:
        trails = "".join(f"<div>{_scatter(trail)}</div>" for trail in page.trails)
        about = f"The worst keys: each dot is a row, further right the later it came.{_legend(KINDS)}"
        yield _section("Arrival order against sequence", about, f'<div class="small">{trails}</div>')
    charts = [
        _section(
            "Displacement",
            "Rows that others overtook, by how many numbers they were behind.",
            _bars(page.displacements, "b"),
        )
        if any(bucket.size for bucket in page.displacements)
        else "",
        _section("Gaps over time", "Missing numbers, by when the row behind their hole came.", _bars(page.gaps, "d"))
        if any(bucket.size for bucket in page.gaps)
        else "",
    ]
    yield f'<div class="pair">{"".join(charts)}</div>'
    if page.worst:
        yield _section("Worst keys", f"Faults of each.{_legend(FAULTS)}", _key_bars(page.worst))


def _section(title: str, about: str, content: str) -> str:
    return f"<section><h2>{title}</h2><p>{about}</p>{content}</section>"


def _legend(kinds: Mapping[str, str]) -> str:
    return "".join(f'<i class="key {style}"></i>{name}' for name, style in kinds.items())


# --- pictures -----------------------------------------------------------------------------------------------------------


def _scatter(trail: Trail, width: int = 260, height: int = 210) -> str:
    left, top, right, bottom = 8, 22, width - 8, height - 22
    x = _scale([point.at for point in trail.points], left, right)
    y = _scale([point.number for point in trail.points], bottom, top)
    places = {kind: [(x(point.at), y(point.number)) for point in trail.points if point.kind == kind] for kind in KINDS}
    dots = "".join(f'<path class="dots {style}" d="{_dots(places[kind])}"/>' for kind, style in KINDS.items())
    last = max(point.at for point in trail.points)
    low, high = (pick(point.number for point in trail.points) for pick in (min, max))
    labels = (
        f'<text class="name" x="{left}" y="12">{escape(_short(trail.key))}</text>'
        f'<text x="{left}" y="{height - 6}">arrival 0 … {last:,}</text>'
        f'<text x="{right}" y="{height - 6}" text-anchor="end">sequence {low:,} … {high:,}</text>'
    )
    frame = f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>'
    return _svg(width, height, f"{frame}{dots}{labels}", f"arrival against sequence of {trail.key}")


def _scale(values: Sequence[int], start: float, end: float) -> Callable[[int], float]:
    low, high = min(values), max(values)
    return lambda value: start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)


def _dots(places: Iterable[tuple[float, float]]) -> str:
    """A path of strokes without length, which round caps make dots: far less text than a circle for each."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)


def _bars(buckets: Sequence[Bucket], style: str, width: int = 460, height: int = 200) -> str:
    top, bottom = 18, height - 24
    highest = max(bucket.size for bucket in buckets)
    step = width / len(buckets)
    bars = "".join(
        _bar(at * step, bottom, step, (bottom - top) * bucket.size / highest, style, f"{bucket.label}: {bucket.size:,}")
        for at, bucket in enumerate(buckets)
    )
    labels = [f'<text x="0" y="12">{highest:,} at most</text>', *_bar_labels(buckets, step, height - 8)]
    return _svg(width, height, f'<path class="axis" d="M0 {bottom}H{width}"/>{bars}{"".join(labels)}', "bars")


def _bar_labels(buckets: Sequence[Bucket], step: float, y: float) -> Iterable[str]:
    """All labels where there is room, otherwise the first and the last."""
    if len(buckets) <= 9:
        for at, bucket in enumerate(buckets):
            yield f'<text x="{(at + 0.5) * step:.0f}" y="{y}" text-anchor="middle">{escape(bucket.label)}</text>'
    else:
        yield f'<text x="0" y="{y}">{escape(buckets[0].label)}</text>'
        yield f'<text x="{len(buckets) * step:.0f}" y="{y}" text-anchor="end">{escape(buckets[-1].label)}</text>'


def _bar(x: float, bottom: float, step: float, height: float, style: str, tip: str) -> str:
    gap = min(2.0, step * 0.2)
    size = f'x="{x + gap / 2:.1f}" y="{bottom - height:.1f}" width="{step - gap:.1f}" height="{height:.1f}"'
    return f'<rect class="{style}" rx="2" {size}><title>{escape(tip)}</title></rect>' if height else ""


def _key_bars(worst: Sequence[KeyBar], width: int = 1000, row: int = 24) -> str:
    left, highest = 190, max(bar.faults for bar in worst)
    parts = []
    for at, bar in enumerate(worst):
        y, x = at * row, float(left)
        parts.append(
            f'<text class="name" x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(_short(bar.key))}</text>'
        )
        for name, style in FAULTS.items():
            count = getattr(bar, name)
            length = (width - left - 70) * count / highest
            parts.append(_bar(x, y + row - 4, length, row - 8 if count else 0, style, f"{bar.key}: {name} {count:,}"))
            x += length
        parts.append(f'<text x="{x + 6:.0f}" y="{y + 15}">{bar.faults:,}</text>')
    return _svg(width, row * len(worst), "".join(parts), "faults of the worst keys")


def _short(key: str) -> str:
    return key if len(key) <= 26 else f"{key[:25]}…"


def _svg(width: int, height: int, content: str, about: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">{content}</svg>'
