"""The picture of the demo shows what a terminal shows in the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from docs import demo_picture


def test_what_was_drawn_again_is_seen_once():
    spinning = "\x1b[?25l⠋ first  1s\r\n⠋ second\r\x1b[2K\x1b[1A\x1b[2K✓ first  2s\r\n⠙ second\r\x1b[2K\x1b[1A\x1b[2K"
    lines = demo_picture.last_seen(f"{spinning}✓ first  2s\r\n✓ second\r\n\x1b[?25h\r\ntotal: 7\r\n")
    assert lines == ["✓ first  2s", "✓ second", "", "total: 7", ""]


def test_a_program_writes_to_a_terminal_of_the_width_of_the_picture(tmp_path):
    program = "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)"
    output = demo_picture.output_of([sys.executable, "-c", program], tmp_path)
    assert demo_picture.last_seen(output)[0] == f"True True {demo_picture.COLUMNS}"
    with pytest.raises(subprocess.CalledProcessError):
        demo_picture.output_of([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_the_picture_fetches_nothing_and_shows_colours_and_a_title():
    svg = demo_picture.picture_of(["\x1b[32m✓\x1b[0m 40 published"], "seriatim demo")
    assert svg.startswith("<svg")
    assert "seriatim&#160;demo" in svg
    assert "published" in svg
    assert "url(http" not in svg.replace('"', "")
    assert "40" in demo_picture.PICTURE.read_text(encoding="utf-8")
