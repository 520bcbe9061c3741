"""The line that shows the state of long work."""

from __future__ import annotations

import sys

import pytest

from seriatim.cli.common.display import StatusLine

INTERVAL = 10.0


def test_without_a_terminal_a_line_comes_at_intervals_and_only_if_it_has_changed(capsys, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr("seriatim.cli.common.display.time.monotonic", lambda: now)
    status = StatusLine(enabled=True, interval=INTERVAL)
    status.show("batch 12")
    now += INTERVAL
    for text in ("batch 12", "batch 13"):
        status.show(text)
    now += INTERVAL
    for text in ("batch 12", "batch 14", "batch 15"):
        status.show(text)
    assert capsys.readouterr().err.splitlines() == ["batch 12", "batch 14"]


@pytest.mark.parametrize(
    ("is_terminal", "enabled", "shown"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_it_is_live_on_a_terminal_alone_and_notices_are_always_printed(
    monkeypatch, capsys, is_terminal, enabled, shown
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with StatusLine(enabled=enabled) as status:
        status.show("[12] messages")
        status.notice("finishing [the] batch")
    said = capsys.readouterr().err
    assert ("[12] messages" in said) is shown
    assert "finishing [the] batch" in said


def test_without_an_interval_and_without_a_terminal_nothing_is_shown(capsys):
    with StatusLine(enabled=True) as status:
        status.show("busy")
    assert capsys.readouterr().err == ""
