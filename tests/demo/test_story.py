"""The story that the tutorial tells is the one that the demo tells: its numbers depend on the fleet alone."""

from __future__ import annotations

import re
from pathlib import Path

from seriatim.cli.demo.command import FULL
from seriatim.cli.demo.display import show_story
from seriatim.core.resequencing.options import LedgerEntry, Released
from seriatim.demo.books import Audited, Books, Entry
from seriatim.demo.fleet import Arrival, Crossing, Fleet
from seriatim.demo.folder import DemoFolder
from seriatim.demo.in_process import Line, entry_of
from seriatim.demo.progress import DemoStep
from seriatim.demo.subscribers import Subscribers

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "demo.md"


def books_of(fleet: Fleet) -> Books:
    """What the demo must find, worked out without topics, Spark and clients."""
    crossing, subscribers = Crossing(fleet), Subscribers(fleet, DemoStep("consume"))
    lines: dict[str, Line[Arrival]] = {name: Line(name) for name in fleet.names}
    ledger: list[Entry] = []
    for arrival in crossing:
        device = arrival.reading.device
        for effect in lines[device].take(arrival.reading.sequence, arrival, arrival.received_at):
            if isinstance(effect, Released):
                subscribers.redeliveries += subscribers._fails(device, lines[device].position)
                subscribers._observe(device, effect.sequence, lines[device].position)
                lines[device].position += 1
            elif isinstance(effect, LedgerEntry):
                ledger.append(entry_of(effect))
    subscribers.most_in_flight_per_device = 1
    before = Audited.of([line.arrivals.verdict() for line in lines.values()])
    return Books(crossing, ledger, subscribers, before, Audited.of(subscribers.by_sequence()))


def test_what_is_delayed_for_longer_than_anybody_waits_is_late_and_accounted_for():
    books = books_of(Fleet(devices=20, messages=500, shuffle=9_000))
    assert books.reasons["late"] > 0
    assert list(books.discrepancies()) == []


def test_the_tutorial_shows_what_the_demo_prints(capsys, tmp_path):
    books = books_of(FULL)
    show_story(books, DemoFolder(tmp_path), list(books.discrepancies()))
    out = capsys.readouterr().out.replace(str(tmp_path), "seriatim-demo")
    printed = "\n".join(line.rstrip() for line in out.splitlines()).strip("\n")
    shown = re.search(r"^\$ make demo\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown is not None
    parts = re.split(r"\n{2,}", printed)  # the folder is empty here, so its files are not listed
    assert len(parts) == 3
    assert all(part in shown[1] for part in parts)
