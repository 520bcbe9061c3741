"""The picture of the demo in the docs, from a real run: ``python -m docs.demo_picture``, or with options of the demo."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "demo.svg"
COLUMNS, ROWS = 100, 50
CONTROL = re.compile(r"\x1b\[(?:\?25[lh]|(?P<up>\d*)A|2K)|\r|\n")
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rich would have them fetched from elsewhere; the reader's own fixed-width font does as well."""


def output_of(command: list[str], folder: Path) -> str:
    """Everything that a command writes to a terminal. Raises CalledProcessError if it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
    written = b""
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with suppress(OSError):  # what reading says at the end
            while block := os.read(ours, 4096):
                written += block
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, written)
    return written.decode()


def last_seen(output: str) -> list[str]:
    """The lines that a terminal shows in the end. A line that is drawn again is erased before, as Rich does it."""
    lines, row, position = [""], 0, 0
    for control in CONTROL.finditer(output):
        lines[row] += output[position : control.start()]
        position = control.end()
        if control[0] == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif control[0].endswith("A"):
            row -= int(control["up"] or 1)
        elif control[0].endswith("2K"):
            lines[row] = ""
    lines[row] += output[position:]
    return lines


def picture_of(lines: list[str], title: str) -> str:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(lines).rstrip()))
    svg = console.export_svg(title=title, unique_id="demo")
    return FONT.sub("", svg)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = output_of([sys.executable, "-m", "seriatim", "demo", *sys.argv[1:]], Path(folder))
    PICTURE.write_text(
        picture_of(last_seen(output), " ".join(["seriatim demo", *sys.argv[1:]])) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
