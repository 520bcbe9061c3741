"""What a pipeline at work looks like."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from seriatim.cli import run_display
from seriatim.cli.run_display import LiveDisplay, RunDisplay, Silent, Snapshot

BUSY = Snapshot(
    batch=12, batches=3, rows_in=24_000, ordered=23_700, held=180, ledger={"duplicate": 100, "lost": 2}, rate=5_900.4
)


def test_a_line_has_all_figures():
    assert Snapshot().line() == "waiting for the first batch"
    assert BUSY.line() == ("batch 12: 24,000 in, 23,700 ordered, 180 held, ledger: 100 duplicate, 2 lost; 5,900 rows/s")


def test_where_there_is_no_terminal_a_line_comes_now_and_then_and_only_with_news(capsys, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr("seriatim.cli.run_display.time.monotonic", lambda: now)
    display = LiveDisplay.for_terminal(enabled=True)
    display.show(BUSY)
    now += run_display.SECONDS_BETWEEN_LINES
    for snapshot in (BUSY, replace(BUSY, batch=13)):
        display.show(snapshot)
    now += run_display.SECONDS_BETWEEN_LINES
    for snapshot in (BUSY, replace(BUSY, batch=14), replace(BUSY, batch=15)):
        display.show(snapshot)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["batch 12", "batch 14"]


@pytest.mark.parametrize(
    ("is_terminal", "enabled", "kind"), [(True, True, LiveDisplay), (False, True, RunDisplay), (True, False, Silent)]
)
def test_it_is_live_on_a_terminal_alone(monkeypatch, is_terminal, enabled, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    assert type(LiveDisplay.for_terminal(enabled=enabled)) is kind


def test_a_live_display_shows_the_latest_figures(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with LiveDisplay() as display:
        display.show(BUSY)
        display.say("finishing the batch under way")
    assert "finishing the batch under way" in capsys.readouterr().err
