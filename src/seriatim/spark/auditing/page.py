"""The HTML page of one audit, or of two side by side: pure data in, text out.

The page loads nothing, runs no script, and follows the reader's light or dark mode. The charts of two compared audits have
the same scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from seriatim.spark.auditing.charts import (
    FAULTS,
    KINDS,
    Bucket,
    KeyRow,
    Trail,
    bars,
    figure,
    key_bars,
    scatter,
    short,
    table,
)


@dataclass(frozen=True, slots=True)
class Page:
    """What one audit found. Without an order of arrival there are no trails, displacements or gaps."""

    title: str
    total: Mapping[str, Any]
    worst: tuple[KeyRow, ...]
    trails: tuple[Trail, ...] = ()
    displacements: tuple[Bucket, ...] = ()
    gaps: tuple[Bucket, ...] = ()


FACTS = {
    "rows": "rows",
    "keys": "keys",
    "distinct": "distinct numbers",
    "duplicates": "duplicates",
    "conflicts": "conflicts",
    "lost": "lost",
    "reordered": "reordered",
    "max_displacement": "furthest behind",
    "invalid": "invalid rows",
}
HARMLESS = ("rows", "keys", "distinct")
"""Facts that are neither good nor bad."""

STYLE = """
:root { color-scheme: light dark; --page: #f7f8fa; --card: #ffffff; --ink: #1b2430; --soft: #566173; --line: #d9dee7;
  --a: #1f5fbf; --b: #d9541e; --c: #7c4dc4; --d: #a67500; --good: #1c7a43; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #11151c; --card: #1a202a; --ink: #e6ebf2; --soft: #9fabbd;
  --line: #313a48; --a: #7fb2ff; --b: #f58a5a; --c: #b794f6; --d: #e3b341; --good: #7bd69b; --bad: #ff9c94; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 28px 16px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0; } h3 { font-size: 15px; margin: 0 0 6px; overflow-wrap: anywhere; }
p { margin: 2px 0 12px; color: var(--soft); } .lead { font-size: 17px; color: var(--ink); margin: 6px 0 0; }
.good { color: var(--good); } .bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(150px, 45%), 1fr)); gap: 10px; margin: 20px 0 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 10px 14px; } .tile dt { color: var(--soft); font-size: 14px; }
.tile dd { margin: 0; font-size: 22px; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
section { padding: 18px; margin-top: 14px; } .facts { overflow-x: auto; }
.trails { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(250px, 100%), 1fr)); gap: 20px; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(330px, 100%), 1fr)); gap: 24px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(140px, 100%), 1fr)); gap: 12px; align-items: end; }
figure { margin: 0; min-width: 0; } figcaption { font-size: 14px; color: var(--soft); overflow-wrap: anywhere; }
svg { width: 100%; display: block; } svg.dots { overflow: visible; }
text { fill: var(--soft); font: 12px system-ui, sans-serif; } text.name { fill: var(--ink); font-size: 13px; }
line { stroke: var(--line); } path { fill: none; stroke-linecap: round; stroke-width: 4; vector-effect: non-scaling-stroke; }
path.a { stroke: var(--a); } path.b { stroke: var(--b); stroke-width: 5; } path.c { stroke: var(--c); stroke-width: 5; }
rect.a { fill: var(--a); } rect.b { fill: var(--b); } rect.c { fill: var(--c); } rect.d { fill: var(--d); }
rect.e { fill: var(--bad); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none; margin: 0 0 12px; padding: 0; font-size: 14px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.legend .a { background: var(--a); } .legend .b { background: var(--b); }
.legend .c { background: var(--c); } .legend .d { background: var(--d); } .legend .e { background: var(--bad); }
details { margin-top: 8px; font-size: 14px; overflow-x: auto; } summary { color: var(--soft); cursor: pointer; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .facts table { width: 100%; }
th, td { text-align: left; font-weight: 400; padding: 5px 16px 5px 0; border-bottom: 1px solid var(--line); }
th[scope=col] { color: var(--soft); white-space: nowrap; } .n { text-align: right; white-space: nowrap; }
"""


def draw(*pages: Page) -> str:
    """The whole page: of one audit, or of what was before and after."""
    title = f"Audit of {pages[0].title}" if len(pages) == 1 else "Before and after"
    leads = [_lead(page, "" if len(pages) == 1 else f"{page.title}: ") for page in pages]
    body = "".join((f"<h1>{escape(title)}</h1>", *leads, _facts(pages), *_sections(pages)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _lead(page: Page, subject: str) -> str:
    """The guarantee that held, in one sentence, and the first violation of the next one."""
    held, violated = page.total["guarantee"], next((row for row in page.worst if row.witness), None)
    if held is None:
        sentence = "order could not be judged: no column of arrival was named"
    else:
        is_good = held == "absolute" and not page.total["invalid"]
        mood = "good" if is_good else "bad" if held == "none" else ""
        sentence = f'held for every key: <b class="{mood}">{held}</b>'
    proof = f"<p>key {escape(short(violated.key))}: {escape(str(violated.witness))}</p>" if violated else ""
    return f'<p class="lead">{escape(subject)}{sentence}</p>{proof}'


def _facts(pages: Sequence[Page]) -> str:
    if len(pages) == 1:
        tiles = "".join(
            f'<div class="tile"><dt>{name}</dt><dd class="{_mood(fact, value)}">{figure(value)}</dd></div>'
            for fact, name in FACTS.items()
            for value in [pages[0].total[fact]]
        )
        return f'<dl class="tiles">{tiles}</dl>'
    rows = [
        [name, *(f'<b class="{_mood(fact, page.total[fact])}">{figure(page.total[fact])}</b>' for page in pages)]
        for fact, name in FACTS.items()
    ]
    heading = ("", *(escape(page.title) for page in pages))
    return f'<section class="facts">{table(heading, rows)}</section>'


def _mood(fact: str, value: int | None) -> str:
    return "" if value is None or fact in HARMLESS else "bad" if value else "good"


def _sections(pages: Sequence[Page]) -> Iterator[str]:
    if any(page.trails for page in pages):
        about = _about(
            "Each dot is a row: further right the later it came, higher the higher its number. Order is a rising line."
        )
        yield _card("Arrival order against sequence", about + _legend(KINDS), _trails(pages))
    yield from _histogram(
        "Displacement",
        "Rows that others overtook, by how many numbers they were behind.",
        ("numbers behind", "rows"),
        pages,
        _as_long([page.displacements for page in pages]),
        "b",
    )
    yield from _histogram(
        "Gaps over time",
        "Missing numbers, by when the row behind their hole came.",
        ("from", "missing"),
        pages,
        [page.gaps for page in pages],
        "d",
    )
    if any(page.worst for page in pages):
        highest = max(row.faults for page in pages for row in page.worst)
        drawn = [key_bars(page.worst, highest) for page in pages]
        yield _section("Worst keys", _about("What is wrong with each.") + _legend(FAULTS), pages, drawn)


def _as_long(sides: Sequence[tuple[Bucket, ...]]) -> list[tuple[Bucket, ...]]:
    """The same buckets on each side: those that one lacks are empty."""
    longest = max(sides, key=len)
    return [(*side, *(bucket._replace(size=0) for bucket in longest[len(side) :])) for side in sides]


def _trails(pages: Sequence[Page]) -> str:
    """The worst keys; where two audits are compared, what became of a key is beside what it was."""
    if len(pages) == 1:
        return f'<div class="trails">{"".join(scatter(trail, trail.key) for trail in pages[0].trails)}</div>'
    keys = dict.fromkeys(trail.key for page in pages for trail in page.trails)
    found = [(page.title, {trail.key: trail for trail in page.trails}) for page in pages]
    pairs = [
        "".join(scatter(trails[key], f"{title}: {key}") if key in trails else "<div></div>" for title, trails in found)
        for key in keys
    ]
    together = "".join(f'<div class="pair">{pair}</div>' for pair in pairs)
    return f'<div class="sides">{together}</div>'


def _section(title: str, about: str, pages: Sequence[Page], contents: Sequence[str]) -> str:
    """A card with one picture, or one for each side."""
    if len(pages) == 1:
        return _card(title, about, contents[0])
    sides = "".join(
        f"<div><h3>{escape(page.title)}</h3>{content or '<p>none</p>'}</div>"
        for page, content in zip(pages, contents, strict=True)
    )
    return _card(title, about, f'<div class="sides">{sides}</div>')


def _card(title: str, about: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{about}{content}</section>"


def _histogram(
    title: str,
    about: str,
    heading: tuple[str, str],
    pages: Sequence[Page],
    sides: Sequence[Sequence[Bucket]],
    style: str,
) -> Iterator[str]:
    highest = max((bucket.size for side in sides for bucket in side), default=0)
    if highest:
        yield _section(title, _about(about), pages, [bars(side, highest, style, title, heading) for side in sides])


def _about(sentence: str) -> str:
    return f"<p>{sentence}</p>"


def _legend(kinds: Mapping[str, str]) -> str:
    items = "".join(f'<li><i class="{style}"></i>{name}</li>' for name, style in kinds.items())
    return f'<ul class="legend">{items}</ul>'
